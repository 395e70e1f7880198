"""Waits for workloads: `judge` says whether one is at its goal, `wait_all` waits for several and shows progress.

`judge` is pure. Called by `apply` and by the verbs of `workload` and `group`; calls `shoal.client`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli import output
from shoal.core.durations import format_duration
from shoal.core.tasks import Signal, task_scope
from shoal.model.phases import ContractStatus, WorkloadPhase
from shoal.model.views import WorkloadView
from shoal.model.workloads import DesiredState, FailureReason

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.core.clock import Clock

DEFAULT_TIMEOUT = 300.0
"""Seconds a wait lasts by default: an image or a model may have to be fetched first."""

GRACE = 2.0
"""Seconds without a node after which a workload is reported as one that no node can take."""


SETTLE = 2.0
"""Seconds that a workload has to stay ready, in the same run, before `shoal apply` calls it a success."""


class Goal(enum.Enum):
    """What a wait is for."""

    SETTLED = "settled"  # as desired: Running or Completed, or Stopped if that is desired
    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED = "stopped"
    GONE = "gone"


class Verdict(enum.Enum):
    """Whether a workload is at its goal."""

    DONE = "done"
    WAITING = "waiting"
    UNPLACED = "unplaced"  # no node can take it now
    FAILED = "failed"  # it will not get there by itself


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the words for it."""

    verdict: Verdict
    state: str
    detail: str = ""


_REACHED: Mapping[Goal, tuple[str, ...]] = {
    Goal.RUNNING: ("Running",),
    Goal.COMPLETED: ("Completed",),
    Goal.STOPPED: ("Stopped", "Completed"),
}


def judge(view: WorkloadView | None, goal: Goal) -> Judgement:
    """Whether a workload is at its goal, and why not."""
    if view is None:
        return (
            Judgement(Verdict.DONE, "Gone")
            if goal is Goal.GONE
            else Judgement(Verdict.FAILED, "Gone", "it was deleted")
        )
    shown = view.state or view.status
    where = f"on {view.assigned_node_id}" if view.assigned_node_id else ""
    if goal is Goal.GONE:
        return Judgement(Verdict.WAITING, shown, where)
    if view.status in _reached(goal, view):
        return Judgement(Verdict.DONE, view.status, where)
    if view.status in _HOPELESS:
        return Judgement(Verdict.FAILED, view.status, why(view) or _HOPELESS[view.status])
    if view.status == ContractStatus.STOPPED and goal in (Goal.RUNNING, Goal.COMPLETED):
        return Judgement(Verdict.FAILED, view.status, "it is meant to be stopped")
    placed = view.assigned_node_id and not view.rejections
    if view.status not in (ContractStatus.RUNNING, ContractStatus.STOPPING) and not placed:
        looked = view.reason is not None and view.reason.code == FailureReason.INSUFFICIENT_RESOURCES.value
        if not view.rejections and not looked:  # not tried yet
            return Judgement(Verdict.WAITING, shown, "waiting for a node")
        return Judgement(Verdict.UNPLACED, shown, "no node can take it now")
    return Judgement(Verdict.WAITING, shown, why(view) or where)


_HOPELESS: Mapping[str, str] = {
    "Failed": "no reason was given",
    "Deleting": "it is being deleted",
    "Completed": "it has completed",
}


def _reached(goal: Goal, view: WorkloadView) -> tuple[str, ...]:
    if goal is not Goal.SETTLED:
        return _REACHED[goal]
    return ("Stopped", "Completed") if view.desired_state == DesiredState.STOPPED else ("Running", "Completed")


def why(view: WorkloadView) -> str:
    """Why a workload is as it is, in a few words; empty when there is nothing to say."""
    if view.reason is not None and view.reason.message:
        return view.reason.message
    if view.failure_reason:
        return view.failure_reason
    has_exit = view.run is not None and view.run.exit is not None
    if has_exit and view.status not in (ContractStatus.RUNNING, ContractStatus.STOPPED):
        return f"the last run ended{_exit_words(view)}"
    return ""


