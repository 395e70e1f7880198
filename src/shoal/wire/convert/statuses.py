"""Status reports: `RunStatus` ↔ the statuses of both contracts, with usage.

A report that breaks a rule raises `InvalidError` for that report alone; texts for people are cut, not refused.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import IDENTIFIER_RULE, WorkloadId, is_identifier
from shoal.model.views import Reason
from shoal.model.workloads import DesiredState, Exit, FailureReason, RunState, RunStatus, Usage, WorkloadType
from shoal.wire.convert.fields import (
    desired_state_to_agent,
    failure_from_proto,
    failure_to_proto,
    millis_of,
    path,
    read_count,
    read_millis,
    read_seconds,
    read_timestamp,
    seconds_of,
    shorten,
    timestamp_to_proto,
    workload_type_to_agent,
    writing,
)
from shoal.wire.convert.usages import usage_from_agent, usage_from_control, usage_to_agent, usage_to_control
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import run_pb2 as run

log = logging.getLogger(__name__)

MAX_MESSAGE = 4096
MAX_OUTPUT = 16 * 1024
MAX_REVISION = 256
MAX_PORTS = 64
_MAX_NAME = 128
_INT32 = 2**31 - 1

#: Failures that the same spec meets again, so that a retry does not help.
PERMANENT_FAILURES = frozenset({FailureReason.INVALID_SPEC, FailureReason.IMAGE_NOT_FOUND})

#: The failure codes of foreign agents, in `metadata["failure_reason"]` and `reason.code`, by the contract's names.
_FOREIGN_REASONS = {
    "IMAGE_PULL_TIMEOUT": FailureReason.IMAGE_PULL_FAILED,
    "IMAGE_PULL_AUTH_FAILED": FailureReason.IMAGE_PULL_FAILED,
    "INVALID_IMAGE": FailureReason.IMAGE_NOT_FOUND,
    "NETWORK_TIMEOUT": FailureReason.NETWORK_ERROR,
    "NETWORK_UNREACHABLE": FailureReason.NETWORK_ERROR,
    "NETWORK_ATTACH_FAILED": FailureReason.NETWORK_ERROR,
    "DNS_RESOLUTION_FAILED": FailureReason.NETWORK_ERROR,
    "PORT_BIND_CONFLICT": FailureReason.NETWORK_ERROR,
    "RESOURCE_QUOTA_EXCEEDED": FailureReason.INSUFFICIENT_RESOURCES,
    "STORAGE_FULL": FailureReason.STORAGE_ERROR,
    "STORAGE_PROVISION_FAILED": FailureReason.STORAGE_ERROR,
    "STORAGE_ATTACH_FAILED": FailureReason.STORAGE_ERROR,
    "INVALID_SPECIFICATION": FailureReason.INVALID_SPEC,
    "INVALID_CONFIGURATION": FailureReason.INVALID_SPEC,
    "CLOUD_INIT_INVALID": FailureReason.VM_BOOT_FAILED,
}

#: The failure of which nothing more is known.
_ANY_FAILURE = FailureReason.RUNTIME_ERROR
_CODE = re.compile(r"\b[A-Z][A-Z_]{3,}\b")

_STATES_TO_AGENT: dict[RunState, agent.ActualState.ValueType] = {
    RunState.PENDING: agent.ACTUAL_STATE_PENDING,
    RunState.RUNNING: agent.ACTUAL_STATE_RUNNING,
    RunState.STOPPED: agent.ACTUAL_STATE_STOPPED,
    RunState.FAILED: agent.ACTUAL_STATE_FAILED,
    RunState.UNKNOWN: agent.ACTUAL_STATE_UNKNOWN,
}
_STATES_FROM_AGENT = {number: state for state, number in _STATES_TO_AGENT.items()}


# ---------------------------------------------------------------------------------------------------------
# The control plane's contract


def run_status_to_control(status: RunStatus, type: str) -> control.WorkloadStatus:  # noqa: A002 - the wire's name
    """A status as heartbeats carry it."""
    with writing(status.workload_id):
        return control.WorkloadStatus(
            workload_id=status.workload_id,
            state=status.state.value,
            failure_reason=failure_to_proto(status.failure),
            message=status.message,
            last_transition=timestamp_to_proto(status.last_transition),
            reason=reason_to_proto(reason_of(status)),
            usage=usage_to_control(status.usage, status.workload_id, type),
            run=run_detail_to_proto(status),
        )


def run_status_from_control(pb: control.WorkloadStatus, *, at: str = "") -> RunStatus:
    """Read one status of a heartbeat. Raises `InvalidError`.

    A foreign agent calls every failure RUNTIME_ERROR; its own code, message and next retry are in `reason`.
    """
    problems: list[Problem] = []
    reason = reason_from_proto(pb.reason, path(at, "reason"), problems)
    state, foreign = state_from_text(pb.state), not pb.HasField("run")
    failure = failure_from_proto(pb.failure_reason)
    if foreign and reason.code and state is RunState.FAILED:
        failure = _failure_from_code(reason.code)
    status = read_run_status(
        pb.run,
        path(at, "run"),
        problems,
        workload_id=_read_id(pb.workload_id, path(at, "workload_id"), problems),
        state=state,
        failure=failure,
        message=pb.message or reason.message,
        last_transition=read_timestamp(pb, "last_transition", at, problems) or reason.last_transition,
        usage=usage_from_control(pb.usage, path(at, "usage"), problems) if pb.HasField("usage") else None,
    )
    if problems:
        raise InvalidError(problems)
    return dataclasses.replace(status, next_restart_at=reason.next_retry_at) if foreign else status


def run_statuses_from_heartbeat(
    pb: control.HeartbeatRequest, known: Mapping[bytes, RunStatus]
) -> dict[bytes, RunStatus]:
    """Every readable status of a heartbeat, by its bytes. Most are unchanged: what is `known` is not parsed again.

    One that breaks a rule is left out and logged: a heartbeat is also the sign of life of a whole node, and must not be
    refused for one bad entry.
    """
    found: dict[bytes, RunStatus] = {}
    for index, each in enumerate(pb.workload_statuses):
        exact = each.SerializeToString()
        status = known.get(exact)
        try:
            found[exact] = status or run_status_from_control(each, at=f"workload_statuses[{index}]")
        except InvalidError as error:
            log.warning("node %s: a status was left out: %s", shorten(repr(pb.node_id), 160), error.message)
    return found


class Measurements:
    """The usage of a node's workloads, from a field of the heartbeat beside the statuses; parsed on demand."""

    __slots__ = ("_by_id", "_pb")

    def __init__(self, pb: control.HeartbeatRequest) -> None:
        self._pb: Sequence[control.WorkloadUsageSnapshot] = pb.workload_usage
        self._by_id: dict[str, control.WorkloadUsageSnapshot] | None = None

    def of(self, workload_id: str) -> Usage | None:
        """The usage of a workload; None when it is missing or impossible."""
        if self._by_id is None:
            self._by_id = {each.workload_id: each for each in self._pb}
        found = self._by_id.get(workload_id)
        if found is None:
            return None
        problems: list[Problem] = []
        usage = usage_from_control(found, "workload_usage", problems)
        return None if problems else usage


