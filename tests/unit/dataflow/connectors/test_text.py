"""CSV and JSON lines that cannot be read, in whole or in part: nothing is lost without a word, nothing is cut."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import col, lit, tumbling
from shoal.core.clock import SystemClock
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.connectors.files import text
from shoal.dataflow.connectors.files.sources import CsvSource, JsonLinesSource
from shoal.dataflow.errors import OperatorFailedError, PlanError, PoisonError
from shoal.dataflow.language.logical import OnError

SCHEMA = {"id": "int64", "name": "string"}
CSV = "id,name\n1,a\n2\n\nthree,c\n4,d\n5,e,f\n6,g\n"
LINES = '{"id": 1, "name": "a"}\n{"id": \n\n{"id": "three"}\n{"id": 4}\n[1]\n{"id": 6}'
FORMS = [(".csv", CSV, [3, 5, 7]), (".jsonl", LINES, [2, 4, 6])]
READ = {".csv": Stream.from_csv, ".jsonl": Stream.from_json}


def write(folder: Path, suffix: str, content: str | bytes) -> str:
    path = folder / f"x{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


# -- policies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "content", "lines"), FORMS)
def test_a_bad_line_fails_with_its_file_and_number(tmp_path, suffix, content, lines):
    path = write(tmp_path, suffix, content)
    with pytest.raises(OperatorFailedError, match=rf"x{suffix} cannot be read: line {lines[0]}: ") as caught:
        READ[suffix](path, schema=SCHEMA).collect()
    assert isinstance(caught.value.__cause__, PoisonError)
    assert caught.value.__cause__.facts == {"path": path, "line": str(lines[0])}
    assert "on_error='skip'" in caught.value.hint


@pytest.mark.parametrize(("suffix", "content", "lines"), FORMS)
def test_bad_lines_are_skipped(tmp_path, suffix, content, lines):
    found = READ[suffix](write(tmp_path, suffix, content), schema=SCHEMA, on_error="skip")
    assert [row["id"] for row in found.to_pylist()] == [1, 4, 6]
    assert len(found.select("name").to_pylist()) == 3
    report = found.to_callback(lambda _batch: None).run()
    assert sum(step.statistics.get("skipped", 0) for step in report.steps) == 3  # and counted


@pytest.mark.parametrize(("suffix", "content", "lines"), FORMS)
def test_bad_lines_go_aside_with_their_file_and_number(tmp_path, suffix, content, lines):
    path = write(tmp_path, suffix, content)
    stream = READ[suffix](path, schema=SCHEMA, on_error="side")
    errors = stream.side_output("errors").to_pylist()
    assert [(row["split"], row["offset"]) for row in errors] == [(path, line) for line in lines]
    assert [row["value"].decode() for row in errors] == [content.split("\n")[line - 1] for line in lines]
    assert all(row["error"].startswith(f"line {row['offset']}: ") for row in errors)
    assert "id" in errors[1]["error"]  # the column


def test_a_policy_of_another_name_is_refused():
    for read in READ.values():
        with pytest.raises(PlanError, match=r"test_text\.py:\d+: on_error: must be \"fail\", \"skip\""):
            read("x", on_error="ignore")


@pytest.mark.parametrize(("suffix", "content", "lines"), FORMS)
def test_columns_are_guessed_without_bad_lines(tmp_path, suffix, content, lines):
    # The text among the numbers decides in CSV, where everything is text; in JSON it is the one that is odd.
    found = READ[suffix](write(tmp_path, suffix, content), on_error="skip").to_pylist()
    assert [row["id"] for row in found] == (["1", "three", "4", "6"] if suffix == ".csv" else [1, 4, 6])


def test_a_sample_of_json_that_does_not_go_together_names_the_line(tmp_path):
    path = write(tmp_path, ".jsonl", '{"a": 1}\n\n{"a": 2}\n{"a": "x"}\n{"a": 3}\n')
    with pytest.raises(
        PlanError, match=r"x\.jsonl cannot be read: line 4: .*Column\(/a\) changed from number to string"
    ):
        Stream.from_json(path).collect()
    assert Stream.from_json(path, on_error="skip").to_pylist() == [{"a": 1}, {"a": 2}, {"a": 3}]
    nothing = write(tmp_path, ".jsonl", "[1]\n[2]\n")
    with pytest.raises(PlanError, match="nothing in it can be read"):
        Stream.from_json(nothing, on_error="skip").collect()


def test_a_null_is_the_same_under_every_policy(tmp_path):
    path = write(tmp_path, ".csv", "id,at\n1,10:00:01\n,NA\nnull,10:00:02.5\n")
    for policy in ("fail", "skip"):
        rows = Stream.from_csv(path, schema={"id": "int64", "at": pa.time64("us")}, on_error=policy).to_pylist()
        assert [row["id"] for row in rows] == [1, None, None]
        assert [row["at"] is None for row in rows] == [False, True, False]


# -- places -----------------------------------------------------------------------------------------------


def read_from(source: Any, position: Any = None, max_rows: int = 3) -> list[tuple[list[Any], list[int], Any]]:
    """Each piece: ids, the lines that are bad, and the place behind it."""
    splits = source.find_splits()
    reader = source.open_reader(splits, pa.schema([("id", pa.int64()), ("name", pa.utf8())]), clock=SystemClock())
    if position is not None:
        reader.seek(splits[0], json.loads(json.dumps(position)))
    found = []
    while (fetched := reader.fetch(max_rows=max_rows, timeout=0)) is not None:
        bad = [] if fetched.poison is None else fetched.poison.column("offset").to_pylist()
        found.append((fetched.batch.column("id").to_pylist(), bad, fetched.position))
    reader.close()
    return found


@pytest.mark.parametrize("block", [16, 64, 1 << 20])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@given(kinds=st.lists(st.sampled_from(["good", "bad", "short", "blank", "long"]), max_size=30), most=st.integers(1, 5))
def test_from_every_place_on_nothing_is_lost_or_doubled(tmp_path_factory, suffix, block, kinds, most):
    forms = {
        ".csv": {"good": '{},"a, b"', "bad": "x{},c", "short": "{}", "blank": "", "long": '{},"two\nlines ""here"""'},
        ".jsonl": {
            "good": '{{"id": {}}}',
            "bad": '{{"id": "{}"}}',
            "short": "[{}]",
            "blank": " ",
            "long": '{{"id":{}}}',
        },
    }[suffix]
    lines = [forms[kind].format(number) for number, kind in enumerate(kinds)]
    head = "id,name\n" if suffix == ".csv" else ""
    path = write(tmp_path_factory.mktemp("x"), suffix, head + "\n".join(lines))
    wanted = [number for number, kind in enumerate(kinds) if kind in ("good", "long")]
    starts = [(head + "".join(f"{line}\n" for line in lines[:number])).count("\n") + 1 for number in range(len(lines))]
    bad = [starts[number] for number, kind in enumerate(kinds) if kind in ("bad", "short")]
    source = (CsvSource if suffix == ".csv" else JsonLinesSource)(path, on_error=OnError.SIDE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_BLOCK", block)
        pieces = read_from(source, max_rows=most)
        assert [each for ids, _bad, _place in pieces for each in ids] == wanted
        assert [each for _ids, found, _place in pieces for each in found] == bad
        for number, (_ids, _bad, place) in enumerate(pieces):
            again = read_from(source, place, most)
            assert [each for ids, _, _ in again for each in ids] == [
                each for ids, _, _ in pieces[number + 1 :] for each in ids
            ]
            assert [each for _, found, _ in again for each in found] == [
                each for _, found, _ in pieces[number + 1 :] for each in found
            ]


def test_quotes(tmp_path, monkeypatch):
    path = write(tmp_path, ".csv", '\ufeffid,"na""me"\r\n1,"a\r\nb"\r\n\r\n2,5" pipe\r\n3,"c"\r\n4,"open\r\n5,d\r\n')
    for block in (8, 1 << 20):
        monkeypatch.setattr(text, "_BLOCK", block)
        with pytest.raises(OperatorFailedError, match="line 7: a quote is not closed: 4,"):
            Stream.from_csv(path).collect()
        rows = Stream.from_csv(path, on_error="skip").to_pylist()
        assert [(row["id"], row['na"me']) for row in rows] == [(1, "a\r\nb"), (2, '5" pipe'), (3, "c"), (5, "d")]
        stream = Stream.from_csv(path, on_error="side")
        assert [row["offset"] for row in stream.side_output("errors").to_pylist()] == [7]


@pytest.mark.parametrize("block", [8, 40, 1 << 20])
def test_a_quote_that_is_not_closed_takes_no_rows_with_it(tmp_path, monkeypatch, block):
    lines = [
        '1,"a"',
        '2,"open',
        "3,c",
        '4,"d"',
        '5,"two',
        'lines"',
        '6,"f"g',
        '7,"open',
        '8,"h,"',
        '9,""',
        '10,"k"',
        '11,"end',
    ]
    path = write(tmp_path, ".csv", "id,name\n" + "".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(text, "_BLOCK", block)
    found = Stream.from_csv(path, schema=SCHEMA, on_error="skip").to_pylist()
    assert [row["id"] for row in found] == [1, 3, 4, 5, 6, 8, 9, 10]
    assert [row["name"] for row in found[3:5]] == ["two\nlines", "fg"]
    errors = Stream.from_csv(path, schema=SCHEMA, on_error="side").side_output("errors").to_pylist()
    assert [row["offset"] for row in errors] == [3, 9, 13]
    with pytest.raises(OperatorFailedError, match='line 3: a quote is not closed: 2,"open'):
        Stream.from_csv(path, schema=SCHEMA).collect()


def test_a_quote_that_is_not_closed_does_not_take_the_file_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_BLOCK", 64)
    monkeypatch.setattr(text, "_LONGEST", 256)
    path = write(tmp_path, ".csv", 'id,name\n0,"open\n' + "".join(f"{each},a\n" for each in range(1, 1000)))
    rows = Stream.from_csv(path, schema=SCHEMA, on_error="skip").to_pylist()
    assert [row["id"] for row in rows] == list(range(1, 1000))


def test_text_that_is_no_utf8_is_bad_and_the_others_are_kept(tmp_path):
    path = write(tmp_path, ".csv", b"id,name\n1,a\n2,\xff\n3,c\n")
    assert len(Stream.from_csv(path, schema=SCHEMA, on_error="skip").to_pylist()) == 2
    with pytest.raises(OperatorFailedError, match=r"line 3: column 'name': .*UTF8"):
        Stream.from_csv(path, schema=SCHEMA).collect()


# -- times ------------------------------------------------------------------------------------------------

CUT = [
    ("2024-01-02T03:04:05.5", "timestamp[s]"),
    ("2024-01-02T03:04:05.0001", "timestamp[ms]"),
    ("2024-01-02T03:04:05", "date32"),
    ("2024-01-02T03:04:05Z", "timestamp[us]"),
    ("2024-01-02T03:04:05", pa.timestamp("us", "UTC")),
]


@pytest.mark.parametrize(("value", "kind"), CUT)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_time_that_would_be_cut_is_bad(tmp_path, suffix, value, kind):
    zone = "Z" if isinstance(kind, pa.DataType) else ""
    good = "2024-01-02" if kind == "date32" else f"2024-01-02T03:04:05{zone}"
    lines = [good, value, good]
    content = "".join(f"{each}\n" for each in ("at", *lines)) if suffix == ".csv" else json_lines(lines)
    path = write(tmp_path, suffix, content)
    number = 3 if suffix == ".csv" else 2
    with pytest.raises(OperatorFailedError, match=rf"line {number}: column 'at': "):
        READ[suffix](path, schema={"at": kind}).collect()
    assert len(READ[suffix](path, schema={"at": kind}, on_error="skip").to_pylist()) == 2


def json_lines(values: list[Any]) -> str:
    return "".join(json.dumps({"at": value}) + "\n" for value in values)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_times_with_and_without_a_zone_over_batches(tmp_path, suffix):
    bare, zoned = "2024-01-02T03:04:05", "2024-01-02T03:04:05+02:00"
    for first, second, kind in ((bare, zoned, pa.timestamp("s")), (zoned, bare, pa.timestamp("s", "UTC"))):
        lines = [first] * 60_000 + [second]
        content = "".join(f"{each}\n" for each in ("at", *lines)) if suffix == ".csv" else json_lines(lines)
        path = write(tmp_path, suffix, content)
        with pytest.raises(OperatorFailedError, match=r"line 6000[12]: column 'at': .*zone offset"):
            READ[suffix](path).collect()
        assert READ[suffix](path, on_error="skip").collect().schema.field("at").type == kind
        both = write(tmp_path, suffix, f"at\n{first}\n{second}\n" if suffix == ".csv" else json_lines([first, second]))
        assert READ[suffix](both).to_pylist() == [{"at": first}, {"at": second}]


def test_times_inside_of_objects_are_as_strict(tmp_path):
    rows = [{"a": {"at": "2024-01-02T03:04:05Z", "all": ["2024-01-02T03:04:05Z"]}}] * 20_000
    rows.append({"a": {"at": "2024-01-02T03:04:05Z", "all": ["2024-01-02T03:04:05"]}})
    path = write(tmp_path, ".jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(OperatorFailedError, match=r"line 20001: column 'a': .*zone offset"):
        Stream.from_json(path).collect()
    found = Stream.from_json(path, on_error="skip").to_pylist()
    assert len(found) == 20_000
    assert found[0]["a"]["at"] == dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def test_what_was_written_is_read_again(tmp_path):
    row = {"day": dt.date(2024, 1, 2), "at": dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC), "n": 2**62}
    path = str(tmp_path / "x.jsonl")
    Stream.from_dicts([row]).to_json(path).run()
    schema = {"day": "date32", "at": pa.timestamp("us", "UTC"), "n": "int64"}
    assert Stream.from_json(path, schema=schema).to_pylist() == [row]


def test_every_type_that_is_written_is_read_again(tmp_path):
    kinds = {
        "time": pa.time32("ms"),
        "fine": pa.time64("ns"),
        "day": pa.date64(),
        "for": pa.duration("us"),
        "all": pa.list_(pa.duration("s")),
        "raw": pa.binary(),
        "two": pa.list_(pa.int64(), 2),
        "map": pa.map_(pa.utf8(), pa.float64()),
        "word": pa.dictionary(pa.int32(), pa.utf8()),
        "at": pa.timestamp("s", "Europe/Paris"),
        "n": pa.int64(),
    }
    first = {
        "time": dt.time(1, 2, 3, 4000),
        "fine": dt.time(23, 59, 59, 999_999),
        "day": dt.date(1969, 11, 18),
        "for": dt.timedelta(days=-2, microseconds=5),
        "all": [dt.timedelta(seconds=1), None],
        "raw": b"\x00ab",
        "two": [1, 2],
        "map": [("a", 0.5), ("b", None)],
        "word": "x",
        "at": dt.datetime(1653, 2, 10, 6, 13, 20, tzinfo=dt.UTC),
        "n": 1,
    }
    table = pa.Table.from_pylist([first, dict.fromkeys(first), {**first, "n": 3}], schema=pa.schema(kinds))
    path = str(tmp_path / "x.jsonl")
    Stream.from_table(table).to_json(path).run()
    assert Stream.from_json(path, schema=table.schema).collect().to_pylist() == table.to_pylist()


def test_a_bad_line_among_types_that_arrow_does_not_read(tmp_path):
    lines = ['{"id": 1, "for": "PT1S"}', '{"id": 2, "for": "soon"}', '{"id": "x"}', '{"id": 4, "for": 2}']
    path = write(tmp_path, ".jsonl", "\n".join(lines))
    schema = {"id": "int64", "for": "duration[s]"}
    assert [row["id"] for row in Stream.from_json(path, schema=schema, on_error="skip").to_pylist()] == [1, 4]
    errors = Stream.from_json(path, schema=schema, on_error="side").side_output("errors").to_pylist()
    assert [row["offset"] for row in errors] == [2, 3]
    assert "'for'" in errors[0]["error"]


def test_a_time_that_has_no_form_in_json_is_refused(tmp_path):
    table = pa.table({"at": pa.array([10**12], pa.int64()).cast(pa.timestamp("s"))})
    with pytest.raises(OperatorFailedError, match="years 0 to 9999"):
        Stream.from_table(table).to_json(str(tmp_path / "x.jsonl")).run()


def test_event_times_with_a_zone_are_guessed_and_used(tmp_path):
    path = write(tmp_path, ".jsonl", json_lines(["2024-01-02T03:04:05Z", None, "2024-01-02T03:04:06Z"]))
    stream = Stream.from_json(path, event_time="at", on_error="skip")
    assert sum(row["count"] for row in stream.window(tumbling(seconds=10)).count().to_pylist()) == 2


# -- event times ------------------------------------------------------------------------------------------

TIMED = {"id": "int64", "at": "timestamp[s]"}
TIMED_CSV = 'id,at\n1,2026-01-01T10:00:00\n\n2,NA\n"3",2026-01-01T10:00:01\nx,NA\n5,\n'
TIMED_LINES = (
    '{"id": 1, "at": "2026-01-01T10:00:00"}\n\n\n{"id": 2}\n{"id": 3, "at": "2026-01-01T10:00:01"}\n'
    '{"id": "x"}\n{"id": 5, "at": null}\n'
)


@pytest.mark.parametrize("block", [1, 40, 1024 * 1024])
@pytest.mark.parametrize(("suffix", "content"), [(".csv", TIMED_CSV), (".jsonl", TIMED_LINES)])
def test_a_line_without_event_time_goes_aside_as_other_bad_lines_do(tmp_path, monkeypatch, suffix, content, block):
    monkeypatch.setattr(text, "_BLOCK", block)
    path = write(tmp_path, suffix, content)
    read = READ[suffix](path, schema=TIMED, event_time="at", on_error="side", batch_size=2)
    counts = read.window(tumbling(seconds=10)).count()
    counted = counts.select(split=lit(""), offset=col("count"), value=lit(b""), error=lit(""))
    found = counted.union(read.side_output("errors").select("split", "offset", "value", "error")).to_pylist()
    assert [row["offset"] for row in found if not row["split"]] == [2]
    errors = sorted((row for row in found if row["split"]), key=lambda row: row["offset"])
    lines = [line.encode() for line in content.split("\n")]
    assert [row["offset"] for row in errors] == [4, 6, 7]
    for row in errors:
        assert row["split"] == path
        assert row["value"] == lines[row["offset"] - 1]
        assert row["error"].startswith(f"line {row['offset']}: ")
    assert errors[0]["error"] == "line 4: no event time"


@pytest.mark.parametrize(("suffix", "content"), [(".csv", TIMED_CSV), (".jsonl", TIMED_LINES)])
def test_a_line_without_event_time_fails_with_its_number(tmp_path, suffix, content):
    path = write(tmp_path, suffix, content)
    counted = READ[suffix](path, schema=TIMED, event_time="at").window(tumbling(seconds=10)).count()
    with pytest.raises(OperatorFailedError, match="line 4: "):
        counted.to_pylist()


# -- what is not paid for ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_lines_are_not_counted_where_none_is_bad(tmp_path, monkeypatch, suffix):
    def refuse(_content: bytes) -> int:
        raise AssertionError("lines are counted for those that are bad")

    monkeypatch.setattr(text, "_count_lines", refuse)
    monkeypatch.setattr(text, "_BLOCK", 64)
    rows = [{"id": number, "name": "a"} for number in range(100)]
    lines = [f"{row['id']},a" for row in rows] if suffix == ".csv" else [json.dumps(row) for row in rows]
    content = "\n".join(["id,name", *lines] if suffix == ".csv" else lines)
    assert READ[suffix](write(tmp_path, suffix, content), schema=SCHEMA).to_pylist() == rows
