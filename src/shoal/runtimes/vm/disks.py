"""The disks of a guest: overlays over base images, blank disks, CD images, managed volumes. Called by `runtime`.

A disk is made once and then left alone: it survives updates, retries and failed starts. A larger size in an update
grows it. It goes when the workload is deleted with the retain policy Delete. `disk_names` says which one is which.

    <data_dir>/vm/images/<sha256>                     the cache of base images
    <data_dir>/vm/disks/<workload>/<name>.qcow2       the disks of a workload that are in no pool
    <data_dir>/vm/disks/<workload>/base-<sha256>      links to the cached images that its disks are based on
    <pool>/<node>/<workload>/<name>.qcow2             its disks in a storage pool
    <name>.json, beside each                          what the spec said of it
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from shoal.core import faults
from shoal.core.disk.durable import replace_file, sync_path
from shoal.core.errors import UnavailableError
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.spec.kinds import DEFAULT_DISK_GB
from shoal.model.workloads import FailureReason, ManagedVolume, VmDisk, VmSpec
from shoal.runtimes.base import RunError
from shoal.runtimes.vm.cloud_init import GuestMount
from shoal.runtimes.vm.command_line import SERIAL_LENGTH, GuestDisk
from shoal.runtimes.vm.disk_names import KnownDisk, has_data, is_attached_as_it_is, key_of, name_disks
from shoal.runtimes.vm.images import ImageCache
from shoal.runtimes.vm.qemu_img import image_facts, qemu_img
from shoal.runtimes.volumes import NFS

_GB = 1 << 30
_BASE_FORMATS = ("qcow2", "raw")
_DEVICE = re.compile(r"(vd|sd|hd|xvd)[a-z]+")
#: What a guest can make on a managed volume; the type of one on an export is that of its mount on the node.
_GUEST_TYPES = ("ext4", "ext3", "ext2", "xfs", "btrfs", "vfat")
_MOUNT_TYPES = ("nfs", "nfs4")


@dataclass(frozen=True, slots=True)
class MadeDisks:
    """What a guest gets, in the order of its spec."""

    disks: tuple[GuestDisk, ...]
    mounts: tuple[GuestMount, ...]


def wanted_disks(spec: VmSpec) -> tuple[VmDisk, ...]:
    """The disks of a spec. `os_image` is the base of the first disk, if that is free for it, else of one before it."""
    if not spec.os_image:
        return spec.disks
    first = spec.disks[0] if spec.disks else VmDisk()
    is_free = not (first.image or first.path or mount_point_of(first) or first.format == "iso")
    root = replace(first if is_free else VmDisk(), image=spec.os_image, sha256=spec.os_image_sha256, format="")
    return (root, *spec.disks[1:]) if is_free and spec.disks else (root, *spec.disks)


def mount_point_of(disk: VmDisk) -> str:
    """Where the guest mounts a disk. Persys clients write the name of a device there: such a disk is not mounted."""
    return "" if _DEVICE.fullmatch(disk.mount_point) else disk.mount_point


class DiskStore:
    """Makes and removes the disks of guests."""

    def __init__(
        self,
        data_dir: Path,
        *,
        node_id: NodeId,
        pools: Mapping[str, Path],
        exports: Container[str] = (),
        cache: ImageCache,
    ) -> None:
        """`exports` are the pools of the node that are on the network: managed volumes lie there, and no disks."""
        self._disks = data_dir / "vm" / "disks"
        self._node_id = node_id
        self._pools = pools
        self._exports = exports
        self._cache = cache

    async def fetch(self, workload_id: WorkloadId, spec: VmSpec, volumes: Mapping[str, str]) -> None:
        """Fetch the base images of a spec, and check all that would keep its disks from being made, but for room.

        A guest may run on them. Raises `RunError`.
        """
        named = await asyncio.to_thread(self._name_disks, workload_id, spec)
        for volume in spec.managed_volumes:
            guest_file_system(volume)
            path = await asyncio.to_thread(_volume_path, volume, volumes)
            if not volume.is_read_only:
                await _check_size(path, "qcow2", volume.size_gb * _GB)
        for each, disk in zip(named, wanted_disks(spec), strict=True):
            _check_mount_point(each.name, disk)
            await self._check_disk(workload_id, each.name, disk)

    async def make(self, workload_id: WorkloadId, spec: VmSpec, volumes: Mapping[str, str]) -> MadeDisks:
        """Make what is not there yet. No guest of the workload may run. Raises `RunError`."""
        disks: list[GuestDisk] = []
        mounts: list[GuestMount] = []
        try:
            named = await asyncio.to_thread(self._name_disks, workload_id, spec)
            await asyncio.to_thread(self._write_names, workload_id, named)
            for each, wanted in zip(named, wanted_disks(spec), strict=True):
                made = await self._make_disk(workload_id, each.name, wanted)
                disks.append(made)
                if mount_point := mount_point_of(wanted):
                    mounts.append(
                        GuestMount(
                            made.serial,
                            mount_point,
                            read_only=made.read_only,
                            is_blank=not (wanted.image or wanted.path or made.read_only),
                        )
                    )
            for volume in spec.managed_volumes:
                kind = guest_file_system(volume)
                made = await _make_volume(volume, volumes, serial=volume_serial(volume.name))
                disks.append(made)
                # What cannot be written has its file system already, of whatever type.
                if volume.mount_path:
                    is_blank = not volume.is_read_only
                    mounts.append(GuestMount(made.serial, volume.mount_path, kind, volume.is_read_only, is_blank))
        except OSError as error:
            raise RunError(
                f"the disks of workload {workload_id!r} cannot be made: {error}",
                failure=FailureReason.STORAGE_ERROR,
                transient=True,
            ) from error
        return MadeDisks(tuple(disks), tuple(mounts))

    async def remove(self, workload_id: WorkloadId) -> None:
        """Remove every disk of a workload, in every pool. Raises `UnavailableError`."""
        places = [self._disks, *(pool / self._node_id for pool in self._pools.values())]
        for place in places:
            try:
                await asyncio.to_thread(shutil.rmtree, place / workload_id)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise UnavailableError(f"the disks of workload {workload_id!r} cannot be removed: {error}") from error
            faults.reach("vm.disks.removed")

    def _directory(self, workload_id: WorkloadId, pool_name: str) -> Path:
        if not pool_name:
            return self._disks / workload_id
        pool = self._pools.get(pool_name)
        if pool_name in self._exports:
            raise RunError(
                f"the storage pool {pool_name!r} is on the network, where no disks lie",
                failure=FailureReason.INVALID_SPEC,
                hint="use a managed volume with the driver nfs, or another pool",
            )
        if pool is None:
            known = ", ".join(sorted(self._pools)) or "none"
            raise RunError(
                f"this node has no storage pool {pool_name!r}; it has {known}",
                failure=FailureReason.INVALID_SPEC,
                hint="the agent declares pools with --storage-pool name=path:GB",
            )
        return pool / self._node_id / workload_id

    def _name_disks(self, workload_id: WorkloadId, spec: VmSpec) -> tuple[KnownDisk, ...]:
        """Which disk each one of the spec is. Blocks. Raises `RunError`."""
        disks, has_root = wanted_disks(spec), bool(spec.os_image)
        for disk in disks:
            self._directory(workload_id, disk.pool_name)
        known = self._read_names(workload_id)
        if not known:
            known = self._unnamed(workload_id, disks, has_root=has_root)
        named = name_disks(disks, known, has_root=has_root)
        for each, disk in zip(named, disks, strict=True):
            is_empty = disk.read_only and not disk.image and not disk.path
            if is_empty and _file_of(self._directory(workload_id, disk.pool_name), each.name) is None:
                raise _empty(f"disk {each.name!r}")
        return named

    def _unnamed(self, workload_id: WorkloadId, disks: tuple[VmDisk, ...], *, has_root: bool) -> list[KnownDisk]:
        """Disks of an earlier version, which went by their position."""
        found = []
        for number, disk in enumerate(disks):
            key, name = key_of(disk, is_root=has_root and not number), f"disk{number}"
            if has_data(key) and _file_of(self._directory(workload_id, disk.pool_name), name) is not None:
                found.append(KnownDisk(name, key, disk.size_gb, disk.pool_name))
        return found

    def _read_names(self, workload_id: WorkloadId) -> list[KnownDisk]:
        """What earlier specs said, in the order in which the disks were made."""
        found: list[KnownDisk] = []
        for pool_name in ("", *sorted(self._pools)):
            for path in self._directory(workload_id, pool_name).glob("*.json"):
                try:
                    fields = json.loads(path.read_bytes())
                    known = KnownDisk(path.stem, pool_name=pool_name, **fields)
                except (OSError, ValueError, TypeError) as error:
                    raise RunError(
                        f"what is known of disk {path.stem!r} cannot be read: {error}",
                        failure=FailureReason.STORAGE_ERROR,
                        hint=f"write the file {path} again, as those of other disks are",
                    ) from error
                found.append(known)
        return sorted(found, key=lambda each: (len(each.name), each.name))

    def _write_names(self, workload_id: WorkloadId, named: tuple[KnownDisk, ...]) -> None:
        """Write down what the spec says of each disk, before any of them is made. Blocks."""
        before = {each.name: each for each in self._read_names(workload_id)}
        gone = [replace(each, attached=False) for name, each in before.items() if name not in {x.name for x in named}]
        for each in (*named, *gone):
            if before.get(each.name) != each:
                directory = self._directory(workload_id, each.pool_name if each.has_data else "")
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                fields = asdict(each)
                del fields["name"], fields["pool_name"]
                replace_file(directory / f"{each.name}.json", json.dumps(fields).encode())

    async def _check_disk(self, workload_id: WorkloadId, name: str, wanted: VmDisk) -> None:
        """Check that a disk can be made, or be what the spec says of it. One that exists needs no image."""
        size, is_own = wanted.size_gb * _GB, not is_attached_as_it_is(wanted)
        made = await asyncio.to_thread(_file_of, self._directory(workload_id, wanted.pool_name), name)
        if wanted.path:
            if wanted.format != "iso":
                await _check_size(Path(wanted.path), wanted.format, size)
        elif is_own and made is not None:
            await _check_size(made, made.suffix[1:], size)
        elif wanted.image:
            base = await self._find_base(workload_id, wanted)
            if wanted.format != "iso":
                kind = await _base_format(base, wanted.format)
                if is_own and size:
                    await _check_holds(base, kind, size)

    async def _make_disk(self, workload_id: WorkloadId, name: str, wanted: VmDisk) -> GuestDisk:
        if wanted.path:
            return await _use_file(Path(wanted.path), wanted, name)
        if is_attached_as_it_is(wanted):
            base = await self._base(workload_id, wanted)
            kind = "raw" if wanted.format == "iso" else await _base_format(base, wanted.format)
            return GuestDisk(base, kind, read_only=True, serial=name)
        directory, size = self._directory(workload_id, wanted.pool_name), wanted.size_gb * _GB
        path = await asyncio.to_thread(_file_of, directory, name)
        if path is not None:  # whatever image it was made from and in whatever format, it stays
            await _grow(path, path.suffix[1:], size)
        elif not wanted.image:
            path = directory / f"{name}.{'raw' if wanted.format == 'raw' else 'qcow2'}"
            await _make(path, path.suffix[1:], size)
        else:
            path = directory / f"{name}.qcow2"
            base = await self._base(workload_id, wanted)
            await _make(path, "qcow2", size, base=base, base_format=await _base_format(base, wanted.format))
        return GuestDisk(path, path.suffix[1:], read_only=wanted.read_only, serial=name)

    async def _base(self, workload_id: WorkloadId, wanted: VmDisk) -> Path:
        """The base image of a disk: a path of the node as it is, a cached one by a link that is the workload's own."""
        found, link = await self._find_base(workload_id, wanted), self._link(workload_id, wanted)
        faults.reach("vm.image.found")
        if not wanted.sha256 or found == link:
            return found
        await asyncio.to_thread(link.parent.mkdir, mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            await asyncio.to_thread(os.link, found, link)
        return link

    async def _find_base(self, workload_id: WorkloadId, wanted: VmDisk) -> Path:
        link = self._link(workload_id, wanted)
        if bool(wanted.sha256) and await asyncio.to_thread(link.is_file):
            return link
        return await self._cache.find(wanted.image, wanted.sha256)

    def _link(self, workload_id: WorkloadId, wanted: VmDisk) -> Path:
        return self._disks / workload_id / f"base-{wanted.sha256}"


def volume_serial(name: str) -> str:
    """What the guest sees of a managed volume: the same in every order of the volumes, and short enough."""
    serial = f"volume-{name}"
    return serial if len(serial) <= SERIAL_LENGTH else f"volume-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _file_of(directory: Path, name: str) -> Path | None:
    """The disk of a name, if it was made. Blocks."""
    paths = (directory / f"{name}.{kind}" for kind in _BASE_FORMATS)
    return next((path for path in paths if path.exists()), None)


async def _use_file(path: Path, wanted: VmDisk, serial: str) -> GuestDisk:
    """A disk file of the node, made if it is not there."""
    if wanted.format == "iso":
        return GuestDisk(path, "raw", read_only=True, serial=serial)
    kind = wanted.format or "qcow2"
    if not wanted.format and await asyncio.to_thread(path.is_file):
        kind = str((await image_facts(path)).get("format", kind))
    await _make(path, kind, wanted.size_gb * _GB)
    return GuestDisk(path, kind, read_only=wanted.read_only, serial=serial)


async def _make_volume(volume: ManagedVolume, volumes: Mapping[str, str], *, serial: str) -> GuestDisk:
    """A managed volume is a disk image in the volume's directory, which is the agent's to keep or remove."""
    path = await asyncio.to_thread(_volume_path, volume, volumes)
    if volume.is_read_only:
        return GuestDisk(path, read_only=True, serial=serial)
    await _make(path, "qcow2", volume.size_gb * _GB)
    return GuestDisk(path, serial=serial)


def _volume_path(volume: ManagedVolume, volumes: Mapping[str, str]) -> Path:
    """The disk of a volume, which one that is read-only must have already. Blocks. Raises `RunError`."""
    directory = volumes.get(volume.name)
    if directory is None:
        raise RunError(f"volume {volume.name!r} has no directory on this node", failure=FailureReason.STORAGE_ERROR)
    path = Path(directory) / "disk.qcow2"
    if volume.is_read_only and not path.exists():
        raise _empty(f"volume {volume.name!r}")
    return path


def _empty(what: str) -> RunError:
    return RunError(
        f"{what} is read-only and empty: a guest can neither make a file system on it nor read one",
        failure=FailureReason.INVALID_SPEC,
        hint="run a revision that writes to it first, or let it be written to",
    )


def guest_file_system(volume: ManagedVolume) -> str:
    """The file system that a guest makes on a managed volume. Raises `RunError`."""
    if volume.driver == NFS and volume.fs_type in _MOUNT_TYPES:
        return _GUEST_TYPES[0]
    if volume.fs_type and volume.fs_type not in _GUEST_TYPES:
        raise RunError(
            f"volume {volume.name!r} has the file system type {volume.fs_type!r}, which no guest makes on a disk",
            failure=FailureReason.INVALID_SPEC,
            hint=f"use {', '.join(_GUEST_TYPES)}",
        )
    return volume.fs_type or _GUEST_TYPES[0]


async def _make(path: Path, kind: str, size: int, *, base: Path | None = None, base_format: str = "") -> None:
    """Make a disk unless it is there; then grow it if it is too small. A half-made one is never left behind."""
    if await asyncio.to_thread(path.exists):
        await _grow(path, kind, size)
        return
    part = path.with_name(f".{path.name}.part")
    arguments = ["create", "-q", "-f", kind]
    if base is not None:
        arguments += ["-b", str(base), "-F", base_format]
    arguments.append(str(part))
    if size or base is None:
        arguments.append(str(size or DEFAULT_DISK_GB * _GB))
    await asyncio.to_thread(path.parent.mkdir, mode=0o700, parents=True, exist_ok=True)
    try:
        if base is not None and size:
            await _check_holds(base, base_format, size)
        await qemu_img(*arguments)
        await asyncio.to_thread(part.chmod, 0o600)
        await asyncio.to_thread(sync_path, part)
        await asyncio.to_thread(part.replace, path)
        await asyncio.to_thread(sync_path, path.parent)
    finally:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(part.unlink, missing_ok=True)
    faults.reach("vm.disk.made")


def _check_mount_point(name: str, disk: VmDisk) -> None:
    if mount_point_of(disk) and not disk.mount_point.startswith("/"):
        raise RunError(
            f"disk {name!r} has the mount point {disk.mount_point!r}, which is no absolute path",
            failure=FailureReason.INVALID_SPEC,
        )


async def _check_size(path: Path, kind: str, size: int) -> int:
    """Check that a disk, if it was made, need not shrink; its size, 0 for one that was not."""
    if not size or not await asyncio.to_thread(path.exists):
        return 0
    found = int(str((await image_facts(path, format_=kind)).get("virtual-size", 0)))
    if size < found:
        raise RunError(
            f"disk {path.name} has {found / _GB:.1f} GB and cannot shrink to {size / _GB:.1f} GB",
            failure=FailureReason.INVALID_SPEC,
            hint="delete the workload with the retain policy Delete to begin with a new disk",
        )
    return found


async def _grow(path: Path, kind: str, size: int) -> None:
    if size > await _check_size(path, kind, size):
        await qemu_img("resize", "-q", "-f", kind, str(path), str(size))


async def _check_holds(base: Path, base_format: str, size: int) -> None:
    found = int(str((await image_facts(base, format_=base_format)).get("virtual-size", 0)))
    if size < found:
        raise RunError(
            f"a disk of {size / _GB:.1f} GB cannot hold image {base.name}, which has {found / _GB:.1f} GB",
            failure=FailureReason.INVALID_SPEC,
        )


async def _base_format(base: Path, given: str) -> str:
    """The format of a base image. One that refers to a further file is refused: it could name any file of the node."""
    try:
        found = await image_facts(base, format_=given)
    except RunError as error:
        if not await asyncio.to_thread(base.is_file):
            raise RunError(f"there is no image {base}", failure=FailureReason.IMAGE_NOT_FOUND) from error
        raise RunError(error.message, failure=FailureReason.INVALID_SPEC) from error
    kind = str(found.get("format"))
    refers = "backing-filename" in found or "data-file" in str(found.get("format-specific", ""))
    if kind not in _BASE_FORMATS or refers:
        raise RunError(
            f"{base} is no base image: it must be qcow2 or raw, and must not refer to another file",
            failure=FailureReason.INVALID_SPEC,
        )
    return kind
