"""Which operator does a node's work: the mapping from logical nodes to operators.

Called by `shoal.dataflow.execution.building` when it builds a task. Sources, sinks and steps that only say where rows
go are built there. Expressions are bound here, once for each task; where the columns are known only at run, by the
first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial as partially
from typing import Any, TypeAlias

from shoal.core.errors import UnsupportedError
from shoal.dataflow.errors import Location, refuse
from shoal.dataflow.execution.event_time import to_micros
from shoal.dataflow.language.binding import Bound, bind, bind_predicate
from shoal.dataflow.language.elements import CHANGE, Batch, Schema
from shoal.dataflow.language.expressions.trees import Expression, columns_of, describe
from shoal.dataflow.language.functions import callable_of
from shoal.dataflow.language.logical import (
    Aggregate,
    Custom,
    Distinct,
    Filter,
    FunctionRef,
    Join,
    JoinMode,
    MapBatches,
    MapRecords,
    Merge,
    Node,
    OnError,
    Process,
    Project,
    Reduce,
)
from shoal.dataflow.language.windows import CountWindow, Firing, SessionWindow, SlidingWindow, Window
from shoal.dataflow.operators import distinct, merge, partial, running, stateless
from shoal.dataflow.operators.base import StepOperator
from shoal.dataflow.operators.counts import CountAggregate
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.joins.asof import AsOfJoin
from shoal.dataflow.operators.joins.interval import IntervalJoin
from shoal.dataflow.operators.joins.lookup import BroadcastJoin, TableJoin
from shoal.dataflow.operators.joins.regular import RegularJoin
from shoal.dataflow.operators.joins.unique import UniqueJoin
from shoal.dataflow.operators.joins.window import WindowJoin
from shoal.dataflow.operators.policies import ErrorPolicy
from shoal.dataflow.operators.sessions.aggregate import SessionAggregate
from shoal.dataflow.operators.users import opaque, records
from shoal.dataflow.operators.users.custom import CustomOperator
from shoal.dataflow.operators.users.own import UserOperator
from shoal.dataflow.operators.users.process import ProcessOperator
from shoal.dataflow.operators.windows.aggregate import WindowAggregate
from shoal.dataflow.operators.windows.stored import StoredWindowAggregate
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.physical import Role, kind_of


@dataclass(frozen=True, slots=True)
class Work:
    """What an operator is made for: a node, what is known of its inputs and its output, and its part of the work."""

    node: Any
    inputs: Sequence[Facts]
    facts: Facts
    role: Role
    #: Where state of process functions and windows lies, and rows of joins: memory or rocks.
    state: str = "memory"
    #: Whether the steps behind a merge tell its inputs apart again.
    keep_apart: bool = False

    @property
    def schema(self) -> Schema | None:
        """The columns of the first input; None when only a run can tell."""
        return self.inputs[0].schema


Factory: TypeAlias = Callable[[Work], StepOperator]


def make_operator(work: Work) -> StepOperator:
    """A new operator for a node; each task has its own."""
    factory = FACTORIES.get(type(work.node))
    if factory is None:
        raise UnsupportedError(f"there is no operator for {kind_of(work.node)}", at=work.node.at or "")
    return factory(work)


class _BoundLater:
    """An expression that is bound to the columns of the first batch."""

    def __init__(self, expression: Expression, at: Location | None, bound: Callable[..., Bound]) -> None:
        self._expression = expression
        self._at = at
        self._bind = bound
        self._bound: Bound | None = None

    def evaluate(self, batch: Batch) -> Any:
        if self._bound is None:
            self._bound = self._bind(self._expression, batch.schema, at=self._at)
        return self._bound.evaluate(batch)


def _bound(expression: Expression, work: Work, how: Callable[..., Bound] = bind) -> Any:
    if work.schema is None:
        return _BoundLater(expression, work.node.at, how)
    return how(expression, work.schema, at=work.node.at)


def _policy(on_error: OnError, function: FunctionRef, at: Location | None) -> ErrorPolicy:
    return ErrorPolicy(on_error, function.label, at)


def _filter(work: Work) -> StepOperator:
    node: Filter = work.node
    if isinstance(node.predicate, Expression):
        policy = ErrorPolicy(node.on_error, describe(node.predicate), node.at)
        predicate = _bound(node.predicate, work, bind_predicate)
        return stateless.Filter(predicate=predicate, policy=policy, reads=columns_of(node.predicate))
    policy = _policy(node.on_error, node.predicate, node.at)
    return opaque.FilterBatches(function=callable_of(node.predicate), policy=policy)


def _project(work: Work) -> StepOperator:
    node: Project = work.node
    columns = [(named.name, _bound(named.expression, work)) for named in node.columns]
    carried = (CHANGE,) if work.facts.changes else ()  # behind `changes_as_rows` they are no changes any more
    return stateless.Project(
        columns=columns,
        keep_others=node.keep_others,
        carried=carried,
        policy=ErrorPolicy(node.on_error, "select", node.at),
        reads={named.name: columns_of(named.expression) for named in node.columns},
    )


def _map(work: Work) -> StepOperator:
    node: MapBatches = work.node
    return opaque.MapBatches(
        function=callable_of(node.function),
        schema=work.facts.schema,
        is_flat=node.flat,
        column=node.function.reads,
        policy=_policy(node.on_error, node.function, node.at),
        time=_time_column(work.inputs[0]),
    )


def _time_column(facts: Facts) -> opaque.TimeColumn | None:
    """The column that rows have their event time in, where they carry it."""
    time = facts.time_from
    if time is None or not facts.needs_time:
        return None
    return opaque.TimeColumn(time.column, partially(to_micros, unit=time.unit))


def _records(work: Work) -> StepOperator:
    node: MapRecords = work.node
    return records.MapRecords(
        function=callable_of(node.function),
        kind=node.kind,
        schema=work.facts.schema,
        policy=_policy(node.on_error, node.function, node.at),
    )


def _distinct(work: Work) -> StepOperator:
    node: Distinct = work.node
    return distinct.Distinct(columns=node.columns, window=node.window, firing=node.firing, ttl=node.ttl)


def _aggregate(work: Work) -> StepOperator:
    node: Aggregate = work.node
    grouping = Grouping(
        keys=node.keys,
        aggregations=node.aggregations,
        is_partial=work.role is Role.FINAL,
        emits_time=work.facts.needs_time,
    )
    if work.role is Role.PARTIAL:
        window = node.window if isinstance(node.window, SlidingWindow) else None
        return partial.PartialAggregate(grouping=grouping, window=window)
    return _grouped(grouping, node.window, node.firing, work)


def _reduce(work: Work) -> StepOperator:
    node: Reduce = work.node
    grouping = Grouping(keys=node.keys, function=callable_of(node.function), emits_time=work.facts.needs_time)
    return _grouped(grouping, node.window, node.firing, work)


def _grouped(grouping: Grouping, window: Window | None, firing: Firing, work: Work) -> StepOperator:
    match window:
        case None:
            return running.RunningAggregate(
                grouping=grouping, emits_changes=work.facts.changes, takes_changes=work.inputs[0].changes
            )
        case SlidingWindow() if work.state == "rocks" and firing == Firing():
            return StoredWindowAggregate(grouping=grouping, window=window)
        case SlidingWindow():
            return WindowAggregate(grouping=grouping, window=window, firing=firing)
        case SessionWindow():
            return SessionAggregate(grouping=grouping, window=window, firing=firing)
        case CountWindow():
            return CountAggregate(grouping=grouping, window=window)


def _process(work: Work) -> StepOperator:
    node: Process = work.node
    return ProcessOperator(
        function=callable_of(node.function),
        keys=node.keys,
        schema=work.facts.schema,
        policy=_policy(node.on_error, node.function, node.at),
        state=work.state,
    )


def _custom(work: Work) -> StepOperator:
    node: Custom = work.node
    target = callable_of(node.factory)
    made: Any = target if isinstance(target, UserOperator) and not isinstance(target, type) else target()
    if isinstance(made, StepOperator):
        return made
    return CustomOperator(
        factory=made,
        schema=work.facts.schema,
        emits_time=work.facts.needs_time,
        time=_time_column(work.inputs[0]) if len(work.inputs) == 1 else None,
    )


def _merge(work: Work) -> StepOperator:
    node: Merge = work.node
    return merge.Merge(by=node.by, ports=len(node.inputs), schema=work.facts.schema, keep_apart=work.keep_apart)


def _join(work: Work) -> StepOperator:
    node: Join = work.node
    left, right = work.inputs[0].schema, work.inputs[1].schema
    if left is None or right is None:
        hint = "say them where the function is: map(…, schema=pa.schema([...]))"
        raise refuse("join", None, "the columns of both inputs must be known before it runs", at=node.at, hint=hint)
    settings: dict[str, Any] = {
        "kind": node.kind,
        "left": left,
        "right": right,
        "left_keys": node.left_keys,
        "right_keys": node.right_keys,
        "suffix": node.suffix,
    }
    match node.mode:
        case JoinMode.REGULAR if node.right_is_unique:
            return UniqueJoin(**settings)
        case JoinMode.REGULAR:
            return RegularJoin(emits_changes=work.facts.changes, ttl=node.ttl, state=work.state, **settings)
        case JoinMode.WINDOW if isinstance(node.window, SlidingWindow):
            return WindowJoin(window=node.window, emits_time=work.facts.needs_time, state=work.state, **settings)
        case JoinMode.INTERVAL:
            return IntervalJoin(lower=node.lower, upper=node.upper, state=work.state, **settings)
        case JoinMode.ASOF:
            return AsOfJoin(tolerance=node.tolerance, direction=node.direction, **settings)
        case JoinMode.TABLE:
            return TableJoin(waits=work.inputs[1].bounded, **settings)
        case JoinMode.BROADCAST:
            return BroadcastJoin(waits=work.inputs[1].bounded, **settings)
    raise refuse("window", node.window, "must be a tumbling or a sliding one for a join", at=node.at)


FACTORIES: dict[type[Node], Factory] = {
    Aggregate: _aggregate,
    Custom: _custom,
    Distinct: _distinct,
    Filter: _filter,
    Join: _join,
    MapBatches: _map,
    MapRecords: _records,
    Merge: _merge,
    Process: _process,
    Project: _project,
    Reduce: _reduce,
}
"""A factory for each kind of node."""
