"""The part of the registry for codecs: what lies in topics was written by anybody."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from shoal.testing.fuzz import JSON_VALUES, ParserCase, changed_bytes, changed_values
from shoal.testing.messages import messages
from shoal.topics.base import FETCHED
from shoal.topics.codecs import ArrowCodec, Codec, JsonCodec, RawCodec
from shoal.topics.codecs.protobuf import ProtobufCodec
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from tests.fuzz.inputs import blobs, flipped_bytes

#: Something of every kind that is read in a way of its own.
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int8()),
        ("share", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("text", pa.utf8()),
        ("yes", pa.bool_()),
        ("many", pa.list_(pa.int64())),
        ("inner", pa.struct([("a", pa.int64()), ("b", pa.utf8())])),
    ]
)
OBJECT = {"n": 1, "small": 2, "share": 1.5, "price": "1.50", "at": "2026-01-01T00:00:00Z", "day": "2026-01-01",
          "text": "é", "yes": True, "many": [1, 2], "inner": {"a": 1, "b": "c"}}  # fmt: skip
JSON = json.dumps(OBJECT).encode()
ROWS = pa.RecordBatch.from_pydict({"n": [1, None], "text": ["a", "bc"], "many": [[1], []]})
(ARROW,) = ArrowCodec().encode(ROWS).values.to_pylist()
MESSAGE = control.HeartbeatRequest
PROTOBUF = MESSAGE(node_id="n1", sequence=7).SerializeToString()
#: A time too far away for a column, and a NUL that the reader of JSON must not quote.
FAR = b'"\x0e\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x10\x80\x80\x04'
NUL = (b'{"n":\x00 1}', b'{"n": ["\\u0000"]}', b'{"text": "\\u0000"}')
TEXT = pa.schema([("value", pa.utf8())])


def _decoding(codec: Codec, schema: Any) -> Callable[[list[bytes | None]], object]:
    """Decodes the values of some records. Each one comes out once, as rows or as poison, and the rows are sound."""

    def decode(values: list[bytes | None]) -> object:
        count = len(values)
        columns = [pa.array(range(count), pa.int64()), pa.nulls(count, pa.binary()), pa.array(values, pa.binary())]
        more = [pa.array([0] * count, pa.int64()), pa.nulls(count, FETCHED.field("headers").type)]
        decoded = codec.decode(pa.RecordBatch.from_arrays([*columns, *more], schema=FETCHED), schema)
        decoded.rows.validate(full=True)
        assert decoded.rows.schema.equals(schema)
        good, bad = decoded.records.to_pylist(), decoded.poison.column("offset").to_pylist()
        assert len(good) == decoded.rows.num_rows
        assert good == sorted(good)
        assert not set(good) & set(bad)
        assert set(good) | set(bad) <= set(range(count))
        if not isinstance(codec, ArrowCodec):  # there a record may be of no rows
            assert sorted([*good, *bad]) == list(range(count))
        return decoded

    return decode


def _records(*values: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes | None]]:
    """Some that are right among those that are not, and tombstones."""
    return st.lists(st.one_of(st.none(), blobs, *values), max_size=5)


def _same(*goods: bytes) -> list[st.SearchStrategy[bytes]]:
    return [each for good in goods for each in (st.just(good), changed_bytes(good), flipped_bytes(good))]


_PROTOBUF = ProtobufCodec(MESSAGE)

CODEC_PARSERS: dict[str, ParserCase] = {
    "shoal.topics.codecs.arrow.ArrowCodec.decode": ParserCase(
        _decoding(ArrowCodec(), ROWS.schema), _records(*_same(ARROW)), (), ([ARROW, ARROW], [])
    ),
    "shoal.topics.codecs.objects.JsonCodec.decode": ParserCase(
        _decoding(JsonCodec(), SCHEMA),
        _records(
            *_same(JSON, *NUL), (JSON_VALUES | changed_values(OBJECT)).map(lambda each: json.dumps(each).encode())
        ),
        (),
        ([JSON, b"{}"], []),
    ),
    "shoal.topics.codecs.protobuf.ProtobufCodec.decode": ParserCase(
        _decoding(_PROTOBUF, _PROTOBUF.schema),
        _records(messages(MESSAGE).map(lambda each: each.SerializeToString()), *_same(PROTOBUF, FAR)),
        (),
        ([PROTOBUF, b""], []),
    ),
    "shoal.topics.codecs.raw.RawCodec.decode": ParserCase(
        _decoding(RawCodec(), TEXT), _records(*_same("text é".encode())), (), ([b"a", b""],)
    ),
}
