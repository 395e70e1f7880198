"""What a person writes in a file: workloads and groups as YAML or JSON documents, and their JSON Schemas.

    id: web
    type: process
    process: {command: [python3, -m, http.server]}
    resources: {cpu_millicores: 100, memory_mb: 64}

    kind: group
    id: trainers
    members: [{id: trainer-0, type: process, …}, …]

Called by `shoal.cli`; the schemas are written to docs/reference/schemas by `make docs`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import Identifier
from shoal.core.shape import MaxLength, OneOf, build, json_schema
from shoal.model.workloads import WorkloadSpec, WorkloadType

_DOCUMENT_FIELDS = ("kind", "id", "revision", "desired_state")


@dataclass(frozen=True, slots=True)
class WorkloadDocument:
    """One workload: its id, its revision and its spec."""

    id: Identifier
    spec: WorkloadSpec
    #: Empty: the hash of the spec.
    revision: Annotated[str, MaxLength(256)] = ""
    desired_state: Annotated[str, OneOf(("Running", "Stopped"))] = "Running"


@dataclass(frozen=True, slots=True)
class GroupDocument:
    """Workloads placed all or none."""

    id: Identifier
    members: Annotated[tuple[WorkloadDocument, ...], MaxLength(4096, 1)] = field(default=())


Document = WorkloadDocument | GroupDocument


def read_document(given: object, *, at: str = "") -> Document:
    """Read one parsed YAML or JSON document. Raises `InvalidError` with every problem in it."""
    if not isinstance(given, Mapping):
        raise InvalidError([problem(at or "document", given, "must be a mapping")])
    kind = given.get("kind", "workload")
    if kind == "workload":
        return _read_workload(given, at)
    if kind == "group":
        return _read_group(given, at)
    raise InvalidError([problem(f"{at}.kind" if at else "kind", kind, "must be workload or group")])


def _read_workload(given: Mapping[Any, Any], at: str) -> WorkloadDocument:
    outer = {key: value for key, value in given.items() if key in _DOCUMENT_FIELDS and key != "kind"}
    inner = {key: value for key, value in given.items() if key not in _DOCUMENT_FIELDS}
    problems: list[Problem] = []
    spec: WorkloadSpec | None = None
    try:
        spec = build(WorkloadSpec, inner, at=at)
    except InvalidError as error:
        problems.extend(error.problems)
    try:
        placeholder = spec or WorkloadSpec(type=WorkloadType.PROCESS)
        build(_Envelope, outer, at=at)
        document = WorkloadDocument(spec=placeholder, **outer)
    except InvalidError as error:
        problems.extend(error.problems)
    if problems:
        raise InvalidError(problems)
    return document


def _read_group(given: Mapping[Any, Any], at: str) -> GroupDocument:
    problems: list[Problem] = []
    members: list[WorkloadDocument] = []
    listed = given.get("members")
    prefix = f"{at}." if at else ""
    if not isinstance(listed, list) or not listed:
        problems.append(problem(f"{prefix}members", listed, "must be a list with at least one workload"))
        listed = []
    for index, each in enumerate(listed):
        try:
            member = read_document(each, at=f"{prefix}members[{index}]")
            if isinstance(member, GroupDocument):
                problems.append(problem(f"{prefix}members[{index}].kind", "group", "groups do not nest"))
            else:
                members.append(member)
        except InvalidError as error:
            problems.extend(error.problems)
    problems.extend(
        problem(f"{prefix}{key}", None, "is not a known field of a group; known are id, kind, members")
        for key in given
        if key not in ("kind", "id", "members")
    )
    try:
        build(_GroupEnvelope, {key: given[key] for key in ("id",) if key in given}, at=at)
    except InvalidError as error:
        problems.extend(error.problems)
    if problems:
        raise InvalidError(problems)
    return GroupDocument(id=given["id"], members=tuple(members))


@dataclass(frozen=True, slots=True)
class _Envelope:
    id: Identifier
    revision: Annotated[str, MaxLength(256)] = ""
    desired_state: Annotated[str, OneOf(("Running", "Stopped"))] = "Running"


@dataclass(frozen=True, slots=True)
class _GroupEnvelope:
    id: Identifier


def workload_schema(kind: WorkloadType) -> dict[str, Any]:
    """The JSON Schema of a document for one kind of workload."""
    schema = json_schema(WorkloadSpec, title=f"Shoal {kind.value} workload")
    properties = schema["properties"]
    for other in WorkloadType:
        if other is not kind:
            del properties[other.value]
    properties["type"] = {"const": kind.value}
    envelope = json_schema(_Envelope)["properties"]
    schema["properties"] = {"kind": {"const": "workload"}, **envelope, **properties}
    schema["required"] = ["id", "type", kind.value]
    return schema


def document_fields() -> tuple[str, ...]:
    """Every top-level field of a workload document."""
    return (*_DOCUMENT_FIELDS, *(f.name for f in dataclasses.fields(WorkloadSpec)))
