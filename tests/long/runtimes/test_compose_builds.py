"""Compose projects whose images are built, on a real Podman."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.ids import RunId, WorkloadId
from shoal.model.workloads import ComposeSpec, FileSpec
from shoal.runtimes.base import RunError, RunRequest
from shoal.testing.suites.runtime import wait_output
from tests.e2e.runtimes.containers import (
    OpenContainers,
    engine,
    make_repository,
    open_containers,
    owner,
    registry,
    service,
)
from tests.services.engine import IMAGE

__all__ = ["engine", "open_containers", "owner", "registry", "service"]

DOCKERFILE = f"FROM {IMAGE}\nCOPY word /word\n"


def project(**more: object) -> str:
    web = {"build": ".", "command": ["sh", "-c", "cat /word; exec sleep 1000"], "init": True}
    return json.dumps({"services": {"web": {**web, **more}}})


def run_of(spec: ComposeSpec, generation: int) -> RunRequest:
    return RunRequest(run_id=RunId("web-1"), workload_id=WorkloadId("web"), spec=spec, generation=generation)


async def test_images_are_built_from_the_commit_that_runs_also_after_a_failed_update(
    open_containers: OpenContainers, tmp_path: Path
) -> None:
    def files(version: str, text: str) -> dict[str, str]:
        return {"compose.yaml": text, "Dockerfile": DOCKERFILE, "word": f"built {version}\n"}

    broken = project(command=["/nowhere/no-such-program"], init=False)
    versions = {"one": files("one", project()), "two": files("two", project()), "three": files("three", broken)}
    repository = make_repository(tmp_path, **versions)
    runtime = await open_containers("compose")

    def at(ref: str, generation: int) -> RunRequest:
        return run_of(ComposeSpec(source_type="git", git_repo=str(repository), git_ref=ref), generation)

    await runtime.start(at("one", 1))
    await wait_output(runtime, b"built one\n")
    await runtime.update(RunId("web-1"), at("two", 2))
    await wait_output(runtime, b"built one\nbuilt two\n")
    with pytest.raises(RunError):
        await runtime.update(RunId("web-1"), at("three", 3))
    await wait_output(runtime, b"built one\nbuilt two\nbuilt two\n")


async def test_images_are_built_with_the_files_of_the_spec(open_containers: OpenContainers) -> None:
    def built(version: str, generation: int) -> RunRequest:
        files = {"Dockerfile": DOCKERFILE, "word": f"built {version}\n"}
        given = tuple((FileSpec(path=path), text.encode()) for path, text in files.items())
        return replace(run_of(ComposeSpec(inline_yaml=project()), generation), files=given)

    runtime = await open_containers("compose")
    await runtime.fetch(built("one", 1))
    await runtime.start(built("one", 1))
    await wait_output(runtime, b"built one\n")
    await runtime.prepare(built("two", 2))
    await runtime.update(RunId("web-1"), built("two", 2))
    await wait_output(runtime, b"built one\nbuilt two\n")
