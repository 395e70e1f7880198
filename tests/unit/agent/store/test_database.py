"""What the agent remembers: whole or not at all, for one agent at a time, and never without bound."""

from __future__ import annotations

import os
import sqlite3
import stat
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.facts import Progress, RunOutcome
from shoal.agent.store import action_log, intents
from shoal.agent.store.action_log import Action, ActionQuery
from shoal.agent.store.database import FILE_NAME, AgentDatabase
from shoal.agent.store.intents import _read_progress, _write_progress
from shoal.core.errors import DamagedError, ExhaustedError, PreconditionError, ShoalError, UnavailableError
from shoal.model.actions import ActionStatus, ActionType
from shoal.model.workloads import DesiredState, Exit, FailureReason
from shoal.testing.threads import InlineThreads
from tests.unit.agent.making import START, intent


@pytest.fixture
async def database(tmp_path):
    opened = AgentDatabase(tmp_path / "data", threads=InlineThreads())
    await opened.open()
    yield opened
    await opened.close()


def action(number: int, workload_id: str = "w", **fields) -> Action:
    values = {
        "task_id": f"task_{number}",
        "workload_id": workload_id,
        "type": ActionType.APPLY,
        "status": ActionStatus.COMPLETED,
        "generation": number,
        "created_at": START + timedelta(seconds=number),
        **fields,
    }
    return Action(**values)


async def test_what_was_written_is_there_after_a_restart(tmp_path, database):
    told = intent(workload_id="a", spec="bytes\x00\xff", generation=7, born=3, attempt=2, desired=DesiredState.STOPPED)
    progress = Progress(born=3, run_id="a-1", ready=True, ports={"http": 8080}, exit=Exit(3, ended_at=START))
    await database.write(lambda c: intents.put_intent(c, told))
    await database.write(lambda c: intents.put_progress(c, told.workload_id, progress))
    await database.write(lambda c: intents.put_meta(c, "session", "s1"))
    await database.close()
    again = AgentDatabase(tmp_path / "data", threads=InlineThreads())
    await again.open()
    (stored,) = await again.read(intents.load_workloads)
    assert (stored.intent, stored.progress) == (told, progress)
    assert await again.read(lambda c: intents.get_meta(c, "session")) == "s1"
    assert await again.read(lambda c: intents.get_meta(c, "nothing")) == ""
    await again.close()


times = st.integers(0, 10**10).map(lambda ms: START + timedelta(milliseconds=ms))


@given(
    st.builds(
        Progress,
        born=st.integers(0),
        run_id=st.text(),
        run_sha256=st.binary(max_size=32),
        attempt=st.integers(0),
        started_at=st.none() | times,
        ports=st.dictionaries(st.text(), st.integers(1, 65535)),
        ready=st.booleans(),
        ended=st.booleans(),
        exit=st.none()
        | st.builds(
            Exit,
            code=st.integers(),
            signal=st.integers(),
            unknown=st.booleans(),
            ended_at=st.none() | times,
            out_of_memory=st.booleans(),
        ),
        last_output=st.text(),
        held=st.booleans(),
        outcome=st.sampled_from(RunOutcome),
        failure=st.sampled_from(FailureReason),
        message=st.text(),
        failures=st.integers(0),
        start_failures=st.integers(0),
        restarts=st.integers(0),
        next_start_at=st.none() | times,
        failed_generation=st.integers(0),
    )
)
def test_progress_survives_being_written(progress):
    assert _read_progress(_write_progress(progress)) == progress


async def test_the_files_are_for_this_user_alone(tmp_path, database):
    await database.write(lambda c: intents.put_meta(c, "a", "b"))
    for path in (tmp_path / "data").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


async def test_every_commit_is_on_the_disk(database):
    assert await database.read(lambda c: c.execute("PRAGMA synchronous").fetchone()[0]) == 2
    assert await database.read(lambda c: c.execute("PRAGMA journal_mode").fetchone()[0]) == "wal"


