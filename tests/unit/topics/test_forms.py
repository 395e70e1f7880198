"""What JSON is written from is what is read from it, for every type that it holds; what it cannot hold is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.topics.base import records
from shoal.topics.codecs import JsonCodec

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DAY = 86_400
WIDE = 2**63
#: The first and the last second that can be written.
FIRST, LAST = -62_167_219_200, 253_402_300_799


def counts(kind: Any) -> st.SearchStrategy[int]:
    """Numbers that a column of times, dates or durations is held as."""
    if kind == pa.date32():
        return st.integers(FIRST // DAY, LAST // DAY)
    if kind == pa.date64():
        return st.integers(FIRST // DAY, LAST // DAY).map(lambda days: days * DAY * 1000)
    scale = UNITS[kind.unit]
    if pa.types.is_time(kind):
        return st.integers(0, DAY * scale - 1)
    if pa.types.is_timestamp(kind):
        return st.integers(max(FIRST * scale, 1 - WIDE), min((LAST + 1) * scale, WIDE) - 1) | st.integers(-9, 9)
    most = {"s": (WIDE - 1) // 1000, "ms": WIDE - 1}.get(kind.unit, WIDE - 1)
    return st.integers(-most, most) | st.integers(-(10**9), 10**9)


def array_of(values: list[Any], kind: Any) -> Any:
    """An array, of times from the numbers that they are held as."""
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return pa.array(values, kind)


def decimals(kind: Any) -> st.SearchStrategy[Decimal]:
    most = 10**kind.precision - 1
    return st.integers(-most, most).map(lambda digits: Decimal(f"{digits}E{-kind.scale}"))


TIMES = (
    *(pa.time32(unit) for unit in ("s", "ms")),
    *(pa.time64(unit) for unit in ("us", "ns")),
    *(pa.duration(unit) for unit in UNITS),
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in (None, "UTC", "Europe/Paris", "-03:30")),
    pa.date32(),
    pa.date64(),
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["PT1S", "}{", "2024-01-02T03:04:05Z"])
SINGLE: dict[Any, st.SearchStrategy[Any]] = {
    **{kind: counts(kind) for kind in TIMES},
    **{
        getattr(pa, f"{sign}int{bits}")(): st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if not sign
        else st.integers(0, 2**bits - 1)
        for bits in (8, 16, 32, 64)
        for sign in ("", "u")
    },
    **{
        getattr(pa, f"float{bits}")(): st.floats(allow_nan=False, allow_infinity=False, width=bits)
        for bits in (16, 32, 64)
    },
    pa.bool_(): st.booleans(),
    pa.utf8(): TEXT,
    pa.large_utf8(): TEXT,
    pa.binary(): st.binary(max_size=5),
    pa.large_binary(): st.binary(max_size=5),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    **{kind: decimals(kind) for kind in (pa.decimal128(9, 4), pa.decimal256(50, 0), pa.decimal128(9, -3))},
}
single = st.sampled_from(list(SINGLE))


@st.composite
def columns(draw: Any, kinds: st.SearchStrategy[Any] = single) -> Any:
    """A column of any type that JSON holds: single values, or those in lists, objects, maps and dictionaries."""
    kind = draw(kinds)
    values = st.none() | SINGLE[kind]
    shape = draw(st.sampled_from(["flat", "flat", "list", "large", "fixed", "struct", "map", "dictionary", "deep"]))
    rows = draw(st.integers(1, 6))
    flat = array_of(draw(st.lists(values, min_size=rows * 2, max_size=rows * 2)), kind)
    nulls = pa.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    offsets = [0, *sorted(draw(st.lists(st.integers(0, rows * 2), min_size=rows - 1, max_size=rows - 1))), rows * 2]
    if shape == "flat":
        return flat
    if shape == "fixed":
        return pa.FixedSizeListArray.from_arrays(flat, 2, mask=nulls)
    if shape == "struct":
        return pa.StructArray.from_arrays([flat.slice(0, rows), flat.slice(rows)], ["a", "b"], mask=nulls)
    if shape == "dictionary":
        made = flat.dictionary_encode()
        return pa.DictionaryArray.from_arrays(made.indices.cast(pa.int8()), made.dictionary)
    if shape == "map":
        keys = pa.array([f"k{at}" for at in range(rows * 2)])
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, flat)
    if shape == "large":
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), flat, mask=nulls)
    made = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, mask=nulls)
    return made if shape == "list" else pa.StructArray.from_arrays([made], ["inside"])


def there_and_back(batch: Any, codec: JsonCodec | None = None) -> Any:
    encoded = (codec or JsonCodec()).encode(batch)
    return JsonCodec().decode(records(encoded.values), batch.schema)


def plain(array: Any) -> Any:
    """The same, with dictionaries written out: how one is held says nothing of what is in it."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


