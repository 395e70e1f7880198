"""Stock TensorFlow, in its own environment, reads the TFRecord files that we write."""

from __future__ import annotations

import pytest

from bench.tables.peers import TENSORFLOW_DUMPS
from shoal.records.formats.compression import Compression
from shoal.records.formats.tfrecords import write_tfrecords

WITHIN = 300.0
RECORDS = [b"", b"shoal", bytes(range(256)), b"x" * 600_000, *(bytes([number]) * number for number in range(200))]
NAMES = {
    Compression.NONE: "",
    Compression.GZIP: "GZIP",
    Compression.ZLIB: "ZLIB",
    Compression.SNAPPY: "SNAPPY",
}


@pytest.mark.timeout(2 * WITHIN + 1200)
@pytest.mark.parametrize("compression", NAMES)
def test_tensorflow_reads_our_files(tmp_path, compression):
    path = str(tmp_path / "f")
    write_tfrecords(path, RECORDS, compression=compression)
    found = TENSORFLOW_DUMPS.run(["read", path, NAMES[compression]], within=WITHIN)
    assert [bytes.fromhex(each) for each in found] == RECORDS
