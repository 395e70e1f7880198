"""Records what happens while a fleet of real processes is cut, killed and stopped, and checks the promises.

A client records every request with its answer. A sampler records which processes really ran, and where. The end is
recorded once everything is healed. The checker does not know how the fleet works:

    acknowledged writes kept  a workload ends as its last acknowledged request said, or as a later one whose answer was
                              lost
    one owner                 no generation of a workload ever ran on two nodes
    at most one               no two processes of at-most-one work ever lived at the same moment
    no end without a request  a process ended only after a request for it, or after a newer generation was placed
    converged                 within the bound, exactly the desired state runs, and nothing else

Pure. Used by `tests/e2e/partition` and `tests/long/partition`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations


class Answer(enum.Enum):
    """The answer that a client got."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"  # and it certainly changed nothing
    LOST = "lost"  # no answer, or one that leaves open whether it was stored


@dataclass(frozen=True, slots=True)
class Wrote:
    """One request of a client. Requests for one workload never overlap. All times are of one monotonic clock."""

    workload_id: str
    #: None for a deletion.
    revision: str | None
    asked_at: float
    answered_at: float
    answer: Answer


@dataclass(frozen=True, slots=True)
class Ran:
    """One process of a workload: it certainly lived from `began` to `last_seen`, and was gone at `missed_at`."""

    workload_id: str
    node_id: str
    generation: int
    revision: str
    #: Identifies the process.
    process: str
    began: float
    last_seen: float
    #: None when it is alive at the end.
    missed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """One workload as the control plane shows it at the end."""

    status: str
    revision: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A whole history."""

    writes: Sequence[Wrote]
    runs: Sequence[Ran]
    #: At-most-one workloads.
    only_once: frozenset[str]
    #: What the control plane shows at the end.
    ends: Mapping[str, Ended]
    healed_at: float
    #: When everything was in its desired state; None if it never was.
    converged_at: float | None
    #: Workloads whose processes may also end because their lease or their machine was lost.
    may_end: frozenset[str] = field(default_factory=frozenset)


def find_faults(evidence: Evidence, *, bound: float) -> list[str]:
    """A sentence for each broken promise; empty if all were kept."""
    return [
        *_lost_writes(evidence),
        *_two_owners(evidence.runs),
        *_two_at_once(evidence),
        *_ends_without_a_request(evidence),
        *_not_converged(evidence, bound),
    ]


def possible_ends(writes: Iterable[Wrote], workload_id: str) -> set[str | None]:
    """What a workload may be at the end: a revision, or None for deleted."""
    possible: set[str | None] = {None}
    for write in writes:
        if write.workload_id != workload_id or write.answer is Answer.REFUSED:
            continue
        if write.answer is Answer.ACKNOWLEDGED:
            possible = {write.revision}
        else:
            possible.add(write.revision)
    return possible


def _lost_writes(evidence: Evidence) -> Iterator[str]:
    for workload_id in sorted({write.workload_id for write in evidence.writes}):
        possible = possible_ends(evidence.writes, workload_id)
        end = evidence.ends.get(workload_id)
        found = end.revision if end is not None else None
        if found not in possible:
            shown = " or ".join(sorted("gone" if each is None else each for each in possible))
            yield f"{workload_id} ended as {found or 'gone'}, and was acknowledged as {shown}"
    for workload_id in sorted(set(evidence.ends) - {write.workload_id for write in evidence.writes}):
        yield f"{workload_id} exists, and nobody requested it"


def _two_owners(runs: Iterable[Ran]) -> Iterator[str]:
    owners: dict[tuple[str, int], str] = {}
    for run in sorted(runs, key=lambda run: run.began):
        owner = owners.setdefault((run.workload_id, run.generation), run.node_id)
        if owner != run.node_id:
            yield f"generation {run.generation} of {run.workload_id} ran on {owner} and on {run.node_id}"


def _two_at_once(evidence: Evidence) -> Iterator[str]:
    for workload_id in sorted(evidence.only_once):
        runs = [run for run in evidence.runs if run.workload_id == workload_id]
        for one, other in combinations(runs, 2):
            overlap = min(one.last_seen, other.last_seen) - max(one.began, other.began)
            if one.process != other.process and overlap > 0:
                where = f"{one.node_id} (generation {one.generation}) and {other.node_id} ({other.generation})"
                yield f"{workload_id} is at-most-one work and ran on {where} at the same time, for {overlap:.2f} s"


def _ends_without_a_request(evidence: Evidence) -> Iterator[str]:
    for run in evidence.runs:
        if run.missed_at is None or run.workload_id in evidence.only_once | evidence.may_end:
            continue
        requested = _was_removed(evidence.writes, run, run.missed_at)
        replaced = any(
            other.workload_id == run.workload_id and other.generation > run.generation for other in evidence.runs
        )
        if not requested and not replaced:
            yield f"{run.workload_id} on {run.node_id} (generation {run.generation}) ended, and nobody requested that"


def _was_removed(writes: Iterable[Wrote], run: Ran, by: float) -> bool:
    """Whether a request after the one that this run follows from asked for something else."""
    removed = False
    for write in writes:
        if write.workload_id == run.workload_id and write.answer is not Answer.REFUSED and write.asked_at <= by:
            removed = write.revision != run.revision
    return removed


def _not_converged(evidence: Evidence, bound: float) -> Iterator[str]:
    if evidence.converged_at is None:
        yield f"it did not converge within {bound:.0f} s: {difference(evidence)}"
    elif evidence.converged_at - evidence.healed_at > bound:
        yield f"it converged only after {evidence.converged_at - evidence.healed_at:.1f} s, not within {bound:.0f} s"
    elif words := difference(evidence):
        yield f"it was said to have converged, and {words}"


def difference(evidence: Evidence) -> str:
    """What differs from what the control plane shows, or from the desired state."""
    alive: dict[str, list[Ran]] = {}
    for run in evidence.runs:
        if run.missed_at is None:
            alive.setdefault(run.workload_id, []).append(run)
    words = []
    for workload_id in sorted(set(alive) | set(evidence.ends)):
        end, runs = evidence.ends.get(workload_id), alive.get(workload_id, [])
        wanted = [] if end is None else [(end.node_id, end.revision)]
        if [(run.node_id, run.revision) for run in runs] != wanted:
            where = ", ".join(f"{run.revision} on {run.node_id}" for run in runs) or "nowhere"
            words.append(f"{workload_id} is {end.status if end else 'gone'} ({wanted}) and runs: {where}")
        elif end is not None and end.status != "Running":
            words.append(f"{workload_id} is {end.status}")
    return "; ".join(words)
