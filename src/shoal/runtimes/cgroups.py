"""Control groups, both versions: limits for runs, what they use, and what the agent itself may use.

The keeper finds a place where it may make groups (`Cgroups.find`), makes one per run and removes it when the run is
over. The agent reads use from the same groups (`measure`) and its own limits (`container_limits`). Every function
works on a file tree under `root`, so that samples of any machine can be tested. Standard library only: this module is
loaded into the keeper.

    v1   one hierarchy per controller: memory, cpu, cpuacct, blkio    <own cgroup>/shoal/<owner>/<run>
    v2   one hierarchy for all, if the agent was given its subtree    <own cgroup>/shoal/<owner>/<run>
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.ids import RunId

_PERIOD_US = 100_000
_SHORTEST_QUOTA_US = 1_000
_MB = 1024 * 1024
#: v1 says "no limit" with the largest number of whole pages; anything near it means the same.
_UNLIMITED = 1 << 60
_V1_CONTROLLERS = ("memory", "cpu", "cpuacct", "blkio")
#: The agent and the keeper move here when their own group becomes the parent of groups with limits (v2 allows
#: processes in leaves only).
_LEAF = "shoal-agent"
_TOP = "shoal"
_TRIES = 2000


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted hierarchy. v2 has no controllers of its own in the mount table: they are in a file."""

    version: int
    controllers: frozenset[str]
    point: str
    #: Which part of the hierarchy is mounted there: not "/" inside a container.
    root: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run has used; None where the kernel does not say."""

    cpu_seconds: float | None
    memory_bytes: int | None
    read_bytes: int | None
    write_bytes: int | None
    source: str


def parse_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """The cgroup hierarchies in /proc/self/mountinfo."""
    mounts = []
    for line in mountinfo.splitlines():
        left, found, right = line.partition(" - ")
        place, kind = left.split(), right.split()
        if not found or len(place) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        options = frozenset(kind[2].split(",")) if version == 1 else frozenset()
        mounts.append(Mount(version, options, point=_unescape(place[4]), root=_unescape(place[3])))
    return tuple(mounts)


def parse_membership(cgroup: str) -> dict[str, str]:
    """The groups in /proc/self/cgroup by controller; the group of v2 by an empty name."""
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, found, path = rest.partition(":")
        if found:
            for controller in controllers.split(","):
                paths[controller] = path
    return paths


def _unescape(text: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


def group_directory(mount: Mount, path: str, root: Path) -> Path:
    """The directory of the group `path` under a mount. What lies outside the mounted part is seen as its top."""
    inside = path
    if mount.root != "/":
        inside = path[len(mount.root) :] if path == mount.root or path.startswith(f"{mount.root}/") else "/"
    return root / mount.point.lstrip("/") / inside.strip("/")


@dataclass(frozen=True, slots=True)
class Membership:
    """Where a process is in each hierarchy: (version, controllers, directory of its group, directory of the mount)."""

    version: int
    controllers: frozenset[str]
    directory: Path
    top: Path


def read_memberships(root: Path = Path("/"), *, pid: int | None = None) -> tuple[Membership, ...]:
    """The groups of a process; of this one if none is named."""
    try:
        # The names of directories are bytes: one that is no UTF-8 is nobody's fault, and is not lost.
        paths = parse_membership((root / "proc" / str(pid or "self") / "cgroup").read_text(errors="surrogateescape"))
        mounts = parse_mounts((root / "proc/self/mountinfo").read_text(errors="surrogateescape"))
    except OSError:
        return ()
    found = []
    for mount in mounts:
        names = [""] if mount.version == 2 else [name for name in mount.controllers if name in paths]
        if not names or names[0] not in paths:
            continue
        directory = group_directory(mount, paths[names[0]], root)
        top = root / mount.point.lstrip("/")
        controllers = mount.controllers
        if mount.version == 2:
            controllers = frozenset(_read(directory / "cgroup.controllers", "").split())
        found.append(Membership(mount.version, controllers, directory if directory.is_dir() else top, top))
    return tuple(found)


# ---------------------------------------------------------------------------------------------------------
# What the agent itself may use


def container_limits(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """(CPU millicores, memory in MB) that this process may use, by its group and the groups above; None: no limit."""
    cpus: list[int] = []
    memories: list[int] = []
    for place in read_memberships(root):
        for directory in _upward(place.directory, place.top):
            cpu = _cpu_limit(directory, place.version)
            memory = _memory_limit(directory, place.version)
            if cpu is not None:
                cpus.append(cpu)
            if memory is not None:
                memories.append(memory)
    return min(cpus, default=None), min(memories, default=None)


def _upward(directory: Path, top: Path) -> Iterable[Path]:
    yield directory
    while directory != top and top in directory.parents:
        directory = directory.parent
        yield directory


def _cpu_limit(directory: Path, version: int) -> int | None:
    if version == 2:
        quota, _, period = _read(directory / "cpu.max", "max 100000").strip().partition(" ")
    else:
        quota = _read(directory / "cpu.cfs_quota_us", "-1").strip()
        period = _read(directory / "cpu.cfs_period_us", str(_PERIOD_US)).strip()
    if not quota.isdigit() or not (period or str(_PERIOD_US)).isdigit() or int(period or _PERIOD_US) == 0:
        return None
    return max(1, int(quota) * 1000 // int(period or _PERIOD_US))


def _memory_limit(directory: Path, version: int) -> int | None:
    text = _read(directory / ("memory.max" if version == 2 else "memory.limit_in_bytes"), "max").strip()
    if not text.isdigit() or int(text) >= _UNLIMITED:
        return None
    return int(text) // _MB


# ---------------------------------------------------------------------------------------------------------
# Groups for runs


class Cgroups:
    """The place where one keeper makes its groups; without any bases it makes none and says why."""

    def __init__(self, version: int, bases: Sequence[tuple[frozenset[str], Path]], why_not: str) -> None:
        self._version = version
        self._bases = tuple(bases)
        self._why_not = why_not

    @classmethod
    def find(cls, owner: str, *, root: Path = Path("/"), own_pids: Iterable[int] = ()) -> Cgroups:
        """Look for a place and prepare it. `own_pids` are the agent and the keeper, which may be moved to a leaf."""
        places = read_memberships(root)
        if not places:
            return cls(0, (), "no cgroup hierarchy is mounted")
        reasons: list[str] = []
        for place in places:
            if place.version == 2 and {"memory", "cpu"} & place.controllers:
                base = _prepare_v2(place, owner, frozenset(own_pids), reasons)
                if base is not None:
                    return cls(2, (base,), "")
        bases: list[tuple[frozenset[str], Path]] = []
        for controller in _V1_CONTROLLERS:
            for place in places:
                if place.version == 1 and controller in place.controllers:
                    directory = _prepare_v1(place, owner, reasons)
                    if directory is not None and directory not in [path for _, path in bases]:
                        bases.append((place.controllers, directory))
        if not any({"memory", "cpu"} & controllers for controllers, _ in bases):
            return cls(0, (), "; ".join(dict.fromkeys(reasons)) or "no controller for memory or cpu can be used")
        return cls(1, bases, "")

    @property
    def limits(self) -> str:
        """`cgroup v1` or `cgroup v2`, with the controllers if not both can be limited; or `none: ` and why."""
        usable = frozenset().union(*(controllers for controllers, _ in self._bases)) & {"memory", "cpu"}
        if not usable:
            return f"none: {self._why_not}"
        return f"cgroup v{self._version}" + ("" if len(usable) == 2 else f" ({next(iter(usable))} only)")

    def create(self, run_id: RunId, *, cpu_millicores: int, memory_mb: int) -> tuple[str, ...]:
        """Make the groups of a run and set its limits; their directories. Raises OSError and leaves nothing behind."""
        made: list[str] = []
        try:
            for controllers, base in self._bases:
                directory = base / run_id
                directory.mkdir(parents=True, exist_ok=True)
                made.append(str(directory))
                if "memory" in controllers and memory_mb:
                    _limit_memory(directory, self._version, memory_mb * _MB)
                if "cpu" in controllers and cpu_millicores:
                    _limit_cpu(directory, self._version, cpu_millicores)
                if self._version == 2:
                    with contextlib.suppress(OSError):
                        _write(directory / "memory.oom.group", "1")  # a workload runs out of memory as a whole
        except OSError:
            remove(made)
            raise
        return tuple(made)

    def stray(self, known: Iterable[str]) -> tuple[str, ...]:
        """Groups of runs that nobody knows: left by a keeper that was killed before it wrote the run down."""
        keep = set(known)
        found = []
        for _, base in self._bases:
            with contextlib.suppress(OSError):
                found += [str(path) for path in base.iterdir() if path.is_dir() and path.name not in keep]
        return tuple(found)

    def close(self) -> None:
        """Remove the place with all groups in it, as far as they are empty."""
        left = self.stray(())
        for _ in range(_TRIES):
            left = remove(left)
            if not left:
                break
            os.sched_yield()  # a process that was just killed leaves its group a moment after it is gone
        for _, base in self._bases:
            for directory in (base, base.parent):
                with contextlib.suppress(OSError):
                    directory.rmdir()


def _prepare_v1(place: Membership, owner: str, reasons: list[str]) -> Path | None:
    for parent in dict.fromkeys((place.directory, place.top)):
        base = parent / _TOP / owner
        try:
            base.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
        else:
            return base
    return None


def _prepare_v2(
    place: Membership, owner: str, own_pids: frozenset[int], reasons: list[str]
) -> tuple[frozenset[str], Path] | None:
    own = place.directory.parent if place.directory.name == _LEAF else place.directory
    for parent in dict.fromkeys((own, place.top)):
        base = parent / _TOP / owner
        try:
            wanted = frozenset(_read(parent / "cgroup.controllers", "").split()) & {"memory", "cpu", "io"}
            if not wanted & {"memory", "cpu"}:
                reasons.append(f"{parent}: memory and cpu are not delegated")
                continue
            _hand_down(parent, wanted, own_pids)
            base.mkdir(parents=True, exist_ok=True)
            for directory in (base.parent, base):
                _enable(directory, wanted)
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
        else:
            return wanted, base
    return None


def _hand_down(directory: Path, wanted: frozenset[str], own_pids: frozenset[int]) -> None:
    """Enable controllers for the groups below. A group with processes in it must be emptied first, if it is ours."""
    try:
        _enable(directory, wanted)
    except OSError as error:
        if error.errno != errno.EBUSY or not _is_ours(directory, own_pids):
            raise
        leaf = directory / _LEAF
        leaf.mkdir(exist_ok=True)
        for pid in _direct_members(directory):
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", str(pid))
        _enable(directory, wanted)


def _enable(directory: Path, wanted: frozenset[str]) -> None:
    missing = wanted - frozenset(_read(directory / "cgroup.subtree_control", "").split())
    if missing:
        _write(directory / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(missing)))


def _is_ours(directory: Path, own_pids: frozenset[int]) -> bool:
    """Whether its processes may be moved: a service manager delegated the group, or nobody else is in it."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return True
    return _direct_members(directory) <= own_pids | {1}


