"""Prepared plans as documents: what tasks are built from comes back, and what is none is refused with the field."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import tumbling
from shoal.dataflow.connectors.files.sources import ParquetSource
from shoal.dataflow.connectors.memory import CollectSink, IterableSource
from shoal.dataflow.errors import DocumentError, PlanError
from shoal.dataflow.execution import engine
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.language.functions import add_blobs
from shoal.dataflow.language.logical import Sink, walk
from shoal.dataflow.plan.documents import PlanDocument
from shoal.dataflow.plan.physical import describe_plan, plan
from shoal.dataflow.plan.prepare import Prepared, prepare, sketch
from shoal.dataflow.plan.prepared import FORMAT, read_prepared, write_prepared
from tests.unit.dataflow.blobs import forget_blobs
from tests.unit.dataflow.plan.test_documents import end, every_kind, rows

GOLDEN = Path(__file__).parents[3] / "golden" / "dataflow" / "prepared.json"


def written(prepared: Prepared, parallelism: int = 2, *, is_local: bool = False) -> PlanDocument:
    return write_prepared(prepared, plan(prepared.sinks, parallelism=parallelism), is_local=is_local)


def golden_plan() -> Prepared:
    """A plan without functions: their bytes differ from one version of Python to the next."""
    columns = pa.schema([("user", pa.utf8()), ("amount", pa.float64()), ("ts", pa.timestamp("us"))])
    events = Stream.from_source(ParquetSource("/data/events"), schema=columns)
    names = Stream.from_source(
        ParquetSource("/data/users"), schema=pa.schema([("user", pa.utf8()), ("name", pa.utf8())])
    )
    stream = events.event_time("ts", disorder="3s").filter(col("amount") > 1)
    sums = stream.group_by("user").window(tumbling(seconds=10)).sum("amount").uid("sums")
    joined = sums.join(names, on="user", how="left").uid("joined")
    return sketch([joined.to_parquet("/data/out").node, stream.to_csv("/data/large").node])


def without_lines(body: Any) -> Any:
    """A document without the lines of the program: they are this file's."""
    if isinstance(body, dict):
        return {key: without_lines(value) for key, value in body.items() if key not in ("at", "parallelism_at")}
    return [without_lines(each) for each in body] if isinstance(body, list) else body


@pytest.mark.parametrize("parallelism", [1, 2, 3, 128])
def test_every_kind_of_node_comes_back(parallelism: int) -> None:
    prepared = sketch(every_kind())
    document = written(prepared, parallelism)
    again = read_prepared(PlanDocument(json.loads(document.to_json()), document.blobs))
    assert describe_plan(again.physical) == describe_plan(plan(prepared.sinks, parallelism=parallelism))
    assert list(again.facts.values()) == [prepared.facts[node] for node in walk(*prepared.sinks)]


