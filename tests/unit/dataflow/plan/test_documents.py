"""Plans as documents: what is written comes back, and what is no document is refused with the field."""

from __future__ import annotations

import copy
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import count, session, sliding, tumbling
from shoal.dataflow.connectors.base import SinkMode
from shoal.dataflow.connectors.memory import BatchesSource, CallbackSink
from shoal.dataflow.errors import DocumentError, PlanError
from shoal.dataflow.language.expressions.trees import Literal, col, lit, same
from shoal.dataflow.language.functions import add_blobs, callable_of, make_ref
from shoal.dataflow.language.logical import Filter, MapBatches, Node, Sink, walk
from shoal.dataflow.plan.documents import KINDS, PlanDocument, read_plan, write_plan
from shoal.dataflow.plan.foreign import ForeignConnector
from shoal.dataflow.plan.prepare import sketch
from tests.unit.dataflow.blobs import forget_blobs
from tests.unit.dataflow.plan.interpreter import results
from tests.unit.dataflow.plan.plans import Same, plans


def nothing(_batch: Any) -> None:
    """A sink."""


def end(*streams: Stream) -> list[Node]:
    return [Sink(inputs=(each.node,), connector=CallbackSink(make_ref(nothing))) for each in streams]


def rows() -> Stream:
    stream = Stream.from_dicts([{"id": 1, "user": "a", "amount": 1.5, "ts": 5}])
    return stream.event_time("ts", unit="us", disorder="3s")


def every_kind() -> list[Node]:
    """A plan with every kind of node in it."""
    base = rows().filter(col("id") > 1).with_columns(x=col("amount") * 2).uid("x").with_parallelism(3)
    opaque = base.map(lambda b: b, schema=base.schema, on_error="side")
    records = opaque.records().flat_map(lambda r: [r], schema=base.schema).batches()
    merged = Stream.merge(records.union(base).with_resources(memory="1GB", cpu=0.5), base, by="id")
    again = merged.event_time("ts", unit="us")
    windowed = again.group_by("user").window(sliding(60, 20), allowed_lateness="5s").sum("amount")
    joined = again.join(base, on="id", how="left", window=tumbling(seconds=5), suffix="_r")
    asof = again.asof_join(base, on="id", tolerance="1m", direction="nearest")
    reduced = again.key_by("user").window(session(gap_seconds=1)).reduce(lambda a, b: a)
    processed = again.key_by("user").process(nothing, schema={"a": "int64"})
    custom = again.key_by("user").batches().apply(Same, keys=("user",), schema={"a": "int64"})
    counted = again.window(count(10, 5)).aggregate(v=("id", "variance", {"ddof": 1}))
    return end(
        *(windowed, joined, asof, reduced, processed, custom, counted, again.distinct("user", ttl="1h")),
        *(opaque.side_output("errors"), windowed.side_output("late")),
    )


def test_every_kind_of_node_comes_back() -> None:
    plan = every_kind()
    assert {type(node).__name__ for node in walk(*plan)} == set(KINDS)
    document = write_plan(plan)
    again = read_plan(PlanDocument(json.loads(document.to_json()), document.blobs))
    assert write_plan(again).to_json() == document.to_json()
    assert [type(node) for node in walk(*again)] == [type(node) for node in walk(*plan)]
    sketch(again)


@settings(max_examples=30)
@given(plan=plans())
def test_a_plan_that_was_written_down_gives_the_same_rows(plan: list[Node]) -> None:
    streams = [sink.inputs[0] for sink in plan]
    ended = [Sink(inputs=(each,), connector=CallbackSink(make_ref(nothing))) for each in streams]
    for node in walk(*ended):
        connector = getattr(node, "connector", None)
        if connector is not None and type(connector).__name__ == "WholeSource":
            return  # a source of this test's own
    document = write_plan(ended)
    again = read_plan(document.to_json(), document.blobs)
    assert write_plan(again).body == document.body
    add_blobs(document.blobs)
    try:
        assert results(again) == results(ended)
    finally:
        forget_blobs(list(document.blobs))


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(timezones=st.one_of(st.none(), st.just(dt.UTC)), allow_imaginary=False).map(
        lambda t: t.replace(fold=0)
    ),
    st.dates(),
    st.times().map(lambda t: t.replace(fold=0)),
    st.timedeltas(),
    st.lists(st.integers(), max_size=3).map(tuple),
)


