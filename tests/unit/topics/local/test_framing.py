"""Whatever happens to the file: whole frames are found, in order, and nothing else ever is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InternalError
from shoal.topics.local.history.framing import MAGIC, frame, scan

payloads = st.binary(max_size=60).map(lambda raw: bytes(byte & 0x7F for byte in raw))


@given(st.lists(payloads, max_size=6))
def test_what_was_framed_is_found(written: list[bytes]) -> None:
    content = b"".join(map(frame, written))
    assert scan(content).payloads == written
    assert scan(content).consumed in (len(content), max(0, len(content) - len(MAGIC) + 1))


@given(st.lists(st.tuples(payloads, st.integers(min_value=0, max_value=80)), max_size=6), payloads)
def test_torn_frames_are_skipped(torn: list[tuple[bytes, int]], last: bytes) -> None:
    content, expected = b"", []
    for payload, kept in torn:
        whole = frame(payload)
        content += whole[:kept]
        if kept >= len(whole):
            expected.append(payload)
    assert scan(content + frame(last)).payloads == [*expected, last]


@given(st.lists(payloads, min_size=1, max_size=5), st.binary(max_size=40))
def test_garbage_before_a_frame_is_skipped(written: list[bytes], garbage: bytes) -> None:
    # Garbage may end with the first bytes of a magic word, but it never is one with a right checksum behind it.
    found = scan(garbage.replace(MAGIC, b"") + b"".join(map(frame, written))).payloads
    assert found == written


@given(st.lists(payloads, min_size=1, max_size=5), st.data())
def test_a_file_that_grows_is_read_as_one_that_has_grown(written: list[bytes], data: st.DataObject) -> None:
    content = b"".join(map(frame, written))
    position, end, found = 0, 0, []
    while end < len(content):
        end = data.draw(st.integers(min_value=end + 1, max_value=len(content)))
        part = scan(content[position:end])
        found += part.payloads
        position += part.consumed
    assert found == written


@given(st.lists(payloads, min_size=1, max_size=4), st.data())
def test_a_damaged_frame_is_never_taken_for_whole(written: list[bytes], data: st.DataObject) -> None:
    content = bytearray(b"".join(map(frame, written)))
    at = data.draw(st.integers(min_value=0, max_value=len(content) - 1))
    content[at] ^= data.draw(st.integers(min_value=1, max_value=255))
    found = scan(bytes(content)).payloads
    # One frame is lost, and a damaged length may hide those behind it; but nothing is found that was not there.
    remaining = list(written)
    for payload in found:
        assert payload in remaining
        remaining.remove(payload)
    assert len(found) < len(written) or found == written


def test_only_text_is_framed() -> None:
    with pytest.raises(InternalError):
        frame("ü".encode())
