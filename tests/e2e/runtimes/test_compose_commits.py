"""Compose projects from a repository over several commits, on a real Podman: what stays on the disk, and data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.ids import RunId, WorkloadId
from shoal.model.workloads import ComposeSpec, FailureReason
from shoal.runtimes.base import RunError, RunRequest
from shoal.runtimes.compose.runtime import ComposeRuntime
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

pytestmark = pytest.mark.e2e

RUN = RunId("web-1")


def files(word: str, *, broken: bool = False, **more: str) -> dict[str, str]:
    """A service that writes each word it was started with into its data, and one that uses nothing of the commit."""
    script = "cat /word >> /data/words; echo $$(cat /data/words); exec sleep 1000"
    web = {
        "image": IMAGE,
        "command": ["/nowhere/no-such-program"] if broken else ["sh", "-c", script],
        "init": not broken,
        "volumes": ["./word:/word:ro", "./data:/data"],
    }
    db = {"image": IMAGE, "command": ["sleep", "1000"], "init": True}
    return {"compose.yaml": json.dumps({"services": {"db": db, "web": web}}), "word": f"{word}\n", **more}


def run_of(repository: Path, ref: str, generation: int) -> RunRequest:
    spec = ComposeSpec(source_type="git", git_repo=str(repository), git_ref=ref)
    return RunRequest(run_id=RUN, workload_id=WorkloadId("web"), spec=spec, generation=generation)


def words_on_disk(base: Path) -> set[str]:
    """The words of the commits that have a directory."""
    return {each.read_text().strip() for each in base.glob("*/word")}


async def test_data_outlives_commits_and_their_directories(open_containers: OpenContainers, tmp_path: Path) -> None:
    words = ("one", "two", "three", "four", "five")
    repository = make_repository(
        tmp_path,
        **{word: files(word) for word in words},
        broken=files("broken", broken=True),
        taken=files("taken", data="of the repository\n"),
    )
    runtime: ComposeRuntime = await open_containers("compose")
    base = tmp_path / "agent/projects/web"
    await runtime.start(run_of(repository, "one", 1))
    for generation, word in enumerate(words[1:], start=2):
        said = " ".join(words[: generation - 1])
        await wait_output(runtime, f"web | {said}\n".encode())
        newer = run_of(repository, word, generation)
        await runtime.prepare(newer)
        await runtime.update(RUN, newer)
    await wait_output(runtime, b"web | one two three four five\n")
    # The containers of `db` were made beside the first commit, and go on.
    assert words_on_disk(base) == {"one", "four", "five"}
    # One that cannot be started leaves the last one in place, and so does one with a file where services keep data.
    with pytest.raises(RunError):
        await runtime.update(RUN, run_of(repository, "broken", 6))
    await wait_output(runtime, b"web | one two three four five five\n")
    with pytest.raises(RunError, match=r"'./data'") as raised:
        await runtime.prepare(run_of(repository, "taken", 7))
    assert (raised.value.failure, raised.value.transient) == (FailureReason.INVALID_SPEC, False)
    await runtime.update(RUN, run_of(repository, "two", 8))
    await wait_output(runtime, b"web | one two three four five five two\n")
    # A later agent, and a later run.
    await runtime.stop(RUN)
    await runtime.close()
    runtime = await open_containers("compose")
    await runtime.forget(RUN)
    again = replace(run_of(repository, "three", 9), run_id=RunId("web-2"))
    await runtime.fetch(again)
    await runtime.start(again)
    await wait_output(runtime, b"web | one two three four five five two three\n")
    assert words_on_disk(base) == {"two", "three"}
    await runtime.stop(RunId("web-2"))
    await runtime.forget_workload(WorkloadId("web"), delete_data=False)
    assert not base.exists()
