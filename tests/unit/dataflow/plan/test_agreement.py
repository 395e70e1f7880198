"""The engine and the reference interpreter give the same rows: of plans as written and as optimised, at any width."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.dataflow.execution.engine import run_prepared
from shoal.dataflow.language.logical import Distinct, Join, Node, walk
from shoal.dataflow.plan.prepare import prepare
from tests.unit.dataflow.plan.interpreter import as_multiset, results
from tests.unit.dataflow.plan.plans import plans


@settings(max_examples=25)
@given(plan=plans(), width=st.sampled_from([1, 3]), rules=st.booleans())
def test_rows_are_the_same(plan: list[Node], width: int, rules: bool) -> None:
    expected = results(plan)
    kinds = {type(node) for node in walk(*plan)}
    assume(expected is not None)
    assume(Join not in kinds)  # joins have tests of their own
    assume(width == 1 or Distinct not in kinds)  # which row is the first depends on the order of arrival
    prepared = prepare(plan, rules=rules)
    report = run_prepared(prepared, parallelism=width)
    assert [as_multiset(report.tables[sink.uid].to_pylist()) for sink in prepared.sinks] == expected
