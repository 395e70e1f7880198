"""Run records: what is on disk about each run, so that it outlives agent and keeper.

A record is written before its process runs anything of the workload's, and again with the exit before anybody is told.
It holds no environment and no command, because both may hold secrets. The functions at the end are for those who
look at a data directory from outside: the demo, the test kit, `shoal status` on a machine whose agent is down.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.disk.durable import sync_path, write_and_sync
from shoal.core.host import boot_id
from shoal.core.ids import RunId
from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.deadlines import NO_SLOT
from shoal.runtimes.keeper.files import KeeperFiles, write_whole
from shoal.runtimes.keeper.protocol import PROCESS

RECORD_FORMAT = 1
#: How many runs can be started on a full disk before one is forgotten.
SPARES = 16


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How a process ended. `unknown` when no keeper of its own was there to see it."""

    code: int = 0
    signal: int = 0
    unknown: bool = False
    ended_at_ms: int = 0
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run, as far as it concerns the keeper."""

    run_id: RunId
    workload_id: str
    boot_id: str
    pid: int
    #: In clock ticks after boot, as /proc says it: together with boot id and pid it names the process.
    start_time: int
    started_at_ms: int
    ports: Mapping[str, int] = field(default_factory=dict)
    user: str = ""
    working_dir: str = ""
    #: The working directory is the workload's own, made by the runtime.
    own_dir: bool = False
    stop_signal: int = 15
    grace: float = 10.0
    #: It has a deadline, and a watchdog that dies with its keeper.
    at_most_one: bool = False
    #: Where its deadline is in the table of the keeper that started it.
    slot: int = NO_SLOT
    #: Its cgroup directories, one per hierarchy.
    cgroups: tuple[str, ...] = ()
    exit: ExitRecord | None = None
    #: `stop`, `deadline`, or empty when it ended by itself.
    ended_by: str = ""
    last_output: str = ""
    #: Its record was lost or damaged, and this one was made from its processes.
    found: bool = False
    #: What it is; each runtime sees its own runs.
    kind: str = PROCESS
    #: As in `protocol.StartMessage`.
    stop_socket: str = ""
    format: int = RECORD_FORMAT


#: What a record may be relied on to have; a file in which it is something else was not written by a keeper.
_TEXTS = ("run_id", "workload_id", "boot_id", "user", "working_dir", "ended_by", "last_output", "kind", "stop_socket")
_NUMBERS = ("pid", "start_time", "started_at_ms", "stop_signal", "grace", "slot", "format")


def record_to_json(record: RunRecord) -> dict[str, Any]:
    """As a JSON object."""
    return dataclasses.asdict(record)


def record_from_json(given: Mapping[str, Any]) -> RunRecord:
    """Read a record of this or of another version: fields it does not know are left out. Raises ValueError."""
    try:
        known = {f.name: given[f.name] for f in dataclasses.fields(RunRecord) if f.name in given}
        ending = known.get("exit")
        if ending is not None:
            fields = {f.name for f in dataclasses.fields(ExitRecord)}
            known["exit"] = ExitRecord(**{name: value for name, value in ending.items() if name in fields})
        known["cgroups"] = tuple(known.get("cgroups", ()))
        for names, kind in ((_TEXTS, str), (_NUMBERS, (int, float))):
            wrong = [name for name in names if name in known and not isinstance(known[name], kind)]
            if wrong:
                raise TypeError(f"{', '.join(wrong)} must be of another kind")
        return RunRecord(**known)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a run record: {error}") from error


def write_record(files: KeeperFiles, record: RunRecord) -> None:
    """Make a record durable. On a full disk it is written without the last output, which is the only large part."""
    path = files.record(record.run_id)
    if not path.exists():
        _write_new(files, path, json.dumps(record_to_json(record)).encode())
        return
    try:
        write_whole(path, json.dumps(record_to_json(record)).encode())
    except OSError:
        if not record.last_output:
            raise
        write_whole(path, json.dumps(record_to_json(dataclasses.replace(record, last_output=""))).encode())


def _write_new(files: KeeperFiles, path: Path, content: bytes) -> None:
    """Write a record that is not there yet; on a full disk into a spare file, whose blocks are there already."""
    try:
        write_whole(path, content)
    except OSError as error:
        spare = next((each for each in files.spares() if each.stat().st_size >= len(content)), None)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or spare is None:
            raise
        write_and_sync(spare, content.ljust(spare.stat().st_size))
        spare.replace(path)
        sync_path(path.parent)


def drop_record(files: KeeperFiles, run_id: RunId) -> None:
    """Remove the record of a run that is forgotten. Its file becomes a spare when there are too few of them."""
    path, spares = files.record(run_id), files.spares()
    if len(spares) < SPARES and path.exists():
        path.replace(files.spare(run_id))
    else:
        path.unlink(missing_ok=True)


def make_spares(files: KeeperFiles) -> None:
    """Have enough spare files, so that workloads can be restarted on a full disk. Without room there are fewer."""
    with contextlib.suppress(OSError):
        for number in range(SPARES - len(files.spares())):
            write_whole(files.spare(f"{number}"), b" ")


def load_records(files: KeeperFiles) -> tuple[dict[str, RunRecord], list[Path]]:
    """Every record by run id, and the files that cannot be read as one."""
    records: dict[str, RunRecord] = {}
    broken: list[Path] = []
    for path in sorted(files.runs.glob("*.json")):
        try:
            record = record_from_json(json.loads(path.read_bytes()))
        except FileNotFoundError:
            continue  # forgotten while we looked
        except (OSError, ValueError, RecursionError):
            broken.append(path)
        else:
            records[record.run_id] = record
    return records, broken


# ---------------------------------------------------------------------------------------------------------
# For those who look from outside


def read_keeper_pid(data_dir: Path) -> int | None:
    """The pid of the keeper of a data directory, if one runs."""
    try:
        said = json.loads(KeeperFiles(data_dir).lock.read_bytes())
        pid, start_time, boot = int(said["pid"]), int(said["start_time"]), str(said["boot_id"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return pid if boot == boot_id() and procfs.is_running(pid, start_time) else None


def read_run_records(data_dir: Path) -> tuple[RunRecord, ...]:
    """Every run of a data directory that was not forgotten, whether or not a keeper runs."""
    return tuple(load_records(KeeperFiles(data_dir))[0].values())


def find_run_pids(data_dir: Path) -> tuple[int, ...]:
    """The pids of every living process that belongs to a run of this data directory."""
    files = KeeperFiles(data_dir)
    if not files.home.exists():
        return ()
    boot = boot_id()
    pids = {stat.pid for stat in procfs.Census(files.keeper_id()).marked}
    for record in read_run_records(data_dir):
        if record.boot_id == boot and record.exit is None and procfs.is_running(record.pid, record.start_time):
            pids.add(record.pid)
    return tuple(sorted(pids))
