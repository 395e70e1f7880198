"""The recording of a version can be made, and says the same as those that were made before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.conversation import FILE_NAME as CALLS_FILE
from scripts.conversation import Place, Player, read_lines, read_steps, write_steps
from scripts.record_version import unpack_program
from tests.services.versions import RecordedVersion, recorded_versions

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[3]


SPOKEN = [version for version in recorded_versions() if (version.folder / CALLS_FILE).exists()]


def record(folder: Path, *task: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "-m", "scripts.record_version", *task, "--into", str(folder)]
    return subprocess.run(script, capture_output=True, text=True, check=False, cwd=ROOT)


def steps_of(version: RecordedVersion) -> list[dict[str, Any]]:
    """What is done in its conversation, without what was answered: that is put better from time to time."""
    lines = read_lines(version.folder / CALLS_FILE)
    return [{name: value for name, value in line.items() if name != "replies"} for line in lines]


@pytest.mark.timeout(600)
def test_this_version_is_recorded_like_the_ones_before(tmp_path: Path, postgres_url: str) -> None:
    folder = tmp_path / "now"
    answer = record(folder, "--postgres", postgres_url)
    assert answer.returncode == 0, answer.stderr
    now, before = RecordedVersion(folder), recorded_versions()[-1]
    assert now.numbers["format"] >= before.numbers["format"]
    for dialect in ("sqlite", "postgresql"):
        then, seen = before.picture(dialect), now.picture(dialect)
        for part in ("nodes", "workloads", "groups"):
            assert seen[part].keys() == then[part].keys()
        # The same requests have the same revisions: they are hashes of the exact bytes of their specs.
        for name, facts in then["workloads"].items():
            assert seen["workloads"][name]["revision"] == facts["revision"], name
            assert seen["workloads"][name]["spec"] == facts["spec"], name
    assert (folder / "program.tar.xz").stat().st_size > 100_000

    if now.numbers["format"] == before.numbers["format"]:
        assert steps_of(now) == steps_of(before), "the calls have changed: python -m scripts.record_version --calls"

    again = record(folder, "--postgres", postgres_url)
    assert again.returncode != 0
    assert "there already" in again.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", SPOKEN, ids=str)
async def test_calls_that_are_recorded_again_are_the_same(version: RecordedVersion, tmp_path: Path) -> None:
    """By the very program that was recorded: nothing in the file is a matter of time, place or chance."""
    recorded = version.folder / CALLS_FILE
    program = unpack_program(version.folder / "program.tar.xz", tmp_path / "program")
    async with Place(tmp_path / "place", program=program).running() as place:
        played = await Player(place).play(read_steps(recorded))
    write_steps(tmp_path / CALLS_FILE, [each.step for each in played])
    for then, now in zip(read_lines(recorded), read_lines(tmp_path / CALLS_FILE), strict=True):
        assert json.dumps(now, indent=1, sort_keys=True) == json.dumps(then, indent=1, sort_keys=True)


def test_calls_are_recorded_beside_the_program_that_answers_them(tmp_path: Path) -> None:
    answer = record(tmp_path / "none-such", "--calls")
    assert answer.returncode != 0
    assert "record everything with --postgres first" in answer.stderr
