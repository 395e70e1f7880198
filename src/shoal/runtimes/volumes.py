"""Managed volumes: directories that outlive the runs and revisions of a workload.

A volume of the driver `local` is a directory of this machine, in the agent's data directory or in a storage pool. One
of the driver `nfs` is a directory of an exported file system, which is mounted here with the `mount` program of the
machine and unmounted when it has no more users. Other drivers are refused. Volumes are kept when a workload is deleted
unless their retain policy is Delete. A size is reserved and not a quota: a directory can grow beyond it.

Called by the agent before a run is started and after a workload was deleted. Runtimes only see the directories.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from shoal.core import faults
from shoal.core.disk.durable import replace_file
from shoal.core.disk.private_files import make_private_directory
from shoal.core.errors import UnavailableError
from shoal.core.ids import WorkloadId
from shoal.model.workloads import FailureReason, ManagedVolume
from shoal.runtimes.base import RunError

log = logging.getLogger(__name__)

LOCAL, NFS = "local", "nfs"
#: What `mount` calls for an export.
MOUNT_HELPER = "mount.nfs"
_RECORD = "volumes.json"
_MOUNT_SECONDS = 60.0
_GIB = 1 << 30
#: What a directory of one machine can be.
_LOCAL_MODES = ("", "ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany")
_NFS_MODES = (*_LOCAL_MODES, "ReadWriteMany")
_NFS_TYPES = ("", "nfs", "nfs4")


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """What is remembered of a volume, so that it can be deleted without its spec."""

    driver: str
    path: str
    delete: bool
    #: Of a storage pool; empty for the agent's own directory.
    pool: str = ""
    #: Whether its workload is on this node. A volume that is retained stays without it.
    in_use: bool = True


class Volumes:
    """The managed volumes of one node."""

    def __init__(
        self,
        directory: Path,
        *,
        pools: Mapping[str, str] | None = None,
        mount: Sequence[str] = ("mount",),
        unmount: Sequence[str] = ("umount",),
    ) -> None:
        """`pools` are the storage pools by name: a directory, or `server:/export` for one that is mounted over NFS.

        `mount` is called as `mount -t TYPE EXPORT DIRECTORY`.
        """
        self._directory = directory
        self._pools = dict(pools or {})
        self._mount = tuple(mount)
        self._unmount = tuple(unmount)
        self._mounting: dict[str, asyncio.Lock] = {}
        #: Work under way in each pool that needs its mount.
        self._working: Counter[str] = Counter()

    @property
    def drivers(self) -> tuple[str, ...]:
        """What this node can provide."""
        exports = any(_is_export(place) for place in self._pools.values())
        return (LOCAL, NFS) if exports and not self._missing() else (LOCAL,)

    async def provide(
        self, workload_id: WorkloadId, volumes: Sequence[ManagedVolume], *, hold_disks: bool = False
    ) -> dict[str, str]:
        """Make the volumes of a workload and return their directories by name. Raises `RunError`.

        Volumes that `hold_disks` get the disks of a guest: a file system that they name is the guest's to make, and
        their directories may be on any other.
        """
        for volume in volumes:
            self._check(volume)
        exports = {volume.pool_name for volume in volumes if volume.driver == NFS}
        self._working.update(exports)
        try:
            provided = {}
            for volume in volumes:
                parent = await self._parent_of(volume)
                path = parent / workload_id / volume.name
                provided[volume.name] = str(path)
                await asyncio.to_thread(self._make, path, volume)
                if (volume.driver or LOCAL) == LOCAL and volume.fs_type and not hold_disks:
                    await asyncio.to_thread(_check_file_system, path, volume)
            if volumes:
                try:
                    await asyncio.to_thread(self._remember, workload_id, volumes, provided)
                except UnavailableError as error:
                    raise _storage_error(error.message) from error
        finally:
            self._working.subtract(exports)
        return provided

    async def delete(self, workload_id: WorkloadId, newest: Sequence[ManagedVolume] = ()) -> None:
        """A workload was deleted: remove those of its volumes whose retain policy is Delete. May be repeated.

        The policies of the `newest` spec count, which may never have run; those of earlier ones for what it lacks.
        """
        records = await asyncio.to_thread(self._records, workload_id)
        policies = {volume.name: _is_deleted(volume) for volume in newest}
        for name in [name for name, record in records.items() if policies.get(name, record.delete)]:
            record = records.pop(name)
            self._working[record.pool] += 1
            try:
                if record.driver == NFS:
                    await self._mounted(record.pool)
                await asyncio.to_thread(_remove, Path(record.path))
            except (RunError, OSError) as error:
                raise UnavailableError(f"volume {name!r} cannot be removed: {error}") from error
            finally:
                self._working[record.pool] -= 1
            faults.reach("volume.removed")
            await asyncio.to_thread(self._write, workload_id, records)

    async def release(self, workload_id: WorkloadId) -> None:
        """A workload is no longer on this node: unmount what only it has used. May be repeated."""
        try:
            records = await asyncio.to_thread(self._records, workload_id)
            released = {name: replace(record, in_use=False) for name, record in records.items()}
            if released != records:
                await asyncio.to_thread(self._write, workload_id, released)
        except UnavailableError as error:
            log.warning("what workload %s used stays mounted: %s", workload_id, error.message)
        else:
            await self.close()

    async def close(self) -> None:
        """Unmount every export that no workload of this node uses."""
        for name, place in self._pools.items():
            target = self._target(name)
            async with self._mounting.setdefault(name, asyncio.Lock()):
                if not _is_export(place) or self._working[name] or not await asyncio.to_thread(_is_mounted, target):
                    continue
                try:
                    in_use = await asyncio.to_thread(self._pools_in_use)
                except UnavailableError as error:
                    log.warning("%s stays mounted: %s", place, error.message)
                    continue
                if name in in_use or self._working[name]:
                    continue
                said = await _run((*self._unmount, str(target)))
                if said:
                    log.warning("%s cannot be unmounted: %s", place, said)

    # --- checks -------------------------------------------------------------------------------------------

    def _check(self, volume: ManagedVolume) -> None:
        driver = volume.driver or LOCAL
        place = self._pools.get(volume.pool_name, "") if volume.pool_name else ""
        if driver not in (LOCAL, NFS):
            raise _refused(volume, f"has the driver {driver!r}, which no node provides", hint="use local or nfs")
        if volume.pool_name and not place:
            raise _refused(volume, f"is in the storage pool {volume.pool_name!r}, which this node does not have")
        if driver == LOCAL and place and _is_export(place):
            raise _refused(volume, f"is local, and the storage pool {volume.pool_name!r} is on the network")
        if driver == NFS and not (place and _is_export(place)):
            hint = "name a pool that was declared as NAME=SERVER:/EXPORT"
            raise _refused(volume, "has the driver nfs and no storage pool on the network", hint=hint)
        modes = _LOCAL_MODES if driver == LOCAL else _NFS_MODES
        if volume.access_mode not in modes:
            raise _refused(volume, f"has the access mode {volume.access_mode!r}", hint=f"use {', '.join(modes[1:])}")
        if driver == NFS and volume.fs_type not in _NFS_TYPES:
            raise _refused(volume, f"has the file system type {volume.fs_type!r}", hint="use nfs or nfs4")

    async def _parent_of(self, volume: ManagedVolume) -> Path:
        if not volume.pool_name:
            return self._directory / "local"
        place = self._pools[volume.pool_name]
        if not _is_export(place):
            return Path(place) / "volumes"
        if missing := self._missing():
            raise _refused(volume, f"needs {missing}, which this node does not have")
        return await self._mounted(volume.pool_name, volume.fs_type)

    async def _mounted(self, pool: str, fs_type: str = "") -> Path:
        """The directory where the export of a pool is mounted. Raises `RunError`."""
        target, place = self._target(pool), self._pools.get(pool, "")
        async with self._mounting.setdefault(pool, asyncio.Lock()):
            if await asyncio.to_thread(_is_mounted, target):
                return target
            if not _is_export(place):
                raise _storage_error(f"the storage pool {pool!r} is no longer declared")
            await asyncio.to_thread(target.mkdir, mode=0o700, parents=True, exist_ok=True)
            said = await _run((*self._mount, "-t", fs_type or NFS, place, str(target)))
            if said or not await asyncio.to_thread(_is_mounted, target):
                raise _storage_error(f"{place} cannot be mounted: {said or 'nothing is mounted there'}")
        return target

    def _missing(self) -> str:
        """What this node lacks to mount an export; empty when it has everything."""
        for program in (self._mount[0], MOUNT_HELPER):
            if shutil.which(program) is None:
                return f"the program {program}"
        return "" if kernel_has_nfs() else "a kernel with NFS"

    def _target(self, pool: str) -> Path:
        return self._directory / "mounts" / pool

    # --- the disk -----------------------------------------------------------------------------------------

    def _make(self, path: Path, volume: ManagedVolume) -> None:
        try:
            if not path.exists():
                _check_room(path, volume)
                # Nobody passes the directories above it, and the user inside a container may be anyone.
                make_private_directory(path.parent)
                path.mkdir()
                path.chmod(0o777)
        except OSError as error:
            raise _storage_error(f"volume {volume.name!r} cannot be made: {error}") from error

    def _remember(self, workload_id: WorkloadId, volumes: Sequence[ManagedVolume], provided: Mapping[str, str]) -> None:
        records = self._records(workload_id)
        for volume in volumes:
            records[volume.name] = VolumeRecord(
                volume.driver or LOCAL,
                provided[volume.name],
                delete=_is_deleted(volume),
                pool=volume.pool_name,
            )
        self._write(workload_id, records)

    def _pools_in_use(self) -> set[str]:
        """The pools with volumes of workloads that are on this node. Raises `UnavailableError`."""
        known = [WorkloadId(path.parent.name) for path in (self._directory / "records").glob(f"*/{_RECORD}")]
        return {record.pool for each in known for record in self._records(each).values() if record.in_use}

    def _records(self, workload_id: WorkloadId) -> dict[str, VolumeRecord]:
        try:
            return records_from_json((self._directory / "records" / workload_id / _RECORD).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UnavailableError(f"the record of the volumes of {workload_id!r} cannot be read: {error}") from error

    def _write(self, workload_id: WorkloadId, records: Mapping[str, VolumeRecord]) -> None:
        path = self._directory / "records" / workload_id / _RECORD
        try:
            if not records:
                shutil.rmtree(path.parent, ignore_errors=True)
                return
            make_private_directory(path.parent)
            replace_file(path, json.dumps({name: asdict(record) for name, record in records.items()}).encode())
        except OSError as error:
            raise UnavailableError(f"the volumes of {workload_id!r} cannot be written down: {error}") from error


def records_from_json(text: bytes) -> dict[str, VolumeRecord]:
    """Read what is remembered of a workload's volumes. Raises ValueError."""
    try:
        found = {str(name): VolumeRecord(**fields) for name, fields in json.loads(text).items()}
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a record of volumes: {error}") from error
    for record in found.values():
        if not isinstance(record.path, str) or not isinstance(record.delete, bool):
            raise ValueError("not a record of volumes")  # noqa: TRY004 as all damage is
    return found


