"""Documents: what was written reads back equal, also across versions of the program."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from types import MappingProxyType, SimpleNamespace

import pytest
from hypothesis import given

from shoal.control.store import codec
from shoal.control.store.codec import FORMAT, DocumentCodec
from shoal.control.store.rows import event_from_row
from shoal.core.errors import InternalError, PreconditionError
from shoal.model.events import Event
from shoal.model.nodes import DesiredNodeState, NodeRecord
from shoal.testing.suites import store_records


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    at: datetime
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    inner: Inner
    colour: Colour = Colour.RED
    wait: timedelta = timedelta(0)
    ratio: float = 0.5
    many: tuple[Inner, ...] = ()
    words: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    delays: Mapping[str, timedelta] = field(default_factory=dict)
    maybe: Inner | None = None


CODEC = DocumentCodec(Outer, columns=("name",))


def round_trip(value: Outer) -> Outer:
    return CODEC.decode(CODEC.encode(value), written_as=FORMAT, name=value.name)


@given(store_records.values_of(Outer))
def test_reads_back_equal(value):
    assert round_trip(value) == value


def test_a_column_is_not_in_the_document():
    document = json.loads(CODEC.encode(Outer("secret", Inner(datetime(2024, 1, 1, tzinfo=UTC)))))
    assert "name" not in document
    assert "secret" not in str(document)


@pytest.mark.parametrize(
    "value",
    [
        Outer("a", Inner(datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=timezone(timedelta(hours=-3, seconds=7))))),
        Outer("a", Inner(datetime.max.replace(tzinfo=UTC))),
        Outer("a", Inner(datetime.min.replace(tzinfo=UTC), raw=bytes(range(256))), ratio=float("inf")),
        Outer("a", Inner(datetime(1970, 1, 1, tzinfo=UTC), raw=b""), wait=timedelta.max, ratio=5e-324),
        Outer("a", Inner(datetime(1970, 1, 1, tzinfo=UTC)), wait=-timedelta(microseconds=1), ratio=3),
        Outer("a", Inner(datetime(1970, 1, 1, tzinfo=UTC)), labels=MappingProxyType({"\x00": "\ud800 é \U0001f41f"})),
    ],
    ids=repr,
)
def test_odd_values(value):
    assert round_trip(value) == value
    assert CODEC.encode(value).isascii()


def test_a_moment_without_a_zone_is_refused():
    with pytest.raises(InternalError, match="time zone"):
        CODEC.encode(Outer("a", Inner(datetime(2024, 1, 1))))  # noqa: DTZ001 the point of the test


def test_programs_one_version_apart_read_each_other():
    written = json.loads(CODEC.encode(Outer("a", Inner(datetime(2024, 1, 1, tzinfo=UTC)), ratio=0.25)))
    del written["words"], written["inner"]["raw"]
    written["added_later"] = {"x": 1}
    written["inner"]["added_later"] = 2
    value = CODEC.decode(json.dumps(written), written_as=FORMAT, name="a")
    assert value == Outer("a", Inner(datetime(2024, 1, 1, tzinfo=UTC)), ratio=0.25)


def test_a_later_format_is_refused():
    with pytest.raises(PreconditionError, match=f"format {FORMAT + 1}") as caught:
        CODEC.decode("{}", written_as=FORMAT + 1, name="a")
    assert caught.value.hint


def test_an_earlier_format_is_brought_up_to_date(monkeypatch):
    monkeypatch.setattr(codec, "FORMAT", FORMAT + 2)
    monkeypatch.setitem(codec._UPGRADES, FORMAT, lambda name, old: {**old, "ratio": old["share"] / 100, "of": name})
    monkeypatch.setitem(codec._UPGRADES, FORMAT + 1, lambda _name, old: {**old, "words": [old["of"]]})
    text = json.dumps({"inner": {"at": "2024-01-01T00:00:00+00:00"}, "share": 25})
    value = CODEC.decode(text, written_as=FORMAT, name="a")
    assert (value.ratio, value.words) == (0.25, frozenset({"Outer"}))


def test_a_type_without_a_form_is_told_at_once():
    @dataclass
    class Odd:
        value: complex

    with pytest.raises(InternalError, match="complex"):
        DocumentCodec(Odd)


def test_a_renamed_field_is_stored_under_its_earlier_name():
    node = replace(store_records.node("n"), desired=DesiredNodeState.DRAINING, declared_lost=True)
    nodes = DocumentCodec(NodeRecord, columns=("state", "last_heartbeat", "version"))
    stored = json.loads(nodes.encode(node))
    assert (stored["wish"], stored["given_up"]) == ("draining", True)
    assert not {"desired", "declared_lost"} & stored.keys()


@pytest.mark.parametrize(("stored", "shown"), [("NodeGivenUp", "NodeDeclaredLost"), ("FromTheFuture", "FromTheFuture")])
def test_an_event_of_another_version_is_shown_under_its_present_name(stored, shown):
    events = DocumentCodec(Event, columns=("cursor",))
    document = events.encode(replace(store_records.event("n1"), kind=stored))
    row = SimpleNamespace(document=document, format=FORMAT, cursor=7)
    assert event_from_row(row) == replace(store_records.event("n1"), kind=shown, cursor=7)
