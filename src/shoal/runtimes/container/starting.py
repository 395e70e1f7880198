"""Makes and starts containers, and frees their names. Called by `shoal.runtimes.container.runtime`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.core import faults
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError, UnavailableError
from shoal.model.workloads import ContainerSpec, FailureReason
from shoal.runtimes.base import RunError, RunRequest, Tell
from shoal.runtimes.container import failures, images
from shoal.runtimes.container.creating import TRIAL_LABEL, Owner, create_body
from shoal.runtimes.container.engine.api import EngineApi, EngineError
from shoal.runtimes.container.files import links_archive, write_files
from shoal.runtimes.guard.client import Guard
from shoal.runtimes.host_paths import is_protected, own_paths

_ROOT = "/"
#: How often the first process of an at-most-one container is looked for.
_LOOKS, _LOOK_SECONDS = 10, 0.1
#: The address of an engine on this machine.
_HERE = "unix://"
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - only to see whether a container could listen there


def check_mounts(spec: ContainerSpec, own: Sequence[str]) -> None:
    """Check that no volume shows the machine itself, or one of the agent's `own` paths. Raises `RunError`. Blocks."""
    for mount in spec.volumes:
        if is_protected(mount.host_path, own):
            raise RunError(
                f"this agent does not mount {mount.host_path} into containers",
                failure=FailureReason.INVALID_SPEC,
                hint="use a directory that shows nothing of the machine, or start the agent with --allow-privileged",
            )


async def check_guarded(api: EngineApi, guard: Guard, container_id: str, clock: Clock) -> None:
    """Check that a guard can end a container that was started. Raises `RunError`.

    One that ends at this moment has no process left, and the engine may not know yet.
    """
    for _ in range(_LOOKS):
        found = await api.container(container_id)
        pid = 0 if found is None else int(found["State"].get("Pid") or 0)
        if not pid or guard.can_kill(container_id, pid):
            return
        await clock.sleep(_LOOK_SECONDS)
    raise RunError(
        "an at-most-one container cannot be guarded: its processes are not the agent's to see and to kill",
        failure=FailureReason.RUNTIME_ERROR,
        hint="run the agent as root on the host of the engine, outside of a container",
    )


async def _check_ports(api: EngineApi, spec: ContainerSpec, present: str) -> None:
    """Check that the host ports are free that the present container does not have. Raises `RunError`."""
    if not api.address.startswith(_HERE):
        return
    found = await api.container(present) or {}
    bindings = (found.get("HostConfig") or {}).get("PortBindings") or {}
    own = {(str(each.get("HostPort")), key.partition("/")[2]) for key in bindings for each in bindings[key] or ()}
    for number, protocol in sorted(spec.host_ports):
        if (str(number), protocol) not in own and not await asyncio.to_thread(_is_free, number, protocol):
            raise RunError(
                f"port {number}/{protocol} of this node is in use", failure=FailureReason.NETWORK_ERROR, transient=True
            )


def _is_free(number: int, protocol: str) -> bool:
    """Whether a server could listen on a port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM) as probe:
        if protocol != "udp":
            # As servers do: lingering connections of a predecessor do not count, a listener does.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_EVERYWHERE, number))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


class Starter:
    """Makes the containers of one agent."""

    def __init__(self, workloads: Path, *, owner: Owner, guard: Guard, clock: Clock, allow_privileged: bool) -> None:
        self._workloads = workloads
        self._owner = owner
        self._guard = guard
        self._clock = clock
        self._pulls = images.ImagePulls(clock)
        self._allow_privileged = allow_privileged
        #: The ids of containers that are being tried now.
        self.trials: set[str] = set()

    async def prepare(self, api: EngineApi, request: RunRequest, spec: ContainerSpec) -> None:
        """See that a container can be made: have its image, make it under another name, and remove it again."""
        await self.make_ready(api, spec)
        present = self._owner.name_of(request.workload_id)
        await _check_ports(api, spec, present)
        name = f"{present}-trial"
        await api.remove(name)
        # One that is not started takes no ports.
        container_id = await self._create(api, request, spec, name, trial=True)
        faults.reach("container.trial.after")
        try:
            await api.remove(container_id)
        finally:
            self.trials.discard(container_id)  # one that is left is removed at the next comparison

    async def make_ready(self, api: EngineApi, spec: ContainerSpec, *, tell: Tell | None = None) -> None:
        """Check what this agent allows, and have the image at hand. Raises `RunError`."""
        if spec.privileged and not self._allow_privileged:
            raise RunError(
                "this agent runs no privileged containers",
                failure=FailureReason.INVALID_SPEC,
                hint="start the agent with --allow-privileged",
            )
        if not self._allow_privileged:
            await asyncio.to_thread(check_mounts, spec, own_paths(self._workloads.parent, api.address))
        await self._pulls.ensure(api, spec.image, spec.pull_policy, tell=tell)

    async def start(self, api: EngineApi, request: RunRequest, spec: ContainerSpec) -> dict[str, Any]:
        """Make and start the container of a run; what the engine says of it then."""
        faults.reach("container.create.before")
        container_id = await self._create(api, request, spec, self._owner.name_of(request.workload_id))
        faults.reach("container.create.after")
        try:
            if request.deadline is not None:
                # Before it is started: no moment without a guard, also if the agent is killed now.
                await self._guard.protect(container_id, request.deadline)
            await api.start(container_id)
            faults.reach("container.start.after")
            found = await api.container(container_id)
            if found is None:
                raise UnavailableError(f"the container of run {request.run_id!r} is gone right after its start")
            if request.deadline is not None:
                await check_guarded(api, self._guard, container_id, self._clock)
        except EngineError as error:
            await self._remove(api, container_id)
            raise failures.run_error(error, failures.judge_start(error), what="cannot start the container") from error
        except RunError:
            await self._remove(api, container_id)
            raise
        return found

    def files_of(self, workload_id: str) -> Path:
        """The directory of a workload's files."""
        return self._workloads / workload_id / "files"

    async def _create(
        self, api: EngineApi, request: RunRequest, spec: ContainerSpec, name: str, *, trial: bool = False
    ) -> str:
        folder = self.files_of(request.workload_id)
        if request.files and not trial:
            await asyncio.to_thread(write_files, folder, request.files)
        ceiling = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        files = str(folder) if request.files and not trial else ""
        body = create_body(request, spec, self._owner, ulimit_ceiling=ceiling, files=files)
        if trial:
            body["Labels"][TRIAL_LABEL] = "1"
        try:
            container_id = await api.create(name, body)
            if trial:
                self.trials.add(container_id)
            elif request.files:
                await api.put_archive(container_id, _ROOT, links_archive(request.files))
        except EngineError as error:
            raise failures.run_error(error, failures.judge_start(error), what="cannot create the container") from error
        return container_id

    async def _remove(self, api: EngineApi, container_id: str) -> None:
        with contextlib.suppress(ShoalError):
            await api.remove(container_id)
            self._guard.release(container_id)
