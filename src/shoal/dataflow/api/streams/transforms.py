"""What is done to rows one by one: select, filter, map and their like. Part of `Stream`.

Every method makes a node and runs nothing. Expressions are checked as soon as the columns are known; functions are
opaque, get whole Arrow batches, and are tried when the program starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from shoal.core.errors import problem
from shoal.dataflow.api.own_operator import find_hint
from shoal.dataflow.api.streams.reading import make_policy, make_schema, make_time
from shoal.dataflow.api.streams.steps import S_co, Steps
from shoal.dataflow.errors import Location, PlanError, near
from shoal.dataflow.language.elements import CHANGE, Schema
from shoal.dataflow.language.expressions.trees import Column, Expression, Literal, Named, col, columns_of
from shoal.dataflow.language.functions import find_location, make_ref
from shoal.dataflow.language.lengths import Span
from shoal.dataflow.language.logical import (
    AssignTime,
    Custom,
    Filter,
    FunctionRef,
    MapBatches,
    Merge,
    OnError,
    Project,
    SideOutput,
    Source,
    Union,
)
from shoal.dataflow.plan.facts import check_columns

#: The column of a result that has no name of its own.
VALUE = "value"


class Transforms(Steps[S_co]):
    """Steps from rows to rows."""

    __slots__ = ()

    def select(
        self,
        *columns: str | Expression | Named | Mapping[str, Any],
        on_error: str | OnError = OnError.FAIL,
        **named: Expression | Any,
    ) -> S_co:
        """These columns and no others: names, expressions with `.alias(…)`, `name=expression`, `{"name": expression}`.

        A row for which an expression cannot be worked out (an overflow, a cast) follows `on_error`, as in `map`.
        """
        at = find_location()
        policy = _column_policy("select", on_error, at)
        made = _all_named("select", columns, named, at)
        if self._facts.changes and CHANGE not in [each.name for each in made]:
            made.append(Named(col(CHANGE), CHANGE))  # else nobody could tell a row from its correction
        return self._next(Project(inputs=(self._node,), columns=tuple(made), on_error=policy, at=at))

    def with_columns(
        self,
        *columns: Named | Mapping[str, Any],
        on_error: str | OnError = OnError.FAIL,
        **named: Expression | Any,
    ) -> S_co:
        """All columns, and these; one that is there already is replaced. Written as in `select`."""
        at = find_location()
        policy = _column_policy("with_columns", on_error, at)
        made = _all_named("with_columns", columns, named, at)
        return self._next(Project(inputs=(self._node,), columns=tuple(made), keep_others=True, on_error=policy, at=at))

    def drop(self, *names: str) -> S_co:
        """All columns but these."""
        at = find_location()
        schema = self._known_schema("drop", at)
        check_columns(names, schema, at=at, what="column")
        kept = tuple(Named(Column(name), name) for name in schema.names if name not in names)
        if not kept:
            raise PlanError([problem("drop", None, "would leave no column")], at=at)
        return self._next(Project(inputs=(self._node,), columns=kept, at=at))

    def rename(self, names: Mapping[str, str] | None = None, **more: str) -> S_co:
        """Columns under other names: `rename({"old": "new"})` or `rename(old="new")`."""
        at = find_location()
        wanted = {**(names or {}), **more}
        schema = self._known_schema("rename", at)
        check_columns(wanted, schema, at=at, what="column")
        columns = tuple(Named(Column(name), wanted.get(name, name)) for name in schema.names)
        return self._next(Project(inputs=(self._node,), columns=columns, at=at))

    def filter(self, predicate: Expression | Callable[[Any], Any], *, on_error: str | OnError = OnError.FAIL) -> S_co:
        """Rows for which it is true: `filter(col("amount") > 5)`, or a function from a batch to booleans."""
        at = find_location()
        condition = predicate if isinstance(predicate, Expression) else make_ref(predicate, at=at, what="predicate")
        return self._next(Filter(inputs=(self._node,), predicate=condition, on_error=make_policy(on_error, at), at=at))

    def map(
        self,
        function: Expression | Callable[[Any], Any],
        *,
        schema: Schema | Mapping[str, Any] | None = None,
        on_error: str | OnError = OnError.FAIL,
    ) -> S_co:
        """What a function makes of each batch: a batch of as many rows, or one column of as many values.

        A column alone is named after the single column that the function reads, else `value`. `schema` says what comes
        out; without it the function is tried on one row of plain values when the program starts.
        """
        at = find_location()
        policy = make_policy(on_error, at)
        if isinstance(function, Expression):
            if schema is not None:
                hint = 'cast it: map(col("x").cast("double"))'
                rule = "is for functions: an expression says its own type"
                raise PlanError([problem("schema", None, rule)], at=at, hint=hint)
            read = columns_of(function)
            name = next(iter(read)) if len(read) == 1 else VALUE
            named = (Named(function, name),)
            return self._next(Project(inputs=(self._node,), columns=named, on_error=policy, at=at))
        ref = make_ref(function, at=at, what="map")
        made = None if schema is None else make_schema(schema, at=at)
        return self._next(MapBatches(inputs=(self._node,), function=ref, schema=made, on_error=policy, at=at))

    def flat_map(
        self,
        function: Callable[[Any], Any],
        *,
        schema: Schema | Mapping[str, Any] | None = None,
        on_error: str | OnError = OnError.FAIL,
    ) -> S_co:
        """Any number of batches for each batch. Rows lose their event time; name it again with `event_time`."""
        at = find_location()
        ref = make_ref(function, at=at, what="flat_map")
        made = None if schema is None else make_schema(schema, at=at)
        policy = make_policy(on_error, at)
        node = MapBatches(inputs=(self._node,), function=ref, schema=made, flat=True, on_error=policy, at=at)
        return self._next(node)

    def union(self, *others: Steps[Any]) -> S_co:
        """All rows of this stream and others with the same columns."""
        at = find_location()
        if not others:
            raise PlanError([problem("union", None, "needs another stream")], at=at)
        refuse_others("union", others, at)
        schema = self._facts.schema
        alike = [self, *(_in_order(each, schema, at) for each in others)]
        node = Union(inputs=tuple(each.node for each in alike), at=at)
        return self._next(node, *alike[1:])

    def merge(*streams: Any, by: str) -> S_co:  # the first is self: so a call without any gets our own error
        """All rows of streams that are each sorted by a column, in the order of that column.

        Also `Stream.merge(a, b, by="arrival")`. The streams may have unlike columns; what a row has not is null.
        """
        at = find_location()
        refuse_others("merge", streams, at)
        if len(streams) < 2:
            rule = "needs another stream" if streams else "needs streams"
            raise PlanError([problem("merge", None, rule)], at=at, hint='Stream.merge(a, b, by="arrival")')
        if not isinstance(by, str):
            raise PlanError([problem("by", by, "must be a column's name")], at=at)
        first, *others = streams
        node = Merge(inputs=tuple(each.node for each in streams), by=by, at=at)
        made: S_co = first.then(node, *others)
        return made

    def event_time(self, column: str, *, disorder: Span = 0, unit: str = "", idle_after: Span | None = 5) -> S_co:
        """Event time is this column, and rows may be this much out of order.

        Right behind a source it is the source's: then every file or partition keeps time for itself. A stream that is
        empty for `idle_after` no longer holds others back; None is never.
        """
        at = find_location()
        time = make_time(column, disorder, unit, idle_after, at)
        if time is None:
            raise PlanError([problem("event_time", column, "must be a column's name")], at=at)
        if isinstance(self._node, Source):
            return self._begin(replace(self._node, time=time, at=at))
        return self._next(AssignTime(inputs=(self._node,), time=time, at=at))

    def apply(
        self,
        factory: Callable[[], Any],
        *others: Steps[Any],
        keys: tuple[str, ...] | list[str] = (),
        schema: Schema | Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> S_co:
        """An operator of one's own (`shoal.Operator`). The factory (a class will do) is called once in each task.

        Its `parallelism_hint`, a number, counts unless `with_parallelism` says something else. It has no `on_error`:
        what its code raises is no matter of one row.
        """
        at = find_location()
        refuse_unknown("apply", unknown, at)
        refuse_others("apply", others, at)
        ref = make_ref(factory, at=at, what="operator")
        made = None if schema is None else make_schema(schema, at=at)
        inputs = (self._node, *(each.node for each in others))
        node = Custom(
            inputs=inputs,
            factory=_class_ref(ref),
            keys=tuple(keys),
            schema=made,
            parallelism=find_hint(factory, at=at),
            at=at,
        )
        return self._next(node, *others)

    def side_output(self, tag: str, *, schema: Schema | Mapping[str, Any] | None = None) -> S_co:
        """What the last step put aside: `late` rows of a window, `errors` of a function, or a tag of one's own.

        A windowed or interval join has `late` for its left side and `late_right` for its right one.
        """
        at = find_location()
        made = None if schema is None else make_schema(schema, at=at)
        return self._next(SideOutput(inputs=(self._node,), tag=tag, schema=made, at=at))

    def changes_as_rows(self, column: str = "change") -> S_co:
        """Every change of a result as a row of its own, with what it does (+I -U +U -D) in a column."""
        at = find_location()
        if not self._facts.changes:
            raise PlanError([problem("changes_as_rows", None, "these rows do not change; there is no need")], at=at)
        schema = self._known_schema("changes_as_rows", at)
        columns = tuple(Named(Column(name), column if name == CHANGE else name) for name in schema.names)
        return self._next(Project(inputs=(self._node,), columns=columns, at=at))

    def _known_schema(self, what: str, at: Location | None) -> Any:
        if self._facts.schema is None:
            hint = "name the columns with select(…), or say schema= where the stream begins"
            raise PlanError([problem(what, None, "needs the columns, which are known at run only")], at=at, hint=hint)
        return self._facts.schema


def _class_ref(ref: FunctionRef) -> FunctionRef:
    """An operator's factory reads no columns by itself."""
    return replace(ref, reads="")


