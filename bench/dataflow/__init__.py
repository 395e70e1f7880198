"""The dataflow engine: how fast it is beside bare Arrow and other engines, how late rows are, what it needs.

`figures.py` says what is promised, `measures.py` takes the measurements; the other modules are the programs that are
measured, and what watches them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.areas import Area, Note
from bench.dataflow.figures import FIGURES
from bench.dataflow.peers import ALL
from bench.dataflow.scale import FULL, Scale


def measure(run: int, note: Note) -> Mapping[str, float]:
    """Everything once."""
    return measure_all(FULL, run, note)


def measure_all(scale: Scale, run: int, note: Note) -> dict[str, float]:
    """Everything once, as large as is said."""
    # Only now: this package is imported by the programs that are measured, too, and is to cost them nothing.
    from bench.dataflow import measures

    found = measures.measure_memory(scale, note)
    found |= measures.measure_morsels(scale)
    found |= measures.measure_processes(scale, note)
    found |= measures.measure_planning()
    found |= measures.measure_checkpoints(scale)
    found |= measures.measure_log(scale)
    found |= measures.measure_starts(scale)
    found |= measures.measure_stalled()
    found |= measures.measure_kafka(scale, note)
    if run == 0:
        found |= measures.measure_nexmark(scale, note) | measures.measure_nexmark_flink(scale, note)
    return found


def _part(name: str) -> Callable[[int, Note], Mapping[str, float]]:
    def measure_part(run: int, note: Note) -> Mapping[str, float]:
        from bench.dataflow import measures

        del run
        return measures.PARTS[name](FULL, note)

    return measure_part


AREA = Area(
    name="dataflow",
    title="The dataflow engine",
    about=(
        "Jobs run in one process unless it says otherwise, and what is compared runs in turn. Jobs in memory are held\n"
        "to one core, and their rows come in batches of 65,536. A real Kafka broker runs on the same cores as the\n"
        "jobs; there a job is timed by the growth of its output topic, from 15 % of it to its end: starting up does\n"
        "not count, and neither does what is not written."
    ),
    figures=FIGURES,
    measure=measure,
    packages=("pyarrow", "numpy", "duckdb", "confluent-kafka", "arro3-io", "rocksdict"),
    peers=ALL,
    parts={
        name: _part(name)
        for name in ("processes", "morsels", "checkpoints", "nexmark", "nexmark-flink", "kafka-processes")
    },
)
