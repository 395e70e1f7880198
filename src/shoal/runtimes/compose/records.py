"""What is stored of a compose run. Owned by `shoal.runtimes.compose.runtime`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.clock import from_epoch_ms
from shoal.core.ids import RunId, WorkloadId
from shoal.runtimes.base import RunInfo, RunPhase
from shoal.runtimes.compose.members import Member
from shoal.runtimes.container.records import RunEnd


@dataclass(frozen=True, slots=True)
class ServiceMarks:
    """What one service was made with: kept while its definition does not change, so an update leaves it alone."""

    digest: str
    labels: Mapping[str, str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ComposeRun:
    """One run, as it is stored."""

    run_id: RunId
    workload_id: WorkloadId
    project: str
    #: The directory with the project's files; empty when that is not known.
    folder: str
    started_at_ms: int
    stop_signal: str
    grace: float
    members: tuple[Member, ...]
    #: The services, in the order in which they are stopped.
    waves: tuple[tuple[str, ...], ...]
    marks: Mapping[str, ServiceMarks] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    services: Mapping[str, str] = field(default_factory=dict)
    #: Of services that have one of their own.
    stop_signals: Mapping[str, str] = field(default_factory=dict)
    end: RunEnd | None = None
    ended_by: str = ""
    last_output: str = ""
    at_most_one: bool = False
    #: An update of it has begun. Set in the record of a run that is not being updated: that was cut off.
    updating: bool = False
    #: The name under which `previous` has stored what it was started with.
    previous: str = ""

    @property
    def service_names(self) -> tuple[str, ...]:
        """Every service of the project."""
        return tuple(name for wave in self.waves for name in wave)

    @property
    def info(self) -> RunInfo:
        """What the agent is told of it."""
        end = self.end
        return RunInfo(
            run_id=self.run_id,
            workload_id=self.workload_id,
            phase=RunPhase.RUNNING if end is None else RunPhase.ENDED,
            started_at=from_epoch_ms(self.started_at_ms),
            pid=self.members[0].pid if self.members else 0,
            exit=None if end is None else end.exit,
            ports=self.ports,
            last_output=self.last_output,
            ended_by=self.ended_by if end is not None else "",
            services=self.services,
        )


def run_from_json(text: bytes) -> ComposeRun:
    """Read a stored run. Raises ValueError for anything else."""
    try:
        fields = json.loads(text)
        end = fields.pop("end", None)
        run = ComposeRun(
            **{
                **fields,
                "members": tuple(Member(**each) for each in fields["members"]),
                "waves": tuple(tuple(str(name) for name in wave) for wave in fields["waves"]),
                "marks": {str(name): ServiceMarks(**each) for name, each in fields["marks"].items()},
                "ports": {str(name): int(port) for name, port in fields["ports"].items()},
                "services": {str(name): str(word) for name, word in fields["services"].items()},
                "end": RunEnd(**end) if end else None,
            }
        )
    except (TypeError, AttributeError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"not a compose run: {error}") from error
    if not isinstance(run.run_id, str) or not isinstance(run.project, str):
        raise ValueError("not a compose run: its ids are not text")  # noqa: TRY004 as all damage is
    return run
