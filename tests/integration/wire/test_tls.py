"""Certificates in use: files that are replaced while programs run, authorities that follow each other, and peers."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from datetime import timedelta

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, UnauthenticatedError, UnavailableError
from shoal.model.identity import CONTROL_PLANE, Identity, Peer, Role
from shoal.testing.certificates import Certificates
from shoal.testing.suites.parrot import ASK, CHAT, COUNT, SAY, WAIT, Parrot
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Service
from shoal.wire.trust import security
from shoal.wire.trust.authorization import RULES, Rule
from shoal.wire.trust.certificates import read_certificates
from shoal.wire.trust.security import MutualTls

pytestmark = pytest.mark.integration

METHODS = (SAY, WAIT, ASK, COUNT, CHAT)
EVERYONE = {**RULES, **{method.path: Rule(frozenset(Role)) for method in METHODS}}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Look at the files with each call, instead of every other second."""
    monkeypatch.setattr(security, "LOOK_EVERY", 0.0)


@pytest.fixture
def certificates(tmp_path):
    return Certificates(tmp_path / "blue", cluster="blue")


@contextlib.asynccontextmanager
async def serving(files, handlers=None, **options):
    transport = GrpcTransport(security=files, rules=EVERYONE, **options)
    server = await transport.serve("127.0.0.1:0", [Service(METHODS, handlers or Parrot())])
    try:
        yield server
    finally:
        await server.stop(grace=0)


@contextlib.asynccontextmanager
async def connected(files, address, peer=None, **options):
    channel = GrpcTransport(security=files, **options).connect(address, peer=peer)
    try:
        yield channel
    finally:
        await channel.close()


async def say(channel, word="hello"):
    return (await channel.call(SAY, StringValue(value=word), timeout=30)).value


async def shown_by(address, files):
    """The certificate that a server shows to a new connection, by its serial number."""
    context = ssl.create_default_context(cafile=files.ca)
    context.check_hostname = False
    context.load_cert_chain(files.cert, files.key)
    context.set_alpn_protocols(["h2"])
    host, port = address.split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    (certificate,) = read_certificates(ssl.DER_cert_to_PEM_cert(found).encode())
    return certificate.serial_number


def serial_of(files: MutualTls) -> int:
    return read_certificates(files.cert.read_bytes())[0].serial_number


class Names(Parrot):
    """Says who calls; and whose certificate it was."""

    def __init__(self):
        super().__init__()
        self.peers = []

    async def say(self, request, call):
        self.peers.append(call.peer)
        return await super().say(request, call)


# ---------------------------------------------------------------------------------------------------------
# Replaced files


async def test_a_server_shows_its_new_certificate_without_a_restart(certificates):
    files, client = certificates.control(), certificates.operator()
    async with serving(files) as server, connected(client, server.address, CONTROL_PLANE) as old:
        assert await shown_by(server.address, client) == serial_of(files)
        assert await say(old) == "hello"
        before = serial_of(files)
        certificates.control()
        assert serial_of(files) != before
        assert await shown_by(server.address, client) == serial_of(files)
        assert await say(old) == "hello"


async def test_a_client_shows_its_new_certificate_without_a_restart(certificates):
    names = Names()
    async with (
        serving(certificates.control(), names) as server,
        connected(certificates.operator(), server.address, CONTROL_PLANE) as channel,
    ):
        for _ in range(3):
            await say(channel)
        certificates.operator()
        for _ in range(3):
            await say(channel)
    # One connection before, one after.
    first, second = names.peers[:3], names.peers[3:]
    assert len(set(first)) == len(set(second)) == 1
    assert set(first) != set(second)


async def test_a_call_under_way_is_not_disturbed_by_a_replacement(certificates):
    async with serving(certificates.control()) as server:
        channel = GrpcTransport(security=certificates.operator()).connect(server.address)
        said = asyncio.Queue()

        async def words():
            while (word := await said.get()) is not None:
                yield StringValue(value=word)

        chat = channel.converse(CHAT, words())
        await said.put("before")
        first = (await anext(chat)).value
        assert "before" in first
        for _ in range(3):
            certificates.operator()
            assert await say(channel) == "hello"
        # Those that carried nothing are gone; the one that carries the chat is still there.
        assert len(channel._retired) == 1
        await said.put("after")
        assert "after" in (await anext(chat)).value
        await said.put(None)
        assert [answer async for answer in chat] == []
        assert not channel._retired
        await channel.close()


async def test_closing_ends_also_what_older_connections_carry(certificates):
    parrot = Parrot()
    async with serving(certificates.control(), parrot) as server:
        channel = GrpcTransport(security=certificates.operator()).connect(server.address)
        waiting = asyncio.ensure_future(channel.call(WAIT, StringValue(), timeout=60))
        async with asyncio.timeout(30):
            while not parrot.waiting:
                await asyncio.sleep(0.01)
        certificates.operator()
        await say(channel)
        await channel.close()
        with pytest.raises(UnavailableError):
            await waiting
        with pytest.raises(UnavailableError):
            await say(channel)


