"""What the engine of dataflows remembers in the row of a job: what is deployed, and where parts must not be. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from shoal.core.errors import InternalError
from shoal.core.ids import JobId, NodeId, WorkloadId
from shoal.model.jobs import JobState, JobView

#: For how long nothing of a job is placed on a node that its processes could not reach.
AVOID = timedelta(seconds=60)
COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Move:
    """A part of a job that was placed anew."""

    #: How often since the job was deployed.
    count: int
    #: The nodes on which it is not to be.
    avoid: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a dataflow job is."""

    #: The spec that is deployed, as it was stored; empty when nothing is to run.
    spec: str = ""
    #: Counts deployments: a new one has new processes.
    deployment: int = 0
    #: The request that it was deployed for. Its coordinator carries out later ones.
    deployed_for: int = 0
    #: The last request that was taken in.
    request: int = 0
    #: By the name of the part: `coordinator`, or the number of a task host.
    moves: Mapping[str, Move] = field(default_factory=dict)
    #: Until when nothing is placed on a node.
    avoided: Mapping[NodeId, datetime] = field(default_factory=dict)
    #: Where the last savepoint is.
    savepoint: str = ""
    #: The nodes on which no part of this deployment that did not move is to be.
    avoid: tuple[NodeId, ...] = ()
    #: Since when it is known that nobody hears of the coordinator.
    silent_since: datetime | None = None
    #: Whether people were told that checkpoints fail.
    lacks_checkpoints: bool = False

    def deployed(self, spec: bytes, request: int, now: datetime, *, anywhere: bool = False) -> Progress:
        """The same with a new deployment: away from nodes to avoid, unless it may be anywhere."""
        avoided = self._avoided(now)
        return dataclasses.replace(
            self,
            spec=spec.decode(),
            # A submit begins without progress: deployments of the job's earlier life have numbers below its request's.
            deployment=self.deployment + 1 if self.deployment else request,
            deployed_for=request,
            request=request,
            moves={},
            avoided=avoided,
            avoid=() if anywhere else tuple(sorted(avoided)),
            silent_since=None,
        )

    def ended(self, request: int) -> Progress:
        """The same with nothing that runs."""
        return dataclasses.replace(self, spec="", request=request, moves={}, avoid=(), silent_since=None)

    def moved(self, part: str, node: NodeId | None, now: datetime, *, anywhere: bool = False) -> Progress:
        """The same with one part placed anew: away from its node and others to avoid, unless it may be anywhere."""
        avoided = self._avoided(now)
        if node is not None and not anywhere:
            avoided[node] = now + AVOID
        count = self.moves[part].count + 1 if part in self.moves else 1
        move = Move(count, () if anywhere else tuple(sorted(avoided)))
        return dataclasses.replace(self, moves={**self.moves, part: move}, avoided=avoided)

    def _avoided(self, now: datetime) -> dict[NodeId, datetime]:
        return {each: until for each, until in self.avoided.items() if until > now}

    def avoid_of(self, part: str) -> tuple[NodeId, ...]:
        """The nodes on which a part must not be."""
        move = self.moves.get(part)
        return self.avoid if move is None else move.avoid

    def revision(self, part: str) -> str:
        """The revision of the workload of a part."""
        move = self.moves.get(part)
        return f"d{self.deployment}" if move is None else f"d{self.deployment}.{move.count}"


def workload_of(job_id: JobId, part: str) -> WorkloadId:
    """The workload of a part of a job: `coordinator`, or the number of a task host."""
    return WorkloadId(f"{job_id}-{part if part == COORDINATOR else f'host-{part}'}")


def went_back(view: JobView) -> bool:
    """Whether a job runs as it did before its last change: there was no room for the new layout."""
    return view.state is JobState.RUNNING and decode(view.progress).spec != view.spec.decode()


def encode(progress: Progress) -> bytes:
    """As it is stored."""
    plain = {
        "spec": progress.spec,
        "deployment": progress.deployment,
        "deployed_for": progress.deployed_for,
        "request": progress.request,
        "moves": {part: [each.count, list(each.avoid)] for part, each in progress.moves.items()},
        "avoided": {node: until.isoformat() for node, until in progress.avoided.items()},
        "savepoint": progress.savepoint,
        "lacks_checkpoints": progress.lacks_checkpoints,
        "avoid": list(progress.avoid),
        "silent_since": None if progress.silent_since is None else progress.silent_since.isoformat(),
    }
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def decode(data: bytes) -> Progress:
    """The inverse of `encode`. Nothing is an empty progress. Raises `InternalError` when it is broken."""
    if not data:
        return Progress()
    try:
        return _read(json.loads(data))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InternalError(f"the stored progress of a dataflow job cannot be read: {error!r}") from error


def _read(plain: Mapping[str, Any]) -> Progress:
    return Progress(
        spec=plain["spec"],
        deployment=plain["deployment"],
        deployed_for=plain["deployed_for"],
        request=plain["request"],
        moves={part: Move(count, tuple(avoid)) for part, (count, avoid) in plain["moves"].items()},
        avoided={NodeId(node): datetime.fromisoformat(until) for node, until in plain["avoided"].items()},
        savepoint=plain["savepoint"],
        lacks_checkpoints=plain.get("lacks_checkpoints", False),  # older rows have none of these three
        avoid=tuple(NodeId(node) for node in plain.get("avoid", ())),
        silent_since=None if plain.get("silent_since") is None else datetime.fromisoformat(plain["silent_since"]),
    )
