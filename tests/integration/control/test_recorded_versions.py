"""Programs one version apart work together.

A control plane takes up the databases of earlier versions: everything reads back, and everything goes on. Every call
that a recorded version answered is made again, to the programs of today, and answered as well; what they say today is
understood by the classes of then.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import pkgutil
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from scripts.conversation import (
    FILE_NAME as CALLS_FILE,
)
from scripts.conversation import (
    METHODS,
    Place,
    Played,
    Player,
    Step,
    full_name,
    meaning,
    read_lines,
    read_steps,
)
from scripts.every_call import every_call
from scripts.record_version import format_number, picture, read_workload, until
from shoal.client import ControlPlane as Client
from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.control.store.migrate import find_migrations
from shoal.control.store.select import FILE_NAME, open_store
from shoal.jobs.engine import Engines
from shoal.model.events import RENAMED
from shoal.model.jobs import JobState
from shoal.services import ServiceEngine
from shoal.testing.hollow import HollowFleet, HollowNode
from shoal.wire import pb
from shoal.wire.convert import decode_spec_bytes
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2
from shoal.wire.sockets.channel import GrpcTransport
from tests.services.versions import RecordedVersion, recorded_versions
from tests.unit.wire.test_recorded_versions import known_part

pytestmark = pytest.mark.integration

EVERY = pytest.mark.parametrize("version", recorded_versions(), ids=str)
#: Version 1 was recorded before there were conversations.
SPOKEN = [version for version in recorded_versions() if (version.folder / CALLS_FILE).exists()]
EVERY_SPOKEN = pytest.mark.parametrize("version", SPOKEN, ids=str)


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def database(dialect: str, request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgres_url") if dialect == "postgresql" else ""


def restore(version: RecordedVersion, database: str, folder: Path) -> None:
    if database:
        version.restore_postgres(database)
    else:
        version.restore_control(folder / FILE_NAME)


@contextlib.asynccontextmanager
async def control_plane(folder: Path, database: str, *, lease: timedelta = timedelta(minutes=5)):
    settings = ControlSettings(
        data_dir=str(folder),
        grpc_port=0,
        insecure=True,
        database=database,
        cluster_id="golden",
        heartbeat_interval=timedelta(milliseconds=300),
        lease=lease,
    )
    transport = GrpcTransport()
    plane = ControlPlaneServer(settings, transport=transport, engines=Engines({"service": ServiceEngine()}))
    try:
        await plane.start(http=False)
        async with Client([plane.address], transport) as client:
            yield plane, client
    finally:
        await plane.stop()


def same(seen: dict, recorded: dict) -> None:
    """What was recorded is there; events are shown under their present names, and some may have come since."""
    for part in ("nodes", "workloads", "groups"):
        assert seen[part].keys() == recorded[part].keys()
        for name, facts in recorded[part].items():
            assert seen[part][name] == facts, f"{part} {name}"
    assert seen["jobs"] == recorded.get("jobs", {})  # there were none before format 5
    events = [[cursor, RENAMED.get(kind, kind), subject] for cursor, kind, subject in recorded["events"]]
    assert seen["events"][: len(events)] == events


@EVERY
async def test_everything_reads_back(version: RecordedVersion, dialect: str, database: str, tmp_path: Path) -> None:
    restore(version, database, tmp_path)
    async with control_plane(tmp_path, database) as (_plane, client):
        same(await picture(client), version.picture(dialect))
    # And once more, from what this version has made of it.
    async with control_plane(tmp_path, database) as (_plane, client):
        same(await picture(client), version.picture(dialect))


@EVERY
async def test_everything_goes_on(version: RecordedVersion, dialect: str, database: str, tmp_path: Path) -> None:
    restore(version, database, tmp_path)
    # At-most-one work that its node has lost is not begun again before a lease is over.
    async with control_plane(tmp_path, database, lease=timedelta(seconds=3)) as (plane, client):
        before = {view.workload_id: view.generation for view in await client.list_workloads()}
        hollow = HollowFleet(GrpcTransport(), plane.address)
        await hollow.start()
        kinds = ("process", "container", "compose", "vm")
        for name in ("hollow", "lost", "real"):
            labels = (
                {"kind": "real"} if name == "real" else {"kind": "hollow", "zone": "a" if name == "hollow" else "b"}
            )
            hollow.add(HollowNode(name, workload_types=kinds, labels=labels, slots=8))
        try:
            # Their nodes come back with nothing on them, and are told again.
            for name in ("web", "box", "stack", "machine", "pair-0", "pair-1", "single"):
                await until(lambda name=name: _is_told(hollow, name))
                await until(lambda name=name: _is(client, name, "Running"))
            assert hollow.nodes["real"].generations["web"] == before["web"]
            outcome = await client.apply(read_workload({"id": "fresh", **_sleep()}))
            assert outcome.outcome == "created"
            await until(lambda: _is(client, "fresh", "Running"))
            again = await client.apply(read_workload({"id": "web", "revision": "v3", **_sleep()}))
            assert again.generation > before["web"]
            await client.delete("box")
            await until(lambda: _gone(client, "box"))
            if version.picture(dialect).get("jobs"):
                await client.wait_for_job("shop", lambda job: job.state is JobState.RUNNING, timeout=60)
                await client.rescale_job("shop", 3)
                await until(lambda: _is(client, "shop-2", "Running"))
        finally:
            await hollow.stop()


@EVERY
async def test_every_migration_since_is_applied_once(
    version: RecordedVersion, dialect: str, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    restore(version, database, tmp_path)
    expected = len(find_migrations(dialect)) - version.numbers["format"]
    for count in (expected, 0):
        caplog.clear()
        store = open_store(database or None, tmp_path, decode_spec=decode_spec_bytes)
        with caplog.at_level("INFO"):
            await store.open()
        await store.close()
        assert caplog.text.count("applied migration") == count


@EVERY
async def test_a_copy_of_the_file_is_a_backup(version: RecordedVersion, tmp_path: Path) -> None:
    """What is written by this version into an old file stays in that file: the copy beside it is as old as before."""
    version.restore_control(tmp_path / "old" / FILE_NAME)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    async with control_plane(tmp_path / "new", "") as (_plane, client):
        await client.delete("homeless")
    async with control_plane(tmp_path / "old", "") as (_plane, client):
        same(await picture(client), version.picture("sqlite"))


def _sleep() -> dict:
    return {"type": "process", "process": {"command": ["sleep", "3600"]}}


async def _is_told(hollow: HollowFleet, name: str) -> bool:
    return any(name in node.runs for node in hollow.nodes.values())


async def _is(client: Client, name: str, status: str) -> bool:
    return (await client.get_workload(name)).status == status


async def _gone(client: Client, name: str) -> bool:
    return all(view.workload_id != name for view in await client.list_workloads())


# ---------------------------------------------------------------------------------------------------------
# Every call


def served() -> set[str]:
    """Every RPC of the control plane and of agents, by the compiled descriptors. Serving agents have other tests."""
    modules = [
        each.name for each in pkgutil.walk_packages(pb.__path__, f"{pb.__name__}.") if each.name.endswith("_pb2")
    ]
    files = [importlib.import_module(name).DESCRIPTOR for name in modules]
    services = [
        service
        for file in files
        if file.package.startswith(("persys.", "shoal."))
        for service in file.services_by_name.values()
    ]
    return {f"{service.full_name}.{method.name}" for service in services for method in service.methods}


def said(lines: list[dict[str, Any]]) -> tuple[set[str], set[str]]:
    """The RPCs with a request, and those with a good answer; a stream also by the kinds of its messages."""
    asked, answered = set(), set()
    for line in lines:
        method = line.get("method", "")
        if "request" in line:
            asked.update((method, *(f"{method}: {kind}" for kind in line["request"]["means"])))
        for reply in line.get("replies", []):
            answered.update((method, *(f"{method}: {kind}" for kind in reply["means"])))
    return asked, answered


def missing(lines: list[dict[str, Any]]) -> set[str]:
    """The RPCs, and the kinds of messages of the stream, that a conversation lacks."""
    asked, answered = said(lines)
    stream = full_name(AgentControl.CONTROL_STREAM)
    kinds = [each.name for each in control_pb2.ControlMessage.DESCRIPTOR.oneofs_by_name["message"].fields]
    lacking = {f"{stream}: {kind}" for kind in kinds} - asked - answered
    return (served() - asked) | (served() - answered) | lacking


def test_every_call_of_this_format_is_recorded() -> None:
    number = format_number()
    found = [version for version in SPOKEN if version.numbers["format"] == number]
    assert found, f"format {number} is not recorded: python -m scripts.record_version --postgres URL"
    lacking = missing(read_lines(found[0].folder / CALLS_FILE))
    assert not lacking, (
        f"format {number} is recorded without {sorted(lacking)}: add steps to scripts/every_call.py, and record them "
        "with `python -m scripts.record_version --calls`, or everything if the recorded program does not serve them"
    )


def test_a_call_that_is_not_recorded_is_found_out() -> None:
    lines = read_lines(SPOKEN[-1].folder / CALLS_FILE)
    for name in sorted(served()):
        assert name in missing([line for line in lines if line.get("method") != name])
        # A refusal alone tells nothing of the answer.
        unanswered = [{**line, "replies": []} if line.get("method") == name else line for line in lines]
        assert name in missing(unanswered)
    stream = full_name(AgentControl.CONTROL_STREAM)
    quiet = [line for line in lines if line.get("awaited") != ["delete_reply"]]
    assert missing(quiet) == {f"{stream}: delete_reply"}


def test_the_conversation_calls_everything_that_is_served() -> None:
    assert {step.method for step in every_call() if step.request is not None} == served()


@EVERY_SPOKEN
def test_what_was_said_then_means_the_same_now(version: RecordedVersion) -> None:
    for line in read_lines(version.folder / CALLS_FILE):
        method = METHODS.get(line.get("method", ""))
        if method is None:
            assert line["kind"] == "wait"
            continue
        for cls, given in (
            *((method.request, each) for each in [line.get("request")] if each is not None),
            *((method.response, each) for each in line.get("replies", [])),
        ):
            assert cls.DESCRIPTOR.full_name == given["message"]
            message = cls.FromString(bytes.fromhex(given["bytes"]))
            assert meaning(message) == given["means"]
            assert canonical(message).hex() == given["bytes"]
            # A field without a class to read it would have been carried along, and would be lost here.
            message.DiscardUnknownFields()
            assert canonical(message).hex() == given["bytes"]


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded conversation, and how it went with the programs of today."""

    version: RecordedVersion
    recorded: tuple[Step, ...]
    played: list[Played]
    #: What became of a step that cannot go well.
    refused: str


