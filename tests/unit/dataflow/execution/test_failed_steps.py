"""What an error of a step says: the line, the columns, some rows, and what was read, by kind of step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from shoal import Operator, ProcessFunction, Stream, col, tumbling
from shoal.dataflow.api.streams.sink_stream import SinkStream
from shoal.dataflow.errors import OperatorFailedError
from shoal.dataflow.execution import engine
from shoal.dataflow.operators.policies import shown_rows
from shoal.dataflow.settings import FlowSettings

MOST = 2**63 - 1
ROWS = [{"k": "a", "n": 1, "t": 1}, {"k": "a", "n": MOST, "t": 2}, {"k": "a", "n": 3, "t": 3}]
SCHEMA = "k: string, n: int64, t: int64"
FIRST = ("{'k': 'a', 'n': 1, 't': 1}", f"{{'k': 'a', 'n': {MOST}, 't': 2}}", "{'k': 'a', 'n': 3, 't': 3}")


def orders() -> Stream:
    return Stream.from_dicts(ROWS, event_time="t", time_unit="us")


def fussy(batch: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.not_equal(batch["n"], 1)).as_py():
        raise ValueError("not one")
    return batch


def fussy_record(record: Any) -> Any:
    if record.n == 3:
        raise ValueError("is three")
    return record


def refuse(*_arguments: Any) -> Any:
    raise ValueError("no")


class Refusing(Operator):
    def process_batch(self, batch: pa.RecordBatch) -> None:
        raise ValueError("no")


class RefusingProcess(ProcessFunction):
    def process(self, record: Any, ctx: Any) -> None:
        raise ValueError("no")


def joined() -> Stream:
    right = Stream.from_dicts([{"k": "a", "n": 1, "t": 1}, {"k": "a", "n": 2, "t": 2}])
    return orders().join(right, on="k", right_is_unique=True)


#: By kind of step: the stream, what is said of the cause, the rows, and whether it is known that they are the bad ones.
FAILING = {
    "map": (lambda: orders().map(fussy, schema=None), "not one", FIRST[1:], True),
    "records": (lambda: orders().records(probe=False).map(fussy_record), "is three", FIRST[2:], True),
    "select": (
        lambda: orders().select("k", "n", "t", m=col("n") + 1),
        "overflow",
        (f"{{'n': {MOST}, 'k': 'a', 't': 2}}",),
        True,
    ),
    "process": (lambda: orders().key_by("k").process(RefusingProcess(), schema={"n": "int64"}), "no", FIRST[:1], True),
    "apply": (lambda: orders().apply(Refusing, schema={"n": "int64"}), "no", FIRST, True),
    "reduce": (lambda: orders().group_by("k").reduce(refuse), "no", FIRST, False),
    "aggregate": (lambda: orders().group_by("k").sum("n"), "does not fit into 64 bits", FIRST, False),
    "window": (
        lambda: orders().group_by("k").window(tumbling(seconds=1)).sum("n"),
        "does not fit into 64 bits",
        FIRST,
        False,
    ),
    "sink": (lambda: orders().to_callback(refuse), "no", FIRST, False),
    "join": (joined, "a second row", ("{'k': 'a', 'n': 1, 't': 1}", "{'k': 'a', 'n': 2, 't': 2}"), False),
}


@pytest.mark.parametrize("kind", FAILING)
def test_an_error_has_the_columns_and_the_rows_of_its_step(kind):
    build, cause, rows, is_exact = FAILING[kind]
    error = failure_of(build())
    assert cause in error.message
    assert error.at is not None
    assert Path(error.at.file).name == Path(__file__).name
    assert SCHEMA in error.input.schema
    assert (error.input.rows, error.input.is_exact) == (rows, is_exact)


def test_what_was_read_is_among_it(tmp_path):
    (tmp_path / "rows.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(100)))
    for stream, place in (
        (Stream.from_dicts([{"n": n} for n in range(100)]), "offsets 64 to 95"),
        (Stream.from_csv(str(tmp_path / "rows.csv"), schema={"n": "int64"}), "rows.csv, behind position "),
    ):
        error = failure_of(stream.filter(fussy_ninety), FlowSettings(batch_rows=32))
        assert place in error.input.read
        assert [label for label, _text in error.details] == ["input", "row", "read"]
        assert error.details[1] == ("row", "{'n': 90}")


def fussy_ninety(batch: pa.RecordBatch) -> Any:
    if 90 in batch["n"].to_pylist():
        raise ValueError("it is ninety")
    return pc.is_valid(batch["n"])


def test_long_rows_are_cut_and_values_that_python_has_not_are_named():
    rows = pa.record_batch({"t": pa.array([2**62], pa.timestamp("s")), "text": ["x" * 10_000], "last": [7]})
    (shown,) = shown_rows(rows)
    assert shown.startswith("{'t': <")
    assert shown.endswith("…, 'last': 7}")
    assert len(shown) < 500


def failure_of(stream: Any, settings: FlowSettings | None = None) -> OperatorFailedError:
    sink = stream if isinstance(stream, SinkStream) else stream.to_callback(lambda _batch: None)
    with pytest.raises(OperatorFailedError) as raised:
        engine.run([sink.node], settings=settings)
    return raised.value
