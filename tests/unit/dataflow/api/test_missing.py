"""Names that are mistyped, or that other libraries have: the error names the right way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from shoal import App, PlanError, ProcessFunction, Stream, count, session, sliding, tumbling
from shoal.dataflow.api import legacy
from shoal.dataflow.api.streams.missing import GONE, WAYS
from shoal.dataflow.errors import NoMethodError

ROWS = Stream.from_dicts([{"n": 1, "user": "ada"}])

#: Every kind of stream that has methods, and one that it has.
KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "stream": (lambda: ROWS, "filter"),
    "class": (lambda: Stream, "from_kafka"),
    "keyed": (lambda: ROWS.key_by("user"), "process"),
    "records": (ROWS.records, "flat_map"),
    "groups": (lambda: ROWS.group_by("user"), "aggregate"),
    "windows": (lambda: ROWS.window(count(5)), "aggregate"),
    "output": (lambda: ROWS.to_callback(print), "explain"),
    "app": (lambda: App("shop"), "dataflow"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_mistyped_method_is_told_the_right_one(kind):
    make, right = KINDS[kind]
    wrong = right[:2] + right[3] + right[2] + right[4:]
    with pytest.raises(PlanError, match=rf"test_missing\.py:\d+: .* has no {wrong}\(\); did you mean '{right}'"):
        getattr(make(), wrong)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("fliter", "did you mean 'filter'"),
        ("sort", "sort_by"),
        ("limit", "take"),
        ("print", "foreach(print)"),
        ("where", "filter"),
        ("groupby", "group_by"),
        ("with_column", "with_columns"),
        ("to_pandas", "collect().to_pandas()"),
        ("zip", "join"),
        ("assign_timestamps_and_watermarks", "event_time"),
    ],
)
def test_a_name_that_streams_do_not_have_names_the_way(name, way):
    with pytest.raises(AttributeError) as caught:
        getattr(ROWS, name)()
    assert isinstance(caught.value, PlanError)
    assert way in str(caught.value)


@pytest.mark.parametrize("name", sorted(WAYS))
def test_no_name_is_explained_that_streams_have(name):
    with pytest.raises(NoMethodError, match="; write "):
        getattr(ROWS, name)


@pytest.mark.parametrize("name", sorted(legacy.METHODS))
def test_no_name_is_explained_that_apps_have(name):
    with pytest.raises(NoMethodError, match="; write "):
        getattr(App("shop"), name)


@pytest.mark.parametrize("name", sorted(GONE))
@pytest.mark.parametrize("of", ["stream", "class", "app"])
def test_what_nothing_replaces_says_so(name, of):
    with pytest.raises(NoMethodError, match="has no replacement here: "):
        getattr(KINDS[of][0](), name)


@pytest.mark.parametrize("kind", KINDS)
def test_who_asks_politely_hears_no(kind):
    made = KINDS[kind][0]()
    assert not hasattr(made, "frobnicate")
    assert getattr(made, "frobnicate", 5) == 5
    with pytest.raises(AttributeError, match="_private"):
        made._private  # noqa: B018


def test_streams_can_be_copied():
    assert copy.copy(ROWS).to_pylist() == copy.deepcopy(ROWS.select("n", "user")).to_pylist()


# -- what is no process function --------------------------------------------------------------------------


class Totals(ProcessFunction):
    def process(self, record, context):
        return {"n": record.n}


def make_totals() -> Totals:
    return Totals()


@pytest.mark.parametrize("function", [Totals, Totals(), make_totals], ids=["class", "object", "factory"])
def test_these_are_process_functions(function):
    assert ROWS.key_by("user").process(function, schema={"n": "int64"}).to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(
    "function",
    [5, "x", None, int, object(), {"a": 1}],
    ids=["number", "text", "none", "type", "object", "mapping"],
)
@pytest.mark.parametrize("stream", [ROWS, ROWS.key_by("user")], ids=["all", "keyed"])
def test_what_is_no_process_function_is_refused_at_its_line(stream, function):
    with pytest.raises(PlanError, match=r"test_missing\.py:\d+: process: must be a ProcessFunction") as caught:
        stream.process(function)
    assert "ProcessFunction" in caught.value.hint


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda record: record, "must be a ProcessFunction, its class, or a function without arguments"),
        (lambda record, context: record, "must be a ProcessFunction, its class, or a function without arguments"),
        (len, "must be a ProcessFunction, its class, or a function without arguments"),
        (lambda: 5, "must make a ProcessFunction, and made a int"),
    ],
    ids=["of a record", "of a record and context", "builtin", "of something else"],
)
def test_a_function_that_makes_no_process_function_is_refused_before_anything_runs(function, said):
    with pytest.raises(PlanError, match=rf"test_missing\.py:\d+: process: {said}") as caught:
        ROWS.process(function, schema={"n": "int64"}).to_pylist()
    assert "ProcessFunction" in caught.value.hint


# -- lengths that are no numbers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "way"),
    [
        (lambda: tumbling(seconds="5m"), "tumbling(minutes=5)"),
        (lambda: tumbling("90s"), "tumbling(seconds=90)"),
        (lambda: tumbling(minutes="5"), "tumbling(minutes=5)"),
        (lambda: tumbling(timedelta(hours=2)), "tumbling(hours=2)"),
        (lambda: tumbling(seconds="250ms"), "tumbling(seconds=0.25)"),
        (lambda: tumbling(seconds="soon"), "tumbling(minutes=1)"),
        (lambda: tumbling(None), "tumbling(minutes=1)"),
        (lambda: sliding("1m", "10s"), "sliding(size_minutes=1, slide_seconds=10)"),
        (lambda: sliding(60, "10s"), "sliding(size_minutes=1, slide_seconds=10)"),
        (lambda: session("30s"), "session(gap_seconds=30)"),
        (lambda: session(gap_minutes="x"), "session(gap_minutes=1)"),
    ],
)
def test_a_length_that_is_no_number_is_told_how_to_write_it(window, way):
    with pytest.raises(PlanError) as caught:
        window()
    assert f"must be numbers: {way}" in str(caught.value)
