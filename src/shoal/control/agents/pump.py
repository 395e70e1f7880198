"""Sends commands to agents: at most one at a time for each node and workload, a bounded number for each node.

Commands wait in a queue for each node, and the nodes are served in rotation. So a node that answers slowly or not at
all delays no other node. While requests wait for a placement, fewer first commands of new workloads are started at
once: a placement is durable, and its command can wait. While there is a backlog of placements, they also wait for each
other, because a node that gets them together reports on them with one heartbeat.

Used by `shoal.control.workloads.dispatch` and `shoal.control.workloads.copies`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from shoal.core.ids import NodeId, WorkloadId
from shoal.core.tasks import TaskScope

#: Commands that one node may have in flight.
PER_NODE = 16
#: Commands started and not answered, over all nodes: those that can wait while requests wait for a placement, and else.
FEW = 8
MANY = 1024
#: With a backlog of placements, the commands of a node that can wait do so until there are so many, or so many seconds.
TOGETHER = 8
HOLD_SECONDS = 10.0
#: Seconds between two looks at the nodes whose commands wait for each other.
HOLD_LOOK_SECONDS = 0.1
#: After so many seconds without an answer a command no longer counts against `FEW` or `MANY`, and its node is late.
LATE_SECONDS = 0.1
#: So many late nodes are remembered.
MAX_LATE = 10_000

Send = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True, eq=False)
class _Line:
    """The commands of one node."""

    node_id: NodeId
    #: Each with the context of its submission, so that it belongs to the same trace.
    waiting: dict[WorkloadId, tuple[Send, contextvars.Context]] = field(default_factory=dict)
    in_flight: set[WorkloadId] = field(default_factory=set)
    #: Those of both for which another command was submitted meanwhile.
    again: set[WorkloadId] = field(default_factory=set)
    #: Whether one of those that wait is not to wait for others, and when the oldest was submitted by the loop's clock.
    urgent: bool = False
    since: float = 0.0

    @property
    def can_start(self) -> bool:
        return bool(self.waiting) and len(self.in_flight) < PER_NODE


class Pump:
    """The commands of every node.

    Memory: one waiting command for each node and workload. Calls: at most `PER_NODE` in flight for each node.

    Args:
        scope: owns the tasks.
        is_busy: whether requests wait for a placement.
        has_backlog: whether very many are being placed.
        on_free: called with a workload when a command about it has ended and another one was submitted meanwhile.
    """

    def __init__(
        self,
        scope: TaskScope,
        *,
        is_busy: Callable[[], bool],
        has_backlog: Callable[[], bool],
        on_free: Callable[[WorkloadId], None],
    ) -> None:
        self._scope = scope
        self._is_busy = is_busy
        self._has_backlog = has_backlog
        self._on_free = on_free
        self._lines: dict[NodeId, _Line] = {}
        #: The nodes with a command that can be started, in turn, by whether a command cannot wait and the node is late.
        self._turns: dict[tuple[bool, bool], dict[NodeId, _Line]] = {
            (urgent, tardy): {} for urgent in (True, False) for tardy in (False, True)
        }
        #: Nodes whose last command was not answered in time.
        self._late: set[NodeId] = set()
        #: The nodes whose commands wait for each other.
        self._held: dict[NodeId, _Line] = {}
        self._look: asyncio.TimerHandle | None = None
        self._started = 0
        self._started_tardy = 0
        self._closed = False

    def submit(self, node_id: NodeId, workload_id: WorkloadId, send: Send, *, can_wait: bool = False) -> bool:
        """Start a command in its turn. False if one about this workload is waiting or in flight at this node.

        `can_wait`: with a backlog of placements it may wait for other commands of its node.

        The caller decides again when that one has ended: see `on_free`. A command handles its own errors.
        """
        if self._closed:
            return False
        line = self._lines.get(node_id)
        if line is None:
            line = self._lines[node_id] = _Line(node_id)
        if workload_id in line.in_flight or workload_id in line.waiting:
            line.again.add(workload_id)
            return False
        if not line.waiting:
            line.since, line.urgent = asyncio.get_running_loop().time(), False
        line.urgent = line.urgent or not can_wait
        line.waiting[workload_id] = send, contextvars.copy_context()
        self._queue(line)
        self._start_some()
        return True

    def close(self) -> None:
        """Start nothing more; what is in flight ends with its scope."""
        self._closed = True
        for lines in (self._lines, self._held, *self._turns.values()):
            lines.clear()
        if self._look is not None:
            self._look.cancel()

    def _queue(self, line: _Line) -> None:
        """Put a line where it belongs, at the end of those that wait for their turn."""
        if not line.can_start:
            return
        if self._is_held(line):
            self._hold(line)
            return
        turn = self._turns[line.urgent, line.node_id in self._late]
        for lines in (self._held, *self._turns.values()):
            if lines is not turn:
                lines.pop(line.node_id, None)
        turn.setdefault(line.node_id, line)

    def _is_held(self, line: _Line) -> bool:
        """Whether the commands of a node wait for more of them."""
        few = len(line.waiting) < TOGETHER and not line.in_flight
        return (
            few
            and not line.urgent
            and self._has_backlog()
            and asyncio.get_running_loop().time() - line.since < HOLD_SECONDS
        )

    def _hold(self, line: _Line) -> None:
        self._held.setdefault(line.node_id, line)
        self._look_later()

    def _look_later(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(HOLD_LOOK_SECONDS, self._look_at_held)

    def _look_at_held(self) -> None:
        """Let those go that have waited long enough, which are the first; without a backlog all of them."""
        self._look = None
        while self._held:
            node_id, line = next(iter(self._held.items()))
            if self._is_held(line):
                self._look_later()
                break
            del self._held[node_id]
            self._queue(line)
        self._start_some()

    def _start_some(self) -> None:
        """Start what may be started. With a backlog a node in turn gets all of its commands, else as many as fit."""
        few, backlog = FEW if self._is_busy() else MANY, self._has_backlog()
        while (line := self._next(few)) is not None:
            tardy = line.node_id in self._late
            most = MANY if line.urgent else few
            while line.can_start and ((backlog and not tardy) or self._has_room(most, tardy=tardy)):
                workload_id = next(iter(line.waiting))
                send, context = line.waiting.pop(workload_id)
                line.in_flight.add(workload_id)
                call = _Call(self, line, workload_id, tardy=tardy)
                name = f"command/{line.node_id}/{workload_id}"
                self._scope.start(call.run(send), name=name, context=context)
            self._queue(line)

    def _next(self, few: int) -> _Line | None:
        """The line whose turn it is. Nodes that are late share half of what may be started."""
        for (urgent, tardy), lines in self._turns.items():
            if lines and self._has_room(MANY if urgent else few, tardy=tardy):
                return lines.pop(next(iter(lines)))
        return None

    def _has_room(self, most: int, *, tardy: bool) -> bool:
        return self._started < most and not (tardy and self._started_tardy >= most // 2)

    # -----------------------------------------------------------------------------------------------------
    # Called by the commands in flight

    def count(self, change: int, *, tardy: bool) -> None:
        """A command was started, or counts no longer."""
        self._started += change
        if tardy:
            self._started_tardy += change

    def late(self, line: _Line) -> None:
        """A command was not answered in time."""
        if self._closed:
            return
        if len(self._late) >= MAX_LATE:
            self._late.clear()  # nodes come and go, and it is learned again soon
        self._late.add(line.node_id)
        self._queue(line)
        self._start_some()

    def ended(self, line: _Line, workload_id: WorkloadId, *, late: bool) -> None:
        """A command has ended."""
        again = workload_id in line.again
        line.again.discard(workload_id)
        line.in_flight.discard(workload_id)
        if not late:
            self._late.discard(line.node_id)
        if not line.waiting and not line.in_flight and self._lines.get(line.node_id) is line:
            del self._lines[line.node_id]
        if self._closed:
            return
        self._queue(line)
        self._start_some()
        if again:
            self._on_free(workload_id)


class _Call:
    """One command in flight."""

    __slots__ = ("_counted", "_line", "_pump", "_tardy", "_timer", "_workload_id")

    def __init__(self, pump: Pump, line: _Line, workload_id: WorkloadId, *, tardy: bool) -> None:
        self._pump = pump
        self._line = line
        self._workload_id = workload_id
        self._tardy = tardy
        self._counted = True
        pump.count(1, tardy=tardy)
        self._timer = asyncio.get_running_loop().call_later(LATE_SECONDS, self._late)

    async def run(self, send: Send) -> None:
        try:
            await send()
        finally:
            self._timer.cancel()
            late = not self._counted
            self._stop_counting()
            self._pump.ended(self._line, self._workload_id, late=late)

    def _late(self) -> None:
        self._stop_counting()
        self._pump.late(self._line)

    def _stop_counting(self) -> None:
        if self._counted:
            self._counted = False
            self._pump.count(-1, tardy=self._tardy)
