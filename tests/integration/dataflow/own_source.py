"""A user's own source with lines that it cannot read. In a module of its own, because task hosts import it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.dataflow.connectors.base import Fetched, Split
from shoal.dataflow.language.logical import OnError

SCHEMA = pa.schema([("number", pa.int64())])
LINES = (b"1", b"2", b"three", b"4")


@dataclass(frozen=True, slots=True)
class OwnSource:
    """Numbers out of lines, one of which is none."""

    on_error: OnError = OnError.FAIL
    is_bounded: bool = True
    label: str = "numbers"

    def find_schema(self) -> pa.Schema:
        return SCHEMA

    def find_splits(self) -> Sequence[Split]:
        return [Split("0")]

    def open_reader(self, splits: Sequence[Split], schema: pa.Schema, *, clock: Any) -> OwnReader:
        return OwnReader(splits)


class OwnReader:
    def __init__(self, splits: Sequence[Split]) -> None:
        self._left = list(splits)
        self._done: list[Split] = []

    def seek(self, split: Split, position: Any) -> None:
        """Nothing is left."""
        self._left.remove(split)
        self._done.append(split)

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        if not self._left:
            return None
        split = self._left.pop()
        self._done.append(split)
        good = [int(line) for line in LINES if line.isdigit()]
        bad = [(place, line) for place, line in enumerate(LINES) if not line.isdigit()]
        columns = {
            "offset": [place for place, _line in bad],
            "value": [line for _place, line in bad],
            "error": ["is no number" for _each in bad],
        }
        poison = pa.RecordBatch.from_pydict(columns)
        return Fetched(split, pa.RecordBatch.from_pydict({"number": good}, schema=SCHEMA), len(LINES), poison=poison)

    def ended(self) -> frozenset[Split]:
        return frozenset(self._done)

    def close(self) -> None:
        """There is nothing to let go of."""
