"""The protocol of process functions, as the operator that runs them sees it; makes one for each task.

`shoal.dataflow.api.process_function` has the class that users derive from. Called by
`shoal.dataflow.operators.users.process`.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, Protocol, runtime_checkable

from shoal.dataflow.errors import Location, refuse
from shoal.dataflow.operators.record import Record


@runtime_checkable
class KeyedFunction(Protocol):
    """Logic by key."""

    def open(self, context: Any) -> None:
        """Called once, before anything else: it names its state."""
        ...

    def process(self, record: Record, context: Any) -> Any:
        """A record."""
        ...

    def on_timer(self, time: int, context: Any) -> Any:
        """A timer of the current key is due."""
        ...

    def close(self) -> None:
        """Called once, at the end."""
        ...


HOW_TO_PROCESS = (
    "class Totals(ProcessFunction): def process(self, record, context): …, and .process(Totals); a function of a "
    "record alone is .records().map(f)"
)


def make_process(function: Any, *, at: Location | None = None) -> KeyedFunction:
    """A process function of a task's own. Raises `PlanError` for what makes none.

    The plan holds one object for all tasks; each task has a copy.
    """
    if isinstance(function, KeyedFunction) and not isinstance(function, type):
        return copy.copy(function)
    try:
        inspect.signature(function).bind()
    except TypeError:
        rule = "must be a ProcessFunction, its class, or a function without arguments that makes one"
        raise refuse("process", getattr(function, "__name__", function), rule, at=at, hint=HOW_TO_PROCESS) from None
    except ValueError:
        pass  # nothing says what it takes
    made = function()
    if not hasattr(made, "process"):
        rule = f"must make a ProcessFunction, and made a {type(made).__name__}"
        raise refuse("process", getattr(function, "__name__", function), rule, at=at, hint=HOW_TO_PROCESS)
    found: KeyedFunction = made
    return found
