"""Workflows on DBOS, on SQLite and PostgreSQL: the suite, the serializer, and that rows stay bounded."""

import asyncio
import sqlite3
import sys

import pytest

from shoal.control.store.select import open_workflows
from shoal.jobs import workflows as module
from shoal.jobs.workflows import KEPT, DbosWorkflows
from shoal.testing.suites.workflows import NotedSteps, WorkflowSuite

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


class TestDbosOnSqlite(WorkflowSuite):
    @pytest.fixture
    def open_workflows(self, tmp_path):
        return lambda: DbosWorkflows(f"sqlite:///{tmp_path / 'jobs.db'}")


class TestDbosOnPostgres(WorkflowSuite):
    @pytest.fixture
    def open_workflows(self, tmp_path, postgres_url):
        return lambda: open_workflows(postgres_url, tmp_path)


async def test_rows_are_json_and_bounded(tmp_path):
    file = tmp_path / "jobs.db"
    workflows = DbosWorkflows(f"sqlite:///{file}")
    await workflows.open(NotedSteps())
    try:
        for number in range(1, 8):
            await workflows.run({"job": "web", "number": number, "word": "x"})
    finally:
        await workflows.close()
    with sqlite3.connect(file) as database:
        rows = database.execute(
            "SELECT workflow_uuid, serialization, application_version FROM workflow_status"
        ).fetchall()
        outputs = database.execute("SELECT output FROM operation_outputs").fetchall()
    assert len(rows) <= KEPT
    assert {version for _name, _form, version in rows} == {"1"}
    assert all(form == "portable_json" for _name, form, _version in rows)
    assert outputs
    assert all(text.startswith("{") for (text,) in outputs)


async def test_a_workflow_of_an_older_format_is_dropped_and_its_job_decides_anew(tmp_path, monkeypatch):
    """DBOS would never resume it: it belongs to another application version."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    first, steps = DbosWorkflows(url), NotedSteps()
    steps.hangs = "apply"
    await first.open(steps)
    running = asyncio.ensure_future(first.run({"job": "web", "number": 1, "word": "old"}))
    await steps.hanging.wait()
    await first.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    order = ("plan", "look", "apply", "settle")
    monkeypatch.setattr(module, "FORMAT", 2)
    monkeypatch.setattr(module, "STEPS", {**module.STEPS, 2: order})
    second, later = DbosWorkflows(url), NotedSteps()
    await second.open(later)
    try:
        await second.run({"job": "web", "number": 1, "word": "new"})
    finally:
        await second.close()
    assert later.seen == [(1, name) for name in order]
    assert later.given[-1]["plan"] == {"said": "plan of new"}


async def test_the_whole_of_dbos_goes_when_a_leadership_ends(tmp_path):
    """Another leadership of the same process can open it again, as often as it likes."""
    for number in range(1, 4):
        workflows, steps = DbosWorkflows(f"sqlite:///{tmp_path / 'jobs.db'}"), NotedSteps()
        await workflows.open(steps)
        assert module._active is workflows
        await workflows.run({"job": "web", "number": number, "word": "x"})
        await workflows.close()
        assert module._active is None
        assert sys.modules["dbos"].DBOS is not None
        assert len(steps.seen) == len(module.STEPS[module.FORMAT])
