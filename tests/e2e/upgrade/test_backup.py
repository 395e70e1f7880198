"""docs/backup-and-restore.md, step by step: on SQLite and on PostgreSQL, with a fleet that has gone on meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request

import pytest

from shoal.core.errors import NotFoundError
from tests.e2e.fleet.drill import process, until, until_gone, until_status
from tests.e2e.upgrade.processes import Machines, pids_of, port
from tests.e2e.upgrade.steps import run, steps

pytestmark = pytest.mark.e2e

PAGE = "backup-and-restore.md"
SECRET_KEY = base64.b64encode(b"k" * 32).decode()


@pytest.fixture(params=["SQLite", pytest.param("PostgreSQL", marks=pytest.mark.long)])
def kind(request):
    return request.param


@pytest.fixture
def database(kind, request):
    return request.getfixturevalue("postgres_url") if kind == "PostgreSQL" else ""


async def test_a_backup_is_taken_while_it_runs_and_brings_back_the_desired_state(
    machines: Machines, kind: str, database: str, tmp_path
) -> None:
    number = port()
    address = f"127.0.0.1:{number}"
    variables = {
        "DATA_DIR": str(machines.data_dir("control")),
        "DATABASE": database,
        "BACKUP": str(tmp_path / "backup"),
        "KEYS": str(tmp_path / "keys"),
    }
    # On PostgreSQL the key is given; on SQLite it is made in the data directory, and part of what is backed up.
    env = {"SHOAL_SECRET_KEY": SECRET_KEY} if database else {}
    await machines.start_control("control", port=number, database=database, env=env)
    await machines.start_agent("n1", control=[address])
    data = machines.data_dir("n1")
    async with machines.client(address) as control:
        for name in ("untouched", "changed", "removed"):
            await control.apply(process(name, revision="v1"))
            await until_status(control, name, "Running", revision="v1")
        untouched = await control.get_workload("untouched")
        await control.set_secret("db-password", b"as-it-was")

        run(steps(PAGE, kind, "Back up, while it runs"), **variables)

        await control.apply(process("changed", revision="v2", command=["sleep", "7200"]))
        await until_status(control, "changed", "Running", revision="v2")
        await control.delete("removed")
        await until_gone(control, "removed")
        await control.apply(process("created", revision="v1"))
        created = await until_status(control, "created", "Running")
        await control.set_secret("db-password", b"as-it-is-later")
        # More leaders have come and gone than the backup knows of: their terms are higher than those in it.
        for _ in range(3):
            await machines.stop("control")
            await machines.start_control("control", port=number, database=database, env=env)
            await until(lambda: _has_sent_heartbeat(control), what="the agent has heard of the new leader")
        await machines.stop("control")

        if not database:  # the machine was lost, and everything that was on it
            (machines.data_dir("control") / "secret.key").unlink()

        run(steps(PAGE, kind, "Restore"), **variables)

        await machines.start_control("control", port=number, database=database, env=env)
        assert await asyncio.to_thread(_secrets_health, machines) == "ok"
        await control.apply(_telling("teller"))
        await until_status(control, "teller", "Completed")
        assert b"".join([piece.data async for piece in control.logs("teller")]) == b"as-it-was"
        # The desired state in the backup counts, under a generation above the one that the agent has.
        await until(lambda: _runs_again(control, data, "changed", above=2), what="the older spec runs again")
        await until(lambda: _runs_again(control, data, "removed", above=0), what="what was removed runs again")
        await until_status(control, "untouched", "Running")
        after = await control.get_workload("untouched")
        assert (after.generation, after.run.pid) == (untouched.generation, untouched.run.pid)
        # What came after the backup is nobody's, and left alone.
        with pytest.raises(NotFoundError):
            await control.get_workload("created")
        await until(lambda: _shows_orphan(control, "created"), what="the node shows the orphan")
        assert created.run.pid in pids_of(data)
        assert len(pids_of(data)) == 4
        # And everything goes on.
        await control.apply(process("fresh"))
        await until_status(control, "fresh", "Running")


def _telling(name: str):
    """A workload that prints the secret."""
    command = ["sh", "-c", 'printf %s "$PASSWORD"']
    fields = {"restart": {"policy": "never"}, "env": {"PASSWORD": {"secret": "db-password"}}}
    return process(name, command=command, process=fields)


def _secrets_health(machines: Machines) -> str:
    with urllib.request.urlopen(f"{machines.http_of('control')}/health") as answer:
        return json.load(answer)["secrets"]


async def _has_sent_heartbeat(control) -> bool:
    """Whether a heartbeat has come since the control plane was started: the node was heard of twice."""
    first = (await control.get_node("n1")).last_heartbeat
    await asyncio.sleep(0.5)
    return (await control.get_node("n1")).last_heartbeat > first


async def _runs_again(control, data, name: str, *, above: int) -> bool:
    view = await control.get_workload(name)
    runs = view.status == "Running" and view.run.pid in pids_of(data)
    return runs and view.generation > above and view.observed_revision_id == "v1"


async def _shows_orphan(control, name: str) -> bool:
    return name in (await control.get_node("n1")).orphans
