"""Artifacts at a whole control plane, in virtual time: uploads that go wrong, readers, and the removal of blobs."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.artifacts.store import StoreLimits
from shoal.client import ControlPlane
from shoal.control.artifacts import service as artifacts
from shoal.control.artifacts.references import References
from shoal.control.artifacts.service import ArtifactService
from shoal.core import faults
from shoal.core.errors import (
    DeadlineError,
    DeniedError,
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    PreconditionError,
)
from shoal.core.tasks import running
from shoal.jobs.engine import Engines
from shoal.model.identity import Identity, Role, workload_identity
from shoal.services import ServiceEngine
from shoal.testing.control import CONTROL_ADDRESS, ControlKit
from shoal.testing.disks import DiskCall, faulty_disk
from shoal.wire.methods import Artifacts, Jobs
from shoal.wire.pb.shoal.v1 import artifacts_pb2 as pb
from shoal.wire.pb.shoal.v1 import jobs_pb2, run_pb2
from shoal.wire.transport import Call
from tests.unit.control.trusting import CLUSTER, trusting_fleet

pytestmark = pytest.mark.looptime(start=time.monotonic)

#: Seconds that a blob is kept without a reference, in these tests: an hour of a control plane takes long to play.
KEPT = 240.0


@pytest.fixture(autouse=True)
def disarmed():
    yield
    faults.disarm_all()


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path, engines=Engines({"service": ServiceEngine()})) as made:
        keep_shortly(made)
        yield made


def keep_shortly(kit) -> None:
    assert StoreLimits().keep_unreferenced == 3600.0
    kit.plane.leadership.artifacts._limits = StoreLimits(keep_unreferenced=KEPT)


def client_of(kit) -> ControlPlane:
    return ControlPlane([CONTROL_ADDRESS], kit.network.transport("client"), clock=kit.clock)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def start(sha256: str, size: int) -> pb.UploadArtifactRequest:
    return pb.UploadArtifactRequest(start=pb.ArtifactStart(sha256=sha256, size=size))


def data(content: bytes) -> pb.UploadArtifactRequest:
    return pb.UploadArtifactRequest(data=content)


async def send(kit, *requests: pb.UploadArtifactRequest, channel=None) -> list[bool]:
    async def given():
        for request in requests:
            yield request

    return [answer.stored async for answer in (channel or kit.channel).converse(Artifacts.UPLOAD, given())]


def left_behind(kit) -> list[str]:
    folder = Path(kit.settings.data_dir) / artifacts.FOLDER
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def test_a_blob_goes_up_and_down_and_is_sent_once(kit):
    content = bytes(range(256)) * 9000  # more than two messages
    async with client_of(kit) as client:
        digest = await client.upload_artifact(content)
        assert digest == digest_of(content)
        assert await client.download_artifact(digest) == content
        assert await send(kit, start(digest, len(content))) == [True], "the content is not asked for again"
        assert await client.upload_artifact(b"") == digest_of(b"")
        assert await client.download_artifact(digest_of(b"")) == b""
        with pytest.raises(NotFoundError):
            await client.download_artifact(digest_of(b"unknown"))
        with pytest.raises(ExhaustedError, match="more than 10 bytes"):
            await client.download_artifact(digest, most=10)
        await kit.stop_control()
        await kit.start_control()
        assert await client.download_artifact(digest) == content, "it is there after a restart"
    assert left_behind(kit) == sorted([digest, digest_of(b"")])


@pytest.mark.parametrize(
    ("requests", "match"),
    [
        ([], "sha256"),
        ([data(b"x")], "sha256"),
        ([start("A" * 64, 1)], "sha256"),
        ([start("../../" + "a" * 58, 1)], "sha256"),
        ([start(digest_of(b"right"), 5), data(b"wrong")], "sha256"),
        ([start(digest_of(b"right"), 5), data(b"righ")], "size"),
        ([start(digest_of(b"right"), 5), data(b"rig"), data(b"hter")], "size"),
        ([start(digest_of(b"right"), 5), start(digest_of(b"right"), 5)], "start"),
    ],
)
async def test_an_upload_that_is_not_as_announced_changes_nothing(kit, requests, match):
    with pytest.raises(InvalidError, match=match):
        await send(kit, *requests)
    assert left_behind(kit) == []
    assert await send(kit, start(digest_of(b"right"), 5), data(b"right")) == [False, True]


async def test_what_is_too_large_is_refused_before_it_is_sent(kit):
    limit = StoreLimits().most_blob
    with pytest.raises(ExhaustedError, match="at most 268,435,456 bytes"):
        await send(kit, start(digest_of(b"x"), limit + 1))
    with pytest.raises(ExhaustedError):
        await send(kit, start(digest_of(b"x"), -1))
    assert left_behind(kit) == []


async def test_a_caller_that_leaves_or_falls_silent_leaves_nothing(kit):
    waiting = asyncio.Event()

    async def hangs():
        yield start(digest_of(b"content"), 7)
        yield data(b"cont")
        await waiting.wait()

    answers = kit.channel.converse(Artifacts.UPLOAD, hangs())
    assert not (await anext(answers)).stored
    await asyncio.sleep(1)
    assert len(left_behind(kit)) == 1, "it has begun, under another name"
    await answers.aclose()
    await asyncio.sleep(1)
    assert left_behind(kit) == []
    with pytest.raises(DeadlineError, match="silent for 60 s"):
        [answer async for answer in kit.channel.converse(Artifacts.UPLOAD, hangs())]
    assert left_behind(kit) == []
    assert kit.plane.leadership.artifacts._uploads == 0


async def test_so_many_uploads_at_once_and_no_more(kit):
    waiting = asyncio.Event()

    async def hangs(number: int):
        yield start(digest_of(bytes([number])), 1)
        await waiting.wait()

    under_way = [kit.channel.converse(Artifacts.UPLOAD, hangs(each)) for each in range(artifacts.MOST_UPLOADS)]
    for each in under_way:
        await anext(each)
    with pytest.raises(ExhaustedError, match="32 uploads"):
        await send(kit, start(digest_of(b"x"), 1), data(b"x"))
    for each in under_way:
        await each.aclose()
    await asyncio.sleep(1)
    assert await send(kit, start(digest_of(b"x"), 1), data(b"x")) == [False, True]


@pytest.mark.parametrize(("point", "stored"), [("artifacts.upload", False), ("artifacts.stored", True)])
async def test_a_failure_in_the_middle_leaves_all_or_nothing(kit, point, stored):
    failures = 0

    def fail_once(_name):
        nonlocal failures
        failures += 1
        if failures == 1:
            raise InternalError("armed")

    faults.arm(point, fail_once)
    with pytest.raises(InternalError):
        await send(kit, start(digest_of(b"content"), 7), data(b"content"))
    assert left_behind(kit) == ([digest_of(b"content")] if stored else [])
    async with client_of(kit) as client:
        digest = await client.upload_artifact(b"content")
        assert await client.download_artifact(digest) == b"content"


async def test_a_killed_control_plane_leaves_no_half_blob(kit):
    folder = Path(kit.settings.data_dir) / artifacts.FOLDER
    folder.mkdir()
    (folder / f".{digest_of(b'content')}.0.part").write_bytes(b"cont")  # as a killed one leaves it
    assert await send(kit, start(digest_of(b"other"), 5), data(b"other")) == [False, True]
    assert left_behind(kit) == [digest_of(b"other")]


async def test_a_full_disk_is_told(tmp_path):
    with faulty_disk(tmp_path / "disk") as disk:
        made = ControlKit(tmp_path)
        made.settings = replace(made.settings, artifacts=disk.url)
        async with made as kit:
            disk.fail(DiskCall.WRITE)
            with pytest.raises(ExhaustedError):
                await send(kit, start(digest_of(b"content"), 7), data(b"content"))
            disk.heal()
            assert await send(kit, start(digest_of(b"content"), 7), data(b"content")) == [False, True]
    assert left_behind(kit) == [], "it lies where the settings say"


@pytest.mark.parametrize("call", [DiskCall.LIST, DiskCall.REMOVE], ids=lambda call: call.value)
async def test_the_removal_goes_on_when_its_disk_works_again(tmp_path, call):
    with faulty_disk(tmp_path / "disk") as disk:
        made = ControlKit(tmp_path)
        made.settings = replace(made.settings, artifacts=disk.url)
        async with made as kit:
            await send(kit, start(digest_of(b"content"), 7), data(b"content"))
            await kit.stop_control()  # the next one has to list what is there
            await kit.start_control()
            keep_shortly(kit)
            disk.fail(call, errno.EIO)
            async with running(kit.plane.failed(), name="failed") as failed:
                await kit.clock.sleep(KEPT + 180)
                disk.heal()
                await kit.wait(lambda: list((tmp_path / "disk").iterdir()) == [], seconds=KEPT + 180, what="removed")
                assert not failed.done()


async def test_a_damaged_blob_is_not_given_and_can_be_uploaded_again(kit):
    async with client_of(kit) as client:
        digest = await client.upload_artifact(b"content")
        (Path(kit.settings.data_dir) / artifacts.FOLDER / digest).write_bytes(b"c0ntent")
        with pytest.raises(NotFoundError):  # the first try removed it
            await client.download_artifact(digest)
        assert await client.upload_artifact(b"content") == digest
        assert await client.download_artifact(digest) == b"content"


async def test_a_blob_goes_a_while_after_nothing_needs_it(kit):
    kit.node("n1")
    async with client_of(kit) as client:
        of_job, of_nothing = [await client.upload_artifact(content) for content in (b"job", b"nothing")]
        workload = {"type": "process", "process": {"command": ["run"], "env": {"BUNDLE": of_job}}}
        spec = json.dumps({"count": 1, "workload": workload}).encode()
        await kit.channel.call(Jobs.SUBMIT, jobs_pb2.SubmitJobRequest(job_id="j", engine="service", spec=spec))
        await asyncio.sleep(KEPT - 60)
        assert left_behind(kit) == sorted([of_job, of_nothing])
        await asyncio.sleep(200)
        assert left_behind(kit) == [of_job]
        await kit.channel.call(Jobs.CANCEL, jobs_pb2.CancelJobRequest(job_id="j"))
        await asyncio.sleep(KEPT - 60)
        assert left_behind(kit) == [of_job]
        await asyncio.sleep(200)
        assert left_behind(kit) == []
        with pytest.raises(NotFoundError):
            await client.download_artifact(of_job)


async def test_a_leader_that_may_have_lost_its_lease_removes_nothing(kit):
    async with client_of(kit) as client:
        digest = await client.upload_artifact(b"content")
        kit.plane.leadership.artifacts._is_confirmed = lambda: False
        await asyncio.sleep(3 * KEPT)
        assert left_behind(kit) == [digest]


async def test_control_planes_that_share_a_database_need_a_shared_place(kit, tmp_path):
    settings = replace(kit.settings, database="postgresql://nowhere/x")
    fleet, call = kit.plane.leadership.fleet, Call("Upload", "peer")

    def service(settings) -> ArtifactService:
        return ArtifactService(settings, fleet, clock=kit.clock, threads=None, is_confirmed=lambda: True)

    async def given():
        yield start(digest_of(b""), 0)

    with pytest.raises(PreconditionError, match="shares its database") as caught:
        await anext(service(settings).upload(given(), call))
    assert "--artifacts" in caught.value.hint
    shared = service(replace(settings, artifacts=str(tmp_path / "shared")))
    assert [answer.stored async for answer in shared.upload(given(), call)] == [False, True]


async def test_who_may_read_and_write_what(tmp_path):
    async with trusting_fleet(tmp_path) as fleet:
        await fleet.start("n1")
        await fleet.start("n2")
        operator = fleet.channel
        mine, others = digest_of(b"mine"), digest_of(b"others")
        for content in (b"mine", b"others"):
            await send(fleet, start(digest_of(content), len(content)), data(content))
        await fleet.apply_trusted(members=("a",), artifacts=[run_pb2.Artifact(sha256=mine, path="code")])
        view = await fleet.wait_status("a", "Running")
        node, other = view.assigned_node_id, {"n1": "n2", "n2": "n1"}[view.assigned_node_id]
        agent, stranger = (fleet.as_one(Identity(Role.AGENT, CLUSTER, each)) for each in (node, other))
        member = fleet.as_one(workload_identity(CLUSTER, job="clicks", node=node))
        outsider = fleet.as_one(workload_identity(CLUSTER, job="views", node=node))

        async def read(channel, digest) -> bytes:
            request = pb.DownloadArtifactRequest(sha256=digest)
            return b"".join([each.data async for each in channel.stream(Artifacts.DOWNLOAD, request)])

        for channel in (operator, agent, member):
            assert await read(channel, mine) == b"mine"
        assert await read(operator, others) == b"others"
        for channel, digest in ((agent, others), (member, others), (stranger, mine), (outsider, mine)):
            with pytest.raises(DeniedError, match="reads only artifacts that"):
                await read(channel, digest)
            with pytest.raises(DeniedError):  # and is not told whether there is one
                await read(channel, digest_of(b"nowhere"))
        for channel in (agent, member):
            with pytest.raises(DeniedError, match="needs the role operator"):
                await send(fleet, start(digest_of(b"x"), 1), data(b"x"), channel=channel)


async def test_a_digest_in_a_job_counts_only_whole(kit):
    fleet = kit.plane.leadership.fleet
    one, part = digest_of(b"1"), "f" + digest_of(b"2")
    workload = {"type": "process", "process": {"command": ["run"], "env": {"A": one, "B": part}}}
    spec = json.dumps({"count": 1, "workload": workload}).encode()
    await kit.channel.call(Jobs.SUBMIT, jobs_pb2.SubmitJobRequest(job_id="j", engine="service", spec=spec))
    await asyncio.sleep(1)
    assert References(fleet).needed() == {one}
