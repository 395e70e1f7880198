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
import os
import signal
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from shoal.cli.connection.profile import Profile, write_profile
from shoal.cli.local.certificates import FleetCertificates
from shoal.cli.local.children import (
    LOOK_EVERY,
    STARTS_WITHIN,
    Child,
    ChildExit,
    OwnedFolder,
    free_port,
    is_free,
    trim_log,
)
from shoal.client import ControlPlane
from shoal.core.clock import Clock, SystemClock
from shoal.core.durations import format_duration
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import DeadlineError, InvalidError, PreconditionError, UnavailableError, problem
from shoal.core.tasks import TaskScope
from shoal.model.nodes import NodeState
from shoal.wire.trust.access import LOOPBACK

if TYPE_CHECKING:
    from shoal.wire.trust.security import Security

CONTROL = "control"
STOPS_WITHIN = 75.0
"""Seconds an agent may take to end: a little more than it gives its workloads."""

_PORT_TRIES = 3
_TRIM_EVERY = 10.0
_OWN_VARIABLES = ("SHOAL_", "PERSYS_", "GRPC_PORT", "METRICS_PORT")


class LocalFleet:
    """One control plane and several agents, as child processes of this one.

    Args:
        base_dir: where everything is kept. One fleet at a time can own it.
        agents: how many agents `start` starts; they are called node-1, node-2, …
        slots: of each agent, like `cpu`, `memory` and `disk_gb`; None leaves it to the agent.
        lease: the control plane's; None for its default, as `heartbeat_interval`.
        grpc_port: of the control plane, like `http_port`; 0 for one that is free, kept for the life of the fleet.
        usual_ports: taken instead of any free ones if they are free; the third is where further agents join.
        secure: with certificates that are made in the base directory, or without any.
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
        usual_ports: tuple[int, int, int] = (0, 0, 0),
        secure: bool = True,
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
        self._ports = [grpc_port, http_port, 0]
        self._usual_ports = usual_ports
        self._stop_workloads = stop_workloads_on_exit
        self._extra_env = dict(extra_env or {})
        self._control_args = tuple(control_args)
        self._agent_args = tuple(agent_args)
        self._clock: Clock = clock or SystemClock()
        self._entropy: Entropy = entropy or SystemEntropy()
        self._certificates = FleetCertificates(self.base_dir, self._clock) if secure else None
        self._folder = OwnedFolder(self.base_dir, self._clock)
        self._children: dict[str, Child] = {}
        self._scope: TaskScope | None = None
        self._exits: asyncio.Queue[ChildExit] = asyncio.Queue()

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

    @property
    def join_address(self) -> str:
        """host:port where agents join that are not of this fleet, with certificates."""
        return f"127.0.0.1:{self._ports[2]}"

    def directory_of(self, name: str) -> Path:
        """Where a child keeps its state; `control` or an agent's name."""
        return self.base_dir / name

    def log_of(self, name: str) -> Path:
        """What a child writes."""
        return self.directory_of(name) / "log"

    @property
    def is_started(self) -> bool:
        """Whether the directory is this fleet's, and something may run in it."""
        return self._folder.is_owned

    def pid_of(self, name: str) -> int:
        """The process id of a running child. Raises `PreconditionError` when it does not run."""
        return self._running(name).process.pid

    def is_running(self, name: str) -> bool:
        """Whether a child runs."""
        child = self._children.get(name)
        return child is not None and child.running

    def client(self) -> ControlPlane:
        """A client of the control plane; the caller closes it."""
        from shoal.wire.sockets.channel import GrpcTransport

        return ControlPlane([self.control_address], GrpcTransport(security=self.security()), clock=self._clock)

    def security(self, node_id: str | None = None) -> Security:
        """How to talk to it: as its operator, or as the agent of a node."""
        from shoal.wire.trust.security import INSECURE, MutualTls

        if self._certificates is None:
            return INSECURE
        files = self._certificates.of_operator() if node_id is None else self._certificates.of_agent(node_id)
        return MutualTls(files.ca, files.cert, files.key)

    @property
    def client_variables(self) -> dict[str, str]:
        """The environment in which client commands talk to it."""
        if self._certificates is None:
            return {"SHOAL_CONTROL": self.control_address, "SHOAL_INSECURE": "1"}
        return self._profile(self._certificates).variables

    def _profile(self, certificates: FleetCertificates) -> Profile:
        files = certificates.of_operator()
        return Profile(self.control_address, str(files.ca), str(files.cert), str(files.key))

    # -----------------------------------------------------------------------------------------------------
    # All of it

    async def start(self) -> None:
        """Start everything and wait until every node is Ready."""
        await self.start_control()
        await together(self.start_agent(name) for name in self.names)
        await self.wait_ready()

    async def stop(self) -> None:
        """Stop the agents, then the control plane, and leave no process behind."""
        if not self._folder.is_owned:
            return  # nothing was started; processes in the directory belong to another owner
        agents = [name for name in self._children if name != CONTROL]
        await asyncio.gather(*(self.stop_agent(name) for name in agents))
        for name in self.names:
            await self._sweep(name)
        await self._end(CONTROL, signal.SIGTERM, within=STOPS_WITHIN)
        await self._let_go()

    async def kill(self) -> None:
        """End everything at once, workloads included."""
        if not self._folder.is_owned:
            return
        for name in self.names:
            self._dismiss(name)
        try:
            for name in self.names:
                await self._sweep(name)
        finally:
            # Also when a workload cannot be ended: no agent may be left that could start another one.
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
                    ready = {node.node_id for node in await control.list_nodes() if node.status == NodeState.READY}
                    if wanted <= ready:
                        return
                if not self._exits.empty():
                    raise self._exits.get_nowait().to_error()
                if self._clock.monotonic() > deadline:
                    raise DeadlineError(
                        f"the nodes {', '.join(sorted(wanted))} were not all Ready within {format_duration(timeout)}",
                        hint=f"their logs are in {self.base_dir}",
                    )
                await self._clock.sleep(LOOK_EVERY)

    async def wait_exit(self) -> ChildExit:
        """Wait until a child ends unexpectedly."""
        return await self._exits.get()

    # -----------------------------------------------------------------------------------------------------
    # The control plane

    async def take_folder(self) -> None:
        """Become the owner of the folder, before anything is started in it. Raises `PreconditionError`."""
        await self._folder.take(asked=CONTROL)

    async def start_control(self, *, env: Mapping[str, str] | None = None) -> None:
        """Start the control plane, at the same addresses as before if it ran already."""
        await self.take_folder()
        given = tuple(self._ports)
        for tries_left in reversed(range(_PORT_TRIES)):
            # Chosen once, so that a control plane that comes back is where it was; only now, when the directory is ours
            # and no process of an earlier owner holds the usual ones.
            self._ports = [
                port or (usual if usual and is_free(usual) else free_port(self._entropy))
                for port, usual in zip(given, self._usual_ports, strict=True)
            ]
            try:
                await self._start_control(env)
            except UnavailableError:
                # Another fleet that starts at the same time may have been faster.
                snatched = any(
                    not port and not is_free(chosen) for port, chosen in zip(given, self._ports, strict=True)
                )
                if not snatched or not tries_left:
                    raise
            else:
                return

    async def _start_control(self, env: Mapping[str, str] | None) -> None:
        if self._certificates is not None:
            write_profile(self.base_dir, self._profile(self._certificates))
        arguments = [
            *("control", *self._proof(CONTROL), "--data-dir", str(self._data_dir(CONTROL))),
            *("--grpc-host", LOOPBACK, "--grpc-port", str(self._ports[0]), "--http-port", str(self._ports[1])),
        ]
        for flag, value in (("--lease", self._lease), ("--heartbeat-interval", self._heartbeat_interval)):
            if value is not None:
                arguments += [flag, format_duration(value)]
        await self._start(CONTROL, [*arguments, *self._control_args], env)

    async def start_again(self, name: str) -> None:
        """Start a child that has ended."""
        await (self.start_control() if name == CONTROL else self.start_agent(name))

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
            *("agent", *self._proof(name), "--control", self.control_address, "--node-id", name),
            *("--data-dir", str(self._data_dir(name)), "--grpc-host", LOOPBACK, "--grpc-port", "0"),
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

    def _proof(self, name: str) -> tuple[str, ...]:
        """The flags by which a child proves who it is."""
        if self._certificates is None:
            return ("--insecure",)
        files = self._certificates.of_control() if name == CONTROL else self._certificates.of_agent(name)
        paths = ("--ca", str(files.ca), "--cert", str(files.cert), "--key", str(files.key))
        if name != CONTROL:
            return paths
        return (*paths, "--ca-key", str(self._certificates.signing_key), "--join-port", str(self._ports[2]))

    async def _start(self, name: str, arguments: Sequence[str], env: Mapping[str, str] | None) -> None:
        if self.is_running(name):
            raise PreconditionError(f"{name} runs already", name=name)
        try:
            child = await Child.start(name, arguments, self.directory_of(name), self._environment(env))
            self._children[name] = child
            self._note_children()
        except OSError as error:
            raise UnavailableError(f"{name} cannot be started: {error}") from error
        if self._scope is None:
            self._scope = TaskScope("fleet")
            self._scope.start(self._trim_logs(), name="logs")
        try:
            await child.wait_serving(self._clock)
        except DeadlineError:
            await self._end(name, signal.SIGKILL)  # else it would be in the way of the next one
            raise
        # Only now: a child that never served is reported to the caller of `start`.
        self._scope.start(self._watch(child), name=name)

    async def _end(self, name: str, number: int, *, within: float = 10.0) -> None:
        child = self._children.get(name)
        if child is None:
            return
        await child.end(number, within=within)
        self._children.pop(name, None)
        # A disk that is full must not keep the others from being ended, and who has ended is told by the pid as well.
        with contextlib.suppress(OSError):
            self._note_children()

    async def _watch(self, child: Child) -> None:
        ended = await child.wait_exit()
        if not child.dismissed:
            self._exits.put_nowait(ended)

    async def _trim_logs(self) -> None:
        while True:
            await self._clock.sleep(_TRIM_EVERY)
            for child in list(self._children.values()):
                trim_log(child.log)

    def _dismiss(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None:
            child.dismissed = True

    def _running(self, name: str) -> Child:
        child = self._children.get(name)
        if child is None or not child.running:
            raise PreconditionError(f"{name} does not run", name=name)
        return child

    def _note_children(self) -> None:
        self._folder.note({child.name: child.process.pid for child in self._children.values() if child.running})

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        # The settings of a child are its flags; what the person's shell says is meant for other programs.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        return {**inherited, **self._extra_env, **(env or {})}

    async def _sweep(self, name: str) -> None:
        """Kill the keeper of an agent, before it can notice anything, and every process that the two have started."""
        from shoal.runtimes.container.engine.finding import PODMAN_DIRECTORY, find_service_pids
        from shoal.runtimes.process import find_run_pids, read_keeper_pid, remove_stray_groups

        data_dir = self._data_dir(name)
        deadline = self._clock.monotonic() + STARTS_WITHIN
        while True:
            keeper = read_keeper_pid(data_dir)
            pids = [*([keeper] if keeper is not None else []), *find_run_pids(data_dir)]
            pids += find_service_pids(data_dir / PODMAN_DIRECTORY)
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._clock.monotonic() > deadline:
                raise DeadlineError(f"processes of {name} cannot be ended: {', '.join(map(str, pids))}")
            await self._clock.sleep(LOOK_EVERY)
        remove_stray_groups(data_dir)

    def _data_dir(self, name: str) -> Path:
        return self.directory_of(name) / "data"

    async def _let_go(self) -> None:
        if self._scope is not None:
            await self._scope.close()
            self._scope = None
        self._folder.release()


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run several coroutines concurrently. When one fails, the others are canceled and awaited before this raises."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
