"""The words of an agent's list of actions, by the names of persys.agent.v1.

Written by `shoal.agent.store.action_log`, read from foreign agents by `shoal.control.agents.calls`.
"""

from __future__ import annotations

import enum


class ActionType(enum.StrEnum):
    """What was asked."""

    APPLY = "apply_workload"
    DELETE = "delete_workload"
    RECONCILE = "reconcile"  # a word of the contract; what our agent does by itself is no command and not listed


class ActionStatus(enum.StrEnum):
    """How far it is."""

    PENDING = "pending"  # stored
    RUNNING = "running"  # being carried out
    COMPLETED = "completed"
    FAILED = "failed"


OPEN = (ActionStatus.PENDING, ActionStatus.RUNNING)
