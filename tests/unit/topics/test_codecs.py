"""Rows become values and values rows; what is poison comes out beside them, with its offset, and costs nobody else."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.topics.base import FETCHED, records
from shoal.topics.codecs import POISON, ArrowCodec, JsonCodec, RawCodec, codec

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.utf8()), ("f", pa.float64()), ("b", pa.bool_())])
rows = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "s": st.none() | st.text(alphabet=st.characters(codec="utf-8"), max_size=8) | st.just('}\n{ "a": } {'),
            "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "b": st.none() | st.booleans(),
        }
    ),
    max_size=12,
)


def fetched(values: list[bytes | None], first: int = 100):
    batch = records(values, keys=[b"k%d" % n for n in range(len(values))], timestamps=list(range(len(values))))
    offsets = pa.array(np.arange(first, first + len(values)))
    return pa.RecordBatch.from_arrays([offsets, *batch.columns], schema=FETCHED)


class TestJson:
    @given(rows, st.booleans())
    def test_there_and_back(self, written, nulls: bool) -> None:
        batch = pa.RecordBatch.from_pylist(written, schema=SCHEMA)
        encoded = JsonCodec(nulls=nulls).encode(batch)
        assert encoded.rows.to_pylist() == list(range(len(written)))
        expected = [{k: v for k, v in row.items() if nulls or v is not None} for row in written]
        assert [json.loads(value) for value in encoded.values.to_pylist()] == expected
        decoded = JsonCodec().decode(records(encoded.values), SCHEMA)
        assert decoded.rows.equals(batch)
        assert decoded.poison.num_rows == 0

    def test_a_fraction_where_a_whole_number_belongs_is_poison(self) -> None:
        schema = pa.schema(
            [
                ("v", pa.int64()),
                ("f", pa.float64()),
                ("l", pa.list_(pa.int32())),
                ("s", pa.struct([("a", pa.int8()), ("f", pa.float64())])),
                ("m", pa.map_(pa.utf8(), pa.int64())),
            ]
        )
        good = {
            b'{"v": 2.0, "f": 2.5}': {"v": 2, "f": 2.5},
            b'{"v": 1e3}': {"v": 1000},
            b'{"s": {"a": 1, "f": 2.5}}': {"s": {"a": 1, "f": 2.5}},
            b'{"v": 1, "x": {"v": 2.5}}': {"v": 1},
        }
        bad = {
            b'{"v": 2.9}': "field 'v': 2.9 is no whole number, as int64 needs",
            b'{"v": 25e-1}': "field 'v': 2.5",
            b'{"\\u0076":-2.9}': "field 'v': -2.9",
            b'{"l": [1,\n 2.5]}': "field 'l': 2.5",
            b'{"s": {"f": 1.5, "a": 1.5}}': "field 's.a': 1.5",
            b'{"m": {"x": 0.5}}': "field 'm': 0.5",
        }
        decoded = JsonCodec().decode(fetched([*good, *bad]), schema)
        assert [{k: v for k, v in row.items() if v is not None} for row in decoded.rows.to_pylist()] == [*good.values()]
        reasons = decoded.poison.column("reason").to_pylist()
        assert all(said in reason for said, reason in zip(bad.values(), reasons, strict=True))
        assert decoded.poison.column("value").to_pylist() == [*bad]

    POISONS = (
        b"",
        b" ",
        b"nonsense",
        b'{"n": 1',
        b"[1]",
        b"5",
        b"null",
        b'{"n": "x"}',
        b'{"n": 2.9}',
        b'{"s": 5}',
        b'{"n": 1}{"n": 2}',
        b'{"n": 1} {"n": 2}',
        b'{"n": 1}\n\n{"n": 2}',
        b'{"s": "\xff"}',
        b'{"s": "}',
        b'"}',
        None,
        b'{"n": 99999999999999999999}',
        b'}{"n": 1}',
    )
    GOOD = ({"n": 1}, {"s": "}{"}, {"s": '} {"n": 1}'}, {}, {"zzz": [1, {"a": {}}], "n": 2}, {"n": 3, "s": "x"})

    @given(st.lists(st.sampled_from(POISONS) | st.sampled_from(GOOD), max_size=20), st.sampled_from([None, 1]))
    def test_only_the_poison_goes_out(self, messages, indent) -> None:
        values = [json.dumps(each, indent=indent).encode() if isinstance(each, dict) else each for each in messages]
        decoded = JsonCodec().decode(fetched(values), SCHEMA)
        good = [at for at, each in enumerate(messages) if isinstance(each, dict)]
        bad = [at for at, each in enumerate(messages) if not isinstance(each, dict)]
        assert decoded.records.to_pylist() == good
        expected = [{name: messages[at].get(name) for name in SCHEMA.names} for at in good]
        assert decoded.rows.to_pylist() == expected
        assert decoded.rows.schema.equals(SCHEMA)
        assert decoded.poison.schema.equals(POISON)
        assert decoded.poison["offset"].to_pylist() == [100 + at for at in bad]
        assert decoded.poison["value"].to_pylist() == [values[at] for at in bad]
        assert decoded.poison["key"].to_pylist() == [b"k%d" % at for at in bad]
        assert all(decoded.poison["reason"].to_pylist())

    def test_nested_types_and_times(self) -> None:
        schema = pa.schema(
            [
                ("t", pa.timestamp("us", "UTC")),
                ("l", pa.list_(pa.int32())),
                ("o", pa.struct([("x", pa.float64())])),
                ("raw", pa.binary()),
            ]
        )
        row = {"t": datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=UTC), "l": [1, 2], "o": {"x": 0.5}, "raw": b"\x00\xff"}
        batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema=schema)
        decoded = JsonCodec().decode(records(JsonCodec().encode(batch).values), schema)
        assert decoded.rows.equals(batch)

    def test_a_column_that_must_not_be_null(self) -> None:
        schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
        decoded = JsonCodec().decode(fetched([b'{"n": 1}', b"{}"]), schema)
        assert decoded.rows.to_pylist() == [{"n": 1}]
        assert decoded.poison["offset"].to_pylist() == [101]

    def test_records_without_offsets_may_be_poison_too(self) -> None:
        assert JsonCodec().decode(records([b"x"]), SCHEMA).poison["offset"].to_pylist() == [None]


class TestArrow:
    @given(rows, st.integers(1, 400))
    def test_there_and_back(self, written, message_bytes: int) -> None:
        batch = pa.RecordBatch.from_pylist(written, schema=SCHEMA)
        encoded = ArrowCodec(message_bytes=message_bytes).encode(batch)
        starts = encoded.rows.to_pylist()
        assert starts == sorted(set(starts))
        assert len(starts) == len(encoded.values) <= len(written)
        decoded = ArrowCodec().decode(records(encoded.values), SCHEMA)
        assert decoded.rows.equals(batch)
        bounds = [*starts, len(written)]
        assert decoded.records.to_pylist() == [
            at for at in range(len(starts)) for _ in range(bounds[at + 1] - bounds[at])
        ]

    def test_many_rows_are_one_message(self) -> None:
        batch = pa.record_batch({"n": pa.array(range(10_000), pa.int64())})
        assert len(ArrowCodec().encode(batch).values) == 1
        values = ArrowCodec(message_bytes=20_000).encode(batch).values
        assert len(values) >= 4
        assert all(len(value.as_py()) < 25_000 for value in values)

    def test_poison(self) -> None:
        good = (
            ArrowCodec().encode(pa.record_batch({"n": pa.array([1, 2], pa.int32()), "more": [1, 2]})).values[0].as_py()
        )
        other = ArrowCodec().encode(pa.record_batch({"m": [1]})).values[0].as_py()
        text = ArrowCodec().encode(pa.record_batch({"n": ["x"]})).values[0].as_py()
        schema = pa.schema([("n", pa.int64())])
        batch = fetched([b"nonsense", good, None, other, b"", good[:100], text, good])
        decoded = ArrowCodec().decode(batch, schema)
        assert decoded.rows.to_pylist() == [{"n": 1}, {"n": 2}] * 2
        assert decoded.records.to_pylist() == [1, 1, 7, 7]
        assert decoded.poison["offset"].to_pylist() == [100, 102, 103, 104, 105, 106]
        assert "without the columns n" in decoded.poison["reason"].to_pylist()[2]

    @given(rows, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
    def test_damaged_messages_are_poison_or_rows_and_nothing_worse(self, written, changes) -> None:
        batch = pa.RecordBatch.from_pylist([*written, {"s": "text"}], schema=SCHEMA)
        message = bytearray(ArrowCodec().encode(batch).values[0].as_py())
        for at, byte in changes:
            message[at % len(message)] = byte
        decoded = ArrowCodec().decode(records([bytes(message)]), SCHEMA)
        assert decoded.poison.num_rows == 0 or decoded.rows.num_rows == 0
        decoded.rows.validate(full=True)

    def test_nothing_at_all(self) -> None:
        decoded = ArrowCodec().decode(records([]), SCHEMA)
        assert (decoded.rows.num_rows, decoded.rows.schema) == (0, SCHEMA)
        assert len(ArrowCodec().encode(pa.RecordBatch.from_pylist([], schema=SCHEMA)).values) == 0


class TestRaw:
    def test_bytes_as_they_are(self) -> None:
        schema = pa.schema([("value", pa.binary())])
        decoded = RawCodec().decode(fetched([b"1", b"\xff", None]), schema)
        assert decoded.rows["value"].to_pylist() == [b"1", b"\xff", None]
        assert RawCodec().encode(decoded.rows).values.to_pylist() == [b"1", b"\xff", None]

    def test_text(self) -> None:
        schema = pa.schema([("line", pa.utf8())])
        decoded = RawCodec().decode(fetched([b"1", b"\xff", "ü".encode(), b"\xc3"]), schema)
        assert decoded.rows["line"].to_pylist() == ["1", "ü"]
        assert decoded.records.to_pylist() == [0, 2]
        assert decoded.poison["offset"].to_pylist() == [101, 103]
        assert RawCodec().encode(decoded.rows).values.to_pylist() == [b"1", "ü".encode()]

    def test_one_column_of_bytes_or_text(self) -> None:
        for schema in (pa.schema([]), SCHEMA, pa.schema([("n", pa.list_(pa.int8()))])):
            with pytest.raises(InvalidError):
                RawCodec().decode(fetched([b"1"]), schema)
            with pytest.raises(InvalidError):
                RawCodec().encode(pa.RecordBatch.from_pylist([], schema=schema))


def test_codecs_have_names() -> None:
    assert isinstance(codec("json", nulls=True), JsonCodec)
    assert {codec(name).name for name in ("arrow", "json", "raw", "bytes", "string")} == {"arrow", "json", "raw"}
    with pytest.raises(InvalidError) as raised:
        codec("yaml")
    assert "protobuf" in str(raised.value)
