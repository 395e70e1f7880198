from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from shoal.core import files
from shoal.core.errors import CorruptError, InvalidError, UnsupportedError
from shoal.records import Example, ExampleBatch, Instance, load_message, read_messages, write_frames, write_message
from shoal.records.bad_records import BadRecords, OnBad
from shoal.records.formats.documents import DocumentFormat, document_format
from shoal.records.formats.reading import framed
from shoal.testing.messages import messages

#: As Monolith's tools write it, with the quote that is missing in its own sample.
DUMP = """"root":
"feature":
0:
"fid":
0: "1"
"name": "fc_a"
1:
"fid":
0: "2"
"name": "fc_b:c"
2:
"fid":
0: "3"
1: "4"
label":
0: 0
1: 1
"line_id":
"actions":
0: 1
"user_id": "a:b"
"""


def test_a_dump_is_read(tmp_path):
    path = str(tmp_path / "inst.dump")
    files.write_atomic(path, DUMP.encode())
    read = load_message(path, Instance)
    assert [(each.name, list(each.fid)) for each in read.feature] == [("fc_a", [1]), ("fc_b:c", [2]), ("", [3, 4])]
    assert (list(read.label), list(read.line_id.actions), read.line_id.user_id) == ([0, 1], [1], "a:b")


def test_a_key_goes_to_the_nearest_message_that_lacks_it(tmp_path):
    path = str(tmp_path / "inst.dump")
    files.write_atomic(path, b'feature:\n0:\nfid:\n0: 5\n"fid":\n0: 7\ninstance_weight: 0.5\n')
    read = load_message(path, Instance)
    assert (list(read.feature[0].fid), list(read.fid), read.instance_weight) == ([5], [7], 0.5)


@pytest.mark.parametrize(("text", "rule"), [
    ("nothing", "a key or a number"),
    ('"nothing": 1', "must be a field of parser.proto.Instance"),
    ("1: 5", "next entry"),
    ("fid:\n1: 5", "line 2.*next entry"),
    ("9999999999999999999999: 5", "next entry"),
    ("fid: 5", "must be a field"),
    ("fid:\n0: x", "must be a parser.proto.Instance"),
    ("line_id: 7", "must be a field"),
    ("\xff", "key or a number"),
])  # fmt: skip
def test_what_is_no_dump_is_refused(tmp_path, text, rule):
    path = str(tmp_path / "inst.dump")
    files.write_atomic(path, text.encode())
    with pytest.raises(InvalidError, match=rule):
        load_message(path, Instance)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(messages(Instance) | messages(Example) | messages(ExampleBatch))
def test_what_was_written_is_read(tmp_path, message):
    for suffix in (".pbtxt", ".pb"):
        path = str(tmp_path / f"m{suffix}")
        write_message(path, message)
        # As text, for a NaN has many bit patterns and is not equal to itself.
        assert str(load_message(path, type(message))) == str(message)


def test_json_is_read(tmp_path):
    message = Instance(fid=[1, 2**63], label=[0.5], instance_weight=1.5)
    message.feature.add(name="é", bytes_value=[b"\x00\xff"])
    path = str(tmp_path / "m.json")
    write_message(path, message)
    assert load_message(path, Instance) == message
    files.write_atomic(path, b'{"lineId": {"reqTime": "7", "user_id": "u"}}')
    assert load_message(path, Instance).line_id.req_time == 7


def test_what_is_no_message_is_refused(tmp_path):
    for suffix, content in ((".json", b"["), (".json", b"\xff"), (".json", b"[" * 5000), (".pbtxt", b"nothing: 1")):
        path = str(tmp_path / f"m{suffix}")
        files.write_atomic(path, content)
        with pytest.raises(InvalidError):
            load_message(path, Instance)
    files.write_atomic(str(tmp_path / "m.pb"), b"\x0a\xff")
    with pytest.raises(CorruptError, match=r"parser\.proto\.Instance"):
        load_message(str(tmp_path / "m.pb"), Instance)
    with pytest.raises(UnsupportedError, match="read and not written"):
        write_message(str(tmp_path / "m.dump"), Instance())
    assert document_format("x") is DocumentFormat.BYTES


def test_messages_of_a_framed_file(tmp_path):
    path = str(tmp_path / "f")
    good = Instance(fid=[1, 2])
    write_frames(path, [good.SerializeToString(), b"\x0a\xff", good.SerializeToString()])
    skipping = BadRecords(OnBad.SKIP)
    assert list(read_messages(path, Instance, framed(), skipping)) == [good, good]
    assert (skipping.count, skipping.last.offset) == (1, 8 + len(good.SerializeToString()))
    with pytest.raises(CorruptError):
        list(read_messages(path, Instance, framed()))
