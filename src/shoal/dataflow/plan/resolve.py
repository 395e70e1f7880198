"""Checks a whole plan and says what is known of every node. Pure: what sources and functions answered comes in.

Called by `shoal.dataflow.plan.prepare` before a run and by `explain`. Every problem of a plan is in the one
`PlanError`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.core.errors import Problem, problem
from shoal.dataflow.connectors.abilities import takes_hidden
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.logical import (
    Aggregate,
    AssignTime,
    Custom,
    Distinct,
    Filter,
    Join,
    JoinMode,
    KeyBy,
    MapBatches,
    MapRecords,
    Merge,
    Node,
    OnError,
    Process,
    Project,
    Reduce,
    SideOutput,
    Sink,
    Source,
    Union,
    readers,
    rewrite,
    walk,
)
from shoal.dataflow.language.windows import CountWindow, Window
from shoal.dataflow.plan.facts import Answers, Facts, NoAnswers
from shoal.dataflow.plan.inference import infer, policy_of, side_facts

#: Steps that hand on rows without a look at their time.
_ROW_WISE = (Filter, KeyBy, MapBatches, MapRecords, Merge, Project, Union)


def resolve(sinks: Sequence[Node], answers: Answers | None = None) -> dict[Node, Facts]:
    """The facts of every node. Raises `PlanError` with everything that is wrong."""
    if not sinks:
        hint = 'end it with a sink, such as .to_kafka("results") or .to_parquet("results/")'
        raise PlanError([problem("plan", None, "has no sink: its results would go nowhere")], hint=hint)
    facts: dict[Node, Facts] = {}
    errors: list[PlanError] = []
    for node in walk(*sinks):
        inputs = [facts[each] for each in node.inputs]
        try:
            found = infer(node, inputs, answers or NoAnswers())
            if isinstance(node, SideOutput):
                found = side_facts(node, found, _before(node, facts))
            facts[node] = found
        except PlanError as error:
            errors.append(error)
            facts[node] = _after_error(inputs)
    errors += _plan_errors(sinks)
    if errors:
        raise _combined(errors)
    return _with_needs(sinks, facts)


def _before(node: SideOutput, facts: Mapping[Node, Facts]) -> list[Facts]:
    """The facts of what went into the node that this is a side output of."""
    return [facts[each] for each in node.inputs[0].inputs]


def _after_error(inputs: Sequence[Facts]) -> Facts:
    """Behind a mistake nothing is known, so that the same mistake is not told twice."""
    return Facts(None, bounded=all(each.bounded for each in inputs), time=True)


def _combined(errors: Sequence[PlanError]) -> PlanError:
    if len(errors) == 1:
        return errors[0]
    problems = [
        Problem(f"{error.at}: {each.field}" if error.at else each.field, each.value, each.rule)
        for error in errors
        for each in error.problems
    ]
    return PlanError(problems, hint="; ".join(dict.fromkeys(error.hint for error in errors if error.hint)))


def _plan_errors(sinks: Sequence[Node]) -> list[PlanError]:
    """What is wrong with how nodes stand to each other."""
    nodes = list(walk(*sinks))
    errors = _uid_errors(nodes)
    errors += [
        PlanError([problem("plan", type(sink).__name__, "must end in sinks")], at=sink.at)
        for sink in sinks
        if not isinstance(sink, Sink)
    ]
    heard = {(each.inputs[0], each.tag) for each in nodes if isinstance(each, SideOutput)}
    errors += [
        PlanError(
            [problem("on_error", "side", "rows that fail go to the side output 'errors', and nobody reads it")],
            at=node.at,
            hint='read it: stream.side_output("errors").to_parquet("errors/"), or say on_error="skip" to drop them',
        )
        for node in nodes
        if policy_of(node) is OnError.SIDE and (node, "errors") not in heard
    ]
    return errors


def _uid_errors(nodes: Sequence[Node]) -> list[PlanError]:
    named: dict[str, list[Node]] = {}
    for node in nodes:
        if node.uid:
            named.setdefault(node.uid, []).append(node)
    errors = []
    for uid, alike in named.items():
        if len(alike) > 1:
            first = f", the first of them at {alike[0].at}" if alike[0].at is not None else ""
            rule = f"is the name of {len(alike)} steps{first}; each needs its own"
            errors.append(PlanError([problem("uid", uid, rule)], at=alike[-1].at))
    return errors


# ---------------------------------------------------------------------------------------------------------
# Who needs event time


def _with_needs(sinks: Sequence[Node], facts: Mapping[Node, Facts]) -> dict[Node, Facts]:
    """Marks the nodes whose rows have to carry their event time, because a step behind reads it."""
    behind = readers(sinks)
    needs: dict[Node, bool] = {}
    for node in reversed(list(walk(*sinks))):
        needs[node] = facts[node].time and any(_reads_time(each, node, needs) for each in behind[node])
    return {node: replace(facts[node], needs_time=needs[node]) for node in facts}


def _reads_time(reader: Node, node: Node, needs: Mapping[Node, bool]) -> bool:
    """Whether a node reads the event time of its input, for itself or for those behind it."""
    match reader:
        case Sink():
            return takes_hidden(reader.connector) and not _is_only_stamped(node)
        case AssignTime() | MapBatches(flat=True):
            return False
        case Process() | Custom():
            return True
        case Join():
            return _join_reads_time(reader, node, needs)
        case Aggregate() | Reduce():
            return _is_timed(reader.window) or (reader.window is not None and needs[reader])
        case Distinct():
            return _is_timed(reader.window) or bool(reader.ttl) or needs[reader]
        case _:
            return needs[reader]


def _is_only_stamped(node: Node) -> bool:
    """Whether event time is nothing but the timestamps of records, which nobody named and nothing before has used.

    To read and write them record by record takes longer than all the rest of a simple program, so a sink does not ask
    for them: its records get the time of their append. Records that say their event time in a header keep it.
    """
    if isinstance(node, Source):
        return node.time is not None and not node.time.column
    return isinstance(node, _ROW_WISE) and all(map(_is_only_stamped, node.inputs))


def _is_timed(window: Window | None) -> bool:
    return window is not None and not isinstance(window, CountWindow)


def _join_reads_time(join: Join, node: Node, needs: Mapping[Node, bool]) -> bool:
    if join.mode in (JoinMode.TABLE, JoinMode.BROADCAST):
        return needs[join] and node is join.inputs[0]
    return join.mode is not JoinMode.REGULAR or bool(join.ttl) or needs[join]


# ---------------------------------------------------------------------------------------------------------
# Names of state

_WORDS: dict[str, str] = {"assigntime": "assign-time", "keyby": "key-by", "mapbatches": "map", "maprecords": "records"}


def kind_of(node: Node) -> str:
    """The word for a kind of node."""
    word = type(node).__name__.lower()
    return "select" if word == "project" else _WORDS.get(word, word)


def with_uids(sinks: Sequence[Node]) -> tuple[Node, ...]:
    """The plan with a name for every node: the user's, or its kind and its place among those of its kind.

    Uids are assigned before any rule runs, so that a better optimizer never loses a job's state.
    """
    taken = {node.uid for node in walk(*sinks) if node.uid}
    places: Counter[str] = Counter()

    def name(node: Node) -> Node:
        if node.uid:
            return node
        kind = kind_of(node)
        places[kind] += 1
        while f"{kind}-{places[kind]}" in taken:
            places[kind] += 1
        return replace(node, uid=f"{kind}-{places[kind]}")

    return rewrite(sinks, name)