def state_from_text(text: str) -> RunState:
    """One of the five states; any other text is Unknown."""
    try:
        return RunState(text)
    except ValueError:
        return RunState.UNKNOWN


def reason_of(status: RunStatus) -> Reason | None:
    """The `ReasonDetail` of a status; None without a failure or a planned restart."""
    failed = status.failure is not FailureReason.NONE
    if not failed and status.next_restart_at is None:
        return None
    return Reason(
        code=status.failure.value if failed else "",
        message=status.message,
        last_transition=status.last_transition,
        next_retry_at=status.next_restart_at,
        retryable=status.failure not in PERMANENT_FAILURES,
    )


# ---------------------------------------------------------------------------------------------------------
# The agent's contract


def run_status_to_agent(status: RunStatus, type: WorkloadType, desired: DesiredState) -> agent.WorkloadStatus:  # noqa: A002
    """A status as an agent answers with it."""
    failed = status.failure is not FailureReason.NONE
    with writing(status.workload_id):
        return agent.WorkloadStatus(
            id=status.workload_id,
            type=workload_type_to_agent(type),
            revision_id=status.revision_id,
            desired_state=desired_state_to_agent(desired),
            actual_state=_STATES_TO_AGENT[status.state],
            message=status.message,
            created_at=seconds_of(status.started_at),
            updated_at=seconds_of(status.last_transition),
            metadata=_foreign_words(status.failure),
            usage=usage_to_agent(status.usage, status.workload_id, type),
            run=run_detail_to_proto(status),
            failure_reason=status.failure.value if failed else "",
        )


