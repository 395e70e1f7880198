"""Files that others wrote, kept as they are: TFRecords of TensorFlow 2.16.2, and frames with every header."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from shoal.core import files
from shoal.records.formats.compression import Compression
from shoal.records.formats.frames import FrameFormat, PayloadType, frame
from shoal.records.formats.reading import RecordFormat, read_payloads, tfrecord
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "records"
#: `tf.data.experimental.TFRecordWriter(path, compression).write(Dataset.from_tensor_slices(RECORDS))`
RECORDS = [b"", b"shoal", bytes(range(256)), b"x" * 3000]
FLAGS = ("has_sort_id", "kafka_dump", "kafka_dump_prefix", "lagrangex_header")
INSTANCE = Instance(fid=[3 << 54 | 9], label=[1.0])


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP, Compression.ZLIB, Compression.SNAPPY])
def test_files_of_tensorflow(compression):
    path = str(GOLDEN / f"tensorflow-{compression.value}.tfrecord")
    found = [each for payloads in read_payloads(path, tfrecord(compression=compression)) for each in payloads]
    assert found == RECORDS


def framed_bytes():
    """One frame for each combination of flags, by their names."""
    made = {}
    for flags in itertools.product((False, True), repeat=4):
        form = FrameFormat(*flags)
        name = "+".join(name for name, on in zip(FLAGS, flags, strict=True) if on) or "none"
        key = 0x0A0B0C00 if form.lagrangex_header else 0
        content = frame(
            INSTANCE.SerializeToString(), form, sort_id=b"id", payload_type=PayloadType.INSTANCE, source_key=key
        )
        made[name] = content.hex()
    return made


def test_frames_do_not_change(tmp_path):
    golden = json.loads((GOLDEN / "frames.json").read_text())
    assert framed_bytes() == golden
    for name, content in golden.items():
        path = str(tmp_path / "f")
        files.write_atomic(path, bytes.fromhex(content) * 2)
        form = FrameFormat(*(flag in name.split("+") for flag in FLAGS))
        (payloads,) = read_payloads(path, RecordFormat(form, Compression.NONE))
        assert [Instance.FromString(each) for each in payloads] == [INSTANCE] * 2
