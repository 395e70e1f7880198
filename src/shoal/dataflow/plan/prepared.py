"""The prepared plan as a document: everything that a task is built from, written down once where the program is.

`write_prepared` is called when a job starts; `read_prepared` when tasks are built, in a thread of the same process or a
process of its own. The document has the nodes of the plan (`documents`), what is known of each (`facts`), the stages
with their steps, and the edges between them. Nothing is probed or sampled again where it is read.

    {"format": 1, "nodes": […], "sinks": […], "facts": […], "key_groups": 128,
     "stages": [{"parallelism": 2, "steps": [{"uid": "map-1", "name": "map(f)", "node": 4, …}]}], "edges": […]}

Functions, foreign connectors and data lie beside it as blobs, by hash. Settings of brokers may be secret: the document
has their names, never their values. A document for the same process may name live objects instead (`is_local`): what a
user collects into, or a generator, cannot leave it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.shape import unknown_field
from shoal.dataflow.errors import DocumentError
from shoal.dataflow.language.logical import Node, walk
from shoal.dataflow.plan.document_values import BadValueError, Blobs, decode, encode
from shoal.dataflow.plan.documents import PlanDocument, check_format, read_nodes, write_nodes
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.physical import Edge, Link, PhysicalPlan, Role, Stage, Step
from shoal.dataflow.plan.prepare import Prepared
from shoal.dataflow.settings import MOST_KEY_GROUPS

FORMAT = 1
_FIELDS = ("format", "nodes", "sinks", "facts", "key_groups", "stages", "edges")


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """What tasks are built from."""

    physical: PhysicalPlan
    facts: Mapping[Node, Facts] = field(repr=False)
    #: The ends of the plan, from which it can be laid out at another width.
    sinks: tuple[Node, ...] = field(default=(), repr=False)


def write_prepared(prepared: Prepared, physical: PhysicalPlan, *, is_local: bool = False) -> PlanDocument:
    """Write a prepared plan down. With `is_local` for this process only.

    Raises `PlanError` for a function or a value that cannot leave its process.
    """
    blobs = Blobs(live={} if is_local else None)
    nodes = list(walk(*prepared.sinks))
    numbers = {node: number for number, node in enumerate(nodes)}
    body = {
        "format": FORMAT,
        **write_nodes(prepared.sinks, blobs),
        "facts": [encode(prepared.facts[node], blobs, at=node.at) for node in nodes],
        "key_groups": physical.key_groups,
        "stages": [
            {"parallelism": stage.parallelism, "steps": [_step_to_body(step, numbers, blobs) for step in stage.steps]}
            for stage in physical.stages
        ],
        "edges": [encode(edge, blobs) for edge in physical.edges],
    }
    return PlanDocument(body, blobs.contents, blobs.live)


def _step_to_body(step: Step, numbers: Mapping[Node, int], blobs: Blobs) -> dict[str, Any]:
    return {
        "uid": step.uid,
        "name": step.name,
        "node": numbers[step.node],
        "links": encode(step.links, blobs),
        "role": step.role.value,
    }


def read_prepared(document: PlanDocument) -> PreparedPlan:
    """The inverse. Functions stay names until a task calls them. Raises `DocumentError` with every bad field."""
    problems: list[Problem] = []
    try:
        found = _Reading(Blobs(document.blobs, live=document.live), problems).read(document.body)
    except RecursionError:
        raise DocumentError([problem("document", None, "is nested too deep")]) from None
    if problems or found is None:
        raise DocumentError(problems)
    return found


class _Reading:
    """One document being read."""

    def __init__(self, blobs: Blobs, problems: list[Problem]) -> None:
        self._blobs = blobs
        self._problems = problems
        self._nodes: Sequence[Node | None] = ()

    def read(self, body: Any) -> PreparedPlan | None:
        if not isinstance(body, Mapping):
            self._refuse("document", body, "must be a mapping")
            return None
        if not check_format(body, FORMAT, self._problems):
            return None
        self._problems += [unknown_field(key, _FIELDS) for key in body if key not in _FIELDS]
        self._nodes, sinks = read_nodes(body, self._blobs, self._problems)
        facts = self._facts(body.get("facts"))
        total = body.get("key_groups")
        if not _is_count(total, 1, MOST_KEY_GROUPS):
            self._refuse("key_groups", total, f"must be a whole number from 1 to {MOST_KEY_GROUPS}")
            return None
        stages = self._stages(body.get("stages"), total)
        edges = self._edges(body.get("edges"), stages)
        return PreparedPlan(PhysicalPlan(stages, edges, total), facts, tuple(sinks))

    def _facts(self, given: Any) -> dict[Node, Facts]:
        if not isinstance(given, list) or len(given) != len(self._nodes):
            self._refuse("facts", given, "must be a list with an entry for each node")
            return {}
        found: dict[Node, Facts] = {}
        for number, (node, entry) in enumerate(zip(self._nodes, given, strict=True)):
            facts = self._value(entry, Facts, f"facts[{number}]")
            if node is not None and facts is not None:
                found[node] = facts
        return found

    def _stages(self, given: Any, total: int) -> tuple[Stage, ...]:
        stages: list[Stage] = []
        for number, entry in enumerate(self._list(given, "stages")):
            at = f"stages[{number}]"
            width = entry.get("parallelism") if isinstance(entry, Mapping) else None
            if not _is_count(width, 1, total):
                self._refuse(f"{at}.parallelism", width, f"must be a whole number from 1 to {total}")
                continue
            steps: list[Step] = []
            for place, step in enumerate(self._list(entry.get("steps"), f"{at}.steps")):
                steps += self._step(step, place, f"{at}.steps[{place}]")
            if not steps:
                self._refuse(f"{at}.steps", None, "must not be empty")
            stages.append(Stage(number, tuple(steps), width))
        return tuple(stages)

    def _step(self, given: Any, place: int, at: str) -> list[Step]:
        if not isinstance(given, Mapping):
            self._refuse(at, given, "must be a mapping")
            return []
        uid, name, number = given.get("uid"), given.get("name"), given.get("node")
        roles = {role.value: role for role in Role}
        role = roles.get(str(given.get("role")))
        links = [self._value(each, Link, f"{at}.links") for each in self._list(given.get("links"), f"{at}.links")]
        if not isinstance(uid, str) or not uid or not isinstance(name, str):
            self._refuse(f"{at}.uid", uid, "must be text, and have a name beside it")
        elif role is None:
            self._refuse(f"{at}.role", given.get("role"), f"must be one of {', '.join(roles)}")
        elif not _is_count(number, 0, len(self._nodes) - 1):
            self._refuse(f"{at}.node", number, "must be the number of a node")
        elif any(link is None or not 0 <= link.step < place for link in links):
            self._refuse(f"{at}.links", given.get("links"), "must lead from earlier steps of the stage")
        elif (node := self._nodes[number]) is not None:
            return [Step(uid, name, node, tuple(link for link in links if link is not None), role)]
        return []

    def _edges(self, given: Any, stages: Sequence[Stage]) -> tuple[Edge, ...]:
        edges: list[Edge] = []
        for number, entry in enumerate(self._list(given, "edges")):
            edge = self._value(entry, Edge, f"edges[{number}]")
            if edge is None:
                continue
            ends = ((edge.source, edge.source_step), (edge.target, edge.target_step))
            if not all(_is_count(s, 0, len(stages) - 1) and _is_count(i, 0, len(stages[s].steps) - 1) for s, i in ends):
                self._refuse(f"edges[{number}]", None, "must lead from a step of a stage to a step of another")
                continue
            edges.append(edge)
        return tuple(edges)

    def _value(self, given: Any, kind: type, at: str) -> Any:
        """A value of one class; None when it is none, and the problem is on the list."""
        try:
            value = decode(given, self._blobs, at)
        except BadValueError as error:
            self._refuse(error.at or at, error.value, str(error))
            return None
        except InvalidError as error:
            self._problems += [Problem(f"{at}.{each.field}", each.value, each.rule) for each in error.problems]
            return None
        if isinstance(value, kind):
            return value
        self._refuse(at, given, f"must be a {kind.__name__}")
        return None

    def _list(self, given: Any, at: str) -> list[Any]:
        if isinstance(given, list):
            return given
        self._refuse(at, given, "must be a list")
        return []

    def _refuse(self, at: str, value: object, rule: str) -> None:
        self._problems.append(problem(at, value, rule))


def _is_count(value: Any, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
