"""Values for the store's suite: hypothesis strategies that follow the types of the records, and a spec's bytes.

A field that is added to a record is drawn from the day it exists, so the round trip of the suite covers it without a
word here. Used by `shoal.testing.suites.store`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeVar

from hypothesis import strategies as st

from shoal.core.errors import InternalError
from shoal.core.ids import GroupId, JobId, NodeId, SessionId, TokenId, WorkloadId
from shoal.core.shape import build, to_mapping
from shoal.model.events import Event, EventKind, EventSource
from shoal.model.jobs import JobRecord
from shoal.model.nodes import NodeRecord, NodeSpec, NodeState
from shoal.model.resources import Resources
from shoal.model.trust import JoinToken, Revocation, SecretRecord
from shoal.model.workloads import (
    DesiredState,
    GroupRecord,
    NamedPort,
    Observation,
    ProcessSpec,
    RunState,
    RunStatus,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadType,
)

T = TypeVar("T")

MOMENT = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)

IDENTIFIERS = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9._-]{0,20}[a-zA-Z0-9])?", fullmatch=True)

_MOMENTS = st.datetimes(
    min_value=datetime(1900, 1, 1),  # noqa: DTZ001 hypothesis adds the zone
    max_value=datetime(2200, 1, 1),  # noqa: DTZ001 the same
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))]),
)

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    NodeId: IDENTIFIERS,
    WorkloadId: IDENTIFIERS,
    GroupId: IDENTIFIERS,
    JobId: IDENTIFIERS,
    SessionId: st.text(max_size=12),
    TokenId: IDENTIFIERS,
    str: st.text(max_size=12),
    int: st.integers(0, 2**62),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    datetime: _MOMENTS,
    timedelta: st.timedeltas(),
}


def values_of(cls: type[T], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[T]:
    """Values of a dataclass with every field drawn by its type, unless a strategy is given for it."""
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(typing.cast("Any", cls))
    drawn = {each.name: _of(hints[each.name]) for each in fields if each.name not in given}
    return st.builds(cls, **drawn, **given)


def _of(kind: Any) -> st.SearchStrategy[Any]:
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.none() | _of(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        return st.lists(_of(arguments[0]), max_size=3).map(tuple)
    if origin is frozenset:
        return st.frozensets(_of(arguments[0]), max_size=3)
    if origin in (dict, collections.abc.Mapping):
        return st.dictionaries(_of(arguments[0]), _of(arguments[1]), max_size=3)
    if dataclasses.is_dataclass(kind):
        return values_of(typing.cast("type[Any]", kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    raise InternalError(f"no strategy is known for the type {kind!r}")


# ---------------------------------------------------------------------------------------------------------
# Specs and their bytes. The suite has a form of its own, because the store must not care.


def encode_spec(spec: WorkloadSpec) -> bytes:
    """A spec as bytes."""
    return json.dumps(to_mapping(spec)).encode()


def decode_spec(data: bytes) -> WorkloadSpec:
    """The spec that the bytes stand for; spaces around it are allowed, so that one spec has many bytes."""
    return build(WorkloadSpec, json.loads(data))


@st.composite
def _workloads(draw: st.DrawFn) -> WorkloadRecord:
    spec = WorkloadSpec(
        type=WorkloadType.PROCESS,
        process=ProcessSpec(
            command=("run", draw(st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=5))),
            ports=tuple(NamedPort(name=name) for name in draw(st.sampled_from([(), ("web",), ("web", "admin")]))),
        ),
        slots=draw(st.integers(0, 3)),
    )
    data = encode_spec(spec) + b" " * draw(st.integers(0, 3))
    record = draw(values_of(WorkloadRecord, spec=st.just(spec), spec_bytes=st.just(data), version=st.just(0)))
    return dataclasses.replace(record, spec_sha256=hashlib.sha256(data).digest())


_NODE_SPECS = values_of(NodeSpec, node_id=IDENTIFIERS)

NODES = values_of(NodeRecord, spec=_NODE_SPECS, version=st.just(0))
WORKLOADS = _workloads()
GROUPS = values_of(GroupRecord, version=st.just(0))
OBSERVATIONS = values_of(Observation)
EVENTS = values_of(Event, cursor=st.just(0))
TOKENS = values_of(JoinToken, token_id=IDENTIFIERS, version=st.just(0))
REVOCATIONS = values_of(Revocation, node_id=IDENTIFIERS, version=st.just(0))
JOBS = values_of(JobRecord, engine=IDENTIFIERS, version=st.just(0))
SECRETS = values_of(SecretRecord, name=IDENTIFIERS, version=st.just(0))


# ---------------------------------------------------------------------------------------------------------
# Plain values, for tests about something else


def node(node_id: str, *, version: int = 0, reason: str = "") -> NodeRecord:
    """A node."""
    return NodeRecord(
        spec=NodeSpec(node_id=node_id, endpoint="127.0.0.1:50051", capacity=Resources(4000, 8192, 100, 4)),
        session=SessionId("s1"),
        state=NodeState.READY,
        state_reason=reason,
        state_by="register",
        state_at=MOMENT,
        registered_at=MOMENT,
        last_heartbeat=MOMENT,
        lease_seconds=30.0,
        version=version,
    )


def workload(workload_id: str, *, version: int = 0, revision: str = "r1") -> WorkloadRecord:
    """A workload."""
    spec = WorkloadSpec(type=WorkloadType.PROCESS, process=ProcessSpec(command=("sleep", "60")))
    data = encode_spec(spec)
    return WorkloadRecord(
        workload_id=WorkloadId(workload_id),
        spec=spec,
        spec_bytes=data,
        spec_sha256=hashlib.sha256(data).digest(),
        revision_id=revision,
        desired=DesiredState.RUNNING,
        generation=version + 1,
        created_at=MOMENT,
        updated_at=MOMENT,
        version=version,
    )


def group(group_id: str, *, version: int = 0, message: str = "") -> GroupRecord:
    """A group."""
    return GroupRecord(
        group_id=GroupId(group_id),
        generation=1,
        members=(WorkloadId("a"), WorkloadId("b")),
        created_at=MOMENT,
        updated_at=MOMENT,
        message=message,
        version=version,
    )


def observation(workload_id: str, *, message: str = "") -> Observation:
    """A report on a workload."""
    status = RunStatus(workload_id=WorkloadId(workload_id), state=RunState.RUNNING, message=message)
    return Observation(node_id=NodeId("n1"), status=status, observed_at=MOMENT)


def event(
    subject_id: str, *, subject_kind: str = "workload", message: str = "", labels: Mapping[str, str] | None = None
) -> Event:
    """An event."""
    return Event(
        time=MOMENT,
        subject_kind=subject_kind,
        subject_id=subject_id,
        kind=EventKind.WORKLOAD_CREATED,
        message=message,
        source=EventSource.API,
        labels=labels or {},
    )
