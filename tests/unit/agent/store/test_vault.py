"""Secrets on a node: kept encrypted, handed to the run, and gone with the workload."""

from __future__ import annotations

import asyncio

import pytest

from shoal.agent.store import intents
from shoal.agent.store.database import AgentDatabase
from shoal.agent.store.vault import Vault
from shoal.core.disk.private_files import read_private
from shoal.core.errors import InvalidError, UnavailableError
from shoal.model.workloads import FailureReason, ProcessSpec
from shoal.runtimes.base import RunError
from shoal.testing.runtimes import FakeScript
from shoal.testing.threads import WatchedThreads
from shoal.wire.methods import NODE_HEADER, AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.trust import sealing
from tests.unit.agent.making import intent
from tests.unit.agent.scene import scene

pytestmark = pytest.mark.looptime

VALUE = b"correct-horse-battery-staple"


async def apply(it, agent, *, generation=1, secrets=None, named=None, desired=agent_pb2.DESIRED_STATE_RUNNING, file=""):
    request = agent_pb2.ApplyWorkloadRequest(
        id="w", type=agent_pb2.WORKLOAD_TYPE_PROCESS, generation=generation, desired_state=desired
    )
    request.spec.process.command.extend(["sleep", "60"])
    request.spec.process.env_from_secrets.update({"PASSWORD": "db"} if named is None else named)
    if file:
        request.spec.process.files.add(path=file, secret="db")
    request.secrets.update({"db": VALUE} if secrets is None else secrets)
    channel = it.network.transport("control").connect(agent.address)
    try:
        return await channel.call(AgentService.APPLY_WORKLOAD, request, metadata={NODE_HEADER: agent.node_id})
    finally:
        await channel.close()


def started(it):
    """What the run of the workload was started with, the last time."""
    return [request for request in it.machine.started_with.values() if request.workload_id == "w"][-1]


def on_disk(it):
    return b"".join(path.read_bytes() for path in (it.tmp_path / "n1").rglob("*") if path.is_file())


