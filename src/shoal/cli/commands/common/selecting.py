"""Chooses workloads by their ids, by a label selector or by their group. Called by commands that act on several."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.model.selectors import parse_selector
from shoal.model.views import WorkloadView

if TYPE_CHECKING:
    from shoal.client import ControlPlane

ForOne = Callable[[str], Coroutine[Any, Any, int]]
"""Does something with one workload and returns the exit code."""


async def choose(control: ControlPlane, names: Sequence[str], *, selector: str = "", group: str = "") -> list[str]:
    """The ids of the chosen workloads. Raises `InvalidError` without a choice, `PreconditionError` for an empty one."""
    if names and (selector or group):
        flag = "-l" if selector else "--group"
        raise InvalidError([problem(flag, selector or group, "must not be given together with ids of workloads")])
    if names:
        return list(dict.fromkeys(names))
    if not selector and not group:
        raise InvalidError([problem("WORKLOAD", None, "is required: an id, -l SELECTOR or --group GROUP")])
    found = [view.workload_id for view in await select(control, selector=selector, group=group)]
    if not found:
        words = [*([f"has the labels {selector}"] if selector else []), *([f"is in group {group}"] if group else [])]
        hint = "`shoal workload list` shows all of them with their labels"
        raise PreconditionError(f"no workload {' and '.join(words)}", hint=hint)
    return found


async def select(
    control: ControlPlane, *, selector: str = "", group: str = "", node: str = "", status: str = ""
) -> list[WorkloadView]:
    """The workloads that match everything that is given, in order of their ids."""
    chosen = parse_selector(selector, field="-l")
    views = await control.list_workloads(node_id=node, status=status, group_id=group)
    matching = [view for view in views if chosen.matches(view.labels)]
    return sorted(matching, key=lambda view: view.workload_id)