def refuse_others(what: str, others: Iterable[Any], at: Location | None) -> None:
    """Refuse what is no stream where streams are meant."""
    for each in others:
        if not isinstance(each, Steps):
            shown = f"{type(each).__name__}" if each is None else f"{type(each).__name__} {each!r}"
            raise PlanError([problem(what, shown, "takes streams")], at=at)


def refuse_unknown(what: str, given: Mapping[str, Any], at: Location | None) -> None:
    """Refuse options that a step does not have; a policy for errors is one that people look for."""
    for name, value in given.items():
        if name == "on_error":
            rule = f"cannot be set for {what}: an error in it is no matter of one row alone"
            hint = 'take bad rows out before it, .filter(…, on_error="skip"), or catch errors in your own code'
            raise PlanError([problem("on_error", value, rule)], at=at, hint=hint)
        raise PlanError([problem(f"{what}: {name}", value, "is no option of it")], at=at)


def _column_policy(what: str, on_error: Any, at: Location | None) -> OnError:
    """The policy of a step whose other named arguments are columns."""
    if isinstance(on_error, OnError) or on_error in [each.value for each in OnError if isinstance(on_error, str)]:
        return make_policy(on_error, at)
    rule = 'is the policy for errors: "fail", "skip" (dropped and counted) or "side" (to the side output "errors")'
    hint = f'for a column of that name: {what}({{"on_error": …}})'
    raise PlanError([problem("on_error", on_error, rule)], at=at, hint=hint)


