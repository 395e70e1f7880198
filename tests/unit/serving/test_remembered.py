"""What an agent remembers of its processes: when they are adopted, and when not."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.core.clock import SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.core.ids import RunId
from shoal.serving.processes.graph import ProcessNode
from shoal.serving.processes.remembered import Remembered, fingerprint
from shoal.serving.processes.runner import ProcessRunner
from shoal.testing.runtimes import FakeMachine, FakeRuntime

NODE = ProcessNode("ps", ("sleep", "60"), {"PATH": "/usr/bin:/bin", "PORT2": "7080", "SHLVL": "1"}, port=9000)


async def listening(_port: int) -> bool:
    return True


async def silent(_port: int) -> bool:
    return False


def runner(machine, folder, listens=listening):
    remembered = Remembered.load(folder / "remembered.json")
    return ProcessRunner(
        FakeRuntime(machine),
        clock=SystemClock(),
        entropy=SystemEntropy(),
        listens=listens,
        is_taken=silent,
        remembered=remembered,
    )


@pytest.mark.parametrize(
    ("change", "listens", "adopted"),
    [
        ({}, listening, True),
        ({"env": {**NODE.env, "SHLVL": "2", "INVOCATION_ID": "x"}}, listening, True),
        ({"needs": frozenset({"x"})}, listening, True),
        ({"command": ("sleep", "61")}, listening, False),
        ({"env": {**NODE.env, "PORT2": "7081"}}, listening, False),
        ({"env": {**NODE.env, "LD_PRELOAD": "x.so"}}, listening, False),
        ({"config": "other"}, listening, False),
        ({}, silent, False),
    ],
)
async def test_only_the_same_process_is_adopted(tmp_path, change, listens, adopted):
    machine = FakeMachine(SystemClock())
    first = runner(machine, tmp_path)
    await first.open([NODE])
    await first.start(NODE, timeout=5)
    (before,) = machine.alive("ps")
    await first._scope.close()  # killed: nothing is stopped
    node = dataclasses.replace(NODE, **change)
    second = runner(machine, tmp_path, listens)
    await second.open([node])
    assert second.is_running("ps") is adopted
    assert [run.run_id for run in machine.alive("ps")] == ([before.run_id] if adopted else [])
    second._listens = listening
    await second.start(node, timeout=5)
    (after,) = machine.alive("ps")
    assert (after.run_id == before.run_id) is adopted
    await second.stop_all()
    assert machine.alive("ps") == []


async def test_what_nobody_wants_is_stopped(tmp_path):
    machine = FakeMachine(SystemClock())
    first = runner(machine, tmp_path)
    await first.open([NODE])
    await first.start(NODE, timeout=5)
    await first._scope.close()
    second = runner(machine, tmp_path)
    await second.open([dataclasses.replace(NODE, name="entry")])
    assert machine.alive("ps") == []
    await second.stop_all()


def test_a_program_that_was_replaced_is_another_process(tmp_path):
    program = tmp_path / "tfs"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    node = ProcessNode("ps", (str(program),))
    before = fingerprint(node)
    assert fingerprint(node) == before
    program.write_text("#!/bin/sh\n# version 2\n")
    assert fingerprint(node) != before
    program.unlink()
    assert fingerprint(node) != before


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"ports": "x"}', b'{"runs": {"a": 1}}', b"\xff", b"[" * 9999])
def test_a_damaged_file_remembers_nothing(tmp_path, data):
    path = tmp_path / "remembered.json"
    path.write_bytes(data)
    found = Remembered.load(path)
    assert found.ports == ()
    assert not found.matches(NODE, RunId("ps-1"))
    found.keep_ports((1, 2))
    found.keep_run(NODE, RunId("ps-1"))
    again = Remembered.load(path)
    assert again.ports == (1, 2)
    assert again.matches(NODE, RunId("ps-1"))
    assert not again.matches(NODE, RunId("ps-2"))
    assert b"7080" not in path.read_bytes()  # an environment may hold secrets
