"""What a run raises when something in it fails.

    ShoalError
    ├── OperatorFailedError   a step raised: which one, the user's line, and what it raised
    ├── ExpressionError       an expression cannot be worked out for the values that came
    ├── PoisonError           a source brought rows that cannot be read, and the policy is to fail
    ├── CheckpointError       checkpoints could not be made, or none of those that are there can be used
    └── RemoteError           an error that is not one of Shoal's, in another process: its type name and its text

Raised by `shoal.dataflow.execution.task`, `shoal.dataflow.execution.sources` and `shoal.dataflow.checkpoint`.
"""

from __future__ import annotations

from shoal.core.errors import ShoalError
from shoal.dataflow.language.logical import Location


class OperatorFailedError(ShoalError):
    """A step of a flow raised. What it raised is the cause (`__cause__`); `at` is the line that asked for the step."""

    def __init__(self, operator: str, cause: BaseException, *, at: Location | None = None, subtask: int = 0) -> None:
        where = f", from {at}" if at is not None else ""
        super().__init__(
            f"{operator} (task {subtask}{where}): {describe(cause)}",
            hint=getattr(cause, "hint", ""),
            operator=operator,
            subtask=subtask,
            at=at or "",
        )
        self.operator = operator
        self.at = at


class ExpressionError(ShoalError):
    """An expression that fits its columns cannot be worked out for the values that came: it overflows, divides by 0."""


class PoisonError(ShoalError):
    """Rows that cannot be read."""


class CheckpointError(ShoalError):
    """A checkpoint could not be made or used."""


class RemoteError(ShoalError):
    """What something other than Shoal raised in a task host: a user's function, Arrow, the operating system.

    Attributes:
        type_name: the full name of its type.
        is_system: whether Arrow or the operating system raised it.
    """

    def __init__(self, type_name: str, text: str, *, traceback: str = "", is_system: bool = False) -> None:
        words = ": ".join(each for each in (type_name, text) if each)
        super().__init__(words, type=type_name)
        self.type_name = type_name
        self.is_system = is_system
        if traceback:
            self.add_note(f"In the task host:\n{traceback}")


def describe(cause: BaseException) -> str:
    """An error in one line: our own as they are, others with their type."""
    if isinstance(cause, ShoalError):
        return cause.message
    text = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__
