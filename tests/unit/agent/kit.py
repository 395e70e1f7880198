"""An executor on a fake machine, in virtual time; it can be killed and started again on the same disk."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from shoal.agent.store.database import AgentDatabase
from shoal.agent.workloads.admission import ApplyCommand, DeleteCommand
from shoal.agent.workloads.contact import Contact, Ownership, Question
from shoal.agent.workloads.executor import Executor, NodeSelf
from shoal.agent.workloads.ports import PortBook
from shoal.core.entropy import SeededEntropy
from shoal.core.errors import UnavailableError
from shoal.core.ids import WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import DesiredState, WorkloadType
from shoal.testing.clock import LoopClock
from shoal.testing.runtimes import FakeMachine, FakeRuntime
from shoal.testing.threads import InlineThreads
from shoal.wire.convert import agent_spec_from_proto, workload_type_to_agent
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as pb
from tests.unit.agent.making import START, order_bytes, workload

CAPACITY = Resources(cpu_millicores=4000, memory_mb=4096, disk_gb=10, slots=4)


async def nobody_to_ask(_workload_id: WorkloadId) -> Ownership:
    raise UnavailableError("there is no control plane to ask")


class Kit:
    """One agent's executor and the machine under it."""

    def __init__(
        self,
        data_dir: Path,
        *,
        capacity: Resources = CAPACITY,
        types=(WorkloadType.PROCESS,),
        runtime=FakeRuntime,
        volumes=None,
        find_more=None,
    ) -> None:
        self.data_dir = data_dir
        self.capacity = capacity
        self.types = types
        #: The class of the runtimes.
        self.runtime = runtime
        self.volumes = volumes
        #: Called with the machine, as long as runtimes are missing.
        self.find_more = find_more
        self.clock = LoopClock(START)
        self.entropy = SeededEntropy(7)
        self.machine = FakeMachine(self.clock)
        self.busy_ports: set[int] = set()
        self.changes = 0
        self.executor: Executor
        self.contact: Contact
        #: Answers which node owns a workload.
        self.ownership: Question = nobody_to_ask
        self.database: AgentDatabase

    async def open(self) -> None:
        self.database = AgentDatabase(self.data_dir, threads=InlineThreads())
        await self.database.open()
        self.contact = Contact(self.clock)
        self.executor = Executor(
            node=NodeSelf(node_id="n1", capacity=self.capacity, control=("127.0.0.1:8085",), workers_per_slot=2),
            database=self.database,
            runtimes={kind: self.runtime(self.machine, type=kind) for kind in self.types},
            contact=self.contact,
            ownership=self._ask,
            clock=self.clock,
            entropy=self.entropy,
            changed=self.note_change,
            ports=PortBook(self.entropy, free=lambda port: port not in self.busy_ports),
            volumes=self.volumes,
            find_more=self.find_more and partial(self.find_more, self.machine),
        )
        await self.executor.open()

    async def _ask(self, workload_id: WorkloadId) -> Ownership:
        return await self.ownership(workload_id)

    def note_change(self) -> None:
        self.changes += 1

    async def kill(self) -> None:
        """As by kill -9: whatever was under way is cut off, and the machine goes on."""
        await self.executor.close()
        await self.database.close()

    async def restart(self) -> None:
        await self.kill()
        await self.open()

    async def apply(
        self,
        workload_id: str = "w",
        spec=None,
        *,
        generation: int = 0,
        revision: str = "",
        desired: DesiredState = DesiredState.RUNNING,
        attempt: int = 0,
        **fields,
    ):
        message = spec if isinstance(spec, pb.WorkloadSpec) else workload(spec, **fields)
        kind = self.types[0] if isinstance(spec, pb.WorkloadSpec) else WorkloadType.PROCESS
        data, digest = order_bytes(message)
        return await self.executor.apply(
            ApplyCommand(
                workload_id=WorkloadId(workload_id),
                type=kind,
                revision_id=revision or digest.hex(),
                desired=desired,
                spec_bytes=data,
                spec_sha256=digest,
                spec=agent_spec_from_proto(message, workload_type_to_agent(kind)),
                generation=generation,
                attempt=attempt,
            )
        )

    async def delete(self, workload_id: str = "w", *, generation: int = 0, keep_data: bool = False):
        return await self.executor.delete(DeleteCommand(WorkloadId(workload_id), generation, keep_data))

    def status(self, workload_id: str = "w"):
        return self.executor.roster.report(WorkloadId(workload_id)).status

    def knows(self, workload_id: str = "w") -> bool:
        return WorkloadId(workload_id) in self.executor.roster.actors

    async def settle(self, seconds: float = 0.0) -> None:
        """Let everything happen that happens within so many seconds."""
        await asyncio.sleep(seconds)
        for _ in range(50):
            await asyncio.sleep(0)


@asynccontextmanager
async def opened(data_dir: Path, **fields):
    kit = Kit(data_dir, **fields)
    await kit.open()
    try:
        yield kit
    finally:
        await kit.kill()