class TestThereAndBack:
    @given(columns(), st.booleans())
    def test_of_every_type(self, column: Any, nulls: bool) -> None:
        batch = pa.record_batch({"x": column})
        decoded = there_and_back(batch, JsonCodec(nulls=nulls))
        assert decoded.poison["reason"].to_pylist() == []
        assert decoded.rows.schema.equals(batch.schema)
        assert plain(decoded.rows["x"]).equals(plain(column))

    @given(st.lists(columns(st.sampled_from([each for each in TIMES if pa.types.is_duration(each)])), min_size=2))
    def test_of_several_durations(self, made: list[Any]) -> None:
        rows = min(map(len, made))
        batch = pa.record_batch({f"c{at}": each.slice(0, rows) for at, each in enumerate(made)})
        decoded = there_and_back(batch)
        assert all(plain(a).equals(plain(b)) for a, b in zip(decoded.rows, batch, strict=True))
        assert decoded.poison.num_rows == 0

    def test_of_a_zone_whose_distance_to_utc_had_seconds(self) -> None:
        batch = pa.record_batch({"x": pa.array([-(10**10), None, 0], pa.timestamp("s", "Europe/Paris"))})
        assert there_and_back(batch).rows.equals(batch)
        assert b"1653-02-10T06:13:20Z" in JsonCodec().encode(batch).values[0].as_py()

    def test_of_a_zone_in_which_it_is_another_year(self) -> None:
        times = pa.array([LAST, 0], pa.timestamp("s", "Europe/Paris"))
        batch = pa.record_batch({"x": times, "d": times.dictionary_encode()})
        assert there_and_back(batch).rows.equals(batch)

    def test_a_null_in_a_map_keeps_its_key(self) -> None:
        batch = pa.record_batch({"x": pa.array([[("a", None), ("b", 1)], None], pa.map_(pa.utf8(), pa.int64()))})
        assert there_and_back(batch).rows.equals(batch)


class TestDurations:
    GOOD = (
        (b'"PT1.5S"', 1500),
        (b'"-PT1.5S"', -1500),
        (b'"P1DT2H3M4S"', 93_784_000),
        (b'"P2W"', 1_209_600_000),
        (b'"PT0,250000S"', 250),
        (b'"\\u0050T1S"', 1000),
        (b"1500", 1500),
        (b'"1500"', 1500),
        (b"null", None),
    )
    BAD = (
        b'"PT1.0005S"',
        b'"P"',
        b'"PT"',
        b'"P1DT"',
        b'"PT1X"',
        b'"P1Y"',
        b'"PT9223372036854775807S"',
        b"1.5",
        b"true",
    )

    @given(st.lists(st.sampled_from(GOOD) | st.sampled_from(BAD), max_size=12))
    @example([*GOOD, *BAD])
    def test_in_whatever_form_they_come(self, written: list[Any]) -> None:
        values = [b'{"x":%s,"s":"PT1S"}' % (each[0] if isinstance(each, tuple) else each) for each in written]
        decoded = JsonCodec().decode(records(values), pa.schema([("x", pa.duration("ms")), ("s", pa.utf8())]))
        expected = [each[1] for each in written if isinstance(each, tuple)]
        assert decoded.rows["x"].cast(pa.int64()).to_pylist() == expected
        assert decoded.rows["s"].to_pylist() == ["PT1S"] * len(expected)
        bad = [value for value, each in zip(values, written, strict=True) if not isinstance(each, tuple)]
        assert decoded.poison["value"].to_pylist() == bad

    def test_a_bad_one_is_named(self) -> None:
        schema = pa.schema([("x", pa.duration("s"))])
        decoded = JsonCodec().decode(records([b'{"x":"PT1.5S"}', b'{"x":"PT1S"}']), schema)
        assert decoded.rows["x"].to_pylist() == [dt.timedelta(seconds=1)]
        assert decoded.poison["reason"].to_pylist() == [
            "whilst decoding field 'x': 'PT1.5S' is no duration that duration[s] has room for"
        ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("s"), LAST + 1),
        (pa.timestamp("us", "UTC"), (FIRST - 1) * 10**6),
        (pa.timestamp("ms"), WIDE - 1),
        (pa.date32(), LAST // DAY + 1),
        (pa.date64(), (LAST + 1) * 1000),
        (pa.duration("s"), WIDE // 1000 + 1),
        (pa.duration("ms"), -WIDE),
    ],
)
@pytest.mark.parametrize("shape", ["flat", "list", "map"])
def test_what_has_no_form_is_refused(kind: Any, value: int, shape: str) -> None:
    array = array_of([0, value], kind)
    if shape == "list":
        array = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), array)
    elif shape == "map":
        array = pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array(["a", "b"]), array)
    with pytest.raises(InvalidError) as caught:
        JsonCodec().encode(pa.record_batch({"when": array}))
    (problem,) = caught.value.problems
    assert "'when'" in problem.field
    assert problem.value == str(value)
    # What is hidden is not written.
    assert len(JsonCodec().encode(pa.record_batch({"when": array.slice(0, 0)})).values) == 0


def test_a_type_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidError, match="types that JSON can hold"):
        JsonCodec().encode(pa.record_batch({"x": pa.array([pa.MonthDayNano([1, 2, 3])])}))
