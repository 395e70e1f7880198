"""A whole fleet on this machine: one control plane and several agents as child processes.

    async with LocalFleet(directory, agents=3) as fleet:
        fleet.control_address          # what --control takes
        await fleet.kill_agent("node-2")
        await fleet.start_agent("node-2")

Each child has a directory of its own under the base directory, with its state and its output (`log`), so a fleet that
is started again in the same place goes on with what it had. Children are started in sessions of their own: Ctrl-C
reaches only the owner of the fleet, which stops them in order. Called by `shoal up`, the demo, the end-to-end tests and
the benchmarks; calls `shoal control` and `shoal agent` through `python -m shoal`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from shoal.client import ControlPlane
from shoal.core.clock import Clock, SystemClock
from shoal.core.durations import format_duration
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import DeadlineError, InvalidError, PreconditionError, ShoalError, UnavailableError, problem
from shoal.core.tasks import TaskScope

CONTROL = "control"
STARTS_WITHIN = 60.0
"""Seconds a child may take until it serves; generous, because a busy machine is not a broken one."""
STOPS_WITHIN = 75.0
"""Seconds an agent may take to end: a little more than it gives its workloads."""

MAX_LOG_BYTES = 16 * 1024 * 1024

_LOOK_EVERY = 0.05
_TRIM_EVERY = 10.0
_TAIL_BYTES = 4096
_OWN_VARIABLES = ("SHOAL_", "PERSYS_", "GRPC_PORT", "METRICS_PORT")


@dataclass(frozen=True, slots=True)
class ChildExit:
    """A child that ended without being told to."""

    name: str
    code: int
    #: The end of what it wrote.
    tail: str

    def __str__(self) -> str:
        """One line for a person."""
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with code {self.code}"
        return f"{self.name} {how}"


@dataclass(slots=True)
class _Child:
    name: str
    process: asyncio.subprocess.Process
    directory: Path
    #: What it wrote into its ready file.
    ready: dict[str, Any] = field(default_factory=dict)
    #: Its end was asked for.
    dismissed: bool = False

    @property
    def running(self) -> bool:
        return self.process.returncode is None


class LocalFleet:
    """One control plane and several agents, as child processes of this one.

    Args:
        base_dir: where everything is kept. One fleet at a time can own it.
        agents: how many agents `start` starts; they are called node-1, node-2, …
        slots: of each agent, like `cpu`, `memory` and `disk_gb`; None leaves it to the agent.
        lease: the control plane's; None for its default, as `heartbeat_interval`.
        grpc_port: of the control plane, like `http_port`; 0 for one that is free, kept for the life of the fleet.
        usual_ports: taken instead of any free ones if they are free.
        stop_workloads_on_exit: whether an agent that is asked to end stops its workloads first.
        extra_env: added to the environment of every child.
        control_args: further flags of `shoal control`, and `agent_args` of every `shoal agent`.
    """

    def __init__(
        self,
        base_dir: str | os.PathLike[str],
        *,
        agents: int = 3,
        slots: int | None = None,
        cpu: str | float | None = None,
        memory: str | int | None = None,
        disk_gb: int | None = None,
        lease: timedelta | None = None,
        heartbeat_interval: timedelta | None = None,
        grpc_port: int = 0,
        http_port: int = 0,
        usual_ports: tuple[int, int] = (0, 0),
        stop_workloads_on_exit: bool = True,
        extra_env: Mapping[str, str] | None = None,
        control_args: Sequence[str] = (),
        agent_args: Sequence[str] = (),
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        if agents < 0:
            raise InvalidError([problem("agents", agents, "must not be negative")])
        self.base_dir = Path(base_dir).absolute()
        #: The agents' names, which are their node ids.
        self.names: tuple[str, ...] = tuple(f"node-{number}" for number in range(1, agents + 1))
        self._capacity = {"--slots": slots, "--cpu": cpu, "--memory": memory, "--disk-gb": disk_gb}
        self._lease = lease
        self._heartbeat_interval = heartbeat_interval
        self._ports = [grpc_port, http_port]
        self._usual_ports = usual_ports
        self._stop_workloads = stop_workloads_on_exit
        self._extra_env = dict(extra_env or {})
        self._control_args = tuple(control_args)
        self._agent_args = tuple(agent_args)
        self._clock: Clock = clock or SystemClock()
        self._entropy: Entropy = entropy or SystemEntropy()
        self._children: dict[str, _Child] = {}
        self._scope: TaskScope | None = None
        self._exits: asyncio.Queue[ChildExit] = asyncio.Queue()
        self._lock: int | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -----------------------------------------------------------------------------------------------------
    # What it is

    @property
    def control_address(self) -> str:
        """host:port of the control plane's gRPC."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def http_address(self) -> str:
        """host:port of the control plane's HTTP."""
        return f"127.0.0.1:{self._ports[1]}"

    def directory_of(self, name: str) -> Path:
        """Where a child keeps its state; `control` or an agent's name."""
        return self.base_dir / name

    def log_of(self, name: str) -> Path:
        """What a child writes."""
        return self.directory_of(name) / "log"

    @property
    def is_started(self) -> bool:
        """Whether the directory is this fleet's, and something may run in it."""
        return self._lock is not None

    def pid_of(self, name: str) -> int:
        """The process id of a running child. Raises `PreconditionError` when it does not run."""
        return self._running(name).process.pid

    def is_running(self, name: str) -> bool:
        """Whether a child runs."""
        child = self._children.get(name)
        return child is not None and child.running

    def agent_address(self, name: str) -> str:
        """host:port of an agent's gRPC, as it said when it last became ready."""
        return str(self._running(name).ready["grpc"])

    def client(self) -> ControlPlane:
        """A client of the control plane; the caller closes it."""
        from shoal.wire.channel import GrpcTransport

        return ControlPlane([self.control_address], GrpcTransport(), clock=self._clock)

    # -----------------------------------------------------------------------------------------------------
    # All of it

    async def start(self) -> None:
        """Start everything and wait until every node is Ready."""
        await self.start_control()
        await asyncio.gather(*(self.start_agent(name) for name in self.names))
        await self.wait_ready()

    async def stop(self) -> None:
        """Stop the agents, then the control plane, and leave no process behind."""
        if self._lock is None:
            return  # nothing was started, and what runs in the directory is somebody else's
        agents = [name for name in self._children if name != CONTROL]
        await asyncio.gather(*(self.stop_agent(name) for name in agents))
        for name in self.names:
            await self._sweep(name)
        await self._end(CONTROL, signal.SIGTERM, within=STOPS_WITHIN)
        await self._let_go()

    async def kill(self) -> None:
        """End everything at once, workloads included."""
        if self._lock is None:
            return
        for name in self.names:
            self._dismiss(name)
            await self._sweep(name)
        for name in list(self._children):
            await self._end(name, signal.SIGKILL)
        for name in self.names:
            await self._sweep(name)
        await self._let_go()

    async def wait_ready(self, *, timeout: float = STARTS_WITHIN) -> None:
        """Wait until the control plane calls the node of every running agent Ready."""
        async with self.client() as control:
            deadline = self._clock.monotonic() + timeout
            while True:
                wanted = {name for name in self.names if self.is_running(name)}
                with contextlib.suppress(UnavailableError):
                    ready = {node.node_id for node in await control.list_nodes() if node.status == "Ready"}
                    if wanted <= ready:
                        return
                self._raise_if_ended()
                if self._clock.monotonic() > deadline:
                    raise DeadlineError(
                        f"the nodes {', '.join(sorted(wanted))} were not all Ready within {format_duration(timeout)}",
                        hint=f"their logs are in {self.base_dir}",
                    )
                await self._clock.sleep(_LOOK_EVERY)

    async def wait_exit(self) -> ChildExit:
        """Wait until a child ends that nobody told to."""
        return await self._exits.get()

    # -----------------------------------------------------------------------------------------------------
    # The control plane

    async def start_control(self, *, env: Mapping[str, str] | None = None) -> None:
        """Start the control plane, at the same addresses as before if it ran already."""
        await self._own_directory()
        # Chosen once, so that a control plane that comes back is where it was; only now, when the directory is ours
        # and nobody left behind by an earlier owner holds the usual ones.
        self._ports = [
            port or (usual if usual and is_free(usual) else free_port(self._entropy))
            for port, usual in zip(self._ports, self._usual_ports, strict=True)
        ]
        arguments = [
            *("control", "--insecure", "--data-dir", str(self._data_dir(CONTROL))),
            *("--grpc-port", str(self._ports[0]), "--http-port", str(self._ports[1])),
        ]
        for flag, value in (("--lease", self._lease), ("--heartbeat-interval", self._heartbeat_interval)):
            if value is not None:
                arguments += [flag, format_duration(value)]
        await self._start(CONTROL, [*arguments, *self._control_args], env)

    async def stop_control(self) -> None:
        """Ask the control plane to end and wait for it."""
        await self._end(CONTROL, signal.SIGTERM, within=STOPS_WITHIN)

    async def kill_control(self) -> None:
        """Kill the control plane as `kill -9` does."""
        await self._end(CONTROL, signal.SIGKILL)

    # -----------------------------------------------------------------------------------------------------
    # Agents

    async def start_agent(self, name: str, *, env: Mapping[str, str] | None = None) -> None:
        """Start an agent and wait until it serves. A name of its own adds a node to the fleet."""
        if name not in self.names:
            self.names = (*self.names, name)
        arguments = [
            *("agent", "--insecure", "--control", self.control_address, "--node-id", name),
            *("--data-dir", str(self._data_dir(name)), "--grpc-port", "0"),
        ]
        for flag, value in self._capacity.items():
            if value is not None:
                arguments += [flag, str(value)]
        if self._stop_workloads:
            arguments.append("--stop-workloads-on-exit")
        await self._start(name, [*arguments, *self._agent_args], env)

    async def stop_agent(self, name: str) -> None:
        """Ask an agent to end and wait for it; its workloads stop first if the fleet was made so."""
        await self._end(name, signal.SIGTERM, within=STOPS_WITHIN)

    async def kill_agent(self, name: str) -> None:
        """Kill an agent alone, as `kill -9` does. Its keeper and its workloads go on."""
        await self._end(name, signal.SIGKILL)

    async def kill_machine(self, name: str) -> None:
        """Kill an agent, its keeper and everything they started, as if the machine had lost its power."""
        self._dismiss(name)
        # The agent is stopped first, so that it cannot start anything while the rest is looked for.
        self.signal(name, signal.SIGSTOP)
        await self._sweep(name)
        await self._end(name, signal.SIGKILL)
        await self._sweep(name)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a child alone, such as SIGSTOP; nothing happens if it does not run."""
        child = self._children.get(name)
        if child is not None and child.running:
            child.process.send_signal(number)

    # -----------------------------------------------------------------------------------------------------
    # How

    async def _start(self, name: str, arguments: Sequence[str], env: Mapping[str, str] | None) -> None:
        if self.is_running(name):
            raise PreconditionError(f"{name} runs already", name=name)
        directory = self.directory_of(name)
        directory.mkdir(parents=True, exist_ok=True)
        ready_file = directory / "ready.json"
        ready_file.unlink(missing_ok=True)
        trim_log(self.log_of(name))
        with self.log_of(name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shoal", *arguments, "--ready-file", str(ready_file)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(env),
                start_new_session=True,
            )
        child = _Child(name, process, directory)
        self._children[name] = child
        self._write_register()
        if self._scope is None:
            self._scope = TaskScope("fleet")
            self._scope.start(self._trim_logs(), name="logs")
        self._scope.start(self._watch(child), name=name)
        child.ready = await self._wait_serving(child, ready_file)

    async def _watch(self, child: _Child) -> None:
        code = await child.process.wait()
        if not child.dismissed:
            self._exits.put_nowait(ChildExit(child.name, code, self._tail(child.name)))

    async def _trim_logs(self) -> None:
        while True:
            await self._clock.sleep(_TRIM_EVERY)
            for name in list(self._children):
                trim_log(self.log_of(name))

    async def _wait_serving(self, child: _Child, ready_file: Path) -> dict[str, Any]:
        deadline = self._clock.monotonic() + STARTS_WITHIN
        while (found := _read_json(ready_file)) is None:
            if not child.running:
                child.dismissed = True
                raise self._failure(ChildExit(child.name, child.process.returncode or 0, self._tail(child.name)))
            if self._clock.monotonic() > deadline:
                raise DeadlineError(f"{child.name} did not serve within {format_duration(STARTS_WITHIN)}")
            await self._clock.sleep(_LOOK_EVERY)
        return found

    async def _end(self, name: str, number: int, *, within: float = 10.0) -> None:
        child = self._children.get(name)
        if child is None:
            return
        child.dismissed = True
        if child.running:
            child.process.send_signal(number)
            child.process.send_signal(signal.SIGCONT)  # a process that a test has stopped could not hear the first
            try:
                async with asyncio.timeout(within):
                    await child.process.wait()
            except TimeoutError:
                child.process.kill()
                await child.process.wait()
        del self._children[name]
        self._write_register()

    def _dismiss(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None:
            child.dismissed = True

    def _running(self, name: str) -> _Child:
        child = self._children.get(name)
        if child is None or not child.running:
            raise PreconditionError(f"{name} does not run", name=name)
        return child

    def _raise_if_ended(self) -> None:
        if not self._exits.empty():
            raise self._failure(self._exits.get_nowait())

    def _failure(self, ended: ChildExit) -> ShoalError:
        last = ended.tail.strip().rsplit("\n", 1)[-1]
        return UnavailableError(
            f"{ended}: {last}" if last else str(ended), hint=f"its log is {self.log_of(ended.name)}"
        )

    def _tail(self, name: str) -> str:
        try:
            with self.log_of(name).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        # The settings of a child are its flags; what the person's shell says is meant for other programs.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        return {**inherited, **self._extra_env, **(env or {})}

    async def _sweep(self, name: str) -> None:
        """Kill the keeper of an agent, before it can notice anything, and every process that it has started."""
        from shoal.runtimes.process import find_run_pids, read_keeper_pid, remove_stray_groups

        data_dir = self._data_dir(name)
        deadline = self._clock.monotonic() + STARTS_WITHIN
        while True:
            keeper = read_keeper_pid(data_dir)
            pids = [*([keeper] if keeper is not None else []), *find_run_pids(data_dir)]
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._clock.monotonic() > deadline:
                raise DeadlineError(f"processes of {name} cannot be ended: {', '.join(map(str, pids))}")
            await self._clock.sleep(_LOOK_EVERY)
        remove_stray_groups(data_dir)

    def _data_dir(self, name: str) -> Path:
        return self.directory_of(name) / "data"

    # -----------------------------------------------------------------------------------------------------
    # One owner per directory

    async def _own_directory(self) -> None:
        """Take the directory's lock, and end children that an owner who was killed left behind."""
        if self._lock is not None:
            return
        self.base_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.base_dir / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise PreconditionError(
                f"a fleet runs already in {self.base_dir}",
                hint="stop it, or use another directory with --data-dir",
            ) from None
        self._lock = lock
        register = self.base_dir / "children.json"
        deadline = self._clock.monotonic() + 10.0
        number = signal.SIGTERM
        while left := list(_left_behind(register)):
            for name, pid in left:
                # Agents are killed, not asked: their work goes on under its keeper and is adopted by the next agent.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number if name == CONTROL else signal.SIGKILL)
            if self._clock.monotonic() > deadline:
                number = signal.SIGKILL
            await self._clock.sleep(_LOOK_EVERY)

    def _write_register(self) -> None:
        register = {
            child.name: {"pid": child.process.pid, "started": started}
            for child in self._children.values()
            if child.running and (started := _start_time(child.process.pid)) is not None
        }
        path = self.base_dir / "children.json"
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(register, indent=2))
        draft.replace(path)

    async def _let_go(self) -> None:
        if self._scope is not None:
            await self._scope.close()
            self._scope = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def free_port(entropy: Entropy | None = None) -> int:
    """A port that is free now and that the system does not hand out by itself.

    A port of the system's own range could be given to somebody's outgoing connection while a control plane that is to
    come back there is down.
    """
    chance = entropy or SystemEntropy()
    lowest_own = _first_ephemeral_port()
    low, high = (10_000, lowest_own) if lowest_own > 11_000 else (61_001, 65_535)
    for _ in range(1000):
        port = int(chance.uniform(low, high))
        if is_free(port):
            return port
    raise UnavailableError("no free port was found on 127.0.0.1")


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def trim_log(path: Path) -> None:
    """Keep what a child wrote within bounds: the newer part moves to `log.1`, and the log begins anew.

    The child has opened it for appending, so it goes on at the new end.
    """
    try:
        if path.stat().st_size <= MAX_LOG_BYTES:
            return
        with path.open("r+b") as log:
            log.seek(-MAX_LOG_BYTES // 2, os.SEEK_END)
            path.with_suffix(".1").write_bytes(log.read(MAX_LOG_BYTES))
            log.truncate(0)
    except OSError:
        return  # a full disk must not take the fleet down with it


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found


def _left_behind(register: Path) -> Iterator[tuple[str, int]]:
    for name, entry in (_read_json(register) or {}).items():
        if _start_time(entry["pid"]) == entry["started"]:
            yield name, entry["pid"]


def _start_time(pid: int) -> float | None:
    import psutil

    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None
