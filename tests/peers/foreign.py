"""Scripted programs of the published contract: they send and expect what Persys' own are known to send and expect.

`ForeignAgent` registers, sends heartbeats and serves; `ForeignClient` and `ForeignScheduler` call. All of them speak
plain gRPC with the messages of `contract.py`: no headers, no trailers and no fields of Shoal's own. What real agents
were seen to do differently from each other is a `Behavior`; `BEHAVIORS` names those that the matrices run through.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
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
    agent.ACTUAL_STATE_UNKNOWN: "Unknown",
}


async def until(holds, what: str, *, seconds: float = PATIENCE) -> Any:
    """Wait until a function, plain or asynchronous, returns a true value, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        await asyncio.sleep(0.02)


class Caller:
    """A channel to one service, called by the names of its methods."""

    def __init__(self, address: str, contract: Any, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._channel = (
            grpc.aio.insecure_channel(address) if credentials is None else grpc.aio.secure_channel(address, credentials)
        )
        self.address = address
        self._contract = contract
        #: Whether a call waits until the server can be reached, instead of failing at once.
        self.rides_out_restarts = False
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
        return await stub(data, timeout=PASSING, wait_for_ready=self.rides_out_restarts)

    async def close(self) -> None:
        await self._channel.close()


@dataclass(frozen=True, slots=True)
class Behavior:
    """How a foreign agent carries out commands."""

    #: Seconds until a task has been done.
    takes: float = 0.2
    #: Tasks done at once, and tasks that may wait. A task beyond that is done inside the call and listed nowhere.
    workers: int = 10
    depth: int = 20
    #: Whether a deleted workload is written back by a status poll that overlapped the delete.
    ghosts: bool = False
    #: How many of the first deletes of each workload fail in the engine.
    failing_deletes: int = 0
    #: The failure code and message of everything that it should run, if it cannot.
    failure: tuple[str, str] | None = None
    #: Specs are called invalid in the answer to an apply.
    calls_invalid: bool = False
    #: Types of workload that it registers with and has no runtime for.
    without_runtime: frozenset[int] = frozenset()
    #: Whether its heartbeats say why a workload failed.
    reasons: bool = True
    #: Whether a workload that could not be started is removed from its records, so that only a failed action tells.
    forgets_failed: bool = False


#: Behaviors that a control plane has to cope with, by name.
BEHAVIORS = {
    "queued": Behavior(),
    "queue full": Behavior(workers=1, depth=1),
    "no queue": Behavior(depth=0, workers=0),
    "ghosts": Behavior(ghosts=True),
    "ghosts without a queue": Behavior(ghosts=True, depth=0, workers=0),
    "deletes fail at first": Behavior(failing_deletes=2),
    "slow": Behavior(takes=1.5),
}


@dataclass(slots=True)
class ForeignRun:
    """What a foreign agent knows of a workload."""

    request: Any
    state: int = agent.ACTUAL_STATE_PENDING
    message: str = ""
    failure: str = ""


@dataclass(slots=True, eq=False)
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
        self.behavior = Behavior()
        #: Seconds between heartbeats; None for what the control plane asks for.
        self.interval: float | None = None
        #: Neither heartbeats nor answers: cut off from the control plane, while everything on it goes on.
        self.cut_off = False
        self.runs: dict[str, ForeignRun] = {}
        #: Deleted workloads that it goes on to report.
        self.ghosts: set[str] = set()
        self.tasks: list[ForeignTask] = []
        self.registrations: list[Any] = []
        self.heartbeats: list[Any] = []
        #: Every call that came in, as (name, request).
        self.calls: list[tuple[str, Any]] = []
        self._work: set[asyncio.Task[None]] = set()
        self._queued: set[ForeignTask] = set()
        self._deletes: dict[str, int] = {}
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

    async def restart(self) -> None:
        """End and start again: what was queued is lost, and so is the list of actions; what it runs goes on."""
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        self.tasks.clear()
        self._queued.clear()
        for run in self.runs.values():
            if run.state == agent.ACTUAL_STATE_PENDING:
                run.state, run.message = agent.ACTUAL_STATE_UNKNOWN, "container not found"
        self._spawn(self._live())

    def state_of(self, workload_id: str) -> int:
        run = self.runs.get(workload_id)
        return run.state if run is not None else agent.ACTUAL_STATE_UNSPECIFIED

    def calls_of(self, name: str, workload_id: str) -> list[Any]:
        return [request for called, request in self.calls if called == name and request.id == workload_id]

    # -----------------------------------------------------------------------------------------------------
    # Towards the control plane

    async def _live(self) -> None:
        """Register, then send a heartbeat at once and at every interval. After any error register again."""
        while True:
            try:
                interval = await self._register()
                while True:
                    if not self.cut_off:
                        await self._heartbeat()
                    await asyncio.sleep(self.interval or interval)
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
                reason=control.ReasonDetail(code=run.failure, message=run.message)
                if run.failure and self.behavior.reasons
                else None,
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

    async def _ApplyWorkload(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        if self.behavior.calls_invalid:
            return agent.ApplyWorkloadResponse(message="invalid request: spec must contain a pool")
        known = self.runs.get(request.id)
        if known is not None and self._is_as_asked(known, request):
            return agent.ApplyWorkloadResponse(applied=True, skipped=True, status=self._status(known))
        task = ForeignTask(len(self.tasks) + 1, request.id, "apply_workload")
        if not self._queue(task, lambda: self._apply(request)):
            error = await self._in_the_call(task, lambda: self._apply(request), context)
            if error:
                return agent.ApplyWorkloadResponse(message=f"failed to apply workload: {error}")
            return agent.ApplyWorkloadResponse(
                applied=True, message="workload applied successfully", status=self._status(self.runs[request.id])
            )
        status = self._status(ForeignRun(request))
        status.metadata.update({"task_id": f"task-{task.number}", "task_status": "pending"})
        return agent.ApplyWorkloadResponse(applied=True, message="workload apply submitted", status=status)

    async def _DeleteWorkload(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        task = ForeignTask(len(self.tasks) + 1, request.id, "delete_workload")
        if self._queue(task, lambda: self._delete(request.id)):
            return agent.DeleteWorkloadResponse(success=True, message="workload deletion submitted for processing")
        error = await self._in_the_call(task, lambda: self._delete(request.id), context)
        if error:
            return agent.DeleteWorkloadResponse(message=error)
        return agent.DeleteWorkloadResponse(success=True, message="workload deleted successfully")

    async def _GetWorkloadStatus(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        run = self.runs.get(request.id)
        if run is None:
            await context.abort(grpc.StatusCode.UNKNOWN, "status not found")
        status = self._status(run)
        if any(task.workload_id == request.id for task in self._queued):
            status.actual_state = agent.ACTUAL_STATE_PENDING
        return agent.GetWorkloadStatusResponse(status=status)

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
        return same and known.state in (agent.ACTUAL_STATE_PENDING, agent.ACTUAL_STATE_RUNNING)

    def _queue(self, task: ForeignTask, work: Callable[[], Awaitable[str]]) -> bool:
        """Have a worker do a task. False when the queue is full."""
        if len(self._queued) >= self.behavior.workers + self.behavior.depth:
            return False
        self.tasks.append(task)
        self._queued.add(task)
        self._spawn(self._do_queued(task, work))
        return True

    async def _do_queued(self, task: ForeignTask, work: Callable[[], Awaitable[str]]) -> None:
        while sum(each.status == "running" for each in self._queued) >= self.behavior.workers:
            await asyncio.sleep(0.01)
        await self._do(task, work)
        self._queued.discard(task)

    async def _in_the_call(
        self, task: ForeignTask, work: Callable[[], Awaitable[str]], context: grpc.aio.ServicerContext
    ) -> str:
        """Do a task that no queue has room for. A restart meanwhile breaks the call off."""
        doing = self._spawn(self._do(task, work))
        await asyncio.wait({doing})
        if doing.cancelled():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the agent is stopping")
        return task.error

    async def _do(self, task: ForeignTask, work: Callable[[], Awaitable[str]]) -> None:
        task.status = "running"
        task.error = await work()
        task.status = "failed" if task.error else "completed"

    async def _apply(self, request: Any) -> str:
        """Start or stop a workload. Returns why it could not be."""
        behavior = self.behavior
        self.ghosts.discard(request.id)
        known = self.runs.get(request.id)
        run = ForeignRun(request)
        if known is None or known.request.revision_id != request.revision_id:
            self.runs[request.id] = run
        await asyncio.sleep(behavior.takes)
        self.runs[request.id] = run
        failure = behavior.failure
        if request.type in behavior.without_runtime:
            failure = ("RUNTIME_UNHEALTHY", f"runtime not available for type {request.type}")
        if failure is not None:
            run.state, (run.failure, run.message) = agent.ACTUAL_STATE_FAILED, failure
            if behavior.forgets_failed:
                del self.runs[request.id]
            return f"[{run.failure}] {run.message}"
        stopped = request.desired_state == agent.DESIRED_STATE_STOPPED
        run.state = agent.ACTUAL_STATE_STOPPED if stopped else agent.ACTUAL_STATE_RUNNING
        run.message = "exited" if stopped else "running"
        return ""

    async def _delete(self, workload_id: str) -> str:
        """Remove a workload. Returns why it could not be."""
        await asyncio.sleep(self.behavior.takes)
        if workload_id not in self.runs or workload_id in self.ghosts:
            return "workload not found"
        self._deletes[workload_id] = self._deletes.get(workload_id, 0) + 1
        if self._deletes[workload_id] <= self.behavior.failing_deletes:
            return "failed to remove container: device or resource busy"
        if self.behavior.ghosts:
            run = self.runs[workload_id]
            run.state, run.message = agent.ACTUAL_STATE_STOPPED, "exited"
            self.ghosts.add(workload_id)
        else:
            del self.runs[workload_id]
        return ""

    def _status(self, run: ForeignRun) -> Any:
        request = run.request
        return agent.WorkloadStatus(
            id=request.id,
            type=request.type,
            revision_id=request.revision_id,
            desired_state=request.desired_state,
            actual_state=run.state,
            message=run.message,
            metadata={"failure_reason": run.failure} if run.failure else None,
        )

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task


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
                return error.code() is grpc.StatusCode.NOT_FOUND
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