def _all_named(what: str, columns: Iterable[Any], named: Mapping[str, Any], at: Location | None) -> list[Named]:
    """The columns of a projection, in all the forms that users write them in."""
    made: list[Named] = []
    for each in columns:
        if not isinstance(each, Mapping):
            made.append(_named(each, at))
            continue
        for name, value in each.items():
            if not isinstance(name, str):
                raise PlanError([problem(what, name, "must be a column's name")], at=at)
            made.append(Named(_expression(value), name))
    made += [Named(_expression(value), name) for name, value in named.items()]
    if not made:
        raise PlanError([problem(what, None, "needs a column")], at=at)
    return made


def _expression(value: Any) -> Expression:
    return value if isinstance(value, Expression) else Literal(value)


def _named(value: Any, at: Location | None) -> Named:
    """A column of `select` as users write it."""
    if isinstance(value, Named):
        return value
    if isinstance(value, str):
        return Named(Column(value), value)
    if isinstance(value, Column):
        return Named(value, value.name)
    if isinstance(value, Expression):
        hint = 'select(total=col("price") * col("quantity")), or (…).alias("total")'
        raise PlanError([problem(repr(value), None, "needs a name")], at=at, hint=hint)
    raise PlanError([problem("column", value, "must be a name or an expression")], at=at)


def _in_order(stream: Steps[Any], schema: Any, at: Location | None) -> Steps[Any]:
    """A stream with its columns in the order of another's, where both have the same ones."""
    mine = stream.facts.schema
    if schema is None or mine is None or mine.names == schema.names or sorted(mine.names) != sorted(schema.names):
        return stream
    columns = tuple(Named(Column(name), name) for name in schema.names)
    made: Steps[Any] = stream.then(Project(inputs=(stream.node,), columns=columns, at=at))
    return made


def column_names(columns: tuple[Any, ...], what: str, at: Location | None) -> tuple[str, ...]:
    """Names of columns as users give them: `"a", "b"`, `["a", "b"]`, or `col("a")`."""
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        columns = tuple(columns[0])
    found: list[str] = []
    for each in columns:
        if isinstance(each, Column):
            found.append(each.name)
        elif isinstance(each, str):
            found.append(each)
        else:
            hint = 'name what is worked out first: .with_columns(k=…) and then its name, "k"'
            raise PlanError([problem(what, each, "must be a column's name")], at=at, hint=hint)
    return tuple(found)


def one_of(value: str, known: tuple[str, ...], what: str, at: Location | None) -> str:
    """A word of a closed set."""
    if value in known:
        return value
    raise PlanError([problem(what, value, f"is not known; {near(str(value), known, 'words')}")], at=at)
