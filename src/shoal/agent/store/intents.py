"""Stores what the agent was told to run and how far it is: the rows behind `Intent` and `Progress`.

A row holds the exact bytes of the spec, so a restarted agent needs no control plane. The highest generation of a
workload is kept when its row is deleted, so that a late command of an older generation is refused. The newest 10,000
such generations are kept.

These functions run inside `AgentDatabase.write` and `read`. Called by `shoal.agent.workloads` (intake, actor,
executor).
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shoal.agent.facts import Intent, Progress, RunOutcome
from shoal.core.clock import epoch_ms, from_epoch_ms
from shoal.core.ids import WorkloadId
from shoal.model.workloads import DesiredState, Exit, FailureReason, WorkloadType

MAX_TOMBSTONES = 10_000

_SLACK = 100


@dataclass(frozen=True, slots=True)
class StoredWorkload:
    """One row."""

    intent: Intent
    progress: Progress


def put_intent(connection: sqlite3.Connection, intent: Intent) -> None:
    """Store a command. The progress stays as it is, also that of the workload before it was deleted."""
    connection.execute(
        "INSERT INTO intents (workload_id, type, revision_id, desired, spec, spec_sha256, generation, born, attempt,"
        " deleting, created_ms, updated_ms, progress) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (workload_id) DO UPDATE SET type = excluded.type, revision_id = excluded.revision_id,"
        " desired = excluded.desired, spec = excluded.spec, spec_sha256 = excluded.spec_sha256,"
        " generation = excluded.generation, born = excluded.born, attempt = excluded.attempt,"
        " deleting = excluded.deleting,"
        " created_ms = excluded.created_ms, updated_ms = excluded.updated_ms",
        (
            intent.workload_id,
            intent.type.value,
            intent.revision_id,
            intent.desired.value,
            intent.spec_bytes,
            intent.spec_sha256,
            intent.generation,
            intent.born,
            intent.attempt,
            int(intent.deleting) + int(intent.keeps_data),
            epoch_ms(intent.created_at),
            epoch_ms(intent.updated_at),
            _write_progress(Progress(born=intent.born)),
        ),
    )
    raise_highest(connection, intent.workload_id, intent.generation)


def put_progress(connection: sqlite3.Connection, workload_id: WorkloadId, progress: Progress) -> None:
    """Store how far a workload is. Nothing happens when it is gone."""
    connection.execute(
        "UPDATE intents SET progress = ? WHERE workload_id = ?", (_write_progress(progress), workload_id)
    )


def remove_intent(connection: sqlite3.Connection, workload_id: WorkloadId) -> None:
    """Forget a workload, except its highest generation."""
    connection.execute("DELETE FROM intents WHERE workload_id = ?", (workload_id,))


def load_workloads(connection: sqlite3.Connection) -> list[StoredWorkload]:
    """Everything that is remembered, in order of creation."""
    rows = connection.execute(
        "SELECT workload_id, type, revision_id, desired, spec, spec_sha256, generation, born, attempt, deleting,"
        " created_ms, updated_ms, progress FROM intents ORDER BY created_ms, workload_id"
    )
    return [_stored(row) for row in rows]


def highest_generation(connection: sqlite3.Connection, workload_id: WorkloadId) -> int:
    """The highest generation that was ever accepted for a workload; 0 when none is known."""
    row = connection.execute("SELECT highest FROM generations WHERE workload_id = ?", (workload_id,)).fetchone()
    return int(row[0]) if row else 0


def raise_highest(connection: sqlite3.Connection, workload_id: WorkloadId, generation: int) -> None:
    """Note a generation, so that nothing older is accepted."""
    generation = max(generation, highest_generation(connection, workload_id))
    # Inserted anew each time: `seq` orders them by last use, and the oldest are dropped first.
    connection.execute("DELETE FROM generations WHERE workload_id = ?", (workload_id,))
    connection.execute("INSERT INTO generations (workload_id, highest) VALUES (?, ?)", (workload_id, generation))
    if connection.execute("SELECT count(*) FROM generations").fetchone()[0] < MAX_TOMBSTONES + _SLACK:
        return
    connection.execute(
        "DELETE FROM generations WHERE workload_id NOT IN (SELECT workload_id FROM intents)"
        " AND seq NOT IN (SELECT seq FROM generations WHERE workload_id NOT IN (SELECT workload_id FROM intents)"
        " ORDER BY seq DESC LIMIT ?)",
        (MAX_TOMBSTONES,),
    )


def get_meta(connection: sqlite3.Connection, key: str) -> str:
    """A stored fact about the agent itself; empty when there is none."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else ""


