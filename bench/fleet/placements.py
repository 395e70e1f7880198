"""Placements: thousands of requests in flight at once, from the first that is durable to the last that has its node."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import psutil

from bench.fleet.stage import PER_NODE, Stage, spec_of
from bench.load import PATIENCE, CpuWatch
from shoal.core.errors import DeadlineError, ShoalError, UnavailableError
from shoal.wire import convert
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Channel

_LOOK_EVERY = 0.1
#: One request among ten thousand waits longer than a single one.
_ANSWERED_WITHIN = 2 * PATIENCE


@dataclass(frozen=True, slots=True)
class Placements:
    """The result of the requests."""

    per_second: float
    count: int
    #: When the first request was durably accepted, by the loop's clock.
    began: float
    #: Nodes that own more than fits on them.
    overcommitted: int
    control_cpu: float
    load_cpu: float


async def place(here: Stage, *, count: int, prefix: str) -> Placements:
    """Request this many workloads at once and wait until the database has a node for each."""
    loop = asyncio.get_running_loop()
    before = sum(here.assigned().values())
    channel = GrpcTransport(security=here.fleet.security()).connect(here.fleet.control_address)
    accepted: list[float] = []

    async def request(number: int) -> None:
        name = f"{prefix}-{number:05d}"
        wanted = convert.workload_spec_to_proto(spec_of(name))
        request = pb.ApplyWorkloadRequest(workload_id=name, spec=wanted, revision_id="1", desired_state="Running")
        answer = await _ask(channel, request)
        if not answer.success:
            raise UnavailableError(f"a workload was not accepted: {answer.error_message}")
        accepted.append(loop.time())

    control, load = CpuWatch(here.process), CpuWatch(psutil.Process())
    try:
        async with asyncio.TaskGroup() as requests:
            for number in range(count):
                requests.create_task(request(number))
        # Not earlier: what is not accepted has no node, and each look reads the whole table while others write it.
        done = await _wait_assigned(here, before + count)
        shares = control.share(), load.share()
    except* ShoalError as errors:
        raise errors.exceptions[0] from None
    finally:
        await channel.close()
    overcommitted = sum(1 for owned in here.assigned().values() if owned > PER_NODE)
    return Placements(count / (done - accepted[0]), count, accepted[0], overcommitted, *shares)


async def _ask(channel: Channel, request: pb.ApplyWorkloadRequest) -> pb.ApplyWorkloadResponse:
    """Ask until there is an answer: a busy server may refuse a call, and a request can be repeated."""
    while True:
        try:
            return await channel.call(AgentControl.APPLY_WORKLOAD, request, timeout=_ANSWERED_WITHIN)
        except UnavailableError:
            await asyncio.sleep(_LOOK_EVERY)


async def _wait_assigned(here: Stage, wanted: int) -> float:
    """Wait until so many workloads have a node on the disk. Returns when that was seen."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ANSWERED_WITHIN
    while (found := sum((await asyncio.to_thread(here.assigned)).values())) < wanted:
        if loop.time() > deadline:
            raise DeadlineError(f"{found} of {wanted} workloads had a node within {_ANSWERED_WITHIN:g} s")
        await asyncio.sleep(_LOOK_EVERY)
    return loop.time()