@given(value=values)
def test_every_constant_comes_back_as_it_was(value: Any) -> None:
    stream = Stream.from_iterable(list).filter(col("x") == 1)
    node = stream.node
    assert isinstance(node, Filter)
    plan = end(
        Stream.from_iterable(list).filter(col("x").isin(value) if isinstance(value, tuple) else col("x") == lit(value))
    )
    document = write_plan(plan)
    again = read_plan(document.to_json(), document.blobs)
    before, after = (next(n for n in walk(*each) if isinstance(n, Filter)).predicate for each in (plan, again))
    assert same(before, after)  # type: ignore[arg-type]


def test_functions_are_names_until_they_are_called() -> None:
    def explosive(batch: Any) -> Any:
        return batch.num_rows + 41

    document = write_plan(end(rows().map(explosive)))
    spoilt = PlanDocument(
        document.body,
        {name: b"not a pickle" for name in document.blobs if name.startswith("fn-")}
        | {name: blob for name, blob in document.blobs.items() if not name.startswith("fn-")},
    )
    again = read_plan(spoilt)
    sketch(again)  # optimised and explained without a look at it
    node = next(each for each in walk(*again) if isinstance(each, MapBatches))
    assert node.function.label == "explosive"
    add_blobs(document.blobs)
    try:
        assert callable_of(node.function)(pa.record_batch({"a": [1]})) == 42
    finally:
        forget_blobs(list(document.blobs))


def test_the_same_plan_is_the_same_document() -> None:
    one, other = (write_plan(every_kind()) for _ in range(2))
    assert one.to_json() == other.to_json()


def test_what_stays_in_its_process_is_refused_with_its_line() -> None:
    from shoal.dataflow.connectors.memory import CollectSink

    with pytest.raises(PlanError, match="collects into the memory of this process") as caught:
        write_plan([Sink(inputs=(rows().node,), connector=CollectSink())])
    assert "to_parquet" in caught.value.hint
    with pytest.raises(PlanError, match=r"test_documents\.py:\d+: .*cannot be written down"):
        write_plan(end(Stream.from_iterable({"a": n} for n in range(3))))


class HomeMade:
    """A source of a user's own, which this package knows nothing of."""

    label = "home made"
    is_bounded = False

    def find_schema(self) -> Any:
        return pa.schema([("a", pa.int64())])

    def open_reader(self, *_: Any, **__: Any) -> Any:
        return "a reader"


def test_a_connector_of_the_users_own_travels_as_a_blob() -> None:
    document = write_plan(end(Stream.from_source(HomeMade())))  # type: ignore[arg-type]
    again = read_plan(document)
    connector = next(node for node in walk(*again) if not node.inputs).connector  # type: ignore[attr-defined]
    assert isinstance(connector, ForeignConnector)
    assert (connector.label, connector.is_bounded, connector.modes) == ("home made", False, frozenset())
    assert write_plan(again).body == document.body
    add_blobs(document.blobs)
    try:
        assert connector.find_schema() == pa.schema([("a", pa.int64())])
        assert connector.open_reader((), None, clock=None) == "a reader"  # type: ignore[arg-type]
    finally:
        forget_blobs(list(document.blobs))


def test_modes_of_a_foreign_sink_are_known() -> None:
    class Sinking(HomeMade):
        modes = frozenset({SinkMode.UPSERT})

        def open_writer(self, *_: Any) -> Any:
            return None

    assert ForeignConnector.describing(Sinking(), "x").modes == frozenset({SinkMode.UPSERT})


# ---------------------------------------------------------------------------------------------------------
# What is no document


def good() -> dict[str, Any]:
    stream = rows().filter(col("id") > 1).group_by("user").window(tumbling(seconds=5)).sum("amount")
    document = write_plan(end(stream))
    body: dict[str, Any] = json.loads(document.to_json())
    return body


BLOBS = write_plan(end(rows())).blobs


def at(path: str, body: Any) -> tuple[Any, Any]:
    *steps, last = [int(each) if each.isdigit() else each for each in path.split(".")]
    for step in steps:
        body = body[step]
    return body, last