async def test_files_that_are_replaced_badly_change_nothing(certificates):
    server_files, client = certificates.control(), certificates.operator()
    async with serving(server_files) as server, connected(client, server.address) as channel:
        before = serial_of(server_files)
        for files in (server_files, client):
            files.cert.write_text("half of a certifica")
        good = Certificates(certificates.directory.parent / "others", cluster="blue")
        good.authority, good.trusted = certificates.authority, certificates.trusted
        other = good.operator("other")
        assert await say(channel) == "hello"
        assert await shown_by(server.address, other) == before
        certificates.control()
        certificates.operator()
        assert await say(channel) == "hello"
        assert await shown_by(server.address, other) == serial_of(server_files)


async def test_a_channel_that_was_refused_works_once_its_files_are_good(certificates, tmp_path, monkeypatch):
    monkeypatch.setattr(security, "LOOK_EVERY", 3600.0)
    stranger = Certificates(tmp_path / "stranger", cluster="blue")
    files = stranger.issue(Identity(Role.OPERATOR, "blue", "ada"), trusted=certificates.trusted)
    async with serving(certificates.control()) as server, connected(files, server.address) as channel:
        with pytest.raises(UnavailableError):
            await say(channel)
        stranger.authority, stranger.trusted = certificates.authority, certificates.trusted
        stranger.issue(Identity(Role.OPERATOR, "blue", "ada"))
        # Nobody waits for the next look: a refusal is reason enough to take one.
        assert await say(channel) == "hello"


# ---------------------------------------------------------------------------------------------------------
# Authorities


async def test_an_authority_is_replaced_in_three_steps_while_everybody_talks(certificates):
    """Trust both; issue from the new one; trust the new one alone. At no moment is anyone refused."""
    server_files, client_files = certificates.control(), certificates.operator()
    async with serving(server_files) as server, connected(client_files, server.address, CONTROL_PLANE) as channel:
        old_trust = certificates.trusted
        assert await say(channel) == "hello"

        certificates.replace_authority(keep_old=True)
        for files in (server_files, client_files):
            files.ca.write_bytes(certificates.trusted)
        assert await say(channel) == "hello"

        certificates.operator()
        assert await say(channel) == "hello"
        certificates.control()
        assert await say(channel) == "hello"
        assert await shown_by(server.address, client_files) == serial_of(server_files)

        for files in (server_files, client_files):
            files.ca.write_bytes(certificates.authority.pem)
        assert await say(channel) == "hello"
        certificates.operator()
        assert await say(channel) == "hello"
        assert old_trust not in server_files.ca.read_bytes()


async def test_an_authority_that_is_no_longer_trusted_lets_nobody_in(certificates):
    server_files, client_files = certificates.control(), certificates.operator()
    async with serving(server_files) as server:
        async with connected(client_files, server.address) as channel:
            assert await say(channel) == "hello"
        certificates.replace_authority(keep_old=False)
        certificates.control()
        async with connected(client_files, server.address) as channel:
            with pytest.raises(UnavailableError):
                await say(channel)


# ---------------------------------------------------------------------------------------------------------
# Peers


@pytest.mark.parametrize(
    ("serves", "peer"),
    [
        (Identity(Role.AGENT, "blue", "n1"), CONTROL_PLANE),
        (Identity(Role.AGENT, "blue", "n1"), Peer(Role.AGENT, "n2")),
        (Identity(Role.AGENT, "blue", "n1"), Peer(Role.AGENT, "N1")),
        (Identity(Role.CONTROL, "blue", "n1"), Peer(Role.AGENT, "n1")),
        (Identity(Role.OPERATOR, "blue", "n1"), CONTROL_PLANE),
        (Identity(Role.AGENT, "blue", "control"), CONTROL_PLANE),
    ],
    ids=str,
)
async def test_a_channel_leads_to_its_peer_and_to_nobody_else(certificates, serves, peer):
    """All of them have good certificates for the very host that is dialled."""
    parrot = Parrot()
    files = certificates.issue(serves, hosts=["127.0.0.1", "localhost"])
    async with serving(files, parrot) as server:
        async with connected(certificates.control("dialler"), server.address, peer) as channel:
            with pytest.raises(UnavailableError, match=str(peer)):
                await say(channel)
        async with connected(certificates.control("dialler"), server.address) as channel:
            assert await say(channel) == "hello"


