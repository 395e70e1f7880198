"""JSON is read as a slow and simple reader would: no record gives rows to another, nothing is cut to make it fit."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.topics.base import FETCHED, records
from shoal.topics.codecs import JsonCodec
from shoal.topics.codecs.fractions import (
    may_have_fine_times,
    may_have_fractions,
    may_have_times_of_day,
    may_have_zones,
)

#: Some end as others do, and some can be written in several ways.
WHOLE = ("id", "userid", "d", 'a"b', "é", "a/b", "1.5", "two words", "\\", "", "\n")
OTHER = ("f", "s", "xid", 'id"', "nested")
SCHEMA = pa.schema([*((name, pa.int64()) for name in WHOLE), ("f", pa.float64()), ("s", pa.utf8())])


@dataclass(frozen=True)
class Written:
    """A number as it is written."""

    text: str


@dataclass(frozen=True)
class Style:
    """How objects are written."""

    comma: str
    colon: str
    is_ascii: bool
    slash: str
    ends: tuple[str, str]

    def text(self, value: str) -> str:
        return json.dumps(value, ensure_ascii=self.is_ascii).replace("/", self.slash)

    def write(self, value: Any) -> str:
        if isinstance(value, Written):
            return value.text
        if isinstance(value, dict):
            members = (f"{self.text(name)}{self.colon}{self.write(each)}" for name, each in value.items())
            return "{" + self.comma.join(members) + "}"
        if isinstance(value, list):
            return "[" + self.comma.join(map(self.write, value)) + "]"
        return self.text(value) if isinstance(value, str) else json.dumps(value)

    def record(self, value: dict[str, Any]) -> bytes:
        return self.write(value).join(self.ends).encode()


styles = st.builds(
    Style,
    comma=st.sampled_from([", ", ",", " ,\n "]),
    colon=st.sampled_from([": ", ":", " : ", ":  ", ":\t"]),
    is_ascii=st.booleans(),
    slash=st.sampled_from(["/", "\\/"]),
    ends=st.sampled_from([("", ""), ("", ""), (" ", "\n")]),
)
PLAIN = Style(",", ":", True, "/", ("", ""))
numbers = st.builds(
    lambda whole, fraction, exponent: Written(f"{whole}{fraction}{exponent}"),
    st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20) | st.just("-0") | st.just(10**30),
    st.sampled_from(["", "", ".0", ".5", ".25", ".000"]),
    st.sampled_from(["", "", "", "e1", "E+2", "e-1", "e0", "E-30"]),
)
texts = st.sampled_from(["", "x", '"id":1.5', '": 2.5', "}{", "} {", 'é\n"', "\\u0069d", "a/b", ":1}{", "\\"])
values = st.recursive(
    numbers | texts | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WHOLE + OTHER), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(WHOLE), numbers, max_size=4) | st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(WHOLE, numbers | values), "f": numbers, "s": texts, "xid": values, "nested": values}
)
good_objects = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(WHOLE, st.integers(-(2**63), 2**63 - 1) | st.sampled_from([Written("2.0"), Written("1E+2")])),
        "f": numbers,
        "s": texts,
        "xid": values,
    },
)

#: They would pass for three objects: `{"s":"\n{"}`, `{":":1}` and `{"}\n":1}`.
HALVES = (b'{"s":"', b'{"}{":":1}{"}', b'":1}')
BITS = (
    *HALVES,
    b"",
    b" ",
    b"\n",
    b"{",
    b"}",
    b'{"id":1}{"id":2}',
    b'{"id":1} {"id":2}',
    b'{"id":1}\n{"id":2}\n',
    b'{"s":"}',
    b'{","id":1}',
    b'{"s":{"}',
    b'{":{}}',
    b'"}{"',
    b"null",
    b"1.5",
    b'{"id":-.5}',
    b'{"id":1.5,}',
    b'{"id":1e99999999999999999999}',
    b'{"id":1e-99999999999999999999}',
    None,
)
GOOD_BITS = (b'{"id":1}', b' {"id":2} ', b"{}", b'{"id":2.5,"id":3}', b'{"nested":{"id":1.5},"id":4}')


class NoRowError(Exception):
    """A record is poison."""


def cell(value: Any, kind: Any) -> Any:
    """What a column of this type holds of a value."""
    if value is None:
        return None
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if pa.types.is_string(kind) and isinstance(value, str):
        return value
    if pa.types.is_floating(kind) and is_number:
        return float(value)
    if pa.types.is_integer(kind) and is_number:
        is_exact = isinstance(value, int) or value == Decimal(float(value))
        if is_exact and value == int(value) and -(2**63) <= value < 2**63:
            return int(value)
    raise NoRowError


def reference(value: bytes | None, schema: Any) -> dict[str, Any]:
    """The row of a record."""
    try:
        content = json.loads(value or b"", parse_float=Decimal)
    except (ValueError, ArithmeticError):
        raise NoRowError from None
    if not isinstance(content, dict):
        raise NoRowError
    return {each.name: cell(content.get(each.name), each.type) for each in schema}


def fetched(values: list[bytes | None], first: int = 100):
    batch = records(values, keys=[b"k%d" % n for n in range(len(values))], timestamps=list(range(len(values))))
    offsets = pa.array(np.arange(first, first + len(values)))
    return pa.RecordBatch.from_arrays([offsets, *batch.columns], schema=FETCHED)


def check(values: list[bytes | None], schema: Any = SCHEMA, cut: tuple[int, int] = (0, 0)) -> Any:
    """Decode a slice of these records, and compare it with the reference."""
    chosen = values[cut[0] : len(values) - cut[1]]
    rows, good, bad = [], [], []
    for at, value in enumerate(chosen):
        try:
            rows.append(reference(value, schema))
            good.append(at)
        except NoRowError:
            bad.append(at)
    decoded = JsonCodec().decode(fetched(values).slice(cut[0], len(chosen)), schema)
    assert decoded.poison["offset"].to_pylist() == [100 + cut[0] + at for at in bad]
    assert decoded.poison["value"].to_pylist() == [chosen[at] for at in bad]
    assert decoded.poison["key"].to_pylist() == [b"k%d" % (cut[0] + at) for at in bad]
    assert all(decoded.poison["reason"].to_pylist())
    assert decoded.records.to_pylist() == good
    assert decoded.rows.to_pylist() == rows
    assert decoded.rows.schema.equals(schema)
    return decoded


class TestDecode:
    @given(
        st.lists(good_objects, max_size=6) | st.lists(objects | good_objects, max_size=6),
        styles,
        st.tuples(st.integers(0, 2), st.integers(0, 2)),
    )
    @example([{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}], PLAIN, (1, 1))
    def test_as_the_slow_way(self, written, style: Style, cut) -> None:
        check([style.record(each) for each in written], cut=cut if sum(cut) <= len(written) else (0, 0))

    @given(
        st.lists(st.sampled_from(BITS) | st.sampled_from(GOOD_BITS) | objects, max_size=12),
        styles,
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
    )
    @example(list(HALVES), PLAIN, (0, 0))
    @example([b'{"id":1}', *HALVES, b'{"id":2}'], PLAIN, (1, 0))
    @example([b'{"s":"}', b'{","id":1}', b'{"id":1}'], PLAIN, (0, 0))
    @example([b'{"id":1}{"id":2}', b'{"s":"}', b'{"}'], PLAIN, (0, 0))
    @example([b'{"id":1}{"nested":{}}', b'{"s":"}', b'{"}'], PLAIN, (0, 0))
    def test_whatever_comes_between(self, written, style: Style, cut) -> None:
        made = [style.record(each) if isinstance(each, dict) else each for each in written]
        check(made, cut=cut if sum(cut) <= len(made) else (0, 0))

    @pytest.mark.parametrize("bit", [None, b"", b'{"id":1}{"id":1}', b'{"s":"}', b'{"id":0.5}', b'{"s":"}{"}'])
    def test_many(self, bit: bytes | None) -> None:
        made: list[bytes | None] = [b'{"id":%d,"s":"%d","f":%d.5}' % (at, at, at) for at in range(20_000)]
        for at in (0, 1, 9_999, 15_000, 19_998):
            made[at] = bit
        check(made, pa.schema([("id", pa.int64()), ("s", pa.utf8()), ("f", pa.float64())]), cut=(1, 1))

    def test_names_are_found_however_they_are_written(self) -> None:
        schema = pa.schema([("é", pa.int64()), ("a/b", pa.int64()), ("id", pa.int64())])
        made: list[bytes | None] = [
            b'{"\\u00e9":1.5}',
            '{"é":1.5}'.encode(),
            b'{"a\\/b":1.5}',
            b'{"a/b":1.5}',
            b'{"\\u0069d":1.5}',
            b'{"i\\u0064" : 1.5}',
        ]
        for one in made:
            assert check([one, b'{"id":1}'], schema).poison.num_rows == 1
        assert check(made, schema).poison.num_rows == len(made)

    def test_what_only_a_lenient_reader_takes_is_not_cut(self) -> None:
        schema = pa.schema([("id", pa.int64())])
        made: list[bytes | None] = [
            b'{"id":-.5}',
            b'{"id":1.5,}',
            b'{"id":01.5}',
            b'{"id":1.5,"x":"\x01"}',
            b'{"id":1.5,"x":%s}' % (b"1" * 5000),
            b'{"id":1.5,"x":%s}' % (b"[" * 5000 + b"]" * 5000),
            b'{"id":9007199254740993.0}',
        ]
        for one in made:
            decoded = JsonCodec().decode(fetched([one, b'{"id":1}']), schema)
            assert decoded.rows.to_pylist() == [{"id": 1}]
            assert decoded.poison["offset"].to_pylist() == [100]

    def test_what_is_looked_at_closely_is_not_refused_for_columns_that_nobody_asks_for(self) -> None:
        made = [
            b'{"id":2.0,"x":"\x01"}',
            b'{"id":2.0,"x":%s}' % (b"1" * 5000),
            b'{"id":2.0,"x":1e99999999999999999999}',
        ]
        decoded = JsonCodec().decode(fetched(made), pa.schema([("id", pa.int64())]))
        assert decoded.rows["id"].to_pylist() == [2, 2, 2]

    def test_reasons_stay_short(self) -> None:
        decoded = JsonCodec().decode(
            fetched([b'{"t":"03:04:05.5%s"}' % (b"x" * 10_000)]), pa.schema([("t", pa.time32("s"))])
        )
        assert len(decoded.poison["reason"][0].as_py()) <= 300


class TestQuickLook:
    @given(st.lists(objects, max_size=4), styles, st.lists(st.sampled_from(WHOLE), min_size=1, unique=True))
    def test_false_is_sure(self, written, style: Style, names: list[str]) -> None:
        text = np.frombuffer(b"".join(map(style.record, written)), np.uint8)
        as_written = [json.dumps(name, ensure_ascii=False)[1:-1].encode() for name in names]
        has_fraction = any(
            isinstance(each.get(name), Written) and re.search("[.eE]", each[name].text)
            for each in written
            for name in names
        )
        assert may_have_fractions(text, as_written) or not has_fraction

    @given(st.binary(max_size=12) | st.text('{}":.e-0 123,\\u/d', max_size=12).map(str.encode), st.integers(0, 9))
    @example(b':1."', 0)
    def test_any_bytes_may_come(self, content: bytes, digits: int) -> None:
        text = np.frombuffer(content, np.uint8)
        assert may_have_fractions(text, [b"d", b":1.", b""]) in {True, False}
        assert may_have_fine_times(text, digits) in {True, False}
        assert may_have_times_of_day(text) in {True, False}
        assert may_have_zones(text) in {True, False}

    def test_what_has_none_is_not_looked_at_closely(self) -> None:
        def text(content: bytes) -> Any:
            return np.frombuffer(content, np.uint8)

        assert not may_have_fractions(text(b'{"userid":1.5,"id":1,"s":"1.5","x": [1.5, 2.5]}'), [b"id"])
        assert not may_have_fine_times(text(b'{"t":"2024-01-02T03:04:05.123000Z","f":12.123456789}'), 3)
        assert not may_have_times_of_day(text(b'{"t":"2024-01-02","s":"at 3 o","n": 5, "m": 6}'))
        assert not may_have_zones(
            text(b'{"t":"2024-01-02T03:04:05","u":"2024-01-02 03:04:05.123","n": 5, "d":"2024-01-02"}')
        )


class TestTimes:
    UNITS = ((0, "s"), (3, "ms"), (6, "us"), (9, "ns"))

    @given(
        st.lists(st.none() | st.text("0123456789", min_size=1, max_size=10), min_size=1, max_size=5),
        st.sampled_from(UNITS),
        st.sampled_from(["", "Z", "+01:30"]),
        st.sampled_from(["flat", "struct", "list", "time"]),
        styles,
    )
    def test_a_time_that_is_finer_than_the_unit_is_poison(self, fractions, unit, zone: str, shape: str, style) -> None:
        places, name = unit
        kind: Any = pa.timestamp(name, "UTC" if zone else None)
        if shape == "time":
            kind = pa.time32(name) if places < 6 else pa.time64(name)
        begin, end = ("03:04:05", "") if shape == "time" else ("2024-01-02T03:04:05", zone)
        written = [begin + ("" if each is None else f".{each}") + end for each in fractions]
        made = [style.record({"t": {"struct": {"x": each}, "list": [each]}.get(shape, each)}) for each in written]
        holding = {"struct": pa.struct([("x", kind)]), "list": pa.list_(kind)}.get(shape, kind)
        decoded = JsonCodec().decode(fetched(made), pa.schema([("t", holding), ("f", pa.float64())]))
        bad = [at for at, each in enumerate(fractions) if each and each[places:].strip("0")]
        if shape != "time":  # what else is no time of day is the reader's to say
            assert decoded.poison["offset"].to_pylist() == [100 + at for at in bad]
        assert {100 + at for at in bad} <= set(decoded.poison["offset"].to_pylist())

    @given(
        st.lists(st.sampled_from(["", "", "Z", "z", "+01:30", "-05", " +0200", "UTC", " Europe/Paris"]), min_size=1),
        st.sampled_from(["2024-01-02T03:04:05", "2024-01-02 03:04:05.25", "2024-01-02T03:04:05.000"]),
        st.sampled_from(["flat", "struct", "list"]),
        styles,
        st.booleans(),
    )
    def test_a_time_with_a_zone_has_no_room_among_those_without(
        self, zones, time, shape, style, is_written_out
    ) -> None:
        made = [
            style.record({"t": {"struct": {"x": time + each}, "list": [time + each]}.get(shape, time + each)})
            for each in zones
        ]
        if is_written_out:
            made = [each.replace(b"Z", b"\\u005a").replace(b"+", b"\\u002b") for each in made]
        for zone in (None, "UTC"):
            kind = pa.timestamp("us", zone)
            holding = {"struct": pa.struct([("x", kind)]), "list": pa.list_(kind)}.get(shape, kind)
            decoded = JsonCodec().decode(fetched(made), pa.schema([("t", holding)]))
            bad = [] if zone else [100 + at for at, each in enumerate(zones) if each]
            assert decoded.poison["offset"].to_pylist() == bad
            assert all(
                "has a zone, and a column of timestamp[us] has none" in each
                for each in decoded.poison["reason"].to_pylist()
            )

    def test_a_zone_behind_a_time_without_colons(self) -> None:
        made = [b'{"t":"2024-01-02T030405"}', b'{"t":"2024-01-02T030405Z"}', b'{"t":"2024-01-02t03:04:05Z"}']
        decoded = JsonCodec().decode(fetched(made), pa.schema([("t", pa.timestamp("s"))]))
        assert decoded.poison["value"].to_pylist() == made[1:]

    @pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
    def test_a_date_has_no_time_of_day(self, kind) -> None:
        good = [b'{"d":"2024-01-02"}', b'{"d":"2024-01-02T00:00:00Z"}', b'{"d":"2024-01-02 00:00:00.000"}', b"{}"]
        bad = [
            b'{"d":"2024-01-02T03:04:05Z"}',
            b'{"d": "2024-01-02 00:00:00.5"}',
            b'{"d":"2024-01-02T030405"}',
            b'{"d":"2024-01-02\\u005403:04:05"}',
            b'{"d":1.5}',
        ]
        decoded = JsonCodec().decode(fetched([*good, *bad]), pa.schema([("d", kind)]))
        assert decoded.poison["value"].to_pylist() == bad
        assert [str(each) for each in decoded.rows["d"].to_pylist()] == ["2024-01-02"] * 3 + ["None"]
        for one in bad:
            assert JsonCodec().decode(fetched([one]), pa.schema([("d", kind)])).poison.num_rows == 1

    def test_reasons_name_the_column_the_value_and_the_type(self) -> None:
        schema = pa.schema([("t", pa.timestamp("s")), ("d", pa.date32()), ("p", pa.decimal128(10, 2))])
        made = {
            b'{"t":"2024-01-02T03:04:05.678Z"}': "field 't': '2024-01-02T03:04:05.678Z' is finer than timestamp[s]",
            b'{"t":"2024-01-02T03:04:05\\u002e678Z"}': "field 't': '2024-01-02T03:04:05.678Z' is finer than",
            b'{"t":1.5}': "field 't': 1.5 is no whole number, as timestamp[s] needs",
            b'{"d":"2024-01-02T03:04:05Z"}': "field 'd': '2024-01-02T03:04:05Z' has a time of day, for which date32",
            b'{"p":1.239}': "field 'p': 1.239 has more digits behind the point than decimal128(10, 2)",
            b'{"p":"1.239"}': "field 'p': 1.239 has more digits",
            b'{"p":1e-5}': "field 'p': 0.00001 has more digits",
        }
        decoded = JsonCodec().decode(fetched([*made]), schema)
        assert decoded.poison["value"].to_pylist() == [*made]
        for said, reason in zip(made.values(), decoded.poison["reason"].to_pylist(), strict=True):
            assert said in reason

    def test_decimals_that_have_room(self) -> None:
        schema = pa.schema([("p", pa.decimal128(10, 2))])
        made = [b'{"p":1.2300}', b'{"p":"1.23"}', b'{"p":1230e-3}', b'{"p":0.0000}', b'{"p":7}']
        decoded = JsonCodec().decode(fetched(made), schema)
        assert decoded.rows["p"].to_pylist() == list(map(Decimal, ["1.23", "1.23", "1.23", "0", "7"]))


@pytest.mark.parametrize("nulls", [False, True])
def test_floats_that_json_has_not_are_written_as_null(nulls: bool) -> None:
    kinds = {"f": pa.float64(), "g": pa.float32(), "l": pa.list_(pa.float64())}
    written = [{"f": each, "g": each, "l": [each, 1.0]} for each in (float("nan"), float("inf"), -float("inf"), 1.5)]
    encoded = JsonCodec(nulls=nulls).encode(pa.RecordBatch.from_pylist(written, schema=pa.schema(kinds)))
    expected = [*[{"f": None, "g": None, "l": [None, 1.0]}] * 3, {"f": 1.5, "g": 1.5, "l": [1.5, 1.0]}]
    assert [json.loads(each, parse_constant=pytest.fail) for each in encoded.values.to_pylist()] == expected
    decoded = JsonCodec().decode(records(encoded.values), pa.schema(kinds))
    assert decoded.rows.to_pylist() == expected
    assert decoded.poison.num_rows == 0
