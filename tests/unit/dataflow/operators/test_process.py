"""Process functions: state, timers, side outputs, and a restart at any moment."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import InvalidError, PreconditionError
from shoal.dataflow.api.process_function import ProcessFunction
from shoal.dataflow.errors import FunctionError, PlanError
from shoal.dataflow.language.elements import START_OF_TIME, TIME
from shoal.dataflow.language.logical import OnError
from shoal.dataflow.operators.policies import ErrorPolicy
from shoal.dataflow.operators.users.moments import timer_micros
from shoal.dataflow.operators.users.process import ProcessOperator
from tests.unit.dataflow.operators.driving import Fleet, batch_of, cut
from tests.unit.dataflow.operators.test_windows import canonical


class Everything(ProcessFunction):
    """Uses state of every kind; says what it has at each record, and ten moments later."""

    def open(self, context: Any) -> None:
        self.last = context.value_state("last")
        self.seen = context.list_state("seen")
        self.counts = context.map_state("counts")
        self.most = context.reducing_state("most", max)
        self.mean = context.aggregating_state(
            "mean",
            create=lambda: [0, 0],
            add=lambda acc, v: [acc[0] + v, acc[1] + 1],
            result=lambda acc: acc[0] / acc[1],
        )

    def process(self, record: Any, context: Any) -> Any:
        value = record.value
        before = self.last.get(-1)
        self.last.set(value)
        self.seen.add(value)
        self.counts[value] = self.counts.get(value, 0) + 1
        self.most.add(value)
        self.mean.add(value)
        context.set_timer(context.time + 10)
        if value == 0:
            self.seen.clear()
            self.counts.clear()
            context.delete_timer(context.time + 10)
            context.emit_side("zeros", {"key": context.key})
        yield self.say("record", before, context)

    def on_timer(self, time: int, context: Any) -> Any:
        context.emit(self.say("timer", time, context))

    def say(self, what: str, before: int, context: Any) -> dict[str, Any]:
        return {
            "what": what,
            "key": context.key,
            "before": before,
            "seen": self.seen.get(),
            "counts": str(sorted(self.counts.items())),
            "most": self.most.get(),
            "mean": self.mean.get(),
            "at": context.time,
        }


def oracle(batches: Any, disorder: int) -> tuple[list[Any], list[Any]]:
    state: dict[Any, dict[str, Any]] = {}
    timers: set[tuple[int, Any]] = set()
    found, zeros = [], []
    watermark = greatest = START_OF_TIME

    def say(what: str, before: int, key: Any, at: int) -> None:
        mine = state[key]
        counts = str(sorted(Counter(mine["counts"]).items()))
        mean = sum(mine["all"]) / len(mine["all"])
        found.append((what, key, before, list(mine["seen"]), counts, max(mine["all"]), mean, at, at))

    for batch in [*batches, None]:
        for time, key, value in batch or []:
            mine = state.setdefault(key, {"last": -1, "seen": [], "counts": [], "all": []})
            before, mine["last"] = mine["last"], value
            mine["seen"].append(value)
            mine["counts"].append(value)
            mine["all"].append(value)
            timers.add((time + 10, key))
            if value == 0:
                mine["seen"], mine["counts"] = [], []
                timers.discard((time + 10, key))
                zeros.append((key,))
            say("record", before, key, time)
        if batch is None:
            watermark = 2**63 - 1
        else:
            greatest = max([greatest, *(row[0] for row in batch)])
            watermark = max(watermark, greatest - disorder)
        for time, key in sorted((each for each in timers if each[0] <= watermark), key=lambda each: each[0]):
            timers.discard((time, key))
            say("timer", time, key, time)
    return found, zeros


def drive(rows: Any, sizes: Any, restarts: Any, disorder: int, scratch: str = "") -> Any:
    fleet = Fleet(
        lambda: ProcessOperator(function=Everything, keys=("key",), state="rocks" if scratch else "memory"),
        [("key",)],
        2,
        scratch=scratch,
    )
    greatest = START_OF_TIME
    for number, part in enumerate(cut(rows, sizes)):
        fleet.feed(batch_of(part))
        if number in restarts:
            fleet = fleet.restored(restarts[number])
        greatest = max([greatest, *(row[0] for row in part)])
        fleet.watermark(greatest - disorder)
    fleet.end()
    return fleet.out


rows_strategy = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from(["a", "b", "c", None]), st.integers(0, 4)), max_size=30
)


@given(
    rows_strategy,
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.dictionaries(st.integers(0, 8), st.integers(1, 3), max_size=2),
    st.integers(0, 20),
)
@settings(max_examples=60, deadline=None)
def test_state_and_timers_are_those_of_the_key(rows, sizes, restarts, disorder):
    out = drive(rows, sizes, restarts, disorder)
    found, zeros = oracle(cut(rows, sizes), disorder)
    assert canonical(out.rows()) == canonical(found)
    assert canonical(out.side_rows("zeros")) == canonical(zeros)


def test_state_on_disk_is_the_same(tmp_path: Path):
    rows = [(number * 7 % 50, "abcd"[number % 4], number % 5) for number in range(60)]
    restarts = {2: 1, 4: 3}
    out = drive(rows, [9, 5], restarts, 10, str(tmp_path))
    found, _zeros = oracle(cut(rows, [9, 5]), 10)
    assert canonical(out.rows()) == canonical(found)


class Expiring(ProcessFunction):
    def open(self, context: Any) -> None:
        self.count = context.value_state("count", ttl=timedelta(milliseconds=1))
        self.items = context.map_state("items", ttl=0.002)

    def process(self, record: Any, context: Any) -> Any:
        self.count.value = (self.count.value or 0) + 1
        self.items[record.value] = context.processing_time
        return {"key": context.key, "count": self.count.value, "items": len(list(self.items.keys()))}


@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_state_that_has_outlived_its_time_is_freed(kind: str, tmp_path: Path):
    fleet = Fleet(
        lambda: ProcessOperator(function=Expiring, keys=("key",), state=kind), [("key",)], scratch=str(tmp_path)
    )
    fleet.feed(batch_of([(1, "a", 1), (2, "a", 2), (3, "b", 1)]))
    fleet.clock.advance(900)
    fleet.feed(batch_of([(4, "a", 3)]))
    fleet = fleet.restored(1)
    operator = fleet.operators[0]
    assert operator.next_tick() == fleet.clock.micros + 100
    fleet.clock.advance(1000)
    fleet.feed(batch_of([(5, "a", 3), (6, "b", 3)]))  # the counts are gone: of a since now, of b since long
    fleet.clock.advance(200)
    fleet.tick()
    fleet.feed(batch_of([(7, "a", 4)]))  # the first two items of a are gone
    assert fleet.out.rows("key", "count", "items") == [
        ("a", 1, 1), ("a", 2, 2), ("b", 1, 1), ("a", 3, 3), ("a", 1, 3), ("b", 1, 2), ("a", 2, 2),
    ]  # fmt: skip
    fleet.clock.advance(10_000)
    fleet.tick()
    assert operator.next_tick() is None
    assert operator._backend.groups() == frozenset()
    fleet.end()


def test_a_time_to_live_is_a_length_of_time_as_everywhere():
    lives: dict[str, int] = {}

    class Named(ProcessFunction):
        def open(self, context: Any) -> None:
            context.value_state("number", ttl=5)
            context.list_state("text", ttl="5s")
            context.map_state("delta", ttl=timedelta(seconds=5))
            context.reducing_state("part", max, ttl=0.5)
            context.aggregating_state("hour", create=list, add=lambda all_, one: [*all_, one], ttl="1h")
            context.value_state("ever")
            lives.update(context._state._lives)
            for number, wrong in enumerate(("soon", None, True, -1, "-1s", timedelta(seconds=-1))):
                with pytest.raises(PlanError, match="ttl: must be"):
                    context.value_state(f"wrong{number}", ttl=wrong)

    Fleet(lambda: ProcessOperator(function=Named), [()])
    assert lives == {
        "number": 5_000_000, "text": 5_000_000, "delta": 5_000_000, "part": 500_000, "hour": 3_600_000_000, "ever": 0,
    }  # fmt: skip


class Delayed(ProcessFunction):
    def process(self, record: Any, context: Any) -> Any:
        first = context.set_timer("5s")
        assert first == context.time + 5_000_000
        context.set_timer(timedelta(seconds=3))
        context.delete_timer(first)
        later = context.set_processing_timer("1ms")
        assert later == context.processing_time + 1000
        context.delete_processing_timer(later)
        context.set_processing_timer(timedelta(microseconds=7))
        for wrong in ("soon", "-1s", timedelta(seconds=-1), 1.5, None, True):
            with pytest.raises(InvalidError, match="timer: must be"):
                context.set_timer(wrong)
        with pytest.raises(InvalidError, match="microseconds since 1970"):
            context.delete_timer("5s")  # from when on?

    def on_timer(self, time: int, context: Any) -> Any:
        return {"time": time}


def test_a_timer_after_a_delay():
    fleet = Fleet(lambda: ProcessOperator(function=Delayed, keys=("key",)), [("key",)])
    start = fleet.clock.micros
    fleet.feed(batch_of([(1_000_000, "a", 1)]))
    fleet.clock.advance(7)
    fleet.tick()
    fleet.end()
    assert fleet.out.rows("time") == [(start + 7,), (4_000_000,)]


class Clocked(ProcessFunction):
    def process(self, record: Any, context: Any) -> Any:
        context.set_processing_timer(context.processing_time + record.value)
        context.set_processing_timer(datetime(2030, 1, 1, tzinfo=UTC))
        context.delete_processing_timer(datetime(2030, 1, 1))  # noqa: DTZ001 - without a zone it is UTC

    def on_timer(self, time: int, context: Any) -> Any:
        return {"key": str(context.key), "time": time}


def test_timers_of_the_clock():
    fleet = Fleet(lambda: ProcessOperator(function=Clocked(), keys=("key", "value")), [("key", "value")])
    start = fleet.clock.micros
    fleet.feed(batch_of([(1, "a", 50), (2, "b", 20)]))
    fleet = fleet.restored(2)
    assert min(o.next_tick() for o in fleet.operators if o.next_tick()) == start + 20
    fleet.clock.advance(20)
    fleet.tick()
    fleet.clock.advance(100)
    fleet.tick()
    assert fleet.out.rows("key", "time") == [("('b', 20)", start + 20), ("('a', 50)", start + 50)]
    assert all(operator.next_tick() is None for operator in fleet.operators)
    assert sum(operator.statistics()["timers"] for operator in fleet.operators) == 0


class Picky(ProcessFunction):
    def open(self, context: Any) -> None:
        self.count = context.value_state("count")

    def process(self, record: Any, context: Any) -> Any:
        self.count.set(self.count.get(0) + 1)
        if record.value < 0:
            raise ValueError("negative")
        return {"value": record.value, "count": self.count.get()}


def test_a_function_that_raises_follows_its_policy():
    rows = [(1, "a", 1), (2, "a", -1), (3, "a", 3)]
    fleet = Fleet(lambda: ProcessOperator(function=Picky, keys=("key",), policy=ErrorPolicy(OnError.SIDE)), [("key",)])
    fleet.feed(batch_of(rows))
    assert fleet.out.rows("value", "count", TIME) == [(1, 1, 1), (3, 3, 3)]
    assert fleet.out.side_rows("errors", "value", "error") == [(-1, "ValueError: negative")]
    with pytest.raises(FunctionError, match="negative"):
        Fleet(lambda: ProcessOperator(function=Picky, keys=("key",)), [("key",)]).feed(batch_of(rows))


class Alarmed(ProcessFunction):
    def process(self, record: Any, context: Any) -> Any:
        context.set_timer(record.value)

    def on_timer(self, time: int, context: Any) -> Any:
        if time > 10:
            raise ValueError("too late")
        return {"key": context.key, "at": time}


@pytest.mark.parametrize("restart", [False, True])
def test_a_timer_that_raises_follows_the_policy_too(restart: bool):
    def fleet_of(on_error: OnError) -> Fleet:
        policy = ErrorPolicy(on_error)
        fleet = Fleet(lambda: ProcessOperator(function=Alarmed, keys=("key",), policy=policy), [("key",)])
        fleet.feed(batch_of([(1, "a", 5), (2, "b", 15), (3, "c", 7)]))
        return fleet.restored(2) if restart else fleet

    aside, skipping, failing = (fleet_of(each) for each in (OnError.SIDE, OnError.SKIP, OnError.FAIL))
    aside.end()
    assert sorted(aside.out.rows("key", "at")) == [("a", 5), ("c", 7)]
    assert aside.out.side_rows("errors", "key", "value", TIME, "error") == [("b", None, 15, "ValueError: too late")]
    skipping.end()
    assert sorted(skipping.out.rows("key", "at")) == [("a", 5), ("c", 7)]
    assert skipping.operators[0].statistics()["skipped"] == 1
    with pytest.raises(FunctionError, match="too late"):
        failing.end()


class Emitting(ProcessFunction):
    """Emits a row for each record and, behind one of a negative value, rows that do not fit; with a timer again."""

    def process(self, record: Any, context: Any) -> Any:
        context.set_timer(record.value + 100)
        yield {"key": context.key, "value": record.value}
        if record.value < 0:
            yield {"key": context.key, "value": "many"}
            yield {"key": context.key, "value": 2.5}

    def on_timer(self, time: int, context: Any) -> Any:
        return {"key": context.key, "value": "none" if time < 100 else time}


EMITTED = pa.schema({"key": pa.string(), "value": pa.int32()})


def emitting(on_error: OnError, *, restart: bool = False) -> Fleet:
    policy = ErrorPolicy(on_error, label="Emitting")
    made = Fleet(lambda: ProcessOperator(function=Emitting, keys=("key",), schema=EMITTED, policy=policy), [("key",)])
    made.feed(batch_of([(1, "a", 1), (2, "b", -1), (3, "c", 3)]))
    return made.restored(1) if restart else made


@pytest.mark.parametrize("restart", [False, True])
def test_a_row_that_does_not_fit_the_schema_follows_the_policy(restart: bool):
    aside, skipping = emitting(OnError.SIDE, restart=restart), emitting(OnError.SKIP, restart=restart)
    for fleet in (aside, skipping):
        assert fleet.out.rows("key", "value", TIME) == [("a", 1, 1), ("b", -1, 2), ("c", 3, 3)]
        fleet.end()
        assert sorted(fleet.out.rows("key", "value", TIME)[3:]) == [("a", 101, 101), ("c", 103, 103)]
    (record, timer) = aside.out.side_rows("errors", "key", "value", TIME, "error")
    assert record[:3] == ("b", -1, 2)  # once, though two of its rows do not fit
    assert "value: cannot be a column of int32" in record[3]
    assert timer[:3] == ("b", None, 99)
    assert skipping.operators[0].statistics()["skipped"] == 2


def test_such_a_row_fails_the_run_and_the_error_names_function_and_record():
    with pytest.raises(FunctionError, match=r"Emitting raised MisfitError: value: .*'value': -1") as caught:
        emitting(OnError.FAIL)
    assert "on_error='skip'" in caught.value.hint


class Undecided(ProcessFunction):
    def process(self, record: Any, context: Any) -> Any:
        return {"value": record.value if record.value < 2 else str(record.value)}


def test_rows_that_disagree_without_a_schema_fail_whatever_the_policy():
    fleet = Fleet(lambda: ProcessOperator(function=Undecided, policy=ErrorPolicy(OnError.SKIP)), [()])
    with pytest.raises(FunctionError, match="for the batch as a whole, of 2 rows"):
        fleet.feed(batch_of([(1, "a", 1), (2, "a", 2)]))


def test_without_keys_there_is_one_state_for_all():
    fleet = Fleet(lambda: ProcessOperator(function=Picky), [()])
    fleet.feed(batch_of([(1, "a", 1), (2, "b", 2)]))
    assert fleet.out.rows("count") == [(1,), (2,)]


def test_tasks_do_not_share_a_function_that_was_given_as_an_object():
    function = Picky()
    one, other = (Fleet(lambda: ProcessOperator(function=function, keys=("key",)), [("key",)]) for _ in range(2))
    one.feed(batch_of([(1, "a", 1)]))
    other.feed(batch_of([(1, "a", 1)]))
    assert other.out.rows("count") == [(1,)]


class Misusing(ProcessFunction):
    def open(self, context: Any) -> None:
        self.value = context.value_state("x")
        with pytest.raises(InvalidError, match="no other state"):
            context.list_state("x")
        with pytest.raises(InvalidError, match="ttl: must be at least 0 seconds"):
            context.list_state("y", ttl=-1)
        with pytest.raises(PreconditionError, match="no current key"):
            self.value.get()


def test_mistakes_are_named():
    Fleet(lambda: ProcessOperator(function=Misusing), [()])
    with pytest.raises(InvalidError, match="memory or rocks"):
        ProcessOperator(function=Misusing, state="paper")
    with pytest.raises(InvalidError, match="directory"):
        Fleet(lambda: ProcessOperator(function=Misusing, state="rocks"), [()])


class Declared(ProcessFunction):
    def process(self, record: Any, context: Any) -> Any:
        return {"b": record.value}


def test_the_schema_is_kept_to():
    schema = pa.schema({"b": pa.int32(), "c": pa.string()})
    fleet = Fleet(lambda: ProcessOperator(function=Declared, schema=schema), [()])
    fleet.feed(batch_of([(1, "a", 1)]))
    assert fleet.out.batches[0].schema.names == ["b", "c", TIME]
    assert fleet.out.batches[0].schema.field("b").type == pa.int32()


@pytest.mark.parametrize("time", [10**30, -(10**30), 2**63])
def test_a_time_of_a_timer_fits_into_64_bits(time: int) -> None:
    with pytest.raises(InvalidError, match="timer: must be microseconds since 1970 that fit into 64 bits"):
        timer_micros(time, 0)


def test_a_delay_of_a_timer_is_at_most_a_century() -> None:
    with pytest.raises(InvalidError, match="timer: must be at most 36500 days"):
        timer_micros(timedelta.max, 0)
    assert timer_micros(2**63 - 1, 0) == 2**63 - 1
