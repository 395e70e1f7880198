"""The stream of `shoal demo`: clicks and impressions joined in event time while the fleet around it is taken apart.

A feed that sends traffic (`examples/clicks/feed.py`) is a workload, and the program (`examples/clicks/clicks.py`) is a
job of two task hosts and a coordinator. The demo reads the results as they become readable, and compares them with the
expected results at the end. Called by `shoal.cli.local.demo`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli import output
from shoal.cli.local.demo_stage import PATIENCE, Report, pid_of, process_document, until, wait_for
from shoal.cli.local.examples import examples_folder, make_importable
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column
from shoal.core.clock import Clock
from shoal.core.errors import DeadlineError, PreconditionError, ShoalError
from shoal.core.ids import JobId
from shoal.core.tasks import task_scope
from shoal.dataflow.fleet.progress import COORDINATOR, workload_of
from shoal.model.jobs import JobState
from shoal.model.phases import ContractStatus
from shoal.topics.local import LocalTopics

make_importable()  # the example is no part of the package: what follows needs it

from clicks import audit, traffic  # noqa: E402
from clicks.audit import Findings, Rules, Sent, Total  # noqa: E402
from clicks.feed import LOG, PARTITIONS, close_windows, read_progress  # noqa: E402
from clicks.watch import Sample, Watch, calm, longest_silence, quantile  # noqa: E402

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.dataflow.execution.remote.submitting import CollectedJob
    from shoal.model.views import WorkloadView

#: The job, and the workload that feeds it.
JOB, FEED = JobId("clicks"), "feed"
TASK_HOSTS = 2
#: The task host that is killed, once with its machine and once alone.
VICTIM = workload_of(JOB, "0")

_RULES = Rules()
#: A killed process is started again after this delay.
_RESTART = {"policy": "always", "delay": "200ms"}
#: A row that came twice would come right behind its first.
_AFTERMATH = 0.3
#: By then everything has come, or never will.
_SETTLES_WITHIN = 15.0

_TABLE = (
    Column("AD"),
    Column("SHOWN", right=True),
    Column("CLICKED", right=True),
    Column("RATE", right=True),
)


@contextlib.asynccontextmanager
async def stream_on_show(folder: Path, clock: Clock) -> AsyncIterator[StreamOnShow]:
    """The acts of the stream, with a reader that prints its results."""
    place = folder / "stream"
    place.mkdir()
    with Watch(str(place / LOG), clock) as watch:
        async with task_scope("demo-stream") as scope:
            shown = StreamOnShow(place, watch, clock)
            scope.start(shown.tell(), name="windows")
            yield shown


class StreamOnShow:
    """A stream program on the fleet: started, killed, and checked."""

    def __init__(self, folder: Path, watch: Watch, clock: Clock) -> None:
        self._folder = folder
        self._watch = watch
        self._clock = clock
        self._began = 0.0
        self._kills: list[float] = []

    # -- acts -----------------------------------------------------------------------------------------------

    async def act_start(self, control: ControlPlane, report: Report) -> None:
        """Put the feed and the program on the fleet, and wait for the first rows."""
        report.act(
            f"clicks and impressions, joined in event time, live: a job of {TASK_HOSTS} task hosts on the agents"
        )
        began, self._began = self._clock.monotonic(), self._now()
        await control.apply(
            process_document(
                FEED,
                [sys.executable, "-m", "clicks.feed", str(self._folder)],
                cpu=500,
                memory=512,
                restart=_RESTART,
                # A killed process leaves temporary files behind: they are deleted with the folder.
                env={"TMPDIR": str(self._folder), "PYTHONPATH": str(examples_folder())},
            )
        )
        await self._submit(control)
        await self._until_back(control)
        seconds = self._clock.monotonic() - began
        output.words(f"first rows {seconds:.1f} s after submit; from here on the stream runs through everything below")
        report.note(True, f"a stream job on the fleet emitted its first rows after {seconds:.1f} s")

    async def _submit(self, control: ControlPlane) -> None:
        from shoal.dataflow.execution.remote.submitting import submit_job

        packed = await _pack(self._folder)
        await submit_job(control, packed, job_id=JOB)

    def note_kill(self) -> None:
        """A part of the job was killed just now."""
        self._kills.append(self._now())

    async def act_kill(self, control: ControlPlane, report: Report) -> None:
        """Kill a task host and the feed, let them come back, and check that everything was counted once."""
        await self._until_back(control)
        report.act("kill -9 a task host and the feed; the job goes on from its checkpoint, the feed sends again")
        before = {name: pid_of(await control.get_workload(name)) for name in (VICTIM, FEED)}
        for pid in before.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.note_kill()
        for name, pid in before.items():
            await wait_for(control, self._clock, name, _runs_anew(pid))
        await self._until_back(control)
        await self._clock.sleep(0.7)  # some rows after the kill, which are as fresh as those before it
        sent = await self._finish(control)
        self._report(sent, await self._settled(sent), report)

    async def act_stop(self, control: ControlPlane, report: Report) -> None:
        """Stop the job with a savepoint."""
        report.act("stop the job with a savepoint")
        began = self._clock.monotonic()
        await control.savepoint_job(JOB, stop=True)
        view = await control.wait_for_job(JOB, lambda job: job.state is JobState.STOPPED, timeout=PATIENCE)
        seconds = self._clock.monotonic() - began
        output.words(view.message)
        report.note(True, f"the job was Stopped {seconds:.1f} s after it was asked for a savepoint")

    async def _finish(self, control: ControlPlane) -> Sent:
        """End the feed, and let event time pass the end of every window. What was sent is known then."""
        await control.delete(FEED)

        async def gone() -> bool:
            return FEED not in {view.workload_id for view in await control.list_workloads()}

        await until(self._clock, "the feed is gone", gone)
        progress = read_progress(self._folder)
        if progress is None:
            raise PreconditionError("the feed never began")
        await asyncio.to_thread(close_windows, self._folder, progress, self._clock)
        return audit.sent(progress.start, progress.next)

    async def _settled(self, sent: Sent) -> Findings:
        """What is wrong when everything has come, or when it should have."""
        deadline = self._clock.monotonic() + _SETTLES_WITHIN
        while not self._findings(sent).good and self._clock.monotonic() < deadline:
            await self._clock.sleep(0.1)
        await self._clock.sleep(_AFTERMATH)
        return self._findings(sent)

    def _findings(self, sent: Sent) -> Findings:
        return audit.audit(sent, self._watch.came(), _RULES)

    # -- telling --------------------------------------------------------------------------------------------

    async def tell(self) -> None:
        """One line for each window, as it closes."""
        told, sampled = 0, 0
        while True:
            await self._clock.sleep(0.1)
            totals = self._watch.totals(told)
            windows = len(totals) // len(traffic.ADS)
            if windows:
                samples = self._watch.samples(sampled)
                told, sampled = told + windows * len(traffic.ADS), sampled + len(samples)
                self._tell_windows(windows, totals[: windows * len(traffic.ADS)], samples)

    def _tell_windows(self, windows: int, totals: Sequence[Total], samples: Sequence[Sample]) -> None:
        shown, clicked = sum(each.shown for each in totals), sum(each.clicked for each in totals)
        closed = "1 window" if windows == 1 else f"{windows} windows"
        fresh = f"; rows readable {quantile(samples, 0.5):.2f} s after the click" if samples else ""
        output.words(
            f"  {output.local_time(self._clock.wall())}  {JOB:<10} {closed} closed: {shown:,} shown, "
            f"{clicked:,} clicked ({clicked / max(1, shown):.0%}){fresh}"
        )

    def _report(self, sent: Sent, findings: Findings, report: Report) -> None:
        self._show()
        came, samples = self._watch.came(), self._watch.samples()
        quiet = calm(samples, (self._began, *self._kills))
        repeated = self._repeated(sent)
        late = len(set(came.late) & sent.clicks.keys() - set(came.joined))
        report.note(
            findings.good,
            f"{len(came.joined):,} of {len(sent.clicks):,} clicks joined with their impression, none lost, none twice"
            if findings.good
            else f"the stream's results are wrong: {findings}",
        )
        report.note(
            repeated > 0 and findings.good,
            f"{len(came.totals) // len(traffic.ADS)} windows add up over {len(sent.impressions):,} impressions, "
            f"with {repeated:,} events sent twice and {late} too late",
        )
        silence = longest_silence(samples, self._kills)
        report.note(
            bool(quiet),
            f"from a click's append to its joined row: p50 {quantile(quiet, 0.5) * 1000:.0f} ms, "
            f"p99 {quantile(quiet, 0.99) * 1000:.0f} ms; back {silence:.1f} s after a kill at most",
        )

    def _repeated(self, sent: Sent) -> int:
        """How many events the topics have more than once."""
        with LocalTopics(self._folder / LOG) as topics:
            partitions = [
                each for name in ("impressions", "clicks") for each in topics.describe(name).topic_partitions()
            ]
            appended = sum(topics.next_offsets(partitions).values())
        return appended - len(sent.impressions) - len(sent.clicks) - 2 * PARTITIONS

    def _show(self) -> None:
        totals = self._watch.totals()
        rows: list[list[str | Cell]] = []
        for ad in traffic.ADS:
            shown = sum(each.shown for each in totals if each.ad == ad)
            clicked = sum(each.clicked for each in totals if each.ad == ad)
            rows.append([ad, f"{shown:,}", f"{clicked:,}", f"{clicked / max(1, shown):.1%}"])
        output.table(_TABLE, rows)

    async def _until_back(self, control: ControlPlane) -> None:
        """Wait for a row of a click that was sent after the start, or after the last kill."""
        last = max(self._began, *self._kills) if self._kills else self._began

        async def back() -> bool:
            return any(each.appended > last for each in self._watch.samples())

        try:
            await until(self._clock, "the stream emits rows", back)
        except DeadlineError:
            await _tell_last_words(control)
            raise

    def _now(self) -> float:
        return self._clock.wall().timestamp()


def _runs_anew(former: int) -> Callable[[WorkloadView], bool]:
    return lambda view: view.status == ContractStatus.RUNNING and pid_of(view) not in (0, former)


async def _pack(folder: Path) -> CollectedJob:
    """The program as a job whose log and checkpoints are in a folder."""
    from shoal.cli.programs.loading import load_program
    from shoal.dataflow.api.context import Launch

    program = load_program("clicks.clicks:app", Launch(data_dir=str(folder), is_remote=True))
    (flow,) = program.app.choose(program.dataflows)
    return await flow.pack(TASK_HOSTS)


async def _tell_last_words(control: ControlPlane) -> None:
    """Print the end of the coordinator's log: it says why no rows come, if anything does."""
    with contextlib.suppress(ShoalError):
        async with contextlib.aclosing(control.logs(workload_of(JOB, COORDINATOR), tail=20)) as pieces:
            async for piece in pieces:
                output.words(piece.data.decode(errors="replace").rstrip())
