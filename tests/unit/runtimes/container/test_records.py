"""Which process a container's is: the engine may be elsewhere, and its numbers those of strangers here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shoal.runtimes.container.records import is_process_of

CONTAINER = "c" * 64


@pytest.mark.parametrize("pid", [0, os.getpid()], ids=["none", "a stranger"])
def test_a_stranger_is_no_process_of_a_container(pid: int) -> None:
    assert not is_process_of(pid, CONTAINER, "web-1")


@pytest.mark.parametrize(("run_id", "is_its_own"), [("web-1", True), ("web-11", False)])
def test_a_process_is_known_by_its_variable_where_containers_have_no_groups(run_id: str, is_its_own: bool) -> None:
    waits = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(waits, stdin=pipe, stdout=pipe, env={**os.environ, "SHOAL_RUN_ID": run_id}) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is the program by now
        assert is_process_of(process.pid, CONTAINER, "web-1") is is_its_own
        process.communicate(b"\n")
