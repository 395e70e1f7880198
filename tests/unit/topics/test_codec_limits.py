"""One record that a library cannot bear is poison; the records beside it, and the process, go on."""

from __future__ import annotations

import pyarrow as pa
import pytest

from shoal.topics.base import FETCHED
from shoal.topics.codecs import JsonCodec
from shoal.topics.codecs.protobuf import ProtobufCodec
from shoal.wire.pb.persys.control.v1 import control_pb2 as control


def _fetched(values):
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(count), pa.int64()),
            pa.nulls(count, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([0] * count, pa.int64()),
            pa.nulls(count, FETCHED.field("headers").type),
        ],
        schema=FETCHED,
    )


@pytest.mark.parametrize("bad", [b'{"n":\x00 1}', b'{"n": ["\\u0000"]}', b'{"n": 1, "\x00": 2}', b'{"n": "\\u0000"}'])
def test_a_nul_in_json_that_cannot_be_read_is_poison(bad):
    decoded = JsonCodec().decode(_fetched([b'{"n": 1}', bad, b'{"n": 3}']), pa.schema([("n", pa.int64())]))
    assert decoded.rows.to_pydict() == {"n": [1, 3]}
    assert decoded.poison.column("offset").to_pylist() == [1]


def test_a_nul_in_text_is_text():
    values = [b'{"t": "a\\u0000b"}', b'{"t": "\\\\u0000"}']
    decoded = JsonCodec().decode(_fetched(values), pa.schema([("t", pa.utf8())]))
    assert decoded.rows.to_pydict() == {"t": ["a\0b", "\\u0000"]}


def test_a_time_too_far_away_for_a_column_is_poison():
    codec = ProtobufCodec(control.HeartbeatRequest)
    far = b'"\x0e\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x10\x80\x80\x04'
    good = control.HeartbeatRequest(node_id="n1").SerializeToString()
    decoded = codec.decode(_fetched([good, far, good]), codec.schema)
    assert decoded.rows.column("node_id").to_pylist() == ["n1", "n1"]
    assert decoded.records.to_pylist() == [0, 2]
    assert decoded.poison.column("offset").to_pylist() == [1]
