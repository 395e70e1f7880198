"""Users' functions: names, what they read, where they stand, and their way into bytes and back."""

from __future__ import annotations

import functools
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from shoal.core.errors import NotFoundError
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language import functions
from shoal.dataflow.language.functions import (
    add_blobs,
    callable_of,
    find_location,
    label_of,
    make_ref,
    pickle_function,
)
from shoal.dataflow.language.logical import FunctionRef, MapBatches, MapRecords, Node
from shoal.dataflow.operators.record import Record
from shoal.dataflow.plan.probing import as_batch, plain_batch, try_function
from tests.unit.dataflow.blobs import forget_blobs

OUTSIDE = "amount"


def named(batch):
    return batch


def reads_and_assigns(b):
    b = b["x"]
    return pc.add(b, b)


def reads_in_a_loop(b):
    total = b["x"]
    for _ in range(2):
        total = pc.add(total, b.column("x"))
    return total


def reads_within(b):
    return [b["x"] for _ in range(1)]


@pytest.mark.parametrize(
    ("function", "column"),
    [
        (lambda b: pc.multiply(b["total"], 1.1), "total"),
        (lambda b: b.column("total"), "total"),
        (lambda b: pc.add(b["x"], pa.array([1] * b.num_rows)), "x"),
        (lambda b: pc.add(b["x"], b["x"]), "x"),
        (lambda b: pc.add(b["x"], b["y"]), ""),
        (lambda b: b[OUTSIDE], ""),
        (lambda b: b, ""),
        (lambda b: len(b), ""),  # noqa: PLW0108
        (lambda b: b.filter(b["x"]), ""),
        (lambda b, c="x": b[c], ""),
        (lambda: 1, ""),
        (reads_and_assigns, ""),
        (reads_in_a_loop, "x"),
        (print, ""),
    ],
)
def test_the_one_column_that_a_function_reads(function, column):
    assert functions.reads_of(function) == column


def test_an_inner_function_makes_it_unsure():
    # On some versions of Python a comprehension is an inner function, on others it is not: then it is seen.
    assert functions.reads_of(reads_within) in ("", "x")


def test_labels():
    assert label_of(named) == "named"
    assert label_of(lambda b: b).startswith("lambda test_functions.py:")
    assert label_of(Record) == "Record"
    assert label_of(object()) == "object"


def test_the_users_line_is_the_first_outside():
    at = find_location()
    assert at is not None
    assert at.file.endswith("test_functions.py")
    assert at.function == "test_the_users_line_is_the_first_outside"


def test_a_function_stays_itself_in_its_process():
    ref = make_ref(named)
    assert ref.name == ""
    assert callable_of(ref) is named


def test_what_is_no_function_is_refused():
    with pytest.raises(PlanError, match="must be a function or an expression"):
        make_ref("amount > 5")  # type: ignore[arg-type]


def test_a_function_comes_back_from_its_bytes():
    factor = 3
    ref = make_ref(lambda x: x * factor)
    name, blob = pickle_function(ref)
    assert pickle_function(ref) == (name, blob)
    away = FunctionRef(name, ref.label)
    with pytest.raises(NotFoundError, match="lambda"):
        callable_of(away)
    add_blobs({name: blob})
    try:
        assert callable_of(away)(5) == 15
        assert pickle_function(away) == (name, blob)
    finally:
        forget_blobs([name])
    with pytest.raises(NotFoundError):
        callable_of(away)


def test_closures_over_unlike_values_are_unlike():
    """Functions of one line of text with other values behind them must not be taken for each other."""
    one, other = (pickle_function(make_ref(lambda x, n=n: x + n))[0] for n in (1, 2))
    assert one != other


def test_what_cannot_be_pickled_says_so():
    import threading

    lock = threading.Lock()
    with pytest.raises(PlanError, match=r"lambda .* cannot be written down: .*lock") as caught:
        pickle_function(make_ref(lambda x: lock))
    assert "inside the function" in caught.value.hint


# ---------------------------------------------------------------------------------------------------------
# Trying functions

SCHEMA = pa.schema(
    [("a", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("ms", tz="UTC")), ("l", pa.list_(pa.int8()))]
)


def probe(function, *, flat=False):
    node: Node = MapBatches(function=make_ref(function), flat=flat)
    return try_function(node, SCHEMA)


def test_plain_values_are_of_every_type():
    kinds = [
        *(
            pa.int8(),
            pa.uint64(),
            pa.float16(),
            pa.float64(),
            pa.decimal128(4, 2),
            pa.bool_(),
            pa.string(),
            pa.binary(),
        ),
        *(pa.large_string(), pa.date32(), pa.time64("us"), pa.duration("ms"), pa.timestamp("ns"), pa.null()),
        *(
            pa.struct([("x", pa.int8())]),
            pa.list_(pa.string()),
            pa.dictionary(pa.int8(), pa.string()),
            pa.string_view(),
        ),
    ]
    schema = pa.schema([pa.field(f"c{n}", kind) for n, kind in enumerate(kinds)])
    batch = plain_batch(schema)
    assert batch.num_rows == 1
    assert batch.schema == schema
    assert sum(column.null_count for column in batch.columns) == 1  # of the null type alone


