"""Spec files: workloads and groups as YAML or JSON documents, read and written, and their JSON Schemas.

    id: web
    type: process
    process: {command: [python3, -m, http.server]}
    resources: {cpu_millicores: 100, memory_mb: 64}

A value of `process.env` may be `{secret: NAME}` instead of text; the control plane has the value.

    kind: group
    id: trainers
    members: [{id: trainer-0, type: process, …}, …]
    member_changes: {max_members: 8, arg_prefixes: [--rank=]}

Called by `shoal.cli`; the schemas are written to docs/reference/schemas by `make docs`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.shape import (
    Identifier,
    MaxLength,
    OneOf,
    build,
    field_kinds,
    json_schema,
    plain_kind,
    to_mapping,
    unknown_field,
)
from shoal.model.workloads import MAX_MEMBERS, DesiredState, MemberChanges, Restart, WorkloadSpec, WorkloadType

T = TypeVar("T")

_DOCUMENT_FIELDS = ("kind", "id", "revision", "desired_state")
_GROUP_FIELDS = ("kind", "id", "members", "member_changes")
_NEVER = "never"
_NO = re.compile(r"\bno\b")


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
    members: Annotated[tuple[WorkloadDocument, ...], MaxLength(MAX_MEMBERS, 1)]
    #: What its members may change with their own certificates; None: nothing but replacing a member by another.
    member_changes: MemberChanges | None = None


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


def write_document(document: Document) -> dict[str, Any]:
    """A document as `read_document` reads it back. Fields with their default values are left out."""
    if isinstance(document, GroupDocument):
        return {"kind": "group", "id": document.id, "members": [write_document(each) for each in document.members]}
    plain: dict[str, Any] = {"id": document.id}
    if document.revision:
        plain["revision"] = document.revision
    if document.desired_state != DesiredState.RUNNING:
        plain["desired_state"] = document.desired_state
    spec = _without_defaults(document.spec)
    for kind, field in (("process", "restart"), ("container", "")):
        inner = spec.get(kind, {}).get(field, {}) if field else spec.get(kind, {})
        name = "policy" if field else "restart_policy"
        if inner.get(name) == Restart.NO:
            inner[name] = _NEVER
    return {**plain, **spec}


def _without_defaults(value: Any) -> dict[str, Any]:
    """A dataclass as a mapping, without the fields that `build` would fill in by itself."""
    plain: dict[str, Any] = {}
    for each in dataclasses.fields(value):
        given = getattr(value, each.name)
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        if given == default:
            continue
        plain[each.name] = _without_default_fields(given)
    return plain


def _without_default_fields(given: Any) -> Any:
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return _without_defaults(given)
    if isinstance(given, tuple):
        return [_without_default_fields(each) for each in given]
    plain = to_mapping(given)
    # The wire keeps no order of labels and variables: sorted, a spec is always written the same way.
    return dict(sorted(plain.items())) if isinstance(plain, dict) else plain


def _unknown_field(key: Any, kind: Any, at: str) -> Problem:
    """A field that a workload does not have. It may belong one level below, to the kind of the workload."""
    found = unknown_field(key, document_fields(), at=at)
    kinds = field_kinds(WorkloadSpec)
    if kind in {each.value for each in WorkloadType} and key in field_kinds(plain_kind(kinds[kind])):
        return dataclasses.replace(found, rule=f"is not a known field; did you mean {kind}.{key}?")
    return found


def _read_workload(given: Mapping[Any, Any], at: str) -> WorkloadDocument:
    known = document_fields()
    outer = {key: value for key, value in given.items() if key in _DOCUMENT_FIELDS and key != "kind"}
    inner = {key: value for key, value in given.items() if key in known and key not in _DOCUMENT_FIELDS}
    problems = [_unknown_field(key, given.get("type"), at) for key in given if key not in known]
    for kind in WorkloadType:
        body = inner.get(kind.value)
        if isinstance(body, Mapping):
            body = _with_word(body, "restart_policy")
            if isinstance(body.get("restart"), Mapping):
                body = {**body, "restart": _with_word(body["restart"], "policy")}
            inner[kind.value] = _with_references(body, f"{at}.{kind.value}" if at else kind.value, problems)
    envelope = _collect(_Envelope, outer, at, problems)
    spec = _collect(WorkloadSpec, inner, at, problems)
    if envelope is None or spec is None or problems:
        raise InvalidError([_in_words_of_documents(each) for each in problems])
    return WorkloadDocument(id=envelope.id, spec=spec, revision=envelope.revision, desired_state=envelope.desired_state)


def _with_word(given: Mapping[Any, Any], field: str) -> Mapping[Any, Any]:
    """`never` is another word for the policy `no`, which many readers of YAML take for false: all three mean it."""
    return {**given, field: "no"} if given.get(field) is False or given.get(field) == _NEVER else given


def _in_words_of_documents(found: Problem) -> Problem:
    """A rule on a restart policy names `never`, which is what people are told to write."""
    if found.field.endswith(("restart.policy", "restart_policy")):
        return dataclasses.replace(found, rule=_NO.sub(_NEVER, found.rule))
    return found


def _with_references(body: Mapping[Any, Any], at: str, problems: list[Problem]) -> Mapping[Any, Any]:
    """`env: {PASSWORD: {secret: db-password}}` in its plain form: a variable, and the secret that holds its value."""
    env, named = body.get("env"), body.get("env_from_secrets", {})
    if not isinstance(env, Mapping) or not isinstance(named, Mapping):
        return body
    references = {name: value for name, value in env.items() if isinstance(value, Mapping)}
    if not references:
        return body
    found = {}
    for name, value in references.items():
        if set(value) == {"secret"}:
            found[name] = value["secret"]
        else:
            problems.append(problem(f"{at}.env.{name}", None, "must be text, or {secret: NAME}"))
        if name in named:
            problems.append(problem(f"{at}.env_from_secrets.{name}", name, "must not be in env too"))
    plain = {name: value for name, value in env.items() if name not in references}
    return {**body, "env": plain, "env_from_secrets": {**named, **found}}


def _collect(cls: type[T], given: Mapping[Any, Any], at: str, problems: list[Problem]) -> T | None:
    try:
        return build(cls, given, at=at)
    except InvalidError as error:
        problems.extend(error.problems)
        return None


def _read_group(given: Mapping[Any, Any], at: str) -> GroupDocument:
    problems = [unknown_field(key, _GROUP_FIELDS, at=at) for key in given if key not in _GROUP_FIELDS]
    members: dict[str, WorkloadDocument] = {}
    listed = given.get("members")
    prefix = f"{at}." if at else ""
    outer = {key: value for key, value in given.items() if key in ("id", "member_changes")}
    envelope = _collect(_GroupEnvelope, {"id": None, **outer}, at, problems)
    if not isinstance(listed, list) or not listed:
        problems.append(problem(f"{prefix}members", listed, "must be a list with at least one workload"))
        listed = []
    if len(listed) > MAX_MEMBERS:
        problems.append(problem(f"{prefix}members", len(listed), f"must have at most {MAX_MEMBERS:,} entries"))
        listed = []
    for index, each in enumerate(listed):
        where = f"{prefix}members[{index}]"
        if isinstance(each, Mapping) and each.get("kind") == "group":
            problems.append(problem(f"{where}.kind", "group", "groups do not nest"))
            continue
        try:
            member = read_document(each, at=where)
        except InvalidError as error:
            problems.extend(error.problems)
            continue
        if isinstance(member, WorkloadDocument):
            if member.id in members:
                problems.append(problem(f"{where}.id", member.id, "the same id is given twice"))
            members[member.id] = member
    if envelope is None or problems:
        raise InvalidError(problems)
    return GroupDocument(id=envelope.id, members=tuple(members.values()), member_changes=envelope.member_changes)


@dataclass(frozen=True, slots=True)
class _Envelope:
    id: Identifier
    revision: Annotated[str, MaxLength(256)] = ""
    desired_state: Annotated[str, OneOf(("Running", "Stopped"))] = "Running"


@dataclass(frozen=True, slots=True)
class _GroupEnvelope:
    id: Identifier
    member_changes: MemberChanges | None = None


def group_schema() -> dict[str, Any]:
    """The JSON Schema of a group; its members are documents of workloads."""
    schema = json_schema(_GroupEnvelope, title="Shoal group")
    members = [{"$ref": f"{kind.value}.json"} for kind in WorkloadType]
    schema["properties"] = {
        "kind": {"const": "group"},
        **schema["properties"],
        "members": {"type": "array", "minItems": 1, "maxItems": MAX_MEMBERS, "items": {"anyOf": members}},
    }
    schema["required"] = ["kind", "id", "members"]
    return schema


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
    fields = properties[kind.value]["properties"]
    fields["restart"]["properties"]["policy"]["enum"].append(_NEVER)
    if "restart_policy" in fields:
        fields["restart_policy"]["enum"].append(_NEVER)
    if "env_from_secrets" in fields:
        _allow_references(fields)
    return schema


def _allow_references(fields: dict[str, Any]) -> None:
    """A value of `env` may be a reference to a secret instead."""
    env, named = fields["env"], fields["env_from_secrets"]
    reference = {
        "type": "object",
        "properties": {"secret": named["additionalProperties"]},
        "required": ["secret"],
        "additionalProperties": False,
    }
    env["additionalProperties"] = {"anyOf": [env["additionalProperties"], reference]}


def document_fields() -> tuple[str, ...]:
    """Every top-level field of a workload document."""
    return (*_DOCUMENT_FIELDS, *(f.name for f in dataclasses.fields(WorkloadSpec)))
