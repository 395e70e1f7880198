"""Takes the measurements, group by group: each function gives the values of some figures. Called by the area.

A peer that cannot be had, or that fails, leaves its figures out with a note; so does a missing Kafka.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import kafka
from bench.areas import Note
from bench.dataflow import latency, logs, nexmark, starting
from bench.dataflow.peers import BYTEWAX, FLINK, LOOP, QUIX
from bench.dataflow.pipes import Pipe, Start, Through, watch_rows
from bench.dataflow.processes import on_one_core, run_module
from bench.dataflow.scale import EVENTS, Scale
from bench.peers import Peer
from shoal.core.errors import DeadlineError, UnavailableError

M = 1e6
K = 1e3
_WITHIN = 600.0
#: Seconds from one commit to the next where rows are watched until they are committed.
COMMIT_SECONDS = 0.2

Values = dict[str, float]


@contextmanager
def _work_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-dataflow-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _of_peer(peer: Peer, what: str, note: Note, measure: Callable[[], Values]) -> Values:
    """What a peer gives, or nothing and a note."""
    try:
        return measure()
    except (UnavailableError, DeadlineError) as error:
        note(f"The peer {peer.name} failed at {what}, so that this is left out: {error.message[-300:]}")
        return {}


# ---------------------------------------------------------------------------------------------------------
# Rows in memory


def measure_memory(scale: Scale, note: Note) -> Values:
    """Jobs over rows in memory, on one core, in turn with bare Arrow; then peers."""
    found: Values = {}
    for name, rows in (
        ("map_filter", scale.rows),
        ("map_filter_small", scale.rows // 2),
        ("tumbling", scale.rows),
        ("tumbling_many_keys", scale.rows),
        ("sliding", scale.rows // 2),
        ("records", scale.few_rows),
    ):
        with on_one_core():
            rates = run_module("memory", [name, rows, scale.rounds], within=_WITHIN)
        found[name] = statistics.median(rates["ours"]) / M
        if name == "sliding":
            # Both over the same rows, in turn: only so a ratio means something.
            found["sliding_tumbling"] = statistics.median(rates["bare"]) / M
        else:
            found[f"{name}_bare"] = statistics.median(rates["bare"]) / M
        found |= _memory_peers(name, scale, note)
    return found


def _memory_peers(name: str, scale: Scale, note: Note) -> Values:
    rows = {
        "map_filter": (scale.flink_map_rows, scale.bytewax_map_rows, "1000,10000,50000"),
        "tumbling": (scale.flink_window_rows, scale.bytewax_window_rows, "1000,10000"),
    }.get(name)
    if rows is None:
        return {}
    flink, bytewax, sizes = rows

    def of_flink() -> Values:
        return {f"{name}_flink": FLINK.run([name, str(flink)], within=_WITHIN)["rate"] / M}

    def of_bytewax() -> Values:
        with on_one_core():
            return {f"{name}_bytewax": BYTEWAX.run([name, str(bytewax), sizes], within=_WITHIN)["rate"] / M}

    return _of_peer(FLINK, name, note, of_flink) | _of_peer(BYTEWAX, name, note, of_bytewax)


def measure_morsels(scale: Scale) -> Values:
    """The same kernels with one thread and with two that share them, on all cores."""
    found: Values = {}
    for name, rows in (("map_filter", scale.rows), ("map_filter_wide", scale.rows), ("text", scale.rows // 2)):
        rates = run_module("memory", [f"{name}_in_morsels", rows, scale.rounds], within=_WITHIN)
        found[f"{name}_two_threads"] = statistics.median(rates["ours"]) / M
        found[f"{name}_one_thread"] = statistics.median(rates["bare"]) / M
    return found


def measure_processes(scale: Scale, note: Note) -> Values:
    """Jobs over two processes beside one, and how batches go from one process to another."""
    found: Values = {}
    for name, rows in (("function", scale.few_rows * 4), ("tumbling", scale.rows * 12)):
        rates = run_module("parallel", [name, rows, scale.rounds], within=_WITHIN)
        found[f"{name}_two_processes"] = statistics.median(rates["two"]) / M
        found[f"{name}_one_process"] = statistics.median(rates["one"]) / M
    rates = run_module("transport", [scale.rows * 2, scale.rounds * 2], within=_WITHIN)
    found["transport"] = statistics.median(rates["ours"])
    found["transport_bare"] = statistics.median(rates["bare"])
    return found | _processes_peers(scale, note)


def _processes_peers(scale: Scale, note: Note) -> Values:
    def of_flink() -> Values:
        rate = FLINK.run(["tumbling", str(scale.flink_window_rows), "2"], within=_WITHIN)["rate"]
        return {"tumbling_two_processes_flink": rate / M}

    return _of_peer(FLINK, "windows with parallelism 2", note, of_flink)


def measure_planning() -> Values:
    """From a program to its plan."""
    return {f"{name}_time": value for name, value in run_module("planning", within=_WITHIN).items()}


def measure_checkpoints(scale: Scale) -> Values:
    """What checkpoints cost: after few changes, and when they come often."""
    changes = run_module("checkpoints", ["changes", scale.state_keys, scale.rounds * 4], within=_WITHIN)
    found = {
        "checkpoint_pause": changes["pause"],
        "checkpoint_written": changes["written"] / M,
        "checkpoint_whole": changes["whole"] / M,
        "checkpoint_share": 100 * changes["written"] / changes["whole"],
    }
    often = run_module("checkpoints", ["often", scale.rows, scale.rounds], within=_WITHIN)
    for name, rates in often.items():
        found[f"often_{name}"] = rates["with"] / M
        found[f"often_{name}_without"] = rates["without"] / M
    return found


# ---------------------------------------------------------------------------------------------------------
# Nexmark


def measure_nexmark(scale: Scale, note: Note) -> Values:
    """Every query once, and DuckDB's after it."""
    found: Values = {}
    if scale.events != EVENTS:
        note(f"Nexmark ran over {scale.events:,} events.")
    folder = nexmark.make_events(scale.events)
    with _work_folder() as home:
        for query in nexmark.QUERIES:
            other = nexmark.run_duckdb(query, folder, home / "duckdb.parquet")
            theirs = nexmark.row_count(home / "duckdb.parquet")
            for name, processes in ((f"nexmark_{query}", 0), (f"nexmark_{query}_two", 2)):
                seconds, events = nexmark.run_ours(query, folder, home / "ours.parquet", processes=processes)
                ours = nexmark.row_count(home / "ours.parquet")
                if ours != theirs:
                    note(f"Nexmark {query} gave {ours} rows, and {theirs} by DuckDB.")
                found[name] = events / seconds / M
            found[f"nexmark_{query}_duckdb"] = events / other / M
    return found


