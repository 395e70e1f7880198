"""Single values that every conversion needs: times, durations, enums, bounded texts.

Reading never raises: what is wrong goes to a list of problems, so that one answer can name all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from shoal.core.errors import InvalidError, Problem, problem
from shoal.model.workloads import MAX_DURATION, DesiredState, FailureReason, WorkloadType
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import run_pb2 as run

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The range of a datetime, in seconds since 1970. Foreign programs send the first value for "never".
_FIRST_SECOND = -62_135_596_800
_LAST_SECOND = 253_402_300_799
_MAX_MILLIS = MAX_DURATION // timedelta(milliseconds=1)


def path(at: str, name: str) -> str:
    """The full name of a field."""
    return f"{at}.{name}" if at else name


# ---------------------------------------------------------------------------------------------------------
# Moments


def timestamp_to_proto(moment: datetime | None) -> Timestamp | None:
    """A moment as the published contract carries it; None stays unset."""
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def timestamp_from_proto(stamp: Timestamp, *, field: str = "timestamp") -> datetime | None:
    """The inverse. None for the foreign way to say "never". Raises `InvalidError` for a date that cannot be."""
    problems: list[Problem] = []
    moment = _moment(stamp, field, problems)
    if problems:
        raise InvalidError(problems)
    return moment


def read_timestamp(message: Message, name: str, at: str, problems: list[Problem]) -> datetime | None:
    """A field of type Timestamp; None when it is not set."""
    return _moment(getattr(message, name), path(at, name), problems) if message.HasField(name) else None


def _moment(stamp: Timestamp, field: str, problems: list[Problem]) -> datetime | None:
    if stamp.seconds == _FIRST_SECOND:
        return None
    if not _FIRST_SECOND < stamp.seconds <= _LAST_SECOND or not 0 <= stamp.nanos < 1_000_000_000:
        problems.append(problem(field, stamp.seconds, "must be a date between the years 1 and 9999"))
        return None
    return stamp.ToDatetime(tzinfo=UTC)


def millis_of(moment: datetime | None) -> int:
    """A moment in milliseconds since 1970; 0 for none."""
    return 0 if moment is None else (moment - _EPOCH) // timedelta(milliseconds=1)


def seconds_of(moment: datetime | None) -> int:
    """A moment in whole seconds since 1970; 0 for none."""
    return 0 if moment is None else (moment - _EPOCH) // timedelta(seconds=1)


def read_millis(value: int, field: str, problems: list[Problem]) -> datetime | None:
    """The inverse of `millis_of`. What lies before 1970 is the foreign way to say "never"."""
    if value <= 0:
        return None
    if value > _LAST_SECOND * 1000:
        problems.append(problem(field, value, "must be a date before the year 10000"))
        return None
    return _EPOCH + timedelta(milliseconds=value)


def read_seconds(value: int, field: str, problems: list[Problem]) -> datetime | None:
    """The inverse of `seconds_of`."""
    if value > _LAST_SECOND:
        problems.append(problem(field, value, "must be a date before the year 10000"))
        return None
    return read_millis(value * 1000, field, problems)


# ---------------------------------------------------------------------------------------------------------
# Durations, numbers, texts


def duration_to_millis(value: timedelta) -> int:
    """A duration for the wire, where 0 means the default: one that is shorter than a millisecond becomes 1."""
    return max(1, round(value / timedelta(milliseconds=1)))


def read_duration(value: int, default: timedelta, field: str, problems: list[Problem]) -> timedelta:
    """The inverse; 0 is the default."""
    if value == 0:
        return default
    if not 0 < value <= _MAX_MILLIS:
        problems.append(problem(field, value, f"must be between 0 and {_MAX_MILLIS:,} milliseconds"))
        return default
    return timedelta(milliseconds=value)


def read_count(value: int, field: str, problems: list[Problem], *, most: int = 2**63 - 1) -> int:
    """A number that cannot be negative."""
    if not 0 <= value <= most:
        problems.append(problem(field, value, f"must be between 0 and {most:,}"))
        return 0
    return value


def problems_to_proto(problems: Iterable[Problem]) -> list[run.FieldProblem]:
    """Problems for the body of an answer."""
    return [run.FieldProblem(field=each.field, value=each.value, rule=each.rule) for each in problems]


def problems_from_proto(listed: Iterable[run.FieldProblem]) -> tuple[Problem, ...]:
    """The inverse."""
    return tuple(Problem(field=each.field, value=each.value, rule=each.rule) for each in listed)


def shorten(text: str, most: int) -> str:
    """Cut a text that is only for people to read."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


# ---------------------------------------------------------------------------------------------------------
# Enums