def _is_deleted(volume: ManagedVolume) -> bool:
    """Whether it goes with its workload. Without a policy it is retained."""
    return volume.retain_policy == "Delete"


def _is_export(place: str) -> bool:
    return not place.startswith("/") and ":/" in place


def _check_room(path: Path, volume: ManagedVolume) -> None:
    """Whether the disk has room for a new volume of its size."""
    existing = next(each for each in path.parents if each.exists())
    free = shutil.disk_usage(existing).free
    if volume.size_gb * _GIB > free:
        raise _storage_error(
            f"volume {volume.name!r} needs {volume.size_gb} GB, and its disk has {free / _GIB:.1f} GB left"
        )


def _check_file_system(path: Path, volume: ManagedVolume) -> None:
    found = _file_system_of(path)
    if volume.fs_type != found:
        raise _refused(volume, f"has the file system type {volume.fs_type!r}, and its directory is on {found}")


def kernel_has_nfs() -> bool:
    """Whether the kernel knows NFS, or has a module for it that a mount loads."""
    with contextlib.suppress(OSError):
        if {"nfs", "nfs4"} & set(Path("/proc/filesystems").read_text().split()):
            return True
    with contextlib.suppress(OSError):
        modules = Path("/lib/modules") / os.uname().release / "modules.dep"
        return "/nfs.ko" in modules.read_text()
    return False


def _is_mounted(target: Path) -> bool:
    """Whether something is mounted at a directory."""
    lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    wanted = str(target.absolute()).replace("\\", "\\134").replace(" ", "\\040")
    return any(line.split()[4] == wanted for line in lines)


def _file_system_of(path: Path) -> str:
    """The type of the file system that a directory is on."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        words = line.split()
        if words[2] == number:
            return words[words.index("-") + 1]
    return "unknown"


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
    parent = path.parent
    if parent.exists() and not any(parent.iterdir()):
        parent.rmdir()


async def _run(command: Sequence[str]) -> str:
    """Run a program; what it said when it failed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_MOUNT_SECONDS):
            said, _ = await process.communicate()
    except TimeoutError:
        return f"no answer in {_MOUNT_SECONDS:.0f} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return ""
    return said.decode(errors="replace").strip()[-500:] or f"exit code {process.returncode}"


def _refused(volume: ManagedVolume, why: str, *, hint: str = "") -> RunError:
    return RunError(f"volume {volume.name!r} {why}", failure=FailureReason.INVALID_SPEC, hint=hint)


def _storage_error(message: str) -> RunError:
    return RunError(message, failure=FailureReason.STORAGE_ERROR, transient=True)
