"""Scripted programs of the published contract: they send and expect what Persys' own are known to send and expect.

`ForeignAgent` registers, beats and serves; `ForeignClient` and `ForeignScheduler` call. All of them speak plain gRPC
with the messages of `contract.py`: no headers, no trailers and no fields of Shoal's own.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import grpc

from tests.peers.contract import AGENT_RPCS, agent, control

PATIENCE = 30.0
PASSING = 5.0

_STATES = {
    agent.ACTUAL_STATE_RUNNING: "Running",
    agent.ACTUAL_STATE_STOPPED: "Stopped",
    agent.ACTUAL_STATE_FAILED: "Failed",
}


async def until(holds, what: str, *, seconds: float = PATIENCE) -> Any:
    """Wait until a call, plain or a coroutine function, gives something that counts as true, and return that."""
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.02)


class Caller:
    """A channel to one service, called by the names of its methods."""

    def __init__(self, address: str, contract: Any, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._channel = (
            grpc.aio.insecure_channel(address) if credentials is None else grpc.aio.secure_channel(address, credentials)
        )
        self._contract = contract
        (self._service,) = contract.DESCRIPTOR.services_by_name.values()

    async def call(self, name: str, **fields: Any) -> Any:
        """One unary call."""
        method = self._service.methods_by_name[name]
        request = getattr(self._contract, method.input_type.name)(**fields)
        return await self.send(name, request.SerializeToString())

    async def send(self, name: str, data: bytes) -> Any:
        """One unary call, its request in bytes."""
        method = self._service.methods_by_name[name]
        response = getattr(self._contract, method.output_type.name)
        stub = self._channel.unary_unary(
            f"/{self._service.full_name}/{name}",
            request_serializer=lambda packed: packed,
            response_deserializer=response.FromString,
        )
        return await stub(data, timeout=PASSING)

    async def close(self) -> None:
        await self._channel.close()


@dataclass(slots=True)
class ForeignRun:
    """What a foreign agent knows of a workload."""

    request: Any
    state: int = agent.ACTUAL_STATE_PENDING
    message: str = ""


@dataclass(slots=True)
class ForeignTask:
    """An entry of a foreign agent's list of actions: in memory, for ever."""

    number: int
    workload_id: str
    kind: str
    status: str = "pending"
    error: str = ""


