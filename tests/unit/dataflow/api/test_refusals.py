"""What cannot be a plan is told when it is written: typed, with the line, and with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.dataflow.api.apps.app import App
from shoal.dataflow.api.streams import fn
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import count, session, sliding, tumbling
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.language.functions import find_location

HERE = "test_refusals.py"


def numbers() -> Stream:
    return Stream.from_dicts([{"a": 1, "at": 1}, {"a": 1, "at": 30}], event_time="at", time_unit="s")


REFUSED: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: numbers().union(5), "union: takes streams", ""),  # type: ignore[arg-type]
    (lambda: numbers().apply(dict, 5), "apply: takes streams", ""),  # type: ignore[arg-type]
    (lambda: numbers().asof_join(5, on="a"), "asof_join: takes streams", ""),  # type: ignore[arg-type]
    (lambda: numbers().interval_join(5, on="a"), "interval_join: takes streams", ""),  # type: ignore[arg-type]
    (lambda: numbers().aggregate({"v": ("a", "variance", 7)}), "v: options: must be options by name", '"ddof"'),
    (lambda: numbers().aggregate({"v": ("a", "stddev", {"ddof": "x"})}), "'ddof': must be a whole number", ""),
    (lambda: numbers().aggregate({}), "aggregate: needs a result", "aggregate("),
    (lambda: numbers().group_by("a").aggregate({}), "aggregate: needs a result", '.distinct("a")'),
    (lambda: numbers().aggregate(5), "aggregate: must be results by name", "aggregate("),  # type: ignore[arg-type]
    (lambda: numbers().aggregate({5: ("a", "sum")}), "must be the name of a result", ""),  # type: ignore[dict-item]
    (lambda: Stream.merge(by="a"), "merge: needs streams", "Stream.merge(a, b"),
    (lambda: Stream.merge(numbers(), by="a"), "merge: needs another stream", "Stream.merge(a, b"),
    (lambda: Stream.merge([numbers()], by="a"), "merge: takes streams", ""),
    (lambda: Stream.merge(numbers(), numbers(), by=5), "by: must be a column's name", ""),  # type: ignore[arg-type]
    (lambda: numbers().to_pylist(parallelism=1.5), "parallelism: must be a whole number", ""),  # type: ignore[arg-type]
    (lambda: numbers().count(parallelism=True), "parallelism: must be a whole number", ""),
    (lambda: numbers().to_pylist(parallelism=1000), "parallelism: must be a whole number from 1 to 128", ""),
    (lambda: numbers().count(settings={"batch_rows": 5}), "settings: must be FlowSettings", ""),
    (lambda: numbers().explain(parallelism=1.5), "parallelism: must be a whole number", ""),  # type: ignore[arg-type]
    (lambda: numbers().window(count(2), early_every="1s"), "early_every: .*they fire once", "window of time"),
    (lambda: numbers().group_by("a").window(count(2), allowed_lateness=1), "allowed_lateness: .*fire once", ""),
    (lambda: numbers().key_by("a").window(count(2), early_every=1), "early_every: .*fire once", ""),
    (lambda: numbers().window(tumbling(9), early_every="1s").distinct("a"), "early_every: says nothing", "leave it"),
    (lambda: numbers().window(session(9)).distinct("a"), "window: must be a tumbling one", ""),
    (lambda: numbers().window(tumbling(9), time_column="a", time_unit="sec"), "time unit: must be s, ms", ""),
    (lambda: numbers().window(sliding(9, 3)).distinct("a"), "window: must be a tumbling one", ""),
]


@pytest.mark.parametrize(("write", "rule", "hint"), REFUSED)
def test_a_refusal_names_the_line_and_what_to_write(write: Callable[[], Any], rule: str, hint: str) -> None:
    with pytest.raises(PlanError, match=rule) as caught:
        write()
    assert caught.value.at is not None
    assert caught.value.at.file.endswith(HERE)
    assert hint in caught.value.hint


def test_a_table_without_a_source_cannot_be_joined(tmp_path: Path) -> None:
    app = App("shop", data_dir=str(tmp_path))
    with pytest.raises(PlanError, match=rf"{HERE}:\d+: table 'plain': has no source") as caught:
        numbers().join(app.table("plain"), on="a")
    assert 'app.table("plain", source' in caught.value.hint


def test_a_name_that_is_taken_points_at_both_steps() -> None:
    first = numbers().filter(col("a") > 0).uid("mine")
    here = find_location()
    second = first.select("a").uid("mine")
    with pytest.raises(PlanError, match=r"uid: is the name of 2 steps") as caught:
        second.collect()
    assert here is not None
    assert caught.value.at is not None
    assert caught.value.at.line == here.line + 1
    assert f"{HERE}:{here.line - 1}" in str(caught.value)


def test_too_many_tasks_point_at_the_line_that_asked_for_them() -> None:
    step = numbers().filter(col("a") > 0)
    here = find_location()
    wide = step.with_parallelism(1000)
    with pytest.raises(PlanError, match="parallelism of the filter: must be a whole number from 1 to 128") as caught:
        wide.collect()
    assert here is not None
    assert caught.value.at is not None
    assert caught.value.at.line == here.line + 1


# -- distinct in windows ------------------------------------------------------------------------------------


def test_distinct_takes_late_rows_while_they_are_allowed() -> None:
    times = [(1, 1), (1, 30), (2, 3), (2, 4), (1, 2), (1, 95), (3, 5)]
    rows = [{"a": a, "at": at} for a, at in times]
    stream = Stream.from_dicts(rows, event_time="at", time_unit="s", batch_size=1)
    late = stream.window(tumbling(10)).distinct("a")
    assert [(row["a"], row["at"]) for row in late.to_pylist()] == [(1, 1), (1, 30), (1, 95)]
    kept = stream.window(tumbling(10), allowed_lateness="60s").distinct("a")
    assert [(row["a"], row["at"]) for row in kept.to_pylist()] == [(1, 1), (1, 30), (2, 3), (1, 95)]
    assert [(row["a"], row["at"]) for row in kept.side_output("late").to_pylist()] == [(3, 5)]
    everything = stream.window(tumbling(10), allowed_lateness="1h").group_by("a").distinct()
    assert [(row["a"], row["at"]) for row in everything.to_pylist()][-1] == (3, 5)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float64(), 1_767_225_600.25),
        (pa.decimal128(16, 3), Decimal("1767225600.250")),
        (pa.utf8(), "2026-01-01T00:00:00.250000"),
        (pa.large_utf8(), "2026-01-01T00:00:00.250000"),
    ],
)
def test_what_a_hint_says_about_event_time_works(kind: Any, value: Any) -> None:
    stream = Stream.from_table(pa.table({"a b": pa.array([value, None], kind).slice(0, 1)}))
    with pytest.raises(PlanError, match="event time is a timestamp") as caught:
        stream.event_time("a b")
    line = caught.value.hint.partition(": ")[2]
    timed: Stream = eval(f"stream{line}", {"stream": stream, "col": col, "fn": fn})
    (row,) = timed.window(tumbling(seconds=10)).aggregate(n=("*", "count")).to_pylist()
    assert (row["n"], row["window_start"]) == (1, datetime(2026, 1, 1))  # noqa: DTZ001
