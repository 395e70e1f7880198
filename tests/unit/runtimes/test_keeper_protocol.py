"""Lines between agent and keeper, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.runtimes.keeper import protocol
from shoal.runtimes.keeper.protocol import (
    LineBuffer,
    ProtocolError,
    Refusal,
    StartMessage,
    start_from_json,
    start_to_json,
)

START = StartMessage(
    run_id="web-1",
    workload_id="web",
    argv=("/bin/true", "an argument"),
    env={"NAME": "value", "ODD": "caf\udce9"},
    working_dir="/",
    own_dir=False,
    user="",
    stop_signal=15,
    grace=10.0,
    ports={"http": 80},
    cpu_millicores=100,
    memory_mb=64,
    deadline=None,
)

values = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=5), max_size=2)
messages = st.lists(st.dictionaries(st.text(max_size=5), values, max_size=3), max_size=4)


@given(messages, st.integers(1, 20))
def test_messages_survive_any_cutting(sent: list[dict[str, Any]], size: int) -> None:
    stream = b"".join(protocol.encode(message) for message in sent)
    buffer, found = LineBuffer(), []
    for begin in range(0, len(stream), size):
        found += buffer.feed(stream[begin : begin + size])
    assert found == sent


@given(st.binary(max_size=200))
def test_nonsense_is_refused_as_such(chunk: bytes) -> None:
    try:
        messages = LineBuffer().feed(chunk)
    except ProtocolError:
        return
    assert all(isinstance(message, dict) for message in messages)


def test_a_line_without_end_is_refused() -> None:
    buffer = LineBuffer()
    for _ in range(protocol.MAX_LINE // 65536):
        assert buffer.feed(b"x" * 65536) == []
    with pytest.raises(ProtocolError, match="longer than"):
        buffer.feed(b"x")


def test_a_wish_comes_over_whole() -> None:
    assert start_from_json(json.loads(protocol.encode(start_to_json(START)))) == START


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "a\0b", "x" * 300, 7, None, ["a"]])
@pytest.mark.parametrize("field", ["run_id", "workload_id"])
def test_an_id_that_is_no_file_name_is_refused(field: str, name: object) -> None:
    with pytest.raises(Refusal) as raised:
        start_from_json({**start_to_json(START), field: name})
    assert raised.value.kind == "invalid"


@given(st.dictionaries(st.sampled_from(sorted(start_to_json(START))), values, min_size=1))
def test_a_wish_with_anything_in_it_is_read_or_refused(changed: dict[str, Any]) -> None:
    try:
        start = start_from_json({**start_to_json(START), **changed})
    except Refusal:
        return
    assert start.argv
    assert all(isinstance(word, str) for word in start.argv)
    assert "/" not in start.run_id + start.workload_id
    assert protocol.encode(start_to_json(start))


@pytest.mark.parametrize("field", sorted(set(start_to_json(START)) - {"deadline", "kind", "stop_socket"}))
def test_a_wish_without_a_field_is_refused(field: str) -> None:
    body = start_to_json(START)
    del body[field]
    with pytest.raises(Refusal):
        start_from_json(body)