@pytest.fixture(scope="module", params=SPOKEN, ids=str)
def replay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Replay:
    version: RecordedVersion = request.param
    steps = tuple(_as_of_today(step) for step in read_steps(version.folder / CALLS_FILE))

    async def play() -> tuple[list[Played], str]:
        async with Place(tmp_path_factory.mktemp("place") / "now").running() as place:
            player = Player(place)
            played = await player.play(steps)
            with pytest.raises(AssertionError) as refused:
                await player.play([_never()])
            return played, str(refused.value)

    return Replay(version, steps, *asyncio.run(play()))


#: Calls that were refused with a status, and are answered now: clients of the published contract read the answer.
ANSWERED_NOW = {
    (full_name(AgentControl.RETRY_WORKLOAD), "NOT_FOUND"): control_pb2.RetryWorkloadResponse(accepted=False),
}


def _as_of_today(step: Step) -> Step:
    answer = ANSWERED_NOW.get((step.method, step.status))
    return step if answer is None else dataclasses.replace(step, status="OK", replies=(answer,))


def _never() -> Step:
    request = control_pb2.GetWorkloadRequest(workload_id="none-such")
    return Step("call", "operator", full_name(AgentControl.GET_WORKLOAD), request)


#: What a client decides by. Sentences may be put better, and numbers of events may differ.
DECISIVE = (
    "accepted", "acknowledged", "applied", "applied_action", "change", "decision", "desired_state", "failure_reason",
    "generation", "healthy", "in_reply_to", "node_id", "outcome", "placeable", "skipped", "status", "success", "wish",
)  # fmt: skip


