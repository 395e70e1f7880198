"""A random life of a control plane, and a checker of what must never happen in it.

A seed decides everything: which requests are made, which nodes fall silent, answer slowly or not at all, forget, are
cordoned, drained or declared dead, which workloads fail, which answers get lost, when the control plane is restarted
and when its store is away. Some of the nodes have foreign agents. While it goes on every command that reaches an agent
is checked. At the end everything is healed and a spare node has room for all: everything acknowledged must be true.

    no overcommit             what is reserved on a node never exceeds it
    one owner per generation  no generation of a workload is ever sent to two nodes
    at most one copy          two copies of at-most-one work never run, wherever their agents are
    no unrequested delete     a copy is removed only after a request to delete it, a newer placement, or a drain of its
                              node
    drained is empty          nothing runs on a node that is shown as drained
    nothing lost              every acknowledged request is what the fleet ends with, and runs
    nothing leaked            what is reserved on a node in the end is what runs there
"""

from __future__ import annotations

import contextlib
import random  # noqa: TID251 repeatable by its seed, that is the point
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.control.store.base import EventQuery
from shoal.core.errors import NotFoundError, ShoalError
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.events import EventKind
from shoal.model.nodes import LEASE_MARGIN, NodeState
from shoal.testing.control import AGENTS_ADDRESS, ControlKit
from shoal.testing.hollow import ALL_FEATURES
from shoal.testing.stores import Fault
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import Method

NODES = 4
WORKLOADS = 8
STREAM_BREAKS = 0.3

#: What a request may say about loss and drains; most say nothing.
_FAILOVERS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"after": 20.0},
    {"failover": "keep"},
    {"failover": "stop", "after": 60.0},
    {"migrate": "after"},
)


@dataclass(slots=True)
class Requests:
    """What was acknowledged last for each workload: a revision, or None for its deletion."""

    acknowledged: dict[str, str | None] = field(default_factory=dict)
    #: Requests whose answer was lost: they may or may not be stored.
    uncertain: set[str] = field(default_factory=set)
    deleted_once: set[str] = field(default_factory=set)
    drained_once: set[str] = field(default_factory=set)
    revision: int = 0


class HistoryError(AssertionError):
    """A promise was broken."""


