"""The physical plan: stages of operator chains, and the edges between them. A pure function of the logical plan.

A stage is a set of steps that run in one task by plain calls; it is a chain mostly, and a small graph where a stream is
used twice. Each stage runs as `parallelism` tasks. An edge says how rows get from a step of one stage to a step of
another. `explain()` prints `describe`; `shoal.dataflow.execution.building` builds tasks from it. Nothing here opens
anything, and every process that has the logical plan comes to the same physical one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from shoal.core.errors import InvalidError, Problem, problem
from shoal.dataflow.connectors.abilities import SupportsSplitLimit
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.expressions.trees import Column
from shoal.dataflow.language.keys import KeyGroups
from shoal.dataflow.language.logical import (
    Aggregate,
    AssignTime,
    Custom,
    Distinct,
    Filter,
    Join,
    JoinKind,
    JoinMode,
    KeyBy,
    MapBatches,
    MapRecords,
    Merge,
    Node,
    Process,
    Project,
    Reduce,
    SideOutput,
    Sink,
    Source,
    Union,
    walk,
)
from shoal.dataflow.settings import KEY_GROUPS, PARTIAL

#: The tag of what an operator puts out ahead, as opposed to on the side.
MAIN = ""


class Exchange(enum.Enum):
    """How rows are shared out over the tasks that an edge leads to."""

    FORWARD = "forward"  # task i to task i
    HASH = "hash"  # by the key group of the key columns
    BROADCAST = "broadcast"  # to every task
    REBALANCE = "rebalance"  # batch by batch, in turn
    GATHER = "gather"  # to the one task


@dataclass(frozen=True, slots=True)
class Link:
    """An input of a step from another step of the same stage."""

    step: int
    tag: str
    port: int


class Role(enum.Enum):
    """Which part of a node's work a step does."""

    WHOLE = "whole"
    PARTIAL = "partial"  # before the exchange: rows of a key become one
    FINAL = "final"  # after it: those become the result


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of a chain."""

    uid: str
    name: str
    node: Node = field(repr=False)
    links: tuple[Link, ...] = ()
    role: Role = Role.WHOLE


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps that run in one task, in an order in which none comes before its inputs."""

    number: int
    steps: tuple[Step, ...]
    parallelism: int

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.number}:{'+'.join(step.name for step in self.steps)}"


@dataclass(frozen=True, slots=True)
class Edge:
    """From a step of one stage to a step of another."""

    source: int
    source_step: int
    tag: str
    target: int
    target_step: int
    port: int
    exchange: Exchange
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """What runs."""

    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    key_groups: int

    def inputs_of(self, stage: int) -> tuple[Edge, ...]:
        """The edges that lead to a stage, in a stable order."""
        return tuple(edge for edge in self.edges if edge.target == stage)

    def outputs_of(self, stage: int) -> tuple[Edge, ...]:
        """The edges that lead away from a stage."""
        return tuple(edge for edge in self.edges if edge.source == stage)

    @property
    def tasks(self) -> int:
        """How many tasks there are altogether."""
        return sum(stage.parallelism for stage in self.stages)


class Planned(Protocol):
    """What `shoal.dataflow.plan.prepare` makes, as far as it matters here."""

    @property
    def sinks(self) -> Sequence[Node]:
        """The plan."""
        ...