@pytest.mark.timeout(600)
def test_what_was_asked_then_is_answered_now(replay: Replay) -> None:
    for number, (then, now) in enumerate(zip(replay.recorded, replay.played, strict=True), 1):
        what = f"step {number}, {then.method}"
        assert now.step.status == then.status, what
        assert len(now.step.replies) == len(then.replies), what
        for before, today in zip(then.replies, now.step.replies, strict=True):
            assert list(lost(meaning(before), meaning(today))) == [], what
    assert "ended with NOT_FOUND instead of OK" in replay.refused


@pytest.mark.timeout(600)
def test_what_is_said_today_is_understood_then(replay: Replay) -> None:
    """By the version that was recorded, and by the one before it as far as it knew of the call."""
    earlier = [each for each in recorded_versions() if each.numbers["format"] <= replay.version.numbers["format"]]
    for version in earlier[-2:]:
        then = methods_then(version)
        understood = 0
        for played in replay.played:
            if played.given.method not in then:
                continue
            asked, answered = then[played.given.method]
            for message, old in (
                *((each, asked) for each in played.sent),
                *((each, answered) for each in played.answered),
            ):
                read = old.FromString(message.SerializeToString())
                read.DiscardUnknownFields()
                assert canonical(type(message).FromString(read.SerializeToString())) == canonical(
                    known_part(message, old.DESCRIPTOR)
                )
                understood += 1
        assert understood > len(then)


