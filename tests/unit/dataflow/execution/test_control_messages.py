"""Control messages: every type comes back as it was, its bytes stay the same, and what is no message is refused."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import typing
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import CorruptError, InvalidError, PreconditionError, ShoalError, problem
from shoal.dataflow.checkpoint.messages import Command, Report
from shoal.dataflow.errors import FunctionError, Location, OperatorFailedError, PlanError, RemoteError, StepInput
from shoal.dataflow.execution.hosts import control_link
from shoal.dataflow.execution.hosts import control_messages as messages
from shoal.dataflow.execution.hosts.control_link import ControlLink
from shoal.dataflow.execution.hosts.control_messages import BadMessageError
from shoal.dataflow.execution.hosts.error_texts import describe_error, rebuild_error
from shoal.dataflow.execution.hosts.plain_values import form_of
from shoal.exchange.errors import PeerLostError
from tests.unit.dataflow.execution.control_samples import SAMPLES

GOLDEN = Path(__file__).parents[3] / "golden" / "dataflow" / "control_messages.json"
EVERY = {**messages.COORDINATOR_MESSAGES, **messages.HOST_MESSAGES}


def decode(message: Any) -> Any:
    is_host = type(message) in messages.HOST_MESSAGES.values()
    read = messages.decode_from_host if is_host else messages.decode_from_coordinator
    return read(messages.encode(message))


def test_every_type_has_a_sample_and_one_number():
    assert {type(each) for each in SAMPLES.values()} == set(EVERY.values())
    assert len(EVERY) == len(messages.COORDINATOR_MESSAGES) + len(messages.HOST_MESSAGES)
    commands = {type(each.command) for each in SAMPLES.values() if isinstance(each, messages.CommandTask)}
    assert commands == set(typing.get_args(Command))
    reports = {type(each.report) for each in SAMPLES.values() if isinstance(each, messages.TaskReport)}
    assert reports == set(typing.get_args(Report))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_message_comes_back_as_it_was(name):
    assert decode(SAMPLES[name]) == SAMPLES[name]


def test_the_bytes_stay_the_same():
    now = {name: messages.encode(each).hex() for name, each in SAMPLES.items()}
    if os.environ.get("SHOAL_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps({"format": messages.FORMAT, "messages": now}, indent=1) + "\n")
    kept = json.loads(GOLDEN.read_text())
    assert kept["format"] == messages.FORMAT
    assert now == kept["messages"], "the form of a message changed: raise FORMAT"


@pytest.mark.parametrize("name", SAMPLES)
def test_no_message_is_a_pickle(name):
    with pytest.raises(Exception):  # noqa: B017, PT011 - pickle has many ways to refuse
        pickle.loads(messages.encode(SAMPLES[name]))


def whole(number: int, fields: bytes, *blobs: bytes, form: int = messages.FORMAT, magic: bytes = b"SM") -> bytes:
    header = struct.pack("<2sBBII", magic, form, number, len(fields), len(blobs))
    return b"".join((header, *(struct.pack("<Q", len(each)) for each in blobs), fields, *blobs))


BAD = {
    "nothing": (b"", "at least 12 bytes"),
    "magic": (whole(33, b"{}", magic=b"XX"), "must begin with"),
    "a newer format": (whole(33, b"{}", form=messages.FORMAT + 1), "format: must be"),
    "unknown type": (whole(99, b"{}"), "type: is not the number"),
    "of the other side": (whole(3, b"{}"), "type: is not the number"),
    "cut off": (whole(33, b'{"address":"a"}')[:-1], "must have 27 bytes"),
    "too long": (whole(33, b'{"address":"a"}') + b"x", "must have 27 bytes"),
    "too many blobs": (struct.pack("<2sBBII", b"SM", messages.FORMAT, 33, 2, 1 << 20), "blobs: must be at most"),
    "blobs that are not there": (struct.pack("<2sBBII", b"SM", messages.FORMAT, 33, 2, 9), "is cut off"),
    "fields too large": (struct.pack("<2sBBII", b"SM", messages.FORMAT, 33, 1 << 31, 0), "fields: must have at most"),
    "no JSON": (whole(33, b"{"), "is no JSON"),
    "deep JSON": (whole(33, b"[" * 100_000), "HostListens"),
    "no object": (whole(33, b"[]"), "HostListens: must be an object"),
    "missing field": (whole(33, b"{}"), "HostListens.address: is missing"),
    "unknown field": (whole(34, b'{"more":1}'), "HostBuilt.more: is not a field"),
    "wrong type": (whole(33, b'{"address":7}'), r"HostListens.address: must be str \(got 7\)"),
    "bool for int": (whole(35, b'{"steps":[],"waiting_bytes":{"a":true}}'), "waiting_bytes.a: must be int"),
    "huge int": (whole(35, b'{"steps":[],"waiting_bytes":{"a":18446744073709551616}}'), "must fit into 64 bits"),
    "no list": (whole(35, b'{"steps":{},"waiting_bytes":{}}'), "steps: must be a list"),
    "unknown report": (whole(39, b'{"report":["Nonsense",{}]}'), "must be one of Acknowledged"),
    "report alone": (whole(39, b'{"report":"Drained"}'), "must be one of Acknowledged"),
    "bad task": (whole(39, b'{"report":["Drained",{"task":"1"}]}'), "must be a task"),
    "not a number": (
        whole(39, messages.encode(SAMPLES["report Acknowledged"])[12 + 8 : -5].replace(b"0.25", b" NaN"), b"ahead"),
        "must be finite",
    ),
    "no such blob": (
        whole(39, messages.encode(SAMPLES["report Acknowledged"])[12 + 8 : -5]),
        "must be the number of one of 0 blobs",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_message_is_refused_by_name(name):
    content, rule = BAD[name]
    with pytest.raises(BadMessageError, match=rule):
        messages.decode_from_host(content)


def test_settings_that_break_a_rule_are_refused():
    content = messages.encode(SAMPLES["BuildTasks"])
    with pytest.raises(BadMessageError, match="batch_rows: must be at least 1"):
        messages.decode_from_coordinator(content.replace(b'"batch_rows":65536', b'"batch_rows":    0'))


def test_a_type_that_cannot_cross_is_noticed_when_it_is_declared():
    for kind in (object, dict[int, str], list[int], complex):
        with pytest.raises(TypeError):
            form_of(kind)


# ---------------------------------------------------------------------------------------------------------
# The link


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    links = ControlLink(one), ControlLink(other)
    yield links
    for each in links:
        each.release()


def test_bytes_come_out_as_they_went_in(ends):
    here, there = ends
    for content in (b"", b"a", b"x" * 200_000):
        here.send(content)
        assert there.receive() == content
    here.close()
    assert there.receive() is None


def test_a_length_that_no_message_has_is_refused(ends):
    here, there = ends
    here._raw.sendall(struct.pack("<Q", messages.MOST_BYTES + 1))
    with pytest.raises(BadMessageError, match="length"):
        there.receive()


def test_a_peer_that_takes_nothing_is_lost(monkeypatch):
    """As a process that is suspended; its document may be larger than what the kernel takes for it."""
    monkeypatch.setattr(control_link, "STALL", 1)
    one, other = socket.socketpair()
    here, there = ControlLink(one), ControlLink(other)
    with pytest.raises(PeerLostError, match="took nothing for 1 s"):
        here.send(bytes(8 << 20))
    assert there.receive() is None
    with pytest.raises(PeerLostError):
        here.send(b"more")
    for each in (here, there):
        each.release()


def test_a_peer_that_stops_in_the_middle_is_gone(ends):
    here, there = ends
    here._raw.sendall(struct.pack("<Q", 10) + b"abc")
    here.close()
    assert there.receive() is None


# ---------------------------------------------------------------------------------------------------------
# Errors


class HomeMadeError(PreconditionError):
    """A type that the other side does not know."""


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def crossed(error: BaseException) -> ShoalError:
    text = describe_error(error)
    sent = messages.decode_from_host(messages.encode(messages.HostFailed(text)))
    return rebuild_error(sent.error)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_a_failed_step_comes_back_with_its_line_and_its_cause():
    function = FunctionError("f failed for a row", hint="mend it", row="{'a': 1}")
    function.__cause__ = raised(ValueError("seven"))
    worked_on = StepInput("a: int64", ("{'a': 1}",), 9, True, "topic t, split 0, offsets 3 to 11")
    failed = OperatorFailedError("map(f)", function, at=Location("app.py", 7, "main"), subtask=1, given=worked_on)
    failed.__cause__ = function
    found = crossed(failed)
    assert isinstance(found, OperatorFailedError)
    assert (found.message, found.hint, found.facts) == (failed.message, "mend it", failed.facts)
    assert (found.operator, found.at) == ("map(f)", Location("app.py", 7, "main"))
    assert (found.input, found.details, found.__notes__) == (worked_on, failed.details, failed.__notes__)
    assert isinstance(found.__cause__, FunctionError)
    assert found.__cause__.facts == {"row": "{'a': 1}"}
    foreign = found.__cause__.__cause__
    assert isinstance(foreign, RemoteError)
    assert (foreign.type_name, foreign.message, foreign.is_system) == ("ValueError", "ValueError: seven", False)
    assert "test_control_messages.py" in foreign.__notes__[0], "where it was raised"


def test_own_errors_keep_their_type_or_get_the_nearest():
    rules = InvalidError([problem("a", 1, "must be 2"), problem("b", None, "is missing")], what="it")
    found = crossed(rules)
    assert type(found) is InvalidError
    assert (found.problems, found.message) == (rules.problems, rules.message)
    assert type(crossed(HomeMadeError("no"))) is PreconditionError
    broken = crossed(CorruptError("a.state", 12, "is cut off"))
    assert isinstance(broken, CorruptError)
    assert (broken.path, broken.offset) == ("a.state", 12)
    wrong = crossed(PlanError([problem("a", 1, "no")], at=Location("b.py", 3)))
    assert isinstance(wrong, PlanError)
    assert wrong.at == Location("b.py", 3)


def test_any_error_crosses_however_strange():
    assert crossed(OSError(28, "full")).is_system  # type: ignore[attr-defined]
    assert "UnspeakableError" in crossed(UnspeakableError()).message
    assert "\\udc80" not in crossed(ValueError("\udc80")).message
    assert len(crossed(ValueError("x" * 1_000_000)).message) < 20_000
    chain: Exception = ValueError("0")
    for number in range(100):
        after = ValueError(str(number))
        after.__cause__, chain = chain, after
    assert isinstance(crossed(chain), RemoteError)