def key_groups_of(subtask: int, parallelism: int, total: int = KEY_GROUPS) -> KeyGroups:
    """The share of a task: those groups g for which `g * parallelism // total` is its number."""
    return KeyGroups(-(-subtask * total // parallelism), -(-(subtask + 1) * total // parallelism), total)


def plan(
    sinks: Sequence[Node],
    *,
    parallelism: int = 1,
    key_groups: int = KEY_GROUPS,
    widths: Mapping[str, int] | None = None,
) -> PhysicalPlan:
    """Stages and edges for a logical plan. `widths`, by uid, count more than those that the program gives its steps.

    Raises `InvalidError` for widths and identities that cannot be.
    """
    nodes = [node for node in walk(*sinks) if not isinstance(node, SideOutput)]
    uids = name_uids(nodes)
    _check_widths(nodes, parallelism, key_groups)
    draft = _Draft(parallelism, uids, widths or {})
    for node in nodes:
        draft.add(node)
    made = draft.finish(key_groups)
    for stage in made.stages:
        _check_length(stage)
    return made


#: Steps of a task call each other, and Python bounds how deep calls may go.
_MOST_STEPS = 200


def _check_length(stage: Stage) -> None:
    """Refuse a chain of more steps than can call each other in one task."""
    if len(stage.steps) <= _MOST_STEPS:
        return
    lengths: list[int] = []
    for step in stage.steps:
        lengths.append(1 + max((lengths[link.step] for link in step.links), default=0))
    longest = max(lengths)
    if longest > _MOST_STEPS:
        rule = f"is a chain of {longest} steps in one task, and {_MOST_STEPS} are the most"
        hint = "do more in one step: several columns in one with_columns(…), several things in one function"
        raise PlanError([problem("plan", None, rule)], at=stage.steps[lengths.index(longest)].node.at, hint=hint)


def name_uids(nodes: Iterable[Node]) -> dict[int, str]:
    """The identity of each node, by `id(node)`: its own, or its kind and its place among those of its kind."""
    found: dict[int, str] = {}
    places: dict[str, int] = {}
    problems: list[Problem] = []
    taken: dict[str, Node] = {}
    for node in nodes:
        kind = kind_of(node)
        places[kind] = places.get(kind, 0) + 1
        uid = node.uid or f"{kind}-{places[kind]}"
        if uid in taken:
            problems.append(problem("uid", uid, f"is used twice, at {taken[uid].at or '?'} and {node.at or '?'}"))
        taken[uid] = node
        found[id(node)] = uid
    if problems:
        raise InvalidError(problems, what="plan", hint="give each its own name with uid(…)")
    return found


def _check_widths(nodes: Iterable[Node], parallelism: int, key_groups: int) -> None:
    rule = f"must be a whole number from 1 to {key_groups}, the number of key groups"
    if not _is_width(parallelism, key_groups):
        raise PlanError([problem("parallelism", parallelism, rule)])
    wrong = [node for node in nodes if node.parallelism and not _is_width(node.parallelism, key_groups)]
    if wrong:
        at = wrong[0].parallelism_at or wrong[0].at
        named = [problem(f"parallelism of the {kind_of(node)}", node.parallelism, rule) for node in wrong]
        raise PlanError(named, at=at)


def _is_width(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


# ---------------------------------------------------------------------------------------------------------
# What each node asks of its inputs


@dataclass(frozen=True, slots=True)
class Need:
    """How an input has to arrive."""

    exchange: Exchange
    keys: tuple[str, ...] = ()


_FORWARD = Need(Exchange.FORWARD)
_GATHER = Need(Exchange.GATHER)


def needs_of(node: Node) -> tuple[Need, ...]:
    """What a node asks of each of its inputs."""
    match node:
        case KeyBy(keys=keys) | Aggregate(keys=keys) | Reduce(keys=keys) | Process(keys=keys):
            return (_by(keys),)
        case Distinct(columns=columns):
            return (_by(columns),)
        case Custom(keys=keys):
            return (_by(keys) if keys else _FORWARD,) * max(1, len(node.inputs))
        case Join(mode=JoinMode.BROADCAST):
            return (_FORWARD, Need(Exchange.BROADCAST))
        case Join(left_keys=left, right_keys=right):
            return (_by(left), _by(right))
        case Merge():
            return (_GATHER,) * len(node.inputs)
        case _:
            return (_FORWARD,) * len(node.inputs)


def _by(keys: tuple[str, ...]) -> Need:
    return Need(Exchange.HASH, keys) if keys else _GATHER


def partitioned_by(node: Node) -> tuple[str, ...] | None:
    """The columns that decide which task a row that comes out of a node is in; None when nothing is known.

    What a user's function made of its rows is not known, that of a reduction neither. Event time that is named here is
    each task's own: a step that uses it has to hear of all of them, and that takes an exchange.
    """
    match node:
        case AssignTime() | Reduce() | SideOutput(port=1):  # that has the keys of the other side
            return None
        case Join(kind=JoinKind.INNER | JoinKind.LEFT, left_keys=keys) if node.mode is not JoinMode.BROADCAST:
            return keys or None
        case _:
            return ordered_by(node, partitioned_by)


Asked: TypeAlias = Callable[[Node], tuple[str, ...] | None]


def ordered_by(node: Node, asked: Asked | None = None) -> tuple[str, ...] | None:
    """The columns whose rows have to stay in one task for changes to stay in their order; None when there are none."""
    asked = asked or ordered_by
    match node:
        case KeyBy(keys=keys) | Aggregate(keys=keys) | Reduce(keys=keys):
            return keys or None
        case Distinct(columns=columns):
            return columns or None
        case Filter() | AssignTime() | SideOutput():
            return asked(node.inputs[0])
        case Project():
            before = asked(node.inputs[0])
            names = [_name_behind(node, key) for key in before or ()]
            return tuple(name for name in names if name) if names and all(names) else None
        case _:
            return None


def _name_behind(node: Project, key: str) -> str:
    """What a column is called behind a projection; empty when it is no longer there."""
    made = {named.name: named.expression for named in node.columns}
    if key not in made and node.keep_others:
        return key
    same = [name for name, expression in made.items() if isinstance(expression, Column) and expression.name == key]
    return key if key in same else next(iter(same), "")


# ---------------------------------------------------------------------------------------------------------
# Stages


@dataclass(slots=True)
class _Place:
    """Where a node has ended up."""

    stage: int
    step: int


class _Draft:
    """A plan being made: nodes come in order, inputs first."""

    def __init__(self, parallelism: int, uids: Mapping[int, str], asked: Mapping[str, int]) -> None:
        self._parallelism = parallelism
        self._uids = uids
        self._asked = asked
        self._places: dict[int, _Place] = {}
        self._stages: list[list[Step]] = []
        self._widths: list[int] = []
        self._edges: list[Edge] = []

    def add(self, node: Node) -> None:
        """Put a node behind its inputs: into their stage if it can be, else into one of its own."""
        producers = [_producer(each) for each in node.inputs]
        needs = needs_of(node)
        width = self._width(node, producers, needs)
        kinds = [self._exchange(each, producer, width) for each, (producer, _tag) in zip(needs, producers, strict=True)]
        stages = {self._places[id(producer)].stage for producer, _tag in producers}
        if len(stages) == 1 and all(kind.exchange is Exchange.FORWARD for kind in kinds):
            self._chain(node, producers, stages.pop())
        elif isinstance(node, Aggregate) and node.partial:
            self._add_in_two(node, producers, kinds, width)
        else:
            self._begin_stage(node, producers, kinds, width)

    def finish(self, key_groups: int) -> PhysicalPlan:
        """The plan."""
        stages = (
            Stage(number, tuple(steps), width)
            for number, (steps, width) in enumerate(zip(self._stages, self._widths, strict=True))
        )
        return PhysicalPlan(tuple(stages), tuple(self._edges), key_groups)

    def _chain(self, node: Node, producers: list[tuple[Node, str]], stage: int, role: Role = Role.WHOLE) -> None:
        links = tuple(
            Link(self._places[id(producer)].step, tag, port) for port, (producer, tag) in enumerate(producers)
        )
        self._place(node, stage, links, role)

    def _add_in_two(self, node: Node, producers: list[tuple[Node, str]], kinds: list[Need], width: int) -> None:
        """A part of the work goes to the end of the stage before, so that less goes through the exchange."""
        self._chain(node, producers, self._places[id(producers[0][0])].stage, Role.PARTIAL)
        self._begin_stage(node, [(node, MAIN)], kinds, width, Role.FINAL)

    def _begin_stage(
        self,
        node: Node,
        producers: list[tuple[Node, str]],
        kinds: list[Need],
        width: int,
        role: Role = Role.WHOLE,
    ) -> None:
        stage = len(self._stages)
        self._stages.append([])
        self._widths.append(width)
        for port, ((producer, tag), kind) in enumerate(zip(producers, kinds, strict=True)):
            origin = self._places[id(producer)]
            self._edges.append(Edge(origin.stage, origin.step, tag, stage, 0, port, kind.exchange, kind.keys))
        self._place(node, stage, (), role)

    def _place(self, node: Node, stage: int, links: tuple[Link, ...], role: Role) -> None:
        steps = self._stages[stage]
        self._places[id(node)] = _Place(stage, len(steps))
        uid, name = self._uids[id(node)], label_of(node)
        if role is Role.PARTIAL:
            uid, name = f"{uid}{PARTIAL}", f"partial {name}"
        steps.append(Step(uid, name, node, links, role))

    def _width(self, node: Node, producers: list[tuple[Node, str]], needs: tuple[Need, ...]) -> int:
        if any(need.exchange is Exchange.GATHER for need in needs):
            return 1  # rows without a key meet in one task, whatever was asked for
        asked = self._asked.get(self._uids[id(node)]) or node.parallelism
        if asked:
            return asked
        if isinstance(node, Source):
            most = node.connector.most_splits if isinstance(node.connector, SupportsSplitLimit) else None
            return self._parallelism if most is None else max(1, min(self._parallelism, most))
        if any(need.exchange is Exchange.HASH for need in needs):
            return self._parallelism
        return max(
            self._widths[self._places[id(producer)].stage]
            for (producer, _tag), need in zip(producers, needs, strict=True)
            if need.exchange is Exchange.FORWARD
        )

    def _exchange(self, need: Need, producer: Node, width: int) -> Need:
        """What is needed, or what does the same with less."""
        before = self._widths[self._places[id(producer)].stage]
        if before == width == 1:
            return _FORWARD
        if need.exchange is Exchange.HASH:
            return _FORWARD if before == width and partitioned_by(producer) == need.keys else need
        if need.exchange is not Exchange.FORWARD or before == width:
            return need
        if width == 1:
            return _GATHER
        keys = ordered_by(producer)  # changes of one key have to stay in their order
        return Need(Exchange.HASH, keys) if keys else Need(Exchange.REBALANCE)


def _producer(node: Node) -> tuple[Node, str]:
    """The operator that a node's rows come out of, and whether ahead or on the side."""
    return (node.inputs[0], node.tag) if isinstance(node, SideOutput) else (node, MAIN)


# ---------------------------------------------------------------------------------------------------------
# For people

_KINDS: Mapping[type[Node], str] = {
    AssignTime: "assign-time",
    KeyBy: "key-by",
    MapBatches: "map",
    MapRecords: "records",
    Project: "select",
}


def kind_of(node: Node) -> str:
    """The word for a kind of node."""
    return _KINDS.get(type(node)) or type(node).__name__.lower()


def label_of(node: Node) -> str:
    """A node in one or two words."""
    match node:
        case Source() | Sink():
            detail = str(node.connector.label or type(node.connector).__name__)
        case MapBatches() | MapRecords() | Process() | Reduce():
            detail = node.function.label
        case KeyBy(keys=keys) | Aggregate(keys=keys):
            detail = ", ".join(keys)
        case Join():
            detail = f"{node.kind.value} {node.mode.value}"
        case Union():
            detail = ""
        case _:
            detail = ""
    return f"{kind_of(node)}({detail})" if detail else kind_of(node)


def describe(prepared: Planned, parallelism: int = 1, *, key_groups: int = KEY_GROUPS) -> str:
    """The physical plan of a prepared logical one, for people."""
    return describe_plan(plan(prepared.sinks, parallelism=parallelism, key_groups=key_groups))


def describe_plan(physical: PhysicalPlan) -> str:
    """A physical plan, for people: each stage with its steps and where their rows go."""
    lines: list[str] = []
    for stage in physical.stages:
        tasks = "1 task" if stage.parallelism == 1 else f"{stage.parallelism} tasks"
        lines.append(f"stage {stage.number}: {tasks}")
        lines += [f"  {step.name}  [{step.uid}]{_from(stage, index)}" for index, step in enumerate(stage.steps)]
        lines += [
            f"  -> {_way(edge)} -> stage {edge.target}{_port(edge)}" for edge in physical.outputs_of(stage.number)
        ]
    return "\n".join(lines)


def _from(stage: Stage, index: int) -> str:
    """Where a step's rows come from, when that is not simply the step above it."""
    links = stage.steps[index].links
    if not links or (len(links) == 1 and links[0].step == index - 1 and links[0].tag == MAIN):
        return ""
    names = (f"{stage.steps[link.step].uid}{':' + link.tag if link.tag else ''}" for link in links)
    return f"  <- {', '.join(names)}"


def _way(edge: Edge) -> str:
    side = f"{edge.tag}: " if edge.tag else ""
    return f"{side}{edge.exchange.value}" + (f" by {', '.join(edge.keys)}" if edge.keys else "")


def _port(edge: Edge) -> str:
    return f" (input {edge.port + 1})" if edge.port else ""
