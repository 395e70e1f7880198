"""From what a user wrote to what the physical plan starts from: names, checks, rules, checks again.

`prepare` is called by `shoal.dataflow.execution.engine` before anything runs; it is the only place where sources are
asked for their columns and opaque functions are tried. `sketch` does the same without asking them, for `explain()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.core.errors import PreconditionError, ShoalError, problem
from shoal.dataflow.connectors.abilities import SupportsNamedColumns, SupportsPlaceCheck
from shoal.dataflow.errors import PlanError, describe
from shoal.dataflow.language.elements import Schema
from shoal.dataflow.language.logical import Node, Sink, Source, rewrite, walk
from shoal.dataflow.plan.facts import Answers, Facts, NoAnswers, check_columns
from shoal.dataflow.plan.optimizer import RULES, optimise
from shoal.dataflow.plan.probing import try_function
from shoal.dataflow.plan.resolve import resolve, with_uids

FindSchema = Callable[[Source], Schema | None]
Probe = Callable[[Node, Schema], Schema | None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan that can run."""

    sinks: tuple[Node, ...]
    facts: Mapping[Node, Facts] = field(repr=False)
    #: The rules that changed something, in order.
    rules: tuple[str, ...] = ()


def ask_connector(source: Source) -> Schema | None:
    """What the source's system says its columns are."""
    try:
        return source.connector.find_schema()
    except PlanError:
        raise
    except ShoalError as error:
        rule = f"could not tell its columns: {error.message}"
        raise PlanError([problem(source.connector.label, None, rule)], at=source.at, hint=error.hint) from error
    except Exception as error:  # connectors are others' code too, and call drivers that have errors of their own
        rule = f"could not tell its columns: {describe(error)}"
        raise PlanError([problem(source.connector.label, None, rule)], at=source.at) from error


class _Asked:
    """Answers from outside, each asked for once: a plan is resolved twice."""

    def __init__(self, find_schema: FindSchema, probe: Probe) -> None:
        self._find_schema = find_schema
        self._probe = probe
        self._schemas: dict[int, Schema | None] = {}
        self._probed: dict[tuple[int, str], Schema | None] = {}
        self._kept: list[object] = []  # so that no id below is used again

    def schema_of(self, source: Source) -> Schema | None:
        key = id(source.connector)
        if key not in self._schemas:
            self._kept.append(source.connector)
            self._schemas[key] = self._find_schema(source)
        return self._schemas[key]

    def probe(self, node: Node, schema: Schema) -> Schema | None:
        function = getattr(node, "function", None)
        key = (id(getattr(function, "target", None) or function), str(schema))
        if key not in self._probed:
            self._kept.append(function)
            self._probed[key] = self._probe(node, schema)
        return self._probed[key]


def prepare(
    sinks: Sequence[Node], *, find_schema: FindSchema = ask_connector, probe: Probe = try_function, rules: bool = True
) -> Prepared:
    """Check a plan and make it better. Raises `PlanError` with everything that is wrong, at the user's lines."""
    prepared = _prepare(sinks, _Asked(find_schema, probe), rules=rules)
    check_connectors(prepared.sinks, _check_place)
    return prepared


def _check_place(connector: object) -> None:
    if isinstance(connector, SupportsPlaceCheck):
        connector.check_place()


def check_connectors(sinks: Sequence[Node], check: Callable[[object], None]) -> None:
    """Check whether the connectors of sinks can be written. Raises `PlanError` for what the check refuses."""
    for node in sinks:
        if not isinstance(node, Sink):
            continue
        try:
            check(node.connector)
        except PreconditionError as error:
            label = node.connector.label
            found = problem(label, None, error.message.removeprefix(f"{label} "))
            raise PlanError([found], at=node.at, hint=error.hint) from error


def sketch(sinks: Sequence[Node], *, rules: bool = True) -> Prepared:
    """The same with what is known without asking sources or functions."""
    return _prepare(sinks, NoAnswers(), rules=rules)


def _prepare(sinks: Sequence[Node], answers: Answers, *, rules: bool) -> Prepared:
    plan, facts = _settled(with_uids(sinks), answers)
    _check_sinks(plan, facts)
    if not rules:
        return Prepared(plan, facts)
    better, found, applied = optimise(plan, facts, lambda changed: resolve(changed, answers), RULES)
    return Prepared(better, found, applied)


def _check_sinks(sinks: Sequence[Node], facts: Mapping[Node, Facts]) -> None:
    """Refuse columns that a sink was told of and its rows do not have, before anything is read or written."""
    for node in sinks:
        if not isinstance(node, Sink):
            continue
        label, connector = node.connector.label, node.connector
        named = connector.named_columns if isinstance(connector, SupportsNamedColumns) else {}
        for what, names in named.items():
            check_columns(names, facts[node].schema, at=node.at, what=f"{label}: {what}")


def _settled(sinks: tuple[Node, ...], answers: Answers) -> tuple[tuple[Node, ...], dict[Node, Facts]]:
    """The plan with what its sources answered written into them: a rule that narrows one need not ask again."""
    facts = resolve(sinks, answers)
    found = {node.uid: facts[node].schema for node in walk(*sinks) if isinstance(node, Source) and node.schema is None}
    if not any(schema is not None for schema in found.values()):
        return sinks, facts

    def settle(node: Node) -> Node:
        return replace(node, schema=found[node.uid]) if isinstance(node, Source) and node.uid in found else node

    settled = rewrite(sinks, settle)
    return settled, resolve(settled, answers)
