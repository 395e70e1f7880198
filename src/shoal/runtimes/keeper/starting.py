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
from shoal.runtimes.keeper.children import Child, ChildDefaults, Guard, Launch, fork_gated
from shoal.runtimes.keeper.deadlines import NO_SLOT, DeadlineTable
from shoal.runtimes.keeper.files import KeeperFiles
from shoal.runtimes.keeper.loop import Loop
from shoal.runtimes.keeper.outputs import LogBook, Outputs
from shoal.runtimes.keeper.protocol import StartWish, run_refusal
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

    def prepare(self, wish: StartWish) -> FreshRun:
        """Raises `Refusal` and leaves nothing behind."""
        outputs = Outputs(self._files, self._loop, self._book, run_id=wish.run_id, workload_id=wish.workload_id)
        groups: tuple[str, ...] = ()
        ends: tuple[int, ...] = ()
        child: Child | None = None
        slot = NO_SLOT if wish.deadline is None else self._table.take(wish.deadline)
        try:
            groups = self._groups.create(wish.run_id, cpu_millicores=wish.cpu_millicores, memory_mb=wish.memory_mb)
            ends = outputs.make()
            launch = self._launch(wish, groups, ends)
            child = fork_gated(launch, self._defaults, None if slot == NO_SLOT else Guard(self._table, slot))
            record = self._record(wish, child, groups, slot)
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
            self._files.record(wish.run_id).unlink(missing_ok=True)
            failure = "STORAGE_ERROR" if error.errno in _STORAGE else "RUNTIME_ERROR"
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
            raise run_refusal(failure, f"run {wish.run_id} could not be started: {text}", transient=True) from error
        finally:
            for end in ends:
                os.close(end)

    def _launch(self, wish: StartWish, groups: Sequence[str], ends: Sequence[int]) -> Launch:
        marks = {
            procfs.RUN_ID: wish.run_id,
            procfs.WORKLOAD_ID: wish.workload_id,
            procfs.KEEPER_ID: self._keeper_id,
            **({procfs.AT_MOST_ONE: "1"} if wish.deadline is not None else {}),
        }
        return Launch(
            argv=wish.argv,
            env={**wish.env, **marks},
            working_dir=wish.working_dir,
            stdout=ends[0],
            stderr=ends[1],
            user=wish.user,
            own_dir=wish.own_dir,
            cgroup_entrances=cgroups.entrances(groups),
            die_with_parent=wish.deadline is not None,
        )

    def _record(self, wish: StartWish, child: Child, groups: tuple[str, ...], slot: int) -> RunRecord:
        return RunRecord(
            run_id=wish.run_id,
            workload_id=wish.workload_id,
            boot_id=self._boot_id,
            pid=child.pid,
            start_time=child.start_time,
            started_at_ms=self._loop.clock.wall_ms(),
            ports=wish.ports,
            user=wish.user,
            working_dir=wish.working_dir,
            own_dir=wish.own_dir,
            stop_signal=wish.stop_signal,
            grace=wish.grace,
            at_most_one=wish.deadline is not None,
            slot=slot,
            cgroups=groups,
        )
