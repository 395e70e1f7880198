"""Takes over workloads that run on a node and are not known here, when somebody asks for it.

Such orphans come from an agent that was told by somebody else, or that has outlived the database. They are shown and
left alone. On request the agent is asked for the exact spec that it runs from; the workload becomes one of ours, owned
by that node under a higher generation, and when the agent is told so it finds that it runs this very spec already:
nothing restarts. (A spec that came from another scheduler may be spelled otherwise there, and is then restarted once.)

Only our agents hand out specs, and only those of processes can be read back in full. For everything else the way is to
apply the same spec under the same id with a constraint to that node: the agent recognizes it by its hash.

Called by `shoal.control.api.service`.
"""

from __future__ import annotations

from shoal.control.agents.calls import Agents
from shoal.control.placement.feasible import describe_rejections
from shoal.control.placement.placer import Placer, placed_on
from shoal.control.placement.scheduler import place
from shoal.control.state.events import Origin, workload_event
from shoal.control.state.facts import PlacementRequest
from shoal.control.state.ledger import Ledger
from shoal.control.state.lifecycle.changes import first_generation
from shoal.control.store.base import Batch
from shoal.core.clock import Clock
from shoal.core.errors import ExhaustedError, PreconditionError, UnsupportedError
from shoal.core.ids import MAX_GENERATION, NodeId, WorkloadId
from shoal.model.events import EventKind, EventSource
from shoal.model.nodes import NodeState
from shoal.model.workloads import WorkloadRecord
from shoal.wire import convert
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as pb


class Adoption:
    """Makes orphans ours."""

    def __init__(self, ledger: Ledger, placer: Placer, agents: Agents, *, clock: Clock) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._placer = placer
        self._agents = agents
        self._clock = clock

    async def adopt(self, node_id: NodeId, workload_id: WorkloadId, *, cause: str) -> WorkloadRecord:
        """Take a workload over as it runs. Raises what stands against it; nothing was changed then."""
        node = self._fleet.node(node_id)
        if node.state is NodeState.NOT_READY:
            raise PreconditionError(f"node {node_id!r} is {node.state.value}, so it cannot be asked", node_id=node_id)
        self._check_unknown(workload_id)
        try:
            found = await self._agents.spec(node, workload_id)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"the agent of node {node_id!r} does not hand out specs",
                hint=f"apply the same spec as {workload_id!r} with the constraint node_id in [{node_id}]",
                node_id=node_id,
            ) from error

        def decide() -> Batch | None:
            self._fleet.node(node_id)  # it may have been removed meanwhile
            self._check_unknown(workload_id)
            record = self._record_of(node_id, workload_id, found)
            self._check_room(record, node_id)
            owned = placed_on(record, node_id, at=self._clock.wall())
            origin = Origin(self._clock.wall(), EventSource.OPERATOR, cause)
            event = workload_event(owned, EventKind.WORKLOAD_ADOPTED, f"as it runs on node {node_id}", origin)
            return Batch(workloads=(owned,), events=(event,))

        async with self._placer.exclusive():
            await self._ledger.change(decide)
        return self._fleet.workload(workload_id)

    def _check_unknown(self, workload_id: WorkloadId) -> None:
        if workload_id in self._fleet.workloads:
            raise PreconditionError(
                f"workload {workload_id!r} is known here already, so it is no orphan", workload_id=workload_id
            )

    def _check_room(self, record: WorkloadRecord, node_id: NodeId) -> None:
        """It runs there, and still must not be promised what others were promised."""
        request = PlacementRequest(record.workload_id, record.spec, current=node_id)
        facts = self._fleet.facts_of(node_id)
        (decision,) = place([request], [facts], strategy=self._placer.strategy).decisions
        if decision.node_id is None:
            raise ExhaustedError(
                f"workload {record.workload_id!r} cannot be adopted: {describe_rejections(decision.rejections)}",
                workload_id=record.workload_id,
                node_id=node_id,
            )

    def _record_of(self, node_id: NodeId, workload_id: WorkloadId, found: pb.GetWorkloadSpecResponse) -> WorkloadRecord:
        if found.deleting:
            raise PreconditionError(f"workload {workload_id!r} is being removed from node {node_id!r}")
        if not 0 <= found.generation < MAX_GENERATION:
            raise PreconditionError(f"node {node_id!r} claims to have seen generation {found.generation}")
        message = convert.control_spec_from_agent(found.spec, found.type)
        spec = convert.workload_spec_from_proto(message)
        exact = convert.spec_bytes(message)
        sha256 = convert.spec_sha256(exact)
        at = self._clock.wall()
        return WorkloadRecord(
            workload_id=workload_id,
            spec=spec,
            spec_bytes=exact,
            spec_sha256=sha256,
            revision_id=found.revision_id or sha256.hex(),
            desired=convert.desired_state_from_agent(found.desired_state),
            generation=first_generation(self._fleet.generation_floor, found.generation),
            created_at=at,
            updated_at=at,
        )
