"""What a failed test shows of a job: how it is, what its processes have counted and read, and what they wrote.

Of each source split it shows how far the newest checkpoint is, so that a job that stands still is told from one that
has dropped rows. Called by `world`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal.client.control_plane import ControlPlane
from shoal.core.errors import ShoalError
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.model.series import JOB_FILE, OWN_FILE

#: Lines of each log, and events of each process.
_LINES = 40
_EVENTS = 20
#: What of the series is shown.
_SERIES = ("left_out", "watermark_seconds", "recoveries", "checkpoint", "queue_bytes", "rows_received")


def show_places(directory: str, job_id: str, broker: str, topic: str) -> str:
    """How far each split is in the newest checkpoint, and where the topic ends."""
    try:
        storage = CheckpointStorage(directory, job_id)
        newest = storage.newest()
        states = storage.read(newest).states if newest else {}
    except ShoalError as error:
        return f"no checkpoint can be read: {error}"
    with topics_of(broker) as topics:
        ends = topics.next_offsets(topics.describe(topic).topic_partitions())
    shared = [state.shared for each in states.values() for _subtask, state in each]
    return "\n".join(
        [f"== checkpoint {newest}; ends of {topic}: {_by_partition(ends)}", *filter(None, map(_positions, shared))]
    )


def _by_partition(ends: Mapping[Any, int]) -> dict[int, int]:
    return {each.partition: offset for each, offset in sorted(ends.items())}


def _positions(shared: bytes) -> str:
    """The places of a task that reads; nothing for others."""
    try:
        return json.dumps(json.loads(shared)["splits"])
    except (ValueError, KeyError, TypeError):
        return ""


def show_series(folder: Path, job_id: str) -> str:
    """What the processes of a job have counted."""
    found = []
    for path in sorted([*folder.rglob(JOB_FILE), *folder.rglob(OWN_FILE)]):
        if job_id in str(path):
            lines = path.read_text(errors="replace").splitlines()
            counted = [each for each in lines if not each.startswith("#") and any(name in each for name in _SERIES)]
            found.append(f"== {path}\n" + "\n".join(counted))
    return "\n".join(found)


def show_logs(folder: Path, job_id: str) -> str:
    """The last lines of every process of a job."""
    return "\n".join(
        f"== {path}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-_LINES:])
        for path in sorted(folder.rglob("*.log"))
        if job_id in str(path)
    )


async def show_processes(client: ControlPlane, job_id: str, workloads: Iterable[str]) -> str:
    """What the control plane knows about a job's processes, and what happened to them and to the job."""
    found = []
    for subject in (job_id, *workloads):
        try:
            view = "" if subject == job_id else f"\n{await client.get_workload(subject)}"
            page = await client.list_events(subject_id=subject, limit=_EVENTS, newest=True)
        except (ShoalError, OSError) as error:
            found.append(f"== {subject}: {error}")
            continue
        found.append(f"== {subject}{view}")
        found += [f"{each.time} {each.kind}: {each.message} {each.cause}" for each in page.events]
    return "\n".join(found)
