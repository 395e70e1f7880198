"""Which of a workload's disks each disk of its spec is. Pure; called by `disks`.

A disk goes by its name. One without a name gets `disk<n>` when it is made, and is found again by what the spec says of
it: its pool with its mount point, its image or its path; the disk of `os_image` is always the same one. So disks may be
added, removed and put in another order. Where it cannot be told which disk is meant, the spec is refused and has to
name it: the data of another disk is never attached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shoal.model.workloads import FailureReason, VmDisk
from shoal.runtimes.base import RunError

_AUTOMATIC = "disk"
_AUTOMATIC_NAME = re.compile(rf"{_AUTOMATIC}\d+")
#: The first word of the keys of disks that the agent makes, and that have data of their own.
_ROOT, _MOUNT, _IMAGE, _BLANK = "root", "mount", "image", "blank"


@dataclass(frozen=True, slots=True)
class KnownDisk:
    """A disk that an earlier spec had."""

    #: Its file and its serial number in the guest are named by it.
    name: str
    #: What a spec without a name says of it.
    key: str
    size_gb: int = 0
    pool_name: str = ""
    #: Whether the last spec had it.
    attached: bool = True

    @property
    def is_unnamed(self) -> bool:
        """Whether specs need not name it."""
        return _AUTOMATIC_NAME.fullmatch(self.name) is not None

    @property
    def has_data(self) -> bool:
        """Whether the agent made it."""
        return has_data(self.key)


def is_attached_as_it_is(disk: VmDisk) -> bool:
    """Whether its image is attached read-only, without an overlay."""
    return bool(disk.image) and (disk.format == "iso" or (disk.read_only and not disk.size_gb))


def key_of(disk: VmDisk, *, is_root: bool) -> str:
    """What a spec says of a disk besides its name and its size."""
    if disk.path:
        return f"path {disk.path}"
    if is_attached_as_it_is(disk):
        return f"read-only {disk.image} {disk.mount_point}"
    if is_root:
        return _ROOT
    if disk.mount_point:
        return f"{_MOUNT} {disk.pool_name}:{disk.mount_point}"
    return f"{_IMAGE} {disk.pool_name}:{disk.image}" if disk.image else f"{_BLANK} {disk.pool_name}"


def has_data(key: str) -> bool:
    """Whether disks with this key are made by the agent."""
    return key.split(" ", maxsplit=1)[0] in (_ROOT, _MOUNT, _IMAGE, _BLANK)


def name_disks(disks: Sequence[VmDisk], known: Sequence[KnownDisk], *, has_root: bool) -> tuple[KnownDisk, ...]:
    """The disks of a spec with their names, in its order. `has_root`: the first one is that of `os_image`.

    Raises `RunError` when it cannot be told which disk is meant.
    """
    keys = [key_of(disk, is_root=has_root and not number) for number, disk in enumerate(disks)]
    found: dict[int, KnownDisk] = {}
    for number, disk in enumerate(disks):
        named = next((each for each in known if each.name == disk.name), None)
        if named is not None:
            _check_named(disk, keys[number], named)
            found[number] = named
    for key in dict.fromkeys(keys):
        wanted = [number for number, disk in enumerate(disks) if keys[number] == key and not disk.name]
        free = [each for each in known if each.key == key and each.is_unnamed and each not in found.values()]
        found |= _match(key, wanted, free, disks)
    _check_replaced(disks, keys, found, known)
    taken = {each.name for each in known} | {disk.name for disk in disks}
    unused = (f"{_AUTOMATIC}{number}" for number in range(len(disks) + len(taken)))
    fresh = iter([name for name in unused if name not in taken])
    return tuple(
        replace(found[number], key=keys[number], size_gb=disk.size_gb, attached=True)
        if number in found
        else KnownDisk(
            disk.name or next(fresh), keys[number], disk.size_gb, disk.pool_name if has_data(keys[number]) else ""
        )
        for number, disk in enumerate(disks)
    )


def _match(key: str, wanted: Sequence[int], free: Sequence[KnownDisk], disks: Sequence[VmDisk]) -> dict[int, KnownDisk]:
    """The disks with the same key: one, which may grow, or several in an order that is the same as before."""
    if not wanted or not free:
        return {}
    if len(wanted) == len(free) == 1:
        return {wanted[0]: free[0]}
    pairs = dict(zip(wanted, free, strict=False))
    if has_data(key) and any(disks[number].size_gb != disk.size_gb for number, disk in pairs.items()):
        raise _ambiguous(free)
    return pairs


def _check_replaced(
    disks: Sequence[VmDisk], keys: Sequence[str], found: dict[int, KnownDisk], known: Sequence[KnownDisk]
) -> None:
    """A disk that goes while another one comes may be the same one, moved, mounted elsewhere or named."""
    gone = [each for each in known if each.attached and each.has_data and each not in found.values()]
    for number, (disk, key) in enumerate(zip(disks, keys, strict=True)):
        alike = [each for each in gone if not disk.name or each.key == key]
        if number not in found and has_data(key) and alike:
            raise _ambiguous(alike)


def _check_named(disk: VmDisk, key: str, named: KnownDisk) -> None:
    if named.has_data != has_data(key):
        raise RunError(
            f"disk {disk.name!r} was {named.key!r} and cannot become {key!r}",
            failure=FailureReason.INVALID_SPEC,
            hint="give the new disk another name",
        )
    if named.has_data and disk.pool_name != named.pool_name:
        raise RunError(
            f"disk {disk.name!r} is in {_place(named.pool_name)} and cannot move to {_place(disk.pool_name)}",
            failure=FailureReason.INVALID_SPEC,
            hint="give the new disk another name, and copy the data inside the guest",
        )


def _place(pool_name: str) -> str:
    return f"pool {pool_name!r}" if pool_name else "the agent's own directory"


def _ambiguous(disks: Iterable[KnownDisk]) -> RunError:
    names = ", ".join(f"{each.name} ({each.key.strip()})" for each in disks)
    return RunError(
        f"it cannot be told which disk keeps the data of {names}",
        failure=FailureReason.INVALID_SPEC,
        hint="give a disk that name to keep the data; for a new disk, first remove the old one from the spec",
    )
