"""What comes out of one node, given what goes in: columns, types, event time, changes. Refuses what cannot work.

Pure. `infer` is called by `shoal.dataflow.api.streams.stream` for each node as it is made, with what is known then, and
by `shoal.dataflow.plan.resolve` for all of them, with what sources and functions answered.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from shoal.core.errors import problem
from shoal.dataflow.connectors.abilities import error_policy
from shoal.dataflow.connectors.base import SinkMode
from shoal.dataflow.connectors.topics.names import check_connector
from shoal.dataflow.errors import Location, PlanError, near
from shoal.dataflow.language.aggregates import AGGREGATES
from shoal.dataflow.language.binding import bind, bind_predicate, check_size, missing_column
from shoal.dataflow.language.elements import CHANGE, Schema
from shoal.dataflow.language.expressions import datatypes
from shoal.dataflow.language.expressions.trees import Column, Expression, describe
from shoal.dataflow.language.logical import (
    LATE,
    LATE_RIGHT,
    Aggregate,
    Aggregation,
    AssignTime,
    Custom,
    Distinct,
    EventTime,
    Filter,
    Join,
    JoinMode,
    KeyBy,
    MapBatches,
    MapRecords,
    Merge,
    Node,
    OnError,
    Process,
    Project,
    Reduce,
    SideOutput,
    Sink,
    Source,
    Union,
)
from shoal.dataflow.language.windows import CountWindow, Firing, SlidingWindow, Window
from shoal.dataflow.plan.facts import (
    Answers,
    Facts,
    check_columns,
    check_event_time,
    check_keys,
    make_schema,
    time_columns,
    window_fields,
)
from shoal.dataflow.plan.joining import infer_join

CHANGE_FIELD = pa.field(CHANGE, pa.string())
ERROR_FIELD = pa.field("error", pa.string())


def infer(node: Node, inputs: Sequence[Facts], answers: Answers) -> Facts:
    """The facts of a node's output. Raises `PlanError`."""
    return _INFER[type(node)](node, inputs, answers)


# ---------------------------------------------------------------------------------------------------------
# Sources and sinks


def _source(node: Source, _inputs: Sequence[Facts], answers: Answers) -> Facts:
    check_connector(node.connector, at=node.at)
    schema = answers.schema_of(node) if node.schema is None else node.schema
    if schema is not None:
        make_schema(list(schema), at=node.at, what=node.connector.label)
    if node.time is not None:
        check_event_time(node.time, schema, at=node.at)
    named = node.time if node.time is not None and node.time.column else None
    return Facts(schema, bounded=bool(node.connector.is_bounded), time=node.time is not None, time_from=named)


