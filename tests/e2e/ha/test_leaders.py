"""Two control planes on one PostgreSQL, killed and stopped: one leads, nothing acknowledged is lost or stale."""

import base64
import signal
from pathlib import Path

import pytest

from shoal.core.errors import NotLeaderError, PreconditionError
from tests.e2e.fleet.drill import insist, process, processes_of, until, until_heard, until_status
from tests.e2e.ha.planes import Planes

pytestmark = pytest.mark.e2e

KEY = {"SHOAL_SECRET_KEY": base64.b64encode(b"k" * 32).decode()}
OTHER_KEY = {"SHOAL_SECRET_KEY": base64.b64encode(b"o" * 32).decode()}


@pytest.fixture
async def planes(tmp_path, postgres_url):
    planes = Planes(tmp_path, postgres_url)
    try:
        await planes.start_plane("one")
        await planes.start_plane("two")
        await planes.start_agent("node-1")
        yield planes
    finally:
        await planes.close()


async def test_one_leads_and_the_other_answers_reads_and_names_it(planes):
    leader = await planes.leader()
    follower = "two" if leader == "one" else "one"
    async with planes.client(leader) as control:
        await control.apply(process("web"))
        await until_status(control, "web", "Running")
    from shoal.wire.methods import AgentControl
    from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
    from shoal.wire.sockets.channel import GrpcTransport

    channel = GrpcTransport().connect(planes.addresses[follower])
    try:

        async def seen():
            answer = await channel.call(AgentControl.GET_WORKLOAD, pb.GetWorkloadRequest(workload_id="web"))
            return answer.workload.status == "Running"

        await until(seen, what="the follower has seen it")
        with pytest.raises(NotLeaderError) as refused:
            await channel.call(AgentControl.DELETE_WORKLOAD, pb.DeleteWorkloadRequest(workload_id="web"))
        assert refused.value.facts["leader"] == planes.addresses[leader]
    finally:
        await channel.close()


async def test_a_killed_leader_is_followed_and_nothing_is_lost(planes):
    async with planes.client() as control:
        for index in range(5):
            await insist(lambda index=index: control.apply(process(f"w{index}", revision="v1")))
        leader = await planes.leader()
        await planes.kill(leader)
        other = "two" if leader == "one" else "one"
        assert await planes.leader(among=[other]) == other
        await insist(lambda: control.apply(process("after", revision="v1")))
        for name in (*(f"w{index}" for index in range(5)), "after"):
            await until_status(control, name, "Running", revision="v1")
            assert len(processes_of(planes, name)) == 1


async def test_a_stopped_leader_that_wakes_writes_nothing_and_follows(planes):
    async with planes.client() as control:
        await insist(lambda: control.apply(process("web", revision="v1")))
        await until_status(control, "web", "Running")
        old = await planes.leader()
        new = "two" if old == "one" else "one"
        planes.signal(old, signal.SIGSTOP)
        assert await planes.leader(among=[new]) == new
        async with planes.client(new) as other:
            await insist(lambda: other.apply(process("web", revision="v2", command=["sleep", "77"])))
            await until_status(other, "web", "Running", revision="v2")
        planes.signal(old, signal.SIGCONT)

        async def follows():
            return (await planes.health(old))["role"] == "follower"

        await until(follows, what="the old leader follows")
        async with planes.client(new) as other:
            await until_heard(other, "node-1")
            assert await planes.leader() == new
            view = await other.get_workload("web")
            assert (view.status, view.revision_id) == ("Running", "v2")
        assert len(processes_of(planes, "web")) == 1


async def test_a_leader_that_stops_inside_a_transaction_is_followed(tmp_path, postgres_url):
    """It holds the row of the leader then. What it was about to write is neither acknowledged nor stored later."""
    planes = Planes(tmp_path, postgres_url)
    try:
        await planes.start_plane("one", env={"SHOAL_FAULTS": "store.commit.before=stop@12"})
        await planes.start_plane("two")
        await planes.start_agent("node-1")
        assert await planes.leader() == "one"
        async with planes.client() as control:
            # Some are taken by the one, the first that is not by the other.
            requests = [f"w{index}" for index in range(12)]
            for name in requests:
                await insist(lambda name=name: control.apply(process(name, revision="v1")))
            assert is_stopped(planes.processes["one"].pid)
            assert await planes.leader(among=["two"]) == "two"
            planes.signal("one", signal.SIGCONT)

            async def follows():
                return (await planes.health("one"))["role"] == "follower"

            await until(follows, what="the old leader follows")
            for name in requests:
                await until_status(control, name, "Running", revision="v1")
                assert len(processes_of(planes, name)) == 1
    finally:
        await planes.close()


def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.long
async def test_a_restarted_plane_of_the_same_name_need_not_wait_for_its_own_lease(planes):
    leader = await planes.leader()
    other = "two" if leader == "one" else "one"
    await planes.kill(other)
    await planes.kill(leader)
    await planes.start_plane(leader)
    assert await planes.leader(among=[leader]) == leader


async def test_the_next_leader_opens_what_the_last_one_sealed(tmp_path, postgres_url):
    planes = Planes(tmp_path, postgres_url)
    try:
        await planes.start_plane("one", env=KEY)
        await planes.start_plane("two", env=KEY)
        await planes.start_agent("node-1")
        async with planes.client() as control:
            await insist(lambda: control.set_secret("db-password", b"hunter2"))
            await planes.kill(await planes.leader())
            await insist(lambda: control.apply(_telling("teller")))
            await until_status(control, "teller", "Completed")
            assert b"".join([piece.data async for piece in control.logs("teller")]) == b"hunter2"
    finally:
        await planes.close()


@pytest.mark.long
async def test_no_secret_is_set_that_another_leader_could_not_open(tmp_path, postgres_url):
    planes = Planes(tmp_path, postgres_url)
    try:
        await planes.start_plane("one")
        async with planes.client("one") as control:
            with pytest.raises(PreconditionError, match="given to all of them"):
                await control.set_secret("db-password", b"hunter2")
        await planes.kill("one")
        await planes.start_plane("one", env=KEY)
        async with planes.client("one") as control:
            await control.set_secret("db-password", b"hunter2")
        await planes.start_plane("two", env=OTHER_KEY)
        assert "another key" in (await planes.health("two"))["secrets"]
        assert "another key" in (tmp_path / "two.log").read_text()
        assert (await planes.health("one"))["secrets"] == "ok"
        await planes.kill("one")
        assert await planes.leader(among=["two"]) == "two"
        async with planes.client("two") as control:
            with pytest.raises(PreconditionError, match="another key"):
                await insist(lambda: control.set_secret("db-password", b"other"))
    finally:
        await planes.close()


def _telling(name):
    """A workload that prints the secret."""
    fields = {"restart": {"policy": "never"}, "env": {"PASSWORD": {"secret": "db-password"}}}
    return process(name, command=["sh", "-c", 'printf %s "$PASSWORD"'], process=fields)
