from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest

from shoal.core import files
from shoal.core.config import load_settings
from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.shape import Identifier, Range


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Settings:
    node_id: Identifier
    lease: timedelta = timedelta(seconds=30)
    heartbeat_interval: timedelta = timedelta(seconds=10)
    grpc_port: Annotated[int, Range(0, 65535)] = 8085
    ratio: float = 0.5
    insecure: bool = False
    control: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    colour: Colour = Colour.RED
    host_id: str | None = None
    memory_mb: int | None = None
    join_token: Identifier | None = None

    def extra_problems(self, at: str) -> Iterator[Problem]:
        if self.lease <= self.heartbeat_interval:
            yield problem("lease", self.lease, "must be longer than the heartbeat interval")


ENV_NAMES = {
    "node_id": ("SHOAL_NODE_ID", "PERSYS_NODE_ID"),
    "lease": ("SHOAL_LEASE",),
    "heartbeat_interval": ("BEAT",),
    "grpc_port": ("GRPC_PORT",),
    "ratio": ("RATIO",),
    "insecure": ("SCHEDULER_INSECURE",),
    "control": ("SHOAL_CONTROL",),
    "ports": ("PORTS",),
    "labels": ("PERSYS_NODE_LABELS",),
    "limits": ("LIMITS",),
    "colour": ("COLOUR",),
    "memory_mb": ("MEMORY",),
    "join_token": ("JOIN_TOKEN",),
}


def load(**given: object) -> Settings:
    return load_settings(Settings, env_names=ENV_NAMES, **given)  # type: ignore[arg-type]


def problems(**given: object) -> dict[str, str]:
    with pytest.raises(InvalidError) as raised:
        load(**given)
    return {each.field: each.rule for each in raised.value.problems}


def test_defaults() -> None:
    assert load(flags={"node_id": "n1"}) == Settings(node_id="n1")


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('node_id = "file"\nlease = "1m"\ngrpc_port = 1\nratio = 2\n')
    env = {"PERSYS_NODE_ID": "env", "GRPC_PORT": "2", "RATIO": ""}
    settings = load(file=str(path), env=env, flags={"node_id": None, "grpc_port": 3})
    assert settings == Settings(node_id="env", lease=timedelta(minutes=1), grpc_port=3, ratio=2.0)


def test_the_first_name_in_the_environment_counts() -> None:
    assert load(env={"PERSYS_NODE_ID": "old", "SHOAL_NODE_ID": "new"}).node_id == "new"
    assert load(env={"PERSYS_NODE_ID": "old"}).node_id == "old"


def test_text_is_read_by_the_type_of_the_field() -> None:
    settings = load(
        env={
            "SHOAL_NODE_ID": "n1",
            "SHOAL_LEASE": "15",
            "BEAT": "1.5",
            "GRPC_PORT": " 9000 ",
            "RATIO": "0.25",
            "SCHEDULER_INSECURE": "Yes",
            "SHOAL_CONTROL": "a:1, b:2,",
            "PORTS": "1,2",
            "PERSYS_NODE_LABELS": "zone=a, rack=r1=x,empty=",
            "LIMITS": "a=1,b=2",
            "COLOUR": "blue",
            "MEMORY": "512",
        }
    )
    assert settings == Settings(
        node_id="n1",
        lease=timedelta(seconds=15),
        heartbeat_interval=timedelta(seconds=1.5),
        grpc_port=9000,
        ratio=0.25,
        insecure=True,
        control=("a:1", "b:2"),
        ports=(1, 2),
        labels={"zone": "a", "rack": "r1=x", "empty": ""},
        limits={"a": 1, "b": 2},
        colour=Colour.BLUE,
        memory_mb=512,
    )


@pytest.mark.parametrize(
    ("word", "expected"), [("1", True), ("true", True), ("on", True), ("0", False), ("False", False), ("off", False)]
)
def test_words_for_yes_and_no(word: str, expected: bool) -> None:
    assert load(env={"SHOAL_NODE_ID": "n", "SCHEDULER_INSECURE": word}).insecure is expected


