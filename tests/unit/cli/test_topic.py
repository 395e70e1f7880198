"""`shoal topic`: what is in topics of a local log, what is written to them, and what is refused."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.programs.topic_lines import MAX_LINE, read_lines
from shoal.core.errors import InvalidError
from shoal.topics import LocalTopics, TopicPartition, records
from shoal.topics.base import Retention

GOLDEN = Path(__file__).parents[2] / "golden" / "cli"
#: 2026-01-01T00:00:00Z in microseconds.
START = 1_767_225_600_000_000


def check_golden(name: str, text: str) -> None:
    """Compare with what is written down; SHOAL_WRITE_GOLDEN=1 writes it down."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("SHOAL_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A log with two topics: one has two partitions, a group, a tombstone, and a value that is no text."""
    directory = tmp_path / "log"
    with LocalTopics(directory) as topics:
        topics.create("clicks", partitions=2)
        topics.create("empty", retention=Retention(size=10 * 2**20))
        with topics.writer() as writer:
            for partition, values, keys, headers in (
                (0, [b'{"n": 1}', b"two", None], [b"ada", None, b"bob"], [None, [("trace", b"7")], None]),
                (1, [b'{"n": [3]}', b"\xff\xfe", b"{broken"], [None, b"\x00\xff", None], None),
            ):
                times = [START + 1_000_000 * (10 * each + partition) for each in range(3)]
                writer.append(
                    "clicks", records(values, keys=keys, timestamps=times, headers=headers), partition=partition
                )
            writer.flush()
        with topics.writer(transactional_id="copy") as writer:
            writer.begin()
            writer.commit(offsets={"readers": {TopicPartition("clicks", 0): 2}})
    return str(directory)


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(["topic", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("topic-list", ["list"]),
        ("topic-list-json", ["list", "--json"]),
        ("topic-describe", ["describe", "clicks", "--group", "readers"]),
        ("topic-describe-json", ["describe", "clicks", "--group", "readers", "--json"]),
        ("topic-peek", ["peek", "clicks"]),
        ("topic-peek-json", ["peek", "clicks", "--json"]),
    ],
)
def test_what_is_printed(name, arguments, log, capsys, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    code, out, err = run([*arguments, "--broker", log], capsys)
    assert (code, err) == (0, "")
    check_golden(name, out)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-n", "2"], [(0, 2), (1, 2)]),  # the newest, over all partitions
        (["-n", "2", "--from-start"], [(0, 0), (1, 0)]),
        (["-n", "3", "--partition", "1"], [(1, 0), (1, 1), (1, 2)]),
        (["--partition", "0", "--offset", "1"], [(0, 1), (0, 2)]),
        (["--partition", "0", "--offset", "9"], []),
        (["-n", "1", "--partition", "1", "--offset", "1"], [(1, 1)]),
    ],
)
def test_which_records_are_shown(options, expected, log, capsys):
    code, out, _err = run(["peek", "clicks", "--broker", log, "--json", *options], capsys)
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["partition"], each["offset"]) for each in found] == expected


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["describe", "nope"], 1, "topic 'nope' not found"),
        (["peek", "nope"], 1, "topic 'nope' not found"),
        (["feed", "nope"], 1, "--create N makes it"),
        (["peek", "clicks", "--partition", "2"], 2, "--partition: must be below 2"),
        (["peek", "clicks", "--offset", "2"], 2, "needs --partition"),
        (["peek", "clicks", "-n", "0"], 2, "must be at least 1"),
        (["list", "--client-config", "x"], 2, "is for Kafka"),
        (["feed", "clicks", "no-such-file"], 2, "cannot be read"),
    ],
)
def test_what_is_refused(arguments, code, words, log, capsys):
    found, out, err = run([*arguments, "--broker", log], capsys)
    assert (found, out) == (code, "")
    assert words in err
    assert "a bug" not in err


def test_a_log_that_is_not_there_is_not_made(tmp_path, capsys):
    code, _out, err = run(["list", "--broker", str(tmp_path / "nope")], capsys)
    assert code == 1
    assert "not found" in err
    assert not (tmp_path / "nope").exists()


@pytest.mark.parametrize("broker", ["kafka://ada:secret-57@host:9092", "nonsense"])
def test_a_broker_that_cannot_be_one_is_refused_without_its_password(broker, capsys):
    code, _out, err = run(["list", "--broker", broker], capsys)
    assert code == 2
    assert "--broker" in err
    assert "secret-57" not in err


def test_the_value_of_a_bad_client_setting_is_not_shown(tmp_path, capsys):
    (tmp_path / "client").write_text("# comment\nsasl.password=open-sesame\nopen-sesame-too\n")
    code, _out, err = run(["list", "--broker", "127.0.0.1:1", "--client-config", str(tmp_path / "client")], capsys)
    assert code == 2
    assert "line 3" in err
    assert "open-sesame" not in err


# ---------------------------------------------------------------------------------------------------------
# Feeding


class Stdin:
    """Standard input with these bytes."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def values_of(log: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    with LocalTopics(log) as topics, topics.reader() as reader:
        places = topics.describe(topic).topic_partitions()
        ends = topics.next_offsets(places)
        reader.assign(topics.first_offsets(places))
        found = []
        while any(reader.positions()[each] < ends[each] for each in places):
            for fetched in reader.read(timeout=1.0):
                batch = fetched.batch
                found += zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
    return found


