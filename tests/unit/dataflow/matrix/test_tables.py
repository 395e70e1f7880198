"""What Shoal has and the tables of the matrix do not fails here: every operator, kind of step, join and sink."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil

import shoal.dataflow
from shoal.dataflow.execution.building import _SourceStep
from shoal.dataflow.execution.factories import FACTORIES
from shoal.dataflow.execution.sinks import SinkStep
from shoal.dataflow.language.logical import Join, JoinMode, Node, walk
from shoal.dataflow.operators.base import StepOperator
from tests.unit.dataflow.matrix.cases import OPERATORS, SINKS
from tests.unit.dataflow.matrix.stalls import Pace, streams


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
    assert concrete(StepOperator) == {case.made_by for case in OPERATORS} | {SinkStep, _SourceStep}


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
    assert public == {case.kind for case in SINKS}