def _exit_words(view: WorkloadView) -> str:
    ended = view.run.exit if view.run is not None else None
    if ended is None:
        return ""
    if ended.unknown:
        return " in an unknown way"
    memory = ", out of memory" if ended.out_of_memory else ""
    return (f" by signal {ended.signal}" if ended.signal else f" with exit code {ended.code}") + memory


# ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waited:
    """How a wait ended."""

    judgements: Mapping[str, Judgement]
    views: Mapping[str, WorkloadView | None]
    timeout: float

    def having(self, verdict: Verdict) -> list[str]:
        """The workloads of one verdict."""
        return [name for name, judgement in self.judgements.items() if judgement.verdict is verdict]

    @property
    def exit_code(self) -> int:
        """1 when one failed, else 4 when one is not there yet, else 3 when one has no place, else 0."""
        if self.having(Verdict.FAILED):
            return 1
        if self.having(Verdict.WAITING):
            return 4
        return 3 if self.having(Verdict.UNPLACED) else 0


async def wait_all(
    control: ControlPlane,
    goals: Mapping[str, Goal],
    *,
    clock: Clock,
    timeout: float = DEFAULT_TIMEOUT,
    grace: float | None = GRACE,
    settle: Mapping[str, float] | None = None,
) -> Waited:
    """Wait until every workload is at its goal, failed, or without a place for longer than `grace`.

    Without a grace the wait for a place lasts as long as the timeout, and counts as one that ran out of time. `settle`
    says for how many seconds a workload has to stay ready in one run.
    """
    latest: dict[str, WorkloadView | None] = {}
    errors: list[Exception] = []
    wake = Signal()

    async def look() -> None:
        try:
            async with contextlib.aclosing(control.follow(goals)) as changes:
                async for views in changes:
                    latest.update(views)
                    wake.set()
        except Exception as error:  # noqa: BLE001  raised by the wait below
            errors.append(error)
            wake.set()

    deadline = clock.monotonic() + timeout
    unplaced_since: dict[str, float] = {}
    settling = Settling(settle or {})
    with output.progress() as display:
        async with task_scope("wait") as scope:
            scope.start(look(), name="look")
            while True:
                if errors:
                    raise errors[0]
                now = clock.monotonic()
                judgements = {
                    name: settling.judge(name, latest[name], judge(latest[name], goal), now=now)
                    for name, goal in goals.items()
                    if name in latest
                }
                display.show([_row(name, judgement) for name, judgement in judgements.items()])
                unplaced_since = {
                    name: unplaced_since.get(name, now)
                    for name, judgement in judgements.items()
                    if judgement.verdict is Verdict.UNPLACED
                }
                ends = [since + grace for since in unplaced_since.values()] if grace is not None else []
                ends.extend(settling.ends)
                undecided = (
                    len(goals)
                    - len(judgements)
                    + sum(
                        judgement.verdict is Verdict.WAITING
                        or (
                            judgement.verdict is Verdict.UNPLACED
                            and (grace is None or unplaced_since[name] + grace > now)
                        )
                        for name, judgement in judgements.items()
                    )
                )
                if not undecided or now >= deadline:
                    return _waited(goals, judgements, latest, timeout, patient=grace is None)
                await wake.wait(max(0.001, min([deadline, *(end for end in ends if end > now)]) - now))


class Settling:
    """Which workloads are ready, since when, and in which run."""

    def __init__(self, settle: Mapping[str, float]) -> None:
        self._settle = settle
        self._since: dict[str, tuple[object, float]] = {}

    def judge(self, name: str, view: WorkloadView | None, judgement: Judgement, *, now: float) -> Judgement:
        """The same judgement; but a workload that is ready only counts once it has stayed so in one run."""
        settle = self._settle.get(name, 0.0)
        if view is None or judgement.verdict is not Verdict.DONE or judgement.state != WorkloadPhase.RUNNING:
            self._since.pop(name, None)
            return judgement
        run = (view.run.generation, view.run.restarts, view.run.started_at) if view.run is not None else None
        before, since = self._since.get(name, (run, now))
        if before != run:
            since = now
        self._since[name] = run, since
        if now >= since + settle:
            return judgement
        return Judgement(Verdict.WAITING, judgement.state, f"ready; has to stay so for {format_duration(settle)}")

    @property
    def ends(self) -> list[float]:
        """When those that are ready have stayed so for long enough."""
        return [since + self._settle.get(name, 0.0) for name, (_, since) in self._since.items()]


