"""Expressions over real batches: values, types, nulls, and the words of what cannot be."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.dataflow.api.streams import fn
from shoal.dataflow.errors import ExpressionError, Location, PlanError
from shoal.dataflow.language.binding import bind, bind_predicate
from shoal.dataflow.language.expressions.kernels import KERNELS
from shoal.dataflow.language.expressions.trees import Expression, col, describe, lit, same
from tests.unit.dataflow.plan.interpreter import RowError, value_of
from tests.unit.dataflow.plan.plans import BOOL, INT, TEXT, expressions, tables

UTC = dt.UTC


def naive(text: str) -> dt.datetime:
    """A time without a zone."""
    return dt.datetime.fromisoformat(text)


HERE = Location("orders.py", 9)

BATCH = pa.record_batch(
    {
        "i": pa.array([7, -7, None, 0], pa.int64()),
        "j": pa.array([2, 0, 3, -2], pa.int64()),
        "i8": pa.array([127, 1, 2, 3], pa.int8()),
        "u": pa.array([1, 2, 3, 4], pa.uint64()),
        "f": pa.array([1.5, -2.5, None, 0.0], pa.float64()),
        "f32": pa.array([0.1, 0.2, 0.3, 0.4], pa.float32()),
        "s": pa.array(["a", "b", None, "Ccc"]),
        "big": pa.array(["a", "b", None, "Ccc"], pa.large_string()),
        "k": pa.array(["x", "y", "x", "z"]).dictionary_encode(),
        "b": pa.array([True, False, None, True]),
        "raw": pa.array([b"a", b"b", b"c", None]),
        "t": pa.array([0, 1000, 2000, None], pa.timestamp("ms")),
        "z": pa.array([0, 1000, 2000, None], pa.timestamp("us", tz="UTC")),
        "day": pa.array([dt.date(2024, 1, 1), None, dt.date(2024, 6, 1), dt.date(1999, 12, 31)]),
        "d": pa.array([Decimal("1.10"), Decimal("2.20"), None, Decimal(-3)], pa.decimal128(10, 2)),
        "st": pa.array([{"x": 1}, {"x": 2}, None, {"x": 4}]),
        "l": pa.array([[1, 2], [3], None, [4, 5]]),
    }
)


def evaluate(expression: Expression) -> list[Any]:
    bound = bind(expression, BATCH.schema)
    array = bound.evaluate(BATCH)
    assert array.type == bound.type
    assert len(array) == BATCH.num_rows
    values: list[Any] = array.to_pylist()
    return values


@pytest.mark.parametrize(
    ("expression", "values", "kind"),
    [
        # Whole numbers: in int64, rounding down, null where the divisor is 0.
        (col("i") // 2, [3, -4, None, 0], pa.int64()),
        (col("i") % 2, [1, 1, None, 0], pa.int64()),
        (col("i") // col("j"), [3, None, None, 0], pa.int64()),
        (col("i") % col("j"), [1, None, None, 0], pa.int64()),
        (7 // col("j"), [3, None, 2, -4], pa.int64()),
        (7 % col("j"), [1, None, 1, -1], pa.int64()),
        (col("i8") + 1, [128, 2, 3, 4], pa.int64()),
        (col("u") + 1, [2, 3, 4, 5], pa.uint64()),
        (col("u") - 2, [-1, 0, 1, 2], pa.int64()),
        (col("u") + col("i"), [8, -5, None, 4], pa.int64()),
        (-col("i"), [-7, 7, None, 0], pa.int64()),
        (col("i") + None, [None] * 4, pa.int64()),
        # Floats.
        (col("i") / 2, [3.5, -3.5, None, 0.0], pa.float64()),
        (col("i") * 1.5, [10.5, -10.5, None, 0.0], pa.float64()),
        (col("f") // 1, [1.0, -3.0, None, 0.0], pa.float64()),
        (col("f") % 1, [0.5, 0.5, None, 0.0], pa.float64()),
        (col("f32") > 0.1, [False, True, True, True], pa.bool_()),
        (col("i") > 1.5, [True, False, None, False], pa.bool_()),
        (col("i") ** 2, [49.0, 49.0, None, 0.0], pa.float64()),
        # Decimals.
        (col("d") + 1, [Decimal("2.10"), Decimal("3.20"), None, Decimal("-2.00")], pa.decimal128(11, 2)),
        (col("d") * 2.5, [2.75, 5.5, None, -7.5], pa.float64()),
        (col("d") == Decimal("1.1"), [True, False, None, False], pa.bool_()),
        (col("d") > 2, [False, True, None, False], pa.bool_()),
        # Text.
        (col("s") + "!", ["a!", "b!", None, "Ccc!"], pa.string()),
        (col("s") == col("big"), [True, True, None, True], pa.bool_()),
        (col("k") == "x", [True, False, True, False], pa.bool_()),
        (col("raw") == b"b", [False, True, False, None], pa.bool_()),
        # Time: the finer unit wins, no zone is UTC, a text is ISO.
        (col("t") > naive("1970-01-01T00:00:01"), [False, False, True, None], pa.bool_()),
        (col("t") >= naive("1970-01-01T00:00:00.000500"), [False, True, True, None], pa.bool_()),
        (col("t") >= "1970-01-01T00:00:01", [False, True, True, None], pa.bool_()),
        (col("z") > naive("1970-01-01T00:00:00"), [False, True, True, None], pa.bool_()),
        (
            col("z") < dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
            [False] * 3 + [None],
            pa.bool_(),
        ),
        (col("t") > col("z"), [False, True, True, None], pa.bool_()),
        (
            col("t") - naive("1970-01-01T00:00:00"),
            [dt.timedelta(seconds=n) for n in range(3)] + [None],
            pa.duration("ms"),
        ),
        ((col("t") + dt.timedelta(seconds=1)) == "1970-01-01T00:00:02", [False, True, False, None], pa.bool_()),
        (col("day") > dt.date(2024, 1, 1), [False, None, True, False], pa.bool_()),
        (col("day") > "2024-01-01", [False, None, True, False], pa.bool_()),
        (col("day") >= naive("2024-01-01T01:00:00"), [False, None, True, False], pa.bool_()),
        # Logic of three values.
        (col("b") & (col("i") > 0), [True, False, None, False], pa.bool_()),
        (col("b") | True, [True] * 4, pa.bool_()),
        (~col("b"), [False, True, None, False], pa.bool_()),
        (col("i").isin([7, 0]), [True, False, False, True], pa.bool_()),
        (col("s").isin(["a", None]), [True, False, False, False], pa.bool_()),
        (col("i").between(0, 7), [True, False, None, True], pa.bool_()),
        # Types and structure.
        (col("f").cast(int), [1, -2, None, 0], pa.int64()),
        (col("i").cast("string"), ["7", "-7", None, "0"], pa.string()),
        (
            col("i").cast(pa.decimal128(5, 1)),
            [Decimal("7.0"), Decimal("-7.0"), None, Decimal("0.0")],
            pa.decimal128(5, 1),
        ),
        (col("st").field("x"), [1, 2, None, 4], pa.int64()),
        (fn.list_element(col("l"), 0), [1, 3, None, 4], pa.int64()),
        (fn.list_length(col("l")), [2, 1, None, 2], pa.int32()),
        (col("i").fill_null(1), [7, -7, 1, 0], pa.int64()),
        (lit(3), [3] * 4, pa.int64()),
        (lit(None), [None] * 4, pa.null()),
        # Functions.
        (fn.upper(col("s")), ["A", "B", None, "CCC"], pa.string()),
        (fn.substring(col("s"), 1, 1), ["", "", None, "c"], pa.string()),
        (fn.replace(col("s"), "c", "-"), ["a", "b", None, "C--"], pa.string()),
        (fn.concat(col("s"), "-", col("k")), ["a-x", "b-y", None, "Ccc-z"], pa.string()),
        (fn.matches(col("s"), "^[ab]"), [True, True, None, False], pa.bool_()),
        (fn.length(col("k")), [1] * 4, pa.int32()),
        (fn.round(col("f")), [2.0, -2.0, None, 0.0], pa.float64()),
        (fn.abs(col("i")), [7, 7, None, 0], pa.int64()),
        (fn.sqrt(col("u") * col("u")), [1.0, 2.0, 3.0, 4.0], pa.float64()),
        (fn.greatest(col("i"), col("j"), 1), [7, 1, 3, 1], pa.int64()),
        (fn.coalesce(col("i"), col("j"), 0), [7, -7, 3, 0], pa.int64()),
        (fn.if_else(col("i") > 0, "pos", "not"), ["pos", "not", None, "not"], pa.string()),
        (fn.null_if(col("i"), 0), [7, -7, None, None], pa.int64()),
        (fn.year(col("day")), [2024, None, 2024, 1999], pa.int64()),
        (fn.day_of_week(col("day")), [1, None, 6, 5], pa.int64()),
        (fn.truncate(col("t"), "minute") == "1970-01-01", [True, True, True, None], pa.bool_()),
        (fn.epoch(col("t"), "s"), [0, 1, 2, None], pa.int64()),
        (fn.to_timestamp(col("j"), "s") > "1970-01-01", [True, False, True, False], pa.bool_()),
    ],
    ids=lambda value: describe(value)[:50] if isinstance(value, Expression) else "",
)
def test_values_and_types(expression: Expression, values: list[Any], kind: Any) -> None:
    assert evaluate(expression) == values
    assert bind(expression, BATCH.schema).type == kind


@pytest.mark.parametrize(
    ("expression", "said", "hint"),
    [
        (col("ii") > 1, "column 'ii': does not exist; did you mean 'i'?", ""),
        (col("S") == "a", "column 'S': does not exist; did you mean 's'?", ""),
        (col("s") > 5, "s > 5: string and int64 cannot be compared", 'col("s").cast("int64")'),
        (col("s") * 2, "s * 2: string and int64 cannot be multiplied", ""),
        (col("s") + col("i"), "s + i: i is int64, not text", 'col("i").cast("string")'),
        (col("i") & col("b"), "i & b: i is int64, and &, | and ~ take booleans", "parentheses"),
        (fn.upper(col("i")), "upper(i): i is int64, not text", 'col("i").cast("string")'),
        (fn.year(col("i")), "year(i): i is int64, not a time", "fn.to_timestamp"),
        (fn.if_else(col("i"), 1, 2), "the condition i is int64, not a boolean", ""),
        (fn.coalesce(col("i"), "x"), "int64 and string cannot be put into one column", ""),
        (col("i").cast("int46"), "'int46' is no type", "timestamp[us]"),
        (col("st").field("y"), "has no field 'y': there are x", ""),
        (col("i") == [1, 2], "is a list", "isin"),
        (lit([1]), "is a list", "isin"),
        (lit(object()), "constant: a object cannot be a constant", ""),
        (col("t") > "yesterday", "'yesterday' is not a time in ISO form", ""),
        (fn.truncate(col("t"), "fortnight"), "'fortnight' is no unit", ""),
        (fn.substring(col("s"), col("i")), "i must be a constant here", ""),  # type: ignore[arg-type]
        (col("d") // 2, "decimals have no // and %", ".cast"),
        (col("st") == col("st"), "is not possible with these types", ""),
    ],
    # Without addresses: workers that share the tests out have to find the same names.
    ids=lambda value: describe(value).partition(" at 0x")[0][:40] if isinstance(value, Expression) else "",
)
def test_what_cannot_be_says_the_line_and_what_to_write(expression: Expression, said: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        bind(expression, BATCH.schema, at=HERE)
    assert caught.value.at == HERE
    assert str(caught.value).startswith("orders.py:9: ")
    assert said in str(caught.value)
    assert hint in caught.value.hint


def test_a_filter_takes_booleans() -> None:
    with pytest.raises(PlanError, match="a filter needs true or false for each row, and this is int64"):
        bind_predicate(col("i") + 1, BATCH.schema, at=HERE)


def test_overflow_fails_instead_of_being_wrong() -> None:
    full = pa.record_batch({"i": pa.array([2**63 - 1])})
    with pytest.raises(ExpressionError, match=r"i \+ 1, from app\.py:7 raised ArrowInvalid: overflow") as raised:
        bind(col("i") + 1, full.schema, at=Location("app.py", 7)).evaluate(full)
    assert isinstance(raised.value.__cause__, pa.ArrowInvalid)


def test_more_columns_than_the_schema_do_no_harm() -> None:
    bound = bind(col("i") > 0, pa.schema([BATCH.schema.field("i")]))
    shuffled = BATCH.select(["s", "i", "t"]).append_column("__time", pa.array([1, 2, 3, 4]))
    assert bound.evaluate(shuffled).to_pylist() == [True, False, None, False]


def test_slices_and_empty_batches_are_seen_right() -> None:
    for expression in (col("i") // col("j"), col("i") % 3, col("f") // 1, -7 // col("j")):
        bound = bind(expression, BATCH.schema)
        whole = bound.evaluate(BATCH).to_pylist()
        for start in range(5):
            assert bound.evaluate(BATCH.slice(start)).to_pylist() == whole[start:]


def test_literals_are_typed_once() -> None:
    """A Python value in a kernel call costs more than the kernel."""
    bound = bind(col("i") > 5, BATCH.schema)
    before = pa.scalar
    try:
        pa.scalar = None
        assert bound.evaluate(BATCH).to_pylist() == [True, False, None, False]
    finally:
        pa.scalar = before


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = pa.schema([pa.field("a", pa.int64()), pa.field("a", pa.string())])
    with pytest.raises(PlanError, match="is there 2 times"):
        bind(col("a"), twice)


def test_every_kernel_can_be_reached() -> None:
    reached = {name for name in dir(fn) if not name.startswith("_")}
    operators = {
        *("add", "subtract", "multiply", "divide", "floor_divide", "modulo", "negate", "and", "or", "not", "cast"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "is_in", "is_null", "is_valid"),
        *("fill_null", "struct_field"),
    }
    assert set(KERNELS) <= reached | operators


def test_an_expression_has_no_truth() -> None:
    with pytest.raises(TypeError, match=r"use &, \| and ~"):
        bool(col("a") == 1)


def test_trees_are_compared_part_by_part() -> None:
    assert same(col("a") + 1 > 2, col("a") + 1 > 2)
    assert not same(col("a") + 1, col("a") + 1.0)
    assert same(lit(float("nan")), lit(float("nan")))
    assert not same(lit(True), lit(1))


COLUMNS = {"a": INT, "b": INT, "t": TEXT, "p": BOOL}


@given(data=st.data(), kind=st.sampled_from([INT, TEXT, BOOL]))
def test_kernels_agree_with_python(data: st.DataObject, kind: str) -> None:
    expression = data.draw(expressions(COLUMNS, kind))
    batches = data.draw(tables(COLUMNS))
    bound = bind(expression, batches[0].schema)
    for batch in filter(len, batches):
        try:
            expected = [value_of(expression, row) for row in batch.to_pylist()]
        except RowError:
            assume(False)
        assert bound.evaluate(batch).to_pylist() == expected


@given(
    a=st.lists(st.one_of(st.none(), st.integers(-(2**62), 2**62)), max_size=20),
    b=st.one_of(st.none(), st.integers(-(2**40), 2**40)),
)
def test_division_rounds_down_as_python_does(a: list[int | None], b: int | None) -> None:
    batch = pa.record_batch({"a": pa.array(a, pa.int64()), "b": pa.array([b] * len(a), pa.int64())})

    def expected(function: Any) -> list[int | None]:
        return [None if x is None or not b else function(x, b) for x in a]

    for divisor in (col("b"), lit(b).cast("int64")):
        assert bind(col("a") // divisor, batch.schema).evaluate(batch).to_pylist() == expected(lambda x, y: x // y)
        assert bind(col("a") % divisor, batch.schema).evaluate(batch).to_pylist() == expected(lambda x, y: x % y)


@given(
    moment=st.datetimes(naive("1900-01-01T00:00:00"), naive("2200-01-01T00:00:00")),
    other=st.datetimes(naive("1900-01-01T00:00:00"), naive("2200-01-01T00:00:00")),
    unit=st.sampled_from(["s", "ms", "us", "ns"]),
)
def test_times_compare_exactly_whatever_the_unit(moment: dt.datetime, other: dt.datetime, unit: str) -> None:
    coarse = {"s": 1_000_000, "ms": 1000}.get(unit, 1)
    stored = moment.replace(microsecond=moment.microsecond // coarse * coarse)
    batch = pa.record_batch({"t": pa.array([stored], pa.timestamp(unit))})
    for literal in (other, stored, other.replace(tzinfo=UTC)):
        bare = literal.replace(tzinfo=None)
        assert bind(col("t") > literal, batch.schema).evaluate(batch).to_pylist() == [stored > bare]
        assert bind(col("t") == literal, batch.schema).evaluate(batch).to_pylist() == [stored == bare]
