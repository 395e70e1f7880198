"""A store that hangs: what is said of it, and when. In virtual time."""

import asyncio
import time

import pytest

from shoal.client import ControlPlane
from shoal.control.server import STORE_ANSWERS_WITHIN, STORE_CHECK_SECONDS
from shoal.control.store import lane
from shoal.core.errors import NotLeaderError, UnavailableError
from shoal.testing.stores import Fault
from shoal.wire.methods import LIVE_HEADER, AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import DEFAULT_TIMEOUT
from tests.unit.control.leadership.test_two_leaders import ONE, TWO, two_control_planes

pytestmark = pytest.mark.looptime(start=time.monotonic)


def test_a_client_hears_from_the_store_before_it_gives_up():
    assert lane.PATIENCE <= DEFAULT_TIMEOUT - 2


async def test_readiness_ends_soon_after_the_store_hangs_and_comes_back_with_it(kit, monkeypatch):
    answers = asyncio.Event()
    answers.set()
    ping = kit.store.ping

    async def slow_ping():
        await answers.wait()
        await ping()

    monkeypatch.setattr(kit.store, "ping", slow_ping)
    await kit.clock.sleep(5)
    assert kit.plane.is_ready()
    answers.clear()
    hung_at = kit.clock.monotonic()
    await kit.wait(lambda: not kit.plane.is_ready(), seconds=60)
    assert kit.clock.monotonic() - hung_at <= STORE_CHECK_SECONDS + STORE_ANSWERS_WITHIN + 0.5 <= 3.5
    code, body = kit.plane.health()
    assert (code, body["status"]) == (503, "degraded")
    assert "has not answered" in body["reason"]
    await kit.clock.sleep(30)
    assert not kit.plane.is_ready()
    answers.set()
    await kit.clock.sleep(0.1)
    assert kit.plane.is_ready()
    assert kit.plane.health()[1]["reason"] == ""


async def test_an_answer_that_was_lost_says_how_to_look(kit):
    kit.store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)
    with pytest.raises(UnavailableError) as lost:
        await kit.apply("web")
    assert "shoal workload get web" in lost.value.hint
    assert "may have been stored" in lost.value.hint
    await kit.clock.sleep(1.5)
    assert (await kit.workload("web")).workload_id == "web"


async def test_what_comes_after_it_does_not_wait_for_ever_for_what_is_stored(kit, monkeypatch):
    answers, asked = asyncio.Event(), 0
    load = kit.store.load

    async def slow_load(**settings):
        nonlocal asked
        asked += 1
        await answers.wait()
        return await load(**settings)

    kit.store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)
    with pytest.raises(UnavailableError):
        await kit.apply("web")
    monkeypatch.setattr(kit.store, "load", slow_load)
    for name in ("a", "b"):
        with pytest.raises(UnavailableError, match="nothing was changed") as late:
            await kit.apply(name)
        assert late.value.facts["outcome"] == "none"
    assert asked == 1
    answers.set()
    assert (await kit.apply("c")).success
    assert set(kit.plane.leadership.fleet.workloads) == {"web", "c"}


async def test_one_that_does_not_lead_leaves_out_what_it_cannot_know(tmp_path):
    async with (
        two_control_planes(tmp_path) as it,
        ControlPlane([TWO], it.network.transport("reader"), clock=it.clock) as client,
    ):
        await it.join("n1")
        await it.apply("web")
        await it.wait_status("web", "Running")
        await it.clock.sleep(70)
        follower = it.network.transport("asker").connect(TWO)
        view = (await follower.call(AgentControl.GET_NODE, pb.GetNodeRequest(node_id="n1"))).node
        assert view.status == "Ready"
        assert not view.HasField("last_heartbeat")
        assert not view.HasField("lease_expires_at")
        assert not view.HasField("usage")
        workload = (await follower.call(AgentControl.GET_WORKLOAD, pb.GetWorkloadRequest(workload_id="web"))).workload
        assert workload.status == "Running"
        assert not workload.HasField("usage")
        request = pb.GetNodeRequest(node_id="n1")
        with pytest.raises(NotLeaderError) as refused:
            await follower.call(AgentControl.GET_NODE, request, metadata={LIVE_HEADER: "1"})
        assert refused.value.facts["leader"] == ONE
        await follower.close()
        known = await client.get_node("n1")  # a client that knows the follower only
        assert known.last_heartbeat is not None
        assert (it.clock.wall() - known.last_heartbeat).total_seconds() <= 10
