"""Embedding tables: how many ids a second are looked up and updated, what an id costs, how long dumps take.

`stage.py` makes tables and batches, `steps.py` measures them, `parsing.py` measures how records become columns,
`peers.py` names what they are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.areas import Area, Note
from bench.figures import Against, Figure, at_least
from bench.tables import parsing
from bench.tables.peers import ALL

_STEP = (
    "Lookup of a batch of {batch} ids and an Adagrad step with a gradient for each, zipf ids over {rows} rows, "
    "columns: {dim}, threads: {threads}; admission and times are on, and one id in 64 is new."
)


def _step(rows: str, dim: int, threads: int, batch: str = "65,536") -> str:
    return _STEP.format(batch=batch, rows=rows, dim=dim, threads=threads)


FIGURES = (
    Figure("step_16", "M ids/s", _step("10 M", 16, 1), bar=at_least(5)),
    Figure("step_16_two_threads", "M ids/s", _step("10 M", 16, 2), bar=at_least(9)),
    Figure("step_32", "M ids/s", _step("10 M", 32, 1)),
    Figure("step_32_two_threads", "M ids/s", _step("10 M", 32, 2)),
    Figure("step_16_short", "M ids/s", _step("10 M", 16, 1, "4,096")),
    Figure("step_16_short_two_threads", "M ids/s", _step("10 M", 16, 2, "4,096")),
    Figure("lookup_16", "M ids/s", "As `step_16`, the lookup alone."),
    Figure("step_16_1m", "M ids/s", _step("1 M", 16, 1)),
    Figure("step_16_20m", "M ids/s", _step("20 M", 16, 1)),
    Figure(
        "step_20m_of_1m",
        "",
        "`step_16_20m` divided by `step_16_1m`: what growth costs.",
        bar=at_least(0.7),
        quotient=("step_16_20m", "step_16_1m"),
    ),
    Figure(
        "growth_step",
        "ms",
        "A step of 16,384 new ids while a table of 16 columns grows from nothing to 10 M rows, one thread: the median.",
        once=True,
    ),
    Figure("growth_longest_step", "ms", "The longest of those steps: the pause that growth makes.", once=True),
    Figure(
        "sweep_step",
        "ms",
        "An Adagrad step of 4,096 ids over 10 M rows of 16 columns, one thread, while another thread looks for expired "
        "ids without a pause and removes those: the median.",
    ),
    Figure("sweep_longest_step", "ms", "The longest of those steps: the delay that eviction makes for a writer."),
    Figure("sweep_longest_lookup", "ms", "The longest of the lookups between them: the delay for a reader."),
    Figure("memory_per_id_16", "bytes", "Memory of a table of 10 M ids, 16 columns and Adagrad, by id.", once=True),
    Figure("dump_10m", "s", "Our Arrow dump of that table, to a local disk.", once=True),
    Figure("load_10m", "s", "The same dump into an empty table.", once=True),
    Figure(
        "step_16_beside_tfra",
        "M ids/s",
        "As `step_16_two_threads` with 5 M rows and without new ids, in turn with the peer.",
        against=Against("tfra", "tfra_step_16"),
        optional=True,
    ),
    Figure(
        "tfra_step_16",
        "M ids/s",
        "The same batches and rows with TensorFlow Recommenders Addons on TensorFlow 2.16.2: a cuckoo table, its "
        "lookup and Adagrad in one graph, as many threads as it takes.",
        optional=True,
    ),
    Figure(
        "step_of_tfra",
        "",
        "`step_16_beside_tfra` divided by `tfra_step_16`.",
        bar=at_least(5),
        quotient=("step_16_beside_tfra", "tfra_step_16"),
        optional=True,
    ),
    *parsing.FIGURES,
)


def measure(run: int, note: Note) -> Mapping[str, float]:
    """Everything once; what takes long in the first run."""
    from bench.tables import steps

    return dict(steps.measure_all(run, note)) | parsing.measure(note)


AREA = Area(
    name="tables",
    title="Embedding tables",
    about=(
        "One table in one process. Ids are drawn from a bounded zipf distribution (1.05) and scattered over 63 bits,\n"
        "so that a batch of 65,536, as a training step has it, holds about 26,000 different ones; one of 4,096 holds\n"
        "about 2,300. Gradients of the same id are added up before the step. A rate is the median of several passes\n"
        "over 2.6 M ids."
    ),
    figures=FIGURES,
    measure=measure,
    packages=("numba", "numpy", "pyarrow"),
    peers=ALL,
)