def test_lines_of_stdin_become_records(log, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin(b'{"user": "ada", "n": 1}\n\n  {"user": 7}\r\n{"user": null}'))
    code, out, err = run(["feed", "empty", "--broker", log, "--key", "user", "--json"], capsys)
    assert (code, json.loads(out), err) == (0, {"topic": "empty", "records": 3}, "")
    assert values_of(log, "empty") == [
        (b"ada", b'{"user": "ada", "n": 1}'),
        (b"7", b'{"user": 7}'),
        (None, b'{"user": null}'),
    ]


def test_a_new_topic_is_made_when_that_is_asked_for(tmp_path, capsys):
    (tmp_path / "rows").write_text('{"n": 1}\n{"n": 2}\n')
    log = str(tmp_path / "new")
    code, _out, err = run(["feed", "fresh", str(tmp_path / "rows"), "--broker", log, "--create", "3"], capsys)
    assert (code, err) == (0, "2 records written to topic fresh\n")
    with LocalTopics(log) as topics:
        assert topics.describe("fresh").partitions == 3


def test_of_a_file_with_a_bad_line_nothing_is_written(log, tmp_path, capsys):
    (tmp_path / "rows").write_text('{"n": 1}\n{"n": 2}\nnope\n{"n": 4}\n')
    code, _out, err = run(["feed", "empty", str(tmp_path / "rows"), "--broker", log], capsys)
    assert code == 2
    assert "line 3: must be a JSON object" in err
    assert values_of(log, "empty") == []


def test_of_stdin_the_lines_before_a_bad_one_are_written(log, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin(b'{"n": 1}\n{"n": 2}\n[3]\n{"n": 4}\n'))
    code, _out, err = run(["feed", "empty", "--broker", log], capsys)
    assert code == 2
    assert "stdin, line 3: must be a JSON object" in err
    assert "2 records before it were written" in err
    assert [value for _key, value in values_of(log, "empty")] == [b'{"n": 1}', b'{"n": 2}']


@pytest.mark.parametrize(
    "line",
    [
        b"nope",
        b"[1]",
        b"1",
        b'{"n": NaN}',
        b'{"n": 1',
        b"\xff",
        b'{"other": 1}',
        b'{"n": {}}',
        b'{"n":' + b"[" * 100_000,
    ],
    ids=lambda line: line[:12].decode(errors="replace"),
)
def test_bad_lines_are_named(line):
    with pytest.raises(InvalidError, match="line 2"):
        list(read_lines(io.BytesIO(b'{"n": 1}\n' + line + b"\n"), key="n"))


def test_a_line_without_an_end_is_not_held_in_memory():
    class Endless(io.RawIOBase):
        given = 0

        def read1(self, size: int) -> bytes:
            self.given += size
            return b"x" * size

    stream = Endless()
    with pytest.raises(InvalidError, match=f"at most {MAX_LINE} bytes"):
        list(read_lines(stream))  # type: ignore[arg-type]
    assert stream.given < 2 * MAX_LINE


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_the_same_whatever_the_chunks_are(size):
    class Pieces(io.BytesIO):
        def read1(self, _size: int | None = -1) -> bytes:
            return super().read1(size)

    rows = [json.dumps({"n": each, "text": "ä" * each}, ensure_ascii=False).encode() for each in range(20)]
    found = [value for lines in read_lines(Pieces(b"\n".join(rows))) for value in lines.values]
    assert found == rows
