"""Data that services write beside a commit of their repository is found again beside the next one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.model.workloads import FailureReason, FileSpec
from shoal.runtimes.base import RunError
from shoal.runtimes.compose.commits import list_files, listing_of
from shoal.runtimes.compose.files import with_kept_data
from shoal.runtimes.compose.project import parse_project

TRACKED = frozenset({"conf", "conf/a"})


def mounts(folder: Path, *volumes: object, files: tuple[str, ...] = (), tracked: frozenset[str] = TRACKED) -> list[Any]:
    content = {"services": {"web": {"image": "a", "volumes": list(volumes)}, "db": {"image": "b"}}}
    project = parse_project(json.dumps(content), at="compose", variables={}, allow_privileged=True)
    project = replace(project, commit=folder.name, tracked=tracked)
    kept = with_kept_data(project, folder, [FileSpec(path=path) for path in files])
    assert "volumes" not in kept.services["db"]
    return list(kept.services["web"]["volumes"])


def refused(folder: Path, *volumes: object, **options: Any) -> str:
    with pytest.raises(RunError) as raised:
        mounts(folder, *volumes, **options)
    assert (raised.value.failure, raised.value.transient) == (FailureReason.INVALID_SPEC, False)
    return raised.value.message


@pytest.fixture
def commits(tmp_path: Path) -> tuple[Path, Path]:
    """The directories of two commits of one project."""
    one, two = tmp_path / "web" / ("1" * 40), tmp_path / "web" / ("2" * 40)
    for folder in (one, two):
        folder.mkdir(parents=True)
        list_files(folder, listing_of(folder))
    return one, two


def test_data_is_in_one_place_for_all_commits(commits: tuple[Path, Path]) -> None:
    one, two = commits
    data = one.parent / "data"
    bind = {"type": "bind", "source": "more/data", "target": "/more"}
    given = ("./data:/data", bind, "./conf:/conf:ro", "/srv:/srv", "/scratch", "./:/all", "../up:/up")
    first = mounts(one, *given)
    assert first == [f"{data}/data:/data", {**bind, "source": f"{data}/more/data"}, *given[2:]]
    (data / "data").mkdir(parents=True)
    (data / "more/data").mkdir(parents=True)
    assert mounts(two, *given) == first
    assert mounts(one, *given) == first


def test_data_of_earlier_versions_stays_where_it_was_written_last(commits: tuple[Path, Path]) -> None:
    for number, folder in enumerate(commits):
        (folder / "data").mkdir()
        os.utime(folder / "data", (number, number))
    assert mounts(commits[0], "./data:/data") == [f"{commits[0].parent}/data/data:/data"]
    for folder in commits:
        listing_of(folder).unlink()
        assert mounts(commits[0], "./data:/data") == [f"{folder}/data:/data"]


def test_files_of_the_spec_are_no_data(commits: tuple[Path, Path]) -> None:
    given = ["./keys:/keys", "./word:/word"]
    assert mounts(commits[1], *given, files=("./keys/one", "word")) == given


def test_a_link_that_a_service_has_made_is_not_followed(commits: tuple[Path, Path]) -> None:
    listing_of(commits[0]).unlink()
    (commits[0] / "data").symlink_to("/etc")
    data = commits[0].parent / "data"
    assert mounts(commits[1], "./data:/data") == [f"{data}/data:/data"]
    data.mkdir()
    (data / "data").symlink_to("/etc")
    assert "a link out" in refused(commits[1], "./data:/data")
    (data / "ring").symlink_to("ring")
    assert mounts(commits[1], "./ring:/ring") == [f"{data}/ring:/ring"]


def test_a_path_with_data_cannot_become_one_of_the_project(commits: tuple[Path, Path]) -> None:
    one, two = commits
    tracked = TRACKED | {"data", "data/.gitkeep"}
    assert mounts(one, "./data:/data", "./conf/more:/more") == [
        f"{one.parent}/data/data:/data",
        f"{one.parent}/data/conf/more:/more",
    ]
    place = one.parent / "data/data"
    (place / "deep").mkdir(parents=True)
    assert mounts(two, "./data:/data", tracked=tracked) == ["./data:/data"]  # there is nothing in it yet
    (place / "deep/table").touch()
    assert "'./data'" in refused(two, "./data:/data", tracked=tracked)
    assert "'./data'" in refused(two, "./data:/data", files=("data/seed",))
    assert mounts(two, "./data:/data") == [f"{place}:/data"]
    # Data below a directory of the repository is not data of that directory.
    (one.parent / "data/conf/more").mkdir(parents=True)
    (one.parent / "data/conf/more/table").touch()
    assert mounts(two, "./conf:/conf") == ["./conf:/conf"]
    # A service that does not mount the path is not in the way.
    assert mounts(two, "./other:/other", tracked=tracked) == [f"{one.parent}/data/other:/other"]
