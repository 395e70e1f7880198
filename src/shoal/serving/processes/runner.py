"""Runs the processes of a serving agent on the process runtime.

The runtime's keeper owns the processes, their exits and their logs; this only says what runs. `start` starts one
process and waits until it listens; from then on its exit is followed by a restart or by the end of all (`graph`). No
process is started while another program has its port: the agent would take that one for its own. What an earlier agent
left running under the same data directory is adopted, if it would be started in the same way again (`remembered`), and
else stopped first. Called by the agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.errors import DeadlineError, ShoalError, UnavailableError
from shoal.core.ids import RunId, WorkloadId
from shoal.core.tasks import TaskScope, first_of
from shoal.model.spec.kinds import ProcessSpec
from shoal.model.workloads import Exit
from shoal.runtimes.base import RunInfo, RunPhase, RunRequest, Runtime
from shoal.serving.processes.graph import RESTART_BACKOFF, OnExit, ProcessNode, StopAll, after_exit
from shoal.serving.processes.remembered import Remembered

log = logging.getLogger(__name__)

#: Between two looks whether a process listens.
LOOK_SECONDS = 0.1
#: How long a port that is taken is waited for: a process that was just stopped may still have it.
FREE_SECONDS = 5.0


@dataclass(slots=True)
class _Running:
    node: ProcessNode
    run_id: RunId
    started_at: float
    failures: int = 0


class ProcessRunner:
    """The processes of one agent.

    Args:
        runtime: what runs them; opened by the caller.
        on_exit: what follows when a process ends by itself.
        listens: whether something listens on a port of this machine.
        is_taken: the same, asked before a process of ours is started there.
        remembered: what an earlier agent left; without it nothing is adopted.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        clock: Clock,
        entropy: Entropy,
        on_exit: OnExit = OnExit.RESTART,
        listens: Callable[[int], Awaitable[bool]] | None = None,
        is_taken: Callable[[int], Awaitable[bool]] | None = None,
        remembered: Remembered | None = None,
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        self._entropy = entropy
        self._on_exit = on_exit
        self._listens = listens or is_listening
        self._is_taken = is_taken or is_listening
        self._remembered = remembered
        #: Called before a process is started, and before it is started again. Returns what is started.
        self.prepare: Callable[[ProcessNode], Awaitable[ProcessNode]] = _as_it_is
        #: Called with a name whenever that process started or ended.
        self.changed: Callable[[str], None] = lambda _name: None
        #: Called with a name whenever that process is started again.
        self.restarted: Callable[[str], None] = lambda _name: None
        self._running: dict[str, _Running] = {}
        #: In which order they were started first.
        self._order: dict[str, int] = {}
        #: Those that ended and will be started again.
        self._ended: set[str] = set()
        self._scope = TaskScope("serving.processes")
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: How often each process was started again.
        self.restarts: dict[str, int] = {}

    async def open(self, nodes: Sequence[ProcessNode] = ()) -> None:
        """Adopt what an earlier agent left of these processes, stop the rest, and follow exits from now on."""
        wanted = {node.name: node for node in nodes}
        for run in await self._runtime.list_runs():
            node = wanted.get(run.workload_id)
            if run.phase is RunPhase.RUNNING:
                if node is not None and node.name not in self._running and await self._can_adopt(node, run):
                    log.info("%s of an earlier agent still runs (pid %d) and is adopted", node.name, run.pid)
                    self._running[node.name] = _Running(node, run.run_id, self._clock.monotonic())
                    continue
                log.warning("%s of an earlier agent still runs (pid %d) and is stopped", run.workload_id, run.pid)
                await self._runtime.stop(run.run_id)
            await self._runtime.forget(run.run_id)
        self._scope.start(self._follow(), name="exits")

    async def _can_adopt(self, node: ProcessNode, run: RunInfo) -> bool:
        if self._remembered is None or not self._remembered.matches(node, run.run_id):
            return False
        return not node.port or await self._listens(node.port)

    async def start(self, node: ProcessNode, *, timeout: float) -> None:
        """Start a process, unless it was adopted, and wait until it listens. Raises `ShoalError`."""
        self._order.setdefault(node.name, len(self._order))
        if node.name in self._running:
            self.changed(node.name)
        elif node.name not in self._ended:
            await self._wait_free(node)
            await self._start(node, failures=0)
        deadline = self._clock.monotonic() + timeout
        while node.port and not await self._listens(node.port):
            self.raise_if_failed()
            if self._clock.monotonic() >= deadline:
                message = f"{node.name} does not listen on port {node.port} after {timeout:g} s"
                raise DeadlineError(message, name=node.name, port=node.port)
            await self._clock.sleep(LOOK_SECONDS)

    def is_running(self, name: str) -> bool:
        """Whether a process runs now."""
        return name in self._running

    async def listens(self, name: str) -> bool:
        """Whether a process runs and has come so far that it listens."""
        running = self._running.get(name)
        return running is not None and await self._listens(running.node.port)

    def raise_if_failed(self) -> None:
        """Raise the reason if everything has to end."""
        if self._failed.done():
            self._failed.result()

    async def failed(self) -> None:
        """Wait until everything has to end. Raises the reason."""
        await first_of(self._told_to_end(), self._scope.failed())

    async def _told_to_end(self) -> None:
        await asyncio.shield(self._failed)

    async def stop_all(self) -> None:
        """Ask every process to end, those first that need others, and wait. None is started again meanwhile."""
        await self._scope.close()
        for name in sorted(self._running, key=lambda name: self._order.get(name, -1), reverse=True):
            running = self._running.pop(name)
            with contextlib.suppress(ShoalError):
                await self._runtime.stop(running.run_id)
        with contextlib.suppress(ShoalError):
            for run in await self._runtime.list_runs():  # one whose start was cut short is known to the runtime alone
                if run.phase is RunPhase.RUNNING:
                    await self._runtime.stop(run.run_id)

    async def _wait_free(self, node: ProcessNode) -> None:
        """Wait until no other program has the port of a process. Raises `UnavailableError`."""
        deadline = self._clock.monotonic() + FREE_SECONDS
        while node.port and await self._is_taken(node.port):
            if self._clock.monotonic() >= deadline:
                raise UnavailableError(
                    f"{node.name} cannot be started: another program listens on its port {node.port}",
                    hint="stop that program, or give the model server another port",
                    name=node.name,
                    port=node.port,
                )
            await self._clock.sleep(LOOK_SECONDS)

    async def _start(self, node: ProcessNode, *, failures: int) -> None:
        node = await self.prepare(node)
        run_id = RunId(f"{node.name}-{self._entropy.token(8)}")
        request = RunRequest(
            run_id=run_id,
            workload_id=WorkloadId(node.name),
            spec=ProcessSpec(command=node.command, env=dict(node.env)),
        )
        if self._remembered is not None:
            await asyncio.to_thread(self._remembered.keep_run, node, run_id)
        await self._runtime.start(request)
        self._running[node.name] = _Running(node, run_id, self._clock.monotonic(), failures)
        self.changed(node.name)

    async def _follow(self) -> None:
        async for ended in self._runtime.watch():
            running = self._running.get(ended.workload_id)
            if running is not None and running.run_id == ended.run_id:
                del self._running[ended.workload_id]
                self.changed(ended.workload_id)
                self._act(running, ended)
            with contextlib.suppress(ShoalError):
                await self._runtime.forget(ended.run_id)

    def _act(self, running: _Running, ended: RunInfo) -> None:
        name, how = running.node.name, describe_exit(ended.exit)
        ran = self._clock.monotonic() - running.started_at
        decision = after_exit(self._on_exit, name, ran=ran, failures=running.failures, how=how)
        if ended.last_output:
            log.warning("%s ended (%s); it last printed: %s", name, how, ended.last_output[-500:])
        if isinstance(decision, StopAll):
            self._fail(UnavailableError(decision.reason))
            return
        log.warning("%s ended (%s) and is started again in %g s", name, how, decision.pause)
        self._ended.add(name)
        self._scope.start(self._restart(running.node, decision.pause, decision.failures), name=f"restart {name}")

    async def _restart(self, node: ProcessNode, pause: float, failures: int) -> None:
        """Start a process again, as often as it takes: the others serve meanwhile."""
        try:
            while True:
                failures = await self._pause(node, pause, failures)
                try:
                    await self._start(node, failures=failures)
                except ShoalError as error:
                    failures += 1
                    pause = RESTART_BACKOFF.plain_delay(failures)
                    log.warning("%s cannot be started: %s; it is tried again in %g s", node.name, error, pause)
                    await self._stop_stray(node.name)
                else:
                    break
        finally:
            self._ended.discard(node.name)
        self.restarts[node.name] = self.restarts.get(node.name, 0) + 1
        self.restarted(node.name)

    async def _stop_stray(self, name: str) -> None:
        """Stop what a start has begun that failed all the same, as far as it can be known now."""
        with contextlib.suppress(ShoalError):
            for run in await self._runtime.list_runs():
                if run.workload_id == name and run.phase is RunPhase.RUNNING:
                    await self._runtime.stop(run.run_id)

    async def _pause(self, node: ProcessNode, pause: float, failures: int) -> int:
        """Wait before a process is started again, also for its port. Returns how many failures there were in a row."""
        while True:
            await self._clock.sleep(pause)
            try:
                await self._wait_free(node)
            except UnavailableError as error:
                failures += 1
                pause = RESTART_BACKOFF.plain_delay(failures)
                log.warning("%s; it is tried again in %g s", error.message, pause)
            else:
                return failures

    def _fail(self, error: ShoalError) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # whether anybody waits for it or not


async def _as_it_is(node: ProcessNode) -> ProcessNode:
    return node


async def is_listening(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def describe_exit(ending: Exit | None) -> str:
    """How a process ended, in words."""
    if ending is None or ending.unknown:
        return "nobody knows how"
    return f"signal {ending.signal}" if ending.signal else f"exit code {ending.code}"


def child_environment(environ: Mapping[str, str], *, agent_port: int) -> dict[str, str]:
    """What a model server gets of the agent's environment: all but the secret of the tree, and where the agent is."""
    return {**{name: value for name, value in environ.items() if name != "ZK_AUTH"}, "PORT2": str(agent_port)}
