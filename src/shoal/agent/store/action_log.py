"""Stores the action log: each command that the agent got, and its outcome. Durable and bounded.

An action is written in the transaction that stores its command, so each answered command is in the log. It ends
`completed` or `failed`; one that a later command replaced ends `failed`. These functions run inside
`AgentDatabase.write` and `read`. Called by `shoal.agent.workloads` (intake, actor, executor) and `shoal.agent.service`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from shoal.core.clock import epoch_ms, from_epoch_ms
from shoal.core.errors import Problem, problem
from shoal.model.actions import OPEN, ActionStatus, ActionType

MAX_ACTIONS = 1000
MAX_ERROR = 2000

#: Pruned only when this many are too many, so that the scan is paid once in a while.
_SLACK = 50


_COLUMNS = "task_id, workload_id, action_type, status, error, generation, created_ms, started_ms, ended_ms"


@dataclass(frozen=True, slots=True)
class Action:
    """One entry of the log."""

    task_id: str
    workload_id: str
    type: ActionType
    status: ActionStatus
    generation: int
    created_at: datetime
    error: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN


@dataclass(frozen=True, slots=True)
class ActionQuery:
    """Which actions to list. Empty fields match everything; a limit of 0 means all."""

    workload_id: str = ""
    type: str = ""
    status: str = ""
    limit: int = 0
    newest_first: bool = False

    def problems(self) -> list[Problem]:
        """Every broken rule."""
        found = []
        if self.limit < 0:
            found.append(problem("limit", self.limit, "must not be negative; 0 means all"))
        if self.type and self.type not in set(ActionType):
            found.append(problem("action_type", self.type, f"must be one of {', '.join(ActionType)}"))
        if self.status and self.status not in set(ActionStatus):
            found.append(problem("status", self.status, f"must be one of {', '.join(ActionStatus)}"))
        return found


def put_actions(connection: sqlite3.Connection, actions: Iterable[Action]) -> None:
    """Write actions, new or changed, and keep the log within its bound."""
    rows = [
        (
            action.task_id,
            action.workload_id,
            action.type.value,
            action.status.value,
            action.error[:MAX_ERROR],
            action.generation,
            epoch_ms(action.created_at),
            _ms(action.started_at),
            _ms(action.ended_at),
        )
        for action in actions
    ]
    if not rows:
        return
    connection.executemany(
        "INSERT INTO actions (task_id, workload_id, action_type, status, error, generation, created_ms, started_ms,"
        " ended_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (task_id) DO UPDATE SET status = excluded.status, error = excluded.error,"
        " started_ms = excluded.started_ms, ended_ms = excluded.ended_ms",
        rows,
    )
    _prune(connection)


def list_actions(connection: sqlite3.Connection, query: ActionQuery) -> list[Action]:
    """Actions, oldest first or newest first."""
    clauses, values = [], []
    for column, value in (("workload_id", query.workload_id), ("action_type", query.type), ("status", query.status)):
        if value:
            clauses.append(f"{column} = ?")
            values.append(value)
    where = f" WHERE {' AND '.join(clauses)}" if clauses else ""
    order = "DESC" if query.newest_first else "ASC"
    # Built from constants; input is in the values.
    statement = f"SELECT {_COLUMNS} FROM actions{where} ORDER BY seq {order} LIMIT ?"  # noqa: S608
    rows = connection.execute(statement, [*values, query.limit or -1])
    return [_action(row) for row in rows]


def open_actions(connection: sqlite3.Connection) -> list[Action]:
    """Every action that has not ended, oldest first."""
    return [action for action in list_actions(connection, ActionQuery()) if action.is_open]


def _prune(connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT count(*) FROM actions").fetchone()[0] < MAX_ACTIONS + _SLACK:
        return
    # The last entry of a workload that is here is kept: it tells the outcome of the present command.
    connection.execute(
        "DELETE FROM actions WHERE seq NOT IN (SELECT seq FROM actions ORDER BY seq DESC LIMIT ?)"
        " AND seq NOT IN (SELECT max(actions.seq) FROM actions JOIN intents USING (workload_id) GROUP BY workload_id)"
        " AND status NOT IN ('pending', 'running')",
        (MAX_ACTIONS,),
    )


def _action(row: tuple[str, str, str, str, str, int, int, int, int]) -> Action:
    task_id, workload_id, kind, status, error, generation, created, started, ended = row
    return Action(
        task_id=task_id,
        workload_id=workload_id,
        type=ActionType(kind),
        status=ActionStatus(status),
        generation=generation,
        created_at=from_epoch_ms(created),
        error=error,
        started_at=from_epoch_ms(started) if started else None,
        ended_at=from_epoch_ms(ended) if ended else None,
    )


def _ms(moment: datetime | None) -> int:
    return epoch_ms(moment) if moment is not None else 0
