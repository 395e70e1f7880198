"""Dataflow jobs on a fleet: how fast they are, what agents cost, how soon output comes, and comes again after a loss.

`figures.py` says what is promised, `measures.py` takes the measurements on real processes (`stage.py`); `flows.py` and
`rows.py` are the programs that are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.areas import Area, Note
from bench.dataflow.peers import FLINK
from bench.jobs.figures import FIGURES
from bench.jobs.scale import FULL

#: Parts that are measured in the first run alone.
_ONCE = ("agents", "rescale", "records")


def measure(run: int, note: Note) -> Mapping[str, float]:
    """Everything once."""
    # Only now: task hosts import this package, too, and it is to cost them nothing.
    from bench.jobs.measures import PARTS, measure_part

    found: dict[str, float] = {}
    for name in PARTS:
        if run == 0 or name not in _ONCE:
            found |= measure_part(name, FULL, note)
    return found


def _part(name: str) -> Callable[[int, Note], Mapping[str, float]]:
    def measure_one(run: int, note: Note) -> Mapping[str, float]:
        from bench.jobs.measures import measure_part

        return {} if run and name in _ONCE else measure_part(name, FULL, note)

    return measure_one


AREA = Area(
    name="jobs",
    title="Dataflow jobs on a fleet",
    about=(
        "A control plane and its agents with certificates, as real processes on one machine, with the settings that\n"
        "they have by default. Jobs have checkpoints every second and, unless it says otherwise, exactly-once sinks.\n"
        "Of `flight`, as in `make bench ONLY=exchange`, the best of three turns in a run counts."
    ),
    figures=FIGURES,
    measure=measure,
    packages=("pyarrow", "numpy", "dbos"),
    peers=(FLINK,),
    parts={
        name: _part(name)
        for name in ("speed", "flight", "agents", "delays", "appended", "losses", "rescale", "records")
    },
)
