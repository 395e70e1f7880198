"""Fault points of the processes of a job: armed in the n-th life of a process, in that one alone.

A life is a process, or an image of it: a task host begins each epoch as a new image. `sitecustomize`, which Python
imports at its start, takes the next of the files that were written for a workload. A fault stays until it came true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

TAKING = """
import os, pathlib  # nothing else: what is imported here is imported in every process

os.environ.pop("SHOAL_FAULTS", None)  # of the image before
folder, name = pathlib.Path(os.environ.get("FAULTS_FOLDER", "/nonexistent")), os.environ.get("SHOAL_WORKLOAD_ID")
taken = next(iter(sorted(folder.glob(f"{name}.*"))), None)
if taken is not None and not taken.stat().st_size:
    taken.unlink()
elif taken is not None:
    os.environ["SHOAL_FAULTS"] = taken.read_text()

kill, agent = os.kill, folder / f"agent-{os.environ.get('SHOAL_NODE_ID')}"


def kill_itself(pid, number):
    if pid == os.getpid() and taken is not None:
        taken.unlink(missing_ok=True)  # only now: a life may be over before it comes to the point
        if number == 19 and agent.exists():
            # Before it stands still, its agent does: nobody ends the process before it wakes.
            kill(int(agent.read_text()), number)
    kill(pid, number)


os.kill = kill_itself
"""


def arm(
    folder: Path, job_id: str, faults: Mapping[str, Sequence[str]], agents: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Write down what each part of a job comes to, one fault for each life. Returns the environment of the job.

    `agents`: the processes of agents that stop with what they run, by node.
    """
    folder.mkdir()
    for node, pid in (agents or {}).items():
        (folder / f"agent-{node}").write_text(str(pid))
    (folder / "sitecustomize.py").write_text(TAKING)
    for part, lives in faults.items():
        for number, fault in enumerate(lives):
            (folder / f"{job_id}-{part}.{number:03}").write_text(fault)
    return {"PYTHONPATH": str(folder), "FAULTS_FOLDER": str(folder)}