def measure_nexmark_flink(scale: Scale, note: Note) -> Values:
    """Every query by Flink, which takes minutes."""

    def of_flink(query: str) -> Values:
        rate = FLINK.run(["nexmark", query, str(scale.flink_events)], within=_WITHIN)["rate"]
        return {f"nexmark_{query}_flink": rate / M}

    found: Values = {}
    for query in nexmark.QUERIES:
        found |= _of_peer(FLINK, f"Nexmark {query}", note, functools.partial(of_flink, query))
    return found


# ---------------------------------------------------------------------------------------------------------
# Kafka


def measure_kafka(scale: Scale, note: Note) -> Values:
    """From topic to topic, and how long rows take on the way."""
    try:
        jars = kafka.find_jars()
    except UnavailableError as error:
        note(f"Everything through Kafka is left out: {error.message}")
        return {}
    with kafka.running(jars) as broker, _work_folder() as home:
        pipe = Pipe(broker, home, scale.messages)
        pipe.fill()
        found = _measure_pipe(pipe) | _measure_arrow(pipe, scale) | _measure_pipe_peers(pipe, scale, note)
        hop = latency.measure(
            broker, home, name="hop", rate=scale.rate, seconds=scale.seconds, trickle=2, has_job=False
        )
        through = latency.measure(
            broker, home, name="kafka", rate=scale.rate, seconds=scale.seconds, trickle=scale.trickle
        )
        found |= _measure_committed(broker, home, scale)
        return found | {
            "hop_p50": hop.p50,
            "hop_p99": hop.p99,
            "kafka_p50": through.p50,
            "kafka_p99": through.p99,
            "kafka_trickle": through.trickle,
            "kafka_steady_cpu": 100 * through.cpu,
        }