def _foreign_words(failure: FailureReason) -> dict[str, str]:
    """A failure where foreign schedulers look for it. They do not try again what is marked as terminal."""
    if failure is FailureReason.NONE:
        return {}
    return {"failure_reason": failure.value} | ({"retry_terminal": "true"} if failure in PERMANENT_FAILURES else {})


def run_status_from_agent(pb: agent.WorkloadStatus, *, at: str = "") -> RunStatus:
    """Read an agent's answer, foreign or ours. Raises `InvalidError`."""
    problems: list[Problem] = []
    state = _STATES_FROM_AGENT.get(pb.actual_state, RunState.UNKNOWN)
    status = read_run_status(
        pb.run,
        path(at, "run"),
        problems,
        workload_id=_read_id(pb.id, path(at, "id"), problems),
        state=state,
        failure=_failure_from_agent(pb, state),
        message=pb.message,
        last_transition=read_seconds(pb.updated_at, path(at, "updated_at"), problems),
        usage=usage_from_agent(pb.usage, path(at, "usage"), problems) if pb.HasField("usage") else None,
    )
    if problems:
        raise InvalidError(problems)
    if not status.revision_id:
        return dataclasses.replace(status, revision_id=shorten(pb.revision_id, MAX_REVISION))
    return status


def _failure_from_agent(pb: agent.WorkloadStatus, state: RunState) -> FailureReason:
    code = pb.failure_reason or pb.metadata.get("failure_reason", "")
    if code:
        return _failure_from_code(code)
    foreign = not pb.HasField("run")
    return FailureReason.RUNTIME_ERROR if state is RunState.FAILED and foreign else FailureReason.NONE


def failed_status(workload_id: WorkloadId, error: str) -> RunStatus:
    """The status of a workload of which a foreign agent only keeps the error of a failed action."""
    found = next((code for code in _CODE.findall(error) if _failure_from_code(code) is not _ANY_FAILURE), "")
    failure = _failure_from_code(found) if found else _ANY_FAILURE
    return RunStatus(workload_id, RunState.FAILED, failure=failure, message=shorten(error, MAX_MESSAGE))


def _failure_from_code(code: str) -> FailureReason:
    """A failure by its name in the contract, or by the code of a foreign agent; any other is a runtime error."""
    known = _FOREIGN_REASONS.get(code)
    if known is not None:
        return known
    try:
        return FailureReason(code)
    except ValueError:
        return FailureReason.RUNTIME_ERROR


def _read_id(text: str, field: str, problems: list[Problem]) -> WorkloadId:
    if not is_identifier(text):
        problems.append(problem(field, text, IDENTIFIER_RULE))
    return WorkloadId(text)


# ---------------------------------------------------------------------------------------------------------
# The parts that both contracts share


def run_detail_to_proto(status: RunStatus) -> run.RunDetail:
    """Our addition to both contracts, and to the view of a workload."""
    return run.RunDetail(
        generation=status.generation,
        exit=_exit_to_proto(status.exit) if status.exit is not None else None,
        ports=status.ports,
        restarts=status.restarts,
        ready=status.ready,
        last_output=status.last_output,
        started_at_ms=millis_of(status.started_at),
        spec_sha256=status.spec_sha256,
        revision_id=status.revision_id,
        completed=status.completed,
        pid=status.pid,
        deleting=status.deleting,
        next_restart_at_ms=millis_of(status.next_restart_at),
        services=status.services,
    )


