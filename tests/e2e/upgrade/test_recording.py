"""The recording of a version can be made, and says the same as those that were made before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.versions import RecordedVersion, recorded_versions

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[3]


def record(folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(ROOT / "scripts" / "record_version.py"), "--postgres", url, "--into", str(folder)]
    return subprocess.run(script, capture_output=True, text=True, check=False, cwd=ROOT)


def test_this_version_is_recorded_like_the_ones_before(tmp_path: Path, postgres_url: str) -> None:
    folder = tmp_path / "now"
    answer = record(folder, postgres_url)
    assert answer.returncode == 0, answer.stderr
    now, before = RecordedVersion(folder), recorded_versions()[-1]
    assert now.numbers["format"] >= before.numbers["format"]
    for dialect in ("sqlite", "postgresql"):
        then, seen = before.picture(dialect), now.picture(dialect)
        for part in ("nodes", "workloads", "groups"):
            assert seen[part].keys() == then[part].keys()
        # The same wishes have the same revisions: they are hashes of the exact bytes of their specs.
        for name, facts in then["workloads"].items():
            assert seen["workloads"][name]["revision"] == facts["revision"], name
            assert seen["workloads"][name]["spec"] == facts["spec"], name
    assert (folder / "program.tar.xz").stat().st_size > 100_000

    again = record(folder, postgres_url)
    assert again.returncode != 0
    assert "there already" in again.stderr
