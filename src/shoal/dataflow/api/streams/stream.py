"""Streams as users write them. A `Stream` is a place in a plan; every method adds one step to it and runs nothing.

    Stream.from_kafka("orders").filter(col("amount") > 5).group_by("user").window(tumbling(seconds=60)).sum("amount")

Its methods come from `reading` (sources), `transforms`, `joins`, `grouping` (windows), `writing` (sinks) and
`terminals` (what runs it at once); keys are here. Made by users, and by `shoal.dataflow.api.apps.app` while a dataflow
is defined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shoal.core.errors import problem
from shoal.dataflow.api.process_function import is_maker
from shoal.dataflow.api.streams.grouping import Cuttable, GroupedStream, WindowedStream, all_columns
from shoal.dataflow.api.streams.joins import Joins
from shoal.dataflow.api.streams.reading import Reading, make_policy, make_schema
from shoal.dataflow.api.streams.steps import check_parallelism
from shoal.dataflow.api.streams.terminals import Terminals
from shoal.dataflow.api.streams.transforms import Transforms, column_names
from shoal.dataflow.api.streams.writing import Writing
from shoal.dataflow.errors import Location, PlanError, refuse
from shoal.dataflow.language.elements import Schema
from shoal.dataflow.language.expressions.trees import Expression
from shoal.dataflow.language.functions import find_location, label_of, make_ref
from shoal.dataflow.language.lengths import Span, micros
from shoal.dataflow.language.logical import (
    Distinct,
    FunctionRef,
    KeyBy,
    MapRecords,
    Node,
    OnError,
    Process,
    Sink,
)
from shoal.dataflow.operators.users.functions import HOW_TO_PROCESS
from shoal.dataflow.plan.explain import Explanation, Picture, explain, visualize
from shoal.dataflow.plan.facts import Facts


class Stream(
    Reading["Stream"],
    Transforms["Stream"],
    Joins["Stream"],
    Cuttable["Stream"],
    Writing["Stream"],
    Terminals["Stream"],
):
    """Rows on their way."""

    __slots__ = ()

    @staticmethod
    def _make(node: Node, facts: Facts, before: tuple[Facts, ...]) -> Stream:
        return Stream(node, facts, before)

    def __repr__(self) -> str:
        columns = "columns known at run" if self.schema is None else ", ".join(self.schema.names)
        return f"<{type(self).__name__} {type(self._node).__name__.lower()} ({columns})>"

    # -- keys and windows -------------------------------------------------------------------------------------

    def key_by(self, *keys: Any) -> KeyedStream:
        """Rows with equal keys meet in one task from here on; what follows is by key."""
        at = find_location()
        names = column_names(keys, "key", at)
        made = self._next(KeyBy(inputs=(self._node,), keys=names, at=at))
        return KeyedStream(made, self, names)

    def group_by(self, *keys: Any) -> GroupedStream[Stream]:
        """By key, to be aggregated: `group_by("user").aggregate({"total": ("amount", "sum")})`."""
        at = find_location()
        names = column_names(keys, "group key", at)
        if not names:
            raise PlanError([problem("group_by", None, "needs a column")], at=at)
        return GroupedStream(self, names)

    def aggregate(self, aggregations: Mapping[str, Any] | None = None, **named: Any) -> Stream:
        """One result over all rows; see `GroupedStream.aggregate`."""
        return WindowedStream(self, (), None).aggregate(aggregations, **named)

    def reduce(self, function: Callable[[Any, Any], Any], **unknown: Any) -> Stream:
        """Two records become one, again and again, until there is one."""
        return WindowedStream(self, (), None).reduce(function, **unknown)

    def distinct(self, *columns: Any, ttl: Span = 0) -> Stream:
        """The first row of each combination of values, of all columns or of these. `ttl` is how long one is known."""
        at = find_location()
        named = column_names(columns, "distinct column", at) or all_columns(self, "distinct", at)
        node = Distinct(inputs=(self._node,), columns=named, ttl=micros(ttl, "ttl", at=at), at=at)
        return self._next(node)

    def _to_cut(self) -> tuple[Stream, tuple[str, ...]]:
        return self, ()

    def process(
        self,
        function: Any,
        *,
        schema: Schema | Mapping[str, Any] | None = None,
        on_error: str | OnError = OnError.FAIL,
    ) -> Stream:
        """A process function over all rows, in one task. By key it is `key_by(…).process(…)`."""
        return self._processed((), function, schema, on_error)

    def _processed(self, keys: tuple[str, ...], function: Any, schema: Any, on_error: str | OnError) -> Stream:
        at = find_location()
        made = None if schema is None else make_schema(schema, at=at)
        node = Process(
            inputs=(self._node,),
            keys=keys,
            function=_process_ref(function, at),
            schema=made,
            on_error=make_policy(on_error, at),
            at=at,
        )
        return self._next(node)

    # -- records ----------------------------------------------------------------------------------------------

    def records(self, *, probe: bool = True) -> RecordStream:
        """The same rows one by one: `map`, `filter` and `flat_map` get single records from here on.

        With `probe=False` their functions are called with real records only: what they return is known at run.
        """
        return RecordStream(self._node, self._facts, self._before, probe=probe)

    def batches(self) -> Stream:
        """The same rows in batches."""
        return Stream(self._node, self._facts, self._before)

    # -- for people -------------------------------------------------------------------------------------------

    def explain(self, parallelism: int = 1) -> Explanation:
        """Print the logical and the physical plan. Nothing is run or connected to."""
        check_parallelism(parallelism, find_location())
        return explain([self._shown()], parallelism=parallelism)

    def visualize(self, path: str | None = None) -> Picture:
        """The plan as Graphviz text; with a path, as a file of it (.dot or .svg)."""
        return visualize([self._shown()], path)

    def _shown(self) -> Node:
        from shoal.dataflow.connectors.memory import CollectSink

        return Sink(inputs=(self._node,), connector=CollectSink(), at=find_location())


class KeyedStream(Stream):
    """Rows by key. What is not by key, such as `map`, returns a plain stream again."""

    __slots__ = ("_keys", "_origin")

    def __init__(self, made: Stream, origin: Stream, keys: tuple[str, ...]) -> None:
        super().__init__(made.node, made.facts, (origin.facts,))
        self._origin = origin
        self._keys = keys

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return self._keys

    # An aggregate exchanges rows by itself: behind the key step it could not do a part of its work before.

    def aggregate(self, aggregations: Mapping[str, Any] | None = None, **named: Any) -> Stream:
        """Results by key; see `GroupedStream.aggregate`."""
        return GroupedStream(self._origin, self._keys).aggregate(aggregations, **named)

    def reduce(self, function: Callable[[Any, Any], Any], **unknown: Any) -> Stream:
        """Two records of a key become one, again and again."""
        return GroupedStream(self._origin, self._keys).reduce(function, **unknown)

    def distinct(self, *columns: Any, ttl: Span = 0) -> Stream:
        """The first row of each key, or of each combination of the key and these columns."""
        names = column_names(columns, "distinct column", find_location())
        return self._origin.distinct(*dict.fromkeys((*self._keys, *names)), ttl=ttl)

    def _to_cut(self) -> tuple[Stream, tuple[str, ...]]:
        return self._origin, self._keys

    def process(
        self,
        function: Any,
        *,
        schema: Schema | Mapping[str, Any] | None = None,
        on_error: str | OnError = OnError.FAIL,
    ) -> Stream:
        """A process function by key: keyed state, timers and side outputs."""
        return self._origin._processed(self._keys, function, schema, on_error)  # noqa: SLF001  its own kind


class RecordStream(Stream):
    """Rows one by one. A record is a mapping whose values are attributes, too; functions return one, or a value."""

    __slots__ = ("_probe",)

    def __init__(self, node: Node, facts: Facts, before: tuple[Facts, ...] = (), *, probe: bool = True) -> None:
        super().__init__(node, facts, before)
        #: Whether functions whose output nobody declared are tried with an invented record at start.
        self._probe = probe

    def map(
        self,
        function: Expression | Callable[[Any], Any],
        *,
        schema: Schema | Mapping[str, Any] | None = None,
        on_error: str | OnError = OnError.FAIL,
    ) -> RecordStream:
        """What a function makes of each record."""
        if isinstance(function, Expression):
            return super().map(function, schema=schema, on_error=on_error).records(probe=self._probe)
        return self._step("map", function, schema, on_error)

    def filter(
        self, predicate: Expression | Callable[[Any], Any], *, on_error: str | OnError = OnError.FAIL
    ) -> RecordStream:
        """Records for which a function is true."""
        if isinstance(predicate, Expression):
            return super().filter(predicate, on_error=on_error).records(probe=self._probe)
        return self._step("filter", predicate, None, on_error)

    def flat_map(
        self,
        function: Callable[[Any], Any],
        *,
        schema: Schema | Mapping[str, Any] | None = None,
        on_error: str | OnError = OnError.FAIL,
    ) -> RecordStream:
        """Any number of records for each record: what a function returns in a list, or yields."""
        return self._step("flat_map", function, schema, on_error)

    def _step(self, kind: str, function: Any, schema: Any, on_error: str | OnError) -> RecordStream:
        at = find_location()
        made = None if schema is None else make_schema(schema, at=at)
        node = MapRecords(
            inputs=(self._node,),
            function=make_ref(function, at=at, what=kind),
            kind=kind,
            schema=made,
            on_error=make_policy(on_error, at),
            probe=self._probe,
            at=at,
        )
        return self._next(node).records(probe=self._probe)


def _process_ref(function: Any, at: Location | None) -> FunctionRef:
    """A process function is an object of `ProcessFunction`, its class, or a function that makes one.

    Raises `PlanError` for what can be none. What a function makes is seen when the program starts.
    """
    fits = hasattr(function, "process") if isinstance(function, type) else is_maker(function)
    if not fits:
        shown = label_of(function) if isinstance(function, type) else function
        raise refuse("process", shown, "must be a ProcessFunction, or its class", at=at, hint=HOW_TO_PROCESS)
    return FunctionRef("", label_of(function), "", function)
