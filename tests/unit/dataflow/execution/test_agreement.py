"""Plans with joins, windows, unions, groups and distinct give what a naive reading gives, with every rule and none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dataflow.connectors.memory import CollectSink
from shoal.dataflow.execution.engine import run_prepared
from shoal.dataflow.language.logical import Node, Sink
from shoal.dataflow.plan.optimizer import RULES, Rule, optimise
from shoal.dataflow.plan.prepare import Prepared, prepare
from shoal.dataflow.plan.resolve import resolve
from shoal.dataflow.settings import FlowSettings
from tests.unit.dataflow.execution.timed_plans import Flow, timed_plans


def sink(flow: Flow) -> list[Node]:
    return [Sink(inputs=(flow.stream.select("key", "value", "time").node,), connector=CollectSink(), uid="out")]


def expected(flow: Flow) -> list[str]:
    return sorted(repr((row["key"], row["value"], row["time"])) for _time, row in flow.rows)


def rows_of(prepared: Prepared, width: int, batch_rows: int = 16_384) -> list[str]:
    report = run_prepared(prepared, parallelism=width, settings=FlowSettings(batch_rows=batch_rows))
    return sorted(repr(tuple(row.values())) for row in report.tables["out"].to_pylist())


@settings(max_examples=60, deadline=None)
@given(flow=timed_plans(), width=st.sampled_from([1, 3]), batch_rows=st.sampled_from([1, 3, 16_384]))
def test_all_rules_together(flow: Flow, width: int, batch_rows: int) -> None:
    assert rows_of(prepare(sink(flow)), width, batch_rows) == expected(flow)


@settings(max_examples=40, deadline=None)
@given(flow=timed_plans(), width=st.sampled_from([1, 3]))
def test_no_rule_at_all(flow: Flow, width: int) -> None:
    assert rows_of(prepare(sink(flow), rules=False), width) == expected(flow)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name.replace(" ", "-"))
@settings(max_examples=12, deadline=None)
@given(flow=timed_plans(), width=st.sampled_from([1, 3]))
def test_each_rule_alone(rule: Rule, flow: Flow, width: int) -> None:
    naive = prepare(sink(flow), rules=False)
    plan, facts, _applied = optimise(naive.sinks, naive.facts, _resolved, [rule])
    assert rows_of(Prepared(plan, facts), width) == expected(flow)


def _resolved(plan: tuple[Node, ...]) -> Any:
    return resolve(plan)