def _once(pipe: Pipe, starts: Callable[[str], list[Start]], expected: int, *, committed: bool = False) -> Through:
    """A job into a topic of its own, which is removed afterwards."""
    target = f"out-{pipe.next_number()}"
    pipe.create(target)
    try:
        return pipe.rate(starts(target), target, expected, committed=committed)
    finally:
        pipe.delete(target)


def _measure_pipe(pipe: Pipe) -> Values:
    """The loop and ours in turn, in the three settings."""
    half = pipe.count // 2

    def loop(source: str, target: str, *more: str) -> Start:
        return pipe.peer(LOOP, "run", pipe.broker, source, target, f"loop-{pipe.next_number()}", *more)

    loop_one = _once(pipe, lambda target: [loop(pipe.whole, target)], half)
    ours = _once(pipe, lambda target: [pipe.ours(pipe.whole, target)], half)
    loop_two = _once(pipe, lambda target: [loop(each, target) for each in pipe.halves], half)
    ours_two = _once(pipe, lambda target: [pipe.ours(each, target) for each in pipe.halves], half)
    ours_processes = _once(pipe, lambda target: [pipe.ours(pipe.whole, target, processes=2)], half)
    loop_exact = _once(pipe, lambda target: [loop(pipe.whole, target, "exactly-once")], half, committed=True)
    ours_exact = _once(pipe, lambda target: [pipe.ours(pipe.whole, target, exactly_once=True)], half, committed=True)
    return {
        "kafka": ours.per_second / K,
        "kafka_two": ours_two.per_second / K,
        "kafka_processes": ours_processes.per_second / K,
        "kafka_exact": ours_exact.per_second / K,
        "kafka_loop": loop_one.per_second / K,
        "kafka_loop_two": loop_two.per_second / K,
        "kafka_loop_exact": loop_exact.per_second / K,
        "kafka_cpu": ours.cpu_per_million,
        "kafka_loop_cpu": loop_one.cpu_per_million,
        "kafka_memory": ours.memory,
    }


def measure_kafka_processes(scale: Scale, note: Note) -> Values:
    """One job over two processes beside two loops, and rows until they are committed."""
    with kafka.running(kafka.find_jars()) as broker, _work_folder() as home:
        pipe = Pipe(broker, home, scale.messages)
        pipe.fill()
        half = pipe.count // 2

        def loop(source: str, target: str) -> Start:
            return pipe.peer(LOOP, "run", pipe.broker, source, target, f"loop-{pipe.next_number()}")

        loop_two = _once(pipe, lambda target: [loop(each, target) for each in pipe.halves], half)
        ours = _once(pipe, lambda target: [pipe.ours(pipe.whole, target, processes=2)], half)
        found = {"kafka_loop_two": loop_two.per_second / K, "kafka_processes": ours.per_second / K}
        return found | _measure_committed(broker, home, scale)


def _measure_committed(broker: str, home: Path, scale: Scale) -> Values:
    committed = latency.measure(
        broker,
        home,
        name="committed",
        rate=scale.rate,
        seconds=scale.seconds,
        trickle=scale.trickle,
        options=["--exactly-once", "--interval", str(COMMIT_SECONDS)],
    )
    return {"kafka_committed_p50": committed.p50, "kafka_committed_p99": committed.p99}