def _sink(node: Sink, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    check_connector(node.connector, at=node.at)
    facts = inputs[0]
    if facts.changes and SinkMode.UPSERT not in node.connector.modes:
        replacing = f'write to a sink that replaces rows, .to_sql("results", "results.duckdb", key={list(facts.keys)})'
        raise PlanError(
            [
                problem(
                    node.connector.label, None, "only appends, and these rows change: each may replace an earlier one"
                )
            ],
            at=node.at,
            hint="aggregate in windows, .window(tumbling(seconds=60)), so that each result is final; "
            + (f"or {replacing}; " if facts.keys else "")
            + "or keep each change as a row, .changes_as_rows()",
        )
    return facts


# ---------------------------------------------------------------------------------------------------------
# Row by row


def _assign_time(node: AssignTime, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    facts = inputs[0]
    if not node.time.column:
        raise PlanError([problem("event time", None, "needs a column here")], at=node.at)
    _refuse_changes(node, facts)
    check_event_time(node.time, facts.schema, at=node.at)
    return replace(facts, time=True, time_from=node.time)


def _project(node: Project, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    facts = inputs[0]
    names = [each.name for each in node.columns]
    if facts.schema is None:
        make_schema([pa.field(name, pa.null()) for name in names], at=node.at, what="select")
        for each in node.columns:
            check_size(each.expression, node.at)
        return replace(facts, time_from=_time_after(node, facts))
    made = {each.name: pa.field(each.name, _type(each.expression, facts, node)) for each in node.columns}
    fields = [made[name] for name in names]
    if node.keep_others:
        make_schema(fields, at=node.at, what="with_columns")
        kept = [made.get(each.name, each) for each in facts.schema]
        fields = [*kept, *(each for each in fields if each.name not in facts.schema.names)]
    schema = make_schema(fields, at=node.at, what="select")
    changes = facts.changes and CHANGE in schema.names
    keys = _keys_after(node, facts) if changes else ()
    return replace(facts, schema=schema, changes=changes, keys=keys, time_from=_time_after(node, facts))


def _type(expression: Expression, facts: Facts, node: Node) -> Any:
    return bind(expression, facts.schema, at=node.at).type


def _renamed(node: Project, names: Iterable[str]) -> dict[str, str]:
    """What columns are called behind a projection, those that are still there as they were."""
    renamed = {each.expression.name: each.name for each in node.columns if isinstance(each.expression, Column)}
    if node.keep_others:
        replaced = {each.name for each in node.columns}
        renamed |= {name: name for name in names if name not in replaced}
    return renamed


def _time_after(node: Project, facts: Facts) -> EventTime | None:
    """The column of the event time behind a projection, which may have given it another name."""
    time = facts.time_from
    name = None if time is None else _renamed(node, [time.column]).get(time.column)
    return None if time is None or name is None else replace(time, column=name)


def _keys_after(node: Project, facts: Facts) -> tuple[str, ...]:
    """What the key columns are called behind a projection; none when one of them is gone."""
    renamed = _renamed(node, facts.keys)
    return tuple(renamed[key] for key in facts.keys) if all(key in renamed for key in facts.keys) else ()


def _filter(node: Filter, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    facts = inputs[0]
    if isinstance(node.predicate, Expression):
        if facts.schema is None:
            check_size(node.predicate, node.at)
        else:
            bind_predicate(node.predicate, facts.schema, at=node.at)
        return facts
    _refuse_changes(node, facts)
    return facts


def _map_batches(node: MapBatches, inputs: Sequence[Facts], answers: Answers) -> Facts:
    facts = _opaque(node, inputs[0], answers)
    return replace(facts, time=False, time_from=None) if node.flat else facts


def _map_records(node: MapRecords, inputs: Sequence[Facts], answers: Answers) -> Facts:
    if node.kind == "filter":
        _refuse_changes(node, inputs[0])
        return inputs[0]
    return _opaque(node, inputs[0], answers)


def _opaque(node: MapBatches | MapRecords, facts: Facts, answers: Answers) -> Facts:
    _refuse_changes(node, facts)
    schema = node.schema
    if schema is None and facts.schema is not None:
        schema = answers.probe(node, facts.schema)
    if schema is not None:
        make_schema(list(schema), at=node.at, what=node.function.label)
    time = facts.time_from
    if time is not None and schema is not None and facts.schema is not None:
        place = schema.get_field_index(time.column)
        is_there = place >= 0 and schema.field(place).type == facts.schema.field(time.column).type
        time = time if is_there else None
    return replace(facts, schema=schema, time_from=time)


def _key_by(node: KeyBy, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    if not node.keys:
        raise PlanError([problem("key_by", None, "needs a column")], at=node.at)
    check_keys(node.keys, inputs[0].schema, at=node.at, what="key")
    return inputs[0]


# ---------------------------------------------------------------------------------------------------------
# Several inputs


def _union(node: Union, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    first = inputs[0]
    if len({each.changes for each in inputs}) > 1:
        raise PlanError([problem("union", None, "joins rows that change with rows that stay")], at=node.at)
    schema = first.schema if all(each.schema is not None for each in inputs) else None
    if schema is not None:
        for number, each in enumerate(inputs[1:], start=2):
            _check_alike(schema, each.schema, number, node)
    return replace(
        first,
        schema=schema,
        bounded=all(each.bounded for each in inputs),
        time=all(each.time for each in inputs),
        keys=first.keys if all(each.keys == first.keys for each in inputs) else (),
        time_from=_shared_time(inputs),
    )


def _shared_time(inputs: Sequence[Facts]) -> EventTime | None:
    """The column of the event time, where all inputs have theirs in the same one."""
    first = inputs[0].time_from
    if first is None:
        return None
    others = [each.time_from for each in inputs[1:]]
    alike = all(each is not None and (each.column, each.unit) == (first.column, first.unit) for each in others)
    return first if alike else None


def _check_alike(one: Schema, other: Schema, number: int, node: Node) -> None:
    if [(each.name, each.type) for each in one] == [(each.name, each.type) for each in other]:
        return
    missing = [name for name in one.names if name not in other.names]
    extra = [name for name in other.names if name not in one.names]
    unlike = [
        f"{each.name} is {each.type} in one and {other.field(each.name).type} in the other"
        for each in one
        if each.name in other.names and each.type != other.field(each.name).type
    ]
    differences = [f"{', '.join(missing)} is missing"] if missing else []
    differences += [f"{', '.join(extra)} is too much"] if extra else []
    differences += unlike or ([] if differences else ["the columns are in another order"])
    hint = f"make them alike first: .select({', '.join(repr(name) for name in one.names)})"
    raise PlanError([problem(f"union: input {number}", None, "; ".join(differences))], at=node.at, hint=hint)


def _merge(node: Merge, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    fields: dict[str, Any] = {}
    for facts in inputs:
        _refuse_changes(node, facts)
        check_columns([node.by], facts.schema, at=node.at, what="merge column")
        for each in facts.schema if facts.schema is not None else ():
            known = fields.setdefault(each.name, each)
            if known.type != each.type:
                rule = f"is {known.type} in one input and {each.type} in another"
                raise PlanError([problem(f"merge: column {each.name!r}", None, rule)], at=node.at)
    by = fields[node.by].type if node.by in fields else None
    if by is not None and not datatypes.is_number(by) and not datatypes.is_time_or_date(by):
        rule = f"must be numbers or times to merge by them, not {by}"
        raise PlanError([problem(f"merge column {node.by!r}", None, rule)], at=node.at)
    schema = pa.schema(list(fields.values())) if all(each.schema is not None for each in inputs) else None
    return Facts(
        schema,
        bounded=all(each.bounded for each in inputs),
        time=all(each.time for each in inputs),
        time_from=_shared_time(inputs),
    )


# ---------------------------------------------------------------------------------------------------------
# By key and window


def _aggregate(node: Aggregate, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    facts = inputs[0]
    check_window(node, node.window, facts)
    check_keys(node.keys, facts.schema, at=node.at, what="group key")
    if not node.aggregations and not node.keys:
        raise PlanError([problem("aggregate", None, "needs a column or a key")], at=node.at)
    results = [_aggregation(each, facts, node) for each in node.aggregations]
    return _grouped(node, facts, node.keys, results)


def _grouped(node: Aggregate | Reduce, facts: Facts, keys: tuple[str, ...], rest: Sequence[Any]) -> Facts:
    check_firing(node.window, node.firing, node.at)
    windows = window_fields() if _has_columns(node.window) else []
    changes = node.firing != Firing() if node.window is not None else not facts.bounded
    identity = (*keys, *(each.name for each in windows))
    schema = None
    if facts.schema is not None:
        fields = [*(facts.schema.field(name) for name in keys), *windows, *rest, *([CHANGE_FIELD] if changes else [])]
        if isinstance(node, Reduce):
            fields = [*rest, *windows, *([CHANGE_FIELD] if changes else [])]
        schema = make_schema(fields, at=node.at, what=type(node).__name__.lower())
    time = facts.time and node.window is not None
    return Facts(schema, bounded=facts.bounded, time=time, changes=changes, keys=identity if changes else ())


def _has_columns(window: Window | None) -> bool:
    return window is not None and not isinstance(window, CountWindow)


def _aggregation(each: Aggregation, facts: Facts, node: Aggregate) -> Any:
    function = AGGREGATES.get(each.function)
    if function is None:
        is_column = facts.schema is not None and each.function in facts.schema.names
        why = ": it is a column" if is_column else f"; {near(each.function, AGGREGATES, 'aggregates')}"
        raise PlanError(
            [problem(f"{each.name}: {each.function!r}", None, f"is no aggregate{why}")],
            at=node.at,
            hint=_form(each, facts, node),
        )
    if facts.changes and not function.is_reversible:
        able = ", ".join(name for name, one in AGGREGATES.items() if one.is_reversible)
        rule = f"cannot take back a row, and these rows change; what can is {able}"
        raise PlanError([problem(f"{each.name}: {each.function}", None, rule)], at=node.at)
    unknown = [name for name, _value in each.options if name not in function.options]
    if unknown:
        rule = f"does not exist; {near(unknown[0], function.options, 'options')}"
        raise PlanError([problem(f"{each.name}: option {unknown[0]!r}", None, rule)], at=node.at)
    ddof = dict(each.options).get("ddof", 0)
    if not isinstance(ddof, int) or isinstance(ddof, bool) or ddof < 0:
        raise PlanError([problem(f"{each.name}: option 'ddof'", ddof, "must be a whole number from 0 on")], at=node.at)
    return pa.field(each.name, _result_type(each, facts, node))


def _result_type(each: Aggregation, facts: Facts, node: Aggregate) -> Any:
    function = AGGREGATES[each.function]
    if each.column == "*":
        if each.function != "count":
            rule, hint = "needs a column; only count takes *", _form(each, facts, node)
            raise PlanError([problem(f"{each.name}: {each.function}", None, rule)], at=node.at, hint=hint)
        return pa.int64()
    if facts.schema is None:
        return pa.null()
    if each.column not in facts.schema.names:
        missing = missing_column(each.column, facts.schema, at=node.at, where=f"{each.name}: column")
        raise PlanError(missing.problems, at=node.at, hint=_form(each, facts, node))
    kind = facts.schema.field(each.column).type
    result = function.result(kind)
    if result is None:
        rule = f"takes {function.takes}, and {each.column} is {kind}"
        hint = _cast_hint(each.column, kind, function.takes)
        raise PlanError([problem(f"{each.name}: {each.function}", None, rule)], at=node.at, hint=hint)
    return result


def _cast_hint(column: str, kind: Any, takes: str) -> str:
    """What to make of a column that an aggregate does not take, where there is something."""
    if takes == "numbers":
        return f'if it holds numbers: .with_columns({column}=col("{column}").cast("double"))'
    wider = {"string_view": "string", "binary_view": "binary"}.get(str(kind), "")
    if pa.types.is_decimal(kind):
        wider = f"decimal128({kind.precision}, {kind.scale})"
    return f'make it one that is: .with_columns({column}=col("{column}").cast("{wider}"))' if wider else ""


def _form(each: Aggregation, facts: Facts, node: Aggregate) -> str:
    """How an aggregation is written: with a column that there is and its function takes, where that is known."""
    columns = list(facts.schema or ())
    names = [one.name for one in columns]
    words = [word for word in (each.function, each.column) if word in AGGREGATES or word not in names]
    word = _meant(words, AGGREGATES) or "sum"
    fields = [one for one in columns if AGGREGATES[word].result(one.type) is not None]
    fields.sort(key=lambda one: (one.name in node.keys, not pa.types.is_floating(one.type)))
    able = [one.name for one in fields] or ["amount"]
    pair = f'("{_meant((each.column, each.function), able) or able[0]}", "{word}")'
    form = f"{each.name}={pair}" if each.name.isidentifier() else f"{{{each.name!r}: {pair}}}"
    return f"name the result, its column and the aggregate: .aggregate({form})"


def _meant(words: Sequence[str], known: Iterable[str]) -> str:
    """The name that one of some words is, or was probably meant to be."""
    names = list(known)
    exact = [word for word in words if word in names]
    return next(iter([*exact, *(close for word in words for close in difflib.get_close_matches(word, names, n=1))]), "")


def _reduce(node: Reduce, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    facts = inputs[0]
    _refuse_changes(node, facts)
    check_window(node, node.window, facts)
    check_keys(node.keys, facts.schema, at=node.at, what="key")
    return _grouped(node, facts, node.keys, list(facts.schema) if facts.schema is not None else [])


def _distinct(node: Distinct, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    facts = inputs[0]
    _refuse_changes(node, facts)
    check_window(node, node.window, facts)
    window = node.window
    if window is not None and (not isinstance(window, SlidingWindow) or window.size != window.slide):
        raise PlanError([problem("window", None, "must be a tumbling one for distinct")], at=node.at)
    if node.firing.early_every:
        rule = "says nothing for distinct: each row goes out as soon as it comes"
        raise PlanError([problem("early_every", None, rule)], at=node.at, hint="leave it out")
    check_keys(node.columns, facts.schema, at=node.at, what="distinct column")
    return facts


def check_firing(window: Window | None, firing: Firing, at: Location | None) -> None:
    """A window of so many rows emits its result when it has them: nothing comes before, and nothing is corrected."""
    if not isinstance(window, CountWindow) or firing == Firing():
        return
    field = "early_every" if firing.early_every else "allowed_lateness"
    rule = "cannot be set for count windows: they fire once, when their rows are there"
    raise PlanError([problem(field, None, rule)], at=at, hint=f"leave {field} out, or take a window of time")


def check_window(node: Node, window: Window | None, facts: Facts) -> None:
    """A window of time needs event time, and rows that stay."""
    if window is None:
        return
    _refuse_changes(node, facts)
    if facts.time or isinstance(window, CountWindow):
        return
    candidates = time_columns(facts.schema)
    counts = [each.name for each in facts.schema or () if pa.types.is_integer(each.type)]
    column = candidates[0] if candidates else "…"
    kinds = "a session" if type(window).__name__.startswith("Session") else "a window"
    raise PlanError(
        [problem("event time", None, f"{kinds} is made of it, and nothing says which column it is")],
        at=node.at,
        hint=f'name the column: .event_time("{column}") before .window(…), or .window(…, time_column="{column}")'
        + (f"; columns that hold times: {', '.join(candidates)}" if len(candidates) > 1 else "")
        + (
            f'; one that counts needs its unit: .event_time("{counts[0]}", unit="ms")'
            if counts and not candidates
            else ""
        ),
    )


# ---------------------------------------------------------------------------------------------------------
# Users' operators, and what goes aside


def _process(node: Process, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    return _custom_keys(node, node.keys, inputs, node.schema)


def _custom(node: Custom, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    return _custom_keys(node, node.keys, inputs, node.schema)


def _custom_keys(node: Node, keys: tuple[str, ...], inputs: Sequence[Facts], schema: Schema | None) -> Facts:
    for facts in inputs:
        _refuse_changes(node, facts)
        check_keys(keys, facts.schema, at=node.at, what="key")
    if schema is not None:
        make_schema(list(schema), at=node.at, what=type(node).__name__.lower())
    return Facts(schema, bounded=all(each.bounded for each in inputs), time=all(each.time for each in inputs))


def _side_output(node: SideOutput, inputs: Sequence[Facts], _answers: Answers) -> Facts:
    facts, origin = inputs[0], node.inputs[0]
    _check_tag(node, origin)
    return Facts(node.schema, bounded=facts.bounded, time=False)


def side_facts(node: SideOutput, facts: Facts, inputs: Sequence[Facts]) -> Facts:
    """The facts of a side output, with those of the inputs of the node that it comes from."""
    before = inputs[node.port] if inputs else None
    if node.schema is not None or before is None or before.schema is None:
        return facts
    if node.tag in (LATE, LATE_RIGHT):
        return replace(facts, schema=before.schema, time=before.time, time_from=before.time_from)
    if node.tag == "errors" and "error" not in before.schema.names:
        return replace(facts, schema=pa.schema([*before.schema, ERROR_FIELD]))
    return facts


def _check_tag(node: SideOutput, origin: Node) -> None:
    tags = _tags_of(origin)
    if tags is None or node.tag in tags:
        return
    name = "select" if isinstance(origin, Project) else type(origin).__name__.lower()
    if node.tag == "errors" and policy_of(origin) is not None:
        hint = f'ask for it: on_error="side" on the {name}'
        rule = f"gets nothing: this {name} fails on errors"
        raise PlanError([problem("side output 'errors'", None, rule)], at=node.at, hint=hint)
    there = f"it has {', '.join(tags)}" if tags else "it has none"
    raise PlanError([problem(f"side output {node.tag!r}", None, f"does not exist on a {name}; {there}")], at=node.at)


def policy_of(node: Node) -> OnError | None:
    """What a node does with rows that it cannot take; None when it takes all."""
    decider: object = node.connector if isinstance(node, Source) else node
    return error_policy(decider)


def _tags_of(origin: Node) -> tuple[str, ...] | None:
    """The side outputs that a node has; None when its own code decides."""
    match origin:
        case Process() | Custom():
            return None
        case Source() | Filter() | Project() | MapBatches() | MapRecords():
            return ("errors",) if policy_of(origin) is OnError.SIDE else ()
        case Aggregate() | Reduce() | Distinct():
            return (LATE,) if _has_columns(origin.window) else ()
        case Join(mode=JoinMode.WINDOW | JoinMode.INTERVAL):
            return (LATE, LATE_RIGHT)
        case Join(mode=JoinMode.ASOF):
            return (LATE,)  # a right row that comes late may still be the nearest of rows to come
        case _:
            return ()


def _refuse_changes(node: Node, facts: Facts) -> None:
    if facts.changes:
        what = describe_kind(node)
        raise PlanError(
            [problem(what, None, "cannot stand behind rows that change: it would count each change as a row")],
            at=node.at,
            hint="aggregate in windows, .window(tumbling(seconds=60)), so that each result is final; "
            "or say that changes are meant as rows, .changes_as_rows()",
        )


def describe_kind(node: Node) -> str:
    """A node's kind, and of a filter what it asks."""
    if isinstance(node, Filter) and isinstance(node.predicate, Expression):
        return f"filter {describe(node.predicate)}"
    return type(node).__name__.lower()


_INFER: dict[type[Node], Callable[[Any, Sequence[Facts], Answers], Facts]] = {
    Source: _source,
    Sink: _sink,
    AssignTime: _assign_time,
    Project: _project,
    Filter: _filter,
    MapBatches: _map_batches,
    MapRecords: _map_records,
    KeyBy: _key_by,
    Union: _union,
    Merge: _merge,
    Aggregate: _aggregate,
    Reduce: _reduce,
    Distinct: _distinct,
    Join: infer_join,
    Process: _process,
    Custom: _custom,
    SideOutput: _side_output,
}
