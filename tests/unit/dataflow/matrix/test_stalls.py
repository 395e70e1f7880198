"""Every operator, join and sink under checkpoints, over inputs of every pace: none stalls, and a stop returns."""

from __future__ import annotations

import pytest

from tests.unit.dataflow.matrix.cases import OPERATORS, SINKS, TINY, Case, SinkCase
from tests.unit.dataflow.matrix.stalls import Pace, check, params, run, streams

#: Paces of one input, and of two. All combinations, and the default interval, are in the long tests.
SINGLES = [(Pace.SLOW,), (Pace.ENDLESS,), (Pace.IDLE,), (Pace.ENDED,)]
PAIRS = [
    (Pace.SLOW, Pace.SLOW),
    (Pace.ENDLESS, Pace.ENDLESS),
    (Pace.ENDLESS, Pace.LOADING),
    (Pace.LOADING, Pace.SLOW),
    (Pace.IDLE, Pace.SLOW),
    (Pace.SLOW, Pace.ENDED),
    (Pace.ENDED, Pace.IDLE),
]
TRIPLES = [(*pair, pair[0]) for pair in PAIRS]
PACES = {1: SINGLES, 2: PAIRS, 3: TRIPLES}
SOME = (Pace.SLOW, Pace.ENDED)


def combinations() -> list:
    """Each step over slow inputs, and over inputs of one more pace, each in its turn."""
    found = []
    for number, case in enumerate(OPERATORS):
        slow, *others = PACES[case.inputs]
        found += [params(case, slow, TINY), params(case, others[number % len(others)], TINY)]
    return found


@pytest.mark.parametrize(("case", "paces", "interval"), combinations())
def test_no_step_stalls_under_checkpoints(tmp_path, case: Case, paces: tuple[Pace, ...], interval: float):
    check(case, paces, interval, tmp_path)


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=() if at % 2 else pytest.mark.long) for at, each in enumerate(OPERATORS)], ids=str
)
def test_every_step_goes_on_from_its_checkpoint(tmp_path, case: Case):
    sink = case.build(*streams([Pace.SLOW] * case.inputs, case.splits)).to_callback(lambda batch: None).node
    first, _used = run(sink, tmp_path, interval=TINY, checkpoints=3, **case.settings)
    second, _used = run(sink, tmp_path, interval=TINY, checkpoints=3, **case.settings)
    assert (first.restored, second.restored) == (None, first.checkpoints.last_number)


@pytest.mark.parametrize("pace", [pytest.param(each, marks=() if each in SOME else pytest.mark.long) for each in Pace])
@pytest.mark.parametrize("case", SINKS, ids=str)
def test_no_sink_stalls_under_checkpoints(tmp_path, case: SinkCase, pace: Pace):
    (stream,) = streams([pace])
    sink = case.build(stream, tmp_path)
    assert isinstance(sink.connector, case.kind)
    report, _used = run(sink, tmp_path / "checkpoints", interval=0.05, checkpoints=2)
    assert report.checkpoints.failed == 0
