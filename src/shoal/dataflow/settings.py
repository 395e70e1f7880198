"""How a flow runs: sizes of batches and queues, checkpoints, workers. Frozen values with their rules checked.

Made by those who start a flow (`shoal.dataflow.api.apps.app`, `shoal.cli`); read by `shoal.dataflow.execution.engine`
and what it builds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InvalidError, Problem, problem

KIB = 1024
MIB = 1024 * KIB

#: The number of shares of the key space. Fixed for a job: its checkpoints are laid out by it.
KEY_GROUPS = 128
#: What follows the uid of a step in that of its part in front of an exchange.
PARTIAL = ".partial"
#: No job has more: every task keeps lists by key group, and every checkpoint of it is laid out by them.
MOST_KEY_GROUPS = 32_768
#: Rows, bytes and numbers of things that a setting may say, at most; and seconds: 100 years.
_MOST = 2**62
_MOST_SECONDS = 36_500 * 86_400

_STATES = ("memory", "rocks")
#: Threads that one task may have.
_MOST_WORKERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """Where checkpoints lie, and how often there is one."""

    #: A directory, through `shoal.core.files`. Every job has its own below it, by its name.
    directory: str
    #: Seconds from the beginning of one to the beginning of the next. Output of sinks that are exact waits for it.
    interval: float = 1.0
    #: Seconds of rest after one, however long it took.
    min_pause: float = 0.05
    #: Seconds after which one that is not complete is abandoned.
    timeout: float = 600.0
    #: How many complete ones are kept.
    keep: int = 3
    #: So many in a row may fail before the run does: those that tasks do not answer in time, and the last one of a run.
    #: One that cannot be written, as on a full disk, does not end a job: it goes on, and tries again.
    tolerated_failures: int = 3
    #: Go on from this one, or from the savepoint of this name; 0 is the beginning. None: from the newest when there is
    #: one.
    from_checkpoint: int | str | None = None
    #: Start although output that sinks have committed comes again.
    accept_duplicates: bool = False
    #: An operator of the plan that the checkpoint has no state for begins empty, instead of an error.
    allow_missing_state: bool = False
    #: State of an operator that the plan no longer has is dropped, instead of an error.
    allow_unknown_state: bool = False
    #: Bytes of output that may wait in memory for a checkpoint, over all sinks. At half of it a checkpoint is made
    #: before its time; at all of it sources pause until one has taken the output.
    write_ahead_bytes: int = 64 * MIB
    #: Sinks put their output out once, with the checkpoint. Without it: at once, and again after a crash.
    exactly_once: bool = True

    def __post_init__(self) -> None:
        _refuse(
            "checkpoint",
            [
                *_seconds("interval", self.interval, 0.01),
                *_seconds("min_pause", self.min_pause, 0),
                *_seconds("timeout", self.timeout, 0.1),
                *_whole("keep", self.keep, 1),
                *_whole("tolerated_failures", self.tolerated_failures, 0),
                *_text("directory", self.directory, "must be a path"),
                *([] if self.from_checkpoint is None else _origin("from_checkpoint", self.from_checkpoint)),
                *_truth("accept_duplicates", self.accept_duplicates),
                *_whole("write_ahead_bytes", self.write_ahead_bytes, 1),
                *_truth("allow_missing_state", self.allow_missing_state),
                *_truth("allow_unknown_state", self.allow_unknown_state),
                *_truth("exactly_once", self.exactly_once),
            ],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """How the tasks of a flow work."""

    #: Rows of a batch at most. Fewer when they are wide, or when there are no more just now.
    batch_rows: int = 65_536
    #: Bytes of a batch, about.
    batch_bytes: int = 4 * MIB
    #: Bytes that may wait for one task, shared by the channels to it. With the batches that are being worked on, and
    #: state, this bounds a flow's memory.
    queue_bytes: int = 16 * MIB
    #: Seconds from one small batch of an endless source to the next, at least: the rows between come together.
    pace: float = 0.002
    #: Seconds that a source waits for rows before it looks at the clock again.
    poll: float = 0.05
    #: Threads that share the kernels of each task, morsel by morsel, its own among them; 1 for that one alone. 0: as
    #: many as an agent gives to a workload (SHOAL_WORKERS: its slots, times `workers_per_slot`), 1 without an agent.
    morsel_workers: int = 0
    #: Rows of a morsel; 0: as many as fit into a core's cache.
    morsel_rows: int = 0
    #: Shares of the key space.
    key_groups: int = KEY_GROUPS
    #: Seconds between two looks for new splits of endless sources.
    discovery: float = 10.0
    #: Seconds of event time that one split of a source may be ahead of another that still has rows to read; 0 for any.
    #: Windows stay open for the slowest split, so this bounds their state while a source catches up.
    split_drift: float = 600.0
    #: Where state of process functions, windows and joins lies: in memory, or in RocksDB for more than fits there.
    state: str = "memory"
    #: A directory below which runs have one of their own each, for state that does not fit into memory; what runs that
    #: were killed left there is removed. An app's is in its `data_dir`; without one it is among the temporary files.
    scratch: str = ""
    #: None: nothing survives the process.
    checkpoint: CheckpointSettings | None = None

    def __post_init__(self) -> None:
        _refuse(
            "settings",
            [
                *_whole("batch_rows", self.batch_rows, 1),
                *_whole("batch_bytes", self.batch_bytes, 1),
                *_whole("queue_bytes", self.queue_bytes, 1),
                *_seconds("pace", self.pace, 0),
                *_seconds("poll", self.poll, 0.001),
                *_whole("morsel_workers", self.morsel_workers, 0, _MOST_WORKERS),
                *_whole("morsel_rows", self.morsel_rows, 0),
                *_whole("key_groups", self.key_groups, 1, MOST_KEY_GROUPS),
                *_seconds("discovery", self.discovery, 0.001),
                *_seconds("split_drift", self.split_drift, 0),
                *([] if self.state in _STATES else [problem("state", self.state, "must be memory or rocks")]),
                *([] if isinstance(self.scratch, str) else [problem("scratch", self.scratch, "must be a path")]),
                *_checkpoint(self.checkpoint),
            ],
        )


def _whole(field: str, value: Any, least: int, most: int = _MOST) -> list[Problem]:
    if not isinstance(value, int) or isinstance(value, bool):
        return [problem(field, value, f"must be a whole number of at least {least}")]
    if value > most:
        return [problem(field, value, f"must be at most {most}")]
    return [] if value >= least else [problem(field, value, f"must be at least {least}")]


def _origin(field: str, value: Any) -> list[Problem]:
    """A checkpoint, or the name of one."""
    return _text(field, value, "must be a number or a name") if isinstance(value, str) else _whole(field, value, 0)


def _seconds(field: str, value: Any, least: float) -> list[Problem]:
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        return [problem(field, value, f"must be a number of seconds of at least {least:g}")]
    if value > _MOST_SECONDS:
        return [problem(field, value, f"must be at most {_MOST_SECONDS} seconds, which are 100 years")]
    return [] if value >= least else [problem(field, value, f"must be at least {least:g}")]


def _text(field: str, value: Any, rule: str) -> list[Problem]:
    return [] if isinstance(value, str) and value else [problem(field, value, rule)]


def _truth(field: str, value: Any) -> list[Problem]:
    return [] if isinstance(value, bool) else [problem(field, value, "must be True or False")]


def _checkpoint(value: Any) -> list[Problem]:
    known = value is None or isinstance(value, CheckpointSettings)
    return [] if known else [problem("checkpoint", value, "must be CheckpointSettings, or None for none")]


def _refuse(what: str, problems: Iterable[Problem]) -> None:
    found = list(problems)
    if found:
        raise InvalidError(found, what=what)
