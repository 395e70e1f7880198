"""What the processes of a job tell the control plane, as JSON: about every second from the coordinator. Pure.

Written by `shoal.dataflow.execution.remote`, carried by `shoal.v1.Jobs.Report`, read by the engine, by other processes
of the job (which find the coordinator's address in it) and by `shoal job graph`.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from shoal.core.errors import InvalidError, problem
from shoal.core.shape import MaxLength, Range, build, to_mapping
from shoal.dataflow.fleet.spec import MOST_WIDTH

T = TypeVar("T")

#: The most bytes that the control plane takes of one report.
MOST_BYTES = 64 * 1024
#: The most steps that one report tells of.
MOST_STEPS = 200
_COUNT = Range(0, 2**62)
_SECONDS = Range(0, 2**40)
#: The most pairs of task hosts that one report tells of.
MOST_PAIRS = 64
Text = Annotated[str, MaxLength(4000)]
Part = Annotated[str, MaxLength(16)]


class Phase(enum.StrEnum):
    """Where a coordinator is."""

    STARTING = "starting"  # it waits for task hosts, or builds
    RUNNING = "running"
    RECOVERING = "recovering"  # a task host was lost, and tasks go back to the last checkpoint
    STOPPED = "stopped"  # as a request asked for: all of it is in the last checkpoint
    FINISHED = "finished"  # its input has come to an end
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StepReport:
    """What the tasks of a step have done."""

    uid: Annotated[str, MaxLength(512)]
    name: Annotated[str, MaxLength(512)] = ""
    #: How many tasks it has, and the steps that it reads.
    width: Annotated[int, _COUNT] = 0
    inputs: Annotated[tuple[Annotated[str, MaxLength(512)], ...], MaxLength(200)] = ()
    rows: Annotated[int, _COUNT] = 0
    #: Rows of the last seconds, by second.
    rate: Annotated[float, Range(0, 2**62)] = 0.0
    #: Bytes that wait in front of its tasks, as a share of what may wait.
    backpressure: Annotated[float, Range(0, 2**20)] = 0.0
    #: Event time, in microseconds; None before there is one.
    watermark: int | None = None


@dataclass(frozen=True, slots=True)
class CoordinatorReport:
    """What a coordinator tells."""

    phase: Phase
    #: The generation of its workload: one that is replaced by it has a lower one.
    term: Annotated[int, _COUNT] = 0
    #: Where task hosts reach it.
    address: Annotated[str, MaxLength(512)] = ""
    node: Annotated[str, MaxLength(128)] = ""
    #: Where the series of all tasks are served, as a URL.
    metrics: Annotated[str, MaxLength(512)] = ""
    epoch: Annotated[int, _COUNT] = 0
    #: The last request that it has carried out: a savepoint, or a stop.
    request: Annotated[int, _COUNT] = 0
    savepoint: Annotated[str, MaxLength(4096)] = ""
    #: Why there is no savepoint for that request; empty when there is.
    refusal: Text = ""
    #: The newest complete checkpoint.
    checkpoint: Annotated[int, _COUNT] = 0
    #: Seconds since that was complete; None without checkpoints, and while tasks go back to one.
    checkpoint_age: Annotated[float, _SECONDS] | None = None
    #: How many failed since then, and why the last of them did, such as a full disk. The job goes on.
    failed_checkpoints: Annotated[int, _COUNT] = 0
    checkpoint_error: Text = ""
    recoveries: Annotated[int, _COUNT] = 0
    #: Task hosts that are not connected, and for how many seconds.
    missing: Annotated[Mapping[str, Annotated[float, _SECONDS]], MaxLength(MOST_WIDTH)] = field(default_factory=dict)
    #: Pairs of task hosts that are connected here and do not reach each other.
    unreachable: Annotated[tuple[Annotated[tuple[Part, ...], MaxLength(2, 2)], ...], MaxLength(MOST_PAIRS)] = ()
    message: Text = ""
    steps: Annotated[tuple[StepReport, ...], MaxLength(MOST_STEPS)] = ()


@dataclass(frozen=True, slots=True)
class HostReport:
    """What a task host tells: that it misses its coordinator."""

    number: Annotated[int, Range(0, MOST_WIDTH)]
    #: The term of the coordinator that it misses, the node of that, and for how many seconds.
    term: Annotated[int, _COUNT] = 0
    node: Annotated[str, MaxLength(128)] = ""
    misses: Annotated[float, _SECONDS] = 0.0


def encode(report: CoordinatorReport | HostReport) -> bytes:
    """A report as it travels. Steps are left out where it would be too long."""
    plain = to_mapping(report)
    content = json.dumps(plain, separators=(",", ":")).encode()
    if len(content) > MOST_BYTES:
        content = json.dumps(plain | {"steps": []}, separators=(",", ":")).encode()
    return content


def decode_coordinator(content: bytes) -> CoordinatorReport:
    """The report of a coordinator. Raises `InvalidError`."""
    return _decode(CoordinatorReport, content)


def decode_host(content: bytes) -> HostReport:
    """The report of a task host. Raises `InvalidError`."""
    return _decode(HostReport, content)


def _decode(kind: type[T], content: bytes) -> T:
    try:
        given = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidError([problem("report", None, "must be JSON")]) from None
    return build(kind, given, what="report")
