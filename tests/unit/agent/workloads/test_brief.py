"""However many workloads an agent has and whatever they print: its heartbeat fits into one message."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.workloads.slots import MAX_WORKLOADS, find_no_room
from shoal.agent.workloads.views import TEXT_BYTES, brief, text_room
from shoal.core.errors import ExhaustedError
from shoal.core.ids import MAX_GENERATION, WorkloadId
from shoal.model.nodes import RefusalCode
from shoal.model.workloads import Exit, FailureReason, RestartPolicy, RunState, RunStatus, Usage
from shoal.testing.runtimes import FakeScript
from shoal.wire import convert
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import MAX_MESSAGE_BYTES
from tests.unit.agent.kit import opened
from tests.unit.agent.making import process
from tests.unit.agent.scene import scene

#: Every port of a machine is one workload's at most, and their names have at most so many characters.
PORTS = 65_535
PORT_NAME = 63
LATE = datetime(2100, 1, 1, tzinfo=UTC)

LONGEST_ID = 128


def largest(number: int, ports: int) -> RunStatus:
    """A status with as much in it as can be."""
    return RunStatus(
        workload_id=WorkloadId(f"{number:05}".rjust(LONGEST_ID, "w")),
        state=RunState.FAILED,
        failure=FailureReason.RUNTIME_ERROR,
        message="\N{CJK UNIFIED IDEOGRAPH-6F22}" * 4096,
        last_transition=LATE,
        generation=MAX_GENERATION,
        revision_id="\N{CJK UNIFIED IDEOGRAPH-6F22}" * 256,
        exit=Exit(code=2**31 - 1, signal=64),
        ports={f"{port:03}".rjust(PORT_NAME, "p"): 65_535 for port in range(ports)},
        restarts=2**31 - 1,
        last_output="\N{REPLACEMENT CHARACTER}" * 4096,
        pid=2**22,
        started_at=LATE,
        next_restart_at=LATE,
        spec_sha256=b"\xff" * 32,
    )


def test_the_largest_possible_heartbeat_fits_into_a_message():
    room = text_room(MAX_WORKLOADS)
    usage = Usage(
        cpu_percent=12.3,
        memory_bytes=2**50,
        disk_read_bytes=2**60,
        disk_write_bytes=2**60,
        net_rx_bytes=2**60,
        net_tx_bytes=2**60,
        collected_at=LATE,
        source="cgroup",
    )
    statuses = [brief(largest(number, PORTS // MAX_WORKLOADS + 1), room) for number in range(MAX_WORKLOADS)]
    heartbeat = pb.HeartbeatRequest(
        node_id="n" * LONGEST_ID,
        session="s" * 64,
        sequence=2**62,
        workload_statuses=[convert.run_status_to_control(status, "container") for status in statuses],
        workload_usage=[convert.usage_to_control(usage, status.workload_id, "container") for status in statuses],
    )
    assert heartbeat.ByteSize() < MAX_MESSAGE_BYTES


def test_few_workloads_say_all_that_they_have_to_say():
    status = largest(1, 3)
    assert brief(status, text_room(1)) is status
    assert brief(status, text_room(60)) is status


@given(st.text(max_size=300), st.text(max_size=300), st.integers(4, 12).map(lambda power: 1 << power))
def test_texts_are_cut_where_it_hurts_least(message, output, room):
    status = RunStatus(WorkloadId("w"), RunState.FAILED, message=message, last_output=output)
    cut = brief(status, room)
    assert 2 * len(cut.message.encode()) + len(cut.last_output.encode()) <= room
    assert message.startswith(cut.message.removesuffix("…"))
    assert output.endswith(cut.last_output)
    assert brief(cut, room) == cut


@given(st.integers(0, 10**6))
def test_the_room_of_each_is_a_power_of_two_and_that_of_all_is_bounded(count):
    room = text_room(count)
    assert room.bit_count() == 1
    assert room * count <= max(TEXT_BYTES, count)


def test_the_last_one_that_is_taken():
    assert find_no_room(MAX_WORKLOADS - 1) is None
    refusal = find_no_room(MAX_WORKLOADS)
    assert refusal.code is RefusalCode.WORKLOADS
    error = refusal.error(WorkloadId("w"))
    assert isinstance(error, ExhaustedError)
    assert "takes no more than 4,096" in error.message


@pytest.mark.looptime
async def test_one_more_is_refused_and_those_that_are_here_still_take_orders(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.agent.workloads.slots.MAX_WORKLOADS", 2)
    async with opened(tmp_path) as kit:
        await kit.apply("one")
        await kit.apply("two")
        with pytest.raises(ExhaustedError, match="takes no more than 2"):
            await kit.apply("three")
        assert not kit.knows("three")
        await kit.apply("one", generation=9)
        await kit.delete("two")
        await kit.settle(1)
        await kit.apply("three")
        assert kit.knows("three")


@pytest.mark.looptime
async def test_the_heartbeat_of_many_failed_workloads_is_brief_and_the_status_of_one_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.agent.workloads.views.TEXT_BYTES", 4096)
    async with scene(tmp_path) as it:
        agent = await it.start()
        for number in range(4):
            it.machine.scripts[f"w{number}"] = FakeScript(run_for=1, exit_code=2, output="x" * 3000)
            await it.apply(agent, f"w{number}", process(restart=RestartPolicy(policy="no")))
        await asyncio.sleep(1.5)
        sizes = [len(status.run.last_output) for status in it.control.last.workload_statuses]
        assert sizes == [512, 512, 512, 512]
        assert len(agent.executor.roster.report(WorkloadId("w1")).status.last_output) == 3000
