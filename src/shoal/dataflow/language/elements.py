"""What flows between operators besides batches, and the columns that the engine adds to a user's own.

A batch is a `pyarrow.RecordBatch`. Between two batches of one channel may stand a watermark, a barrier or the end; all
of them keep their place in the order. Event times are int64 microseconds since 1970 everywhere inside the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

#: Event time of a row, int64 microseconds. There where something downstream needs it and nowhere else.
TIME: Final = "__time"
#: The trace that a row belongs to, nullable binary. There when the source has it.
TRACE: Final = "__trace"
#: The key group of a row, int32. There between the two halves of an aggregate, where the first has it by its keys.
GROUP: Final = "__group"
#: What a changing result does to the one before: +I -U +U -D. There on streams of changes, and seen by users as `op`.
CHANGE: Final = "op"

#: The engine's own columns: user functions never see them, and names that begin so are refused.
HIDDEN_PREFIX: Final = "__"
#: The columns of a result that have the bounds of its window.
WINDOW_START, WINDOW_END = "window_start", "window_end"
HIDDEN: Final = (TIME, TRACE)

#: Before every event, and after every event.
START_OF_TIME: Final = -(2**63)
END_OF_TIME: Final = 2**63 - 1

#: An Arrow record batch. The library has no types of its own, so this says what is meant.
Batch: TypeAlias = Any
#: An Arrow schema.
Schema: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Watermark:
    """No row with an earlier event time is expected on this channel any more. Rows may come all the same: late ones."""

    time: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """Everything before it belongs to this checkpoint, everything after it does not."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class End:
    """Nothing comes after it on this channel."""


Element: TypeAlias = Batch | Watermark | Barrier | End
