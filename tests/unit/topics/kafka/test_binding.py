"""What lies in memory, as columns."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.topics.kafka import binding
from shoal.topics.kafka.interface import find, interface

Values = st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=60)


@given(values=Values, cut=st.tuples(st.integers(0, 20), st.integers(0, 20)))
def test_bytes_are_read_from_where_they_lie(values: list[bytes | None], cut: tuple[int, int]) -> None:
    column = pa.array(values, pa.binary()).slice(cut[0], max(1, len(values) - sum(cut)))
    if not len(column):
        return
    read = binding.read_bytes(*binding.addresses_of(column))
    read.validate(full=True)
    assert read.equals(column)


def test_an_empty_value_is_not_none() -> None:
    places, sizes = binding.addresses_of(pa.array([b"", None, b""], pa.binary()))
    assert (places != 0).tolist() == [True, False, True]
    assert sizes.tolist() == [0, 0, 0]


def test_values_that_lie_far_apart() -> None:
    """In parts of the memory that no single buffer spans."""
    # Three gigabytes of addresses; only the two pages that are written to take memory.
    with mmap.mmap(-1, 3 * 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:20], memory[-30:] = b"A" * 20, b"B" * 30
        whole = np.frombuffer(memory, np.uint8)
        first = whole.ctypes.data
        read = binding.read_bytes(np.array([first, first + len(whole) - 30, first + 10]), np.array([20, 30, 5]))
        assert read.to_pylist() == [b"A" * 20, b"B" * 30, b"A" * 5]
        del whole


def messages(*rows: dict[str, int]) -> Any:
    made = np.zeros(len(rows), binding.MESSAGE)
    for at, row in enumerate(rows):
        for name, value in row.items():
            made[name][at] = value
    return made


def test_structs_are_read_by_pointers() -> None:
    made = messages({"offset": 5, "partition": 2}, {"offset": 6, "error": -191}, {"offset": 7, "size": 9})
    first = binding.address_of(made)
    pointers = np.array([first + 144, first, first + 72])
    read = binding.read_messages(pointers)
    assert read["offset"].tolist() == [7, 5, 6]
    assert read["error"].tolist() == [0, 0, -191]
    assert read["partition"].tolist() == [0, 2, 0]


def test_headers_are_seen_behind_the_value() -> None:
    content = np.frombuffer(b"value\0VALUE\2" + bytes(64), np.uint8).copy()
    base = content.ctypes.data
    found = binding.may_have_headers(
        messages(
            {"payload": base, "size": 5}, {"payload": base + 6, "size": 5}, {"payload": 0}, {"payload": base, "size": 0}
        )
    )
    on_edge = [(base + 5) % 4096 == 0, (base + 11) % 4096 == 0]
    assert found.tolist() == [on_edge[0], True, True, True]


def test_it_works_where_tests_run() -> None:
    assert find() is not None


@pytest.fixture
def _fresh() -> Iterator[None]:
    interface.cache_clear()
    yield
    interface.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_the_installed_client_passes_the_self_test() -> None:
    found = interface()
    assert found.binding is not None
    assert found.text == f"C interface of librdkafka {confluent_kafka.libversion()[0]}, self-test passed"


MOVED = {
    "a field more": np.dtype([("new", "<i8"), *binding.MESSAGE.descr]),
    "two fields in another order": np.dtype(
        [(binding.MESSAGE.names[at], binding.MESSAGE[at].str) for at in (0, 1, 2, 3, 4, 7, 8, 5, 6, 9, 10)]
    ),
    "a partition elsewhere": np.dtype(
        [(binding.MESSAGE.names[at], binding.MESSAGE[at].str) for at in (3, 1, 2, 0, 4, 5, 6, 7, 8, 9, 10)]
    ),
}


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("kind", MOVED)
def test_structs_of_another_layout_are_noticed(kind: str, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """What the client takes is laid out as it is; read otherwise, it is not what was given."""
    monkeypatch.setattr(binding, "read_messages", lambda pointers: _read_as(MOVED[kind], pointers))
    found = interface()
    assert found.binding is None
    assert found.text.startswith(f"Python interface of librdkafka {confluent_kafka.libversion()[0]}: messages have")
    assert "message by message" in caplog.text


def _read_as(layout: Any, pointers: Any) -> Any:
    content = [ctypes.string_at(int(each), layout.itemsize) for each in pointers]
    return np.frombuffer(b"".join(content), layout)


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("place", [None, 8, 2**60])
def test_a_handle_that_is_elsewhere_is_noticed(place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding.Binding, "place_of", lambda _self, _client: place)
    assert interface().text.endswith("a client's handle is not where it is expected")


@pytest.mark.usefixtures("_fresh")
def test_a_library_that_lacks_a_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka.cimpl, "__file__", ctypes.util.find_library("c"))
    found = interface()
    assert found.binding is None
    assert "rd_kafka_name" in found.text
