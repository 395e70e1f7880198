"""What a person says about a service: `service.yaml`, read, checked and written. Pure.

    kind: service
    id: web
    count: 3
    spread: node
    update: {parallel: 1, settle: 5s, deadline: 5m, on_failure: revert}
    workload:
      type: process
      process: {command: [python3, -m, http.server], ports: [{name: http}], readiness: {http: {port: http}}}

`workload` is a workload document without `id`. Read by `shoal service apply`, and again by the engine in the control
plane, which stores it as JSON in one way of writing.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import IDENTIFIER_RULE, is_identifier
from shoal.core.shape import Check, MaxLength, Pattern, Range, build, to_mapping, unknown_field
from shoal.model.documents import WorkloadDocument, read_document, write_document
from shoal.model.jobs import JOB_LABEL, MAX_JOB_ID
from shoal.model.workloads import Duration, WorkloadSpec

ENGINE = "service"
MAX_COUNT = 1000
NO_SPREAD = "none"
_OWN_FIELDS = ("kind", "id", "revision", "desired_state")
_FIELDS = ("count", "spread", "update", "workload")


class OnFailure(enum.StrEnum):
    """What happens when a new revision does not become healthy."""

    REVERT = "revert"  # the replicas that have it get the previous revision back
    PAUSE = "pause"  # nothing changes until a person decides


def _is_positive(value: timedelta) -> str | None:
    return None if value > timedelta(0) else "must be above 0"


@dataclass(frozen=True, slots=True)
class UpdatePolicy:
    """How a service gets from one revision to the next."""

    #: How many replicas may be unavailable at a time.
    parallel: Annotated[int, Range(1, MAX_COUNT)] = 1
    #: How long a replica must be ready before the next one is updated.
    settle: Duration = timedelta(seconds=5)
    #: How long a replica may take to become ready before the revision counts as failed.
    deadline: Annotated[Duration, Check(_is_positive)] = timedelta(minutes=5)
    on_failure: OnFailure = OnFailure.REVERT


@dataclass(frozen=True, slots=True)
class Outline:
    """Everything of a service but its workload."""

    count: Annotated[int, Range(0, MAX_COUNT)] = 1
    #: Replicas are placed apart by this: `node`, or the key of a label of nodes; `none` leaves it to the scheduler.
    spread: Annotated[str, MaxLength(128), Pattern(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "must be a label key")] = "node"
    update: UpdatePolicy = UpdatePolicy()


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A service as a person wants it."""

    outline: Outline
    workload: WorkloadSpec

    @property
    def template(self) -> dict[str, Any]:
        """What makes a revision: a change of it is rolled out."""
        return {"spread": self.outline.spread, "workload": write_workload(self.workload)}


@dataclass(frozen=True, slots=True)
class ServiceDocument:
    """What a `service.yaml` says: the id of a service and its spec."""

    id: str
    spec: ServiceSpec


def read_service_document(given: object) -> ServiceDocument:
    """Read one parsed `service.yaml`. Raises `InvalidError` with every problem in it."""
    if not isinstance(given, Mapping):
        raise InvalidError([problem("document", given, "must be a mapping")])
    problems: list[Problem] = []
    if given.get("kind", "service") != "service":
        rule = "must be service; `shoal apply` is for workloads and groups"
        raise InvalidError([problem("kind", given["kind"], rule)])
    found = given.get("id")
    if not isinstance(found, str) or not is_identifier(found) or len(found) > MAX_JOB_ID:
        problems.append(problem("id", found, f"is required: {IDENTIFIER_RULE.replace('128', str(MAX_JOB_ID))}"))
    spec = None
    try:
        spec = read_service({key: value for key, value in given.items() if key not in ("kind", "id")})
    except InvalidError as error:
        problems.extend(error.problems)
    if spec is None or problems:
        raise InvalidError(problems)
    return ServiceDocument(str(found), spec)


def write_service_document(document: ServiceDocument) -> dict[str, Any]:
    """The inverse of `read_service_document`."""
    outline = to_mapping(document.spec.outline)
    return {"kind": "service", "id": document.id, **outline, "workload": write_workload(document.spec.workload)}


def read_service(given: object, *, at: str = "") -> ServiceSpec:
    """Read a parsed document without `kind` and `id`. Raises `InvalidError` with every problem in it."""
    prefix = f"{at}." if at else ""
    if not isinstance(given, Mapping):
        raise InvalidError([problem(at or "service", given, "must be a mapping")])
    problems: list[Problem] = [unknown_field(key, _FIELDS, at=at) for key in given if key not in _FIELDS]
    outline = workload = None
    try:
        outline = build(Outline, {key: given[key] for key in ("count", "spread", "update") if key in given}, at=at)
    except InvalidError as error:
        problems.extend(error.problems)
    try:
        workload = read_workload(given.get("workload"), at=f"{prefix}workload")
    except InvalidError as error:
        problems.extend(error.problems)
    if outline is None or workload is None or problems:
        raise InvalidError(problems)
    return ServiceSpec(outline, workload)


def read_workload(given: object, *, at: str = "workload") -> WorkloadSpec:
    """Read the workload of a service: a document without `id`."""
    if not isinstance(given, Mapping):
        raise InvalidError([problem(at, given, "is required: the workload that every replica runs")])
    own = [
        problem(f"{at}.{key}", given[key], "must not be given: replicas get theirs")
        for key in _OWN_FIELDS
        if key in given
    ]
    labels = given.get("labels")
    if isinstance(labels, Mapping) and JOB_LABEL in labels:
        own.append(problem(f"{at}.labels.{JOB_LABEL}", labels[JOB_LABEL], "must not be given: it names the service"))
    if own:
        raise InvalidError(own)
    document = read_document({"id": "replica", **given}, at=at)
    if not isinstance(document, WorkloadDocument):
        raise InvalidError([problem(f"{at}.kind", None, "must be a workload")])
    if document.spec.at_most_one:
        raise InvalidError([problem(f"{at}.at_most_one", True, "must not be given: a service has replicas")])
    return document.spec


def write_workload(spec: WorkloadSpec) -> dict[str, Any]:
    """The inverse of `read_workload`."""
    written = write_document(WorkloadDocument("replica", spec))
    del written["id"]
    return written


def encode(spec: ServiceSpec) -> bytes:
    """A spec as it is stored. Equal specs have equal bytes."""
    plain = {**to_mapping(spec.outline), "workload": write_workload(spec.workload)}
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def decode(data: bytes) -> ServiceSpec:
    """Read a spec from JSON. Raises `InvalidError`."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidError([problem("spec", None, "must be JSON: the document of a service")]) from None
    return read_service(given)


def with_count(spec: ServiceSpec, count: int) -> ServiceSpec:
    """The same service with another number of replicas."""
    if not 0 <= count <= MAX_COUNT:
        raise InvalidError([problem("width", count, f"must be between 0 and {MAX_COUNT:,}")])
    return dataclasses.replace(spec, outline=dataclasses.replace(spec.outline, count=count))
