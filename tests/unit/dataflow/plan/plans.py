"""Hypothesis strategies: expressions that have a type, and plans that can work."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from shoal.dataflow.api.streams import fn
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.memory import BatchesSource, CollectSink
from shoal.dataflow.language.expressions.trees import Call, Column, Expression, Literal
from shoal.dataflow.language.logical import Node, Sink

INT, TEXT, BOOL = "int", "text", "bool"
ARROW = {INT: pa.int64(), TEXT: pa.string(), BOOL: pa.bool_()}
KINDS = {kind: name for name, kind in ARROW.items()}

_VALUES = {
    INT: st.integers(-20, 20),
    TEXT: st.sampled_from(["", "a", "b", "ab", "7", "-3", "é"]),
    BOOL: st.booleans(),
}
_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")

Columns = dict[str, str]


class Same:
    """An operator of one's own that changes nothing."""

    def process_batch(self, batch: Any) -> Any:
        return batch


def values(kind: str) -> st.SearchStrategy[Any]:
    return _VALUES[kind]


def tables(columns: Columns) -> st.SearchStrategy[list[pa.RecordBatch]]:
    """Batches with nulls in them."""
    row = st.fixed_dictionaries(
        # Few ids, so that rows of two tables meet.
        {
            name: st.one_of(st.none(), st.integers(0, 2) if name == "id" else values(kind))
            for name, kind in columns.items()
        }
    )
    schema = pa.schema([pa.field(name, ARROW[kind]) for name, kind in columns.items()])
    return st.lists(row, max_size=6).map(
        lambda rows: [
            pa.RecordBatch.from_pylist(rows[:3], schema=schema),
            pa.RecordBatch.from_pylist(rows[3:], schema=schema),
        ]
    )


@st.composite
def expressions(  # noqa: PLR0911  one line for each kind
    draw: st.DrawFn, columns: Columns, kind: str, depth: int = 3, *, total: bool = False
) -> Expression:
    """An expression of a type over some columns."""
    leaves: list[Expression] = [Column(name) for name, each in columns.items() if each == kind]
    if depth == 0 or draw(st.booleans()):
        wanted = leaves and draw(st.integers(0, 4))  # columns mostly: constants are folded away
        return draw(st.sampled_from(leaves)) if wanted else Literal(draw(values(kind)))

    def inner(wanted: str) -> Expression:
        return draw(expressions(columns, wanted, depth - 1, total=total))

    if kind == INT:
        choice = draw(
            st.sampled_from(["add", "subtract", "multiply", "floor_divide", "modulo", "negate", "fill_null", "cast"])
        )
        if total and choice in ("add", "subtract", "multiply", "negate", "cast"):
            choice = "modulo"
        if choice == "negate":
            return Call("negate", (inner(INT),))
        if choice == "cast":
            return inner(TEXT).cast("int64")
        return Call(choice, (inner(INT), inner(INT)))
    if kind == TEXT:
        return draw(st.sampled_from([fn.upper(inner(TEXT)), fn.coalesce(inner(TEXT), inner(TEXT))]))
    choice = draw(st.sampled_from(["compare", "and", "or", "not", "null", "in"]))
    if choice == "compare":
        side = draw(st.sampled_from([INT, TEXT]))
        return Call(draw(st.sampled_from(_COMPARISONS)), (inner(side), inner(side)))
    if choice in ("and", "or"):
        return Call(choice, (inner(BOOL), inner(BOOL)))
    if choice == "null":
        return inner(draw(st.sampled_from([INT, TEXT]))).is_null()
    if choice == "in":
        return inner(INT).isin(draw(st.lists(values(INT), min_size=1, max_size=3)))
    return Call("not", (inner(BOOL),))


# ---------------------------------------------------------------------------------------------------------
# Plans


def columns_of(stream: Stream) -> Columns:
    assert stream.schema is not None
    return {each.name: KINDS[each.type] for each in stream.schema}


@st.composite
def sources(draw: st.DrawFn, *, prunable: bool | None = None) -> Stream:
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=4, unique=True))
    columns = {name: draw(st.sampled_from([INT, TEXT, BOOL])) for name in names}
    columns["id"] = INT
    batches = tuple(draw(tables(columns)))
    able = draw(st.booleans()) if prunable is None else prunable
    connector: Any = BatchesSource(batches) if able else WholeSource(batches)
    return Stream.from_source(connector, schema=batches[0].schema)


class WholeSource(BatchesSource):
    """A source that cannot leave columns out."""

    __slots__ = ()
    with_columns = None  # type: ignore[assignment]


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    """An opaque function: it could do anything."""
    return {**row, "id": None if row["id"] is None else row["id"] + 1}


_STEPS = (
    "filter",
    "filter",
    "filter",
    "with",
    "with",
    "select",
    "key",
    "group",
    "distinct",
    "union",
    "join",
    "join",
    "opaque",
)


@st.composite
def steps(draw: st.DrawFn, stream: Stream, others: list[Stream]) -> Stream:  # noqa: PLR0911  one line for each kind
    """One more step behind a stream."""
    columns = columns_of(stream)
    names = list(columns)
    kind = draw(st.sampled_from(_STEPS))
    if kind == "filter":
        return stream.filter(draw(expressions(columns, BOOL)))
    if kind == "with":
        name = draw(st.sampled_from([*names, "n1", "n2"]))
        return stream.with_columns(**{name: draw(expressions(columns, columns.get(name, INT), 2))})
    if kind == "select":
        kept = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        made = (
            {name: Column(name) for name in {*kept, "id"}} if "id" in names else {name: Column(name) for name in kept}
        )
        renamed = draw(st.sampled_from([None, *kept]))
        if renamed is not None and renamed != "id":
            made[f"{renamed}x"] = made.pop(renamed)
        return stream.select(**made)
    if kind == "key":
        return stream.key_by(draw(st.sampled_from(names))).batches()
    if kind == "group":
        key = draw(st.sampled_from(names))
        numbers = [name for name in names if columns[name] == INT]
        wanted: dict[str, Any] = {"id": ("*", "count")} if key != "id" else {"n": ("*", "count")}
        if numbers and draw(st.booleans()):
            wanted["s"] = (draw(st.sampled_from(numbers)), draw(st.sampled_from(["sum", "min", "max", "count"])))
        return stream.group_by(key).aggregate({name: each for name, each in wanted.items() if name != key})
    if kind == "distinct":
        return stream.distinct(*draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
    if kind == "union":
        return stream.union(stream.filter(draw(expressions(columns, BOOL, 1))))
    if kind == "join" and others and "id" in names and not any(name.endswith("_right") for name in names):
        other = draw(st.sampled_from(others))
        if "id" in columns_of(other):
            return stream.join(other, on="id", how=draw(st.sampled_from(["inner", "left"])))
    if kind == "opaque" and "id" in names and columns["id"] == INT:
        return stream.records().map(_renamed, schema=stream.schema).batches()
    return stream


@st.composite
def plans(draw: st.DrawFn) -> list[Node]:
    """A plan of one or two sinks, in which parts are used more than once."""
    pool = [draw(sources()), draw(sources())]
    for _ in range(draw(st.integers(2, 7))):
        stream = pool[-1] if draw(st.integers(0, 4)) else draw(st.sampled_from(pool))  # long chains, and some branches
        pool.append(draw(steps(stream, pool[:2])))
    ends = [pool[-1], *draw(st.lists(st.sampled_from(pool), max_size=1))]
    return [Sink(inputs=(each.node,), connector=CollectSink()) for each in ends]