@pytest.mark.parametrize(
    ("path", "value", "field", "said"),
    [
        ("format", 2, "format", "a newer version of Shoal"),
        ("nodes", 5, "nodes", "must be a list"),
        ("sinks", [], "sinks", "must be a list of numbers"),
        ("sinks", [99], "sinks[0]", "must be the number of an earlier node"),
        ("sinks", [0], "sinks", "must be numbers of Sink nodes"),
        ("more", 1, "more", "is not a known field"),
        ("nodes.0.node", "Sauce", "nodes[0].node", "must be one of"),
        ("nodes.1.inputs", [1], "nodes[1].inputs[0]", "must be the number of an earlier node"),
        ("nodes.1.inputs", [], "nodes[1].inputs", "of a Filter must be 1"),
        ("nodes.1.inputs", "0", "nodes[1].inputs", "must be a list"),
        ("nodes.1.predicat", 1, "nodes[1].predicat", "did you mean predicate?"),
        ("nodes.1.predicate", 7, "nodes[1].predicate", "must be an expression or a FunctionRef"),
        ("nodes.1.predicate.$", "Kall", "nodes[1].predicate.$", "is no kind of value"),
        ("nodes.1.predicate.parts.0.name", 7, "nodes[1].predicate.parts[0].name", "must be text"),
        ("nodes.1.predicate.parts.2.of", [0, 2], "nodes[1].predicate.parts[2].of", "earlier parts"),
        ("nodes.1.predicate.parts", [], "nodes[1].predicate.parts", "must be a list of parts"),
        ("nodes.1.predicate.parts.0", 5, "nodes[1].predicate.parts[0]", "must be an expression"),
        ("nodes.1.parallelism", "two", "nodes[1].parallelism", "must be a whole number"),
        ("nodes.2.keys", "user", "nodes[2].keys", "must be a list of text"),
        ("nodes.2.window.size", -1, "nodes[2].window.size", "must be above 0"),
        ("nodes.2.window.extra", 1, "nodes[2].window.extra", "is not a known field"),
        ("nodes.0.schema.ipc", "%%%", "nodes[0].schema", "is no schema"),
        ("nodes.0.connector.class", "os:system", "nodes[0].connector.class", "is no connector"),
        ("nodes.0.connector.class", "memory:Collected", "nodes[0].connector.class", "is no connector"),
        ("nodes.0.connector.fields.nope", 1, "nodes[0].connector.fields.nope", "is not a known field"),
        (
            "nodes.0.connector.fields.most_splits",
            "a",
            "nodes[0].connector.fields.most_splits",
            "must be a whole number",
        ),
        (
            "nodes.0.connector.fields.batches.0.blob",
            "batch-x",
            "nodes[0].connector.fields.batches[0]",
            "not beside the document",
        ),
        ("nodes.0.time", {"$": "EventTime", "disorder": "x"}, "nodes[0].time.disorder", "must be a whole number"),
        ("nodes.2.firing", {"$": "decimal", "value": "x"}, "nodes[2].firing", "is no decimal"),
    ],
)
def test_bad_fields_are_named(path: str, value: Any, field: str, said: str) -> None:
    body = good()
    place, last = at(path, body)
    place[last] = value
    with pytest.raises(DocumentError) as caught:
        read_plan(body, BLOBS)
    assert (field, True) in [(each.field, said in each.rule) for each in caught.value.problems]


def test_a_field_that_is_missing_is_named() -> None:
    body = good()
    del body["nodes"][2]["keys"], body["nodes"][1]["predicate"]
    with pytest.raises(DocumentError) as caught:
        read_plan(body, BLOBS)
    assert [each.field for each in caught.value.problems][:2] == ["nodes[1].predicate", "nodes[2].keys"]


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", '{"format": 1}', "[" * 100_000])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(DocumentError):
        read_plan(text)


def test_an_expression_that_is_nested_without_end_is_refused() -> None:
    body = good()
    deep: Any = {"$": "Column", "name": "a"}
    for _ in range(5_000):
        deep = {"$": "Call", "parts": [deep]}
    body["nodes"][1]["predicate"] = deep
    with pytest.raises(DocumentError, match="nested too deep"):
        read_plan(body, BLOBS)


@st.composite
def spoilt(draw: st.DrawFn) -> Any:
    """A document with one thing replaced by anything."""
    body = copy.deepcopy(GOOD)
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            visit(value[key])

    visit(body)
    place, key = draw(st.sampled_from(places))
    junk = st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just([]), st.just({}), st.just([[]])
    )
    place[key] = draw(junk)
    return body


GOOD = good()


@settings(max_examples=200)
@given(body=spoilt())
def test_no_document_does_anything_else_than_be_read_or_be_refused(body: Any) -> None:
    try:
        sinks = read_plan(body, BLOBS)
    except DocumentError:
        return
    assert all(isinstance(node, Node) for node in walk(*sinks))


def test_a_batch_source_comes_back_with_its_rows() -> None:
    document = write_plan(end(Stream.from_dicts([{"a": Decimal("1.5")}, {"a": None}])))
    again = read_plan(document)
    connector = next(iter(walk(*again))).connector  # type: ignore[attr-defined]
    assert isinstance(connector, BatchesSource)
    assert connector.batches[0].to_pylist() == [{"a": Decimal("1.5")}, {"a": None}]


def test_literals_are_not_mistaken_for_each_other() -> None:
    assert not same(Literal(1), Literal(True))
