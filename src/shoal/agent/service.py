"""Serves `persys.agent.v1.AgentService`: convert, call, convert. No decision is made here.

An apply is answered once it is on disk, with the status PENDING; an apply that changes nothing also has `skipped` and
the present status. Its entry in the action log (`metadata["task_id"]`) completes when the workload is ready, has
completed or is stopped as requested. It fails when the agent no longer restarts the workload, or when a later command
replaces it. Deletes can be repeated: deleting an unknown workload succeeds and is logged as completed.

Served by `shoal.agent.server`; calls `shoal.agent.workloads.executor`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import datetime
from typing import Any

from shoal.agent.contact.terms import Terms
from shoal.agent.facts import HealthReport, WorkloadReport
from shoal.agent.metrics import AgentMetrics
from shoal.agent.store.action_log import Action, ActionQuery
from shoal.agent.workloads.admission import ApplyCommand, DeleteCommand
from shoal.agent.workloads.executor import Executor
from shoal.agent.workloads.intake import Answer
from shoal.core.clock import epoch_ms
from shoal.core.errors import (
    InvalidError,
    MisroutedError,
    NotFoundError,
    Problem,
    ShoalError,
    UnavailableError,
    problem,
)
from shoal.core.ids import IDENTIFIER_RULE, MAX_GENERATION, NO_SESSION, WorkloadId, is_identifier
from shoal.model.nodes import HeartbeatMark
from shoal.model.workloads import AgentSpec, Body, DesiredState
from shoal.wire import convert
from shoal.wire.methods import NODE_HEADER, TERM_HEADER
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as pb
from shoal.wire.transport import Call

MAX_REVISION = 256
MAX_SECRET = 32 * 1024
MAX_CHUNK = 256 * 1024
_TERM_DIGITS = 18


class AgentHandlers:
    """One coroutine per RPC."""

    def __init__(
        self,
        executor: Executor,
        *,
        health: Callable[[], HealthReport],
        version: str,
        metrics: AgentMetrics,
        terms: Terms,
        next_heartbeat: Callable[[], HeartbeatMark] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._executor = executor
        self._next_heartbeat = next_heartbeat or (lambda: HeartbeatMark(NO_SESSION, 0))
        self._terms = terms
        self._health = health
        self._version = version
        self._metrics = metrics
        self._is_stopping = is_stopping

    async def apply_workload(self, request: pb.ApplyWorkloadRequest, call: Call) -> pb.ApplyWorkloadResponse:
        """Run or stop a workload as the request says."""
        self._check_route(call)
        await self._check_term(call)
        command = _read_apply(request)
        answer = await self._counted("apply", self._executor.apply(command))
        return pb.ApplyWorkloadResponse(
            applied=True,
            skipped=answer.skipped,
            message=answer.message,
            status=_status_of(answer, command),
        )

    async def delete_workload(self, request: pb.DeleteWorkloadRequest, call: Call) -> pb.DeleteWorkloadResponse:
        """Remove a workload with everything that is kept for it."""
        self._check_route(call)
        await self._check_term(call)
        problems = _id_problems(request.id)
        _check_number(request.generation, "generation", problems)
        _raise(problems)
        answer = await self._counted(
            "delete",
            self._executor.delete(DeleteCommand(WorkloadId(request.id), request.generation, request.keep_data)),
        )
        heartbeat = self._next_heartbeat()
        return pb.DeleteWorkloadResponse(
            success=True, message=answer.message, session=heartbeat.session, next_beat=heartbeat.sequence
        )

    async def get_workload_status(
        self, request: pb.GetWorkloadStatusRequest, call: Call
    ) -> pb.GetWorkloadStatusResponse:
        """One workload; NOT_FOUND when it is not here."""
        self._check_route(call)
        _raise(_id_problems(request.id))
        return pb.GetWorkloadStatusResponse(status=_write(self._executor.roster.report(WorkloadId(request.id))))

    async def get_workload_spec(self, request: pb.GetWorkloadSpecRequest, call: Call) -> pb.GetWorkloadSpecResponse:
        """The exact spec of a workload; NOT_FOUND when it is not here."""
        self._check_route(call)
        _raise(_id_problems(request.id))
        state = self._executor.roster.latest(WorkloadId(request.id))
        if state is None:
            raise NotFoundError("workload", request.id)
        intent = state.intent
        stopped = intent.desired is DesiredState.STOPPED
        return pb.GetWorkloadSpecResponse(
            id=intent.workload_id,
            type=convert.workload_type_to_agent(intent.type),
            revision_id=intent.revision_id,
            desired_state=pb.DESIRED_STATE_STOPPED if stopped else pb.DESIRED_STATE_RUNNING,
            spec=intent.spec_bytes,
            generation=intent.generation,
            deleting=intent.deleting,
        )

    async def list_workloads(self, request: pb.ListWorkloadsRequest, call: Call) -> pb.ListWorkloadsResponse:
        """Every workload, or those of one kind."""
        self._check_route(call)
        reports = self._executor.roster.reports()
        if request.type != pb.WORKLOAD_TYPE_UNSPECIFIED:
            kind = convert.workload_type_from_agent(request.type)
            reports = tuple(report for report in reports if report.type is kind)
        return pb.ListWorkloadsResponse(workloads=[_write(report) for report in reports])

    async def health_check(self, request: pb.HealthCheckRequest, call: Call) -> pb.HealthCheckResponse:
        """The health of the agent and of each runtime."""
        del request
        self._check_route(call)
        report = self._health()
        return pb.HealthCheckResponse(
            healthy=report.healthy,
            version=self._version,
            runtime_status=report.parts,
            memory_utilization=report.memory_percent,
            cpu_utilization=report.cpu_percent,
            disk_utilization=report.disk_percent,
        )

    async def list_actions(self, request: pb.ListActionsRequest, call: Call) -> pb.ListActionsResponse:
        """The action log."""
        self._check_route(call)
        query = ActionQuery(
            workload_id=request.workload_id,
            type=request.action_type,
            status=request.status,
            limit=request.limit,
            newest_first=request.newest_first,
        )
        _raise([*(_id_problems(query.workload_id, "workload_id") if query.workload_id else []), *query.problems()])
        actions = await self._executor.list_actions(query)
        return pb.ListActionsResponse(actions=[_write_action(action) for action in actions])

    async def read_logs(self, request: pb.ReadLogsRequest, call: Call) -> AsyncIterator[pb.LogChunk]:
        """The output of a workload; with `follow`, also what it prints from now on."""
        self._check_route(call)
        problems = _id_problems(request.workload_id, "workload_id")
        _check_number(request.tail_lines, "tail_lines", problems)
        query = convert.log_query_from_proto(request, problems)
        _raise(problems)
        async for piece in self._executor.read_logs(WorkloadId(request.workload_id), query):
            for start in range(0, len(piece.data), MAX_CHUNK):
                rest = piece.data[start : start + MAX_CHUNK]
                # Only the last part of a chunk ends at its position.
                position = piece.position if start + MAX_CHUNK >= len(piece.data) else ""
                time = epoch_ms(piece.time) if piece.time is not None else 0
                yield pb.LogChunk(data=rest, stream=piece.stream, time_ms=time, position=position)

    async def check_call(self, call: Call) -> None:
        """Raise for a call that is meant for another node or comes from a control plane that no longer leads."""
        self._check_route(call)
        await self._check_term(call)

    def _check_route(self, call: Call) -> None:
        """Refuse calls for another node: an address may belong to another agent by now."""
        meant_for, own = call.metadata.get(NODE_HEADER, ""), self._executor.node.node_id
        if meant_for and meant_for != own:
            raise MisroutedError(
                f"this is node {own!r}, and the call was meant for {meant_for!r}", node_id=own, meant_for=meant_for
            )

    async def _check_term(self, call: Call) -> None:
        """Refuse commands of a control plane that no longer leads. A foreign scheduler has no term."""
        if self._is_stopping():  # a new command would not be carried out
            raise UnavailableError("this agent is stopping")
        said = call.metadata.get(TERM_HEADER, "")
        if not said:
            return
        if not said.isascii() or not said.isdigit() or len(said) > _TERM_DIGITS:
            raise InvalidError([problem(TERM_HEADER, said, "must be a whole number")])
        await self._terms.hear(int(said), of=call.peer)

    async def _counted(self, action: str, work: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            answer = await work
        except ShoalError as error:
            self._metrics.refused(action, error)
            raise
        self._metrics.command(action, "skipped" if answer.skipped else "accepted")
        return answer


# ---------------------------------------------------------------------------------------------------------
# Reading


def _read_apply(request: pb.ApplyWorkloadRequest) -> ApplyCommand:
    """Read an apply, or raise `InvalidError` with everything that is wrong with it."""
    problems = _id_problems(request.id)
    _check_number(request.generation, "generation", problems)
    _check_number(request.attempt, "attempt", problems)
    if len(request.revision_id) > MAX_REVISION or "\x00" in request.revision_id:
        rule = f"must have at most {MAX_REVISION} characters and no NUL"
        problems.append(problem("revision_id", request.revision_id, rule))
    desired, spec = DesiredState.RUNNING, None
    try:
        desired = convert.desired_state_from_agent(request.desired_state)
    except InvalidError as error:
        problems.extend(error.problems)
    try:
        spec = convert.agent_spec_from_proto(request.spec, request.type)
    except InvalidError as error:
        problems.extend(error.problems)
    if spec is not None and desired is DesiredState.RUNNING:
        problems.extend(_secret_problems(request, spec.body))
    if problems or spec is None:
        raise InvalidError(problems)
    return _command(request, desired, spec)


def _secret_problems(request: pb.ApplyWorkloadRequest, body: Body) -> Iterator[Problem]:
    """What is wrong with the secrets beside a spec. Their values are not repeated."""
    for name in sorted(body.secret_names):
        value = request.secrets.get(name)
        if value is None:
            yield problem(f"secrets.{name}", None, "is required: the spec names it")
        elif not value or b"\x00" in value or len(value) > MAX_SECRET or not _is_text(value):
            yield problem(f"secrets.{name}", None, f"must be UTF-8 text of 1 to {MAX_SECRET:,} bytes without NUL")


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _command(request: pb.ApplyWorkloadRequest, desired: DesiredState, spec: AgentSpec) -> ApplyCommand:
    data = convert.spec_bytes(request.spec)
    digest = convert.spec_sha256(data)
    return ApplyCommand(
        workload_id=WorkloadId(request.id),
        type=spec.type,
        revision_id=request.revision_id or digest.hex(),
        desired=desired,
        spec_bytes=data,
        spec_sha256=digest,
        spec=spec,
        generation=request.generation,
        attempt=request.attempt,
        secrets={name: request.secrets[name] for name in spec.body.secret_names if name in request.secrets},
    )


def _id_problems(workload_id: str, field: str = "id") -> list[Problem]:
    return [] if is_identifier(workload_id) else [problem(field, workload_id, IDENTIFIER_RULE)]


def _check_number(value: int, field: str, problems: list[Problem]) -> None:
    if not 0 <= value < MAX_GENERATION:
        problems.append(problem(field, value, f"must be between 0 and {MAX_GENERATION - 1:,}"))


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise InvalidError(problems)


# ---------------------------------------------------------------------------------------------------------
# Writing


def _write(report: WorkloadReport) -> pb.WorkloadStatus:
    status = convert.run_status_to_agent(report.status, report.type, report.desired)
    status.created_at = _seconds(report.created_at)
    status.updated_at = max(_seconds(report.updated_at), _seconds(report.status.last_transition))
    return status


def _status_of(answer: Answer, command: ApplyCommand) -> pb.WorkloadStatus | None:
    if answer.status is None:
        return None
    status = convert.run_status_to_agent(answer.status, command.type, command.desired)
    if answer.task_id:
        status.metadata["task_id"] = answer.task_id
        status.metadata["task_status"] = "pending"
    return status


def _write_action(action: Action) -> pb.AgentAction:
    return pb.AgentAction(
        task_id=action.task_id,
        workload_id=action.workload_id,
        action_type=action.type.value,
        status=action.status.value,
        error=action.error,
        created_at=_seconds(action.created_at),
        started_at=_seconds(action.started_at),
        ended_at=_seconds(action.ended_at),
    )


def _seconds(moment: datetime | None) -> int:
    return int(moment.timestamp()) if moment is not None else 0
