"""Reads requests: checks every field, and turns them into the values that the rest of the control plane uses.

What breaks a rule raises `InvalidError` with the path of every field. Called by `shoal.control.api.service`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from shoal.control.store.base import EventQuery
from shoal.control.workloads.requests import WorkloadRequest
from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import IDENTIFIER_RULE, WorkloadId, is_identifier
from shoal.core.shape import MaxLength, find_problems
from shoal.model.events import SubjectKind
from shoal.model.nodes import LABEL_KEY, LABEL_VALUE
from shoal.model.selectors import parse_selector
from shoal.model.workloads import DesiredState
from shoal.wire import convert
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb

MAX_REMOVED = 256
OWN_KEYS = ("node_id", "host_id")
MAX_REVISION = 256
MAX_ID = 256
DEFAULT_EVENTS = 100
MAX_EVENTS = 1000
SUBJECT_KINDS = ("", *SubjectKind)


def read_workload(
    workload_id: str, spec: pb.WorkloadSpec, revision_id: str, desired_state: str, *, at: str = ""
) -> WorkloadRequest:
    """Read a request for one workload. Raises InvalidError with everything that is wrong with it."""
    prefix = f"{at}." if at else ""
    problems: list[Problem] = []
    if not is_identifier(workload_id):
        problems.append(problem(f"{prefix}workload_id", workload_id, IDENTIFIER_RULE))
    if len(revision_id) > MAX_REVISION or not revision_id.isprintable():
        problems.append(
            problem(f"{prefix}revision_id", revision_id, f"must be at most {MAX_REVISION} printable characters")
        )
    checked, desired = None, DesiredState.RUNNING
    try:
        desired = convert.desired_state_from_text(desired_state, field=f"{prefix}desired_state")
    except InvalidError as error:
        problems.extend(error.problems)
    try:
        checked = convert.workload_spec_from_proto(spec, at=f"{prefix}spec")
    except InvalidError as error:
        problems.extend(error.problems)
    if problems or checked is None:
        raise InvalidError(problems)
    exact = convert.spec_bytes(spec)
    return WorkloadRequest(WorkloadId(workload_id), checked, exact, convert.spec_sha256(exact), revision_id, desired)


def read_members(members: Iterable[pb.GroupMember]) -> tuple[WorkloadRequest, ...]:
    """Read the members of a group."""
    found: list[WorkloadRequest] = []
    problems: list[Problem] = []
    for index, member in enumerate(members):
        try:
            found.append(
                read_workload(
                    member.workload_id, member.spec, member.revision_id, member.desired_state, at=f"members[{index}]"
                )
            )
        except InvalidError as error:
            problems.extend(error.problems)
    if problems:
        raise InvalidError(problems)
    return tuple(found)


def check_known_fields(members: Iterable[pb.GroupMember]) -> None:
    """Specs must have no fields that this version does not know: agents may know them. Raises `InvalidError`."""
    problems = []
    for index, member in enumerate(members):
        known = pb.WorkloadSpec()
        known.CopyFrom(member.spec)
        known.DiscardUnknownFields()
        if known.ByteSize() != member.spec.ByteSize():
            problems.append(problem(f"members[{index}].spec", None, "must not have fields that are not known here"))
    if problems:
        raise InvalidError(problems)


def check_labels(set_to: Mapping[str, str], remove: Sequence[str]) -> None:
    """Labels follow the rules of an agent's. The keys node_id and host_id are the node's own, and cannot be set."""
    problems = list(find_problems(_Labels(dict(set_to))))
    problems += [
        problem(f"labels.{key}", set_to[key], "cannot be set: it stands for the node's own")
        for key in OWN_KEYS
        if key in set_to
    ]
    problems += [problem("remove", key, "must not be set too") for key in remove if key in set_to]
    if not set_to and not remove:
        problems.append(problem("set", None, "must not be empty unless something is removed"))
    if len(remove) > MAX_REMOVED:
        problems.append(problem("remove", len(remove), f"must have at most {MAX_REMOVED} entries"))
    if problems:
        raise InvalidError(problems)


@dataclass(frozen=True, slots=True)
class _Labels:
    labels: Annotated[Mapping[LABEL_KEY, LABEL_VALUE], MaxLength(256)]


def check_given(field: str, value: str) -> None:
    """An id is required. One that is not an identifier is merely not found, unless it is too long to be repeated."""
    if not value.strip() or len(value) > MAX_ID:
        raise InvalidError([problem(field, value, "is required" if not value.strip() else IDENTIFIER_RULE)])


def check_id(field: str, value: str) -> None:
    """An id is required and has to be an identifier."""
    if not is_identifier(value):
        raise InvalidError([problem(field, value, "is required" if not value else IDENTIFIER_RULE)])


def check_state(status: str, known: Sequence[str]) -> None:
    """A misspelled state is refused: an empty list would look as if nothing were in that state."""
    if status and status.lower() not in {word.lower() for word in known}:
        raise InvalidError([problem("status", status, f"must be one of {', '.join(known)}")])


def event_query(request: pb.ListEventsRequest | pb.WatchEventsRequest, *, limit: int = 0) -> EventQuery:
    """Read which events are asked for."""
    problems = []
    subject_kind = request.subject_kind
    if request.after < 0:
        problems.append(problem("after", request.after, "must be 0 or more"))
    if not 0 <= limit <= MAX_EVENTS:
        problems.append(problem("limit", limit, f"must be between 0 and {MAX_EVENTS:,}"))
    if subject_kind not in SUBJECT_KINDS:
        problems.append(problem("subject_kind", subject_kind, f"must be one of {', '.join(SUBJECT_KINDS[1:])}"))
    if request.selector and subject_kind not in ("", SubjectKind.WORKLOAD):
        problems.append(problem("selector", request.selector, f"selects workloads, but subject_kind is {subject_kind}"))
    if problems:
        raise InvalidError(problems)
    selector = parse_selector(request.selector)
    if selector.terms:
        subject_kind = SubjectKind.WORKLOAD
    return EventQuery(request.after, limit or DEFAULT_EVENTS, subject_kind, request.subject_id, selector=selector)