class ForeignAgent:
    """An agent of the published contract."""

    def __init__(
        self,
        node_id: str,
        control_address: str,
        *,
        client: grpc.ChannelCredentials | None = None,
        server: grpc.ServerCredentials | None = None,
    ) -> None:
        self.node_id = node_id
        self._control_address = control_address
        self._client_credentials = client
        self._server_credentials = server
        self.types = ["container", "compose", "vm"]
        #: Seconds until a task in its queue has been done.
        self.takes = 0.2
        #: Whether a deleted workload is written back by a status poll that overlapped the delete.
        self.ghosts = False
        #: Refuse to start anything: its machine is above 80 % CPU.
        self.overloaded = False
        #: Neither beat nor answer: cut off from the control plane, while everything on it goes on.
        self.cut_off = False
        self.runs: dict[str, ForeignRun] = {}
        self.tasks: list[ForeignTask] = []
        self.registrations: list[Any] = []
        self.heartbeats: list[Any] = []
        #: Every call that came in, as (name, request).
        self.calls: list[tuple[str, Any]] = []
        self._work: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        self._caller: Caller | None = None
        self.endpoint = ""

    async def start(self) -> None:
        self._server = grpc.aio.server()
        handlers = {name: self._handler(name) for name in AGENT_RPCS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(agent.NAME, handlers),))
        if self._server_credentials is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("127.0.0.1:0", self._server_credentials)
        self.endpoint = f"127.0.0.1:{port}"
        await self._server.start()
        self._caller = Caller(self._control_address, control, self._client_credentials)
        self._spawn(self._live())

    async def stop(self) -> None:
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        if self._caller is not None:
            await self._caller.close()
        if self._server is not None:
            await self._server.stop(0)

    def state_of(self, workload_id: str) -> int:
        run = self.runs.get(workload_id)
        return run.state if run is not None else agent.ACTUAL_STATE_UNSPECIFIED

    def calls_of(self, name: str, workload_id: str) -> list[Any]:
        return [request for called, request in self.calls if called == name and request.id == workload_id]

    # -----------------------------------------------------------------------------------------------------
    # Towards the control plane

    async def _live(self) -> None:
        """Register, beat at once, then every interval. Whatever fails, register again; NotFound without waiting."""
        while True:
            try:
                interval = await self._register()
                while True:
                    if not self.cut_off:
                        await self._heartbeat()
                    await asyncio.sleep(interval)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    await asyncio.sleep(0.5)

    async def _register(self) -> float:
        capabilities = control.NodeCapabilities(
            cpu_total_millicores=4000,
            memory_total_mb=8192,
            storage_pools=[control.StoragePool(name="root", type="local", total_gb=100)],
            supported_workload_types=self.types,
            supported_storage_drivers=["local"],
        )
        answer = await self._caller.call(
            "RegisterNode",
            node_id=self.node_id,
            capabilities=capabilities,
            labels={"os": "linux", "arch": "amd64"},
            agent_version="dev",
            grpc_endpoint=self.endpoint,
        )
        self.registrations.append(answer)
        assert answer.accepted, answer.reason
        return answer.heartbeat_interval_seconds if answer.heartbeat_interval_seconds > 0 else 10.0

    async def _heartbeat(self) -> None:
        statuses = [
            control.WorkloadStatus(
                workload_id=workload_id,
                state=_STATES.get(run.state, "Pending"),
                message=run.message,
                failure_reason=control.RUNTIME_ERROR if run.state == agent.ACTUAL_STATE_FAILED else 0,
            )
            for workload_id, run in self.runs.items()
        ]
        usage = control.NodeUsage(cpu_used_millicores=120, memory_used_mb=900, disk_used_gb=12)
        self.heartbeats.append(
            await self._caller.call("Heartbeat", node_id=self.node_id, usage=usage, workload_statuses=statuses)
        )

    # -----------------------------------------------------------------------------------------------------
    # persys.agent.v1.AgentService

    def _handler(self, name: str) -> grpc.RpcMethodHandler:
        (service,) = agent.DESCRIPTOR.services_by_name.values()
        method = service.methods_by_name[name]
        request = getattr(agent, method.input_type.name)
        response = getattr(agent, method.output_type.name)

        async def serve(given: Any, context: grpc.aio.ServicerContext) -> Any:
            while self.cut_off:
                await asyncio.sleep(0.05)
            self.calls.append((name, given))
            return await getattr(self, f"_{name}")(given, context)

        return grpc.unary_unary_rpc_method_handler(serve, request.FromString, response.SerializeToString)

    async def _ApplyWorkload(self, request: Any, _context: Any) -> Any:
        known = self.runs.get(request.id)
        if known is not None and self._is_as_asked(known, request):
            return agent.ApplyWorkloadResponse(skipped=True, status=self._status(known))
        run = self.runs[request.id] = ForeignRun(request)
        task = self._queue(request.id, "apply_workload")
        self._spawn(self._apply(run, task))
        status = self._status(run)
        status.metadata.update({"task_id": f"task-{task.number}", "task_status": "pending"})
        return agent.ApplyWorkloadResponse(applied=True, message="queued", status=status)

    async def _DeleteWorkload(self, request: Any, _context: Any) -> Any:
        self._spawn(self._delete(request.id, self._queue(request.id, "delete_workload")))
        return agent.DeleteWorkloadResponse(success=True, message="queued")

    async def _GetWorkloadStatus(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        run = self.runs.get(request.id)
        if run is None:
            await context.abort(grpc.StatusCode.UNKNOWN, "status not found")
        return agent.GetWorkloadStatusResponse(status=self._status(run))

    async def _ListWorkloads(self, _request: Any, _context: Any) -> Any:
        return agent.ListWorkloadsResponse(workloads=[self._status(run) for run in self.runs.values()])

    async def _HealthCheck(self, _request: Any, _context: Any) -> Any:
        return agent.HealthCheckResponse(healthy=True, version="dev", runtime_status={"docker": "healthy"})

    async def _ListActions(self, request: Any, _context: Any) -> Any:
        found = [
            task
            for task in self.tasks
            if request.workload_id in ("", task.workload_id)
            and request.action_type in ("", task.kind)
            and request.status in ("", task.status)
        ]
        ordered = found[::-1] if request.newest_first else found
        actions = [
            agent.AgentAction(
                task_id=f"task-{task.number}",
                workload_id=task.workload_id,
                action_type=task.kind,
                status=task.status,
                error=task.error,
                created_at=int(time.time()),
                started_at=-62135596800,
                ended_at=-62135596800,
            )
            for task in ordered[: request.limit or None]
        ]
        return agent.ListActionsResponse(actions=actions)

    # -----------------------------------------------------------------------------------------------------
    # What its workers do

    def _is_as_asked(self, known: ForeignRun, request: Any) -> bool:
        same = known.request.revision_id == request.revision_id and known.request.desired_state == request.desired_state
        return same and known.state not in (agent.ACTUAL_STATE_FAILED, agent.ACTUAL_STATE_STOPPED)

    def _queue(self, workload_id: str, kind: str) -> ForeignTask:
        task = ForeignTask(len(self.tasks) + 1, workload_id, kind)
        self.tasks.append(task)
        return task

    async def _apply(self, run: ForeignRun, task: ForeignTask) -> None:
        task.status = "running"
        await asyncio.sleep(self.takes)
        if self.overloaded:
            run.state, run.message = agent.ACTUAL_STATE_FAILED, "insufficient resources: cpu utilization 91.0% > 80.0%"
            task.status, task.error = "failed", run.message
            return
        stopped = run.request.desired_state == agent.DESIRED_STATE_STOPPED
        run.state = agent.ACTUAL_STATE_STOPPED if stopped else agent.ACTUAL_STATE_RUNNING
        run.message = "exited" if stopped else "running"
        task.status = "completed"

    async def _delete(self, workload_id: str, task: ForeignTask) -> None:
        task.status = "running"
        await asyncio.sleep(self.takes)
        run = self.runs.get(workload_id)
        if run is None or run.message == "exited":
            task.status, task.error = "failed", "workload not found"
            return
        if self.ghosts:
            run.state, run.message = agent.ACTUAL_STATE_STOPPED, "exited"
        else:
            del self.runs[workload_id]
        task.status = "completed"

    def _status(self, run: ForeignRun) -> Any:
        request = run.request
        return agent.WorkloadStatus(
            id=request.id,
            type=request.type,
            revision_id=request.revision_id,
            desired_state=request.desired_state,
            actual_state=run.state,
            message=run.message,
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


class ForeignClient(Caller):
    """A client of the control plane: what the smoke client, the gateway and the end-to-end runner do."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        super().__init__(address, control, credentials)

    async def apply(self, workload_id: str, spec: Any, *, revision: str = "", desired: str = "Running") -> Any:
        return await self.call(
            "ApplyWorkload", workload_id=workload_id, spec=spec, revision_id=revision, desired_state=desired
        )

    async def delete(self, workload_id: str) -> Any:
        return await self.call("DeleteWorkload", workload_id=workload_id)

    async def view(self, workload_id: str) -> Any:
        return (await self.call("GetWorkload", workload_id=workload_id)).workload

    async def wait_status(self, workload_id: str, *words: str) -> Any:
        async def reached() -> Any:
            view = await self.view(workload_id)
            return view if view.status.lower() in [word.lower() for word in words] else None

        return await until(reached, f"{workload_id} {' or '.join(words)}")

    async def wait_gone(self, workload_id: str) -> str:
        """Until reading it fails; returns the words of that."""
        words = ""

        async def gone() -> bool:
            nonlocal words
            try:
                await self.view(workload_id)
            except grpc.aio.AioRpcError as error:
                words = error.details() or ""
                return True
            return False

        await until(gone, f"{workload_id} gone")
        return words


class ForeignScheduler(Caller):
    """A scheduler's side of the agent's service."""

    def __init__(self, address: str) -> None:
        super().__init__(address, agent)


def container(image: str = "nginx:latest", *, env: dict[str, str] | None = None) -> Any:
    """A container spec as the smoke client sends it."""
    return control.WorkloadSpec(
        type="container",
        resources=control.ResourceRequirements(cpu_millicores=100, memory_mb=64),
        container=control.ContainerSpec(image=image, env=env or {}, restart_policy="always"),
        metadata={"owner": "e2e"},
    )


def compose() -> Any:
    """A compose spec as the end-to-end runner sends it."""
    return control.WorkloadSpec(
        type="compose",
        resources=control.ResourceRequirements(cpu_millicores=100, memory_mb=64),
        compose=control.ComposeSpec(source_type="inline", inline_yaml="services:\n  web:\n    image: nginx\n"),
    )


def vm() -> Any:
    """A VM spec as the end-to-end runner sends it."""
    return control.WorkloadSpec(
        type="vm",
        resources=control.ResourceRequirements(cpu_millicores=1000, memory_mb=512),
        vm=control.VMSpec(
            vcpus=1,
            memory_mb=512,
            disks=[control.DiskConfig(pool_name="default", size_gb=5, mount_point="vda")],
            networks=[control.NetworkConfig(bridge="default", dhcp=True)],
            os_image="ubuntu-22.04",
        ),
    )
