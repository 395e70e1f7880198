"""Whole servers to send rubbish to, in virtual time: a control plane with a node, and an agent on a fake machine."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import looptime

from shoal.agent import action_log, intents
from shoal.agent.action_log import ActionQuery
from shoal.control.gate import READS
from shoal.control.store.base import EventQuery
from shoal.testing.control import START, ControlKit
from shoal.testing.fuzz import CallOutcome, census
from shoal.wire.methods import AgentControl, AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2
from shoal.wire.transport import Method
from tests.unit.agent.scene import Scene, scene

#: A fuzzed request never names it, so it is free for the good call at the end.
UNTOUCHED = "untouched-by-chance"

#: What grows and shrinks by itself, belongs to the test, or remembers what was computed once per node: not counted.
IGNORED = ("_facts", "clock", "_clock", "_transport", "store", "_store", "_entropy", "settings")


#: Long enough for a call's consequences, and no multiple of the time after which anything else happens.
SETTLE = 1.234567


def in_virtual_time(work: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine that takes a folder, on a loop of its own in which waiting takes no time."""
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(start=1000.0, idle_timeout=10.0)) as runner,
    ):
        runner.run(work(Path(folder)))


class ControlWorld:
    """A control plane with a living node, a lost one, a running workload and a group."""

    service = AgentControl

    def __init__(self, kit: ControlKit) -> None:
        self.kit = kit
        #: Whether anything was accepted that may go on to change things by itself.
        self.moved = False
        self.channel = kit.channel
        self.metadata: dict[str, str] = {}
        self.failure = asyncio.ensure_future(kit.plane.failed())

    async def prepare(self) -> None:
        kit = self.kit
        self.node = kit.node("n1")
        kit.node("lost", workload_types=("vm",))
        await asyncio.sleep(1)
        kit.agents.kill("lost")
        await kit.apply("web", revision="v1")
        await kit.apply_group("crew", {"crew-0": {}, "crew-1": {}})
        await asyncio.sleep(9)  # a whole lease, in one go: asking again and again would cost real time
        assert (await kit.node_view("lost")).status == "NotReady"
        assert (await kit.workload("crew-1")).status == "Running"

    async def settle(self) -> None:
        await asyncio.sleep(SETTLE)

    async def state(self) -> object:
        """Everything that is stored, and what memory has of it."""
        fleet = self.kit.plane.reign.fleet
        stored = await self.kit.store.load()
        # When nodes were last heard of is written down now and then, whatever is asked meanwhile.
        stored = replace(stored, nodes=tuple(replace(node, last_beat=START) for node in stored.nodes))
        page = await self.kit.store.events(EventQuery(limit=1, newest=True))
        return stored, page.next, dict(fleet.nodes), dict(fleet.workloads), dict(fleet.groups), set(fleet.observations)

    def census(self):
        return census(self.kit.plane, ignored=IGNORED)

    async def check_alive(self) -> None:
        """It runs, and the next good call works."""
        assert not self.failure.done(), self.failure
        kit = self.kit
        kit.node(UNTOUCHED, workload_types=("process",))
        await asyncio.sleep(1)
        answer = await kit.apply(UNTOUCHED, only_on=UNTOUCHED, cpu=0, memory=0)
        assert answer.success, answer
        await asyncio.sleep(5)
        view = await kit.workload(UNTOUCHED)
        assert view.status == "Running", view
        summary = await self.channel.call(AgentControl.GET_CLUSTER_SUMMARY, control_pb2.GetClusterSummaryRequest())
        assert summary.total_nodes >= 2
        assert not self.failure.done(), self.failure


class AgentWorld:
    """An agent with a running workload."""

    service = AgentService

    def __init__(self, stage: Scene) -> None:
        self.stage = stage
        self.moved = False
        self.metadata: dict[str, str] = {}

    async def prepare(self) -> None:
        self.agent = await self.stage.start("n1", control=(), standalone=True)
        self.failure = asyncio.ensure_future(self.agent.failed())
        self.channel = self.stage.network.transport("control").connect(self.agent.address)
        await self.stage.apply(self.agent, "web")
        await asyncio.sleep(10)

    async def settle(self) -> None:
        await asyncio.sleep(SETTLE)

    async def state(self) -> object:
        database = self.agent._database
        stored = await database.read(intents.load_workloads)
        actions = await database.read(lambda connection: action_log.list_actions(connection, ActionQuery()))
        roster = self.agent.executor.roster
        states = {name: actor.state for name, actor in roster.actors.items()}
        return stored, actions, states, list(self.stage.machine.history)

    def census(self):
        return census(self.agent, ignored=(*IGNORED, "machine", "_machine"))

    async def check_alive(self) -> None:
        assert not self.failure.done(), self.failure
        answer = await self.stage.apply(self.agent, UNTOUCHED)
        assert answer.applied, answer
        await asyncio.sleep(5)
        request = agent_pb2.GetWorkloadStatusRequest(id=UNTOUCHED)
        found = await self.channel.call(AgentService.GET_WORKLOAD_STATUS, request)
        assert found.status.actual_state == agent_pb2.ACTUAL_STATE_RUNNING, found
        assert not self.failure.done(), self.failure


World = ControlWorld | AgentWorld


async def _print_something(_request, _call):
    """Hollow nodes keep no logs: this one has a line."""
    yield agent_pb2.LogChunk(data=b"hello\n", stream="stdout")


@asynccontextmanager
async def control_world(folder: Path) -> AsyncIterator[ControlWorld]:
    made = ControlKit(folder, lease=timedelta(seconds=6), heartbeat_interval=timedelta(seconds=2))
    made.agents.read_logs = _print_something
    async with made as kit:
        world = ControlWorld(kit)
        await world.prepare()
        try:
            yield world
        finally:
            world.failure.cancel()


@asynccontextmanager
async def agent_world(folder: Path) -> AsyncIterator[AgentWorld]:
    async with scene(folder, serve=False) as stage:
        world = AgentWorld(stage)
        await world.prepare()
        try:
            yield world
        finally:
            world.failure.cancel()
            await world.channel.close()


_AGENT_READS = ("get_workload_status", "list_workloads", "health_check", "list_actions", "read_logs")


def changed_nothing(method: Method[Any, Any], outcome: CallOutcome) -> bool:
    """Whether a call is sure to have left everything as it was."""
    return method.attribute in (*READS, *_AGENT_READS) or outcome.error is not None or outcome.invalid
