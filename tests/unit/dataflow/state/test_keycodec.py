"""Keys and state as bytes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import DamagedError, InternalError, InvalidError, UnsupportedError
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.entries import entries_of, entries_table
from shoal.dataflow.state.keycodec import decode_key, encode_key
from shoal.dataflow.state.tables import TableState, merge
from shoal.dataflow.state.timers import Timers

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
)
keys = st.lists(values, max_size=4).map(tuple)


@given(keys)
def test_a_key_comes_back(key):
    assert decode_key(encode_key(key)) == key


@given(keys, keys)
def test_different_keys_have_different_bytes(one, other):
    if [(type(a), a) for a in one] != [(type(a), a) for a in other]:
        assert encode_key(one) != encode_key(other)


def test_equal_keys_have_equal_bytes():
    text = "".join(["a", "b"])
    assert encode_key((text, text)) == encode_key(("ab", "a" + "b"))
    assert encode_key((0.0,)) == encode_key((-0.0,))
    assert encode_key((float("nan"),)) == encode_key((-float("nan"),))


def test_what_no_key_can_be():
    with pytest.raises(InvalidError, match="plain values"):
        encode_key(([1],))
    with pytest.raises(InternalError):
        decode_key(b"?\x00\x00\x00\x00")


@pytest.mark.parametrize(
    "content", [b"i", b"i\x00\x00\x00\x01x", b"b\x00\x00\x00\x09ab", b"d\x00\x00\x00\x01?", b"f\xff\xff\xff\xff"]
)
def test_a_torn_key_is_refused(content):
    with pytest.raises(DamagedError, match="a key of the state"):
        decode_key(content)


def test_the_bytes_never_change():
    key = (1, "é", None, True, 2.5, b"\x00", Decimal("1.50"), dt.date(2026, 1, 2))
    assert encode_key(key).hex() == (
        "690000000131730000000" "2c3a96e000000007400000001316600000008400400000000000062000000010064000000"
        "04312e3530790000000a323032362d30312d3032"
    )  # fmt: skip


def test_tables_and_facts_come_back():
    table = pa.table({"x": [1, 2], "d": pa.array(["a", "b"]).dictionary_encode()}, metadata={"own": "kept"})
    blob = unpack(pack({"one": table, "two": table.slice(1)}, watermark=5))
    assert blob.facts["watermark"] == 5
    assert blob.tables["one"].equals(table)
    assert blob.tables["one"].schema.metadata == {b"own": b"kept"}
    assert blob.tables["two"].to_pylist() == [{"x": 2, "d": "b"}]


def test_another_format_is_refused():
    content = pack({}).replace(b'"format": 1', b'"format": 9')
    with pytest.raises(UnsupportedError, match="format 9"):
        unpack(content)


def test_torn_state_is_refused():
    content = pack({"t": pa.table({"text": ["abc", "de"]})})
    for end in (1, 100, len(content) - 20):
        with pytest.raises(DamagedError, match="of state cannot be read"):
            unpack(content[:end])


def test_places_that_lead_elsewhere_are_refused():
    content = pack({"t": pa.table({"text": ["abc", "de"]})})
    place = content.index(b"\x00\x00\x00\x00\x03\x00\x00\x00\x05\x00\x00\x00")  # where each text begins, and the end
    with pytest.raises(DamagedError, match="ffset"):
        unpack(content[: place + 4] + b"\xff\xff\xff\x7f" + content[place + 8 :])


@pytest.mark.parametrize("rows", [pa.table({"a": [1]}), entries_table([]).rows.drop_columns(["value"])])
def test_a_table_without_values_is_refused(rows):
    with pytest.raises(DamagedError, match="is none of values"):
        entries_of(TableState(rows, np.zeros(len(rows), np.int64)))


def test_timers_come_once_and_in_order():
    timers = Timers()
    for time, key in ((5, b"a"), (3, b"b"), (5, b"a"), (9, b"c")):
        timers.set(time, (1, key))
    timers.delete(3, (1, b"b"))
    timers.delete(3, (1, b"b"))
    assert timers.next_time() == 5
    assert list(timers.pop_due(8)) == [(5, (1, b"a"))]
    assert len(timers) == 1
    for time in range(1000):
        timers.set(10_000 + time, (1, b"x"))
        timers.delete(10_000 + time, (1, b"x"))
    assert len(timers._heap) < 100
    assert list(timers.pop_due(10**9)) == [(9, (1, b"c"))]


def test_a_snapshot_of_timers_has_what_changed():
    timers = Timers()
    timers.set(5, (1, b"a"))
    timers.set(7, (2, b"b"))
    first, is_whole = timers.changes()
    assert is_whole
    assert list(timers.pop_due(5)) == [(5, (1, b"a"))]
    timers.set(9, (3, b"c"))
    second, is_whole = timers.changes()
    assert not is_whole
    other = Timers()
    other.restore(merge([first, second]))
    assert list(other.pop_due(100)) == [(7, (2, b"b")), (9, (3, b"c"))]
    assert not timers.changes()[0].has_changes
