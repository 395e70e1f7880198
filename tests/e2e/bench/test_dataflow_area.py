"""The dataflow area measures what it declares, on real processes and a small scale."""

from __future__ import annotations

import math

import pytest

from bench.dataflow import FIGURES, measures
from bench.dataflow.peers import FLINK, LOOP
from bench.dataflow.pipes import Pipe
from bench.dataflow.scale import EVENTS, Scale
from shoal.core.errors import UnavailableError
from tests.services.absence import do_without

pytestmark = pytest.mark.e2e

SMALL = Scale(
    state_keys=20_000,
    rows=200_000,
    few_rows=20_000,
    rounds=1,
    messages=40_000,
    arrow_rows=200_000,
    log_messages=100_000,
    rate=2000,
    seconds=1.0,
    trickle=2,
    starts=1,
    events=5_000,
)
MEASURED = {figure.name for figure in FIGURES if figure.quotient is None}
PEERS = {name for name in MEASURED if name.endswith(("_flink", "_flink_two", "_bytewax", "_quix"))}
KAFKA = {name for name in MEASURED if name.startswith(("kafka", "hop"))}


def all_sound(found: dict[str, float]) -> bool:
    return all(value >= 0 and math.isfinite(value) for value in found.values())


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_figure_without_kafka_and_peers_gets_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_memory_peers", lambda *_: {})
    monkeypatch.setattr(measures, "_processes_peers", lambda *_: {})
    notes: list[str] = []
    found = measures.measure_memory(SMALL, notes.append) | measures.measure_morsels(SMALL)
    found |= measures.measure_planning() | measures.measure_log(SMALL) | measures.measure_starts(SMALL)
    found |= measures.measure_checkpoints(SMALL) | measures.measure_processes(SMALL, notes.append)
    found |= measures.measure_stalled() | measures.measure_nexmark(SMALL, notes.append)
    assert found.keys() == MEASURED - PEERS - KAFKA
    assert all_sound(found)
    assert found["log_p50"] <= found["log_p99"]
    # The only thing to be told: fewer events, and as many results as DuckDB has.
    assert notes == ["Nexmark ran over 5,000 events."]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_jobs_through_kafka_are_timed_by_their_output(kafka_broker, tmp_path) -> None:
    try:
        LOOP.prepare()
    except UnavailableError as error:
        do_without(f"the loop's packages cannot be installed: {error.message}")
    pipe = Pipe(kafka_broker.address, tmp_path, SMALL.messages, whole="bench-all", halves=("bench-a", "bench-b"))
    pipe.fill()
    found = measures._measure_pipe(pipe) | measures._measure_arrow(pipe, SMALL)
    assert found.keys() <= KAFKA
    assert all_sound(found)
    assert found["kafka"] > 0 < found["kafka_exact"]


def test_a_peer_that_fails_is_left_out_and_a_line_says_so() -> None:
    def fail() -> dict[str, float]:
        raise UnavailableError("no luck")

    notes: list[str] = []
    assert measures._of_peer(FLINK, "windows", notes.append, fail) == {}
    assert notes == ["The peer flink failed at windows, so that this is left out: no luck"]


def test_without_kafka_the_rest_is_measured_and_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise UnavailableError("there is no Java to run Kafka with")

    monkeypatch.setattr(measures.kafka, "find_jars", fail)
    notes: list[str] = []
    assert measures.measure_kafka(SMALL, notes.append) == {}
    assert notes == ["Everything through Kafka is left out: there is no Java to run Kafka with"]


def test_figures_that_need_what_may_be_missing_may_be_left_out() -> None:
    optional = {figure.name for figure in FIGURES if figure.optional}
    assert optional == PEERS | KAFKA
    assert EVENTS == 10_000_000
