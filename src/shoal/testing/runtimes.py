"""A runtime that runs nothing: runs are entries in a `FakeMachine`, which survives its agent.

Data scripts how a run behaves: a `FakeScript` given to the machine for a workload, or the same words in the environment
of its spec (`SHOAL_FAKE_RUN_FOR=3`), for tests that only apply workloads. Time is the event loop's, so under virtual
time a day of restarts takes no time. `FakeMachine.history` records everything that happens, for checks such as "never
two runs of one workload at once". Used by tests of the agent.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, UnavailableError, problem
from shoal.core.ids import RunId, WorkloadId
from shoal.model.execs import ExecCommand, ExecEnd
from shoal.model.logs import LogPiece, LogQuery
from shoal.model.workloads import Exit, FailureReason, FileSpec, Usage, WorkloadType
from shoal.runtimes.base import RunError, RunInfo, RunPhase, RunRequest, Tell

ENV_PREFIX = "SHOAL_FAKE_"


@dataclass(frozen=True, slots=True)
class FakeScript:
    """What becomes of the runs of a workload."""

    #: Seconds until it ends by itself; None: it runs until it is stopped.
    run_for: float | None = None
    exit_code: int = 0
    signal: int = 0
    #: Refuse to start, with these words. With `start_errors` only so many times.
    start_error: str = ""
    start_errors: int | None = None
    transient: bool = False
    failure: FailureReason = FailureReason.RUNTIME_ERROR
    #: Seconds that starting and stopping take.
    start_takes: float = 0.0
    stop_takes: float = 0.0
    #: A start that is canceled has taken effect all the same: its message was on the way.
    starts_anyway: bool = False
    #: Of a `FakeFetchingRuntime`: how long a fetch takes, and whether it fails then, as `failure` and `transient`.
    fetch_takes: float = 0.0
    fetch_error: str = ""
    #: What it tells half way through.
    fetch_says: str = ""
    #: Of a `FakeUpdatingRuntime`: refuse to prepare or to update a run, with these words, as `failure` and `transient`.
    prepare_error: str = ""
    update_error: str = ""
    prepare_takes: float = 0.0
    update_takes: float = 0.0
    #: Seconds after its start from which a command probe succeeds.
    ready_after: float = 0.0
    never_ready: bool = False
    #: Seconds after its start from which, and up to which, it hangs: command probes fail.
    hangs_from: float = math.inf
    hangs_until: float = math.inf
    output: str = ""

    @staticmethod
    def from_env(env: Mapping[str, str], otherwise: FakeScript) -> FakeScript:
        """The script in a spec's environment, or `otherwise`."""
        words = {name.removeprefix(ENV_PREFIX): value for name, value in env.items() if name.startswith(ENV_PREFIX)}
        if not words:
            return otherwise
        return FakeScript(
            run_for=float(words["RUN_FOR"]) if "RUN_FOR" in words else None,
            exit_code=int(words.get("EXIT_CODE", "0")),
            signal=int(words.get("SIGNAL", "0")),
            start_error=words.get("START_ERROR", ""),
            start_errors=int(words["START_ERRORS"]) if "START_ERRORS" in words else None,
            transient=words.get("TRANSIENT", "") == "true",
            start_takes=float(words.get("START_TAKES", "0")),
            stop_takes=float(words.get("STOP_TAKES", "0")),
            ready_after=float(words.get("READY_AFTER", "0")),
            never_ready=words.get("NEVER_READY", "") == "true",
            output=words.get("OUTPUT", ""),
        )


@dataclass(frozen=True, slots=True)
class FakeMoment:
    """Something that happened on the machine."""

    at: float
    #: fetching, fetched, prepared, started, updated, ended, forgotten, workload forgotten, data deleted
    what: str
    workload_id: str
    run_id: RunId = RunId("")
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class FakeOutput:
    """The output of one run."""

    time: datetime
    text: bytes


@dataclass(slots=True)
class _FakeRun:
    request: RunRequest
    script: FakeScript
    info: RunInfo
    started: float
    over: asyncio.Event = field(default_factory=asyncio.Event)
    end_timer: asyncio.TimerHandle | None = None
    deadline_timer: asyncio.TimerHandle | None = None