class History:
    """One random life."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 not for secrets
        #: So many of the agents know only the published contract.
        self._foreign = seed % 3
        #: Every other life is one of nodes that open streams, which break.
        self._streams = seed % 2 == 1
        self._kit = ControlKit(folder, streams=self._streams)
        self._requests = Requests()
        self._owners: dict[tuple[str, int], str] = {}
        self._read: dict[str, int] = {}
        self._doubtful: list[tuple[str, str, int]] = []

    async def run(self, steps: int) -> None:
        """Live, heal, and check."""
        kit = self._kit
        async with kit:
            for index in range(NODES):
                features = () if index < self._foreign else ALL_FEATURES
                kit.node(f"n{index}", cpu_millicores=1000, memory_mb=1000, features=features)
            for _ in range(steps):
                await self._step()
                self._check()
                await kit.clock.sleep(self._random.choice((0.01, 0.1, 1.0, 12.0)))
                self._check()
                await self._check_doubts()
            await self._heal()
            await self._check_end()

    async def _step(self) -> None:
        if self._streams and self._random.random() < STREAM_BREAKS:
            self._kit.agents.break_stream(self._pick())
        action = self._random.choices(
            (
                self._apply,
                self._delete,
                self._silence,
                self._speak,
                self._lose_answers,
                self._restart,
                self._store_away,
                self._forget,
                self._slow_down,
                self._deafen,
                self._drain,
                self._cordon,
                self._uncordon,
                self._declare_dead,
                self._fail,
            ),
            weights=(10, 4, 2, 3, 2, 1, 1, 1, 2, 2, 2, 1, 2, 1, 2),
        )[0]
        await action()

    # -----------------------------------------------------------------------------------------------------
    # What may happen

    async def _apply(self) -> None:
        name = f"w{self._random.randrange(WORKLOADS)}"
        self._requests.revision += 1
        revision = f"r{self._requests.revision}"
        spec: dict[str, Any] = {"cpu": self._random.choice((100, 250, 400))}
        if self._random.random() < 0.3:
            spec["at_most_one"] = True
        else:
            spec |= self._random.choice(_FAILOVERS)
        try:
            answer = await self._kit.apply(name, revision=revision, **spec)
        except ShoalError:
            self._requests.uncertain.add(name)
            return
        if answer.success:
            self._requests.acknowledged[name] = revision
            self._requests.uncertain.discard(name)

    async def _delete(self) -> None:
        name = f"w{self._random.randrange(WORKLOADS)}"
        self._requests.deleted_once.add(name)
        try:
            answer = await self._kit.delete(name)
        except ShoalError:
            self._requests.uncertain.add(name)
            return
        if answer.success:
            self._requests.acknowledged[name] = None
            self._requests.uncertain.discard(name)

    def _pick(self) -> str:
        return f"n{self._random.randrange(NODES)}"

    async def _silence(self) -> None:
        self._kit.agents.nodes[self._pick()].silent = True

    async def _speak(self) -> None:
        for node in self._kit.agents.nodes.values():
            node.silent = node.deaf = False
            node.slow = 0.0

    async def _slow_down(self) -> None:
        """A foreign agent gets 45 seconds for an answer, one of ours 5."""
        self._kit.agents.nodes[self._pick()].slow = self._random.choice((0.3, 3.0, 20.0))

    async def _deafen(self) -> None:
        """A node sends heartbeats and answers no command."""
        self._kit.agents.nodes[self._pick()].deaf = True

    async def _forget(self) -> None:
        """A machine is replaced. At-most-one work there is gone with it, generations too."""
        node = self._kit.agents.nodes[self._pick()]
        node.runs.clear()

    async def _lose_answers(self) -> None:
        self._kit.network.drop_replies(AGENTS_ADDRESS, self._random.randrange(1, 4))

    async def _restart(self) -> None:
        await self._kit.stop_control()
        await self._kit.clock.sleep(self._random.choice((0.0, 5.0, 60.0)))
        self._kit.store.heal()
        await self._kit.start_control()

    async def _store_away(self) -> None:
        if self._kit.store.is_failing:
            self._kit.store.heal()
        else:
            self._kit.store.fail(self._random.choice(list(Fault)))

    async def _drain(self) -> None:
        node_id = self._pick()
        self._requests.drained_once.add(node_id)
        deadline_ms, force = self._random.choice(((0, False), (0, False), (20_000, False), (0, True)))
        request = pb.DrainNodeRequest(node_id=node_id, deadline_ms=deadline_ms, force=force)
        await self._try(AgentControl.DRAIN_NODE, request)

    async def _cordon(self) -> None:
        await self._try(AgentControl.CORDON_NODE, pb.CordonNodeRequest(node_id=self._pick()))

    async def _uncordon(self) -> None:
        await self._try(AgentControl.UNCORDON_NODE, pb.UncordonNodeRequest(node_id=self._pick()))

    async def _declare_dead(self) -> None:
        """The operator is right: nothing runs there."""
        silent = [node for node in self._kit.agents.nodes.values() if node.silent]
        if silent:
            node = self._random.choice(silent)
            node.runs.clear()
            await self._try(AgentControl.MARK_NODE_DEAD, pb.MarkNodeDeadRequest(node_id=node.node_id, force=True))

    async def _fail(self) -> None:
        node = self._kit.agents.nodes[self._pick()]
        running = sorted(name for name, run in node.runs.items() if run.state == "Running")
        if running:
            reason = self._random.choice(("RUNTIME_ERROR", "STORAGE_ERROR", "IMAGE_PULL_FAILED"))
            node.fail(self._random.choice(running), reason)

    async def _try(self, method: Method[Any, Any], request: Any) -> None:
        """Make a request that may be refused, because any part may be away."""
        with contextlib.suppress(ShoalError):
            await self._kit.channel.call(method, request)

    # -----------------------------------------------------------------------------------------------------
    # What must never happen

    def _check(self) -> None:
        self._check_overcommit()
        self._check_at_most_one()
        for node in self._kit.agents.nodes.values():
            for verb, name, generation in node.history[self._read.get(node.node_id, 0) :]:
                self._check_order(node.node_id, verb, name, generation)
            self._read[node.node_id] = len(node.history)

    def _check_at_most_one(self) -> None:
        now = self._kit.clock.monotonic()
        for name in {run for node in self._kit.agents.nodes.values() for run in node.runs}:
            alive = [
                node.node_id
                for node in self._kit.agents.nodes.values()
                if name in node.runs
                and node.runs[name].state == "Running"
                and node.runs[name].request.spec.at_most_one
                and now < node.last_ack + node.lease * (1 - LEASE_MARGIN)
            ]
            if len(alive) > 1:
                raise HistoryError(f"{name} may exist once and runs on {alive}")

    def _check_overcommit(self) -> None:
        for node_id, facts in self._kit.plane.leadership.fleet.facts().items():
            if not facts.spec.capacity.covers(facts.reserved):
                raise HistoryError(f"{node_id} is overcommitted: {facts.reserved} of {facts.spec.capacity}")

    def _check_order(self, node_id: str, verb: str, name: str, generation: int) -> None:
        if verb.startswith("apply"):
            owner = self._owners.setdefault((name, generation), node_id)
            if owner != node_id:
                raise HistoryError(f"{name} generation {generation} was ordered on {owner} and on {node_id}")
            return
        # A generation has one owner, so a removal up to one that another node owns takes nothing from its owner.
        newer = any(
            other_name == name and other_generation >= generation and owner != node_id
            for (other_name, other_generation), owner in self._owners.items()
        )
        record = self._kit.plane.leadership.fleet.workloads.get(WorkloadId(name))
        moved = record is not None and record.placed_generation >= generation and record.node_id != NodeId(node_id)
        emptied = node_id in self._requests.drained_once
        if not (name in self._requests.deleted_once or newer or moved or emptied):
            self._doubtful.append((node_id, name, generation))

    async def _check_doubts(self) -> None:
        """A workload may have moved away and back since: then its events say so."""
        if self._kit.store.is_failing:
            return
        for node_id, name, generation in self._doubtful:
            query = EventQuery(limit=1000, subject_kind="workload", subject_id=name, newest=True)
            events = (await self._kit.store.events(query)).events
            placed = [
                event.facts for event in events if event.kind in (EventKind.WORKLOAD_PLACED, EventKind.WORKLOAD_MOVED)
            ]
            if not any(facts["node"] != node_id and int(facts["generation"]) >= generation for facts in placed):
                raise HistoryError(f"{name} was removed from {node_id}, and nobody requested that")
        self._doubtful.clear()

    async def _heal(self) -> None:
        kit = self._kit
        kit.store.heal()
        await self._speak()
        await kit.clock.sleep(120.0)
        self._check()
        await self._check_doubts()
        self._check_drained()
        for index in range(NODES):
            await kit.channel.call(AgentControl.UNCORDON_NODE, pb.UncordonNodeRequest(node_id=f"n{index}"))
        kit.node("spare", cpu_millicores=1000 * NODES, memory_mb=1000 * NODES)
        await kit.clock.sleep(60.0)
        for record in list(kit.plane.leadership.fleet.workloads.values()):
            if record.retry.failures:  # its next retry may be minutes away, or there is none
                await self._try(AgentControl.RETRY_WORKLOAD, pb.RetryWorkloadRequest(workload_id=record.workload_id))
        await kit.clock.sleep(60.0)

    def _check_drained(self) -> None:
        for node_id, record in self._kit.plane.leadership.fleet.nodes.items():
            runs = self._kit.agents.nodes[node_id].runs
            left = sorted(name for name, run in runs.items() if run.state == "Running")
            if record.state is NodeState.DRAINED and left:
                raise HistoryError(f"{node_id} is drained, and {left} run there")

    async def _check_end(self) -> None:
        self._check()
        await self._check_doubts()
        for name, revision in self._requests.acknowledged.items():
            if name in self._requests.uncertain:
                continue
            if revision is None:
                await self._expect_gone(name)
            else:
                await self._expect_running(name, revision)
        self._check_leaks()

    def _check_leaks(self) -> None:
        """What is reserved on a node is what runs there."""
        for node_id, facts in self._kit.plane.leadership.fleet.facts().items():
            runs = self._kit.agents.nodes[node_id].runs
            running = {name for name, run in runs.items() if run.state == "Running"}
            if set(facts.tenants) != running:
                raise HistoryError(f"{node_id} is reserved for {sorted(facts.tenants)}, and runs {sorted(running)}")

    async def _expect_gone(self, name: str) -> None:
        try:
            view = await self._kit.workload(name)
        except NotFoundError:
            holders = [node.node_id for node in self._kit.agents.nodes.values() if name in node.runs]
            if holders:
                raise HistoryError(f"{name} was deleted and still runs on {holders}") from None
            return
        raise HistoryError(f"{name} was deleted and is {view.status}")

    async def _expect_running(self, name: str, revision: str) -> None:
        view = await self._kit.workload(name)
        if view.revision_id != revision:
            raise HistoryError(f"{name}: acknowledged {revision}, stored {view.revision_id}")
        holders = {
            node.node_id: node.runs[name].request.revision_id
            for node in self._kit.agents.nodes.values()
            if name in node.runs
        }
        if view.status != "Running" or holders != {view.assigned_node_id: revision}:
            raise HistoryError(f"{name} is {view.status} on {view.assigned_node_id!r}, held by {holders}")
