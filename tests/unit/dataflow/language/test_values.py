"""Python values as columns: nothing is cut to fit, and nothing is lost."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from shoal.core.errors import InvalidError
from shoal.dataflow.language.expressions.values import MisfitError, make_column, make_rows

MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 678_901)  # noqa: DTZ001
WHOLE = MOMENT.replace(microsecond=0)
AWARE = MOMENT.replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("values", "kind", "where"),
    [
        ([1, 2.5], pa.int64(), "v"),
        ([None, np.float64(2.5)], pa.int8(), "v"),
        ([Decimal("2.5")], pa.uint32(), "v"),
        ([2.5], pa.dictionary(pa.int8(), pa.int64()), "v"),
        ([MOMENT], pa.timestamp("s"), "v"),
        ([None, MOMENT], pa.timestamp("ms", "UTC"), "v"),
        ([2.5], pa.timestamp("us"), "v"),
        ([MOMENT.date(), MOMENT], pa.date32(), "v"),
        ([MOMENT], pa.date64(), "v"),
        ([MOMENT.time()], pa.time32("s"), "v"),
        ([dt.timedelta(seconds=1.5)], pa.duration("s"), "v"),
        ([[1], [2.5]], pa.list_(pa.int64()), "v"),
        ([{"a": 1}, {"a": 2.5}], pa.struct([("a", pa.int64())]), "v.a"),
        ([{"a": 1, "b": 2}], pa.struct([("a", pa.int64())]), "v.b"),
        ([{"x": 2.5}], pa.map_(pa.string(), pa.int64()), "v"),
        ([[("x", 2.5)]], pa.map_(pa.string(), pa.int64()), "v"),
        (["many"], pa.int64(), "v"),
        ([2**70], pa.int64(), "v"),
        ([300], pa.int8(), "v"),
        ([MOMENT.date(), MOMENT], None, "v"),
        ([1, "a"], None, "v"),
    ],
)
def test_what_does_not_fit_exactly_is_refused_by_column_and_value(values, kind, where):
    with pytest.raises(MisfitError) as caught:
        make_column("v", values, kind)
    assert [each.field for each in caught.value.problems] == [where]
    assert "got" in str(caught.value)
    assert isinstance(caught.value, ValueError)  # a bad row, for all who sort them out
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("values", "kind", "made"),
    [
        ([1, 2.0, None], pa.int64(), [1, 2, None]),
        ([Decimal("2.0")], pa.int64(), [2]),
        ([1, 2.5], None, [1.0, 2.5]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([WHOLE, None], pa.timestamp("s"), [WHOLE, None]),
        ([MOMENT], pa.timestamp("us"), [MOMENT]),
        ([1], pa.timestamp("s"), [dt.datetime(1970, 1, 1, 0, 0, 1)]),  # noqa: DTZ001
        ([MOMENT.date(), WHOLE.replace(hour=0, minute=0, second=0)], pa.date32(), [MOMENT.date()] * 2),
        ([dt.timedelta(seconds=2)], pa.duration("s"), [dt.timedelta(seconds=2)]),
        ([{"a": 1, "b": "x"}, {}], pa.struct([("a", pa.int64()), ("b", pa.string())]), None),
        ([[1], None, []], pa.list_(pa.int32()), [[1], None, []]),
        ([AWARE, None], pa.timestamp("us", "UTC"), [AWARE, None]),
    ],
)
def test_what_fits_is_taken(values, kind, made):
    expected = made if made is not None else [{"a": 1, "b": "x"}, {"a": None, "b": None}]
    assert make_column("v", values, kind).to_pylist() == expected


@pytest.mark.parametrize("kind", [None, pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_times_with_a_zone_do_not_mix_with_times_without_one(kind):
    for values in ([MOMENT, AWARE], [AWARE, None, MOMENT]):
        with pytest.raises(InvalidError, match=r"v: has no zone, and 2024-01-02T03:04:05\.678901") as caught:
            make_column("v", values, kind)
        assert not isinstance(caught.value, MisfitError)  # no row is bad alone
    with pytest.raises(InvalidError, match="has no zone"):
        make_column("v", [[MOMENT], [AWARE]])


def test_rows_have_all_the_columns_that_any_has_or_those_of_the_schema():
    assert make_rows([{"v": 1}, {"v": 2, "w": 3}], None).to_pylist() == [{"v": 1, "w": None}, {"v": 2, "w": 3}]
    schema = pa.schema([("v", pa.int64()), ("t", pa.string())])
    assert make_rows([{"v": 1}], schema).to_pylist() == [{"v": 1, "t": None}]
    for row in ({"w": 1}, {"v": 1, "t": "a", "w": 1}):
        with pytest.raises(MisfitError, match="has the columns w beside v, t"):
            make_rows([{"v": 1, "t": "a"}, row], schema)
