"""Moves workloads off nodes that are alive, and finishes or cancels such moves.

`shoal.control.nodes.drain` starts a move; `shoal.control.workloads` (dispatch, sender) finishes or cancels it.
"""

from __future__ import annotations

from shoal.control.placement.placer import Placer, Unplaced
from shoal.control.state.fleet import Fleet
from shoal.control.state.ledger import Ledger
from shoal.control.workloads.commands import CommandLog
from shoal.control.workloads.copies import Copies
from shoal.control.workloads.decisions import changes
from shoal.core.clock import Clock
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.workloads import WorkloadRecord


class Relocation:
    """Every change of a record that a move makes."""

    def __init__(self, ledger: Ledger, placer: Placer, commands: CommandLog, copies: Copies, *, clock: Clock) -> None:
        self._ledger = ledger
        self._fleet: Fleet = ledger.fleet
        self._placer = placer
        self._commands = commands
        self._copies = copies
        self._clock = clock

    async def move_first(self, workload_id: WorkloadId, *, reason: str) -> Unplaced | None:
        """Place a workload elsewhere and leave its present copy alone until the new one runs."""
        record = self._fleet.workloads.get(workload_id)
        if record is None or record.node_id is None:
            return None
        return await self._placer.place(
            workload_id,
            reason=reason,
            away_from=record.node_id,
            refused_by=self._commands.standing_refusals(workload_id),
            hold=True,
        )

    async def move_after(self, workload_id: WorkloadId, node_id: NodeId, *, reason: str) -> None:
        """Have a workload removed from a node, and placed elsewhere once it is gone there."""
        at = self._clock.wall()
        await self._ledger.change_workload(workload_id, lambda it: changes.move_begun(it, node_id, reason, at=at))

    async def finish(self, workload_id: WorkloadId, reason: str) -> None:
        """It runs elsewhere, or must do without the copy that it left."""
        record = self._fleet.workloads.get(workload_id)
        at = self._clock.wall()
        if record is None or record.move is None:
            return
        finished = await self._ledger.change_workload(workload_id, lambda it: changes.move_finished(it, reason, at=at))
        if finished and record.move.away_from in record.left_on:
            self._copies.superseded(workload_id, record.move.away_from, record.generation - 1)

    async def take_back(self, record: WorkloadRecord, reason: str) -> None:
        """It does not run elsewhere: the copy that it was to leave counts again."""
        at = self._clock.wall()
        await self._ledger.change_workload(
            record.workload_id, lambda it: changes.move_taken_back(it, reason, at=at), only=record
        )
