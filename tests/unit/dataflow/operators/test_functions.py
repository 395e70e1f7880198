"""Filters, projections and users' functions over batches and records."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.dataflow.errors import FunctionError, Location
from shoal.dataflow.language.elements import END_OF_TIME, TIME, TRACE
from shoal.dataflow.language.logical import OnError
from shoal.dataflow.operators.base import Context
from shoal.dataflow.operators.policies import ErrorPolicy
from shoal.dataflow.operators.stateless import Filter, Project
from shoal.dataflow.operators.users.custom import CustomOperator
from shoal.dataflow.operators.users.opaque import FilterBatches, MapBatches
from shoal.dataflow.operators.users.records import MapRecords
from shoal.dataflow.state.groups import KeyedState
from tests.unit.dataflow.operators.driving import Fleet


class Bound:
    def __init__(self, function: Any) -> None:
        self.evaluate = function


def batch(values: list[Any]) -> Any:
    return pa.record_batch(
        {
            "x": pa.array(values, pa.int64()),
            "y": pa.array([f"t{value}" for value in values]),
            TIME: pa.array(range(len(values)), pa.int64()),
            TRACE: pa.array([b"trace"] * len(values)),
        }
    )


def run(operator: Any, *batches: Any, max_rows: int = 1000) -> Any:
    fleet = Fleet(lambda: operator, [()], max_rows=max_rows)
    try:
        for each in batches:
            fleet.feed(each)
        fleet.watermark(END_OF_TIME)
        operator.on_end(fleet.out)
    finally:
        operator.close()
    return fleet.out


# -- expressions ----------------------------------------------------------------------------------------------


def test_a_filter_keeps_what_is_true():
    operator = Filter(predicate=Bound(lambda b: pc.greater(b["x"], pa.scalar(1, pa.int64()))))
    out = run(operator, batch([1, 2, None, 3]), batch([0]), batch([5, 6]))
    assert out.rows("x") == [(2,), (3,), (5,), (6,)]
    assert out.batches[0].schema.names == ["x", "y", TIME, TRACE]


class Positive:
    """An expression that fails for rows below zero."""

    def evaluate(self, rows: Any) -> Any:
        if pc.min(rows["x"]).as_py() < 0:
            raise ValueError("below zero")
        return pc.greater(rows["x"], pa.scalar(1, pa.int64()))


def test_an_expression_that_fails_follows_the_policy():
    given_rows = batch([3, -1, 1, 2])
    for on_error, aside in ((OnError.SIDE, [(-1, "ValueError: below zero")]), (OnError.SKIP, [])):
        policy = ErrorPolicy(on_error)
        out = run(Filter(predicate=Positive(), policy=policy), given_rows)
        assert out.rows("x") == [(3,), (2,)]
        assert out.side_rows("errors", "x", "error") == aside
        assert policy.skipped + policy.put_aside == 1
    with pytest.raises(ValueError, match="below zero"):
        run(Filter(predicate=Positive()), given_rows)


def test_a_projection_replaces_in_place_and_carries_hidden_columns():
    double = Bound(lambda b: pc.multiply(b["x"], pa.scalar(2, pa.int64())))
    one = Bound(lambda _b: pa.scalar(1, pa.int64()))
    out = run(Project(columns=[("x", double), ("z", one)], keep_others=True), batch([1, 2]))
    assert out.batches[0].schema.names == ["x", "y", "z", TIME, TRACE]
    assert out.rows("x", "z") == [(2, 1), (4, 1)]
    changes = batch([1]).append_column("op", pa.array(["+I"]))
    out = run(Project(columns=[("z", one)], carried=["op"]), changes)
    assert out.batches[0].schema.names == ["z", TIME, TRACE, "op"]


# -- functions over batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda b: pc.multiply(b["x"], 2),
        lambda b: pa.chunked_array([pc.multiply(b["x"], 2)]),
        lambda b: {"x": pc.multiply(b["x"], 2)},
        lambda b: {"x": [value * 2 for value in b["x"].to_pylist()]},
        lambda b: pa.table({"x": pc.multiply(b["x"], 2)}),
        lambda b: pa.record_batch({"x": pc.multiply(b["x"], 2)}),
        lambda b: b["x"].to_numpy() * 2,
    ],
)
def test_a_map_returns_columns_in_any_form(function):
    out = run(MapBatches(function=function, column="x"), batch([1, 2, 3]))
    assert out.batches[0].schema.names == ["x", TIME, TRACE]
    assert out.rows("x", TIME) == [(2, 0), (4, 1), (6, 2)]


def test_functions_do_not_see_hidden_columns():
    seen: list[list[str]] = []

    def look(b: Any) -> Any:
        seen.append(b.schema.names)
        return b

    out = run(MapBatches(function=look), batch([1]))
    run(FilterBatches(function=lambda b: look(b) is not None), batch([1]))
    run(MapRecords(function=lambda r: seen.append(list(r)) or r), batch([1]))
    assert seen == [["x", "y"]] * 3
    assert out.batches[0].schema.names == ["x", "y", TIME, TRACE]


def test_a_map_that_loses_rows_is_an_error():
    with pytest.raises(FunctionError, match="as many rows"):
        run(MapBatches(function=lambda b: b.slice(1)), batch([1, 2]))


def test_what_a_map_may_not_return():
    for wrong, said in ((5, "int"), (None, "nothing"), ("ab", "str")):  # a text is no column of its letters
        with pytest.raises(FunctionError, match=f"must return a batch, .* and returned {said}"):
            run(MapBatches(function=lambda _b, wrong=wrong: wrong), batch([1, 2]))
    with pytest.raises(FunctionError, match=r"must return a batch, .* and returned str"):
        run(MapBatches(function=lambda _b: "ab", is_flat=True), batch([1, 2]))


def test_the_schema_is_kept_to():
    schema = pa.schema({"b": pa.string(), "a": pa.int32()})
    out = run(MapBatches(function=lambda b: {"a": b["x"], "b": b["y"], "c": b["x"]}, schema=schema), batch([1]))
    assert out.batches[0].schema.names == ["b", "a", TIME, TRACE]
    assert out.batches[0].schema.field("a").type == pa.int32()
    with pytest.raises(FunctionError, match="must be among the columns"):
        run(MapBatches(function=lambda b: {"a": b["x"]}, schema=schema), batch([1]))


def test_a_flat_map_gives_any_number_of_rows():
    def twice(b: Any) -> Any:
        yield b
        yield b.slice(0, 1)

    out = run(MapBatches(function=twice, is_flat=True), batch([1, 2, 3]))
    assert out.rows("x") == [(1,), (2,), (3,), (1,)]
    assert out.rows(TIME) == [(0,), (1,), (2,), (2,)]  # its own times, and then the greatest of the batch
    assert run(MapBatches(function=lambda _b: None, is_flat=True), batch([1])).batches == []
    rows = run(MapBatches(function=lambda b: [{"v": 1}, {"v": 2}], is_flat=True), batch([1])).rows("v")
    assert rows == [(1,), (2,)]


def test_a_filter_function_may_say_one_truth_for_all():
    assert len(run(FilterBatches(function=lambda _b: True), batch([1, 2])).rows()) == 2
    assert run(FilterBatches(function=lambda _b: False), batch([1, 2])).batches == []
    assert run(FilterBatches(function=lambda b: b["x"].to_numpy() > 1), batch([1, 2])).rows("x") == [(2,)]
    with pytest.raises(FunctionError, match="truth values"):
        run(FilterBatches(function=lambda b: b["x"]), batch([1, 2]))


# -- when they raise ------------------------------------------------------------------------------------------


def picky(b: Any) -> Any:
    bad = [value for value in b["x"].to_pylist() if value is not None and value < 0]
    if bad:
        raise ValueError(f"negative: {bad[0]}")
    return b


@given(st.lists(st.integers(-3, 20), max_size=40), st.sampled_from([OnError.SKIP, OnError.SIDE]))
@settings(max_examples=60, deadline=None)
def test_only_the_bad_rows_are_left_out(values, on_error):
    policy = ErrorPolicy(on_error)
    out = run(MapBatches(function=picky, policy=policy), batch(values))
    assert [x for (x,) in out.rows("x")] == [value for value in values if value >= 0]
    assert [t for (t,) in out.rows(TIME)] == [place for place, value in enumerate(values) if value >= 0]
    bad = [value for value in values if value < 0]
    if on_error is OnError.SIDE:
        assert out.side_rows("errors", "x", "error") == [(value, f"ValueError: negative: {value}") for value in bad]
        assert policy.put_aside == len(bad)
    else:
        assert not out.sides
        assert policy.skipped == len(bad)


def test_failing_names_the_first_bad_row():
    policy = ErrorPolicy(OnError.FAIL, "picky", Location("app.py", 12))
    with pytest.raises(FunctionError) as raised:
        run(MapBatches(function=picky, policy=policy), batch([*range(1000), -5, -6]))
    assert "app.py:12" in raised.value.message
    assert raised.value.facts["row"] == "{'x': -5, 'y': 't-5'}"
    assert raised.value.facts["schema"] == "x: int64, y: string"
    assert "on_error='skip'" in raised.value.hint
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_function_that_raises_for_all_rows_together_only():
    def together(b: Any) -> Any:
        if b.num_rows > 2:
            raise MemoryError("too many")
        return b

    with pytest.raises(FunctionError) as raised:
        run(MapBatches(function=together), batch([1, 2, 3, 4]))
    assert raised.value.facts["row"] == ""
    assert "for the batch as a whole, of 4 rows, and for no row of it alone" in raised.value.message
    out = run(MapBatches(function=together, policy=ErrorPolicy(OnError.SKIP)), batch([1, 2, 3, 4, 5]))
    assert [x for (x,) in out.rows("x")] == [1, 2, 3, 4, 5]


def test_a_row_that_raises_something_else_alone_is_not_the_one():
    def touchy(b: Any) -> Any:
        if -5 in b["x"].to_pylist():
            raise ValueError("below 0")
        if b.num_rows < 3:
            raise KeyError("too few")
        return b

    with pytest.raises(FunctionError, match="ValueError: below 0") as raised:
        run(MapBatches(function=touchy), batch([1, 2, 3, 4, 5, -5, 7]))
    assert raised.value.facts["row"] == "{'x': -5, 'y': 't-5'}"


def test_an_array_gets_the_name_of_the_one_column_that_was_declared():
    doubled = MapBatches(function=lambda b: pc.multiply(b["x"], 2), schema=pa.schema({"q": pa.float64()}), column="x")
    assert run(doubled, batch([1, 2])).rows("q") == [(2.0,), (4.0,)]


def test_nothing_is_called_behind_a_record_that_failed():
    seen: list[int] = []

    def plain(record: Any) -> Any:
        seen.append(record.x)
        if record.x == 2:
            raise ValueError("two")
        return record

    async def awaited(record: Any) -> Any:
        return plain(record)

    for function in (plain, awaited):
        seen.clear()
        with pytest.raises(FunctionError, match="two"):
            run(MapRecords(function=function), batch([1, 2, 3]))
        assert seen == [1, 2]
        seen.clear()
        run(MapRecords(function=function, policy=ErrorPolicy(OnError.SKIP)), batch([1, 2, 3]))
        assert seen == [1, 2, 3]


# -- records --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int
    y: str


async def later(record: Any) -> Any:
    await asyncio.sleep(0)
    return {"x": record.x + 1}


async def several(record: Any) -> Any:
    for number in range(record.x):
        await asyncio.sleep(0)
        yield {"x": number}


class Adder:
    def __call__(self, record: Any) -> Any:
        return {"x": record["x"] + 1}


class LateAdder:
    async def __call__(self, record: Any) -> Any:
        return {"x": record["x"] + 1}


@pytest.mark.parametrize(
    "function", [lambda r: {"x": r["x"] + 1}, lambda r: {"x": r.x + 1}, later, Adder(), LateAdder()]
)
def test_records_are_mapped_by_functions_of_every_kind(function):
    out = run(MapRecords(function=function), batch([1, 2, 3]))
    assert out.rows("x", TIME) == [(2, 0), (3, 1), (4, 2)]
    assert out.batches[0].schema.names == ["x", TIME, TRACE]


def test_what_record_functions_may_return():
    assert run(MapRecords(function=lambda r: r.x * 2), batch([4])).rows("value") == [(8,)]
    assert run(MapRecords(function=lambda r: Point(r.x, r.y)), batch([4])).rows("x", "y") == [(4, "t4")]
    assert run(MapRecords(function=lambda r: r), batch([4])).rows("x", "y") == [(4, "t4")]
    schema = pa.schema({"x": pa.int64(), "more": pa.string()})
    assert run(MapRecords(function=lambda r: {"x": r.x}, schema=schema), batch([4])).rows("x", "more") == [(4, None)]


@pytest.mark.parametrize(
    "function",
    [several, lambda r: [{"x": n} for n in range(r.x)], lambda r: ({"x": n} for n in range(r.x))],
)
def test_flat_functions_give_rows_the_time_of_their_record(function):
    out = run(MapRecords(function=function, kind="flat_map"), batch([2, 0, 3]))
    assert out.rows("x", TIME) == [(0, 0), (1, 0), (0, 2), (1, 2), (2, 2)]


def test_a_generator_is_flat_even_when_it_was_mapped():
    def pieces(record: Any) -> Any:
        yield {"x": record.x}
        yield {"x": -record.x}

    assert run(MapRecords(function=pieces), batch([1, 2])).rows("x") == [(1,), (-1,), (2,), (-2,)]
    assert run(MapRecords(function=several), batch([2])).rows("x") == [(0,), (1,)]
    assert run(MapRecords(function=lambda _r: None, kind="flat_map"), batch([2])).batches == []


async def is_even(record: Any) -> bool:
    return record.x % 2 == 0


@pytest.mark.parametrize("function", [lambda r: r.x % 2 == 0, is_even])
def test_records_are_filtered(function):
    out = run(MapRecords(function=function, kind="filter"), batch([1, 2, 3, 4]))
    assert out.rows("x", TIME) == [(2, 1), (4, 3)]
    assert run(MapRecords(function=lambda _r: False, kind="filter"), batch([1])).batches == []


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map"])
@pytest.mark.parametrize("is_async", [False, True])
def test_bad_records_are_left_out_alone(kind, is_async):
    def strict(record: Any) -> Any:
        if record.x < 0:
            raise ValueError("negative")
        return [record] if kind == "flat_map" else record

    async def strict_later(record: Any) -> Any:
        return strict(record)

    function = strict_later if is_async else strict
    values = [5, -1, 7, -2, *range(3000), -3]
    for on_error in (OnError.SKIP, OnError.SIDE):
        out = run(
            MapRecords(function=function, kind=kind, policy=ErrorPolicy(on_error)), batch(values), max_rows=10_000
        )
        assert [x for (x,) in out.rows("x")] == [value for value in values if value >= 0]
        if on_error is OnError.SIDE:
            assert [x for (x,) in out.side_rows("errors", "x")] == [-1, -2, -3]
    with pytest.raises(FunctionError) as raised:
        run(MapRecords(function=function, kind=kind), batch(values))
    assert "'x': -1" in raised.value.facts["row"]


def test_values_that_do_not_fit_their_column_are_bad_records_too():
    schema = pa.schema({"x": pa.int64()})
    function = lambda r: {"x": "text" if r.x == 2 else r.x}  # noqa: E731
    out = run(MapRecords(function=function, schema=schema, policy=ErrorPolicy(OnError.SIDE)), batch([1, 2, 3]))
    assert out.rows("x", TIME) == [(1, 0), (3, 2)]
    assert out.side_rows("errors", "x") == [(2,)]
    with pytest.raises(FunctionError):
        run(MapRecords(function=function, schema=schema), batch([1, 2, 3]))
    with pytest.raises(FunctionError):  # without a schema the rows disagree with each other
        run(MapRecords(function=function, policy=ErrorPolicy(OnError.SKIP)), batch([1, 2, 3]))


@pytest.mark.parametrize("extra", [{"x": 2, "y": 0}, {"y": 0}], ids=["beside", "instead"])
def test_columns_that_nobody_expects_are_not_lost_without_a_word(extra):
    def function(record):
        return extra if record.x == 2 else {"x": record.x}

    for operator in (
        MapRecords(function=function, schema=pa.schema({"x": pa.int64()}), policy=ErrorPolicy(OnError.SIDE)),
        MapRecords(function=function, policy=ErrorPolicy(OnError.SIDE)),
    ):
        out = run(operator, batch([1]), batch([2, 3]))
        assert out.rows("x") == [(1,), (3,)]
        assert out.side_rows("errors", "x") == [(2,)]
    with pytest.raises(FunctionError, match="y beside x"):
        run(MapRecords(function=function, schema=pa.schema({"x": pa.int64()})), batch([1, 2, 3]))


def test_records_hold_python_values():
    moments = pa.array([0, 1_500_000], pa.timestamp("us"))
    columns = {"t": moments, "n": pa.array([None, 1.5]), "l": pa.array([[1], None]), "d": pa.array(["a", None])}
    seen: list[Any] = []
    run(MapRecords(function=lambda r: seen.append(r) or r), pa.record_batch(columns))
    assert [dict(each) for each in seen] == pa.record_batch(columns).to_pylist()


def test_a_column_that_was_null_at_first_gets_its_type_later():
    operator = MapRecords(function=lambda r: {"x": r.x, "l": [r.x] if r.x else []})
    out = run(operator, batch([None]), batch([3]))
    assert [(x, each) for b in out.batches for x, each in zip(b["x"].to_pylist(), b["l"].to_pylist(), strict=True)] == [
        (None, []),
        (3, [3]),
    ]


def test_an_unknown_kind_is_refused():
    with pytest.raises(InvalidError, match="map, filter, flat_map"):
        MapRecords(function=print, kind="fold")


# -- operators of users' own ------------------------------------------------------------------------------------


class Counting:
    """Counts rows; gives the count at the end."""

    def __init__(self) -> None:
        self.rows = 0
        self.watermarks: list[int] = []

    def process_batch(self, batch: Any) -> Any:
        self.rows += batch.num_rows
        return [batch.slice(0, 1), batch.slice(1)]

    def on_watermark(self, time: int) -> Any:
        self.watermarks.append(time)

    def finish(self) -> Any:
        return pa.record_batch({"x": [self.rows], "y": ["all"]})

    def snapshot(self) -> Any:
        return {"rows": self.rows}

    def restore(self, states: Any) -> None:
        self.rows = sum(state["rows"] for state in states)


def test_a_custom_operator_keeps_state_across_a_restart():
    fleet = Fleet(lambda: CustomOperator(factory=Counting), [()])
    fleet.feed(batch([1, 2, 3]))
    fleet = fleet.restored(1)
    fleet.feed(batch([4]))
    fleet.end()
    assert [x for (x,) in fleet.out.rows("x")] == [1, 2, 3, 4, 4]


class ByGroup:
    """Has state by key group, as bytes."""

    def __init__(self) -> None:
        self.state: dict[int, bytes] = {3: b"three", 9: b"nine"}

    def open(self, context: Context) -> None:
        self.state = {group: content for group, content in self.state.items() if group in context.key_groups}

    def process_morsel(self, batch: Any) -> Any:
        return {"groups": [",".join(map(str, sorted(self.state)))] * batch.num_rows}

    def process_batch(self, batch: Any) -> Any:
        raise AssertionError("a morsel is asked for first")

    def snapshot(self) -> Any:
        return KeyedState(self.state)

    def restore(self, states: KeyedState) -> None:
        assert isinstance(states, KeyedState)
        self.state = dict(states)


def test_a_custom_operator_may_share_its_state_out_by_key_group():
    fleet = Fleet(lambda: CustomOperator(factory=ByGroup), [("x",)])
    fleet = fleet.restored(2)
    for operator in fleet.operators:
        operator.process(batch([1]), fleet.out)
    assert fleet.out.rows("groups") == [("3",), ("9",)]


def test_a_task_without_groups_is_not_given_another_form_of_state():
    """A task that had no keys gives an empty `KeyedState`: state by key group all the same, no shared value."""
    states: list[Any] = []

    class Empty(ByGroup):
        def __init__(self) -> None:
            self.state = {}

        def restore(self, states_: Any) -> None:
            states.append(states_)

    fleet = Fleet(lambda: CustomOperator(factory=Empty), [("x",)], 2)
    fleet.operators[0]._operator.state = {3: b"three"}
    fleet.restored(3)
    assert states == [{3: b"three"}]


@pytest.mark.parametrize(
    "value",
    [{1: 5}, {1: b"one"}, {}, {1: "one", 2: [2]}, Counter({7: 3}), {True: 1}, {130: b"no group"}, 0, "", [], b""],
    ids=repr,
)
@pytest.mark.parametrize("width", [1, 2])
def test_a_value_of_any_other_type_comes_back_as_it_was(value, width):
    """A mapping with whole-number keys is no state by key group: only `KeyedState` is."""
    given: list[Any] = []

    class Whole:
        def process_batch(self, batch: Any) -> Any:
            return batch

        def snapshot(self) -> Any:
            return value

        def restore(self, states: Any) -> None:
            given.append(states)

    Fleet(lambda: CustomOperator(factory=Whole), [("x",)]).restored(width)
    assert given == [[value]] * width
    assert all(type(each) is type(value) for states in given for each in states)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"1": b""}, "key group: must be a whole number from 0 on"),
        ({True: b""}, "key group: must be a whole number from 0 on"),
        ({-1: b""}, "key group: must be a whole number from 0 on"),
        ({1: 5}, "state of key group 1: must be bytes"),
        ({1: "text"}, "state of key group 1: must be bytes"),
    ],
)
def test_keyed_state_refuses_what_is_none(groups, said):
    with pytest.raises(InvalidError, match=said):
        KeyedState(groups)


def test_keyed_state_of_another_tasks_groups_is_refused():
    """Two tasks that kept one group would restore the state of one of them."""
    fleet = Fleet(lambda: CustomOperator(factory=ByGroup), [("x",)], 2)
    fleet.operators[0]._operator.state = {9: b"nine"}
    with pytest.raises(InvalidError, match="key group: must be one of this task's, 0 to 7"):
        fleet.snapshot()


def test_a_custom_operator_that_raises_follows_the_policy():
    class Raising:
        def process_batch(self, batch: Any) -> Any:
            raise RuntimeError("no")

    out = run(CustomOperator(factory=Raising, policy=ErrorPolicy(OnError.SIDE)), batch([1, 2]))
    assert out.side_rows("errors", "x", "error") == [(1, "RuntimeError: no"), (2, "RuntimeError: no")]
    with pytest.raises(FunctionError):
        run(CustomOperator(factory=Raising), batch([1]))
    with pytest.raises(InvalidError, match="process_batch"):
        CustomOperator(factory=object)


def test_numbers_come_through_numpy_unchanged():
    out = run(MapBatches(function=lambda b: np.sqrt(b["x"].to_numpy())), batch([4, 9]))
    assert out.rows("value") == [(2.0,), (3.0,)]
