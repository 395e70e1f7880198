"""Records what this version writes and sends, so that later versions can be tested against it.

    python -m scripts.record_version --postgres postgresql://user@host:port/database
    python -m scripts.record_version --calls

Runs a small fleet (a control plane, one real agent, two hollow nodes; workloads of every kind) once on SQLite and once
in the PostgreSQL database given, which must be empty, and writes `tests/golden/versions/<format>/`: dumps of both
databases and of the agent's, what a client read at the end, the messages that went over the wire with their meaning,
the contract as this version knows it, and the program itself, so that versions can be run side by side later. That
program is then taken through a conversation that calls every RPC (`scripts/every_call.py`), over certificates:
`calls.jsonl` has every request and answer, in order. With --calls only that file is written again, by the program in
the folder.

The format number is that of the newest schema migration. A folder that exists is not written again unless --again is
given: it tells what was, and tests hold later versions to it.

A format that no release has written yet may be recorded again, as long as it changes: after a new RPC, message, column
or document. Add the RPC to `scripts/every_call.py`, then, with an empty database of any PostgreSQL,

    python -m scripts.record_version --again --postgres postgresql://user@host:port/database

and commit the folder. Once a version with that format is released, its folder stays as it is: what then changes is the
next format, with a migration of its own.

Called by a person before a release; `tests/e2e/upgrade/test_recording.py` runs it too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import pkgutil
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, text_format
from google.protobuf.message import Message

import shoal
from scripts.conversation import FILE_NAME as CALLS_FILE
from scripts.conversation import Place, Player, meaning, write_steps
from scripts.every_call import every_call
from shoal.agent.server import Agent, AgentSettings
from shoal.agent.store.database import FILE_NAME as AGENT_FILE
from shoal.agent.store.database import SCHEMA_VERSION as AGENT_SCHEMA
from shoal.client import ControlPlane as Client
from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.control.store.codec import FORMAT as DOCUMENTS
from shoal.control.store.migrate import find_migrations
from shoal.control.store.select import FILE_NAME as CONTROL_FILE
from shoal.core.errors import ShoalError
from shoal.jobs.engine import Engines
from shoal.model.documents import GroupDocument, WorkloadDocument, read_document
from shoal.model.identity import Peer
from shoal.model.jobs import JobState
from shoal.model.workloads import DesiredState
from shoal.services import ServiceEngine
from shoal.testing.hollow import HollowFleet, HollowNode
from shoal.wire import pb
from shoal.wire.convert import workload_view_to_proto
from shoal.wire.methods import AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Channel, CheckCaller, Diagnosis, Method, Request, Response, Server, Service

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ROOT / "tests" / "golden" / "versions"

REAL_NODE = "real"
#: Messages of one method that are kept; the newest ones tell the most, the first one begins the conversation.
MESSAGES_KEPT = 6

WORKLOADS: tuple[dict[str, Any], ...] = (
    {
        "id": "web",
        "revision": "v1",
        "type": "process",
        "process": {
            "command": ["sleep", "3600"],
            "env": {"GREETING": "grüß Gott", "EMPTY": ""},
            "ports": [{"name": "http"}],
            "readiness": {"command": {"command": ["true"]}, "interval": "100ms"},
            "restart": {"policy": "always", "delay": "200ms"},
            "stop": {"signal": "INT", "grace": "2s"},
        },
        "resources": {"cpu_millicores": 100, "memory_mb": 64, "disk_gb": 1},
        "placement": {
            "constraints": [{"key": "kind", "operator": "in", "values": ["real"]}],
            "affinities": [{"workloads": {"app": "noisy"}, "scope": "node", "direction": "apart", "weight": 10}],
        },
        "labels": {"app": "web"},
        "metadata": {"owner": "somebody"},
        "slots": 1,
    },
    {
        "id": "single",
        "type": "process",
        "process": {"command": ["sleep", "3600"]},
        "at_most_one": True,
        "placement": {"constraints": [{"key": "kind", "values": ["real"]}]},
    },
    {
        "id": "once",
        "type": "process",
        "process": {"command": ["sh", "-c", "echo done"], "restart": {"policy": "no"}},
        "placement": {"constraints": [{"key": "kind", "values": ["real"]}]},
    },
    {
        "id": "broken",
        "type": "process",
        "process": {
            "command": ["sh", "-c", "echo broken >&2; exit 3"],
            "restart": {"policy": "on-failure", "max_retries": 1, "delay": "50ms"},
        },
        "placement": {"constraints": [{"key": "kind", "values": ["real"]}]},
    },
    {
        "id": "box",
        "revision": "7",
        "type": "container",
        "container": {
            "image": "registry.example/box:7",
            "command": ["serve", "--all"],
            "env": {"MODE": "quiet"},
            "ports": [{"container_port": 80, "host_port": 8081}],
            "volumes": [{"host_path": "/srv/box", "container_path": "/data", "read_only": True}],
            "restart_policy": "unless-stopped",
        },
        "resources": {"cpu_millicores": 200, "memory_mb": 128},
    },
    {
        "id": "stack",
        "type": "compose",
        "compose": {"inline_yaml": "services:\n  a:\n    image: registry.example/a\n", "env": {"TAG": "1"}},
    },
    {
        "id": "machine",
        "type": "vm",
        "vm": {
            "vcpus": 2,
            "memory_mb": 1024,
            "disks": [{"pool_name": "fast", "size_gb": 10, "mount_point": "/"}],
            "networks": [{"bridge": "br0", "dhcp": True}],
            "cloud_init": {"user_data": "#cloud-config\n"},
            "os_image": "debian-12.qcow2",
        },
    },
    {
        "id": "paused",
        "type": "process",
        "process": {"command": ["sleep", "1"]},
        "placement": {"constraints": [{"key": "zone", "values": ["a"]}]},
    },
    {"id": "left", "type": "process", "process": {"command": ["sleep", "1"]}},
    {
        "id": "homeless",
        "type": "process",
        "process": {"command": ["sleep", "1"]},
        "placement": {"constraints": [{"key": "kind", "values": ["none-such"]}]},
    },
)
GROUP: dict[str, Any] = {
    "kind": "group",
    "id": "pair",
    "members": [
        {
            "id": f"pair-{number}",
            "type": "process",
            "process": {"command": ["sleep", "3600"]},
            "placement": {"constraints": [{"key": "zone", "values": ["a"]}]},
            "labels": {"app": "pair"},
        }
        for number in range(2)
    ],
}


SERVICE: dict[str, Any] = {
    "count": 2,
    "update": {"settle": "0s"},
    "workload": {
        "type": "process",
        "process": {"command": ["sleep", "3600"]},
        "placement": {"constraints": [{"key": "zone", "values": ["a"]}]},
    },
}


# ---------------------------------------------------------------------------------------------------------
# What goes over the wire


@dataclass(slots=True)
class Messages:
    """The messages of every method, in both directions."""

    seen: dict[str, list[tuple[str, Message]]] = field(default_factory=dict)

    def note(self, method: Method[Any, Any], side: str, message: Message) -> None:
        """Keep a message: the first ones, and the newest."""
        kept = self.seen.setdefault(f"{method.service}.{method.name}", [])
        copy = type(message)()
        copy.CopyFrom(message)
        kept.append((side, copy))
        if len(kept) > MESSAGES_KEPT:
            del kept[MESSAGES_KEPT // 2]

    def write(self, folder: Path) -> None:
        """One file for each method, one message a line: its bytes, and what they mean."""
        folder.mkdir(parents=True)
        for name, messages in self.seen.items():
            lines = [
                {
                    "side": side,
                    "message": message.DESCRIPTOR.full_name,
                    "bytes": message.SerializeToString(deterministic=True).hex(),
                    "means": meaning(message),
                }
                for side, message in messages
            ]
            text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
            (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


class _RecordingChannel:
    def __init__(self, channel: Channel, messages: Messages) -> None:
        self._channel = channel
        self._messages = messages

    @property
    def address(self) -> str:
        return self._channel.address

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float = 10.0,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        self._messages.note(method, "request", request)
        answer = await self._channel.call(method, request, timeout=timeout, metadata=metadata)
        self._messages.note(method, "response", answer)
        return answer

    async def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        self._messages.note(method, "request", request)
        async for answer in self._channel.stream(method, request, timeout=timeout, metadata=metadata):
            self._messages.note(method, "response", answer)
            yield answer

    async def converse(
        self,
        method: Method[Request, Response],
        requests: AsyncIterator[Request],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        async def noted() -> AsyncIterator[Request]:
            async for request in requests:
                self._messages.note(method, "request", request)
                yield request

        async for answer in self._channel.converse(method, noted(), metadata=metadata):
            self._messages.note(method, "response", answer)
            yield answer

    async def close(self) -> None:
        await self._channel.close()


class RecordingTransport:
    """gRPC, with a note of every message that is sent and received by those who call."""

    def __init__(self, messages: Messages) -> None:
        self._transport = GrpcTransport()
        self._messages = messages
        self.identity = self._transport.identity

    def credentials_version(self) -> int:
        """As it is without certificates."""
        return self._transport.credentials_version()

    def connect(self, address: str, **options: Any) -> Channel:
        """A channel that is listened to."""
        return _RecordingChannel(self._transport.connect(address, **options), self._messages)

    async def diagnose(self, address: str, *, peer: Peer | None = None) -> Diagnosis | None:
        """As without the notes."""
        return await self._transport.diagnose(address, peer=peer)

    async def serve(
        self, address: str, services: Sequence[Service], *, check_caller: CheckCaller | None = None
    ) -> Server:
        """A server as always."""
        return await self._transport.serve(address, services, check_caller=check_caller)


# ---------------------------------------------------------------------------------------------------------
# A small fleet, and its life


@dataclass(slots=True)
class SmallFleet:
    """A control plane with one real agent and two hollow nodes, in this process."""

    folder: Path
    database: str
    messages: Messages

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Client, HollowFleet]]:
        """Everything, registered and ready."""
        transport = RecordingTransport(self.messages)
        plane = ControlPlaneServer(
            ControlSettings(
                data_dir=str(self.folder / "control"),
                grpc_port=0,
                insecure=True,
                database=self.database,
                cluster_id="golden",
                heartbeat_interval=timedelta(milliseconds=300),
                lease=timedelta(seconds=2),
            ),
            transport=transport,
            engines=Engines({"service": ServiceEngine()}),
        )
        await plane.start(http=False)
        agent = Agent(
            AgentSettings(
                data_dir=str(self.folder / "agent"),
                control=(plane.address,),
                insecure=True,
                node_id=REAL_NODE,
                grpc_port=0,
                cpu=4.0,
                memory="4GB",
                slots=4,
                labels={"kind": "real"},
                cluster_id="golden",
                host_id="host-of-real",
                stop_workloads_on_exit=True,
                runtimes=("process",),
            ),
            transport=transport,
        )
        await agent.start()
        hollow = HollowFleet(transport, plane.address)
        await hollow.start()
        kinds = ("process", "container", "compose", "vm")
        labels = {"kind": "hollow", "zone": "a"}
        hollow.add(HollowNode("hollow", workload_types=kinds, labels=labels, slots=8, storage_pools={"fast": 100}))
        hollow.add(HollowNode("lost", labels={"kind": "hollow", "zone": "b"}, host_id="elsewhere"))
        try:
            async with Client([plane.address], transport) as client:
                await until(lambda: _ready_nodes(client, 3))
                yield client, hollow
                await call_the_agent(transport.connect(agent.address))
        finally:
            # The control plane first: what the stopping agent reports is not part of the picture.
            await hollow.stop()
            await plane.stop()
            await agent.stop()


async def live(client: Client, hollow: HollowFleet) -> None:
    """Whatever happens to workloads, nodes and groups."""
    for given in WORKLOADS:
        document = read_document(given)
        assert isinstance(document, WorkloadDocument)
        if document.id == "left":
            continue
        await client.apply(document)
    group = read_document(GROUP)
    assert isinstance(group, GroupDocument)
    await client.plan([read_workload({**WORKLOADS[0], "id": "planned"})])
    await client.apply_group(group)
    for name in ("web", "single", "box", "stack", "machine", "paused", "pair-0", "pair-1"):
        await until(lambda name=name: _has_status(client, name, "Running"))  # type: ignore[misc]
    await until(lambda: _has_status(client, "once", "Completed"))
    await until(lambda: _has_status(client, "broken", "Failed"))
    await until(lambda: _has_status(client, "homeless", "Pending"))
    await client.retry("broken")
    await client.set_desired_state("paused", DesiredState.STOPPED)
    await until(lambda: _has_status(client, "paused", "Stopped"))
    await client.apply(read_workload({**WORKLOADS[0], "revision": "v2"}), expected_revision="v1")
    await until(lambda: _has_status(client, "web", "Running"))
    async for _piece in client.logs("once"):
        pass
    # A copy of a deleted workload stays on a node that is lost: the store keeps its tombstone.
    placement = {"constraints": [{"key": "node_id", "values": ["lost"]}]}
    await client.apply(read_workload({**_named("left"), "placement": placement}))
    await until(lambda: _has_status(client, "left", "Running"))
    hollow.kill("lost")
    await client.delete("left")
    await until(lambda: _node_is(client, "lost", "NotReady"))
    await client.apply(read_workload({**_named("paused"), "id": "gone"}))
    await until(lambda: _has_status(client, "gone", "Running"))
    await client.delete("gone")
    await until(lambda: _is_gone(client, "gone"))
    # Left alone it would be tried again some time, and the picture would not be what is in the dump.
    await client.set_desired_state("broken", DesiredState.STOPPED)
    await until(lambda: _has_status(client, "broken", "Stopped"))
    await client.submit_job("service", json.dumps(SERVICE).encode(), job_id="shop", client_key="recorded")
    await client.wait_for_job("shop", lambda job: job.state is JobState.RUNNING, timeout=60)
    await client.summary()
    await client.list_events(limit=5, newest=True)
    async with contextlib.aclosing(client.watch_events(after=0)) as events:
        async for _event in events:
            break


async def call_the_agent(channel: Channel) -> None:
    """The calls that only foreign schedulers make."""
    await channel.call(AgentService.HEALTH_CHECK, agent_pb2.HealthCheckRequest())
    await channel.call(AgentService.LIST_WORKLOADS, agent_pb2.ListWorkloadsRequest())
    await channel.call(AgentService.GET_WORKLOAD_STATUS, agent_pb2.GetWorkloadStatusRequest(id="web"))
    await channel.call(AgentService.LIST_ACTIONS, agent_pb2.ListActionsRequest(limit=3, newest_first=True))
    await channel.close()


async def picture(client: Client) -> dict[str, Any]:
    """What a client reads, without what changes by itself."""
    workloads = await client.list_workloads()
    events = await client.list_events(limit=1000)
    return {
        "nodes": {
            node.node_id: {
                "labels": dict(node.labels),
                "host_id": node.host_id,
                "cpu_millicores": node.total.cpu_millicores,
                "memory_mb": node.total.memory_mb,
                "slots": node.total.slots,
                "types": sorted(node.supported_workload_types),
            }
            for node in await client.list_nodes()
        },
        "workloads": {
            view.workload_id: {
                "type": view.type,
                "desired_state": view.desired_state,
                "revision": view.revision_id,
                "generation": view.generation,
                "node": view.assigned_node_id,
                "group": view.group_id,
                "spec": meaning(workload_view_to_proto(view).spec),
            }
            for view in workloads
        },
        "groups": {
            group.group_id: {
                "generation": group.generation,
                "members": sorted(member.workload_id for member in group.members),
            }
            for group in await client.list_groups()
        },
        "jobs": {
            job.job_id: {
                "engine": job.engine,
                "format": job.format,
                "desired": job.desired.value,
                "spec": job.spec.decode(),
                "workloads": list(job.workloads),
                "taken": job.taken,
            }
            for job in [await client.get_job(each.job_id) for each in await client.list_jobs()]
        },
        "events": [[event.cursor, event.kind, event.subject_id] for event in events.events],
    }


async def record(folder: Path, *, database: str, messages: Messages) -> dict[str, Any]:
    """Run the fleet once and return what a client saw at its end."""
    async with SmallFleet(folder, database, messages).running() as (client, hollow):
        await live(client, hollow)
        return await picture(client)


async def until(holds: Callable[[], Awaitable[bool]], *, seconds: float = 60.0) -> None:
    """Wait for something that takes a moment."""
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(ShoalError):
                if await holds():
                    return
            await asyncio.sleep(0.05)


def read_workload(given: dict[str, Any]) -> WorkloadDocument:
    """A workload as a document."""
    document = read_document(given)
    assert isinstance(document, WorkloadDocument)
    return document


def _named(name: str) -> dict[str, Any]:
    return next(each for each in WORKLOADS if each["id"] == name)


async def _ready_nodes(client: Client, count: int) -> bool:
    return len(await client.list_nodes(status="Ready")) == count


async def _has_status(client: Client, name: str, status: str) -> bool:
    view = await client.get_workload(name)
    return view.status == status and view.observed_revision_id in ("", view.revision_id)


async def _node_is(client: Client, name: str, status: str) -> bool:
    return (await client.get_node(name)).status == status


async def _is_gone(client: Client, name: str) -> bool:
    return all(view.workload_id != name for view in await client.list_workloads())


# ---------------------------------------------------------------------------------------------------------
# Dumps


def dump_sqlite(path: Path) -> str:
    """A SQLite file as SQL statements."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        return "\n".join([*connection.iterdump(), f"PRAGMA user_version={version};", ""])