async def test_a_change_that_fails_leaves_nothing(database):
    def half(connection):
        intents.put_intent(connection, intent(workload_id="a"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.write(half)
    assert await database.read(intents.load_workloads) == []
    await database.write(lambda c: intents.put_intent(c, intent(workload_id="b")))
    assert len(await database.read(intents.load_workloads)) == 1


async def test_a_full_disk_is_told_and_nothing_is_half_stored(database):
    pages = await database.read(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
    await database.read(lambda c: c.execute(f"PRAGMA max_page_count={pages + 2}").fetchone())

    def too_much(connection):
        intents.put_meta(connection, "small", "value")
        intents.put_intent(connection, intent(spec="x" * 3_000_000))

    with pytest.raises(ExhaustedError, match="no room left"):
        await database.write(too_much)
    assert "no room left" in database.trouble
    assert await database.read(intents.load_workloads) == []
    assert await database.read(lambda c: intents.get_meta(c, "small")) == ""
    await database.read(lambda c: c.execute("PRAGMA max_page_count=100000").fetchone())
    await database.write(too_much)
    assert database.trouble == ""


async def test_a_second_agent_is_kept_away_and_told_by_whom(tmp_path, database):
    second = AgentDatabase(tmp_path / "data", threads=InlineThreads())
    with pytest.raises(PreconditionError, match=f"in use by process {os.getpid()}") as caught:
        await second.open()
    assert caught.value.facts["pid"] == str(os.getpid())
    await database.close()
    await second.open()
    await second.close()
    await second.close()


async def test_what_a_newer_version_wrote_is_not_touched(tmp_path, database):
    await database.write(lambda c: c.execute("PRAGMA user_version=99"))
    await database.close()
    again = AgentDatabase(tmp_path / "data", threads=InlineThreads())
    for _ in range(2):
        with pytest.raises(PreconditionError, match="newer version"):
            await again.open()


@pytest.mark.parametrize("size", [50, 100, 5000, 20_000])
async def test_a_file_that_was_cut_off_is_said(tmp_path, size):
    database = AgentDatabase(tmp_path, threads=InlineThreads())
    await database.open()
    await database.close()
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DamagedError, match="damaged") as caught:
        await AgentDatabase(tmp_path, threads=InlineThreads()).open()
    assert str(path) in caught.value.message
    assert "backup-and-restore.md" in caught.value.hint
    assert path.stat().st_size == size


async def test_a_damaged_file_is_said(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"this is no database" * 1000)
    with pytest.raises(DamagedError, match="damaged"):
        await AgentDatabase(tmp_path, threads=InlineThreads()).open()


async def test_a_directory_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot be used"):
        await AgentDatabase(tmp_path / "file" / "data", threads=InlineThreads()).open()


async def test_one_that_cannot_be_opened_lets_go_of_its_directory(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    failed, next_one = (
        AgentDatabase(tmp_path, threads=InlineThreads()),
        AgentDatabase(tmp_path, threads=InlineThreads()),
    )
    with pytest.raises(ShoalError, match="directory"):
        await failed.open()
    (tmp_path / FILE_NAME).rmdir()
    await next_one.open()
    await next_one.close()


async def test_before_it_is_open_nothing_can_be_read(tmp_path):
    with pytest.raises(UnavailableError, match="not open"):
        await AgentDatabase(tmp_path, threads=InlineThreads()).read(intents.load_workloads)


async def test_a_new_command_leaves_the_progress_of_the_run_alone(database):
    await database.write(lambda c: intents.put_intent(c, intent()))
    progress = Progress(born=1, run_id="w-1", run_sha256=b"x")
    await database.write(lambda c: intents.put_progress(c, intent().workload_id, progress))
    await database.write(lambda c: intents.put_intent(c, intent(generation=2, born=2)))
    (stored,) = await database.read(intents.load_workloads)
    assert (stored.intent.born, stored.progress) == (2, progress)


@pytest.mark.parametrize(("deleting", "keeps"), [(False, False), (True, False), (True, True)])
async def test_how_a_workload_is_removed_is_stored(database, deleting, keeps):
    wanted = intent(deleting=deleting, keeps_data=keeps)
    await database.write(lambda connection: intents.put_intent(connection, wanted))
    (stored,) = await database.read(intents.load_workloads)
    assert (stored.intent.deleting, stored.intent.keeps_data) == (deleting, keeps)


async def test_the_highest_generation_outlives_its_workload_and_never_falls(database):
    await database.write(lambda c: intents.put_intent(c, intent(generation=9)))
    await database.write(lambda c: intents.remove_intent(c, intent().workload_id))
    assert await database.read(lambda c: intents.highest_generation(c, intent().workload_id)) == 9
    await database.write(lambda c: intents.raise_highest(c, intent().workload_id, 4))
    assert await database.read(lambda c: intents.highest_generation(c, intent().workload_id)) == 9


async def test_tombstones_are_bounded_and_those_of_the_living_are_kept(database, monkeypatch):
    monkeypatch.setattr(intents, "MAX_TOMBSTONES", 50)
    monkeypatch.setattr(intents, "_SLACK", 5)

    def fill(connection):
        intents.put_intent(connection, intent(workload_id="alive", generation=3))
        for number in range(200):
            intents.raise_highest(connection, f"gone-{number}", 5)

    await database.write(fill)
    count = await database.read(lambda c: c.execute("SELECT count(*) FROM generations").fetchone()[0])
    assert 50 <= count <= 56
    assert await database.read(lambda c: intents.highest_generation(c, "alive")) == 3
    assert await database.read(lambda c: intents.highest_generation(c, "gone-199")) == 5
    assert await database.read(lambda c: intents.highest_generation(c, "gone-0")) == 0


# ---------------------------------------------------------------------------------------------------------
# The log of actions


async def test_actions_are_listed_in_order_and_by_every_filter(database):
    log = [
        action(1, "a"),
        action(2, "b", status=ActionStatus.FAILED, error="no"),
        action(3, "a", type=ActionType.DELETE, status=ActionStatus.RUNNING, started_at=START),
    ]
    await database.write(lambda c: action_log.put_actions(c, log))

    async def listed(**fields):
        found = await database.read(lambda c: action_log.list_actions(c, ActionQuery(**fields)))
        return [each.task_id for each in found]

    assert await database.read(lambda c: action_log.list_actions(c, ActionQuery())) == log
    assert await listed(newest_first=True) == ["task_3", "task_2", "task_1"]
    assert await listed(newest_first=True, limit=2) == ["task_3", "task_2"]
    assert await listed(limit=1) == ["task_1"]
    assert await listed(workload_id="a") == ["task_1", "task_3"]
    assert await listed(type="delete_workload") == ["task_3"]
    assert await listed(status="failed", workload_id="b") == ["task_2"]
    assert await listed(workload_id="nobody") == []
    assert [each.task_id for each in await database.read(action_log.open_actions)] == ["task_3"]


async def test_an_action_that_went_on_is_the_same_entry(database):
    first = action(1, status=ActionStatus.PENDING)
    await database.write(lambda c: action_log.put_actions(c, [first]))
    ended = replace(first, status=ActionStatus.FAILED, error="x" * 5000, started_at=START, ended_at=START)
    await database.write(lambda c: action_log.put_actions(c, [ended]))
    (stored,) = await database.read(lambda c: action_log.list_actions(c, ActionQuery()))
    assert (stored.status, len(stored.error)) == (ActionStatus.FAILED, 2000)


async def test_the_log_is_bounded_and_keeps_the_last_entry_of_each_living_workload(database):
    def fill(connection: sqlite3.Connection) -> None:
        for number in range(10, 3000):
            action_log.put_actions(connection, [action(number, "other")])

    await database.write(lambda c: intents.put_intent(c, intent(workload_id="alive")))
    log = [action(0, "alive"), action(1, "alive"), action(2, "stuck", status=ActionStatus.RUNNING)]
    await database.write(lambda c: action_log.put_actions(c, log))
    await database.write(fill)
    kept = [each.task_id for each in await database.read(lambda c: action_log.list_actions(c, ActionQuery()))]
    assert kept[:2] == ["task_1", "task_2"]
    assert 1000 <= len(kept) <= 1052
    assert kept[-1] == "task_2999"
