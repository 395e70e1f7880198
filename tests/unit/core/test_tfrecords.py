"""TFRecord framing against its published bytes, and against files that are cut off, damaged or hostile."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.core.tfrecords import HEADER_SIZE, crc32c, frame, masked_crc, read_records


def read(content: bytes, **options) -> list[bytes]:
    return [payload for _, payload in read_records(io.BytesIO(content), name="a", **options)]


def test_the_checksum_is_castagnoli() -> None:
    # The vectors of RFC 3720, B.4.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


def test_the_bytes_are_those_of_tensorflow() -> None:
    # tf.io.TFRecordWriter(path).write(b"hello")
    assert frame(b"hello").hex() == "0500000000000000eab2043e68656c6c6fbb1f1c19"


@given(st.lists(st.binary(max_size=100), max_size=10), st.integers(1, 7))
def test_what_is_written_is_read(payloads: list[bytes], chunk: int) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(chunk, size if size is not None and size >= 0 else chunk))

    content = b"".join(frame(each) for each in payloads)
    found = list(read_records(Slow(content), name="a"))
    assert [payload for _, payload in found] == payloads
    assert [content[offset : offset + 8] for offset, _ in found] == [struct.pack("<Q", len(each)) for each in payloads]


@given(st.integers(1, HEADER_SIZE + 5 + 3))
def test_a_file_that_is_cut_off_names_the_offset(cut: int) -> None:
    first, second = frame(b"first"), frame(b"hello")
    with pytest.raises(InvalidError, match="ends within") as caught:
        read(first + second[:cut])
    assert caught.value.facts["offset"] == str(len(first))
    assert caught.value.facts["file"] == "a"


@given(st.integers(0, HEADER_SIZE + 5 + 3), st.integers(1, 255))
def test_a_changed_byte_is_found(position: int, change: int) -> None:
    content = bytearray(frame(b"hello"))
    content[position] ^= change
    with pytest.raises(InvalidError, match="checksum"):
        read(bytes(content))


def test_a_length_beyond_the_bound_takes_no_memory() -> None:
    length = struct.pack("<Q", 1 << 60)
    with pytest.raises(InvalidError, match="at most 100 bytes"):
        read(length + struct.pack("<I", masked_crc(length)), max_record=100)


def test_checksums_of_payloads_may_be_left_out() -> None:
    content = bytearray(frame(b"hello"))
    content[-1] ^= 1
    assert read(bytes(content), verify=False) == [b"hello"]