def dump_postgres(url: str) -> str:
    """The schema `shoal` of a PostgreSQL database, in the same form."""
    command = [_pg_dump(), "--inserts", "--no-owner", "--no-privileges", "--schema=shoal", f"--dbname={url}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return "\n".join(_plain_lines(text.splitlines())) + "\n"


def _pg_dump() -> str:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"), key=lambda path: float(path.parts[-3]))
    found = str(debian[-1]) if debian else shutil.which("pg_dump")
    if found is None:
        raise SystemExit("pg_dump is missing; on Debian: apt-get install postgresql")
    return found


def _plain_lines(lines: Sequence[str]) -> Iterator[str]:
    """Without remarks, without words for psql, and without settings that only newer servers know."""
    for line in lines:
        if line and not line.startswith(("--", "\\", "SET transaction_timeout")):
            yield line


def contract() -> str:
    """Every message and service as this version knows them."""
    found = [found.name for found in pkgutil.walk_packages(pb.__path__, f"{pb.__name__}.")]
    waiting = [importlib.import_module(name).DESCRIPTOR for name in sorted(found) if name.endswith("_pb2")]
    files = descriptor_pb2.FileDescriptorSet()
    while waiting:  # a file comes after those that it imports
        names = {file.name for file in waiting}
        ready = [file for file in waiting if names.isdisjoint(each.name for each in file.dependencies)]
        for file in ready:
            file.CopyToProto(files.file.add())
        waiting = [file for file in waiting if file not in ready]
    return text_format.MessageToString(files)


def pack_program(target: Path) -> None:
    """The package without what only tests need, as an archive that is the same for the same files."""
    package = Path(shoal.__file__).parent
    files = sorted(path for path in package.rglob("*") if path.is_file() and _is_program(path.relative_to(package)))
    with tarfile.open(target, "w:xz") as archive:
        for path in files:
            entry = tarfile.TarInfo(f"shoal/{path.relative_to(package)}")
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(entry, content)


def unpack_program(archive: Path, target: Path) -> Path:
    """What `pack_program` packed, as a folder that PYTHONPATH may name."""
    with tarfile.open(archive) as packed:
        # Older maintenance releases of Python 3.11 do not know filters, newer Pythons want one.
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        packed.extractall(target, **safely)
    return target


async def record_calls(folder: Path) -> None:
    """Take the program of a recorded version through every call, and write down how it went."""
    with tempfile.TemporaryDirectory(prefix="shoal-calls-") as scratch:
        program = unpack_program(folder / "program.tar.xz", Path(scratch) / "program")
        async with Place(Path(scratch) / "place", program=program).running() as place:
            played = await Player(place).play(every_call())
    write_steps(folder / CALLS_FILE, [each.step for each in played])


def _is_program(path: Path) -> bool:
    return path.parts[0] != "testing" and "__pycache__" not in path.parts and path.suffix in (".py", ".sql")


def format_number() -> int:
    """The number of this version's format."""
    return len(find_migrations("sqlite"))


def write(folder: Path, postgres: str) -> None:
    """Record everything into a folder that does not exist yet."""
    messages = Messages()
    with tempfile.TemporaryDirectory(prefix="shoal-record-") as scratch:
        base = Path(scratch)
        embedded = asyncio.run(record(base / "embedded", database="", messages=messages))
        shared = asyncio.run(record(base / "shared", database=postgres, messages=Messages()))
        folder.mkdir(parents=True)
        versions = {
            "format": format_number(),
            "documents": DOCUMENTS,
            "agent_schema": AGENT_SCHEMA,
            "program": shoal.__version__,
        }
        texts = {
            "version.json": _json(versions),
            "control.sqlite.sql": dump_sqlite(base / "embedded" / "control" / CONTROL_FILE),
            "control.sqlite.json": _json(embedded),
            "control.postgresql.sql": dump_postgres(postgres),
            "control.postgresql.json": _json(shared),
            "agent.sqlite.sql": dump_sqlite(base / "embedded" / "agent" / AGENT_FILE),
            "contract.textproto": contract(),
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        messages.write(folder / "messages")
        pack_program(folder / "program.tar.xz")
    asyncio.run(record_calls(folder))


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Record the current version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--postgres", metavar="URL", help="record everything; with an empty PostgreSQL database")
    task.add_argument("--calls", action="store_true", help="record only the calls again, with the recorded program")
    parser.add_argument("--into", type=Path, metavar="DIR", help=f"instead of {VERSIONS.relative_to(ROOT)}/<format>")
    parser.add_argument("--again", action="store_true", help="replace what was recorded before")
    options = parser.parse_args()
    folder: Path = options.into or VERSIONS / str(format_number())
    if options.calls:
        if not (folder / "program.tar.xz").exists():
            raise SystemExit(f"{folder} has no program to call; record everything with --postgres first")
        asyncio.run(record_calls(folder))
        print(folder / CALLS_FILE)
        return
    if folder.exists():
        if not options.again:
            raise SystemExit(f"{folder} is there already; what was recorded stays, unless --again is given")
        shutil.rmtree(folder)
    write(folder, options.postgres)
    print(folder)


if __name__ == "__main__":
    main()