def _direct_members(directory: Path) -> frozenset[int]:
    return frozenset(int(word) for word in _read(directory / "cgroup.procs", "").split() if word.isdigit())


def _limit_memory(directory: Path, version: int, limit: int) -> None:
    if version == 2:
        _write(directory / "memory.max", str(limit))
        swap = directory / "memory.swap.max"
        swap_limit = "0"
    else:
        _write(directory / "memory.limit_in_bytes", str(limit))
        swap = directory / "memory.memsw.limit_in_bytes"
        swap_limit = str(limit)
    if swap.exists():  # only where swap is accounted; a limit that lets a workload swap instead is none
        with contextlib.suppress(OSError):
            _write(swap, swap_limit)


def _limit_cpu(directory: Path, version: int, millicores: int) -> None:
    quota = max(_SHORTEST_QUOTA_US, millicores * _PERIOD_US // 1000)
    if version == 2:
        _write(directory / "cpu.max", f"{quota} {_PERIOD_US}")
    else:
        _write(directory / "cpu.cfs_period_us", str(_PERIOD_US))
        _write(directory / "cpu.cfs_quota_us", str(quota))


# ---------------------------------------------------------------------------------------------------------
# One run's groups, by their directories


def entrances(groups: Iterable[str]) -> tuple[str, ...]:
    """The files into which a process writes itself to enter."""
    return tuple(str(Path(group) / "cgroup.procs") for group in groups)


def members(groups: Iterable[str]) -> frozenset[int]:
    """The processes in any of the groups, or in groups that the workload made below."""
    pids: set[int] = set()
    for directory in _trees(groups):
        pids |= {int(word) for word in _read(directory / "cgroup.procs", "").split() if word.isdigit()}
    return frozenset(pids - {0})


def _trees(groups: Iterable[str]) -> list[Path]:
    """Each group with everything below it, the lowest last."""
    return [Path(place) for group in groups for place, _, _ in os.walk(group)]


def ran_out_of_memory(groups: Iterable[str]) -> bool:
    """Whether the kernel killed any process of the groups because a limit was reached."""
    for group in groups:
        for name in ("memory.events", "memory.oom_control"):
            if _field(_read(Path(group) / name, ""), "oom_kill"):
                return True
    return False


def remove(groups: Iterable[str]) -> tuple[str, ...]:
    """Remove groups; those that cannot be removed yet because a dying process is still in them."""
    left = []
    for group in groups:
        try:
            for directory in reversed(_trees([group])):
                directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            left.append(group)
    return tuple(left)


#: What is read of a group, in either version.
_FIGURES = ("memory.current", "cpuacct.usage", "memory.usage_in_bytes", "blkio.throttle.io_service_bytes")


def with_figures(groups: Iterable[str]) -> tuple[str, ...]:
    """Those of a run's groups that say what it uses. There may be a dozen, and three that do."""
    return tuple(group for group in groups if any(_exists(f"{group}/{name}") for name in _FIGURES))


def measure(groups: Iterable[str]) -> Measured | None:
    """What a run has used so far; None when it has no groups."""
    found = [group for group in groups if _exists(group)]
    if not found:
        return None
    unified = next((group for group in found if _exists(f"{group}/memory.current")), None)
    return _measure_v2(unified) if unified is not None else _measure_v1(found)


def _measure_v2(directory: str) -> Measured:
    stat = _read(f"{directory}/memory.stat", "")
    memory = _number(f"{directory}/memory.current")
    transfers = [line.split() for line in _read(f"{directory}/io.stat", "").splitlines()]
    words = [word for line in transfers for word in line[1:]]
    usage = _field(_read(f"{directory}/cpu.stat", ""), "usage_usec")
    return Measured(
        cpu_seconds=usage / 1e6 if usage is not None else None,
        memory_bytes=max(0, memory - (_field(stat, "inactive_file") or 0)) if memory is not None else None,
        read_bytes=sum(int(word[7:]) for word in words if word.startswith("rbytes=")),
        write_bytes=sum(int(word[7:]) for word in words if word.startswith("wbytes=")),
        source="cgroup v2",
    )


def _measure_v1(directories: Sequence[str]) -> Measured:
    cpu = memory = None
    transfers: dict[str, int] = {}
    for directory in directories:
        if cpu is None:
            cpu = _number(f"{directory}/cpuacct.usage")
        if memory is None:
            memory = _number(f"{directory}/memory.usage_in_bytes")
            if memory is not None:
                # Page cache that can be dropped at once is not use.
                memory = max(0, memory - (_field(_read(f"{directory}/memory.stat", ""), "total_inactive_file") or 0))
        for line in _read(f"{directory}/blkio.throttle.io_service_bytes", "").splitlines():
            words = line.split()
            if len(words) == 3 and words[2].isdigit():
                transfers[words[1]] = transfers.get(words[1], 0) + int(words[2])
    return Measured(
        cpu_seconds=cpu / 1e9 if cpu is not None else None,
        memory_bytes=memory,
        read_bytes=transfers.get("Read", 0),
        write_bytes=transfers.get("Write", 0),
        source="cgroup v1",
    )


def _field(text: str, name: str) -> int | None:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def _number(path: str) -> int | None:
    text = _read(path, "").strip()
    return int(text) if text.isdigit() else None


def _exists(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - thousands of times a minute, and a Path takes several times as long


def _read(path: str | Path, default: str) -> str:
    try:
        with open(path) as file:  # noqa: PTH123 - as above
            return file.read()
    except OSError:
        return default


def _write(path: Path, text: str) -> None:
    # Without O_CREAT: a file that is not there belongs to a controller that is not there either.
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
