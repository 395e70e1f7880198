"""Task hosts that are child processes: `shoal run --processes N`.

The coordinator is this process. Children are runs of `shoal.runtimes.process` with a deadline that is extended while
this process lives, so none outlives it by more than `DEADLINE` seconds. Each epoch has children, sockets and a token of
its own: what is left of an earlier one is killed, and refused if it lives on. Made by
`shoal.dataflow.execution.engine`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from shoal.core.clock import Clock, SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import ShoalError, UnavailableError
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.dataflow.checkpoint.records import Checkpoint
from shoal.dataflow.execution.hosts.base import HostLostError
from shoal.dataflow.execution.hosts.child_output import ChildOutput
from shoal.dataflow.execution.hosts.control_link import ControlLink
from shoal.dataflow.execution.hosts.control_messages import (
    HostShare,
)
from shoal.dataflow.execution.hosts.host_process import KEY_VARIABLE
from shoal.dataflow.execution.hosts.linked import START, Linked, LinkedHosts
from shoal.dataflow.execution.hosts.task_host import HostListener
from shoal.dataflow.execution.scratch import make_short_scratch
from shoal.dataflow.plan.documents import PlanDocument
from shoal.dataflow.plan.prepared import PreparedPlan
from shoal.exchange.tokens import Gate, JobKey
from shoal.model.logs import LogQuery
from shoal.model.workloads import ProcessSpec, StopPolicy
from shoal.runtimes.base import RunInfo, RunPhase, RunRequest
from shoal.runtimes.process import ProcessRuntime

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds that a child may outlive this process, and between two extensions of its deadline.
DEADLINE = 3.0
_EXTEND = 0.5
#: Seconds between two looks at what children have printed.
_SHOW = 0.2
#: Seconds that the keeper of the children outlives this process and the last of them.
_KEEPER_IDLE = 1.0
#: Characters of the folder of sockets: the paths in it are short enough then.
_MOST_FOLDER = 60
#: For tests: fault points of a host, by its number and by which of the job's epochs in this process it is, from 1.
_FAULTS = "SHOAL_FAULTS_HOST_{number}_EPOCH_{epoch}"


class ProcessHosts(LinkedHosts):
    """The task hosts of a job as child processes."""

    def __init__(self, plan: PreparedPlan, document: PlanDocument, *, processes: int, clock: Clock) -> None:
        widest = max(stage.parallelism for stage in plan.physical.stages)
        super().__init__(plan, document, hosts=min(processes, widest), clock=clock)
        self._scratch = make_short_scratch(_MOST_FOLDER)
        self._folder = self._scratch.path
        self._runner = _Runner(Path(self._folder) / "runs")

    # -- starting ---------------------------------------------------------------------------------------------

    def begin(self, share: HostShare, found: Checkpoint | None, listener: HostListener) -> None:
        """Start the processes and let them build their tasks."""
        self._epochs += 1
        gate = Gate(share.job, share.epoch, JobKey(SystemEntropy().token(40).encode()))
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = f"{self._folder}/c.{share.epoch}.sock"
        try:
            server.bind(path)
            server.listen(self._hosts)
            self._runner.start([self._request(gate, number) for number in range(self._hosts)])
            with self._lock:
                self._listener, self._is_over, self._children = listener, False, {}
            self._children = self._accept(server, gate)
            self._build(share, search_path=tuple(sys.path), directory=str(Path.cwd()))
        except BaseException:
            self.end()
            raise
        finally:
            server.close()
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108

    def _request(self, gate: Gate, number: int) -> RunRequest:
        name = f"host-{number}-{gate.epoch}-{SystemEntropy().token(6)}"
        module = "shoal.dataflow.execution.hosts.host_process"
        command = (sys.executable, "-m", module, self._folder, gate.job, str(gate.epoch), str(number))
        env = {key: value for key, value in os.environ.items() if not key.startswith("SHOAL_FAULTS")}
        env["SHOAL_FAULTS"] = os.environ.get(_FAULTS.format(number=number, epoch=self._epochs), "")
        env["PYTHONPATH"] = os.pathsep.join(each for each in sys.path if each)
        return RunRequest(
            run_id=RunId(name),
            workload_id=WorkloadId(f"host-{number}"),
            spec=ProcessSpec(command=command, env=env, stop=StopPolicy(grace=timedelta(seconds=1))),
            secrets={KEY_VARIABLE: gate.key.secret.decode()},
            deadline=0.0,
        )

    def _accept(self, server: socket.socket, gate: Gate) -> dict[int, Linked]:
        children: dict[int, Linked] = {}
        ends_at = self._clock.monotonic() + START
        server.settimeout(0.2)
        while len(children) < self._hosts:
            try:
                raw, _address = server.accept()
            except TimeoutError:
                self._check_start(ends_at)
                continue
            try:
                link, number = ControlLink.accept(raw, gate)
            except (ShoalError, OSError) as error:
                raw.close()
                log.warning("a task host was refused: %s", error)
                continue
            children[number] = Linked(number, link, self._clock.monotonic())
        return children

    def _check_start(self, ends_at: float) -> None:
        dead = self._runner.find_ended()
        if dead is not None:
            # One that ends by itself would do so again.
            lost = HostLostError if self._runner.was_killed(dead) else UnavailableError
            raise lost(f"a task host did not start: process {dead}{self._runner.describe(dead)}")
        if self._clock.monotonic() > ends_at:
            raise HostLostError(f"task hosts did not start within {START:g} s")

    def _describe(self, number: int) -> str:
        return self._runner.describe(number)

    def _stop_all(self, patience: float) -> None:
        self._runner.stop_all(patience)

    def close(self) -> None:
        """The job is over."""
        self._runner.close()
        self._scratch.remove()


class _Runner:
    """Children of this process, through the process runtime: an event loop in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._runtime: ProcessRuntime | None = None
        self._runs: dict[int, tuple[RunId, int]] = {}
        self._extending: asyncio.Task[None] | None = None
        #: Show what children print, by the number of the host.
        self._showing: dict[int, asyncio.Task[None]] = {}
        self._is_closing = False

    def start(self, requests: list[RunRequest]) -> None:
        """Start children, one for each host."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="children", daemon=True)
            self._thread.start()
            self._call(self._open())
        self._call(self._start(requests))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            raise RuntimeError("there is no loop")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._runtime = ProcessRuntime(
            self._folder, clock=SystemClock(), node_id=NodeId("shoal-run"), keeper_idle=_KEEPER_IDLE
        )
        await self._runtime.open()
        self._extending = asyncio.create_task(self._extend())  # noqa: TID251

    async def _start(self, requests: list[RunRequest]) -> None:
        runtime, clock = self._opened(), SystemClock()
        self._runs = {}
        for number, request in enumerate(requests):
            info = await runtime.start(replace(request, deadline=clock.monotonic() + DEADLINE))
            self._runs[number] = (request.run_id, info.pid)
            if number not in self._showing:
                self._showing[number] = asyncio.create_task(self._show(number, request.workload_id))  # noqa: TID251

    async def _extend(self) -> None:
        """As long as this process lives, so do its children."""
        clock = SystemClock()
        while True:
            await clock.sleep(_EXTEND)
            runs = tuple(run for run, _pid in self._runs.values())
            if runs:
                with contextlib.suppress(ShoalError):
                    await self._opened().extend_deadlines(runs, clock.monotonic() + DEADLINE)

    async def _show(self, number: int, workload: WorkloadId) -> None:
        """Show what the children of a host print, those of later epochs too. Their log is one."""
        outputs = {stream: ChildOutput(f"host {number}") for stream in ("stdout", "stderr")}
        position, clock = "", SystemClock()
        try:
            while True:
                with contextlib.suppress(ShoalError, OSError):
                    async for piece in self._opened().read_logs(workload, LogQuery(after=position)):
                        position = piece.position
                        outputs[piece.stream].feed(piece.data, clock.monotonic())
                if self._is_closing:
                    return
                await clock.sleep(_SHOW)
        finally:
            for output in outputs.values():
                output.finish()

    def find_ended(self) -> int | None:
        """The number of a child that should run and does not."""
        return next((number for number in self._runs if self._ended(number) is not None), None)

    def was_killed(self, number: int) -> bool:
        """Whether a signal ended a child."""
        info = self._ended(number)
        return info is not None and info.exit is not None and bool(info.exit.signal)

    def _ended(self, number: int) -> RunInfo | None:
        """A child that has ended."""
        if number not in self._runs or self._loop is None:
            return None
        info = self._call(self._opened().inspect(self._runs[number][0]))
        return info if info is not None and info.phase is RunPhase.ENDED and info.exit is not None else None

    def describe(self, number: int) -> str:
        """How a child ended, for people; empty while it runs."""
        info = self._ended(number)
        if info is None or info.exit is None:
            return ""
        how = f"signal {info.exit.signal}" if info.exit.signal else f"exit code {info.exit.code}"
        printed = f"; it last printed: {info.last_output[-500:].strip()}" if info.last_output.strip() else ""
        return f" ({how}){printed}"

    def stop_all(self, patience: float) -> None:
        """End every child; those that do not end by themselves in time are killed. Nothing runs when this returns."""
        if self._loop is not None and self._runs:
            self._call(self._stop(patience))

    async def _stop(self, patience: float) -> None:
        runtime, clock = self._opened(), SystemClock()
        ends_at = clock.monotonic() + patience
        for run, pid in self._runs.values():
            while clock.monotonic() < ends_at:
                info = await runtime.inspect(run)
                if info is None or info.phase is RunPhase.ENDED:
                    break
                await clock.sleep(0.02)
            info = await runtime.inspect(run)
            if info is not None and info.phase is RunPhase.RUNNING and pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # also one that is stopped
            with contextlib.suppress(ShoalError):
                await runtime.stop(run)
                await runtime.forget(run)
        self._runs = {}

    def close(self) -> None:
        """Let go of the runtime."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join()
        loop.close()

    async def _close(self) -> None:
        self._is_closing = True  # each shows what is left, and ends
        await asyncio.gather(*self._showing.values(), return_exceptions=True)
        if self._extending is not None:
            self._extending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._extending
        await self._opened().close()

    def _opened(self) -> ProcessRuntime:
        if self._runtime is None:
            raise RuntimeError("the runtime is not open")
        return self._runtime
