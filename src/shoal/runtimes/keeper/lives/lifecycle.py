"""Pure decisions on how a run ends: what to do now, and when to look again.

    running ──(asked to end)──▶ ending ──▶ main process gone ──▶ leftovers gone ──▶ finished
       └──────────(main process ends by itself)──────▶ │

A run is asked to end by `stop` or by its deadline. Everything it started ends with it: when its main process ends by
itself, what is left is killed at once; when it was asked to end, the rest of its process group has the rest of the
grace period, as the main process had. Called by `runs`, which supplies the facts and acts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

#: Between two kills of what is left of a run.
KILL_AGAIN = 0.05
#: Between two looks at what is left of a run that was asked to end.
LOOK_AGAIN = 0.2
#: A process that survives SIGKILL this long hangs in the kernel; the run is reported as ended without it.
PATIENCE = 5.0
#: At most this long before its deadline an at-most-one run is asked to end; at the deadline itself it is killed.
LONGEST_WARNING = 2.0


class Act(enum.Enum):
    """What to do."""

    WAIT = "wait"  # nothing, until the time given
    ASK = "ask"  # send the stop signal: the deadline is near
    KILL = "kill"  # kill everything that belongs to the run
    FINISH = "finish"  # nothing is left: tell everybody


@dataclass(frozen=True, slots=True)
class LifeStep:
    """One decision; `again_at` is when to decide anew if nothing happens before."""

    act: Act
    again_at: float | None = None


@dataclass(frozen=True, slots=True)
class Deadline:
    """When an at-most-one run must be gone, unless it is extended before."""

    at: float
    #: How long before that it is asked to end.
    warning: float

    @property
    def ask_at(self) -> float:
        """When it is asked to end."""
        return self.at - self.warning


def deadline_at(moment: float, *, grace: float, now: float) -> Deadline:
    """A deadline at a moment. The run is killed at the deadline, not a grace period later."""
    return Deadline(at=moment, warning=max(0.0, min(grace, LONGEST_WARNING, (moment - now) / 4)))


@dataclass(frozen=True, slots=True)
class Ending:
    """A run that was asked to end."""

    #: `stop` or `deadline`.
    by: str
    kill_at: float


@dataclass(frozen=True, slots=True)
class Life:
    """The facts about one run."""

    main_alive: bool
    deadline: Deadline | None = None
    ending: Ending | None = None
    #: Living processes of the run other than the main one; looked for only once that has ended.
    leftovers: int = 0
    #: How many of them are in the process group that got the stop signal.
    asked_leftovers: int = 0
    #: When the killing began.
    killing_since: float | None = None


def next_step(life: Life, now: float) -> LifeStep:
    """What to do about a run now."""
    return _while_main_runs(life, now) if life.main_alive else _after_main(life, now)


def kill_time(life: Life) -> float | None:
    """When everything that is left is killed: the end of the grace period, but never after the deadline."""
    if life.ending is None:
        return None
    return life.ending.kill_at if life.deadline is None else min(life.ending.kill_at, life.deadline.at)


def _while_main_runs(life: Life, now: float) -> LifeStep:
    kill_at = kill_time(life)
    if kill_at is not None:
        return LifeStep(Act.KILL, now + KILL_AGAIN) if now >= kill_at else LifeStep(Act.WAIT, kill_at)
    if life.deadline is None:
        return LifeStep(Act.WAIT)
    return LifeStep(Act.ASK) if now >= life.deadline.ask_at else LifeStep(Act.WAIT, life.deadline.ask_at)


def _after_main(life: Life, now: float) -> LifeStep:
    if not life.leftovers:
        return LifeStep(Act.FINISH)
    if life.killing_since is not None and now >= life.killing_since + PATIENCE:
        return LifeStep(Act.FINISH)
    kill_at = kill_time(life)
    if kill_at is not None and now < kill_at and life.asked_leftovers:
        return LifeStep(Act.WAIT, min(kill_at, now + LOOK_AGAIN))
    return LifeStep(Act.KILL, now + KILL_AGAIN)