class FakeMachine:
    """The world in which runs live: it outlives the agent and its runtime."""

    def __init__(self, clock: Clock, *, script: FakeScript | None = None) -> None:
        self.clock = clock
        #: For workloads without a script of their own.
        self.script = script or FakeScript()
        self.scripts: dict[str, FakeScript] = {}
        self.history: list[FakeMoment] = []
        #: Set, every call of a runtime raises it: the machine does not answer.
        self.outage: Exception | None = None
        #: Set, nobody can tell which runs there are: as with an engine that is away since the agent started, and whose
        #: runs have no records.
        self.is_in_doubt = False
        self.runs: dict[str, _FakeRun] = {}
        self.logs: dict[str, list[FakeOutput]] = {}
        self.started_with: dict[str, RunRequest] = {}
        #: The files of runs that were replaced while they went on.
        self.files: dict[str, tuple[tuple[FileSpec, bytes], ...]] = {}
        #: What work directories use, in bytes, by workload.
        self.disk_used: dict[str, int] = {}
        #: How many seconds it takes to measure one.
        self.disk_walks: dict[str, float] = {}
        self._failed_starts: dict[str, int] = {}
        self._watchers: set[asyncio.Queue[RunInfo]] = set()
        self._pids = 1000

    def alive(self, workload_id: str) -> list[RunInfo]:
        """The runs of a workload that are running."""
        return [
            run.info
            for run in self.runs.values()
            if run.info.workload_id == workload_id and run.info.phase is RunPhase.RUNNING
        ]

    def kill(self, run_id: RunId, *, code: int = 0, signal: int = 9, unknown: bool = False) -> None:
        """End a run from outside."""
        self._end(run_id, Exit(code=code, signal=signal, unknown=unknown, ended_at=self.clock.wall()), "")

    def most_at_once(self, workload_id: str) -> int:
        """How many runs of a workload there were at the same time, at most."""
        now = most = 0
        for moment in self.history:
            if moment.workload_id == workload_id and moment.what in ("started", "ended"):
                now += 1 if moment.what == "started" else -1
                most = max(most, now)
        return most

    def count(self, what: str, workload_id: str) -> int:
        """How often something happened to a workload."""
        return sum(1 for moment in self.history if (moment.what, moment.workload_id) == (what, workload_id))

    # What a FakeRuntime asks for.

    def check(self) -> None:
        """Raise the outage, if there is one."""
        if self.outage is not None:
            raise self.outage

    def check_certain(self) -> None:
        """Raise the outage, and `UnavailableError` while nobody can tell which runs there are."""
        self.check()
        if self.is_in_doubt:
            raise UnavailableError("the engine is away")

    def script_of(self, request: RunRequest) -> FakeScript:
        """How the runs of a workload behave."""
        given = self.scripts.get(request.workload_id, self.script)
        return FakeScript.from_env(getattr(request.spec, "env", {}), given)

    def begin(self, request: RunRequest, script: FakeScript) -> RunInfo:
        """Start a run, or return the one of that id."""
        known = self.runs.get(request.run_id)
        if known is not None:
            return known.info
        failed = self._failed_starts.get(request.workload_id, 0)
        if script.start_error and (script.start_errors is None or failed < script.start_errors):
            self._failed_starts[request.workload_id] = failed + 1
            raise RunError(script.start_error, failure=script.failure, transient=script.transient)
        self._pids += 1
        info = RunInfo(
            run_id=request.run_id,
            workload_id=request.workload_id,
            phase=RunPhase.RUNNING,
            started_at=self.clock.wall(),
            pid=self._pids,
            ports=dict(request.ports),
        )
        run = _FakeRun(request=request, script=script, info=info, started=self.clock.monotonic())
        self.runs[request.run_id] = run
        self.started_with[request.run_id] = request
        self.logs.setdefault(request.workload_id, []).append(FakeOutput(self.clock.wall(), script.output.encode()))
        self._note("started", info)
        loop = asyncio.get_running_loop()
        if script.run_for is not None:
            code = Exit(code=script.exit_code, signal=script.signal)
            run.end_timer = loop.call_later(script.run_for, self._end, request.run_id, code, "")
        if request.deadline is not None:
            self.set_deadline(request.run_id, request.deadline)
        return info

    def set_deadline(self, run_id: RunId, until: float) -> None:
        """End a run at a moment of the clock, unless this is called again before."""
        run = self.runs.get(run_id)
        if run is None or run.info.phase is RunPhase.ENDED:
            return
        if run.deadline_timer is not None:
            run.deadline_timer.cancel()
        loop = asyncio.get_running_loop()
        left = max(0.0, until - self.clock.monotonic())
        run.deadline_timer = loop.call_later(left, self._end, run_id, Exit(signal=15), "deadline")

    async def stop(self, run_id: RunId) -> RunInfo | None:
        """End a run and wait for its end."""
        run = self.runs.get(run_id)
        if run is None:
            return None
        if run.info.phase is RunPhase.RUNNING:
            asyncio.get_running_loop().call_later(run.script.stop_takes, self._end, run_id, Exit(signal=15), "stop")
            await run.over.wait()
        return run.info

    def forget(self, run_id: RunId) -> None:
        """Drop a run that has ended. Raises `PreconditionError` for one that has not."""
        run = self.runs.get(run_id)
        if run is None:
            return
        if run.info.phase is RunPhase.RUNNING:
            raise PreconditionError(f"run {run_id!r} has not ended")
        del self.runs[run_id]
        self._note("forgotten", run.info)

    def forget_workload(self, workload_id: WorkloadId, *, delete_data: bool) -> None:
        """Drop everything of a workload. Raises `PreconditionError` while a run of it has not ended."""
        if self.alive(workload_id):
            raise PreconditionError(f"workload {workload_id!r} has a run that has not ended")
        for run_id in [run_id for run_id, run in self.runs.items() if run.info.workload_id == workload_id]:
            del self.runs[run_id]
        self.logs.pop(workload_id, None)
        self.history.append(FakeMoment(self.clock.monotonic(), "workload forgotten", workload_id))
        if delete_data:
            self.history.append(FakeMoment(self.clock.monotonic(), "data deleted", workload_id))

    def note(self, what: str, request: RunRequest) -> None:
        """Record something about a request."""
        self.history.append(FakeMoment(self.clock.monotonic(), what, request.workload_id, request.run_id))

    def update(self, run_id: RunId, request: RunRequest, script: FakeScript) -> RunInfo:
        """Change a run. Raises `RunError` for one that has ended."""
        run = self.runs.get(run_id)
        if run is None or run.info.phase is RunPhase.ENDED:
            raise RunError(f"run {run_id!r} has ended", failure=FailureReason.RUNTIME_ERROR, transient=True)
        run.request, run.script = request, script
        self.started_with[run_id] = request
        self.note("updated", request)
        return run.info

    async def ends(self) -> AsyncIterator[RunInfo]:
        """Each run as it ends, those that have ended already first."""
        queue: asyncio.Queue[RunInfo] = asyncio.Queue()
        for run in self.runs.values():
            if run.info.phase is RunPhase.ENDED:
                queue.put_nowait(run.info)
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    def _end(self, run_id: RunId, exit_: Exit, ended_by: str) -> None:
        run = self.runs.get(run_id)
        if run is None or run.info.phase is RunPhase.ENDED:
            return
        for timer in (run.end_timer, run.deadline_timer):
            if timer is not None:
                timer.cancel()
        run.info = replace(
            run.info,
            phase=RunPhase.ENDED,
            exit=replace(exit_, ended_at=self.clock.wall()),
            last_output=run.script.output,
            ended_by=ended_by,
            pid=0,
        )
        self._note("ended", run.info, ended_by)
        run.over.set()
        for queue in self._watchers:
            queue.put_nowait(run.info)

    def _note(self, what: str, info: RunInfo, ended_by: str = "") -> None:
        self.history.append(FakeMoment(self.clock.monotonic(), what, info.workload_id, info.run_id, ended_by))