def _waited(
    goals: Mapping[str, Goal],
    judgements: Mapping[str, Judgement],
    views: Mapping[str, WorkloadView | None],
    timeout: float,
    *,
    patient: bool,
) -> Waited:
    final = {name: judgements.get(name, Judgement(Verdict.WAITING, "Unknown")) for name in goals}
    if patient:
        final = {
            name: Judgement(Verdict.WAITING, each.state, each.detail) if each.verdict is Verdict.UNPLACED else each
            for name, each in final.items()
        }
    return Waited(final, dict(views), timeout)


def _row(name: str, judgement: Judgement) -> output.ProgressRow:
    return output.ProgressRow(name, judgement.state, judgement.detail, done=judgement.verdict is Verdict.DONE)


def explain(waited: Waited) -> None:
    """Print what went wrong with each workload that is not at its goal."""
    for name in waited.having(Verdict.FAILED):
        view, judgement = waited.views.get(name), waited.judgements[name]
        last = view.run.last_output if view is not None and view.run is not None else ""
        output.fail_with(
            f"workload {name} is {judgement.state}: {judgement.detail}",
            output=last if judgement.state == WorkloadPhase.FAILED else "",
            hint=f"`shoal logs {name}` shows all of its output" if view is not None else "",
        )
    for name in waited.having(Verdict.WAITING):
        judgement = waited.judgements[name]
        detail = f" ({judgement.detail})" if judgement.detail else ""
        view, crashes = waited.views.get(name), judgement.state == WorkloadPhase.CRASH_LOOP
        last = view.run.last_output if crashes and view is not None and view.run is not None else ""
        output.fail_with(
            f"workload {name} is still {judgement.state}{detail} after {format_duration(waited.timeout)}",
            output=last,
            rejections=_rejections(view),
            hint=_WAYS_ON.get(judgement.state, "a longer --timeout waits for it").format(name=name)
            + "; nothing was undone: it continues",
        )
    for name in waited.having(Verdict.UNPLACED):
        view = waited.views.get(name)
        rejections = _rejections(view)
        because = f": {why(view)}" if view is not None and not rejections and why(view) else ""
        output.fail_with(
            f"workload {name} was accepted, but no node can take it{because}",
            rejections=rejections,
            hint=f"it stays Pending and starts as soon as {_what_is_missing(view)}",
        )


_WAYS_ON: Mapping[str, str] = {
    WorkloadPhase.CRASH_LOOP: "`shoal logs {name}` shows all of its output",
    WorkloadPhase.WAITING_FOR_SECRET: "`shoal secret set` sets the secret, and it starts then",
}
_ROOM = frozenset({"slots", "cpu", "memory", "disk", "slot_memory", "port", "refused"})
_MISSING: Mapping[str, str] = {
    "type": "there is a node whose agent can run {type} workloads",
    "label": "a node's labels meet its constraints",
    "storage_driver": "there is a node with its storage driver",
    "secrets": "there is a node whose agent supports secrets",
    "identity": "there is a node whose agent supports identities",
    "near": "the workloads that it must be near run",
    "apart": "there is a node without the workloads that it must be apart from",
    "cordoned": "a node takes work again (`shoal node uncordon`)",
    "draining": "a node takes work again (`shoal node uncordon`)",
    "not_ready": "a node is Ready",
}


def _what_is_missing(view: WorkloadView | None) -> str:
    """What has to happen so that a node can take it. Room on one node comes first."""
    codes = {each.code for each in view.rejections} if view is not None else set()
    if view is None or not codes:
        return "a node registers: start one with `shoal agent`"
    if codes & _ROOM:
        return "a node has room for it"
    unknown = "a node can do what it asks for"
    words = dict.fromkeys(_MISSING.get(code, unknown).format(type=view.type) for code in sorted(codes))
    return " or ".join(words)


def _rejections(view: WorkloadView | None) -> list[tuple[str, str]]:
    return [(each.node_id, each.message) for each in view.rejections] if view is not None else []
