"""What comes before a run runs: groups, pipes, a child at its gate and a durable record, or nothing at all.

Called by `runs`, which then opens the gate.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.host import boot_id
from shoal.runtimes import cgroups
from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.deadlines import NO_SLOT, DeadlineTable
from shoal.runtimes.keeper.files import KeeperFiles
from shoal.runtimes.keeper.lives.children import Child, ChildDefaults, Guard, Launch, fork_gated
from shoal.runtimes.keeper.lives.outputs import LogBook, Outputs
from shoal.runtimes.keeper.loop import Loop
from shoal.runtimes.keeper.protocol import PROCESS, StartMessage, run_refusal
from shoal.runtimes.keeper.records import RunRecord, write_record

_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


@dataclass(frozen=True, slots=True)
class FreshRun:
    """A run that is written down and whose child waits at its gate."""

    record: RunRecord
    child: Child
    launch: Launch
    outputs: Outputs


class Starter:
    """Prepares runs."""

    def __init__(
        self,
        files: KeeperFiles,
        loop: Loop,
        book: LogBook,
        *,
        groups: cgroups.Cgroups,
        table: DeadlineTable,
        defaults: ChildDefaults,
    ) -> None:
        self._files = files
        self._loop = loop
        self._book = book
        self._groups = groups
        self._table = table
        self._defaults = defaults
        self._boot_id = boot_id()
        self._keeper_id = files.keeper_id()

    def prepare(self, wanted: StartMessage) -> FreshRun:
        """Raises `Refusal` and leaves nothing behind."""
        outputs = Outputs(self._files, self._loop, self._book, run_id=wanted.run_id, workload_id=wanted.workload_id)
        groups: tuple[str, ...] = ()
        ends: tuple[int, ...] = ()
        child: Child | None = None
        slot = NO_SLOT if wanted.deadline is None else self._table.take(wanted.deadline)
        try:
            groups = self._groups.create(
                wanted.run_id, cpu_millicores=wanted.cpu_millicores, memory_mb=wanted.memory_mb
            )
            ends = outputs.make()
            launch = self._launch(wanted, groups, ends)
            child = fork_gated(launch, self._defaults, None if slot == NO_SLOT else Guard(self._table, slot))
            record = self._record(wanted, child, groups, slot)
            write_record(self._files, record)
            return FreshRun(record, child, launch, outputs)
        except OSError as error:
            if child is not None:
                child.close_gate()
                child.close_report()
                if child.watchdog is not None:
                    child.watchdog.drop()
            outputs.close()
            self._table.give_back(slot)
            cgroups.remove(groups)
            self._files.record(wanted.run_id).unlink(missing_ok=True)
            failure = "STORAGE_ERROR" if error.errno in _STORAGE else "RUNTIME_ERROR"
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
            raise run_refusal(failure, f"run {wanted.run_id} could not be started: {text}", transient=True) from error
        finally:
            for end in ends:
                os.close(end)

    def _launch(self, wanted: StartMessage, groups: Sequence[str], ends: Sequence[int]) -> Launch:
        within = procfs.outer_runs(os.environ)
        marks = {
            procfs.RUN_ID: wanted.run_id,
            procfs.WORKLOAD_ID: wanted.workload_id,
            procfs.KEEPER_ID: self._keeper_id,
            **({procfs.WITHIN: within} if within else {}),
            **({procfs.AT_MOST_ONE: "1"} if wanted.deadline is not None else {}),
            **({procfs.RUN_KIND: wanted.kind} if wanted.kind != PROCESS else {}),
        }
        return Launch(
            argv=wanted.argv,
            env={**wanted.env, **marks},
            working_dir=wanted.working_dir,
            stdout=ends[0],
            stderr=ends[1],
            user=wanted.user,
            own_dir=wanted.own_dir,
            cgroup_entrances=cgroups.entrances(groups),
            die_with_parent=wanted.deadline is not None,
        )

    def _record(self, wanted: StartMessage, child: Child, groups: tuple[str, ...], slot: int) -> RunRecord:
        return RunRecord(
            run_id=wanted.run_id,
            workload_id=wanted.workload_id,
            boot_id=self._boot_id,
            pid=child.pid,
            start_time=child.start_time,
            started_at_ms=self._loop.clock.wall_ms(),
            ports=wanted.ports,
            user=wanted.user,
            working_dir=wanted.working_dir,
            own_dir=wanted.own_dir,
            stop_signal=wanted.stop_signal,
            grace=wanted.grace,
            at_most_one=wanted.deadline is not None,
            slot=slot,
            cgroups=groups,
            kind=wanted.kind,
            stop_socket=wanted.stop_socket,
        )
