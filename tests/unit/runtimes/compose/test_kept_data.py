"""Data that services write beside a commit of their repository is found again beside the next one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.model.workloads import FileSpec
from shoal.runtimes.compose.files import with_kept_data
from shoal.runtimes.compose.project import parse_project


def mounts(folder: Path, *volumes: object, files: tuple[str, ...] = ()) -> list[Any]:
    content = {"services": {"web": {"image": "a", "volumes": list(volumes)}, "db": {"image": "b"}}}
    project = parse_project(json.dumps(content), at="compose", variables={}, allow_privileged=False)
    project = replace(project, commit=folder.name, tracked=frozenset({"conf", "conf/a"}))
    kept = with_kept_data(project, folder, [FileSpec(path=path) for path in files])
    assert "volumes" not in kept.services["db"]
    return list(kept.services["web"]["volumes"])


@pytest.fixture
def commits(tmp_path: Path) -> tuple[Path, Path]:
    """The directories of two commits of one project."""
    one, two = tmp_path / "web/one", tmp_path / "web/two"
    for folder in (one, two):
        folder.mkdir(parents=True)
    return one, two


def test_data_stays_where_it_was_first(commits: tuple[Path, Path]) -> None:
    one, two = commits
    bind = {"type": "bind", "source": "more/data", "target": "/more"}
    given = ("./data:/data", bind, "./conf:/conf:ro", "/srv:/srv", "/scratch", "./:/all")
    first = mounts(one, *given)
    assert first == [f"{one}/data:/data", {**bind, "source": f"{one}/more/data"}, *given[2:]]
    (one / "data").mkdir()
    (one / "more/data").mkdir(parents=True)
    assert mounts(two, *given) == first
    assert mounts(one, *given) == first


def test_of_several_the_last_one_to_change_counts(commits: tuple[Path, Path]) -> None:
    for number, folder in enumerate(commits):
        (folder / "data").mkdir()
        os.utime(folder / "data", (number, number))
    assert mounts(commits[0], "./data:/data") == [f"{commits[1]}/data:/data"]


def test_files_of_the_spec_are_no_data(commits: tuple[Path, Path]) -> None:
    (commits[0] / "keys").mkdir()
    given = ["./keys:/keys", "./word:/word"]
    assert mounts(commits[1], *given, files=("./keys/one", "word")) == given


def test_a_link_that_a_service_has_made_is_not_followed(commits: tuple[Path, Path]) -> None:
    (commits[0] / "data").symlink_to("/etc")
    assert mounts(commits[1], "./data:/data") == [f"{commits[1]}/data:/data"]
