"""Which services of a project an update replaces."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from shoal.model.workloads import FileSpec
from shoal.runtimes.compose.digests import service_digests
from shoal.runtimes.compose.project import Project, parse_project

TRACKED = frozenset({"compose.yaml", "settings", "conf", "conf/a", "key"})
DB = {"image": "db:1", "environment": {}}


def digests(
    web: dict[str, Any], *, commit: str = "", files: dict[str, bytes] | None = None, db: str = "db:1", **top: object
) -> Any:
    content = {"services": {"db": {**DB, "image": db}, "web": {"image": "web:1", **web}}, **top}
    given = [(FileSpec(path=path), text) for path, text in (files or {}).items()]
    return service_digests(of_commit(content, commit), given)


def of_commit(content: object, commit: str) -> Project:
    project = parse_project(json.dumps(content), at="compose", variables={}, allow_privileged=False)
    return replace(project, commit=commit, tracked=TRACKED) if commit else project


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [name for name in before if before[name] != after[name]]


def test_a_service_that_takes_nothing_from_elsewhere_has_the_digest_that_earlier_versions_stored() -> None:
    stored = hashlib.sha256(json.dumps(DB, sort_keys=True).encode()).hexdigest()
    assert digests({}, commit="one", files={"conf": b"a"})["db"] == stored


def test_a_digest_changes_with_its_service_alone() -> None:
    assert changed(digests({}), digests({"image": "web:2"})) == ["web"]


@pytest.mark.parametrize(
    "web",
    [
        {"build": "."},
        {"build": {"dockerfile_inline": "FROM a"}},
        {"env_file": "settings"},
        {"env_file": ["settings"]},
        {"env_file": [{"path": "settings"}]},
        {"volumes": ["./conf:/conf:ro"]},
        {"volumes": [{"type": "bind", "source": "conf", "target": "/conf"}]},
        {"secrets": ["key"]},
        {"configs": [{"source": "key"}]},
        {"extends": "base"},
        {"extends": {"service": "base"}},
    ],
)
def test_the_next_commit_replaces_what_takes_files_from_the_repository(web: dict[str, Any]) -> None:
    top: dict[str, Any] = {"secrets": {"key": {"file": "key"}}, "configs": {"key": {"file": "./key"}}}
    base = {"image": "base:1", "volumes": ["./conf:/conf"]}

    def of(commit: str) -> Any:
        content = {"services": {"db": DB, "base": base, "web": {"image": "web:1", **web}}, **top}
        return service_digests(of_commit(content, commit))

    assert changed(of("one"), of("two")) == ["base", "web"]


@pytest.mark.parametrize("volume", ["data:/data", "/srv/data:/data", "/data", "./data:/data"])
def test_a_volume_is_nothing_of_the_repository(volume: str) -> None:
    web = {"volumes": [volume]}
    assert changed(*(digests(web, commit=commit, volumes={"data": None}) for commit in ("one", "two"))) == []


def test_a_config_that_a_service_names_is_part_of_it() -> None:
    before, after = ({"word": {"content": text}} for text in ("one", "two"))
    assert changed(digests({"configs": ["word"]}, configs=before), digests({"configs": ["word"]}, configs=after)) == [
        "web"
    ]
    assert changed(digests({}, configs=before), digests({}, configs=after)) == []


def test_what_a_service_extends_is_part_of_it() -> None:
    web = {"extends": {"service": "db"}}
    assert changed(digests(web), digests(web, db="db:2")) == ["db", "web"]


@pytest.mark.parametrize(
    ("web", "is_taken_once"),
    [
        ({"env_file": "conf/word"}, True),
        ({"volumes": ["./conf/word:/etc/word"]}, True),
        ({"build": "conf"}, True),
        ({"build": {"context": "./"}}, True),
        ({"build": "other"}, False),
        ({"volumes": ["./conf:/conf"]}, False),
        ({}, False),
    ],
)
def test_a_file_that_is_taken_once_replaces_its_service(web: dict[str, Any], is_taken_once: bool) -> None:
    """A directory that is mounted shows the new file to the service that runs."""
    before, after = (digests(web, files={"./conf/word": text}) for text in (b"one", b"two"))
    assert changed(before, after) == (["web"] if is_taken_once else [])
