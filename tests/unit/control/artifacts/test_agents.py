"""Artifacts of workloads: real agents on fake machines fetch them, cache them, and go on without a control plane."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import time
from pathlib import Path

import pytest

from shoal.agent.workloads.artifacts import FOLDER, ArtifactCache
from shoal.client import ControlPlane
from shoal.core import faults
from shoal.core.errors import InternalError, NotFoundError, UnavailableError
from shoal.model.identity import Identity, Role
from shoal.model.nodes import Feature
from shoal.model.workloads import ArtifactSpec, FailureReason
from shoal.runtimes.base import RunError
from shoal.testing.control import CONTROL_ADDRESS, ControlKit, process_spec
from shoal.testing.hollow import ALL_FEATURES
from shoal.testing.threads import InlineThreads
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import artifacts_pb2
from tests.unit.control.real_agents import RealFleet
from tests.unit.control.trusting import CLUSTER, trusting_fleet

pytestmark = pytest.mark.looptime(start=time.monotonic)


@pytest.fixture(autouse=True)
def disarmed():
    yield
    faults.disarm_all()


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def upload(kit, *contents: bytes) -> None:
    async with ControlPlane([CONTROL_ADDRESS], kit.network.transport("client"), clock=kit.clock) as client:
        for content in contents:
            await client.upload_artifact(content)


async def apply(kit, name: str, **artifacts: bytes) -> pb.ApplyWorkloadResponse:
    """Apply a process whose artifacts are files of these names."""
    spec = process_spec()
    for path, content in artifacts.items():
        spec.process.artifacts.add(sha256=digest_of(content), path=path)
    return await kit.channel.call(AgentControl.APPLY_WORKLOAD, pb.ApplyWorkloadRequest(workload_id=name, spec=spec))


def handed_over(fleet, node: str, workload_id: str) -> dict[str, bytes]:
    """What the newest run of a workload was started with."""
    runs = [each for each in fleet.machines[node].started_with.values() if each.workload_id == workload_id]
    return {spec.path: path.read_bytes() for spec, path in runs[-1].artifacts}


def cached(fleet, node: str) -> list[str]:
    return sorted(path.name for path in (fleet.folder / node / FOLDER).iterdir())


async def test_a_workload_starts_with_its_artifacts(tmp_path):
    async with trusting_fleet(tmp_path) as fleet:
        await fleet.start("n1")
        transport = fleet.network.transport("operator", identity=Identity(Role.OPERATOR, CLUSTER, "ada"))
        async with ControlPlane([CONTROL_ADDRESS], transport, clock=fleet.clock) as client:
            await client.upload_artifact(b"code")
        await apply(fleet, "w", bundle=b"code", copy=b"code")
        await fleet.wait_status("w", "Running")
        assert handed_over(fleet, "n1", "w") == {"bundle": b"code", "copy": b"code"}
        assert cached(fleet, "n1") == [digest_of(b"code")]
        mode = (fleet.folder / "n1" / FOLDER / digest_of(b"code")).stat().st_mode
        assert stat.S_IMODE(mode) == 0o444


async def test_a_missing_artifact_is_a_reason_and_is_tried_again(tmp_path):
    async with RealFleet(tmp_path) as fleet:
        await fleet.start("n1")
        await apply(fleet, "w", bundle=b"late")
        view = await fleet.wait_status("w", "Pending", seconds=5)
        await asyncio.sleep(5)
        view = await fleet.workload("w")
        assert "does not have it" in view.reason.message, view
        assert view.reason.code == "STORAGE_ERROR" or "STORAGE_ERROR" in str(view), view
        await upload(fleet, b"late")
        await fleet.wait_status("w", "Running")
        assert handed_over(fleet, "n1", "w") == {"bundle": b"late"}


async def test_the_cache_outlives_agent_and_control_plane(tmp_path):
    async with RealFleet(tmp_path) as fleet:
        await fleet.start("n1")
        await upload(fleet, b"code")
        await apply(fleet, "w", bundle=b"code")
        await fleet.wait_status("w", "Running")
        await fleet.stop_control()
        await fleet.kill("n1")
        machine = fleet.machines["n1"]
        for info in machine.alive("w"):
            machine.kill(info.run_id)
        before = len(machine.started_with)
        await fleet.start("n1")
        await fleet.wait(lambda: len(machine.started_with) > before, what="another run")
        assert handed_over(fleet, "n1", "w") == {"bundle": b"code"}
        await fleet.start_control()


async def test_an_agent_that_fetches_nothing_gets_no_such_workload(tmp_path):
    async with ControlKit(tmp_path) as kit:
        kit.node("foreign", features=tuple(each for each in ALL_FEATURES if each != Feature.ARTIFACTS.value))
        await kit.wait_node("foreign", "Ready")
        await apply(kit, "w", bundle=b"code")
        await asyncio.sleep(2)
        view = await kit.workload("w")
        assert view.status == "Pending"
        assert "the agent fetches no artifacts" in view.reason.message
        kit.node("ours")
        await kit.wait_status("w", "Running")
        assert (await kit.workload("w")).assigned_node_id == "ours"


# ---------------------------------------------------------------------------------------------------------
# The cache alone


class Origin:
    """A control plane that has blobs, and can be away, cut an answer off or send something else."""

    def __init__(self, *contents: bytes) -> None:
        self.blobs = {digest_of(content): content for content in contents}
        self.addresses = ["control"]
        self.asked: list[str] = []
        self.cut = False

    async def download_artifact(self, digest: str):
        self.asked.append(digest)
        if not self.blobs:
            raise UnavailableError("it is away")
        if digest not in self.blobs:
            raise NotFoundError("artifact", digest)
        content = self.blobs[digest]
        yield artifacts_pb2.DownloadArtifactResponse(size=len(content))
        half = len(content) // 2
        yield artifacts_pb2.DownloadArtifactResponse(data=content[:half])
        if self.cut:
            raise UnavailableError("it broke off")
        yield artifacts_pb2.DownloadArtifactResponse(data=content[half:])

    async def use_next(self) -> None:
        raise AssertionError("there is no other")

    async def close(self) -> None:
        pass


def cache_of(folder: Path, origin: Origin, *, most: int = 3000, in_use=()) -> ArtifactCache:
    return ArtifactCache(
        folder, most_bytes=most, connect=lambda: origin, in_use=lambda: in_use, threads=InlineThreads()
    )


def spec_of(content: bytes) -> ArtifactSpec:
    return ArtifactSpec(digest_of(content), "file")


async def got(cache: ArtifactCache, content: bytes) -> bytes:
    ((_, path),) = await cache.provide([spec_of(content)])
    return path.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in (folder / FOLDER).iterdir())


async def test_a_blob_is_fetched_once_and_by_one(tmp_path):
    origin = Origin(b"content")
    cache = cache_of(tmp_path, origin)
    assert await asyncio.gather(*(got(cache, b"content") for _ in range(5))) == [b"content"] * 5
    assert origin.asked == [digest_of(b"content")]
    assert await got(cache_of(tmp_path, Origin()), b"content") == b"content", "from the disk, by the next process"


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda origin: origin.blobs.clear(), FailureReason.NETWORK_ERROR),
        (lambda origin: origin.blobs.update({digest_of(b"content"): b"another"}), FailureReason.NETWORK_ERROR),
        (lambda origin: setattr(origin, "cut", True), FailureReason.NETWORK_ERROR),
        (lambda origin: origin.blobs.pop(digest_of(b"content")), FailureReason.STORAGE_ERROR),
    ],
    ids=["away", "other content", "cut off", "missing"],
)
async def test_what_cannot_be_got_is_a_reason_and_leaves_nothing(tmp_path, prepare, reason):
    origin = Origin(b"content", b"more")
    prepare(origin)
    cache = cache_of(tmp_path, origin)
    with pytest.raises(RunError, match="waits for artifact") as caught:
        await cache.provide([spec_of(b"content")])
    assert caught.value.failure is reason
    assert caught.value.transient
    assert names(tmp_path) == []
    origin.blobs, origin.cut = {digest_of(b"content"): b"content"}, False
    assert await got(cache, b"content") == b"content"


async def test_room_is_made_by_what_was_used_longest_ago(tmp_path):
    contents = [bytes([number]) * 1000 for number in range(5)]
    origin, in_use = Origin(*contents), {digest_of(contents[1])}
    cache = cache_of(tmp_path, origin, in_use=in_use)
    for content in contents[:3]:
        await got(cache, content)
    await got(cache, contents[0])  # used again
    await got(cache, contents[3])
    assert names(tmp_path) == sorted(map(digest_of, (contents[0], contents[1], contents[3])))
    for number, content in enumerate((contents[3], contents[1], contents[0])):  # the order survives a restart
        os.utime(tmp_path / FOLDER / digest_of(content), (number, number))
    cache = cache_of(tmp_path, origin, in_use=in_use)
    await got(cache, contents[4])
    assert names(tmp_path) == sorted(map(digest_of, (contents[0], contents[1], contents[4])))


async def test_what_is_in_use_is_never_removed(tmp_path):
    contents = [bytes([number]) * 1000 for number in range(4)]
    cache = cache_of(tmp_path, Origin(*contents), in_use=frozenset(map(digest_of, contents)))
    for content in contents[:3]:
        await got(cache, content)
    with pytest.raises(RunError, match="in use") as caught:
        await got(cache, contents[3])
    assert caught.value.failure is FailureReason.STORAGE_ERROR
    with pytest.raises(RunError, match=r"no room|at most"):
        await got(cache_of(tmp_path, Origin(b"x" * 4000)), b"x" * 4000)
    assert names(tmp_path) == sorted(map(digest_of, contents[:3]))


async def test_a_damaged_file_is_fetched_again(tmp_path):
    origin = Origin(b"content")
    cache = cache_of(tmp_path, origin)
    ((_, path),) = await cache.provide([spec_of(b"content")])
    path.chmod(0o600)
    path.write_bytes(b"c0ntent")
    assert await got(cache, b"content") == b"content"
    path.unlink()
    assert await got(cache, b"content") == b"content"
    assert len(origin.asked) == 3


@pytest.mark.parametrize("point", ["artifacts.fetched", "artifacts.cached"])
async def test_an_agent_that_dies_in_the_middle_leaves_no_half_file(tmp_path, point):
    def fail(_name):
        raise InternalError("killed")

    faults.arm(point, fail)
    with pytest.raises(RunError):
        await cache_of(tmp_path, Origin(b"content")).provide([spec_of(b"content")])
    faults.disarm_all()
    (tmp_path / FOLDER / f".{digest_of(b'content')}.0.part").write_bytes(b"cont")  # as kill -9 leaves it
    assert await got(cache_of(tmp_path, Origin(b"content")), b"content") == b"content"
    assert names(tmp_path) == [digest_of(b"content")]


async def test_a_silent_control_plane_is_not_waited_for_for_ever(tmp_path):
    class Silent(Origin):
        async def download_artifact(self, digest: str):
            yield artifacts_pb2.DownloadArtifactResponse(size=7)
            await asyncio.sleep(1e6)

    with pytest.raises(RunError, match="silent") as caught:
        await cache_of(tmp_path, Silent(b"content")).provide([spec_of(b"content")])
    assert caught.value.failure is FailureReason.NETWORK_ERROR
    assert names(tmp_path) == []
