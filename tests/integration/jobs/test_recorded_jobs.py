"""A database of workflows that was recorded with a transition in the middle: today's program has to finish it.

    python -m tests.integration.jobs.test_recorded_jobs

records the file again. A change of format gets a new file beside the old one, and the old one stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from pathlib import Path

from shoal.control.jobs.changes import JobChange, StoredWorkload
from shoal.core.ids import GroupId, JobId, WorkloadId
from shoal.jobs.states import Transition
from shoal.jobs.workflows import FORMAT, STEPS, DbosWorkflows
from shoal.model.jobs import JobState
from shoal.testing.suites.workflows import NotedSteps

RECORDED = Path(__file__).parents[2] / "golden" / "jobs" / "transition-1.sql"
CHANGE = JobChange(
    job_id=JobId("shop.totals"),
    number=7,
    transition=Transition.RECOVER,
    before=JobState.RUNNING,
    after=JobState.RECOVERING,
    progress=b'{"deployment":2,"moves":{"1":[1,["node-3"]]}}\x00\xff',
    message="task host 1 was silent for 3 s — ünïcode",
    request=4,
)
PLAN = {
    "workloads": [
        StoredWorkload(WorkloadId("shop.totals-host-1"), b"\x08\x01\xff", "d2.1", GroupId("shop.totals")).to_document(),
        StoredWorkload(WorkloadId("shop.totals-x"), b"", "d2", None).to_document(),
    ]
}
STOPPED_AT = "apply"


class PlannedSteps(NotedSteps):
    """Steps whose plan is a real one."""

    async def run(self, name, change, done):
        said = await super().run(name, change, done)
        self.changes = [*getattr(self, "changes", []), change]
        return PLAN if name == "plan" else said


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


async def record(file: Path) -> None:
    """Leave a database with a transition that has planned, and was stopped while it applied."""
    workflows, steps = DbosWorkflows(url_of(file)), PlannedSteps()
    steps.hangs = STOPPED_AT
    await workflows.open(steps)
    running = asyncio.ensure_future(workflows.run({**CHANGE.to_document(), "word": "x"}))
    await steps.hanging.wait()
    await workflows.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_recorded_transition_is_finished_with_what_was_recorded(tmp_path):
    file = tmp_path / "jobs.db"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.executescript(RECORDED.read_text(encoding="utf-8"))
    workflows, steps = DbosWorkflows(url_of(file)), PlannedSteps()
    await workflows.open(steps)
    try:
        await workflows.run({**CHANGE.to_document(), "word": "another", "message": "another"})
    finally:
        await workflows.close()
    order = list(STEPS[FORMAT])
    left = order[order.index(STOPPED_AT) :]
    assert steps.seen[: len(left)] == [(7, name) for name in left], "what was done is not done again"
    assert JobChange.from_document(steps.changes[0]) == CHANGE
    assert steps.given[0]["plan"] == PLAN
    found = [StoredWorkload.from_document(each) for each in steps.given[0]["plan"]["workloads"]]
    assert [(each.workload_id, each.spec, each.revision, each.group_id) for each in found] == [
        ("shop.totals-host-1", b"\x08\x01\xff", "d2.1", "shop.totals"),
        ("shop.totals-x", b"", "d2", None),
    ]
    assert set(steps.changes[0]) == {*CHANGE.to_document(), "word"}, "a field that is new needs a new recording"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(record(Path(folder) / "jobs.db"))
        with contextlib.closing(sqlite3.connect(Path(folder) / "jobs.db")) as recorded:
            RECORDED.parent.mkdir(exist_ok=True)
            RECORDED.write_text("\n".join(recorded.iterdump()) + "\n", encoding="utf-8")
