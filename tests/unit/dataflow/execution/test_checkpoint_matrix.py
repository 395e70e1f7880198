"""Every operator, join and sink under checkpoints, over inputs of every pace: none stalls, and a stop returns."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil

import pytest

import shoal.dataflow
from shoal.dataflow.execution.building import _SourceStep
from shoal.dataflow.execution.factories import FACTORIES
from shoal.dataflow.execution.sinks import SinkStep
from shoal.dataflow.language.logical import Join, JoinMode, Node, walk
from shoal.dataflow.operators.base import Operator
from tests.unit.dataflow.execution.checkpoint_matrix import (
    OPERATORS,
    SINKS,
    TINY,
    Case,
    Pace,
    check,
    params,
    run,
    streams,
)

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
@pytest.mark.parametrize(("kind", "build"), SINKS)
def test_no_sink_stalls_under_checkpoints(tmp_path, kind, build, pace: Pace):
    (stream,) = streams([pace])
    sink = build(stream, tmp_path)
    assert isinstance(sink.connector, kind)
    report, _used = run(sink, tmp_path / "checkpoints", interval=0.05, checkpoints=2)
    assert report.checkpoints.failed == 0


# -- the table is whole -----------------------------------------------------------------------------------


def all_modules() -> list:
    found = pkgutil.walk_packages(shoal.dataflow.__path__, "shoal.dataflow.")
    return [importlib.import_module(each.name) for each in found]


def subclasses_of(base: type) -> set[type]:
    direct = {each for each in base.__subclasses__() if each.__module__.startswith("shoal.")}
    return direct.union(*(subclasses_of(each) for each in direct))


def concrete(base: type) -> set[type]:
    """The classes of Shoal that nobody derives from: those that run."""
    all_modules()
    return {each for each in subclasses_of(base) if not subclasses_of(each)}


def plans() -> list[Node]:
    return [case.build(*streams([Pace.SLOW] * case.inputs)).node for case in OPERATORS]


def test_the_table_has_every_operator():
    assert concrete(Operator) == {case.made_by for case in OPERATORS} | {SinkStep, _SourceStep}


def test_the_table_has_every_kind_of_step():
    used = {type(node) for node in walk(*plans())}
    assert set(FACTORIES) <= used


def test_the_table_has_every_join():
    assert {node.mode for node in walk(*plans()) if isinstance(node, Join)} == set(JoinMode)


def test_the_table_has_every_sink():
    modules = [module for module in all_modules() if module.__name__.startswith("shoal.dataflow.connectors.")]
    members = itertools.chain.from_iterable(vars(module).values() for module in modules)
    found = {each for each in members if inspect.isclass(each) and hasattr(each, "open_writer")}
    public = {each for each in found if not each.__name__.startswith("_") and not getattr(each, "_is_protocol", False)}
    assert public == {kind for kind, _build in SINKS}
