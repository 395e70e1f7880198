"""What every runtime promises, whatever it runs.

A test module makes a subclass per backend and overrides the fixture `make_runtime`; a backend that does not run shell
scripts as processes also overrides `make_request`:

    class TestProcess(RuntimeSuite):
        __test__ = True

        @pytest.fixture
        def make_runtime(self, tmp_path: Path) -> Callable[[], Runtime]:
            return lambda: ProcessRuntime(tmp_path, clock=SystemClock(), node_id=NodeId("n1"))

Every call of `make_runtime` within a test gives a new object on the same ground, as a restarted agent would have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import NotFoundError, PreconditionError, ShoalError, UnsupportedError
from shoal.core.ids import RunId, WorkloadId
from shoal.model.execs import ExecCommand, ExecEnd, WindowSize
from shoal.model.logs import LogQuery
from shoal.model.resources import Resources
from shoal.model.workloads import FailureReason, ProcessSpec, StopPolicy
from shoal.runtimes.base import (
    RunError,
    RunInfo,
    RunPhase,
    RunRequest,
    Runtime,
    SupportsDeadlines,
    SupportsExec,
    SupportsLogs,
    SupportsProbes,
    SupportsUsage,
)

T = TypeVar("T")

_LONG = 60.0
_FOREVER = "exec sleep 1000"

MakeRuntime = Callable[[], Runtime]
Opened = Callable[[], Awaitable[Runtime]]


class RuntimeSuite:
    """Conformance of a runtime."""

    __test__ = False

    #: Whether the backend holds a run to its memory limit here. The reason why not, to skip with.
    limits_memory: str | bool = True
    #: Whether the end of a run has an exit code, whether a stop is a signal, and whether output has two streams. The
    #: reason why not, to skip with.
    exit_codes: str | bool = True
    stop_signals: str | bool = True
    streams: str | bool = True
    #: Whether a command can be run beside the runs of this suite. The reason why not: then it is refused.
    runs_commands: str | bool = True
    #: Why a run fails whose program does not exist.
    missing_program = FailureReason.INVALID_SPEC
    #: The exit codes of runs that are started together.
    exits = (0, 1, 3, 255)

    @pytest.fixture
    def make_runtime(self) -> MakeRuntime:
        """Makes runtimes that share what they stand on."""
        raise NotImplementedError

    @pytest.fixture
    async def opened(self, make_runtime: MakeRuntime) -> AsyncIterator[Opened]:
        """Opens runtimes, and ends every run when the test is over."""
        runtimes: list[Runtime] = []

        async def open_one() -> Runtime:
            runtime = make_runtime()
            await runtime.open()
            runtimes.append(runtime)
            return runtime

        yield open_one
        for runtime in runtimes:
            with suppress(ShoalError):
                for run in await runtime.list_runs():
                    await runtime.stop(run.run_id)
            await runtime.close()

    @pytest.fixture
    async def runtime(self, opened: Opened) -> Runtime:
        """One opened runtime."""
        return await opened()

    def make_request(
        self,
        script: str,
        *,
        run_id: str = "web-1",
        workload_id: str = "web",
        env: Mapping[str, str] | None = None,
        stop: StopPolicy | None = None,
        ports: Mapping[str, int] | None = None,
        limits: Resources | None = None,
        deadline: float | None = None,
    ) -> RunRequest:
        """A run of a shell script."""
        spec = ProcessSpec(command=("/bin/sh", "-c", script), env=env or {}, stop=stop or StopPolicy())
        return RunRequest(
            run_id=RunId(run_id),
            workload_id=WorkloadId(workload_id),
            spec=spec,
            limits=limits or Resources(),
            ports=ports or {},
            identity={"SHOAL_TEST_IDENTITY": "this one"},
            deadline=None if deadline is None else SystemClock().monotonic() + deadline,
        )

    def make_missing_program(self, run_id: str) -> RunRequest:
        """A run that cannot start because what it is to run does not exist."""
        spec = ProcessSpec(command=("/nowhere/no-such-program",))
        return RunRequest(run_id=RunId(run_id), workload_id=WorkloadId("web"), spec=spec)

    # --- starting and ending ------------------------------------------------------------------------------

    async def test_a_run_runs_until_it_is_stopped(self, runtime: Runtime) -> None:
        started = await runtime.start(self.make_request(_FOREVER))
        assert (started.run_id, started.workload_id, started.phase) == ("web-1", "web", RunPhase.RUNNING)
        assert started.exit is None
        assert started.pid > 0
        assert await runtime.inspect(RunId("web-1")) == started
        assert await runtime.list_runs() == (started,)
        with pytest.raises(PreconditionError):
            await runtime.forget(RunId("web-1"))
        with pytest.raises(PreconditionError):
            await runtime.forget_workload(WorkloadId("web"), delete_data=False)
        assert await runtime.inspect(RunId("web-1")) == started
        stopped = await runtime.stop(RunId("web-1"))
        assert stopped is not None
        assert (stopped.phase, stopped.ended_by) == (RunPhase.ENDED, "stop")
        assert stopped.exit is not None
        assert self.exit_codes is not True or stopped.exit.signal == 15
        assert not stopped.exit.unknown
        assert stopped.exit.ended_at is not None
        assert stopped.exit.ended_at >= started.started_at
        assert await runtime.inspect(RunId("web-1")) == stopped
        assert await runtime.stop(RunId("web-1")) == stopped

    async def test_an_end_by_a_signal_is_reported(self, runtime: Runtime) -> None:
        if self.exit_codes is not True:
            pytest.skip(str(self.exit_codes))
        await runtime.start(self.make_request("kill -KILL $$"))
        ended = await wait_ended(runtime, "web-1")
        assert ended.exit is not None
        assert (ended.exit.code, ended.exit.signal, ended.exit.unknown) == (0, 9, False)
        assert ended.ended_by == ""

    async def test_a_start_that_fails_says_why_and_leaves_nothing(self, runtime: Runtime) -> None:
        with pytest.raises(RunError) as raised:
            await runtime.start(self.make_missing_program("web-1"))
        assert raised.value.failure is self.missing_program
        assert not raised.value.transient
        assert "no-such-program" in raised.value.message
        assert await runtime.inspect(RunId("web-1")) is None
        assert await runtime.list_runs() == ()
        # The same run can be tried again, and the failure is the same.
        with pytest.raises(RunError):
            await runtime.start(self.make_missing_program("web-1"))

    async def test_starting_twice_is_one_start(self, runtime: Runtime) -> None:
        request = self.make_request("echo started; exec sleep 1000")
        first, second = await asyncio.gather(runtime.start(request), runtime.start(request))
        third = await runtime.start(request)
        assert first == second == third
        assert len(await runtime.list_runs()) == 1
        if isinstance(runtime, SupportsLogs):
            await wait_output(runtime, b"started\n")
        await runtime.stop(RunId("web-1"))
        fourth = await runtime.start(request)
        assert fourth.phase is RunPhase.ENDED
        assert fourth.pid == first.pid
        if isinstance(runtime, SupportsLogs):
            assert await read_all(runtime) == b"started\n"

    async def test_a_start_that_is_canceled_is_ended_by_a_stop(self, runtime: Runtime) -> None:
        # Whatever it is doing at that moment; the last one is done.
        for number, moment in enumerate((0.0, 0.01, 0.1, 0.4, _LONG), 1):
            run_id = RunId(f"web-{number}")
            starting = asyncio.ensure_future(runtime.start(self.make_request(_FOREVER, run_id=run_id)))  # noqa: TID251
            await asyncio.wait({starting}, timeout=moment)
            starting.cancel()
            await asyncio.wait({starting})
            ended = await runtime.stop(run_id)
            assert ended is None or ended.phase is RunPhase.ENDED
            assert moment != _LONG or ended is not None
            assert all(run.phase is RunPhase.ENDED for run in await runtime.list_runs())
            await runtime.forget(run_id)
        await runtime.forget_workload(WorkloadId("web"), delete_data=True)
        assert await runtime.list_runs() == ()
        info = await runtime.start(self.make_request("echo again; exec sleep 1000", run_id="web-9"))
        assert info.phase is RunPhase.RUNNING
        if isinstance(runtime, SupportsLogs):
            assert await wait_output(runtime, b"again\n") == b"again\n"

    async def test_what_is_unknown_is_none(self, runtime: Runtime) -> None:
        assert await runtime.inspect(RunId("nobody")) is None
        assert await runtime.stop(RunId("nobody")) is None
        await runtime.forget(RunId("nobody"))
        await runtime.forget_workload(WorkloadId("nobody"), delete_data=False)
        assert await runtime.list_runs() == ()

    async def test_a_run_has_time_to_end_by_itself(self, runtime: Runtime) -> None:
        script = 'trap "echo bye; exit 7" TERM; echo up; while :; do sleep 0.05; done'
        await runtime.start(self.make_request(script, stop=StopPolicy(grace=timedelta(seconds=30))))
        await wait_output(runtime, b"up\n")
        ended = await runtime.stop(RunId("web-1"))
        assert ended is not None
        assert ended.exit is not None
        assert self.exit_codes is not True or (ended.exit.code, ended.exit.signal) == (7, 0)
        assert "bye" in ended.last_output

    async def test_the_stop_signal_is_the_one_that_was_asked_for(self, runtime: Runtime) -> None:
        if self.stop_signals is not True:
            pytest.skip(str(self.stop_signals))
        script = 'trap "exit 9" TERM; trap "exit 8" INT; echo up; while :; do sleep 0.05; done'
        stop = StopPolicy(signal="INT", grace=timedelta(seconds=30))
        await runtime.start(self.make_request(script, stop=stop))
        await wait_output(runtime, b"up\n")
        ended = await runtime.stop(RunId("web-1"))
        assert ended is not None
        assert ended.exit is not None
        assert ended.exit.code == 8

    async def test_a_run_that_does_not_listen_is_killed_after_the_grace_period(self, runtime: Runtime) -> None:
        script = 'trap "" TERM; echo up; while :; do sleep 0.05; done'
        await runtime.start(self.make_request(script, stop=StopPolicy(grace=timedelta(milliseconds=200))))
        await wait_output(runtime, b"up\n")
        ended = await runtime.stop(RunId("web-1"))
        assert ended is not None
        assert ended.exit is not None
        assert ended.exit.signal == 9
        assert ended.ended_by == "stop"

    # --- watching and coming back -------------------------------------------------------------------------

    async def test_every_end_is_told_with_its_code_and_known_until_it_is_forgotten(self, runtime: Runtime) -> None:
        """Of several workloads at a time, and of one that ended before anybody asked."""
        limits = Resources(cpu_millicores=500, memory_mb=64)  # those that are kept do no harm
        await runtime.start(self.make_request("echo before; exit 1", run_id="before-1", limits=limits))
        before = await wait_ended(runtime, "before-1")
        codes = {f"after-{code}": code if self.exit_codes is True else 0 for code in self.exits}
        told: dict[str, RunInfo] = {}
        async with closing(runtime.watch()) as ends:
            assert await asyncio.wait_for(anext(ends), _LONG) == before
            for code in self.exits:
                script, name = f"echo {code}; exit {code}", f"after-{code}"
                await runtime.start(self.make_request(script, run_id=name, workload_id=name))
            while told.keys() != codes.keys():
                info = await asyncio.wait_for(anext(ends), _LONG)
                if info.run_id != "before-1":
                    told[info.run_id] = info
        for ended in (before, *told.values()):
            assert ended.exit is not None
            code = {"before-1": 1 if self.exit_codes is True else 0, **codes}[ended.run_id]
            assert (ended.phase, ended.exit.code, ended.ended_by) == (RunPhase.ENDED, code, "")
            assert (ended.exit.signal, ended.exit.unknown, ended.exit.out_of_memory) == (0, False, False)
            assert ended.last_output == f"{ended.run_id.rpartition('-')[2] if ended is not before else 'before'}\n"
            assert await runtime.inspect(ended.run_id) == ended
        assert {run.run_id for run in await runtime.list_runs()} == {"before-1", *codes}
        for ended in (before, *told.values(), before):
            await runtime.forget(ended.run_id)
        assert await runtime.list_runs() == ()
        assert await runtime.inspect(RunId("before-1")) is None

    async def test_a_restarted_agent_finds_its_runs(self, opened: Opened) -> None:
        first = await opened()
        running = await first.start(self.make_request(_FOREVER, run_id="long-1", workload_id="long"))
        await first.start(self.make_request("sleep 0.3; exit 5", run_id="short-1", workload_id="short"))
        await first.start(self.make_request("exit 6", run_id="gone-1", workload_id="gone"))
        await wait_ended(first, "gone-1")
        await first.close()
        second = await opened()
        assert await second.inspect(RunId("long-1")) == running
        told: dict[str, int] = {}
        async with closing(second.watch()) as ends:
            while len(told) < 2:
                info = await asyncio.wait_for(anext(ends), _LONG)
                assert info.exit is not None
                told[info.run_id] = info.exit.code
        assert told == ({"short-1": 5, "gone-1": 6} if self.exit_codes is True else {"short-1": 0, "gone-1": 0})
        assert await second.start(self.make_request(_FOREVER, run_id="long-1", workload_id="long")) == running
        stopped = await second.stop(RunId("long-1"))
        assert stopped is not None
        assert stopped.phase is RunPhase.ENDED

    async def test_it_says_that_it_is_healthy(self, runtime: Runtime) -> None:
        assert await runtime.health() == "healthy"

    # --- surroundings -------------------------------------------------------------------------------------

    async def test_environment_ports_and_identity_are_handed_over(self, runtime: Runtime) -> None:
        names = ("COLOR", "SHOAL_PORT_HTTP", "SHOAL_PORT_ADMIN_API", "SHOAL_TEST_IDENTITY", "SHOAL_RUN_ID")
        script = f'echo "{"|".join(f"${name}" for name in names)}|$SHOAL_WORKLOAD_ID"'
        ports = {"http": 8123, "admin-api": 8124}
        info = await runtime.start(self.make_request(script, env={"COLOR": "green and blue"}, ports=ports))
        assert dict(info.ports) == ports
        ended = await wait_ended(runtime, "web-1")
        assert ended.last_output == "green and blue|8123|8124|this one|web-1|web\n"
        assert dict(ended.ports) == ports

    async def test_a_run_that_uses_too_much_memory_is_killed_and_said_so(self, runtime: Runtime) -> None:
        if self.limits_memory is not True:
            pytest.skip(str(self.limits_memory) or "this backend does not limit memory here")
        # tail keeps the last line, which never ends. Not at once: where the engine reports no such kills, the group of
        # the run is watched from a moment after its start.
        script = "sleep 1; tail -n 1 /dev/zero; exit 1"
        await runtime.start(self.make_request(script, limits=Resources(memory_mb=24)))
        ended = await wait_ended(runtime, "web-1")
        assert ended.exit is not None
        assert ended.exit.out_of_memory

    # --- what only some can do ----------------------------------------------------------------------------

    async def test_logs_are_read_by_their_end_their_time_their_position_and_their_run(self, runtime: Runtime) -> None:
        logging: SupportsLogs = require(runtime, SupportsLogs)
        # An engine stamps what it reads at once with one time, and on a busy machine it reads late.
        script = "for i in 1 2 3 4; do echo line $i; done; sleep 1; echo line 5 >&2; sleep 0.2; printf 'no end'"
        await runtime.start(self.make_request(script))
        await wait_ended(runtime, "web-1")
        everything = b"".join(b"line %d\n" % number for number in range(1, 6)) + b"no end"
        assert await read_all(logging) == everything
        assert await read_all(logging, tail_lines=1) == b"no end"
        assert await read_all(logging, tail_lines=3) == b"line 4\nline 5\nno end"
        assert await read_all(logging, tail_lines=100) == everything
        await self._check_times(logging, everything)
        pieces = [piece async for piece in logging.read_logs(WorkloadId("web"), LogQuery())]
        for index, piece in enumerate(pieces):
            rest = b"".join(each.data for each in pieces[index + 1 :])
            assert await read_all(logging, after=piece.position) == rest
            assert await read_all(logging, after=piece.position, tail_lines=1, previous=False) == rest
        with pytest.raises(NotFoundError, match="previous run"):
            await read_all(logging, previous=True)
        await runtime.start(self.make_request("echo another", run_id="web-2"))
        await wait_ended(runtime, "web-2")
        assert await read_all(logging, previous=True) == everything
        assert await read_all(logging, previous=True, follow=True) == everything
        assert await read_all(logging, previous=True, tail_lines=1) == b"no end"
        both = await read_all(logging)
        assert both.startswith(everything)
        assert both.endswith(b"another\n")
        # They go with the workload and not with the run.
        for run_id in ("web-1", "web-2"):
            await runtime.forget(RunId(run_id))
        assert await read_all(logging) == both
        await runtime.forget_workload(WorkloadId("web"), delete_data=False)
        with pytest.raises(ShoalError):
            await read_all(logging)

    @staticmethod
    async def _check_times(logging: SupportsLogs, everything: bytes) -> None:
        """That what was printed knows when: the fifth line came later than the first."""
        pieces = [piece async for piece in logging.read_logs(WorkloadId("web"), LogQuery(times=True))]
        assert b"".join(piece.data for piece in pieces) == everything
        first, last = pieces[0].time, pieces[-1].time
        late = next(piece.time for piece in pieces if piece.data.startswith(b"line 5"))
        assert first is not None
        assert late is not None
        assert last is not None
        assert first < late
        assert await read_all(logging, since=first) == everything
        assert await read_all(logging, since=late) == b"line 5\nno end"
        assert await read_all(logging, since=last + timedelta(seconds=1)) == b""

    async def test_the_two_streams_are_told_apart(self, runtime: Runtime) -> None:
        if self.streams is not True:
            pytest.skip(str(self.streams))
        logging: SupportsLogs = require(runtime, SupportsLogs)
        await runtime.start(self.make_request("echo good; echo bad >&2"))
        await wait_ended(runtime, "web-1")
        pieces = [piece async for piece in logging.read_logs(WorkloadId("web"), LogQuery())]
        assert b"".join(piece.data for piece in pieces if piece.stream == "stdout") == b"good\n"
        assert b"".join(piece.data for piece in pieces if piece.stream == "stderr") == b"bad\n"

    async def test_logs_are_followed_over_runs(self, runtime: Runtime) -> None:
        logging: SupportsLogs = require(runtime, SupportsLogs)
        await runtime.start(self.make_request("echo one; sleep 0.2; echo two", run_id="web-1"))
        following = logging.read_logs(WorkloadId("web"), LogQuery(follow=True))
        async with closing(following) as pieces:
            read = b""
            while b"two\n" not in read:
                read += (await asyncio.wait_for(anext(pieces), _LONG)).data
            await wait_ended(runtime, "web-1")
            await runtime.start(self.make_request("echo three", run_id="web-2"))
            while b"three\n" not in read:
                read += (await asyncio.wait_for(anext(pieces), _LONG)).data
        assert read == b"one\ntwo\nthree\n"

    async def test_use_is_measured(self, runtime: Runtime) -> None:
        measuring: SupportsUsage = require(runtime, SupportsUsage)
        await runtime.start(self.make_request("while :; do :; done"))
        assert await measuring.usage(RunId("nobody")) is None
        for _ in range(100):
            usage = await measuring.usage(RunId("web-1"))
            assert usage is not None
            if usage.cpu_percent > 0 and usage.memory_bytes > 0:
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail(f"a busy loop uses nothing: {usage}")
        assert usage.collected_at is not None
        assert usage.source
        await runtime.stop(RunId("web-1"))
        assert await measuring.usage(RunId("web-1")) is None

    @pytest.mark.parametrize("deadline", [0.0, 0.3])
    async def test_a_run_ends_at_its_deadline(self, runtime: Runtime, deadline: float) -> None:
        """Also at one that passes while it starts."""
        require(runtime, SupportsDeadlines)
        await runtime.start(self.make_request(_FOREVER, deadline=deadline))
        ended = await wait_ended(runtime, "web-1")
        assert ended.ended_by == "deadline"

    async def test_a_deadline_can_be_moved_on(self, runtime: Runtime) -> None:
        moving: SupportsDeadlines = require(runtime, SupportsDeadlines)
        await runtime.start(self.make_request(_FOREVER, run_id="kept-1", workload_id="kept", deadline=30.0))
        await runtime.start(self.make_request(_FOREVER, run_id="left-1", workload_id="left", deadline=30.0))
        await moving.extend_deadlines((RunId("kept-1"), RunId("nobody")), SystemClock().monotonic() + 600.0)
        await moving.extend_deadlines((RunId("left-1"),), SystemClock().monotonic() + 0.2)
        assert (await wait_ended(runtime, "left-1")).ended_by == "deadline"
        kept = await runtime.inspect(RunId("kept-1"))
        assert kept is not None
        assert kept.phase is RunPhase.RUNNING

    async def test_a_probe_runs_in_the_surroundings_of_its_run(self, runtime: Runtime) -> None:
        probing: SupportsProbes = require(runtime, SupportsProbes)
        await runtime.start(self.make_request("touch here; echo up; exec sleep 1000", env={"COLOR": "green"}))
        await wait_output(runtime, b"up\n")

        async def probe(*command: str, timeout: float = 10.0) -> bool:
            return await probing.run_probe(RunId("web-1"), command, timeout=timeout)

        assert await probe("sh", "-c", 'test "$COLOR" = green && test -e here')
        assert not await probe("sh", "-c", 'test "$COLOR" = red')
        assert not await probe("/nowhere/no-such-program")
        assert not await probe("sleep", "1000", timeout=0.2)
        await runtime.stop(RunId("web-1"))
        assert not await probe("true")

    async def test_a_command_runs_beside_its_run(self, runtime: Runtime) -> None:
        entering: SupportsExec = require(runtime, SupportsExec)
        with pytest.raises(PreconditionError):
            await entering.exec(RunId("nobody"), ExecCommand(("true",)))
        if self.runs_commands is not True:
            await runtime.start(self.make_request(_FOREVER))
            with pytest.raises(UnsupportedError):
                await entering.exec(RunId("web-1"), ExecCommand(("true",)))
            return
        await runtime.start(self.make_request("touch here; echo up; exec sleep 1000", env={"COLOR": "green"}))
        await wait_output(runtime, b"up\n")
        script = 'test -e here && echo "$COLOR"; echo oops >&2; exit 7'
        assert await run_command(entering, "sh", "-c", script) == (b"green\n", b"oops\n", ExecEnd(code=7))
        assert await run_command(entering, "cat") == (b"", b"", ExecEnd())
        assert await run_command(entering, "cat", given=b"typed") == (b"typed", b"", ExecEnd())
        assert (await run_command(entering, "sh", "-c", "kill -KILL $$"))[2] == ExecEnd(signal=9)
        await runtime.stop(RunId("web-1"))
        with pytest.raises(PreconditionError):
            await entering.exec(RunId("web-1"), ExecCommand(("true",)))

    async def test_a_command_has_a_terminal(self, runtime: Runtime) -> None:
        if self.runs_commands is not True:
            pytest.skip(str(self.runs_commands))
        entering: SupportsExec = require(runtime, SupportsExec)
        await runtime.start(self.make_request(_FOREVER))
        command = ExecCommand(
            ("sh",), terminal=True, interactive=True, window=WindowSize(rows=30, columns=90), term="vt100"
        )
        session = await entering.exec(RunId("web-1"), command)
        try:
            async with asyncio.timeout(_LONG), closing(session.output()) as pieces:
                await session.write(b"stty size; echo terminal=$TERM; echo fir''st\n")
                printed = await _read_until(pieces, b"first\r\n")
                assert b"30 90\r\n" in printed
                assert b"terminal=vt100\r\n" in printed
                await session.resize(50, 120)
                await session.write(b"until test \"$(stty size)\" = '50 120'; do sleep 0.05; done; exit 3\n")
                async for _ in pieces:
                    pass
                assert await session.wait() == ExecEnd(code=3)
        finally:
            await session.close()

    async def test_a_command_is_killed_when_it_is_closed(self, runtime: Runtime) -> None:
        if self.runs_commands is not True:
            pytest.skip(str(self.runs_commands))
        entering: SupportsExec = require(runtime, SupportsExec)
        await runtime.start(self.make_request(_FOREVER))
        session = await entering.exec(RunId("web-1"), ExecCommand(("sh", "-c", "echo up; exec sleep 1003")))
        async with asyncio.timeout(_LONG), closing(session.output()) as pieces:
            await _read_until(pieces, b"up\n")
        await session.close()
        look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\000' ' '"
        async with asyncio.timeout(_LONG):
            while True:
                found, _, _ = await run_command(entering, "sh", "-c", look)
                if b"sleep 1003" not in found:
                    break
                await asyncio.sleep(0.05)
        info = await runtime.inspect(RunId("web-1"))
        assert info is not None
        assert info.phase is RunPhase.RUNNING


# ---------------------------------------------------------------------------------------------------------
# For the tests of one backend too


async def wait_ended(runtime: Runtime, run_id: str) -> RunInfo:
    """Poll until a run has ended."""
    async with asyncio.timeout(_LONG):
        while True:
            info = await runtime.inspect(RunId(run_id))
            assert info is not None, f"run {run_id} is not known"
            if info.phase is RunPhase.ENDED:
                return info
            await asyncio.sleep(0.02)


async def read_all(runtime: SupportsLogs, *, workload_id: str = "web", **query: Any) -> bytes:
    """What a query gives of a workload's log."""
    pieces = runtime.read_logs(WorkloadId(workload_id), LogQuery(**query))
    return b"".join([piece.data async for piece in pieces])


