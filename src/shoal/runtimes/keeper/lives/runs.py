"""The lives of runs: start, watch, stop, reap, take up again after a crash. The heart of the keeper.

Called by `server`, which carries requests in and answers out. Decisions on when to ask and when to kill are made in
`lifecycle`; what comes before a child runs is in `starting` and `children`, the pipes are in `outputs`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.core import faults
from shoal.core.host import boot_id
from shoal.core.ids import RunId
from shoal.runtimes import cgroups
from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.deadlines import NO_SLOT, DeadlineTable
from shoal.runtimes.keeper.files import KeeperFiles
from shoal.runtimes.keeper.journal import say
from shoal.runtimes.keeper.lives import watchdog
from shoal.runtimes.keeper.lives.children import ChildDefaults, read_report, refusal_of
from shoal.runtimes.keeper.lives.finding import find_unexplained
from shoal.runtimes.keeper.lives.lifecycle import Act, Deadline, Ending, Life, deadline_at, next_step
from shoal.runtimes.keeper.lives.outputs import LogBook, Outputs
from shoal.runtimes.keeper.lives.power import PRESS_AGAIN, PowerButton
from shoal.runtimes.keeper.lives.starting import FreshRun, Starter
from shoal.runtimes.keeper.loop import Loop, Timer
from shoal.runtimes.keeper.protocol import PAGE, Refusal, StartMessage, run_refusal
from shoal.runtimes.keeper.records import ExitRecord, RunRecord, drop_record, load_records, make_spares, write_record

#: A keeper holds this many runs, ended ones included, and refuses more until some are forgotten.
MAX_RUNS = 2000
#: From the gate to exec. Longer means a directory or a program on a mount that hangs.
START_TIMEOUT = 10.0
_POLL = 0.5
_CENSUS_LIFE = 0.02

Answer = Callable[[RunRecord | Refusal], None]


class Run:
    """One run in the keeper's memory."""

    def __init__(self, record: RunRecord, *, is_child: bool, main_alive: bool) -> None:
        self.record = record
        #: Whether this keeper is its parent, and so will learn its exit.
        self.is_child = is_child
        self.main_alive = main_alive
        self.deadline: Deadline | None = None
        self.ending: Ending | None = None
        self.killing_since: float | None = None
        #: Nothing of it is left, and everybody was told.
        self.finished = False
        self.outputs: Outputs | None = None
        self.timer: Timer | None = None
        #: Of a VM that was asked to end.
        self.button: PowerButton | None = None
        self.pidfd = -1
        #: Its parent, if that is not the keeper.
        self.watchdog: watchdog.Watchdog | None = None
        #: What was seen of its processes before this moment no longer counts.
        self.looked_at = 0.0
        # Only while it starts.
        self.fresh: FreshRun | None = None
        self.starters: list[Answer] = []
        self.overdue = False

    @property
    def view(self) -> RunRecord:
        """The record as others may see it: a run has ended when nothing of it is left."""
        return self.record if self.finished else dataclasses.replace(self.record, exit=None)