def test_it_is_the_same_as_the_golden_one() -> None:
    """A change here changes what other processes read: raise FORMAT when an older one could not."""
    document = written(golden_plan())
    text = json.dumps(without_lines(document.body), indent=1, sort_keys=True) + "\n"
    if os.environ.get("SHOAL_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert document.blobs == {}
    read_prepared(PlanDocument(json.loads(text)))


def test_a_newer_format_is_refused_in_words() -> None:
    body = {**written(golden_plan()).body, "format": FORMAT + 1}
    with pytest.raises(DocumentError, match="a newer version of Shoal wrote this, and this one cannot run it"):
        read_prepared(PlanDocument(body))


def test_a_document_for_this_process_names_live_objects() -> None:
    sink = CollectSink()
    stream = Stream.from_batches([pa.record_batch({"a": [1, 2]})]).map(lambda b: b)
    prepared = prepare([Sink(inputs=(stream.node,), connector=sink)])
    document = written(prepared, is_local=True)
    nodes = {type(step.node): step.node for stage in read_prepared(document).physical.stages for step in stage.steps}
    assert nodes[Sink].connector is sink  # type: ignore[attr-defined]
    assert document.blobs == {}
    with pytest.raises(DocumentError, match="names an object of another process"):
        read_prepared(PlanDocument(json.loads(document.to_json())))
    with pytest.raises(PlanError, match="collects into the memory of this process"):
        written(prepared)


def test_functions_data_and_connectors_of_users_are_blobs_by_hash() -> None:
    captured = [1, 2]
    one = written(prepare(end(rows().map(lambda b: b.slice(0, captured[0])))))
    captured[0] = 2
    other = written(prepare(end(rows().map(lambda b: b.slice(0, captured[0])))))
    assert len(one.blobs) == 3  # the rows, the function and the callback
    assert one.blobs.keys() != other.blobs.keys()
    add_blobs(one.blobs)
    try:
        read_prepared(one)
    finally:
        forget_blobs(list(one.blobs))


def test_nothing_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    before = IterableSource.find_schema

    def find_schema(self: IterableSource) -> Any:
        calls.append("schema")
        return before(self)

    def double(batch: Any) -> Any:
        calls.append("function")
        return batch

    monkeypatch.setattr(IterableSource, "find_schema", find_schema)
    sink = CollectSink()
    stream = Stream.from_iterable(lambda: [{"a": 1}, {"a": 2}]).map(double)
    prepared = prepare([Sink(inputs=(stream.node,), connector=sink)])
    asked = list(calls)
    assert "schema" in asked
    engine.run_prepared(prepared, parallelism=2)
    assert calls == [*asked, "function"]


GOOD = written(sketch(every_kind()))


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("facts",), [], "facts"),
        (("facts", 0), {"$": "Edge"}, "facts[0]"),
        (("facts", 0, "bounded"), 3, "facts[0].bounded"),
        (("key_groups",), 0, "key_groups"),
        (("key_groups",), "128", "key_groups"),
        (("stages",), None, "stages"),
        (("stages", 0, "parallelism"), 129, "stages[0].parallelism"),
        (("stages", 0, "steps"), [], "stages[0].steps"),
        (("stages", 0, "steps", 0), 1, "stages[0].steps[0]"),
        (("stages", 0, "steps", 0, "uid"), "", "stages[0].steps[0].uid"),
        (("stages", 0, "steps", 0, "node"), 10_000, "stages[0].steps[0].node"),
        (("stages", 0, "steps", 0, "node"), True, "stages[0].steps[0].node"),
        (("stages", 0, "steps", 0, "role"), "all", "stages[0].steps[0].role"),
        (("stages", 0, "steps", 1, "links", 0, "step"), 1, "stages[0].steps[1].links"),
        (("edges", 0, "target"), 99, "edges[0]"),
        (("edges", 0, "source_step"), -1, "edges[0]"),
        (("edges", 0, "exchange"), "hash", "edges[0].exchange"),
        (("nodes", 0, "connector"), 5, "nodes[0]"),
        (("more",), 1, "more"),
    ],
)
def test_what_is_no_document_is_refused_with_the_field(path: tuple[Any, ...], value: Any, named: str) -> None:
    body: Any = copy.deepcopy(json.loads(GOOD.to_json()))
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(DocumentError) as raised:
        read_prepared(PlanDocument(body, GOOD.blobs))
    assert any(each.field.startswith(named) for each in raised.value.problems), raised.value.problems


@settings(max_examples=100)
@given(data=st.data())
def test_no_document_raises_anything_else(data: st.DataObject) -> None:
    body: Any = json.loads(GOOD.to_json())
    inner, key = body, data.draw(st.sampled_from(sorted(body)))
    while isinstance(inner[key], dict | list) and inner[key] and data.draw(st.integers(0, 5)):
        inner = inner[key]
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else list(range(len(inner)))))
    inner[key] = data.draw(st.one_of(st.none(), st.integers(), st.text(), st.booleans(), st.just([]), st.just({})))
    try:
        read_prepared(PlanDocument(body, GOOD.blobs))
    except DocumentError:
        return