def test_what_a_function_gives_is_found_by_trying_it():
    assert probe(lambda b: b) == SCHEMA
    assert probe(lambda b: pc.multiply(b["a"], 2)) == pa.schema([("a", pa.int64())])
    assert probe(lambda b: pa.table({"x": pc.add(b["a"], 1.5)})) == pa.schema([("x", pa.float64())])
    assert probe(lambda b: {"x": b["s"], "y": b["a"]}) == pa.schema([("x", pa.string()), ("y", pa.int64())])
    assert probe(lambda b: pc.add(b["a"], pc.utf8_length(b["s"]))) == pa.schema([("value", pa.int64())])
    assert probe(lambda b: [b.select(["a"]), b], flat=True) == pa.schema([("a", pa.int64())])
    assert probe(lambda b: b, flat=True) == SCHEMA
    assert probe(lambda b: pa.table({"x": b["a"], "y": b["s"]}), flat=True).names == ["x", "y"]


def test_a_function_that_does_not_like_plain_values_is_no_error():
    assert probe(lambda b: 1 / 0) is None
    assert probe(lambda b: [], flat=True) is None
    assert probe(lambda b: None, flat=True) is None  # no rows


def nothing(batch):
    batch.column("a")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (nothing, "map nothing: must return a RecordBatch, .*, and returned nothing"),
        (lambda b: 5, "map lambda .*: must return .*, and returned int 5"),
        (lambda b: "no batch", "map lambda .*: must return .*, and returned str 'no batch'"),
        (lambda b: pc.sum(b["a"]), "map lambda .*: must return .*, and returned Int64Scalar"),
    ],
)
def test_a_function_that_returns_what_can_be_no_rows_is_refused(function, said):
    with pytest.raises(PlanError, match=said) as caught:
        probe(function)
    assert "whole batches" in caught.value.hint
    assert ("lack a return" in caught.value.hint) == (function is nothing)


def test_a_flat_function_too():
    with pytest.raises(PlanError, match=r"flat_map lambda .*: must return .*, and returned str 'abc'"):
        probe(lambda b: "abc", flat=True)


def test_record_functions_are_tried_too():
    def tried(function, kind="map"):
        return try_function(MapRecords(function=make_ref(function), kind=kind), SCHEMA)

    assert tried(lambda r: {"x": r.a + 1.5}) == pa.schema([("x", pa.float64())])
    assert tried(lambda r: r["s"]) == pa.schema([("value", pa.string())])
    assert tried(lambda r: [{"x": 1}, {"y": "b"}], "flat_map") == pa.schema([("x", pa.int64()), ("y", pa.string())])
    assert tried(lambda r: {"x": 1}, "flat_map") == pa.schema([("x", pa.int64())])  # one row, not its keys
    assert tried(lambda r: {"x": None}) is None  # it may be anything
    assert tried(lambda r: 5, "flat_map") == pa.schema([("value", pa.int64())])
    assert tried(lambda r: None, "flat_map") is None


def test_record_functions_are_tried_with_one_record():
    seen = []

    def counted(record):
        seen.append(dict(record))
        return {"n": len(seen)}

    node = MapRecords(function=make_ref(counted))
    assert try_function(node, SCHEMA) == pa.schema([("n", pa.int64())])
    assert len(seen) == 1
    assert try_function(replace(node, probe=False), SCHEMA) is None
    assert len(seen) == 1


class Halved:
    def __call__(self, record):
        return 0 if record.a < 2 else record.a / 2


@pytest.mark.parametrize(
    "function",
    [
        lambda r: {"x": 0 if r.a < 2 else 0.5},
        lambda r: {"x": 0 if r.a < 2 else r.a / 2},
        lambda r: {"x": max(each for each in (0, *(0.5 for _ in range(r.a - 1))))},
        Halved(),
        functools.partial(lambda half, r: {"x": 0 if r.a < 2 else r.a / half}, 2),
    ],
)
def test_whole_numbers_do_not_decide_where_the_code_has_fractions(function):
    assert try_function(MapRecords(function=make_ref(function)), SCHEMA) is None


def test_functions_that_await_are_tried_too():
    async def doubled(record):
        return {"x": record.a * 2}

    async def both(record):
        yield {"x": record.a}
        yield {"x": record.a}

    for function in (doubled, both):
        node = MapRecords(function=make_ref(function), kind="map")
        assert try_function(node, SCHEMA) == pa.schema([("x", pa.int64())])


def test_results_that_are_no_batch_are_named():
    with pytest.raises(TypeError, match=r"named must return a RecordBatch, .* and returned int"):
        as_batch(5, make_ref(named))


def test_records_give_items_and_attributes():
    record = Record({"total": 5, "customer": {"name": "x"}})
    assert record["total"] == record.total == 5
    assert record.customer.name == "x"
    record.total = 6
    assert record["total"] == 6
    with pytest.raises(AttributeError, match="did you mean 'total'"):
        _ = record.totl
    assert {**record} == {"total": 6, "customer": {"name": "x"}}