class FakeRuntime:
    """An agent's connection to a `FakeMachine`. Several may follow each other, as agents do."""

    def __init__(self, machine: FakeMachine, *, type: WorkloadType = WorkloadType.PROCESS) -> None:  # noqa: A002 - as in the protocol
        self._machine = machine
        self._type = type

    @property
    def type(self) -> WorkloadType:
        """The kind of workload it runs."""
        return self._type

    async def open(self) -> None:
        """Nothing to do: the machine has everything."""
        self._machine.check()

    async def start(self, request: RunRequest) -> RunInfo:
        """Start a run."""
        self._machine.check_certain()
        script = self._machine.script_of(request)
        if script.start_takes:
            try:
                await self._machine.clock.sleep(script.start_takes)
            except asyncio.CancelledError:
                if script.starts_anyway:
                    self._machine.begin(request, script)
                raise
        self._machine.check_certain()
        return self._machine.begin(request, script)

    async def stop(self, run_id: RunId) -> RunInfo | None:
        """End a run."""
        self._machine.check_certain()
        return await self._machine.stop(run_id)

    async def inspect(self, run_id: RunId) -> RunInfo | None:
        """What is known of a run."""
        self._machine.check_certain()
        run = self._machine.runs.get(run_id)
        return run.info if run is not None else None

    async def list_runs(self) -> tuple[RunInfo, ...]:
        """Every run that is not forgotten."""
        self._machine.check()
        if self._machine.is_in_doubt:
            return ()
        return tuple(run.info for run in self._machine.runs.values())

    async def forget(self, run_id: RunId) -> None:
        """Let go of an ended run."""
        self._machine.check()
        self._machine.forget(run_id)

    async def forget_workload(self, workload_id: WorkloadId, *, delete_data: bool) -> None:
        """Let go of what is kept for a workload."""
        self._machine.check_certain()
        self._machine.forget_workload(workload_id, delete_data=delete_data)

    def watch(self) -> AsyncIterator[RunInfo]:
        """Each run as it ends."""
        return self._machine.ends()

    async def health(self) -> str:
        """How the machine is."""
        return "healthy" if self._machine.outage is None else f"unhealthy: {self._machine.outage}"

    async def close(self) -> None:
        """Nothing to do."""

    async def read_logs(self, workload_id: WorkloadId, query: LogQuery) -> AsyncIterator[LogPiece]:
        """The output of the scripts. A position counts the pieces before it."""
        kept = self._machine.logs.get(workload_id, [])
        if query.previous and len(kept) < 2:
            raise NotFoundError("previous run of workload", workload_id)
        if query.after and not (query.after.isascii() and query.after.isdigit() and len(query.after) <= 9):
            raise InvalidError([problem("after", query.after, "must be the position of an earlier piece")])
        begin = int(query.after or 0)
        chosen = list(enumerate(kept))[-2:-1] if query.previous else list(enumerate(kept))[begin:]
        lines = [
            (index, each.time, line)
            for index, each in chosen
            if query.since is None or query.after or each.time >= query.since
            for line in each.text.splitlines(keepends=True)
        ]
        lines = lines[-query.tail_lines :] if query.tail_lines and not query.after else lines
        for index, run in itertools.groupby(lines, key=lambda line: line[0]):
            texts = [(time, line) for _, time, line in run]
            time = texts[0][0] if query.times else None
            yield LogPiece(b"".join(line for _, line in texts), time=time, position=str(index + 1))
        while query.follow and not query.previous:
            await self._machine.clock.sleep(3600)

    async def usage(self, run_id: RunId) -> Usage | None:
        """The same for every run."""
        run = self._machine.runs.get(run_id)
        if run is None or run.info.phase is RunPhase.ENDED:
            return None
        return Usage(
            cpu_percent=1.0, memory_bytes=1024 * 1024, collected_at=self._machine.clock.wall(), source=self._type.value
        )

    async def disk_usage(self, workload_id: WorkloadId, *, at_most: int) -> int:
        """As the machine says."""
        del at_most
        self._machine.check()
        await self._machine.clock.sleep(self._machine.disk_walks.get(workload_id, 0.0))
        return self._machine.disk_used.get(workload_id, 0)

    async def extend_deadlines(self, run_ids: tuple[RunId, ...], until: float) -> None:
        """Move deadlines on."""
        self._machine.check()
        for run_id in run_ids:
            self._machine.set_deadline(run_id, until)

    async def replace_files(self, run_id: RunId, files: tuple[tuple[FileSpec, bytes], ...]) -> None:
        """Note the new contents."""
        self._machine.check()
        self._machine.files[run_id] = files

    async def run_probe(self, run_id: RunId, command: tuple[str, ...], *, timeout: float) -> bool:
        """Whether the script says that the run is ready by now."""
        del command, timeout
        self._machine.check()
        run = self._machine.runs.get(run_id)
        if run is None or run.info.phase is RunPhase.ENDED or run.script.never_ready:
            return False
        age = self._machine.clock.monotonic() - run.started
        return age >= run.script.ready_after and not run.script.hangs_from <= age < run.script.hangs_until

    async def exec(self, run_id: RunId, command: ExecCommand) -> FakeSession:
        """Run `true`, `false` or `cat`; there is no other program."""
        self._machine.check()
        run = self._machine.runs.get(run_id)
        if run is None or run.info.phase is RunPhase.ENDED:
            raise PreconditionError(f"run {run_id!r} does not run")
        name = command.command[0]
        if name not in ("true", "false", "cat"):
            raise RunError(f"program {name!r}: not found", failure=FailureReason.INVALID_SPEC)
        session = FakeSession(ExecEnd(code=int(name == "false")))
        if name != "cat" or not command.interactive:
            await session.end_input()
        return session