def methods_then(version: RecordedVersion) -> dict[str, tuple[type[Message], type[Message]]]:
    """The classes of the requests and answers of every RPC, as a version had them."""
    return {
        f"{service.full_name}.{method.name}": (
            version.message_class(method.input_type.full_name),
            version.message_class(method.output_type.full_name),
        )
        for file in version.contract().file
        for service in version.pool().FindFileByName(file.name).services_by_name.values()
        for method in service.methods
    }


def canonical(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def lost(then: Any, now: Any, at: str = "") -> Iterator[str]:
    """The fields that were there then and are not now, and those that a client decides by and that say otherwise."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name, value in then.items():
            if name not in now:
                yield f"{at}.{name}"
            else:
                yield from lost(value, now[name], f"{at}.{name}")
    elif isinstance(then, list) and isinstance(now, list):
        for index, (value, today) in enumerate(zip(then, now, strict=False)):
            yield from lost(value, today, f"{at}[{index}]")
        if len(now) < len(then):
            yield f"{at}[{len(now)}]"
    elif then != now and at.rpartition(".")[2] in DECISIVE:
        yield f"{at}: {now!r} instead of {then!r}"


def test_a_field_that_is_not_said_any_more_is_found_out() -> None:
    then = {"accepted": True, "reason": "so", "nodes": [{"status": "Ready"}, {"status": "Ready"}]}
    assert list(lost(then, {**then, "reason": "better said", "more": 1})) == []
    assert list(lost(then, {"accepted": False, "nodes": [{"status": "Ready"}]})) == [
        ".accepted: False instead of True",
        ".reason",
        ".nodes[1]",
    ]
