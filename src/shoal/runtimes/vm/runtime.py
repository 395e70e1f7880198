"""The VM runtime: one QEMU process per run, a child of the keeper.

This is the agent's half. It makes the disks and the cloud-init seed of a guest, tells the keeper what to start, and
returns when QEMU answers on its monitor. The keeper presses the power button to stop a guest, kills it after the grace
period, and copies the console into the workload's log. A restarted agent finds its guests as it finds processes.

    <data_dir>/workloads/<id>/vm/    QEMU's working directory: sockets, seed, what to wait for at boot

Never do two guests use one disk: a workload has one run at a time, and QEMU itself locks its disks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import signal
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path

from shoal.core import faults
from shoal.core.clock import Clock
from shoal.core.disk.durable import replace_file
from shoal.core.errors import DeadlineError, PreconditionError, UnavailableError
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.execs import ExecCommand
from shoal.model.nodes import ConditionType
from shoal.model.workloads import FailureReason, Usage, VmNetwork, VmSpec, WorkloadType
from shoal.runtimes.base import ExecSession, RunError, RunInfo, RunPhase, RunRequest, Tell, port_variable, spec_of
from shoal.runtimes.keeper import protocol
from shoal.runtimes.keeper.protocol import StartMessage
from shoal.runtimes.kept import KeptRuns, check_ids
from shoal.runtimes.vm import command_line, monitor, programs
from shoal.runtimes.vm.acceleration import Acceleration
from shoal.runtimes.vm.boot import BootSigns, BootWatch
from shoal.runtimes.vm.cloud_init import GuestMount, seed_parts
from shoal.runtimes.vm.command_line import DirectBoot, Guest, GuestDisk, GuestNetwork, PortForward
from shoal.runtimes.vm.disks import DiskStore
from shoal.runtimes.vm.exec import start_command
from shoal.runtimes.vm.failures import start_failure
from shoal.runtimes.vm.guest_agent import GuestAgent
from shoal.runtimes.vm.images import ImageCache
from shoal.runtimes.vm.network_names import KnownNetwork, name_networks, networks_from_json, networks_to_json
from shoal.runtimes.vm.seed import write_seed

log = logging.getLogger(__name__)

#: From exec until QEMU answers: it opens disks and forwards ports before.
_UP_SECONDS = 60.0
_POLL_SECONDS = 0.05
#: The file with the network interfaces of the last spec.
_NETWORKS = "networks.json"
#: For a question while the agent measures: a guest that is paused must not hold up the others.
_ASK_SECONDS = 0.4
_INTERFACES = Path("/sys/class/net")
_INTERFACE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_DEFAULT_NETWORK = "default"
#: User-mode networking needs addresses for the guest, its gateway and its name server.
_SMALLEST_NETWORK = 29
IMAGE_CACHE_BYTES = 20 << 30


class VmRuntime(KeptRuns):
    """Runs workloads as virtual machines. Implements `Runtime` and several of its optional parts."""

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock,
        node_id: NodeId,
        pools: Mapping[str, Path] | None = None,
        exports: Container[str] = (),
        binary: str = programs.QEMU,
        image_cache_bytes: int = IMAGE_CACHE_BYTES,
    ) -> None:
        """`pools` are the directories of the node's storage pools by name, `exports` those on the network."""
        super().__init__(data_dir, clock=clock, kind=protocol.VM)
        home = self._files.data_dir / "vm"
        self._binary = binary
        self._images = ImageCache(home / "images", limit_bytes=image_cache_bytes)
        self._disks = DiskStore(
            self._files.data_dir, node_id=node_id, pools=pools or {}, exports=exports, cache=self._images
        )
        self._acceleration = Acceleration(home / "acceleration.json", binary=binary)
        self._starting: dict[WorkloadId, asyncio.Lock] = {}
        self._boots: dict[RunId, BootWatch] = {}
        self._agents: dict[RunId, GuestAgent] = {}
        #: Guests that QEMU paused because their disk could not be written, and since when no one told.
        self._paused: dict[RunId, str] = {}

    @property
    def type(self) -> WorkloadType:
        """Virtual machines."""
        return WorkloadType.VM

    async def open(self) -> None:
        """Find the keeper or start one. Raises `UnavailableError` or `DeadlineError`."""
        await asyncio.to_thread(self._images.clear_parts)
        await self._open()

    async def health(self) -> str:
        """`healthy`, or `unhealthy: ` and why."""
        missing = programs.missing_program(self._binary)
        if missing:
            return f"unhealthy: {missing} is not installed"
        return await super().health()

    def conditions(self) -> Mapping[ConditionType, str]:
        """What was wrong with the keeper and with the disks of guests when they were last looked at."""
        conditions = dict(super().conditions())
        running = {run_id for run_id, run in self._own_runs.items() if run.exit is None}
        paused = {name for run_id, name in self._paused.items() if run_id in running}
        if paused:
            words = ", ".join(sorted(paused)[:10])
            conditions[ConditionType.DISK_PRESSURE] = f"guests are paused, their disk cannot be written: {words}"
        return conditions

    # --- runs ---------------------------------------------------------------------------------------------

    async def prepare(self, request: RunRequest) -> None:
        """Check the spec and fetch its images, without touching a run. Raises `RunError`."""
        check_ids(request)
        spec = spec_of(request, VmSpec)
        self._check_programs()
        await self._acceleration.choose(spec.acceleration)
        networks = _networks(request, spec, await asyncio.to_thread(self._name_networks, request, spec))
        await asyncio.to_thread(_check_node, spec, networks)
        _seed_of(request, spec, (), networks)
        await self._disks.fetch(request.workload_id, spec, request.volumes)

    async def fetch(self, request: RunRequest, *, tell: Tell | None = None) -> None:
        """The same, before a start."""
        del tell  # images come in one piece each
        await self.prepare(request)

    async def start(self, request: RunRequest) -> RunInfo:
        """Start a guest, or return what is known of it. Raises `RunError`; other errors leave the outcome open."""
        check_ids(request)
        spec = spec_of(request, VmSpec)
        async with self._starting.setdefault(request.workload_id, asyncio.Lock()):
            if await self.inspect(request.run_id) is None:
                self._check_alone(request)
                message = await self._make(request, spec)
                faults.reach("vm.start.before")
                await self._start(message)
                faults.reach("vm.start.after")
            return await self._wait_up(request)

    async def forget(self, run_id: RunId) -> None:
        """Let go of an ended run. Raises `PreconditionError` for one that has not ended."""
        await super().forget(run_id)
        for known in (self._boots, self._agents, self._paused):
            known.pop(run_id, None)

    async def forget_workload(self, workload_id: WorkloadId, *, delete_data: bool) -> None:
        """Let go of everything kept for a workload; of its disks only with `delete_data`."""
        await super().forget_workload(workload_id, delete_data=delete_data)
        self._starting.pop(workload_id, None)
        if delete_data:
            await self._disks.remove(workload_id)

    # --- what only some runtimes can do -------------------------------------------------------------------

    async def has_booted(self, run_id: RunId) -> bool:
        """Whether every sign of `VmSpec.boot` was seen."""
        record = self._own_runs.get(run_id)
        if record is None or record.exit is not None:
            return False
        home = Path(record.working_dir)
        if run_id not in self._boots:
            self._boots[run_id] = BootWatch(await asyncio.to_thread(BootSigns.read, home / "boot.json"))
        return await self._boots[run_id].look(
            logs=self._files.logs(record.workload_id),
            since_ms=record.started_at_ms,
            monitor_socket=home / command_line.MONITOR_SOCKET,
            agent=self.guest_agent(run_id),
        )

    def guest_agent(self, run_id: RunId) -> GuestAgent:
        """The guest agent of a run, which may not be there or not answer. Raises `UnavailableError` without a run."""
        record = self._own_runs.get(run_id)
        if record is None or record.exit is not None:
            raise UnavailableError(f"run {run_id!r} does not run")
        agent = self._agents.get(run_id)
        if agent is None:
            agent = self._agents[run_id] = GuestAgent(Path(record.working_dir) / command_line.AGENT_SOCKET)
        return agent

    async def exec(self, run_id: RunId, command: ExecCommand) -> ExecSession:
        """Run a command in the guest, through its guest agent."""
        record = self._own_runs.get(run_id)
        if record is None or record.exit is not None:
            raise PreconditionError(f"run {run_id!r} does not run")
        return await start_command(self.guest_agent(run_id), command, self._clock)

    async def usage(self, run_id: RunId) -> Usage | None:
        """What a guest uses now: CPU and memory of its QEMU, what went through its disks and its tap devices."""
        usage = await super().usage(run_id)
        record = self._own_runs.get(run_id)
        if usage is None or record is None:
            self._paused.pop(run_id, None)
            return None
        home = Path(record.working_dir)
        with contextlib.suppress(UnavailableError):
            found = await monitor.look(home / command_line.MONITOR_SOCKET, seconds=_ASK_SECONDS)
            usage = replace(usage, disk_read_bytes=found.read_bytes, disk_write_bytes=found.write_bytes)
            if found.is_paused:
                self._paused[run_id] = record.workload_id
            else:
                self._paused.pop(run_id, None)
        received, sent = await asyncio.to_thread(_tap_traffic, home / "taps")
        return replace(usage, net_rx_bytes=received, net_tx_bytes=sent)

    # --- starting -----------------------------------------------------------------------------------------

    def _check_programs(self) -> None:
        missing = programs.missing_program(self._binary)
        if missing:
            raise RunError(
                f"{missing} is not installed",
                failure=FailureReason.RUNTIME_ERROR,
                hint=f"on Debian: apt-get install {programs.PACKAGES.get(missing, missing)}",
            )

    def _check_alone(self, request: RunRequest) -> None:
        """Two guests on one disk would destroy it."""
        for run_id, record in self._own_runs.items():
            if record.workload_id == request.workload_id and record.exit is None:
                raise RunError(
                    f"run {run_id!r} of workload {request.workload_id!r} has not ended",
                    failure=FailureReason.RUNTIME_ERROR,
                    transient=True,
                )

    async def _make(self, request: RunRequest, spec: VmSpec) -> StartMessage:
        """Make everything that QEMU needs, and its command line. Raises `RunError`."""
        self._check_programs()
        accelerator = await self._acceleration.choose(spec.acceleration)
        named = await asyncio.to_thread(self._name_networks, request, spec)
        networks = _networks(request, spec, named)
        await asyncio.to_thread(_check_node, spec, networks)
        made = await self._disks.make(request.workload_id, spec, request.volumes)
        parts = _seed_of(request, spec, made.mounts, networks)
        home = self._home(request.workload_id)
        try:
            await asyncio.to_thread(self._write_home, home, request, spec, parts, networks)
            await asyncio.to_thread(replace_file, home / _NETWORKS, networks_to_json(named))
        except OSError as error:
            raise RunError(
                f"the files of workload {request.workload_id!r} cannot be written: {error}",
                failure=FailureReason.STORAGE_ERROR,
                transient=True,
            ) from error
        seed = (GuestDisk(home / "seed.iso", "raw", read_only=True, serial="cidata"),) if parts else ()
        guest = Guest(
            name=request.workload_id,
            vcpus=spec.vcpus,
            memory_mb=spec.memory_mb,
            accelerator=accelerator,
            disks=(*made.disks, *seed),
            networks=networks,
            direct_boot=DirectBoot(spec.kernel, spec.initrd, spec.kernel_args) if spec.kernel else None,
        )
        memory = request.limits.memory_mb and max(request.limits.memory_mb, spec.memory_mb + command_line.OVERHEAD_MB)
        return StartMessage(
            run_id=request.run_id,
            workload_id=request.workload_id,
            argv=command_line.qemu_arguments(guest, binary=self._binary),
            env={"PATH": programs.PATH},
            working_dir=str(home),
            own_dir=True,
            user="",
            stop_signal=signal.SIGTERM,
            grace=spec.stop.grace.total_seconds(),
            ports=dict(request.ports),
            cpu_millicores=request.limits.cpu_millicores,
            memory_mb=memory,
            deadline=None if request.deadline is None else self._on_boottime(request.deadline),
            kind=self._kind,
            stop_socket="" if spec.stop.signal == "KILL" else command_line.STOP_SOCKET,
        )

    def _home(self, workload_id: WorkloadId) -> Path:
        return self._files.workload(workload_id) / "vm"

    def _name_networks(self, request: RunRequest, spec: VmSpec) -> tuple[KnownNetwork, ...]:
        """Which interface each one of the spec is. Blocks."""
        known: tuple[KnownNetwork, ...] = ()
        try:
            known = networks_from_json((self._home(request.workload_id) / _NETWORKS).read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("the network interfaces of workload %s cannot be read: %s", request.workload_id, error)
        return name_networks(_wanted_networks(spec), known)

    def _write_home(
        self,
        home: Path,
        request: RunRequest,
        spec: VmSpec,
        parts: Mapping[str, str],
        networks: tuple[GuestNetwork, ...],
    ) -> None:
        """Write what QEMU reads from its working directory, and what a restarted agent wants to know."""
        self._files.workload(request.workload_id).mkdir(mode=0o711, parents=True, exist_ok=True)
        self._files.logs(request.workload_id).mkdir(mode=0o750, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        for name in ("up", command_line.MONITOR_SOCKET, command_line.STOP_SOCKET, command_line.AGENT_SOCKET):
            (home / name).unlink(missing_ok=True)
        if parts:
            write_seed(home / "seed.iso", parts)
        taps = []
        for network in networks:
            if network.bridge:
                script = command_line.bridge_script(network.bridge).encode()
                replace_file(home / command_line.bridge_script_name(network.number), script, mode=0o700)
            if network.bridge or network.tap:
                taps.append(network.tap or command_line.tap_name(network.mac))
        replace_file(home / "taps", "\n".join(taps).encode())
        replace_file(home / "boot.json", _signs(request, spec).to_json())

    async def _wait_up(self, request: RunRequest) -> RunInfo:
        """The run, once QEMU answers or has ended. Raises `RunError` when it ended before its guest ran."""
        home = self._home(request.workload_id)
        ends_at = self._clock.monotonic() + _UP_SECONDS
        while True:
            info = await self.inspect(request.run_id)
            if info is None:
                raise UnavailableError(f"run {request.run_id!r} is gone right after its start")
            if await asyncio.to_thread(_is_up, home, request.run_id):
                return info
            if info.phase is RunPhase.ENDED:
                if info.exit is None or info.exit.unknown or info.exit.code != 1 or info.ended_by:
                    return info
                await self.forget(request.run_id)
                raise start_failure(info.last_output)
            with contextlib.suppress(UnavailableError):
                await monitor.look(home / command_line.MONITOR_SOCKET, seconds=_UP_SECONDS / 4)
                await asyncio.to_thread((home / "up").write_text, request.run_id)
                return info
            if self._clock.monotonic() > ends_at:
                raise DeadlineError(f"QEMU (pid {info.pid}) does not answer on its monitor", seconds=_UP_SECONDS)
            await self._clock.sleep(_POLL_SECONDS)


def _is_up(home: Path, run_id: RunId) -> bool:
    """Whether QEMU has answered once."""
    with contextlib.suppress(OSError):
        return (home / "up").read_text() == run_id
    return False


def _seed_of(
    request: RunRequest, spec: VmSpec, mounts: tuple[GuestMount, ...], networks: tuple[GuestNetwork, ...]
) -> dict[str, str]:
    named_ports = {port_variable(name): str(port) for name, port in request.ports.items()}
    return seed_parts(
        spec.cloud_init,
        workload_id=request.workload_id,
        mounts=mounts,
        networks=networks,
        identity={
            **request.identity,
            **named_ports,
            "SHOAL_WORKLOAD_ID": request.workload_id,
            "SHOAL_RUN_ID": request.run_id,
        },
    )


def _networks(request: RunRequest, spec: VmSpec, named: tuple[KnownNetwork, ...]) -> tuple[GuestNetwork, ...]:
    """The interfaces of a guest, in an order that updates keep. Raises `RunError`."""
    made = (
        GuestNetwork(
            mac=network.mac or command_line.mac_address(request.workload_id, known.mac_seed),
            name=known.name,
            number=known.number,
            dhcp=network.dhcp,
            bridge=network.bridge,
            tap=network.tap,
            address=_address(network),
            forwards=tuple(
                PortForward(request.ports.get(port.name, port.host_port), port.container_port, port.protocol or "tcp")
                for port in network.ports
            ),
        )
        for network, known in zip(_wanted_networks(spec), named, strict=True)
    )
    return tuple(sorted(made, key=lambda each: each.number))


def _wanted_networks(spec: VmSpec) -> tuple[VmNetwork, ...]:
    """The interfaces of a spec; one with user-mode networking when it names none.

    Persys clients write the name of a network where a bridge is meant: the default one is user-mode networking here.
    """
    is_bridge = (_INTERFACES / _DEFAULT_NETWORK / "bridge").exists()
    return tuple(
        replace(network, bridge="") if network.bridge == _DEFAULT_NETWORK and not is_bridge else network
        for network in spec.networks or (VmNetwork(),)
    )


def _address(network: VmNetwork) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface | None:
    if not network.static_ip:
        return None
    try:
        address = ipaddress.ip_interface(network.static_ip)
        if address.version == 4 and "/" not in network.static_ip:
            address = ipaddress.IPv4Interface(f"{network.static_ip}/24")
    except ValueError as error:
        raise RunError(
            f"static_ip {network.static_ip!r} must be an address such as 10.0.2.20/24",
            failure=FailureReason.INVALID_SPEC,
        ) from error
    is_user = not network.bridge and not network.tap
    if is_user and address.version == 4 and address.network.prefixlen > _SMALLEST_NETWORK:
        raise RunError(
            f"static_ip {network.static_ip!r} needs a network of /{_SMALLEST_NETWORK} or larger without a bridge",
            failure=FailureReason.INVALID_SPEC,
        )
    return address


def _check_node(spec: VmSpec, networks: tuple[GuestNetwork, ...]) -> None:
    """Check that what the spec names on this node is there. Raises `RunError`."""
    for path in filter(None, (spec.kernel, spec.initrd)):
        if not Path(path).is_file():
            raise RunError(f"there is no file {path} on this node", failure=FailureReason.IMAGE_NOT_FOUND)
    for network in networks:
        for name, kind, sign in ((network.bridge, "bridge", "bridge"), (network.tap, "tap device", "tun_flags")):
            if not name:
                continue
            if not _INTERFACE_NAME.fullmatch(name):
                raise RunError(f"{kind} {name!r} cannot be a name", failure=FailureReason.INVALID_SPEC)
            if not (_INTERFACES / name / sign).exists():
                raise RunError(f"this node has no {kind} {name!r}", failure=FailureReason.NETWORK_ERROR, transient=True)


def _signs(request: RunRequest, spec: VmSpec) -> BootSigns:
    if spec.boot is None:
        return BootSigns()
    forwarded = {
        port.container_port: request.ports.get(port.name, port.host_port)
        for network in spec.networks
        for port in network.ports
        if port.protocol != "udp"
    }
    host_port = forwarded.get(spec.boot.tcp_port, 0)
    return BootSigns(spec.boot.console, host_port, spec.boot.guest_agent)


def _tap_traffic(taps: Path) -> tuple[int, int]:
    """What the guest received and sent through its tap devices. What the host sends, the guest receives."""
    received = sent = 0
    with contextlib.suppress(OSError):
        for name in taps.read_text().split():
            with contextlib.suppress(OSError, ValueError):
                received += int((_INTERFACES / name / "statistics/tx_bytes").read_text())
                sent += int((_INTERFACES / name / "statistics/rx_bytes").read_text())
    return received, sent
