"""Rules that move and merge steps: constants folded, filters and event time nearer to sources, neighbours made one.

Called by `shoal.dataflow.plan.optimizer`. Expressions are pure, so what matters is which rows they see: a predicate
that can fail on a row (a cast, an overflow) is never shown rows that it would not have seen as written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeGuard

from shoal.core.errors import ShoalError
from shoal.dataflow.language.binding import constant_value
from shoal.dataflow.language.expressions import datatypes
from shoal.dataflow.language.expressions.kernels import KERNELS
from shoal.dataflow.language.expressions.trees import (
    Call,
    Column,
    Expression,
    Literal,
    Named,
    columns_of,
    conjunction,
    conjuncts,
    parts_of,
    same,
    substitute,
    why_too_large,
)
from shoal.dataflow.language.logical import (
    AssignTime,
    Filter,
    Join,
    JoinKind,
    JoinMode,
    KeyBy,
    Node,
    OnError,
    Project,
    Source,
    Union,
    exchange_node,
    readers,
    rewrite,
    walk,
)
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.joining import output_columns

Sinks = tuple[Node, ...]
Known = Mapping[Node, Facts]

#: Filters are put together up to so many parts. More in one save nothing, and make a plan of many slow to find.
_MOST_CONJUNCTS = 64


def is_total(expression: Expression) -> bool:
    """Whether no row can make it fail."""
    return all(KERNELS[each.function].is_total for each in parts_of(expression) if isinstance(each, Call))


def _until_done(sinks: Sinks, step: Callable[[Sinks], Sinks]) -> Sinks:
    """Take single steps while there are any."""
    while True:
        after = step(sinks)
        if after is sinks:
            return sinks
        sinks = after


def _merge_neighbours(sinks: Sinks, merge: Callable[[Node, Node], Node | None]) -> Sinks:
    """Put one node in the place of two, where the second alone reads the first, all along a plan in one go.

    `merge` gets what has become of the first, which may be several already, and returns None where both have to stay.
    """
    behind = readers(sinks)
    done: dict[Node, Node] = {}
    for node in walk(*sinks):
        inputs = tuple(done[each] for each in node.inputs)
        moved = any(new is not old for new, old in zip(inputs, node.inputs, strict=True))
        made = replace(node, inputs=inputs) if moved else node
        both = merge(inputs[0], made) if len(inputs) == 1 and _only_reader(behind, node.inputs[0]) else None
        done[node] = made if both is None else both
    return tuple(done[each] for each in sinks)


def _only_reader(behind: Mapping[Node, list[Node]], node: Node) -> bool:
    return len(behind[node]) == 1


def _is_free(node: Node) -> bool:
    """Whether the user set nothing about how this step runs. A step with such settings stays in its place."""
    return node.parallelism is None and not node.memory and not node.cpu


# ---------------------------------------------------------------------------------------------------------
# Constants


def fold_constants(sinks: Sinks, facts: Known) -> Sinks:
    """What is the same for all rows is worked out once. A filter that lets everything through is dropped."""

    def change(node: Node) -> Node:
        if isinstance(node, Project):
            columns = tuple(Named(fold(each.expression), each.name) for each in node.columns)
            unchanged = all(new.expression is old.expression for new, old in zip(columns, node.columns, strict=True))
            return node if unchanged else replace(node, columns=columns)
        if isinstance(node, Filter) and isinstance(node.predicate, Expression):
            predicate = fold(node.predicate)
            if same(predicate, Literal(True)) and node.on_error is not OnError.SIDE and _is_free(node):
                return node.inputs[0]
            return node if predicate is node.predicate else replace(node, predicate=predicate)
        return node

    return rewrite(sinks, change)


def fold(expression: Expression) -> Expression:
    """The expression with its constant parts worked out; itself when there are none."""
    if not isinstance(expression, Call):
        return expression
    arguments = tuple(fold(each) for each in expression.arguments)
    if any(new is not old for new, old in zip(arguments, expression.arguments, strict=True)):
        expression = Call(expression.function, arguments)
    simpler = _simplified(expression)
    if simpler is not None:
        return simpler
    return expression if columns_of(expression) else _worked_out(expression)


def _worked_out(call: Call) -> Expression:
    """The constant that a call is, if it is one of the same type: a literal cannot be an int8."""
    try:
        value = constant_value(call)
        result = Literal(value.as_py())
        return result if datatypes.literal_type(result.value) == value.type else call
    except (ShoalError, ArithmeticError, TypeError, ValueError):  # what Arrow raises is a ValueError, too
        return call  # it fails when it runs, with the rows at hand


def _simplified(call: Call) -> Expression | None:
    """`x & True` is x, `x | True` is True, `~~x` is x."""
    match call:
        case Call("and" | "or", (one, other)):
            keeps = call.function == "and"  # the constant that leaves the other side as it is
            for constant, rest in ((one, other), (other, one)):
                if isinstance(constant, Literal) and isinstance(constant.value, bool):
                    return rest if constant.value is keeps else constant
        case Call("not", (Call("not", (inner,)),)):
            return inner
    return None


# ---------------------------------------------------------------------------------------------------------
# Filters


def merge_filters(sinks: Sinks, facts: Known) -> Sinks:
    """Two filters in a row become one, if the second cannot fail on what the first keeps from it."""

    def merged(before: Node, node: Node) -> Node | None:
        match before, node:
            case Filter(predicate=Expression() as first), Filter(predicate=Expression() as second):
                alike = node.on_error is before.on_error is OnError.FAIL
                if alike and is_total(second) and _is_free(before):
                    parts = (*conjuncts(first), *conjuncts(second))
                    both = conjunction(parts)
                    fits = len(parts) <= _MOST_CONJUNCTS and not why_too_large(both)
                    return replace(node, predicate=both, inputs=before.inputs) if fits else None
        return None

    return _merge_neighbours(sinks, merged)


def push_filters(sinks: Sinks, facts: Known) -> Sinks:
    """Filters go nearer to the sources, across steps that emit the same rows either way."""
    names = {node.uid: None if known.schema is None else tuple(known.schema.names) for node, known in facts.items()}

    def step(plan: Sinks) -> Sinks:
        behind = readers(plan)
        for node in walk(*plan):
            if _is_movable(node) and _only_reader(behind, node.inputs[0]):
                moved = _through_projects(node, behind) or _pushed(node, node.inputs[0], names)
                if moved is not None:
                    return exchange_node(plan, node, moved)
        return plan

    return _until_done(sinks, step)


def _is_movable(node: Node) -> TypeGuard[Filter]:
    return (
        isinstance(node, Filter)
        and isinstance(node.predicate, Expression)
        and node.on_error is OnError.FAIL
        and _is_free(node)
    )


Names = Mapping[str, tuple[str, ...] | None]


def _pushed(node: Filter, before: Node, names: Names) -> Node | None:
    """What stands in the place of the filter and the node before it, or None when they cannot change places."""
    match before:
        case KeyBy():
            return replace(before, inputs=(replace(node, inputs=before.inputs),))
        case Union():
            return replace(before, inputs=tuple(replace(node, inputs=(each,), uid="") for each in before.inputs))
        case Project():
            return _through_project(node, before)
        case Join():
            return _through_join(node, before, names)
        case _:
            return None


def _parts(node: Filter) -> tuple[Expression, ...]:
    return conjuncts(node.predicate) if isinstance(node.predicate, Expression) else ()


def _through_projects(node: Filter, behind: Mapping[Node, list[Node]]) -> Node | None:
    """A filter through all the projections before it that it passes whole, at once: one by one takes a walk each."""
    passed: list[Project] = []
    at: Node = node
    while isinstance(at, Filter) and isinstance(before := at.inputs[0], Project) and _only_reader(behind, before):
        made = _through_project(at, before)
        if not isinstance(made, Project):
            break
        passed.append(before)
        at = made.inputs[0]
    if not passed:
        return None
    result = at
    for project in reversed(passed):
        result = replace(project, inputs=(result,))
    return result


def _through_project(node: Filter, project: Project) -> Node | None:
    """Parts that read columns which only go through, or are constant. What is worked out stays worked out once.

    Below a projection that leaves bad rows out, a filter would see rows that it would not have seen, and keep others
    from being counted.
    """
    if project.on_error is not OnError.FAIL:
        return None
    plain = {each.name: each.expression for each in project.columns if isinstance(each.expression, Column | Literal)}
    made = {each.name for each in project.columns}

    def passes(part: Expression) -> bool:
        return all(name in plain or (project.keep_others and name not in made) for name in columns_of(part))

    below = [substitute(part, plain) for part in _parts(node) if passes(part)]
    above = [part for part in _parts(node) if not passes(part)]
    if not below:
        return None
    source = replace(node, predicate=conjunction(below), inputs=project.inputs, uid="" if above else node.uid)
    result: Node = replace(project, inputs=(source,))
    return replace(node, predicate=conjunction(above), inputs=(result,)) if above else result


def _through_join(node: Filter, join: Join, names: Names) -> Node | None:
    """Parts that read one side only, where rows of that side without a partner do not come out.

    A side that is a table or is sought by time stays whole: fewer rows in it would give other partners.
    """
    left, right = (names.get(each.uid) for each in join.inputs)
    if left is None or right is None:
        return None
    origins = {each.name: each for each in output_columns(join, left, right)}
    sides: tuple[list[Expression], list[Expression]] = ([], [])
    above: list[Expression] = []
    for part in _parts(node):
        read = [origins.get(name) for name in columns_of(part)]
        side = {each.side if each else -1 for each in read}
        if is_total(part) and len(side) == 1 and (number := side.pop()) in _open_sides(join):
            sides[number].append(substitute(part, {each.name: Column(each.origin) for each in read if each}))
        else:
            above.append(part)
    if not any(sides):
        return None
    inputs = tuple(
        replace(node, predicate=conjunction(parts), inputs=(each,), uid="") if parts else each
        for each, parts in zip(join.inputs, sides, strict=True)
    )
    result: Node = replace(join, inputs=inputs)
    return replace(node, predicate=conjunction(above), inputs=(result,)) if above else result


def _open_sides(join: Join) -> tuple[int, ...]:
    if join.kind is JoinKind.LEFT:
        return (0,)
    if join.kind is not JoinKind.INNER:
        return ()
    return (0, 1) if join.mode in (JoinMode.REGULAR, JoinMode.WINDOW, JoinMode.INTERVAL) else (0,)


# ---------------------------------------------------------------------------------------------------------
# Event time


def name_times_early(sinks: Sinks, facts: Known) -> Sinks:
    """Event time is named before rows are exchanged, and by the source itself where nothing lies between.

    Behind an exchange a task would take the fastest input for the time of all of them; a source keeps the time of each
    of its splits.
    """

    def step(plan: Sinks) -> Sinks:
        behind = readers(plan)
        for node in walk(*plan):
            if isinstance(node, AssignTime) and _only_reader(behind, node.inputs[0]) and _is_free(node):
                earlier = _named_earlier(node, node.inputs[0])
                if earlier is not None:
                    return exchange_node(plan, node, earlier)
        return plan

    return _until_done(sinks, step)


def _named_earlier(node: AssignTime, before: Node) -> Node | None:
    match before:
        case KeyBy():
            return replace(before, inputs=(replace(node, inputs=before.inputs),))
        case Source():
            return replace(before, time=node.time)
        case _:
            return None


# ---------------------------------------------------------------------------------------------------------
# Projections


def merge_projects(sinks: Sinks, facts: Known) -> Sinks:
    """Two projections in a row become one, if nothing is worked out twice by it."""

    def merged(before: Node, node: Node) -> Node | None:
        if isinstance(before, Project) and isinstance(node, Project) and _is_free(before):
            return _merged(before, node)
        return None

    return _merge_neighbours(sinks, merged)


def _merged(first: Project, second: Project) -> Project | None:
    if not first.on_error is second.on_error is OnError.FAIL:
        return None  # which of the two leaves a row out, and with what columns it goes aside, is what the user said
    made = {each.name: each.expression for each in first.columns}
    uses = Counter(
        part.name for each in second.columns for part in parts_of(each.expression) if isinstance(part, Column)
    )
    if second.keep_others:  # what it keeps it uses once more
        replaced = {each.name for each in second.columns}
        uses.update(name for name in made if name not in replaced)
    if any(count > 1 and isinstance(made.get(name), Call) for name, count in uses.items()):
        return None
    outer = {each.name: substitute(each.expression, made) for each in second.columns}
    if any(why_too_large(expression) for expression in outer.values()):
        return None
    if second.keep_others:
        outer = {**made, **outer}  # a column that is there keeps its place, new ones come behind
    columns = tuple(Named(expression, name) for name, expression in outer.items())
    return replace(second, columns=columns, keep_others=first.keep_others and second.keep_others, inputs=first.inputs)


def drop_idle_projects(sinks: Sinks, facts: Known) -> Sinks:
    """A projection that passes every column unchanged is removed."""
    idle = {
        node
        for node, known in facts.items()
        if isinstance(node, Project) and known.schema is not None and _is_free(node) and _is_idle(node, facts)
        if node.on_error is not OnError.SIDE  # its errors are read, be there any or not
    }
    if not idle:
        return sinks
    uids = {node.uid for node in idle}
    return rewrite(sinks, lambda node: node.inputs[0] if isinstance(node, Project) and node.uid in uids else node)


def _is_idle(node: Project, facts: Known) -> bool:
    before = facts[node.inputs[0]].schema
    if before is None or any(not same(each.expression, Column(each.name)) for each in node.columns):
        return False
    return node.keep_others or [each.name for each in node.columns] == before.names