async def wait_output(runtime: Runtime, wanted: bytes, *, workload_id: str = "web") -> bytes:
    """Poll until a workload has printed something."""
    logging: SupportsLogs = require(runtime, SupportsLogs)
    async with asyncio.timeout(_LONG):
        while True:
            with suppress(ShoalError):
                found = await read_all(logging, workload_id=workload_id)
                if wanted in found:
                    return found
            await asyncio.sleep(0.02)


async def run_command(
    runtime: SupportsExec, *words: str, given: bytes | None = None, service: str = ""
) -> tuple[bytes, bytes, ExecEnd]:
    """What a command beside run `web-1` prints on both streams, and how it ends."""
    wanted = ExecCommand(words, interactive=given is not None, service=service)
    session = await runtime.exec(RunId("web-1"), wanted)
    printed = {"stdout": b"", "stderr": b""}
    try:
        async with asyncio.timeout(_LONG):
            if given is not None:
                await session.write(given)
                await session.end_input()
            async for stream, data in session.output():
                printed[stream] += data
            return printed["stdout"], printed["stderr"], await session.wait()
    finally:
        await session.close()


async def _read_until(pieces: AsyncIterator[tuple[str, bytes]], wanted: bytes) -> bytes:
    printed = b""
    while wanted not in printed:
        printed += (await anext(pieces))[1]
    return printed


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncGenerator[AsyncIterator[T], None]:
    """Read from a stream and let go of it afterwards."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


def require(runtime: Runtime, ability: Any) -> Any:
    """The runtime as one that has an ability, which is one of the `Supports…`; skips the test when it has not."""
    if not isinstance(runtime, ability):
        pytest.skip(f"the backend is not one that {ability.__name__}")
    return runtime
