"""`shoal apply --dry-run`: what would change, what would restart, where each workload would go and why.

Nothing is stored. The control plane plans the placement; the differences to the stored specs are found here. Called by
`shoal.cli.commands.apply`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.cli import output
from shoal.cli.commands.common.specs import LocatedDocument, document_of
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column
from shoal.core.errors import NotFoundError
from shoal.model.documents import Document, GroupDocument, WorkloadDocument, write_document
from shoal.model.phases import ContractStatus
from shoal.model.views import NodeScore, PlannedPlacement, WorkloadView

if TYPE_CHECKING:
    from shoal.client import ControlPlane

NO_ROOM = 3
UNCHANGED = "unchanged"
DELETE = "delete"

_COLUMNS = (
    Column("WORKLOAD"),
    Column("CHANGE"),
    Column("RESTARTS"),
    Column("NODE"),
    Column("GROUP", rank=1),
    Column("WHY", least=24),
)
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Planned:
    """What would become of one workload."""

    group_id: str
    placement: PlannedPlacement
    #: Lines of a unified diff of the stored spec and the new one.
    diff: tuple[str, ...] = ()
    restarts: bool = False
    #: The node it is on now.
    stored_on: str = ""


async def preview(control: ControlPlane, documents: Sequence[LocatedDocument[Document]], *, as_json: bool) -> int:
    """Show what applying would do. Returns the exit code."""
    alone = [each.document for each in documents if isinstance(each.document, WorkloadDocument)]
    planned: list[Planned] = []
    placeable = True
    if alone:
        plan = await control.plan(alone)
        placeable = plan.placeable
        planned += [await _compared(control, "", *pair) for pair in zip(alone, plan.placements, strict=True)]
    for group in (each.document for each in documents if isinstance(each.document, GroupDocument)):
        plan = await control.plan(group.members, together=True)
        placeable = placeable and plan.placeable
        planned += [
            await _compared(control, group.id, *pair) for pair in zip(group.members, plan.placements, strict=True)
        ]
        planned += await _removed(control, group)
    if as_json:
        output.json_document({"placeable": placeable, "placements": [_document(each) for each in planned]})
    else:
        _show(planned)
    return 0 if placeable else NO_ROOM


async def _compared(
    control: ControlPlane, group_id: str, document: WorkloadDocument, placement: PlannedPlacement
) -> Planned:
    try:
        stored = await control.get_workload(document.id)
    except NotFoundError:
        return Planned(group_id, placement)
    return Planned(
        group_id,
        placement,
        diff=tuple(difference(stored, document)),
        restarts=placement.change != UNCHANGED and restarts(stored, document, placement),
        stored_on=stored.assigned_node_id,
    )


async def _removed(control: ControlPlane, group: GroupDocument) -> list[Planned]:
    """The members that the new group no longer has: applying deletes them."""
    try:
        members = (await control.get_group(group.id)).members
    except NotFoundError:
        return []
    kept = {each.id for each in group.members}
    return [
        Planned(group.id, PlannedPlacement(view.workload_id, "", DELETE), stored_on=view.assigned_node_id)
        for view in members
        if view.workload_id not in kept
    ]


def difference(stored: WorkloadView, document: WorkloadDocument) -> list[str]:
    """The lines of a unified diff from the stored spec to a document; empty when they are equal."""
    if stored.spec is None:
        return []
    before = document_of(stored)
    if not document.revision:
        before = replace(before, revision="")
    old, new = (output.yaml_text([write_document(each)]).splitlines() for each in (before, document))
    return list(difflib.unified_diff(old, new, lineterm="", n=3))[2:]


def restarts(stored: WorkloadView, document: WorkloadDocument, placement: PlannedPlacement) -> bool:
    """Whether the process that runs now would be stopped: its agent gets another spec, or it moves, or it stops."""
    from shoal.wire import convert

    ended = (ContractStatus.STOPPED, ContractStatus.COMPLETED, ContractStatus.FAILED)
    if stored.status in ended or not stored.assigned_node_id or stored.spec is None:
        return False
    if document.desired_state != stored.desired_state or placement.node_id not in ("", stored.assigned_node_id):
        return True
    before, after = (convert.agent_spec_from_control(each, document.id) for each in (stored.spec, document.spec))
    return before != after


def _document(planned: Planned) -> dict[str, object]:
    facts: dict[str, object] = output.to_plain(planned.placement)
    return {
        "group_id": planned.group_id,
        **facts,
        "restarts": planned.restarts,
        "why": why(planned),
        "diff": list(planned.diff),
    }


def _show(planned: Sequence[Planned]) -> None:
    rows: list[list[str | Cell]] = []
    for each in planned:
        change = each.placement.change
        node = each.placement.node_id or (each.stored_on if change == DELETE else "")
        rows.append(
            [
                each.placement.workload_id,
                change,
                "yes" if each.restarts else "no",
                node or Cell("none", "red"),
                each.group_id,
                why(each),
            ]
        )
    output.table(_COLUMNS, rows)
    for each in planned:
        if each.diff and each.placement.change != UNCHANGED:
            output.data(f"\n{each.placement.workload_id}")
            for line in each.diff:
                output.styled(f"  {line}", _STYLES.get(line[:1], ""))
    output.words("nothing was stored: this is what applying would do now")
    for each in planned:
        if not each.placement.node_id and each.placement.change != DELETE:
            output.fail_with(
                f"no node can take workload {each.placement.workload_id}",
                rejections=[(rejection.node_id, rejection.message) for rejection in each.placement.rejections],
            )


def why(planned: Planned) -> str:
    """Why there, in words: what sets the node apart from the next best, and how many others fit or were rejected."""
    placement = planned.placement
    if placement.change == DELETE:
        return "the group no longer has it"
    if not placement.node_id:
        count = len(placement.rejections)
        return f"rejected by {count} of {count} nodes" if count else "there are no nodes"
    if placement.change == UNCHANGED:
        return "nothing to do"
    chosen = next((each for each in placement.scores if each.node_id == placement.node_id), None)
    reason = "it runs there" if chosen is not None and _CURRENT in chosen.parts else why_node(placement)
    rejected = f"; {len(placement.rejections)} rejected" if placement.rejections else ""
    return f"{reason}{rejected}"


def why_node(placement: PlannedPlacement) -> str:
    """What sets the chosen node apart from the next best, wherever the workload runs now."""
    others = [each for each in placement.scores if each.node_id != placement.node_id]
    chosen = next((each for each in placement.scores if each.node_id == placement.node_id), None)
    if not others:
        return "the only node that fits"
    return f"{_advantage(chosen, others[0])} of {len(others) + 1} nodes that fit"


_CURRENT = "current"
_BEST = {"spread": "the emptiest", "pack": "the fullest with room"}


def _advantage(chosen: NodeScore | None, second: NodeScore) -> str:
    """The part of the score in which the chosen node is furthest ahead."""
    if chosen is None or not chosen.parts:
        return "the best"
    ahead = {name: value - second.parts.get(name, 0.0) for name, value in chosen.parts.items() if name != _CURRENT}
    name, lead = max(ahead.items(), key=lambda pair: pair[1])
    if lead <= 0:
        return "as good as any"
    return _BEST.get(name, f"the best for being {name}")
