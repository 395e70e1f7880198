"""Remembers the last command about each workload, its answer, and which nodes refused the workload.

In memory only. After a restart it is learned from status reports, and an agent recognizes a command that it has already
taken by its generation. Written by `shoal.control.workloads.sender`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

from shoal.control.state.facts import Removal
from shoal.control.workloads.decisions.reconciler import Command, CommandKind, after_removal
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.ids import NodeId, WorkloadId
from shoal.core.retry import Backoff
from shoal.model.workloads import RunStatus, WorkloadRecord

COMMAND_BACKOFF = Backoff(first=0.2, cap=5.0)
#: The same command is not repeated sooner than this.
SAME_COMMAND_SECONDS = 1.0
#: A node that refused a workload is not asked again for this long, unless nothing else fits.
REFUSAL_SECONDS = 30.0


class CommandLog:
    """The last command about each workload, and the refusals that still stand."""

    def __init__(self, *, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._commands: dict[WorkloadId, Command] = {}
        self._refusals: defaultdict[WorkloadId, dict[NodeId, tuple[str, float]]] = defaultdict(dict)
        #: The last error of a command, for people.
        self.errors: dict[WorkloadId, str] = {}
        #: Workloads whose command cannot be sent because a secret is missing.
        self.without_secret: set[WorkloadId] = set()
        #: Workloads whose newest spec a foreign agent calls invalid.
        self.invalid: set[WorkloadId] = set()

    def get(self, workload_id: WorkloadId) -> Command | None:
        """The last command about a workload, if there was one."""
        return self._commands.get(workload_id)

    def put(self, workload_id: WorkloadId, command: Command) -> None:
        """Note what became of a command, unless it is no longer the last one: an answer may come late."""
        last = self._commands.get(workload_id)
        if last is None or last.is_same(command.kind, command.node_id, command.generation):
            self._commands[workload_id] = command

    def begin(self, record: WorkloadRecord, kind: CommandKind) -> Command:
        """A command is about to be sent, with the present values of secrets. Failures count on while it is the same."""
        assert record.node_id is not None  # noqa: S101 the reconciler sends only what is placed
        known = self._commands.get(record.workload_id)
        same = known is not None and known.is_same(kind, record.node_id, record.generation)
        if not same:
            self.invalid.discard(record.workload_id)
        command = Command(
            kind,
            record.node_id,
            record.generation,
            failures=known.failures if same and known else 0,
            stale_secret=known.stale_secret if same and known else False,
        )
        self._commands[record.workload_id] = dataclasses.replace(command, stale_secret=False)
        return command

    def applied(self, workload_id: WorkloadId, command: Command) -> None:
        """An agent took it. Should it drop it again at once, the command is not repeated in a tight circle."""
        stale = self._became_stale(workload_id)
        not_before = 0.0 if stale else self._clock.monotonic() + SAME_COMMAND_SECONDS
        self.put(
            workload_id,
            dataclasses.replace(command, accepted=True, failures=0, not_before=not_before, stale_secret=stale),
        )
        self._refusals.pop(workload_id, None)
        self._clear_error(workload_id)

    def called_invalid(self, workload_id: WorkloadId, command: Command, why: str) -> None:
        """A foreign agent calls the spec invalid. It is not sent again, unless somebody changes or retries it."""
        self.applied(workload_id, command)
        self.errors[workload_id] = why
        self.invalid.add(workload_id)

    def failed(self, workload_id: WorkloadId, command: Command, why: str, *, without_secret: bool = False) -> None:
        """It has to be sent again, later and later."""
        self._clear_error(workload_id)
        self.errors[workload_id] = why
        if without_secret:
            self.without_secret.add(workload_id)
        failures = command.failures + 1
        not_before = self._clock.monotonic() + COMMAND_BACKOFF.delay(failures, self._entropy)
        stale = command.stale_secret or self._became_stale(workload_id)
        again = dataclasses.replace(command, failures=failures, not_before=not_before, stale_secret=stale)
        self.put(workload_id, again)

    def listed(self, workload_ids: Iterable[WorkloadId]) -> None:
        """A foreign agent's heartbeat lists these: a delete that it accepted is not done."""
        for workload_id in workload_ids:
            command = self._commands.get(workload_id)
            if command is not None and command.kind is CommandKind.DELETE and command.accepted:
                self._commands[workload_id] = dataclasses.replace(
                    command, absent_heartbeats=0, present_heartbeats=command.present_heartbeats + 1
                )

    def removed(self, workload_id: WorkloadId, command: Command, removal: Removal) -> bool:
        """A foreign agent's list of actions was read. True when something follows from it for the last delete."""
        current = self._commands.get(workload_id)
        if current is None or (current.kind, current.generation) != (command.kind, command.generation):
            return True
        after = after_removal(current, removal)
        self._commands[workload_id] = after
        if current.accepted and not after.accepted:
            self.failed(workload_id, after, f"node {after.node_id}: it has not carried out a delete")
        return after is not current

    def asked(self, workload_id: WorkloadId, status: RunStatus) -> None:
        """A foreign agent has answered with a status, which says more than its heartbeats."""
        command = self._commands.get(workload_id)
        if command is not None:
            self._commands[workload_id] = dataclasses.replace(command, asked=status.state)

    def lost(self, workload_id: WorkloadId) -> None:
        """A foreign agent has lost a command that it accepted."""
        command = self._commands.get(workload_id)
        if command is not None and command.accepted:
            again = dataclasses.replace(command, accepted=False, asked=None)
            self.failed(workload_id, again, f"node {command.node_id}: it has lost a command")

    def repeat(self, workload_id: WorkloadId) -> None:
        """A foreign agent registered: it may have lost what it accepted before, so it is told again."""
        self.invalid.discard(workload_id)
        command = self._commands.get(workload_id)
        if command is not None and command.accepted and not command.gone:
            self._commands[workload_id] = dataclasses.replace(command, accepted=False, asked=None, not_before=0.0)

    def renew_secret(self, record: WorkloadRecord) -> None:
        """A secret that files of a run hold has a new value: its agent is told again."""
        if record.node_id is None or record.placed_generation != record.generation:
            return
        default = Command(CommandKind.APPLY, record.node_id, record.generation, accepted=True)
        known = self._commands.get(record.workload_id, default)
        if known.is_same(CommandKind.APPLY, record.node_id, record.generation):
            self._commands[record.workload_id] = dataclasses.replace(known, stale_secret=True, not_before=0.0)

    def _became_stale(self, workload_id: WorkloadId) -> bool:
        """Whether a secret got a new value while the last command was on its way."""
        command = self._commands.get(workload_id)
        return command is not None and command.stale_secret

    def hurry(self, workload_id: WorkloadId) -> None:
        """What stood in the way of a command is gone: no backoff."""
        command = self._commands.get(workload_id)
        if command is not None and not command.accepted:
            self._commands[workload_id] = dataclasses.replace(command, not_before=0.0)

    def refused(self, workload_id: WorkloadId, node_id: NodeId, why: str) -> None:
        """A node does not take it, or it is better off elsewhere."""
        self._refusals[workload_id][node_id] = (why, self._clock.monotonic() + REFUSAL_SECONDS)

    def standing_refusals(self, workload_id: WorkloadId) -> dict[NodeId, str]:
        """The nodes that are not to be asked for now, with their reasons."""
        if workload_id not in self._refusals:
            return {}
        now = self._clock.monotonic()
        standing = {
            node_id: (why, until) for node_id, (why, until) in self._refusals[workload_id].items() if until > now
        }
        if standing:
            self._refusals[workload_id] = standing
        else:
            del self._refusals[workload_id]
        return {node_id: why for node_id, (why, _until) in standing.items()}

    def forget(self, workload_id: WorkloadId) -> None:
        """Drop the last command, its error and every refusal."""
        self._commands.pop(workload_id, None)
        self._refusals.pop(workload_id, None)
        self._clear_error(workload_id)

    def _clear_error(self, workload_id: WorkloadId) -> None:
        self.errors.pop(workload_id, None)
        self.without_secret.discard(workload_id)
        self.invalid.discard(workload_id)
