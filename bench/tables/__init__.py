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
    "Lookup of a batch of 4,096 ids and an Adagrad step with a gradient for each, zipf ids over {rows} rows, "
    "columns: {dim}, threads: {threads}; admission and times are on."
)

FIGURES = (
    Figure("step_16", "M ids/s", _STEP.format(rows="10 M", dim=16, threads=1), bar=at_least(5)),
    Figure("step_16_two_threads", "M ids/s", _STEP.format(rows="10 M", dim=16, threads=2), bar=at_least(9)),
    Figure("step_32", "M ids/s", _STEP.format(rows="10 M", dim=32, threads=1)),
    Figure("step_32_two_threads", "M ids/s", _STEP.format(rows="10 M", dim=32, threads=2)),
    Figure("lookup_16", "M ids/s", "As `step_16`, the lookup alone."),
    Figure("step_16_1m", "M ids/s", _STEP.format(rows="1 M", dim=16, threads=1)),
    Figure("step_16_20m", "M ids/s", _STEP.format(rows="20 M", dim=16, threads=1), once=True),
    Figure(
        "step_20m_of_1m",
        "",
        "`step_16_20m` divided by `step_16_1m`: what growth costs.",
        bar=at_least(0.7),
        quotient=("step_16_20m", "step_16_1m"),
    ),
    Figure("memory_per_id_16", "bytes", "Memory of a table of 10 M ids, 16 columns and Adagrad, by id.", once=True),
    Figure("dump_10m", "s", "Our Arrow dump of that table, to a local disk.", once=True),
    Figure("load_10m", "s", "The same dump into an empty table.", once=True),
    Figure(
        "step_16_beside_tfra",
        "M ids/s",
        "As `step_16_two_threads` with 5 M rows, in turn with the peer.",
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
        "so that a batch of 4,096 has about 2,300 different ones. Gradients of the same id are added up before the\n"
        "step. A rate is the median of several passes over 300 batches."
    ),
    figures=FIGURES,
    measure=measure,
    packages=("numba", "numpy", "pyarrow"),
    peers=ALL,
)