_TYPES_TO_AGENT: dict[WorkloadType, agent.WorkloadType.ValueType] = {
    WorkloadType.CONTAINER: agent.WORKLOAD_TYPE_CONTAINER,
    WorkloadType.COMPOSE: agent.WORKLOAD_TYPE_COMPOSE,
    WorkloadType.VM: agent.WORKLOAD_TYPE_VM,
    WorkloadType.PROCESS: agent.WORKLOAD_TYPE_PROCESS,
}
_TYPES_FROM_AGENT = {number: kind for kind, number in _TYPES_TO_AGENT.items()}


def workload_type_to_agent(kind: WorkloadType) -> agent.WorkloadType.ValueType:
    """The agent's number for a type of workload."""
    return _TYPES_TO_AGENT[kind]


def workload_type_from_agent(number: int, *, field: str = "type") -> WorkloadType:
    """The inverse. Raises `InvalidError`: a type is required."""
    kind = _TYPES_FROM_AGENT.get(agent.WorkloadType.ValueType(number))
    if kind is None:
        raise InvalidError([type_problem(number or None, field)])
    return kind


#: Other names of types that foreign programs use.
_TYPE_NAMES = {"docker-container": "container", "docker-compose": "compose", "git-compose": "compose"}


def find_workload_type(text: str) -> WorkloadType | None:
    """A type of workload by any of its names, in upper or lower case; None for a text that names none."""
    name = text.strip().lower()
    try:
        return WorkloadType(_TYPE_NAMES.get(name, name))
    except ValueError:
        return None


def workload_type_from_text(text: str, *, field: str = "type") -> WorkloadType:
    """A type of workload by any of its names. Raises `InvalidError`: a type is required."""
    kind = find_workload_type(text)
    if kind is None:
        raise InvalidError([type_problem(text or None, field)])
    return kind


def type_problem(value: object, field: str) -> Problem:
    """The problem with a type that is missing or unknown."""
    words = ", ".join(kind.value for kind in WorkloadType)
    rule = f"is required and must be one of {words}" if value is None else f"must be one of {words}"
    return problem(field, value, rule)


def desired_state_from_text(text: str, *, field: str = "desired_state") -> DesiredState:
    """The requested state, in upper or lower case; empty means Running. Raises `InvalidError`."""
    name = text.strip().capitalize()
    if name in ("", DesiredState.RUNNING.value):
        return DesiredState.RUNNING
    if name == DesiredState.STOPPED.value:
        return DesiredState.STOPPED
    raise InvalidError([problem(field, text, "must be Running or Stopped, or empty for Running")])


def desired_state_to_text(desired: DesiredState) -> str:
    """The inverse, for views; they may also say Deleted."""
    return desired.value


def desired_state_from_agent(number: int, *, field: str = "desired_state") -> DesiredState:
    """What a scheduler asks of an agent; nothing means Running. Raises `InvalidError`."""
    if number in (agent.DESIRED_STATE_UNSPECIFIED, agent.DESIRED_STATE_RUNNING):
        return DesiredState.RUNNING
    if number == agent.DESIRED_STATE_STOPPED:
        return DesiredState.STOPPED
    raise InvalidError([problem(field, number, "must be DESIRED_STATE_RUNNING or DESIRED_STATE_STOPPED")])


def desired_state_to_agent(desired: DesiredState) -> agent.DesiredState.ValueType:
    """The inverse. An agent stops a workload before it deletes it."""
    return agent.DESIRED_STATE_RUNNING if desired is DesiredState.RUNNING else agent.DESIRED_STATE_STOPPED


def failure_to_proto(reason: FailureReason) -> control.FailureReason.ValueType:
    """The contract's number for a reason."""
    return control.FailureReason.Value(reason.value)


def failure_from_proto(number: int) -> FailureReason:
    """The inverse. A number that this build does not know is some runtime error."""
    try:
        return FailureReason(control.FailureReason.Name(control.FailureReason.ValueType(number)))
    except ValueError:
        return FailureReason.RUNTIME_ERROR


def failure_from_text(word: str) -> FailureReason:
    """A reason by its name; NONE for an unknown name."""
    try:
        return FailureReason(word)
    except ValueError:
        return FailureReason.NONE


@contextlib.contextmanager
def writing(at: str) -> Iterator[None]:
    """Wraps the filling of a message. Raises `InvalidError` for a value that the wire cannot carry.

    That is a text that is not Unicode, or a number beyond its field: values that the rules of a spec let pass, because
    they know nothing of the wire.
    """
    try:
        yield
    except ValueError as error:
        raise InvalidError([problem(at, None, f"cannot be sent: {error}")]) from None
