"""Users' functions over single records: plain, `async`, and generators of both kinds; as `map`, `filter` or `flat_map`.

Records are made and put together column by column, a chunk of rows at a time. An asynchronous function runs to its end
for each record before the next one begins, so the order stays; its event loop is this operator's own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.logical import OnError
from shoal.dataflow.operators.base import Context, Output, StepOperator
from shoal.dataflow.operators.batches import emit_chunks
from shoal.dataflow.operators.policies import ErrorPolicy
from shoal.dataflow.operators.record import Record
from shoal.dataflow.operators.rows import (
    CHUNK,
    MISFITS,
    find_misfits,
    learn_batch,
    make_batch,
    make_records,
    visible_names,
)
from shoal.dataflow.operators.users.opaque import with_hidden

KINDS = ("map", "filter", "flat_map")


class MapRecords(StepOperator):
    """A function over records."""

    def __init__(
        self,
        *,
        function: Callable[[Any], Any],
        kind: str = "map",
        schema: Schema | None = None,
        policy: ErrorPolicy | None = None,
    ) -> None:
        if kind not in KINDS:
            raise InvalidError([problem("kind", kind, f"must be one of {', '.join(KINDS)}")])
        self._runner: asyncio.Runner | None = None
        self._function = function
        self._is_async = _is_async(function)
        # A generator emits any number of rows for one, however it was called.
        self._kind = "flat_map" if kind == "map" and _is_generator(function) else kind
        self._schema = schema
        self._is_declared = schema is not None
        self._policy = policy or ErrorPolicy()

    def open(self, context: Context) -> None:
        """Remember the sizes."""
        self._context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Call the function for each row."""
        names = visible_names(batch.schema)
        pieces: list[Batch] = []
        for start in range(0, batch.num_rows, CHUNK):
            chunk = batch.slice(start, CHUNK)
            piece = self._filter(chunk, names, out) if self._kind == "filter" else self._map(chunk, names, out)
            if piece is not None:
                pieces.append(piece)
        if pieces:
            emit_chunks(out, pa.concat_batches(pieces), self._context.max_rows)

    def statistics(self) -> Mapping[str, int]:
        """Rows that were left out."""
        return self._policy.statistics()

    def close(self) -> None:
        """End the event loop, when there is one."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _filter(self, chunk: Batch, names: list[str], out: Output) -> Batch | None:
        truths, raised = self._outcomes(make_records(chunk, names))
        self._reject(raised, chunk, out)
        kept = [row for row, truth in enumerate(truths) if truth]
        if len(kept) == chunk.num_rows:
            return chunk
        return chunk.take(pa.array(kept, pa.int64())) if kept else None

    def _map(self, chunk: Batch, names: list[str], out: Output) -> Batch | None:
        results, raised = self._outcomes(make_records(chunk, names))
        self._reject(raised, chunk, out)
        sources: Sequence[int] = range(chunk.num_rows)
        if raised:
            sources = [row for row in sources if row not in raised]
            results = [results[row] for row in sources]
        if self._kind == "flat_map":
            sources = [row for row, several in zip(sources, results, strict=True) for _ in several]
            results = [each for several in results for each in several]
        return self._batch(results, sources, chunk, out) if results else None

    def _reject(self, raised: Mapping[int, Exception], chunk: Batch, out: Output) -> None:
        for row, error in raised.items():
            self._policy.reject(chunk.slice(row, 1), error, out)

    def _outcomes(self, records: list[Record]) -> tuple[list[Any], dict[int, Exception]]:
        """What the function returned for each record, and what it raised for some."""
        if self._is_async:
            if self._runner is None:
                self._runner = asyncio.Runner()
            return self._runner.run(self._awaited_outcomes(records))
        function, several = self._function, _several if self._kind == "flat_map" else None
        results: list[Any] = []
        raised: dict[int, Exception] = {}
        for record in records:
            try:
                returned = function(record)
                results.append(returned if several is None else several(returned))
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                raised[len(results)] = error
                results.append(None)
                if self._policy.on_error is OnError.FAIL:
                    break  # the run ends here: functions may do something to the world
        return results, raised

    async def _awaited_outcomes(self, records: list[Record]) -> tuple[list[Any], dict[int, Exception]]:
        flat = self._kind == "flat_map"
        results: list[Any] = []
        raised: dict[int, Exception] = {}
        for record in records:
            try:
                returned = self._function(record)
                if inspect.isawaitable(returned):
                    returned = await returned
                if isinstance(returned, AsyncIterable):
                    returned = [each async for each in returned]
                results.append(_several(returned) if flat else returned)
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                raised[len(results)] = error
                results.append(None)
                if self._policy.on_error is OnError.FAIL:
                    break  # the run ends here: functions may do something to the world
        return results, raised

    def _batch(self, results: list[Any], sources: Sequence[int], chunk: Batch, out: Output) -> Batch | None:
        """Rows as a batch. What does not fit its columns is as if the function had raised for that row."""
        try:
            made, rows = self._made(results), sources
        except MISFITS as error:
            good = self._good_rows(results, sources, chunk, out, error)
            if not good:
                return None
            made = self._made([results[place] for place in good])
            rows = [sources[place] for place in good]
        if not self._is_declared:
            self._schema = made.schema
        if isinstance(rows, range):
            return with_hidden(made, chunk)
        return with_hidden(made, chunk.take(pa.array(np.array(rows, np.int64))))

    def _made(self, results: list[Any]) -> Batch:
        return make_batch(results, self._schema) if self._is_declared else learn_batch(results, self._schema)

    def _good_rows(
        self, results: list[Any], sources: Sequence[int], chunk: Batch, out: Output, error: Exception
    ) -> list[int]:
        bad = set()
        for place, misfit in find_misfits(results, self._schema):
            self._policy.reject(chunk.slice(sources[place], 1), misfit, out)
            bad.add(place)
        if not bad:  # each fits alone, and together they do not: without a schema they disagree
            raise self._policy.failure(error, chunk.slice(sources[0], 1)) from error
        return [place for place in range(len(results)) if place not in bad]


def try_record(function: Callable[[Any], Any], kind: str, record: Record) -> list[Any]:
    """The rows that a function returns for one record, taken as `MapRecords` takes them. Raises what it raises."""
    operator = MapRecords(function=function, kind=kind)
    try:
        results, raised = operator._outcomes([record])  # noqa: SLF001  this module's own
    finally:
        operator.close()
    for error in raised.values():
        raise error
    return results[0] if operator._kind == "flat_map" else results  # noqa: SLF001


def _is_generator(function: Callable[[Any], Any]) -> bool:
    target = _target(function)
    return inspect.isasyncgenfunction(target) or inspect.isgeneratorfunction(target)


def _is_async(function: Callable[[Any], Any]) -> bool:
    target = _target(function)
    return inspect.isasyncgenfunction(target) or inspect.iscoroutinefunction(target)


def _target(function: Callable[[Any], Any]) -> Any:
    """The function behind an object that can be called."""
    return function if inspect.isroutine(function) else type(function).__call__


def _several(returned: Any) -> list[Any]:
    """What a flat function returned for a row: rows."""
    if returned is None:
        return []
    if isinstance(returned, Mapping | str | bytes) or not isinstance(returned, Iterable):
        return [returned]
    return list(returned)
