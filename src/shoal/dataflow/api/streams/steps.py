"""What every kind of stream is: a node of the plan, and what is known of its rows. Making one runs nothing.

The methods that users call are in `reading`, `transforms`, `joins`, `writing` and `terminals`, which build on this
class, and come together in `shoal.dataflow.api.streams.stream`. Each makes nodes and hands them to `_next`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from shoal.core.errors import problem
from shoal.dataflow.api.streams.missing import Named
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.elements import Schema
from shoal.dataflow.language.functions import find_location
from shoal.dataflow.language.lengths import size
from shoal.dataflow.language.logical import Node, SideOutput
from shoal.dataflow.plan.facts import Facts, NoAnswers
from shoal.dataflow.plan.inference import infer, side_facts

S_co = TypeVar("S_co", covariant=True)

_NOBODY = NoAnswers()


class Steps(Named, Generic[S_co]):
    """A place in a plan. `S_co` is the kind of stream that a next step returns."""

    __slots__ = ("_before", "_facts", "_node")

    def __init__(self, node: Node, facts: Facts, before: tuple[Facts, ...] = ()) -> None:
        self._node = node
        self._facts = facts
        #: What is known of the rows that went into the node, by input: its late ones have those columns.
        self._before = before

    @property
    def node(self) -> Node:
        """The node of the logical plan."""
        return self._node

    @property
    def facts(self) -> Facts:
        """What is known of the rows before anything runs."""
        return self._facts

    @property
    def schema(self) -> Schema | None:
        """The columns, as far as they are known before anything runs."""
        return self._facts.schema

    @staticmethod
    @abstractmethod
    def _make(node: Node, facts: Facts, before: tuple[Facts, ...]) -> Any:
        """A stream of the kind that steps return."""

    @classmethod
    def _begin(cls, node: Node) -> S_co:
        made: S_co = cls._make(node, infer(node, (), _NOBODY), ())
        return made

    def _next(self, node: Node, *others: Steps[Any]) -> S_co:
        """A step behind this one (and others). What is known to be wrong with it now is raised at once."""
        inputs = (self._facts, *(each.facts for each in others))
        facts = infer(node, inputs, _NOBODY)
        if isinstance(node, SideOutput):
            facts = side_facts(node, facts, self._before)
        made: S_co = self._make(node, facts, inputs)
        return made

    def then(self, node: Node, *others: Steps[Any]) -> S_co:
        """A step behind this one with a node of one's own making. What users write with is in the other classes."""
        return self._next(node, *others)

    # -- how a step runs --------------------------------------------------------------------------------------

    def with_parallelism(self, tasks: int) -> Self:
        """Run this step in so many tasks."""
        at = find_location()
        check_parallelism(tasks, at)
        return self._changed(parallelism=tasks, parallelism_at=at)

    def with_resources(self, *, memory: int | str | None = None, cpu: float | None = None) -> Self:
        """What one task of this step wants: memory such as "512MB", and cores."""
        at = find_location()
        changes: dict[str, Any] = {} if memory is None else {"memory": size(memory, "memory", at=at)}
        if cpu is not None:
            if not 0 < cpu < 100_000:
                raise PlanError([problem("cpu", cpu, "must be a number of cores above 0")], at=at)
            changes["cpu"] = float(cpu)
        return self._changed(**changes)

    def uid(self, name: str) -> Self:
        """The name under which this step's state is found again when the program has changed."""
        if not name or not all(each.isalnum() or each in "._-" for each in name):
            rule = "must be letters, digits, dots, dashes and underscores"
            raise PlanError([problem("uid", name, rule)], at=find_location())
        return self._changed(uid=name)

    def _changed(self, **changes: Any) -> Self:
        made = copy.copy(self)
        object.__setattr__(made, "_node", replace(self._node, **changes))
        return made


def check_parallelism(tasks: Any, at: Location | None, most: int | None = None) -> None:
    """Refuse what is no number of tasks. How many there may be at most depends on the settings of the run."""
    if not isinstance(tasks, int) or isinstance(tasks, bool) or tasks < 1:
        raise PlanError([problem("parallelism", tasks, "must be a whole number from 1 on")], at=at)
    if most is not None and tasks > most:
        rule = f"must be a whole number from 1 to {most}, the number of key groups"
        raise PlanError([problem("parallelism", tasks, rule)], at=at)