def put_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    """Store a fact about the agent itself."""
    connection.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


# ---------------------------------------------------------------------------------------------------------
# Rows


def _stored(row: tuple[Any, ...]) -> StoredWorkload:
    workload_id, kind, revision, desired, spec, sha256, generation, born, attempt, deleting, *rest = row
    created, updated, progress = rest
    intent = Intent(
        workload_id=WorkloadId(workload_id),
        type=WorkloadType(kind),
        revision_id=revision,
        desired=DesiredState(desired),
        spec_bytes=spec,
        spec_sha256=sha256,
        generation=generation,
        born=born,
        attempt=attempt,
        created_at=from_epoch_ms(created),
        updated_at=from_epoch_ms(updated),
        deleting=bool(deleting),
        keeps_data=deleting > 1,
    )
    return StoredWorkload(intent, _read_progress(progress))


def _write_progress(progress: Progress) -> str:
    ended = progress.exit
    return json.dumps(
        {
            "born": progress.born,
            "run_id": progress.run_id,
            "run_sha256": progress.run_sha256.hex(),
            "attempt": progress.attempt,
            "started_ms": _ms(progress.started_at),
            "ports": dict(progress.ports),
            "ready": progress.ready,
            "ended": progress.ended,
            "exit": None
            if ended is None
            else {
                "code": ended.code,
                "signal": ended.signal,
                "unknown": ended.unknown,
                "ended_ms": _ms(ended.ended_at),
                "out_of_memory": ended.out_of_memory,
            },
            "last_output": progress.last_output,
            "held": progress.held,
            "outcome": progress.outcome.value,
            "failure": progress.failure.value,
            "message": progress.message,
            "failures": progress.failures,
            "start_failures": progress.start_failures,
            "restarts": progress.restarts,
            "next_start_ms": _ms(progress.next_start_at),
            "failed_generation": progress.failed_generation,
        },
        separators=(",", ":"),
    )


def _read_progress(text: str) -> Progress:
    values = json.loads(text)
    ended = values["exit"]
    return Progress(
        born=values["born"],
        run_id=values["run_id"],
        run_sha256=bytes.fromhex(values["run_sha256"]),
        attempt=values["attempt"],
        started_at=_moment(values["started_ms"]),
        ports=values["ports"],
        ready=values["ready"],
        ended=values["ended"],
        exit=None
        if ended is None
        else Exit(
            code=ended["code"],
            signal=ended["signal"],
            unknown=ended["unknown"],
            ended_at=_moment(ended["ended_ms"]),
            out_of_memory=ended["out_of_memory"],
        ),
        last_output=values["last_output"],
        held=values["held"],
        outcome=RunOutcome(values["outcome"]),
        failure=FailureReason(values["failure"]),
        message=values["message"],
        failures=values["failures"],
        start_failures=values["start_failures"],
        restarts=values["restarts"],
        next_start_at=_moment(values["next_start_ms"]),
        failed_generation=values["failed_generation"],
    )


def _ms(moment: datetime | None) -> int | None:
    return epoch_ms(moment) if moment is not None else None


def _moment(value: int | None) -> datetime | None:
    return from_epoch_ms(value) if value is not None else None