async def test_a_peer_of_another_cluster_is_another(certificates, tmp_path):
    red = Certificates(tmp_path / "red", cluster="red")
    files = red.issue(Identity(Role.CONTROL, "red", "c1"), trusted=red.trusted + certificates.trusted)
    mine = certificates.issue(Identity(Role.OPERATOR, "blue", "ada"), trusted=red.trusted + certificates.trusted)
    async with serving(files) as server:
        async with connected(mine, server.address, CONTROL_PLANE) as channel:
            with pytest.raises(UnavailableError, match="the control plane of this cluster"):
                await say(channel)
        async with connected(mine, server.address) as channel:
            with pytest.raises(UnauthenticatedError, match="'blue'"):
                await say(channel)


@pytest.mark.parametrize("node_id", ["n1", "Node.1", "a_b", "x" * 128])
async def test_an_agent_is_found_by_its_node_id_wherever_it_is(certificates, node_id):
    """Its certificate need not name the host: the control plane asks for the node."""
    files = certificates.agent(node_id, hosts=["elsewhere.example"])
    async with serving(files) as server:
        async with connected(certificates.control(), server.address, Peer(Role.AGENT, node_id)) as channel:
            assert await say(channel) == "hello"
        async with connected(certificates.control(), server.address) as channel:
            with pytest.raises(UnavailableError):
                await say(channel)


async def test_both_ends_speak_tls_or_neither(certificates):
    async with serving(certificates.control()) as server:
        channel = GrpcTransport().connect(server.address)
        with pytest.raises(UnavailableError) as caught:
            await say(channel)
        assert "authority" in caught.value.hint
        await channel.close()
    server = await GrpcTransport().serve("127.0.0.1:0", [Service(METHODS, Parrot())])
    async with connected(certificates.operator(), server.address, CONTROL_PLANE) as channel:
        with pytest.raises(UnavailableError) as caught:
            await say(channel)
    assert "authority" in caught.value.hint
    await server.stop(grace=0)


# ---------------------------------------------------------------------------------------------------------
# Dates, versions, files


class LaterClock(SystemClock):
    """The system's, some time from now."""

    ahead = timedelta(0)

    def wall(self):
        return super().wall() + self.ahead


async def test_a_connection_does_not_outlive_the_certificate_that_made_it(certificates):
    clock = LaterClock()
    client = certificates.issue(Identity(Role.OPERATOR, "blue", "ada"), lifetime=timedelta(hours=1))
    async with serving(certificates.control(), clock=clock) as server, connected(client, server.address) as channel:
        assert await say(channel) == "hello"
        clock.ahead = timedelta(hours=2)
        with pytest.raises(UnauthenticatedError, match="expired"):
            await say(channel)
        certificates.issue(Identity(Role.OPERATOR, "blue", "ada"), lifetime=timedelta(hours=9))
        assert await say(channel) == "hello"


def greeting(version: int) -> bytes:
    """The first message of a TLS client that knows nothing newer than this version, byte by byte."""
    suites = bytes.fromhex("c009c00ac013c014002f0035c02bc02f")
    body = version.to_bytes(2) + bytes(32) + b"\0" + len(suites).to_bytes(2) + suites + b"\x01\0"
    groups, algorithms = bytes.fromhex("000a000400020017"), bytes.fromhex("000d0006000404030401")
    body += (len(groups) + len(algorithms)).to_bytes(2) + groups + algorithms
    handshake = b"\x01" + len(body).to_bytes(3) + body
    return b"\x16\x03\x01" + len(handshake).to_bytes(2) + handshake


@pytest.mark.parametrize(("version", "spoken"), [(0x0301, False), (0x0302, False), (0x0303, True)])
async def test_nothing_older_than_tls_1_2_is_spoken(certificates, version, spoken):
    async with serving(certificates.control()) as server:
        host, port = server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting(version))
        record = await asyncio.wait_for(reader.read(7), 30)
        writer.close()
        await writer.wait_closed()
    # A server that goes on answers with a handshake record and a ServerHello in it; else it just closes.
    assert (record[:1] == b"\x16" and record[5:6] == b"\x02") if spoken else record == b""


async def test_invalid_files_are_reported_before_a_connection_is_made(certificates, tmp_path):
    good = certificates.operator()
    with pytest.raises(InvalidError, match="--cert"):
        GrpcTransport(security=MutualTls(good.ca, tmp_path / "none", good.key))
    with pytest.raises(InvalidError, match="do not belong together"):
        GrpcTransport(security=MutualTls(good.ca, good.cert, certificates.agent("n1").key))
    old = certificates.issue(
        Identity(Role.OPERATOR, "blue", "old"), lifetime=timedelta(hours=1), age=timedelta(hours=2)
    )
    with pytest.raises(InvalidError, match="expired"):
        GrpcTransport(security=old)


async def test_a_transport_knows_who_it_is(certificates):
    assert GrpcTransport(security=certificates.agent("n1")).identity == Identity(Role.AGENT, "blue", "n1")
    assert GrpcTransport().identity is None