def _measure_arrow(pipe: Pipe, scale: Scale) -> Values:
    source, target = "arrow-in", "arrow-out"
    pipe.create(source)
    pipe.create(target)
    run_module("arrow_fill", [pipe.broker, source, scale.arrow_rows], within=_WITHIN)
    start = pipe.ours(source, target, codec="arrow")
    with pipe.jobs([start]) as running, watch_rows(pipe.broker, target) as grown:
        through = running.through(grown, scale.arrow_rows // 2, per_output=2.0)
    pipe.delete(source)
    pipe.delete(target)
    return {"kafka_arrow": through.per_second / M}


def _measure_pipe_peers(pipe: Pipe, scale: Scale, note: Note) -> Values:
    def of_flink() -> Values:
        warm, one, two = (f"flink-{pipe.next_number()}" for _ in range(3))
        for topic in (warm, one, two):
            pipe.create(topic)
        start = pipe.peer(FLINK, "kafka", pipe.broker, pipe.whole, f"1:{warm}", f"1:{one}", f"2:{two}")
        found: Values = {}
        with pipe.jobs([start]) as running:
            for name, topic in (("kafka_flink", one), ("kafka_flink_two", two)):
                with pipe.watch(topic) as grown:
                    found[name] = running.through(grown, pipe.count // 2, per_output=2.0).per_second / K
        for topic in (warm, one, two):
            pipe.delete(topic)
        return found

    def of_bytewax() -> Values:
        def start(target: str) -> list[Start]:
            return [pipe.peer(BYTEWAX, "kafka", pipe.broker, pipe.whole, target)]

        return {"kafka_bytewax": _once(pipe, start, scale.bytewax_messages // 2).per_second / K}

    def of_quix() -> Values:
        def start(target: str) -> list[Start]:
            return [pipe.peer(QUIX, pipe.broker, pipe.whole, target, f"quix-{pipe.next_number()}")]

        return {"kafka_quix": _once(pipe, start, scale.quix_messages // 2).per_second / K}

    found = _of_peer(FLINK, "Kafka", note, of_flink)
    return found | _of_peer(BYTEWAX, "Kafka", note, of_bytewax) | _of_peer(QUIX, "Kafka", note, of_quix)


# ---------------------------------------------------------------------------------------------------------
# The local log, starting, memory


def measure_log(scale: Scale) -> Values:
    """From topic to topic of a local log, and how long rows take on the way."""
    with _work_folder() as home:
        plain = logs.measure(home / "plain", scale.log_messages, exactly_once=False)
        exact = logs.measure(home / "exact", scale.log_messages, exactly_once=True)
        through = latency.measure(
            str(home / "log"), home, name="log", rate=scale.rate, seconds=scale.seconds, trickle=scale.trickle
        )
    return {
        "log": plain.per_second / K,
        "log_exact": exact.per_second / K,
        "log_memory": max(plain.memory, exact.memory, through.memory),
        "log_p50": through.p50,
        "log_p99": through.p99,
        "log_trickle": through.trickle,
        "log_steady_cpu": 100 * through.cpu,
    }


def measure_starts(scale: Scale) -> Values:
    """Programs that start, and the first row of each."""
    with _work_folder() as home:
        plain = [starting.first_output(home / f"plain-{n}", exactly_once=False) for n in range(scale.starts)]
        exact = [starting.first_output(home / f"exact-{n}", exactly_once=True) for n in range(scale.starts)]
    return {
        "start": statistics.median(each.seconds for each in plain),
        "start_exact": statistics.median(each.seconds for each in exact),
        "start_cpu": statistics.median(each.cpu for each in plain),
        "start_memory": max(each.memory for each in plain),
    }


def measure_stalled() -> Values:
    """A sink that no longer takes anything."""
    found: Any = run_module("stalled", within=_WITHIN)
    return {"stalled_growth": max(0.0, found["growth"]), "stalled_waiting": found["waiting"]}


#: Groups of figures that can be measured alone.
PARTS: dict[str, Callable[[Scale, Note], Values]] = {
    "processes": measure_processes,
    "morsels": lambda scale, _note: measure_morsels(scale),
    "checkpoints": lambda scale, _note: measure_checkpoints(scale),
    "nexmark": measure_nexmark,
    "nexmark-flink": measure_nexmark_flink,
    "kafka-processes": measure_kafka_processes,
}
