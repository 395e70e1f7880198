"""Workloads with certificates of their own: when they get one, that it stays fresh, and what becomes of it."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.agent.workloads.certificates import FOLDER
from shoal.core.errors import DeniedError, InvalidError, UnsupportedError
from shoal.model.identity import Identity, Role, workload_identity
from shoal.testing.control import ControlKit, process_spec
from shoal.wire.methods import NODE_HEADER, AgentControl, AgentService, Credentials
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import enrollment_pb2
from shoal.wire.trust.authority import make_signing_request
from shoal.wire.trust.credentials import CredentialPaths, read_credentials
from tests.unit.agent.scene import scene
from tests.unit.control.trusting import CLUSTER, trusting_fleet

pytestmark = pytest.mark.looptime


@pytest.fixture
async def fleet(tmp_path):
    # Heartbeats are few, because hours pass here.
    calm = {"lease": timedelta(minutes=15), "heartbeat_interval": timedelta(minutes=5)}
    async with trusting_fleet(tmp_path, **calm) as fleet:
        yield fleet


def paths_of(request) -> CredentialPaths:
    given = request.identity
    return CredentialPaths(Path(given["SHOAL_CA"]), Path(given["SHOAL_CERT"]), Path(given["SHOAL_KEY"]))


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def run_one(fleet, **process):
    await fleet.start("n1")
    await fleet.apply_trusted(**process)
    await fleet.wait_status("a", "Running")
    [request] = fleet.started("n1")
    return request, paths_of(request)


async def test_a_run_starts_with_a_certificate_for_its_group_and_node(fleet, caplog):
    request, paths = await run_one(fleet)
    got = read_credentials(paths, now=fleet.clock.wall())
    assert got.identity == workload_identity(CLUSTER, job="clicks", node="n1")
    assert got.ca == fleet.authority.pem
    assert timedelta(minutes=55) < got.not_after - fleet.clock.wall() <= timedelta(hours=1)
    assert request.identity["SHOAL_CONTROL"] == "control:8085"
    assert paths.key.parent == fleet.folder / "n1" / FOLDER / "a"
    assert [mode_of(path) for path in (paths.key.parent, paths.key, paths.cert, paths.ca)] == [
        0o700,
        0o600,
        0o600,
        0o600,
    ]
    assert got.key.decode() not in caplog.text
    assert got.key.decode() not in repr(request)


async def test_every_run_has_a_key_of_its_own(fleet):
    _, paths = await run_one(fleet, env={"SHOAL_FAKE_RUN_FOR": "5"})
    first = paths.key.read_bytes()
    await fleet.wait(lambda: len(fleet.started("n1")) > 1, seconds=120)
    again = paths_of(fleet.started("n1")[1])
    assert again == paths
    assert paths.key.read_bytes() != first


async def test_it_is_renewed_well_before_its_end_and_the_run_goes_on(fleet):
    _, paths = await run_one(fleet)
    keys, shortest = set(), timedelta(hours=1)
    for _ in range(20):
        await asyncio.sleep(180)
        got = read_credentials(paths, now=fleet.clock.wall())
        keys.add(got.key)
        shortest = min(shortest, got.not_after - fleet.clock.wall())
    assert shortest > timedelta(minutes=30)
    assert len(keys) == 3, "an hour, one in less than half an hour"
    assert sorted(path.name for path in paths.key.parent.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    assert len(fleet.started("n1")) == 1


async def test_a_new_agent_goes_on_renewing_what_it_finds(fleet):
    _, paths = await run_one(fleet)
    first = paths.cert.read_bytes()
    await fleet.kill("n1")
    await asyncio.sleep(20 * 60)
    await fleet.start("n1")
    await asyncio.sleep(60)
    assert paths.cert.read_bytes() == first, "it is not due yet"
    await asyncio.sleep(10 * 60)
    assert paths.cert.read_bytes() != first
    assert len(fleet.started("n1")) == 1


async def test_a_new_agent_replaces_at_once_what_ended_or_was_spoilt_meanwhile(fleet):
    _, paths = await run_one(fleet)
    await fleet.kill("n1")
    paths.cert.unlink()
    os.mkfifo(paths.cert)  # the owner of the directory can put anything there, and nobody waits for it
    await fleet.start("n1")
    await asyncio.sleep(30)
    assert paths.cert.is_file()
    assert read_credentials(paths, now=fleet.clock.wall()).identity.job == "clicks"
    await fleet.kill("n1")
    await asyncio.sleep(3900)
    await fleet.start("n1")
    await asyncio.sleep(30)
    assert read_credentials(paths, now=fleet.clock.wall()).not_after > fleet.clock.wall()


async def test_a_start_waits_for_a_control_plane_that_is_away_and_says_so(fleet):
    agent = await fleet.start("n1")
    # The order gets through, and then the way back is gone.
    original, failing = fleet.plane.leadership.credentials.issue_workload_certificate, True

    async def issue(request, call):
        if failing:
            raise DeniedError("not now")
        return await original(request, call)

    fleet.plane.leadership.credentials.issue_workload_certificate = issue
    await fleet.apply_trusted(restart={"max_delay_ms": 8000})
    await asyncio.sleep(60)
    view = await fleet.workload("a")
    assert view.status == "Pending"
    assert "waits for its certificate: not now" in view.reason.message
    assert not fleet.started("n1")
    assert not (fleet.folder / "n1" / FOLDER / "a").exists()
    report = agent.executor.roster.report("a")
    assert report.status.next_restart_at is not None
    failing = False
    await fleet.wait_status("a", "Running", seconds=20)


async def test_a_run_that_is_started_again_without_a_control_plane_uses_what_it_has(fleet):
    _, paths = await run_one(fleet, env={"SHOAL_FAKE_RUN_FOR": "600"})
    first = paths.cert.read_bytes()
    await fleet.stop_control()
    await asyncio.sleep(15 * 60)
    assert len(fleet.started("n1")) == 2
    assert paths.cert.read_bytes() == first
    await asyncio.sleep(50 * 60)
    count = len(fleet.started("n1"))
    assert 4 <= count <= 7, "an hour of it, and no start with one that has ended"
    await asyncio.sleep(15 * 60)
    assert len(fleet.started("n1")) == count
    await fleet.start_control()
    await fleet.wait_status("a", "Running", seconds=300)


async def test_a_run_goes_on_when_its_certificate_ends_and_its_status_says_so_before(fleet, caplog):
    agent = await fleet.start("n1")
    await fleet.apply_trusted()
    await fleet.wait_status("a", "Running")
    await fleet.stop_control()
    await asyncio.sleep(35 * 60)
    assert "certificate" not in agent.executor.roster.report("a").status.message, "there is time yet"
    assert "its certificate ends at" in caplog.text
    await asyncio.sleep(15 * 60)
    assert "its certificate ends at" in agent.executor.roster.report("a").status.message
    await asyncio.sleep(15 * 60)
    assert len(fleet.started("n1")) == 1
    assert agent.executor.roster.report("a").status.ready
    await fleet.start_control()
    await asyncio.sleep(300)
    assert "certificate" not in agent.executor.roster.report("a").status.message
    paths = paths_of(fleet.started("n1")[0])
    assert read_credentials(paths, now=fleet.clock.wall()).not_after > fleet.clock.wall() + timedelta(minutes=30)


async def test_it_goes_with_the_workload(fleet):
    _, paths = await run_one(fleet)
    await fleet.channel.call(AgentControl.DELETE_GROUP, pb.DeleteGroupRequest(group_id="clicks"))
    await fleet.wait_gone("a")
    assert not paths.key.parent.exists()


async def test_it_goes_when_the_spec_asks_no_more_and_when_the_workload_went_unseen(fleet):
    _, paths = await run_one(fleet)
    await fleet.apply_trusted(identity=False)
    await fleet.wait(lambda: len(fleet.started("n1")) == 2)
    assert not paths.key.parent.exists()
    assert "SHOAL_KEY" not in fleet.started("n1")[1].identity
    await fleet.kill("n1")
    stray = fleet.folder / "n1" / FOLDER / "long-gone"
    stray.mkdir(parents=True)
    (stray / "key.pem").write_text("x")
    await fleet.start("n1")
    assert not stray.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_the_files_belong_to_the_user_of_the_run(fleet):
    _, paths = await run_one(fleet, user="65534")
    for path in (paths.key.parent, paths.key, paths.cert, paths.ca):
        assert path.stat().st_uid == 65534
    assert mode_of(paths.key.parent) == 0o700
    for parent in (paths.key.parent.parent, paths.key.parent.parent.parent):
        assert parent.stat().st_uid == os.geteuid()
        assert mode_of(parent) & 0o011 == 0o011, "its user has to get there"
    await asyncio.sleep(30 * 60)
    assert paths.key.stat().st_uid == 65534, "also when they were renewed"
    (paths.key.parent / "left-behind").write_text("x")
    await fleet.apply_trusted(user="65533")
    await fleet.wait(lambda: len(fleet.started("n1")) == 2)
    assert paths.key.parent.stat().st_uid == paths.key.stat().st_uid == 65533
    assert not (paths.key.parent / "left-behind").exists(), "what another has put there is gone"


async def test_a_user_that_there_is_not_fails_the_workload(fleet):
    await fleet.start("n1")
    await fleet.apply_trusted(user="nobody-of-this-name")
    view = await fleet.wait_status("a", "Failed")
    assert "there is no such user" in view.reason.message


# ---------------------------------------------------------------------------------------------------------
# Who can have one


async def test_a_control_plane_that_cannot_issue_refuses_at_once(tmp_path):
    async with ControlKit(tmp_path) as kit:
        kit.node("n1")
        spec = process_spec()
        spec.process.identity = True
        request = pb.ApplyGroupRequest(group_id="g", members=[pb.GroupMember(workload_id="a", spec=spec)])
        with pytest.raises(InvalidError, match=r"members\[0\].spec.process.identity: .*no signing key"):
            await kit.channel.call(AgentControl.APPLY_GROUP, request)


async def test_a_workload_in_no_group_is_refused_at_once(fleet):
    spec = process_spec()
    spec.process.identity = True
    request = pb.ApplyWorkloadRequest(workload_id="a", spec=spec)
    answer = await fleet.channel.call(AgentControl.APPLY_WORKLOAD, request)
    assert not answer.success
    assert "is for members of groups" in answer.error_message


async def test_an_agent_without_a_certificate_takes_no_such_command(tmp_path):
    async with scene(tmp_path) as it:
        agent = await it.start()
        await asyncio.sleep(1)
        request = agent_pb2.ApplyWorkloadRequest(id="w", type=agent_pb2.WORKLOAD_TYPE_PROCESS, generation=1)
        request.spec.process.command.append("x")
        request.spec.process.identity = True
        channel = it.network.transport("control").connect(agent.address)
        with pytest.raises(UnsupportedError, match="has no certificate itself"):
            await channel.call(AgentService.APPLY_WORKLOAD, request, metadata={NODE_HEADER: agent.node_id})
        await channel.close()
        assert "identity" not in it.control.registrations[0][1].features


async def test_an_agent_gets_none_for_a_workload_that_did_not_ask_or_is_not_its_own(fleet):
    for name in ("n1", "n2"):
        await fleet.start(name)
    await fleet.apply_trusted("quiet", members=("b",), identity=False)
    await fleet.apply_trusted()
    node = (await fleet.wait_status("a", "Running")).assigned_node_id
    csr = make_signing_request(workload_identity(CLUSTER, job="clicks", node=node)).csr
    other = fleet.as_one(Identity(Role.AGENT, CLUSTER, "n2" if node == "n1" else "n1"))
    request = enrollment_pb2.IssueWorkloadCertificateRequest(workload_id="a", csr=csr)
    with pytest.raises(DeniedError, match="does not belong to node"):
        await other.call(Credentials.ISSUE_WORKLOAD_CERTIFICATE, request)
    its_node = (await fleet.wait_status("b", "Running")).assigned_node_id
    request = enrollment_pb2.IssueWorkloadCertificateRequest(workload_id="b", csr=csr)
    agent = fleet.as_one(Identity(Role.AGENT, CLUSTER, its_node))
    with pytest.raises(Exception, match="has not asked"):
        await agent.call(Credentials.ISSUE_WORKLOAD_CERTIFICATE, request)