class FakeSession:
    """A command that prints its input, and ends with it."""

    def __init__(self, end: ExecEnd) -> None:
        self._end = end
        self._input: asyncio.Queue[bytes] = asyncio.Queue(maxsize=8)
        self.sizes: list[tuple[int, int]] = []

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """What it was given."""
        while data := await self._input.get():
            yield "stdout", data

    async def write(self, data: bytes) -> None:
        """Hand it input."""
        if data:
            await self._input.put(data)

    async def end_input(self) -> None:
        """No more input."""
        await self._input.put(b"")

    async def resize(self, rows: int, columns: int) -> None:
        """Note the size."""
        self.sizes.append((rows, columns))

    async def wait(self) -> ExecEnd:
        """How it ended."""
        return self._end

    async def close(self) -> None:
        """Nothing is left of it."""


class FakeFetchingRuntime(FakeRuntime):
    """One that fetches what a run needs before it starts it."""

    async def fetch(self, request: RunRequest, *, tell: Tell | None = None) -> None:
        """Pretend, or fail as the script says."""
        self._machine.check()
        script = self._machine.script_of(request)
        self._machine.note("fetching", request)
        await self._machine.clock.sleep(script.fetch_takes / 2)
        if tell is not None and script.fetch_says:
            tell(script.fetch_says)
        await self._machine.clock.sleep(script.fetch_takes / 2)
        if script.fetch_error:
            raise RunError(script.fetch_error, failure=script.failure, transient=script.transient)
        self._machine.note("fetched", request)


class FakePreparingRuntime(FakeRuntime):
    """One that prepares a run before the old one of an update is stopped."""

    async def prepare(self, request: RunRequest) -> None:
        """Pretend, or refuse as the script says."""
        self._machine.check()
        script = self._machine.script_of(request)
        await self._machine.clock.sleep(script.prepare_takes)
        if script.prepare_error:
            raise RunError(script.prepare_error, failure=script.failure, transient=script.transient)
        self._machine.note("prepared", request)


class FakeUpdatingRuntime(FakePreparingRuntime):
    """One that also changes runs in place."""

    async def update(self, run_id: RunId, request: RunRequest) -> RunInfo:
        """Note the new request, or refuse as the script says."""
        self._machine.check()
        script = self._machine.script_of(request)
        await self._machine.clock.sleep(script.update_takes)
        if script.update_error:
            raise RunError(script.update_error, failure=script.failure, transient=script.transient)
        return self._machine.update(run_id, request, script)
