"""What happens when a user's function raises: fail, skip the row, or put it aside. The other rows go on in any case.

A function over batches says only that one of many rows was bad. It is called again with halves until the bad rows are
known, so one of them costs a number of calls that grows with the logarithm of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from shoal.dataflow.errors import FunctionError, Location
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.logical import OnError
from shoal.dataflow.operators.base import Output
from shoal.dataflow.operators.rows import visible_names

ERRORS = "errors"
ERROR = "error"
#: Characters that are shown of a row, of one of its values, and of a schema; and rows that are shown.
_MAX_SHOWN = 500
_MAX_VALUE = 120
_MAX_SCHEMA = 2_000
_MOST_ROWS = 3

Result = TypeVar("Result")


#: What to do about rows that end a run.
LENIENT = "on_error='skip' leaves such rows out, on_error='side' gives them to the side output `errors`"


@dataclass(slots=True)
class ErrorPolicy:
    """The policy of one function, and what it has come to."""

    on_error: OnError = OnError.FAIL
    label: str = "function"
    at: Location | None = None
    skipped: int = 0
    put_aside: int = 0

    def statistics(self) -> dict[str, int]:
        """How many rows were left out."""
        return {"skipped": self.skipped, "put_aside": self.put_aside}

    def apply(self, function: Callable[[Batch], Result], batch: Batch, out: Output) -> Iterator[tuple[Batch, Result]]:
        """Call a function with a batch; with parts of it when it raises. Gives the rows that went through, in order."""
        try:
            result = function(batch)
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            yield from self._apply_parts(function, batch, error, out)
        else:
            yield batch, result

    def reject(self, row: Batch, error: Exception, out: Output) -> None:
        """A row that cannot be taken: a batch of one."""
        if self.on_error is OnError.FAIL:
            raise self.failure(error, row) from error
        if self.on_error is OnError.SKIP:
            self.skipped += row.num_rows
            return
        self.put_aside += row.num_rows
        text = _text(error)
        out.emit_side(ERRORS, row.append_column(ERROR, pa.array([text] * row.num_rows, pa.string())))

    def failure(self, error: Exception, bad: Batch | None, *, among: int = 0) -> FunctionError:
        """The error that ends the run, with some bad rows. Without any it is that of `among` rows together."""
        where = f", from {self.at}" if self.at is not None else ""
        shown = () if bad is None else shown_rows(bad)
        return FunctionError(
            f"{self.label}{where} raised {_text(error)}{_which(shown[0] if shown else '', among)}",
            hint=LENIENT,
            function=self.label,
            at=self.at or "",
            row=shown[0] if shown else "",
            rows="\n".join(shown),
            schema="" if bad is None else shown_schema(bad.schema),
        )

    def _apply_parts(
        self, function: Callable[[Batch], Result], batch: Batch, error: Exception, out: Output
    ) -> Iterator[tuple[Batch, Result]]:
        if self.on_error is OnError.FAIL:
            raise self.failure(error, bad_rows(function, batch, error), among=batch.num_rows) from error
        if batch.num_rows <= 1:
            self.reject(batch, error, out)
            return
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            yield from self.apply(function, part, out)


def bad_rows(function: Callable[[Batch], Any], batch: Batch, error: Exception) -> Batch | None:
    """The first few rows that the function raises the same kind of error for; None when it does so for no row alone."""
    found: list[Batch] = []
    while len(found) < _MOST_ROWS:
        place = _first_bad(function, batch, error)
        if place is None:
            break
        found.append(batch.slice(place, 1))
        batch = batch.slice(place + 1)
        if not batch.num_rows or _raised(function, batch, error) is None:
            break
    return pa.concat_batches(found) if found else None


def _first_bad(function: Callable[[Batch], Any], batch: Batch, error: Exception) -> int | None:
    """The place of the first row of a batch that the function raises the same kind of error for, alone.

    What else it raises for a few rows says nothing about the batch: some functions cannot take so few.
    """
    begin, rows = 0, batch.num_rows
    while rows > 1:
        half = rows // 2
        for start, size in ((begin, half), (begin + half, rows - half)):
            if _raised(function, batch.slice(start, size), error) is not None:
                begin, rows = start, size
                break
        else:
            return None
    return begin if rows else None


def _raised(function: Callable[[Batch], Any], batch: Batch, error: Exception) -> Exception | None:
    """What a function raises for a batch, if it is of the same kind."""
    try:
        function(batch)
    except Exception as raised:  # noqa: BLE001 - whatever a user's function raises
        return raised if type(raised) is type(error) else None
    return None


def _which(row: str, among: int) -> str:
    """For which row, as words behind an error."""
    if row:
        return f" for the row {row}"
    return f" for the batch as a whole, of {among} rows, and for no row of it alone" if among else ""


def _text(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:_MAX_SHOWN] if text else type(error).__name__


def shown_rows(batch: Batch, reads: Collection[str] = ()) -> tuple[str, ...]:
    """The first few rows of a batch for people. What was read of them comes first, for a long row is cut."""
    names = sorted(visible_names(batch.schema), key=lambda name: name not in reads)
    columns = {name: batch.column(name) for name in names}
    return tuple(
        _shorten(f"{{{', '.join(f'{name!r}: {_shown(column, row)}' for name, column in columns.items())}}}", _MAX_SHOWN)
        for row in range(min(batch.num_rows, _MOST_ROWS))
    )


def shown_schema(schema: Schema) -> str:
    """The columns of a schema and their types for people."""
    return _shorten(", ".join(f"{name}: {schema.field(name).type}" for name in visible_names(schema)), _MAX_SCHEMA)


def _shown(column: Any, row: int) -> str:
    try:
        return _shorten(repr(column[row].as_py()), _MAX_VALUE)
    except Exception as error:  # noqa: BLE001 - a time that Python has not, a type of somebody else's
        return f"<{type(error).__name__}>"


def _shorten(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"