async def test_a_run_gets_its_secrets_and_the_disk_does_not(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await apply(it, agent)
        await asyncio.sleep(1)
        request = started(it)
        assert dict(request.secrets) == {"PASSWORD": VALUE.decode()}
        assert VALUE.decode() not in repr(request)
        assert VALUE not in on_disk(it)
        assert (it.tmp_path / "n1" / "secret.key").stat().st_mode & 0o777 == 0o600


async def test_they_are_there_after_a_restart_without_a_control_plane(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start(stop_workloads_on_exit=True)
        await apply(it, agent)
        await asyncio.sleep(1)
        await agent.stop()
        assert not it.machine.alive("w")
        await it.start()
        await asyncio.sleep(1)
        assert it.machine.alive("w")
        assert dict(started(it).secrets) == {"PASSWORD": VALUE.decode()}


@pytest.mark.parametrize(
    "secrets",
    [{}, {"other": VALUE}, {"db": b""}, {"db": b"a\x00"}, {"db": b"\xff"}, {"db": b"x" * 40_000}],
    ids=["none", "another", "empty", "with-zero", "no-text", "too-long"],
)
async def test_a_command_without_the_secrets_that_it_names_is_refused(tmp_path, secrets):
    async with scene(tmp_path) as it:
        agent = await it.start()
        with pytest.raises(InvalidError) as caught:
            await apply(it, agent, secrets=secrets)
        assert [(each.field, each.value) for each in caught.value.problems] == [("secrets.db", "")]
        assert not it.machine.alive("w")


async def test_a_stop_needs_no_secrets_and_a_start_after_it_has_them(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await apply(it, agent)
        await asyncio.sleep(1)
        await apply(it, agent, generation=2, secrets={}, desired=agent_pb2.DESIRED_STATE_STOPPED)
        await asyncio.sleep(1)
        assert not it.machine.alive("w")
        await apply(it, agent, generation=3, secrets={"db": b"newer"})
        await asyncio.sleep(1)
        assert dict(started(it).secrets) == {"PASSWORD": "newer"}


async def test_the_same_command_with_a_newer_value_is_for_the_next_start(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await apply(it, agent)
        await asyncio.sleep(1)
        answer = await apply(it, agent, secrets={"db": b"newer"})
        assert answer.skipped
        [run] = it.machine.alive("w")
        it.machine.kill(run.run_id)
        await asyncio.sleep(10)
        assert dict(started(it).secrets) == {"PASSWORD": "newer"}


async def test_files_of_a_run_are_replaced_when_their_secret_changes(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await apply(it, agent, file="etc/key")
        await asyncio.sleep(1)
        ((file, content),) = started(it).files
        assert (file.path, content) == ("etc/key", VALUE)
        (run,) = it.machine.alive("w")
        await apply(it, agent, file="etc/key", secrets={"db": b"newer"})
        await asyncio.sleep(1)
        assert it.machine.files[run.run_id] == ((file, b"newer"),)
        assert it.machine.alive("w") == [run]
        assert b"newer" not in on_disk(it)


async def test_files_are_replaced_after_a_restart_that_came_before_they_were(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await apply(it, agent, file="etc/key")
        await asyncio.sleep(1)
        (run,) = it.machine.alive("w")
        it.machine.outage = UnavailableError("the disk hangs")
        await apply(it, agent, file="etc/key", secrets={"db": b"newer"})
        await asyncio.sleep(1)
        assert run.run_id not in it.machine.files
        await agent.stop()
        it.machine.outage = None
        await it.start()
        await asyncio.sleep(1)
        ((_, content),) = it.machine.files[run.run_id]
        assert content == b"newer"
        assert it.machine.alive("w") == [run]


async def test_a_secret_that_changes_during_the_start_is_in_the_files_after_it(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        it.machine.script = FakeScript(start_takes=5.0)
        await apply(it, agent, file="etc/key")
        await asyncio.sleep(1)
        await apply(it, agent, file="etc/key", secrets={"db": b"newer"})
        await asyncio.sleep(2)
        assert not it.machine.files
        await asyncio.sleep(30)
        (run,) = it.machine.alive("w")
        ((_, content),) = it.machine.files[run.run_id]
        assert content == b"newer"


async def test_what_is_not_named_any_more_is_dropped_and_so_is_what_is_gone(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await apply(it, agent)
        await asyncio.sleep(1)
        vault = agent.executor._vault
        assert list(vault._sealed) == ["w"]
        await apply(it, agent, generation=2, named={}, secrets={})
        await asyncio.sleep(1)
        assert not vault._sealed
        await apply(it, agent, generation=3)
        await asyncio.sleep(1)
        channel = it.network.transport("control").connect(agent.address)
        await channel.call(
            AgentService.DELETE_WORKLOAD,
            agent_pb2.DeleteWorkloadRequest(id="w", generation=3),
            metadata={NODE_HEADER: agent.node_id},
        )
        await channel.close()
        await asyncio.sleep(5)
        assert not vault._sealed
        await vault.open()
        assert not vault._sealed


async def test_a_lost_key_is_reported_and_the_next_command_repairs_it(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start(stop_workloads_on_exit=True)
        await apply(it, agent)
        await asyncio.sleep(1)
        await agent.stop()
        (it.tmp_path / "n1" / "secret.key").unlink()
        agent = await it.start()
        await asyncio.sleep(2)
        assert not it.machine.alive("w")
        vault = agent.executor._vault
        spec = ProcessSpec(("sleep",), env_from_secrets={"PASSWORD": "db"})
        with pytest.raises(RunError, match="sealed with another key") as caught:
            vault.values("w", spec)
        assert caught.value.failure is FailureReason.RUNTIME_ERROR
        with pytest.raises(RunError, match="has not been delivered"):
            vault.values("v", spec)
        await apply(it, agent)
        await asyncio.sleep(120)
        assert it.machine.alive("w")


async def test_the_key_is_read_and_made_in_a_thread(tmp_path, monkeypatch):
    threads, at_work = WatchedThreads(), []

    def read(path):
        at_work.append(threads.at_work)
        return read_private(path)

    monkeypatch.setattr(sealing, "read_private", read)
    body = ProcessSpec(("sleep",), env_from_secrets={"PASSWORD": "db"})
    for keeps in (True, False):
        database = AgentDatabase(tmp_path, threads=threads)
        await database.open()
        await database.write(lambda c: intents.put_intent(c, intent(workload_id="w")))
        vault = Vault(database)
        await vault.open()
        assert await vault.keep("w", body, {"db": VALUE}) is keeps
        assert vault.values("w", body) == {"db": VALUE}
        await database.close()
    assert at_work == [True, True]