def test_flags_may_be_text_values_or_repeated_words() -> None:
    settings = load(
        flags={
            "node_id": "n1",
            "lease": "500ms",
            "heartbeat_interval": timedelta(milliseconds=100),
            "labels": ["a=1", "b=2"],
            "control": ["x:1", "y:2"],
            "insecure": True,
            "colour": Colour.BLUE,
        }
    )
    assert settings.lease == timedelta(milliseconds=500)
    assert settings.heartbeat_interval == timedelta(milliseconds=100)
    assert settings.labels == {"a": "1", "b": "2"}
    assert settings.control == ("x:1", "y:2")
    assert settings.insecure
    assert settings.colour is Colour.BLUE


def test_a_bare_number_is_a_duration_in_the_environment_only(tmp_path: Path) -> None:
    assert load(env={"SHOAL_NODE_ID": "n", "SHOAL_LEASE": "15"}).lease == timedelta(seconds=15)
    assert set(problems(flags={"node_id": "n", "lease": "15"})) == {"--lease"}
    path = tmp_path / "c.toml"
    path.write_text("lease = 15")
    assert set(problems(flags={"node_id": "n"}, file=str(path))) == {f"{path}: lease"}


def test_every_error_of_every_source_is_reported_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('heartbeat_interval = "soon"\ngrpc_port = 99999\nleas = "3s"\nratio = "x"\nlabels = {a = 1}\n')
    found = problems(
        file=str(path),
        env={"PERSYS_NODE_ID": "../etc", "GRPC_PORT": "http", "SCHEDULER_INSECURE": "maybe", "LIMITS": "a,b=2"},
        # The flag is right and overrides what is wrong in the file: the file is wrong all the same.
        flags={"lease": "10 parsecs", "ratio": 0.1, "labels": ["a"], "colour": "green"},
    )
    assert set(found) == {
        f"{path}: heartbeat_interval",
        f"{path}: grpc_port",
        f"{path}: leas",
        f"{path}: ratio",
        f"{path}: labels.a",
        "PERSYS_NODE_ID",
        "GRPC_PORT",
        "SCHEDULER_INSECURE",
        "LIMITS",
        "--lease",
        "--labels",
        "--colour",
    }
    assert "did you mean lease" in found[f"{path}: leas"]
    assert "must be a duration" in found["--lease"]
    assert "key=value" in found["--labels"]


def test_what_is_required_says_how_to_give_it() -> None:
    assert problems() == {"--node-id": "is required; give it as --node-id or SHOAL_NODE_ID or PERSYS_NODE_ID"}


def test_a_flag_may_have_another_name() -> None:
    with pytest.raises(InvalidError) as raised:
        load_settings(Settings, flags={"labels": ["x"], "node_id": "n"}, flag_names={"labels": "--label"})
    assert [each.field for each in raised.value.problems] == ["--label"]


def test_a_rule_across_settings_names_where_the_value_stands() -> None:
    assert set(problems(flags={"node_id": "n"}, env={"SHOAL_LEASE": "5s"})) == {"SHOAL_LEASE"}
    assert set(problems(flags={"node_id": "n", "lease": "5s"})) == {"--lease"}
    assert set(problems(flags={"node_id": "n", "heartbeat_interval": "1m"})) == {"--lease"}


@pytest.mark.parametrize(
    ("content", "rule"), [(b"lease = ", "must be TOML"), (b"\xff\xfe", "must be UTF-8"), (None, "not found")]
)
def test_a_file_that_cannot_be_read_is_one_problem_among_others(
    tmp_path: Path, content: bytes | None, rule: str
) -> None:
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_bytes(content)
    found = problems(file=str(path), flags={"node_id": "n", "lease": "x"})
    assert set(found) == {str(path), "--lease"}
    assert rule in found[str(path)]


def test_a_file_may_be_anywhere_that_files_are() -> None:
    files.write_atomic("memory://conf/agent.toml", b'node_id = "far"')
    assert load(file="memory://conf/agent.toml").node_id == "far"


def test_what_may_be_a_secret_is_not_shown() -> None:
    with pytest.raises(InvalidError) as raised:
        load(flags={"node_id": "n"}, env={"JOIN_TOKEN": "hunter2/"})
    assert [each.field for each in raised.value.problems] == ["JOIN_TOKEN"]
    assert "hunter2" not in str(raised.value)


def test_a_setting_that_does_not_exist_is_a_bug() -> None:
    with pytest.raises(TypeError):
        load(flags={"colour_of_bikeshed": "red"})
    with pytest.raises(TypeError):
        load_settings(Settings, env_names={"nope": ("NOPE",)})
