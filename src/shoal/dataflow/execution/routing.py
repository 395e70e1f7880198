"""The channels between tasks, and how rows are shared out over them: by key, to all, in turn, to one, task to task.

A task host makes `Channels` for its tasks: inboxes for what comes in, and for each router the sending ends, within the
process or to other hosts. Called by `shoal.dataflow.execution.building` and `shoal.dataflow.execution.hosts.task_host`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from shoal.core.threads import SYSTEM, Threads
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.execution.alignment import AlignedInbox
from shoal.dataflow.execution.chain import Router, Share
from shoal.dataflow.language.elements import GROUP, Batch
from shoal.dataflow.language.keys import key_groups, partition, tasks_of
from shoal.dataflow.plan.physical import Edge, Exchange, PhysicalPlan
from shoal.exchange.base import Endpoint, Sender

#: Connects to a channel of a task that another host runs.
Connect = Callable[[TaskId, str], Sender]


def channels_into(plan: PhysicalPlan, task: TaskId) -> list[tuple[Edge, int]]:
    """The channels of an inbox, in their order: the edge of each and the task that writes it."""
    found: list[tuple[Edge, int]] = []
    for edge in plan.inputs_of(task.stage):
        if edge.exchange is Exchange.FORWARD:
            found.append((edge, task.subtask))
        else:
            found += [(edge, writer) for writer in range(plan.stages[edge.source].parallelism)]
    return found


def all_tasks(plan: PhysicalPlan) -> list[TaskId]:
    """Every task of a plan, in a stable order."""
    return [TaskId(stage.number, subtask) for stage in plan.stages for subtask in range(stage.parallelism)]


def assign_tasks(plan: PhysicalPlan, hosts: int) -> dict[TaskId, int]:
    """The host of each task: subtask i of every stage is on the same host, so that forward edges stay inside one."""
    return {task: task.subtask * hosts // plan.stages[task.stage].parallelism for task in all_tasks(plan)}


class Channels:
    """The channels of the tasks that one host runs."""

    def __init__(
        self, plan: PhysicalPlan, tasks: Collection[TaskId], *, queue_bytes: int, threads: Threads = SYSTEM
    ) -> None:
        self._plan = plan
        self._threads = threads
        self._connect: Connect = _nobody
        self.inboxes: Mapping[TaskId, AlignedInbox] = {
            task: self._inbox(task, queue_bytes) for task in tasks if plan.inputs_of(task.stage)
        }

    def _inbox(self, task: TaskId, queue_bytes: int) -> AlignedInbox:
        channels = channels_into(self._plan, task)
        ports = [edge.port for edge, _ in channels]
        return AlignedInbox(ports, capacity=max(1, queue_bytes // len(channels)), threads=self._threads)

    def serve(self, endpoint: Endpoint) -> None:
        """Let tasks of other hosts send to these."""
        for task, inbox in self.inboxes.items():
            endpoint.serve([self._name(edge, writer, task) for edge, writer in channels_into(self._plan, task)], inbox)

    def reach_others(self, connect: Connect) -> None:
        """How to connect to tasks of other hosts; before the first router is made."""
        self._connect = connect

    def router(self, edge: Edge, subtask: int) -> Router:
        """The sending end of an edge in one task."""
        width = self._plan.stages[edge.target].parallelism
        readers = [subtask] if edge.exchange is Exchange.FORWARD else range(width)
        senders = [self._sender(edge, subtask, TaskId(edge.target, reader)) for reader in readers]
        return Router(senders, share_of(edge, subtask, len(senders), self._plan.key_groups))

    def _sender(self, edge: Edge, writer: int, reader: TaskId) -> Sender:
        name = self._name(edge, writer, reader)
        inbox = self.inboxes.get(reader)
        if inbox is None:
            return self._connect(reader, name)
        index = channels_into(self._plan, reader).index((edge, writer))
        inbox.claim(index)
        return inbox.sender(index, name)

    def _name(self, edge: Edge, writer: int, reader: TaskId) -> str:
        return f"{self._plan.edges.index(edge)}:{edge.source}.{writer}>{reader}"


def _nobody(task: TaskId, name: str) -> Sender:
    raise RuntimeError(f"channel {name} leads to task {task} of another host, and there is none")


# ---------------------------------------------------------------------------------------------------------
# Which rows go where


def share_of(edge: Edge, subtask: int, width: int, total: int) -> Share:
    """How the rows of an edge are shared out over so many channels, in one task."""
    match edge.exchange:
        case Exchange.HASH:
            return partial(_share_by_key, edge.keys, width, total)
        case Exchange.BROADCAST:
            return lambda batch: [(index, batch) for index in range(width)]
        case Exchange.REBALANCE:
            return _Turns(subtask, width)
        case _:
            return lambda batch: [(0, batch)]


def _share_by_key(keys: tuple[str, ...], width: int, total: int, batch: Batch) -> Iterable[tuple[int, Batch]]:
    known = batch.schema.get_field_index(GROUP)
    groups = key_groups(batch, keys, total) if known < 0 else batch.column(known).to_numpy()
    return partition(batch, tasks_of(groups, width, total), width)


class _Turns:
    """Batches go to one task after the other; each writer begins with another one."""

    def __init__(self, first: int, width: int) -> None:
        self._next = first % width
        self._width = width

    def __call__(self, batch: Batch) -> Iterable[tuple[int, Batch]]:
        index, self._next = self._next, (self._next + 1) % self._width
        return [(index, batch)]
