"""What happens when a user's function raises: fail, skip the row, or put it aside. The other rows go on in any case.

A function over batches says only that one of many rows was bad. It is called again with halves until the bad rows are
known, so one of them costs a number of calls that grows with the logarithm of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from shoal.core.errors import ShoalError
from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.logical import Location, OnError
from shoal.dataflow.operators.base import Output
from shoal.dataflow.operators.rows import visible_names

ERRORS = "errors"
ERROR = "error"
_MAX_SHOWN = 500

Result = TypeVar("Result")


#: What to do about rows that end a run.
LENIENT = "on_error='skip' leaves such rows out, on_error='side' gives them to the side output `errors`"


class FunctionError(ShoalError):
    """A user's function raised. What it raised is the cause; the facts say which function, where, and for which row."""


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

    def failure(self, error: Exception, row: Batch | None, *, among: int = 0) -> FunctionError:
        """The error that ends the run. Without a row it is that of `among` rows together."""
        where = f", from {self.at}" if self.at is not None else ""
        shown = "" if row is None else shown_row(row)
        names = (
            []
            if row is None
            else [f"{field.name}: {field.type}" for field in row.select(visible_names(row.schema)).schema]
        )
        return FunctionError(
            f"{self.label}{where} raised {_text(error)}{_which(shown, among)}",
            hint=LENIENT,
            function=self.label,
            at=self.at or "",
            row=shown,
            schema=", ".join(names),
        )

    def _apply_parts(
        self, function: Callable[[Batch], Result], batch: Batch, error: Exception, out: Output
    ) -> Iterator[tuple[Batch, Result]]:
        if self.on_error is OnError.FAIL:
            raise self.failure(error, first_bad(function, batch, error), among=batch.num_rows) from error
        if batch.num_rows <= 1:
            self.reject(batch, error, out)
            return
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            yield from self.apply(function, part, out)


def first_bad(function: Callable[[Batch], Any], batch: Batch, error: Exception) -> Batch | None:
    """The first row that the function raises the same kind of error for; None when it does so for no row alone.

    What else it raises for a few rows says nothing about the batch: some functions cannot take so few.
    """
    while batch.num_rows > 1:
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            try:
                function(part)
            except Exception as raised:  # noqa: BLE001 - whatever a user's function raises
                if type(raised) is type(error):
                    batch = part
                    break
        else:
            return None
    return batch if batch.num_rows else None


def _which(row: str, among: int) -> str:
    """For which row, as words behind an error."""
    if row:
        return f" for the row {row}"
    return f" for the batch as a whole, of {among} rows, and for no row of it alone" if among else ""


def _text(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:_MAX_SHOWN] if text else type(error).__name__


def shown_row(row: Batch, reads: Collection[str] = ()) -> str:
    """The first row of a batch for people. What was read of it comes first, for a long row is cut."""
    names = sorted(visible_names(row.schema), key=lambda name: name not in reads)
    values = row.slice(0, 1).select(names).to_pylist()
    return repr(values[0])[:_MAX_SHOWN] if values else ""