class Runs:
    """Every run of one keeper."""

    def __init__(
        self,
        files: KeeperFiles,
        loop: Loop,
        *,
        groups: cgroups.Cgroups,
        table: DeadlineTable,
        defaults: ChildDefaults,
        on_ended: Callable[[RunRecord], None],
    ) -> None:
        self._files = files
        self._loop = loop
        self._groups = groups
        self._on_ended = on_ended
        self._boot_id = boot_id()
        self._keeper_id = files.keeper_id()
        self._runs: dict[RunId, Run] = {}
        self._mains: dict[int, Run] = {}
        self._watchdogs: dict[int, Run] = {}
        self._table = table
        self._unsettled: list[Run] = []
        self._census: tuple[float, procfs.Census] | None = None
        self.book = LogBook(files, loop)
        self._starter = Starter(files, loop, self.book, groups=groups, table=table, defaults=defaults)

    # --- asking -------------------------------------------------------------------------------------------

    @property
    def alive(self) -> int:
        """How many runs have not ended."""
        return sum(not run.finished for run in self._runs.values())

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, run_id: RunId) -> RunRecord | None:
        """What is known of a run."""
        run = self._runs.get(run_id)
        return run.view if run is not None else None

    def page(self, after: str) -> tuple[list[RunRecord], bool]:
        """Runs in order of their ids, and whether there are more."""
        names = sorted(name for name in self._runs if name > after)
        return [self._runs[name].view for name in names[:PAGE]], len(names) > PAGE

    # --- starting -----------------------------------------------------------------------------------------

    def start(self, wanted: StartMessage, answer: Answer) -> None:
        """Start a run, or answer with what became of it when it was started before."""
        known = self._runs.get(wanted.run_id)
        if known is not None:
            if known.fresh is not None:
                known.starters.append(answer)
            else:
                answer(known.view)
            return
        if len(self._runs) >= MAX_RUNS:
            raise run_refusal(
                "INSUFFICIENT_RESOURCES", f"the keeper holds {MAX_RUNS} runs", hint="forget ended runs", transient=True
            )
        fresh = self._starter.prepare(wanted)
        run = Run(fresh.record, is_child=True, main_alive=True)
        run.fresh, run.outputs = fresh, fresh.outputs
        run.starters.append(answer)
        self._runs[wanted.run_id] = run
        self._mains[fresh.child.pid] = run
        if fresh.child.watchdog is not None:
            run.watchdog = fresh.child.watchdog
            self._watchdogs[run.watchdog.pid] = run
            self._loop.add_reader(run.watchdog.pipe, lambda: self._hear_watchdog(run))
        self._loop.add_reader(fresh.child.report, lambda: self._check_report(run))
        self._loop.call_at(self._loop.now() + START_TIMEOUT, lambda: self._give_up_start(run))
        fresh.child.open_gate()
        self._advance(run)

    def _check_report(self, run: Run) -> None:
        """The child got as far as exec, or failed before."""
        fresh = run.fresh
        if fresh is None:
            return
        report = read_report(fresh.child)
        if report is None:
            return
        self._loop.remove(fresh.child.report)
        fresh.child.close_report()
        run.fresh = None
        if run.overdue and not report:
            report = {"stage": "start", "errno": 11, "text": f"no exec within {START_TIMEOUT:g} s: a mount that hangs?"}
        if report:
            self._drop_failed(run, refusal_of(report, fresh.launch))
            return
        faults.reach("keeper.spawn.after")
        self._answer_starters(run, run.view)

    def _drop_failed(self, run: Run, refusal: Refusal) -> None:
        """Nothing of the workload's ran, so nothing is remembered: the same run may be tried again."""
        run.finished = True
        if run.timer is not None:
            run.timer.cancel()
        self._drop(run)
        if run.outputs is not None:
            run.outputs.close()
        self._remove_groups(run.record.cgroups)
        self._answer_starters(run, refusal)

    @staticmethod
    def _answer_starters(run: Run, outcome: RunRecord | Refusal) -> None:
        starters, run.starters = run.starters, []
        for answer in starters:
            answer(outcome)

    def _give_up_start(self, run: Run) -> None:
        if run.fresh is not None:
            run.overdue = True
            procfs.kill_process(run.record.pid, run.record.start_time, signal.SIGKILL)

    # --- ending -------------------------------------------------------------------------------------------

    def stop(self, run_id: RunId) -> RunRecord | None:
        """Ask a run to end; its end is told when it has come. Asking again changes nothing."""
        run = self._runs.get(run_id)
        if run is None:
            return None
        if not run.finished and run.ending is None and run.main_alive:
            self._ask(run, by="stop", kill_at=self._loop.now() + run.record.grace)
            self._advance(run)
        return run.view

    def extend(self, run_ids: Sequence[RunId], *, until: float) -> None:
        """Move the deadlines of runs. One that was already asked to end, or should have been, is not saved by this.

        A keeper that was stopped itself may find an old extension waiting when it wakes: what has passed has passed.
        Agents that can open the table extend deadlines there, and do not need this.
        """
        for run_id in run_ids:
            run = self._runs.get(run_id)
            if run is not None and run.main_alive and not run.finished:
                self._table.extend(run.record.slot, until, now=self._loop.now())
                if run.watchdog is not None:
                    run.watchdog.wake()
                self._advance(run)

    def forget(self, run_id: RunId) -> None:
        """Let go of an ended run."""
        run = self._runs.get(run_id)
        if run is None:
            return
        if not run.finished:
            raise Refusal("precondition", f"run {run_id!r} has not ended", hint="stop it first")
        self._drop(run)

    def _drop(self, run: Run) -> None:
        drop_record(self._files, run.record.run_id)
        self._table.give_back(run.record.slot)
        del self._runs[run.record.run_id]

    def forget_workload(self, workload_id: str) -> None:
        """Let go of every run of a workload; its files are then nobody's."""
        runs = [run for run in self._runs.values() if run.record.workload_id == workload_id]
        for run in runs:
            if not run.finished:
                raise Refusal("precondition", f"run {run.record.run_id!r} has not ended", hint="stop it first")
        for run in runs:
            self.forget(run.record.run_id)

    def _ask(self, run: Run, *, by: str, kill_at: float) -> None:
        run.ending = Ending(by=by, kill_at=kill_at)
        run.record = dataclasses.replace(run.record, ended_by=by)
        if run.record.stop_socket:
            run.button = PowerButton(Path(run.record.working_dir) / run.record.stop_socket)
            self._press(run)
        else:
            self._signal(run, run.record.stop_signal)
        if run.record.stop_signal != signal.SIGKILL:
            self._signal(run, signal.SIGCONT)  # a process that is stopped cannot hear

    def _press(self, run: Run) -> None:
        """Press the power button of a VM, again and again until it has ended."""
        if run.button is not None and run.main_alive:
            run.button.press()
            self._loop.call_at(self._loop.now() + PRESS_AGAIN, lambda: self._press(run))

    def _signal(self, run: Run, number: int) -> None:
        """Send a signal to the process group. Safe only while the main process holds its number."""
        pid = run.record.pid
        if not run.main_alive or not (run.is_child or procfs.is_running(pid, run.record.start_time)):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(pid, number)
            except ProcessLookupError:
                if run.fresh is not None:  # it has no group of its own before exec
                    os.kill(pid, number)

    def _advance(self, run: Run) -> None:
        """Do what is due for a run, and set the time to look again."""
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if run.finished:
            return
        now = self._loop.now()
        self._read_deadline(run, now)
        left = [] if run.main_alive else self._processes(run)
        life = Life(
            main_alive=run.main_alive,
            deadline=run.deadline,
            ending=run.ending,
            leftovers=len(left),
            asked_leftovers=sum(stat.group == run.record.pid for stat in left),
            killing_since=run.killing_since,
        )
        step = next_step(life, now)
        if step.act is Act.FINISH:
            if left:
                say(f"run {run.record.run_id}: {len(left)} processes survive SIGKILL; going on without them")
            self._finish(run)
            return
        if step.act is Act.ASK and run.deadline is not None:
            self._ask(run, by="deadline", kill_at=run.deadline.at)
            self._advance(run)
            return
        if step.act is Act.KILL:
            run.killing_since = now if run.killing_since is None else run.killing_since
            if run.main_alive:
                self._signal(run, signal.SIGKILL)
                left = self._processes(run)
            procfs.kill_all(left, signal.SIGKILL)
            run.looked_at = now
        if step.again_at is not None:
            run.timer = self._loop.call_at(step.again_at, lambda: self._advance(run))

    def _read_deadline(self, run: Run, now: float) -> None:
        """Take over a deadline that was moved in the table."""
        if run.record.slot != NO_SLOT:
            at = self._table.read(run.record.slot)
            if run.deadline is None or run.deadline.at != at:
                run.deadline = deadline_at(at, grace=run.record.grace, now=now)

    def _processes(self, run: Run) -> list[procfs.ProcessStat]:
        """The living processes of a run, those included that left its process group."""
        record = run.record
        if any(os.path.isdir(group) for group in record.cgroups):  # noqa: PTH112 - runs often
            stats = [procfs.read_stat(pid) for pid in cgroups.members(record.cgroups)]
            return [stat for stat in stats if stat is not None and stat.alive]
        census = self._take_census(not_before=run.looked_at)
        found = {stat.pid: stat for stat in census.of_run(record.run_id)}
        if run.is_child:
            found |= {stat.pid: stat for stat in census.of_session(record.pid, below=os.getpid())}
        return list(found.values())

    def _take_census(self, not_before: float) -> procfs.Census:
        """A look at every process; shared by runs that end together, because it reads all of /proc."""
        now = self._loop.now()
        if self._census is None or self._census[0] < not_before or now - self._census[0] > _CENSUS_LIFE:
            self._census = (now, procfs.Census(self._keeper_id))
            self._loop.call_at(now + _CENSUS_LIFE, self._drop_census)
        return self._census[1]

    def _drop_census(self) -> None:
        self._census = None

    def _finish(self, run: Run) -> None:
        run.finished = True
        if run.outputs is not None:
            run.outputs.tail()
            run.outputs.close()
            run.outputs = None
        self._remove_groups(run.record.cgroups)
        self._on_ended(run.record)

    def _remove_groups(self, groups: Sequence[str], tries: int = 50) -> None:
        left = cgroups.remove(groups)
        if left and tries:
            # A process that was just killed leaves its group a little later.
            self._loop.call_at(self._loop.now() + 0.1, lambda: self._remove_groups(left, tries - 1))

    # --- reaping ------------------------------------------------------------------------------------------

    def leads_idle_group(self, pid: int) -> bool:
        """Whether a child that has just ended was a main process whose group is to be killed at once."""
        run = self._mains.get(pid)
        return run is not None and run.ending is None and run.fresh is None

    def _hear_watchdog(self, run: Run) -> None:
        """A watchdog has ended its run at the deadline, or its main process has ended, or it is gone itself."""
        guard = run.watchdog
        if guard is None or guard.pipe < 0:
            return
        for word, number in guard.read():
            if word == watchdog.DEADLINE and run.main_alive and run.ending is None:
                run.ending = Ending(by="deadline", kill_at=self._loop.now())
                run.record = dataclasses.replace(run.record, ended_by="deadline")
            elif word == watchdog.EXIT:
                if self.leads_idle_group(run.record.pid):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(run.record.pid, signal.SIGKILL)
                self.child_ended(run.record.pid, number)
                self.settle()
                guard.release()
        if guard.silent:
            self._close_pipe(guard)

    def _close_pipe(self, guard: watchdog.Watchdog) -> None:
        if guard.pipe >= 0:
            self._loop.remove(guard.pipe)
            guard.close()

    def _watchdog_ended(self, run: Run) -> None:
        """A watchdog is gone. If its run is not, the kernel kills the main process now; nothing guards it."""
        self._hear_watchdog(run)
        if run.watchdog is not None:
            self._close_pipe(run.watchdog)
            run.watchdog = None
        if run.main_alive and not run.finished:
            say(f"run {run.record.run_id}: its watchdog was killed, and its main process with it")
            self._read_deadline(run, self._loop.now())
            if run.deadline is not None and run.deadline.at <= self._loop.now():
                run.record = dataclasses.replace(run.record, ended_by="deadline")
            procfs.kill_process(run.record.pid, run.record.start_time, signal.SIGKILL)

    def child_ended(self, pid: int, status: int) -> bool:
        """Take in the end of a child; whether it was one of a run. `settle` must follow."""
        guarded = self._watchdogs.pop(pid, None)
        if guarded is not None:
            self._watchdog_ended(guarded)
            return True
        run = self._mains.pop(pid, None)
        if run is None:
            return False
        self._check_report(run)
        if not run.finished:  # else it never got as far as exec
            code = os.waitstatus_to_exitcode(status)
            self._note_exit(run, ExitRecord(code=max(code, 0), signal=max(-code, 0)))
            self._unsettled.append(run)
        return True

    def settle(self) -> None:
        """See to what is left of the runs whose main processes have ended: all of them with one look at /proc."""
        unsettled, self._unsettled = self._unsettled, []
        for run in unsettled:
            self._advance(run)

    def _note_exit(self, run: Run, ending: ExitRecord) -> None:
        """Write an exit down and see to what is left of the run."""
        faults.reach("keeper.exit.before")
        run.main_alive = False
        if run.button is not None:
            run.button.release()
        if run.pidfd >= 0:
            self._loop.remove(run.pidfd)
            os.close(run.pidfd)
            run.pidfd = -1
        badly = ending.unknown or ending.code != 0 or ending.signal != 0
        run.record = dataclasses.replace(
            run.record,
            exit=dataclasses.replace(
                ending,
                ended_at_ms=self._loop.clock.wall_ms(),
                out_of_memory=badly and cgroups.ran_out_of_memory(run.record.cgroups),
            ),
            last_output=run.outputs.tail() if run.outputs is not None else run.record.last_output,
        )
        run.looked_at = self._loop.now()
        self._write_exit(run)

    def _write_exit(self, run: Run) -> None:
        try:
            write_record(self._files, run.record)
        except OSError as error:
            # Told anyway: an agent that knows can write it down itself, and one that does not would wait for ever.
            say(f"run {run.record.run_id}: its exit cannot be written yet: {error}")
            self._loop.call_at(self._loop.now() + 1.0, lambda: self._write_exit_again(run))

    def _write_exit_again(self, run: Run) -> None:
        if self._runs.get(run.record.run_id) is run:
            self._write_exit(run)

    # --- after a crash ------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Take up what an earlier keeper left: watch what still runs, and say "unknown" of what does not."""
        make_spares(self._files)
        records, broken = load_records(self._files)
        for path in broken:
            say(f"{path} is not a run record and is left alone")
        census = self._take_census(not_before=self._loop.now())
        for record in find_unexplained(
            census, self._groups.stray(records), records, boot_id=self._boot_id, clock=self._loop.clock
        ):
            say(f"run {record.run_id} has no readable record; its processes were found (pid {record.pid})")
            records[record.run_id] = record
            self._write_record(record)
        marked = census.runs
        for stored in records.values():
            record = dataclasses.replace(stored, slot=NO_SLOT)  # it was one of another keeper's table
            if record.exit is None or record.run_id in marked or cgroups.members(record.cgroups):
                self._take_up(record)
            else:
                run = Run(record, is_child=False, main_alive=False)
                run.finished = True
                self._runs[record.run_id] = run
                self._remove_groups(record.cgroups)
        # Made by a keeper that died before it wrote the run down; the child that was to enter has died with it.
        self._remove_groups(self._groups.stray(self._runs))

    def _write_record(self, record: RunRecord) -> None:
        try:
            write_record(self._files, record)
        except OSError as error:
            say(f"run {record.run_id}: its record cannot be written: {error}")

    def _take_up(self, record: RunRecord) -> None:
        here = record.boot_id == self._boot_id
        alive = here and record.exit is None and procfs.is_running(record.pid, record.start_time)
        run = Run(record, is_child=False, main_alive=alive)
        self._runs[record.run_id] = run
        if record.exit is None:
            run.outputs = Outputs(
                self._files, self._loop, self.book, run_id=record.run_id, workload_id=record.workload_id
            )
            run.outputs.recall(record.started_at_ms)
            run.outputs.reopen()
        if alive:
            if record.at_most_one:
                # It should have died with the keeper that held its deadline. Nobody may rely on that deadline now.
                self._ask(run, by="deadline", kill_at=self._loop.now())
            self._watch_stranger(run)
        elif record.exit is None:
            self._note_exit(run, ExitRecord(unknown=True))
        self._advance(run)  # also for leftovers of a run that has ended, if the keeper died while it killed them

    def _watch_stranger(self, run: Run) -> None:
        """Learn of the end of a process that is not our child. How it ended cannot be learned."""
        try:
            run.pidfd = os.pidfd_open(run.record.pid)
        except OSError:
            self._poll_stranger(run)
            return
        self._loop.add_reader(run.pidfd, lambda: self._check_stranger(run))
        self._check_stranger(run)  # it may have gone before the descriptor was there

    def _check_stranger(self, run: Run) -> None:
        if run.main_alive and not procfs.is_running(run.record.pid, run.record.start_time):
            self._note_exit(run, ExitRecord(unknown=True))
            self._advance(run)

    def _poll_stranger(self, run: Run) -> None:
        self._check_stranger(run)
        if run.main_alive:
            self._loop.call_at(self._loop.now() + _POLL, lambda: self._poll_stranger(run))
