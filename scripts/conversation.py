"""A conversation with a small fleet over gRPC and certificates: played, written down, and played again.

`Place` runs a real control plane and a real agent as processes, of this program or of one that was archived. `Player`
takes them through steps (`scripts/every_call.py` has those that touch every RPC) and keeps what was sent and answered.
`write_steps` and `read_steps` are the file `calls.jsonl` of a recorded version, one step a line, in order.

What differs from one run to the next by itself (times, process ids, ports, certificates) is made the same before it is
written, so that a recording that is made again differs by what has changed. What a later request takes from an earlier
answer, such as a session or a join token, is written as its name in braces: a player puts in what it was given.

Called by `scripts/record_version.py` and by `tests/integration/control/test_recorded_versions.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from shoal.cli.local.children import Child
from shoal.core.clock import SystemClock
from shoal.core.errors import ShoalError
from shoal.model.identity import CONTROL_PLANE, Identity, Peer, Role, workload_identity
from shoal.runtimes.process import find_run_pids, read_keeper_pid, remove_stray_groups
from shoal.wire.methods import (
    TERM_HEADER,
    AgentControl,
    AgentExec,
    AgentService,
    Artifacts,
    Coordination,
    Credentials,
    Enrollment,
    Jobs,
    Secrets,
    WorkloadExec,
    methods_of,
)
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as enrollment
from shoal.wire.pb.shoal.v1 import jobs_pb2 as jobs
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.status import Code, status_of
from shoal.wire.transport import Cardinality, Channel, Method
from shoal.wire.trust.authority import Pair, issue, make_authority
from shoal.wire.trust.credentials import CA_FILE, CA_KEY_FILE, CredentialPaths, write_authority, write_credentials
from shoal.wire.trust.security import AnonymousTls, MutualTls

FILE_NAME = "calls.jsonl"
CLUSTER = "golden"
#: The node whose agent is a process.
REAL_NODE = "real"
#: The node that the player is: it joins, registers, sends heartbeats, and answers calls of the control plane.
GUEST_NODE = "guest"

METHODS: Mapping[str, Method[Any, Any]] = {
    f"{method.service}.{method.name}": method
    for service in (
        AgentControl,
        AgentService,
        Enrollment,
        Credentials,
        Secrets,
        WorkloadExec,
        AgentExec,
        Coordination,
        Jobs,
        Artifacts,
    )
    for method in methods_of(service)
}

#: A key that is worth nothing: everybody can read it here. The same one each time, so that requests are the same.
GUEST_KEY = ec.derive_private_key(20261115, ec.SECP256R1())

_PATIENCE = 60.0
_LOOK_EVERY = 0.05


def full_name(method: Method[Any, Any]) -> str:
    """A method as recordings name it."""
    return f"{method.service}.{method.name}"


# ---------------------------------------------------------------------------------------------------------
# Steps


@dataclass(frozen=True, slots=True)
class Step:
    """One step, and its result.

    Attributes:
        kind: call; begin and finish, a call that others answer meanwhile; open, send, take or close of a stream; wait.
        by: who does it: operator, control, guest, workload (of job shop), or nobody, who has no certificate.
        method: of a call, or of the stream.
        request: what is sent.
        replies: what was answered; of a `take` the message that was taken.
        status: how a call ended, as gRPC names it; of a step that is yet to be played, how it has to end.
        pieces: how many pieces of a streamed answer are read before the call is ended; 0: to its end.
        awaited: of a wait: what, of which, is what. Of a `take`: the kind of message, and of a call its method.
    """

    kind: str
    by: str = "operator"
    method: str = ""
    request: Message | None = None
    replies: tuple[Message, ...] = ()
    status: str = "OK"
    pieces: int = 0
    awaited: tuple[str, ...] = ()


def write_steps(path: Path, steps: Iterable[Step]) -> None:
    """Write a conversation, one step a line."""
    path.write_text("".join(json.dumps(_to_json(step), sort_keys=True) + "\n" for step in steps), encoding="utf-8")


def read_steps(path: Path) -> tuple[Step, ...]:
    """Read a conversation with the classes of this program."""
    return tuple(_from_json(given) for given in read_lines(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The same as it is written."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _to_json(step: Step) -> dict[str, Any]:
    line: dict[str, Any] = {"kind": step.kind, "by": step.by}
    if step.method:
        line["method"] = step.method
    if step.request is not None:
        line["request"] = _message_to_json(step.request)
    if step.kind in ("call", "finish", "take"):
        line["replies"] = [_message_to_json(reply) for reply in step.replies]
    if step.kind in ("call", "finish"):
        line["status"] = step.status
    if step.pieces:
        line["pieces"] = step.pieces
    if step.awaited:
        line["awaited"] = list(step.awaited)
    return line


def _message_to_json(message: Message) -> dict[str, Any]:
    return {
        "message": message.DESCRIPTOR.full_name,
        "bytes": message.SerializeToString(deterministic=True).hex(),
        "means": meaning(message),
    }


def _from_json(line: Mapping[str, Any]) -> Step:
    method = METHODS.get(line.get("method", ""))
    request = line.get("request")
    replies = line.get("replies", [])
    return Step(
        kind=line["kind"],
        by=line["by"],
        method=line.get("method", ""),
        request=_parsed(method.request, request) if method is not None and request is not None else None,
        replies=tuple(_parsed(method.response, reply) for reply in replies) if method is not None else (),
        status=line.get("status", "OK"),
        pieces=line.get("pieces", 0),
        awaited=tuple(line.get("awaited", ())),
    )


def _parsed(cls: type[Message], given: Mapping[str, Any]) -> Message:
    return cls.FromString(bytes.fromhex(given["bytes"]))


def meaning(message: Message) -> dict[str, Any]:
    """A message as plain values, by the names of its fields."""
    means: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return means


# ---------------------------------------------------------------------------------------------------------
# What is not the same twice

#: Numbers that time, the machine or chance decide.
_CHANGING = frozenset(
    {
        "available_disk_gb", "clock_skew_ms", "cpu_used_millicores", "cpu_utilization", "created_at", "cursor",
        "disk_used_gb", "disk_utilization", "ended_at", "ended_at_ms", "memory_used_mb",
        "memory_utilization", "next", "next_beat", "next_restart_at_ms", "oldest", "pid", "started_at", "started_at_ms",
        "term", "total_disk_gb", "total_gb", "updated_at",
    }
)  # fmt: skip
#: More of the sort, where it is sent at all: an older program may not know of it.
_CHANGING_IF_SET: Mapping[str, Any] = {
    "task_id": "{task_id}",
    "certificate": b"{certificate}",
    "ca": b"{ca}",
    "progress": b"{progress}",
    "transition": 1,
    "join_port": 1,
}
_CHANGING_METADATA: Mapping[str, str] = {TERM_HEADER: "1", "task_id": "{task_id}"}
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
#: What an agent has measured so far is a matter of moments.
_MOMENTARY = frozenset({"persys.control.v1.WorkloadUsageSnapshot", "persys.agent.v1.WorkloadUsageSnapshot"})
_TIME = 1_767_225_600  # the first of January 2026


@dataclass(slots=True)
class Names:
    """What later requests take from earlier answers, by name."""

    values: dict[str, str] = field(default_factory=dict)

    def learn(self, reply: Message) -> None:
        """Take in what an answer gave."""
        if isinstance(reply, control.ControlMessage) and reply.HasField("register_reply"):
            reply = reply.register_reply
        if isinstance(reply, control.RegisterNodeResponse) and reply.session:
            self._add("session", reply.session)
        elif isinstance(reply, enrollment.CreateJoinTokenResponse):
            self._add("token", reply.token)
            self._add("token_id", reply.view.token_id)

    def _add(self, kind: str, value: str) -> None:
        number = 1 + sum(name.startswith(f"{{{kind}.") for name in self.values)
        self.values[f"{{{kind}.{number}}}"] = value

    def fill(self, message: Message) -> Message:
        """The message with values in place of names."""
        return _changed(message, self._with_values)

    def settle(self, message: Message) -> Message:
        """The message with names in place of values, and without what is not the same twice."""
        settled = _changed(message, self._with_names)
        _settle(settled)
        return settled

    def _with_values(self, text: str) -> str:
        for name, value in self.values.items():
            text = text.replace(name, value)
        return text

    def _with_names(self, text: str) -> str:
        # The longest first: a token has its id within it.
        for name, value in sorted(self.values.items(), key=lambda item: -len(item[1])):
            text = text.replace(value, name)
        return _ADDRESS.sub("127.0.0.1:1", text)


def _changed(message: Message, change: Any) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    for owner, each in list(_fields(copy)):
        value = getattr(owner, each.name)
        if each.message_type is not None and each.message_type.GetOptions().map_entry:
            if each.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
                for key in value:
                    value[key] = change(value[key])
        elif each.type != FieldDescriptor.TYPE_STRING:
            continue
        elif each.is_repeated:
            value[:] = [change(text) for text in value]
        else:
            setattr(owner, each.name, change(value))
    return copy


def _fields(message: Message) -> Iterator[tuple[Any, FieldDescriptor]]:
    """Every field that is set, at any depth, with the message that it is a field of; maps as a whole."""
    for each, value in message.ListFields():
        yield message, each
        kind = each.message_type
        if kind is not None and not kind.GetOptions().map_entry:
            for part in list(value) if each.is_repeated else [value]:
                yield from _fields(part)


def _settle(message: Any) -> None:
    for each in message.DESCRIPTOR.fields:
        kind = each.message_type
        if kind is None:
            _settle_value(message, each.name)
        elif kind.GetOptions().map_entry:
            _settle_map(each.name, getattr(message, each.name))
        elif kind.full_name in _MOMENTARY:
            message.ClearField(each.name)
        elif each.is_repeated:
            for part in getattr(message, each.name):
                _settle_part(part)
        elif message.HasField(each.name):
            _settle_part(getattr(message, each.name))


def _settle_part(part: Any) -> None:
    if part.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        part.seconds, part.nanos = _TIME, 0
    else:
        _settle(part)


def _settle_value(message: Any, name: str) -> None:
    value = getattr(message, name)
    if name in _CHANGING:
        setattr(message, name, 1)  # also where it is 0 this time
    elif name in _CHANGING_IF_SET and value:
        setattr(message, name, _CHANGING_IF_SET[name])
    elif value and (name == "message_id" or (name == "in_reply_to" and message.HasField("call"))):
        setattr(message, name, 1)  # callers count their calls, retries included
    elif name == "session" and value and not value.startswith("{"):
        message.session = "{session}"  # of the agent, or a part of one: nobody asks with it


def _settle_map(name: str, values: Any) -> None:
    for key in list(values):
        if name == "metadata" and key in _CHANGING_METADATA:
            values[key] = _CHANGING_METADATA[key]
        elif name == "runtime_status" and key != "process":
            del values[key]  # another machine has other runtimes
        elif name == "ports":
            values[key] = 1


# ---------------------------------------------------------------------------------------------------------
# Where it is played


class Place:
    """A control plane and an agent, as processes with certificates, in one folder.

    Args:
        folder: for everything; new.
        program: where a package `shoal` lies that is to be run instead of this one.
    """

    def __init__(self, folder: Path, *, program: Path | None = None) -> None:
        self._folder = folder
        self._program = program
        self._clock = SystemClock()
        self._authority = make_authority(CLUSTER, now=self._clock.wall())
        self._children: dict[str, Child] = {}
        self._channels: dict[tuple[str, str], Channel] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Place]:
        """Everything, from serving to its end."""
        authority = self._folder / "authority"
        write_authority(authority, self._authority)
        for role, name in ((Role.CONTROL, "control"), (Role.OPERATOR, "operator"), (Role.AGENT, REAL_NODE)):
            pair = issue(self._authority, Identity(role, CLUSTER, name), now=self._clock.wall())
            write_credentials(self._credentials(name), ca=self._authority.pem, pair=pair)
        own = issue(self._authority, workload_identity(CLUSTER, job="shop", node=REAL_NODE), now=self._clock.wall())
        write_credentials(self._credentials("workload"), ca=self._authority.pem, pair=own)
        try:
            key = ["--ca-key", str(authority / CA_KEY_FILE), "--join-port", "0"]
            # The lease is longer than anything here takes: the guest sends heartbeats when a step says so.
            heartbeats = ["--heartbeat-interval", "300ms", "--lease", "10m"]
            ports = ["--grpc-host", "127.0.0.1", "--grpc-port", "0"]
            await self._start("control", ["control", *ports, "--http-port", "0", *key, *heartbeats])
            room = ["--cpu", "4", "--memory", "4GB", "--disk-gb", "10", "--slots", "4", "--host-id", "host-of-real"]
            where = ["--control", self._children["control"].ready["grpc"], "--node-id", REAL_NODE]
            await self._start(REAL_NODE, ["agent", *ports, *where, *room, "--stop-workloads-on-exit"])
            yield self
        finally:
            await self._end()

    def channel(self, by: str, service: str) -> Channel:
        """The channel of a caller to the server of a method."""
        known = self._channels.get((by, service))
        if known is None:
            known = self._channels[by, service] = self._connect(by, service)
        return known

    def take_in(self, joined: enrollment.JoinResponse) -> None:
        """The guest has joined: from now on it has a certificate."""
        key = GUEST_KEY.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_credentials(self._credentials(GUEST_NODE), ca=joined.ca, pair=Pair(joined.certificate, key))

    def _connect(self, by: str, service: str) -> Channel:
        ready = self._children["control"].ready
        if service == Enrollment.NAME:
            door = AnonymousTls((self._folder / "authority" / CA_FILE).read_bytes(), CONTROL_PLANE.server_name(CLUSTER))
            return GrpcTransport(security=door).connect(ready["join"])
        files = CredentialPaths.within(self._credentials(by))
        transport = GrpcTransport(security=MutualTls(files.ca, files.cert, files.key))
        if service in (AgentService.NAME, AgentExec.NAME):
            address = self._children[REAL_NODE].ready["grpc"]
            return transport.connect(address, peer=Peer(Role.AGENT, REAL_NODE))
        return transport.connect(ready["grpc"], peer=CONTROL_PLANE)

    def _credentials(self, name: str) -> Path:
        return self._folder / "credentials" / name

    async def _start(self, name: str, arguments: Sequence[str]) -> None:
        own = ("SHOAL_", "PERSYS_", "GRPC_PORT", "METRICS_PORT", "OTEL_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(own)}
        # Whatever engines the machine has: what is recorded is the same everywhere.
        env["SHOAL_AGENT_RUNTIMES"] = "process"
        if self._program is not None:
            env["PYTHONPATH"] = str(self._program)
        files = CredentialPaths.within(self._credentials(name))
        proof = ["--ca", str(files.ca), "--cert", str(files.cert), "--key", str(files.key)]
        data = ["--data-dir", str(self._data_dir(name))]
        child = await Child.start(name, [*arguments, *proof, *data], self._folder / name, env)
        self._children[name] = child
        await child.wait_serving(self._clock)

    def _data_dir(self, name: str) -> Path:
        return self._folder / name / "data"

    async def _end(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        for child in reversed(self._children.values()):
            await child.end(signal.SIGTERM, within=30.0)
        data = self._data_dir(REAL_NODE)
        # The keeper waits a while for the next agent; there is none.
        for _ in range(100):
            pids = [*filter(None, [read_keeper_pid(data)]), *find_run_pids(data)]
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self._clock.sleep(_LOOK_EVERY)
        remove_stray_groups(data)


# ---------------------------------------------------------------------------------------------------------
# Playing


@dataclass(slots=True)
class Played:
    """A step as it went: the words on the wire, and the step to be written down."""

    given: Step
    #: As it is recorded: names in place of values, nothing that is not the same twice.
    step: Step
    #: As they were on the wire.
    sent: tuple[Message, ...] = ()
    answered: tuple[Message, ...] = ()


class _Stream:
    """One stream that is open, with what is sent into it."""

    def __init__(self, channel: Channel) -> None:
        self._out: asyncio.Queue[control.ControlMessage | None] = asyncio.Queue()
        self._answers = channel.converse(AgentControl.CONTROL_STREAM, self._outgoing())
        #: The call of the control plane that is to be answered next.
        self.asked = control.ControlMessage()

    async def _outgoing(self) -> AsyncGenerator[control.ControlMessage, None]:
        while (message := await self._out.get()) is not None:
            yield message

    def send(self, message: control.ControlMessage) -> None:
        self._out.put_nowait(message)

    async def take(self, kind: str, method: str = "") -> control.ControlMessage:
        """The next message of a kind. A call that was made once more, because its answer came late, is passed over."""
        async for message in self._answers:
            if message.WhichOneof("message") == kind and _asks_for(message.call) == method:
                if message.call.method:
                    self.asked = message
                return message
        raise AssertionError(f"the stream ended, and no {kind} {method} had come")

    async def close(self) -> None:
        self._out.put_nowait(None)
        async for _message in self._answers:
            pass


async def _only(request: Message) -> AsyncGenerator[Message, None]:
    """A stream of requests with one in it."""
    yield request


def _asks_for(call: control.CallRequest) -> str:
    """The method that is called; of what is said about a call under way, what that is."""
    return call.method or ("cancel" if call.cancel else "credit" if call.credit else "")


class Player:
    """Takes a place through steps."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._names = Names()
        self._clock = SystemClock()
        self._streams: dict[str, _Stream] = {}
        self._begun: dict[str, asyncio.Task[tuple[str, tuple[Message, ...]]]] = {}

    async def play(self, steps: Iterable[Step]) -> list[Played]:
        """Play every step. Raises `AssertionError` at the first that does not go as it has to."""
        played = []
        for number, step in enumerate(steps, 1):
            what = f"step {number}: {step.kind} {step.method} {' '.join(step.awaited)} by {step.by}"
            try:
                async with asyncio.timeout(_PATIENCE):
                    played.append(await self._do(step))
            except TimeoutError:
                raise AssertionError(f"{what}: no result within {_PATIENCE:g} s") from None
            ended = played[-1].step.status
            if ended != step.status:
                raise AssertionError(f"{what}: ended with {ended} instead of {step.status}: {played[-1].answered}")
        return played

    async def _do(self, step: Step) -> Played:
        sent = [self._filled(step)] if step.request is not None else []
        answered: tuple[Message, ...] = ()
        status = step.status
        if step.kind == "call":
            status, answered = await self._call(step, sent[0])
        elif step.kind == "begin":
            self._begun[step.method] = asyncio.create_task(self._call(step, sent[0]))
        elif step.kind == "finish":
            status, answered = await self._begun.pop(step.method)
        elif step.kind == "open":
            self._streams[step.by] = _Stream(self._place.channel(step.by, AgentControl.NAME))
        elif step.kind == "send":
            (message,) = sent
            assert isinstance(message, control.ControlMessage)
            self._streams[step.by].send(message)
        elif step.kind == "take":
            answered = (await self._streams[step.by].take(*step.awaited),)
        elif step.kind == "close":
            await self._streams.pop(step.by).close()
        elif step.kind == "wait":
            await self._wait(*step.awaited)
        else:
            raise AssertionError(f"{step.kind!r} is no kind of step")
        for reply in answered:
            self._names.learn(reply)
        settled = tuple(self._names.settle(reply) for reply in answered)
        recorded = replace(step, replies=settled, status=status)
        return Played(step, recorded, tuple(sent), answered)

    def _filled(self, step: Step) -> Message:
        assert step.request is not None
        message = self._names.fill(step.request)
        if isinstance(message, control.ControlMessage) and message.HasField("call_reply"):
            # An answer within an answer: it is filled by its own class, and belongs to the call that was taken.
            asked = self._streams[step.by].asked
            method = METHODS[f"{AgentService.NAME}.{asked.call.method}"]
            inner = method.response.FromString(message.call_reply.response)
            message.call_reply.response = self._names.fill(inner).SerializeToString(deterministic=True)
            message.in_reply_to = asked.message_id
        return message

    async def _call(self, step: Step, request: Message) -> tuple[str, tuple[Message, ...]]:
        method = METHODS[step.method]
        channel = self._place.channel(step.by, method.service)
        answered: list[Message] = []
        try:
            if method.cardinality is Cardinality.UNARY:
                answered.append(await channel.call(method, request, timeout=_PATIENCE))
            else:
                pieces = (
                    channel.stream(method, request)
                    if method.cardinality is Cardinality.SERVER_STREAM
                    else channel.converse(method, _only(request))
                )
                async with contextlib.aclosing(pieces) as stream:  # type: ignore[type-var]
                    async for piece in stream:
                        answered.append(piece)
                        if len(answered) == step.pieces:
                            break
        except ShoalError as error:
            return status_of(error).code.name, ()
        if method is Enrollment.JOIN:
            (joined,) = answered
            assert isinstance(joined, enrollment.JoinResponse)
            self._place.take_in(joined)
        return Code.OK.name, tuple(answered)

    async def _wait(self, what: str, name: str, wanted: str) -> None:
        while True:
            if await self._holds(what, name, wanted):
                return
            await self._clock.sleep(_LOOK_EVERY)

    async def _holds(self, what: str, name: str, wanted: str) -> bool:
        channel = self._place.channel("operator", AgentControl.NAME)
        if what == "workload":
            listed = await channel.call(AgentControl.LIST_WORKLOADS, control.ListWorkloadsRequest())
            found = [view for view in listed.workloads if view.workload_id == name]
            if not found:
                return wanted == "gone"
            return found[0].status == wanted and found[0].observed_revision_id in ("", found[0].revision_id)
        if what == "job":
            return await self._job_is(name, wanted)
        listed_nodes = await channel.call(AgentControl.LIST_NODES, control.ListNodesRequest())
        nodes = [node for node in listed_nodes.nodes if node.node_id == name]
        if not nodes:
            return False
        found_out = {"node": [nodes[0].status], "wish": [nodes[0].wish], "orphan": nodes[0].orphans}
        return wanted in found_out[what]

    async def _job_is(self, name: str, wanted: str) -> bool:
        """Whether a job has this state, and has taken in what was last asked of it."""
        channel = self._place.channel("operator", Jobs.NAME)
        view = (await channel.call(Jobs.GET, jobs.GetJobRequest(job_id=name))).job
        return view.state == wanted and view.taken_request == view.request.number