def read_run_status(
    pb: run.RunDetail,
    at: str,
    problems: list[Problem],
    *,
    workload_id: WorkloadId,
    state: RunState,
    failure: FailureReason,
    message: str,
    last_transition: datetime | None,
    usage: Usage | None,
) -> RunStatus:
    """A status from our addition and the fields around it.

    From an agent that knows nothing of the addition everything in it is zero: generation 0, no exit.
    """
    if len(pb.spec_sha256) not in (0, 32):
        problems.append(problem(path(at, "spec_sha256"), len(pb.spec_sha256), "must be empty or have 32 bytes"))
    return RunStatus(
        workload_id=workload_id,
        state=state,
        failure=failure,
        message=shorten(message, MAX_MESSAGE),
        last_transition=last_transition,
        generation=read_count(pb.generation, path(at, "generation"), problems),
        revision_id=shorten(pb.revision_id, MAX_REVISION),
        exit=_exit_from_proto(pb.exit, path(at, "exit"), problems) if pb.HasField("exit") else None,
        ports=_read_ports(pb, path(at, "ports"), problems),
        restarts=read_count(pb.restarts, path(at, "restarts"), problems, most=_INT32),
        ready=pb.ready,
        completed=pb.completed,
        deleting=pb.deleting,
        last_output=pb.last_output[-MAX_OUTPUT:],
        pid=read_count(pb.pid, path(at, "pid"), problems, most=_INT32),
        started_at=read_millis(pb.started_at_ms, path(at, "started_at_ms"), problems),
        next_restart_at=read_millis(pb.next_restart_at_ms, path(at, "next_restart_at_ms"), problems),
        services={shorten(name, _MAX_NAME): shorten(state, _MAX_NAME) for name, state in pb.services.items()},
        spec_sha256=pb.spec_sha256,
        usage=usage,
    )


def _read_ports(pb: run.RunDetail, at: str, problems: list[Problem]) -> dict[str, int]:
    if len(pb.ports) > MAX_PORTS:
        problems.append(problem(at, len(pb.ports), f"must have at most {MAX_PORTS} entries"))
        return {}
    for name, port in pb.ports.items():
        if not 0 < len(name) <= _MAX_NAME or not 0 <= port <= 65535:
            problems.append(problem(at, f"{shorten(name, _MAX_NAME)}={port}", "must be a name and a port up to 65,535"))
    return dict(pb.ports)


def _exit_to_proto(ended: Exit) -> run.ExitDetail:
    return run.ExitDetail(
        code=ended.code,
        signal=ended.signal,
        unknown=ended.unknown,
        ended_at_ms=millis_of(ended.ended_at),
        out_of_memory=ended.out_of_memory,
    )


def _exit_from_proto(pb: run.ExitDetail, at: str, problems: list[Problem]) -> Exit:
    return Exit(
        code=pb.code,
        signal=read_count(pb.signal, path(at, "signal"), problems, most=_INT32),
        unknown=pb.unknown,
        ended_at=read_millis(pb.ended_at_ms, path(at, "ended_at_ms"), problems),
        out_of_memory=pb.out_of_memory,
    )


def reason_to_proto(reason: Reason | None) -> control.ReasonDetail | None:
    """Why, for the contract's `ReasonDetail`."""
    if reason is None:
        return None
    return control.ReasonDetail(
        code=reason.code,
        message=reason.message,
        last_transition=timestamp_to_proto(reason.last_transition),
        next_retry_at=timestamp_to_proto(reason.next_retry_at),
        retryable=reason.retryable,
    )


def reason_from_proto(pb: control.ReasonDetail, at: str, problems: list[Problem]) -> Reason:
    """The inverse."""
    return Reason(
        code=pb.code,
        message=pb.message,
        last_transition=read_timestamp(pb, "last_transition", at, problems),
        next_retry_at=read_timestamp(pb, "next_retry_at", at, problems),
        retryable=pb.retryable,
    )
