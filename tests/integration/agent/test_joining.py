"""An agent that has nothing but a token: whom it trusts, what it gets, and how it keeps it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from shoal.agent.contact.control_client import ControlClient
from shoal.agent.contact.joining import join
from shoal.agent.contact.renewal import Renewal
from shoal.agent.server import Agent
from shoal.agent.settings import AgentSettings
from shoal.client import ControlPlane as Client
from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.control.store.sqlite import SqliteStore
from shoal.control.trust.enrollment import RateLimit
from shoal.core.clock import SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import DeniedError, ExhaustedError, UnauthenticatedError, UnsupportedError
from shoal.model.identity import Identity, Role
from shoal.testing.certificates import Certificates
from shoal.testing.stores import KeptStore, Seat, SharedStore
from shoal.wire.convert import decode_spec_bytes
from shoal.wire.grpcio import aio
from shoal.wire.methods import AgentControl, Credentials, Enrollment, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as pb
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Service
from shoal.wire.trust.authority import issue
from shoal.wire.trust.certificates import describe, read_certificates
from shoal.wire.trust.credentials import CA_FILE, CA_KEY_FILE, CredentialPaths, write_authority, write_credentials
from shoal.wire.trust.security import AnonymousTls, ServerTls

pytestmark = pytest.mark.integration


class Hasty(SystemClock):
    """Sleeps no longer than it must, and remembers how long it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = []

    async def sleep(self, seconds):
        self.slept.append(seconds)
        await asyncio.sleep(0.01)

    async def has_slept(self, times):
        """Wait until it slept so often: so many tries have failed."""
        async with asyncio.timeout(60):
            while len(self.slept) < times:
                await asyncio.sleep(0.01)


class Place:
    """A control plane that issues certificates, and what its operator needs."""

    def __init__(self, folder, name="default", *, certificates=None, store=None) -> None:
        self.certificates = certificates or Certificates(folder / "files", cluster=name)
        write_authority(folder / "authority", self.certificates.authority)
        files = self.certificates.control()
        self.settings = ControlSettings(
            data_dir=str(folder / "control"),
            grpc_host="127.0.0.1",
            grpc_port=0,
            join_port=0,
            ca=str(folder / "authority" / CA_FILE),
            ca_key=str(folder / "authority" / CA_KEY_FILE),
            cert=str(files.cert),
            key=str(files.key),
        )
        access = self.settings.access
        self.plane = ControlPlaneServer(
            self.settings,
            transport=GrpcTransport(security=access.security()),
            join_transport=GrpcTransport(security=access.server_security()),
            store=store,
        )

    def client(self, files=None) -> Client:
        return Client([self.plane.address], GrpcTransport(security=files or self.certificates.operator()))

    def agent_settings(self, folder, token, **given) -> AgentSettings:
        fields = {
            "data_dir": str(folder),
            "control": (self.plane.address,),
            "join": token,
            "join_address": (self.plane.join_address,),
            "node_id": "n1",
            "grpc_host": "127.0.0.1",
            "grpc_port": 0,
            "runtimes": ("process",),
        }
        return AgentSettings(**{**fields, **given})


@pytest.fixture
async def place(tmp_path):
    place = Place(tmp_path / "place")
    await place.plane.start(http=False)
    yield place
    await place.plane.stop()


async def token_of(place, **given):
    async with place.client() as operator:
        return (await operator.create_join_token(**given)).text


async def test_an_agent_joins_and_works(place, tmp_path):
    settings = place.agent_settings(tmp_path / "agent", await token_of(place))
    await join(settings, node_id=lambda: "unused")
    names = {path.name: path for path in settings.credentials_dir.iterdir()}
    assert set(names) == {"ca.pem", "cert.pem", "key.pem", "token-id"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in names.values())
    assert (tmp_path / "agent").stat().st_mode & 0o777 == 0o700, "nor may others look into its data directory"
    before = names["cert.pem"].read_bytes()
    await join(settings, node_id=lambda: "unused")
    assert names["cert.pem"].read_bytes() == before, "a node that has joined does not join again"

    # The next start needs no token.
    later = replace(settings, join="", node_id="")
    agent = Agent(later, transport=GrpcTransport(security=later.access.security()))
    await agent.start()
    try:
        assert agent.node_id == "n1"
        async with place.client() as operator, asyncio.timeout(30):
            while [node.node_id for node in await operator.list_nodes()] != ["n1"]:
                await asyncio.sleep(0.05)
            [view] = await operator.list_join_tokens()
            assert view.used_by == ("n1",)
    finally:
        await agent.stop()


async def test_the_same_key_asks_again_after_an_answer_that_was_lost(place, tmp_path):
    settings = place.agent_settings(tmp_path / "agent", await token_of(place))
    await join(settings, node_id=lambda: "unused")
    key = (settings.credentials_dir / "key.pem").read_bytes()
    # As if it had been killed before the files were written.
    (settings.credentials_dir / "joining-key.pem").write_bytes(key)
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (settings.credentials_dir / name).unlink()
    await join(settings, node_id=lambda: "unused")
    assert (settings.credentials_dir / "key.pem").read_bytes() == key


@pytest.mark.parametrize(
    ("token", "words"),
    [("nothing", "cannot be read"), (f"shoal1.{'a' * 10}.{'b' * 40}.{'0' * 64}", "joining again at")],
    ids=["no token", "of another authority"],
)
async def test_an_agent_that_has_joined_goes_on_without_a_usable_token(place, tmp_path, caplog, token, words):
    settings = place.agent_settings(tmp_path / "agent", await token_of(place))
    await join(settings, node_id=lambda: "unused")
    before = (settings.credentials_dir / "cert.pem").read_bytes()
    await join(replace(settings, join=token), node_id=lambda: "unused")
    assert (settings.credentials_dir / "cert.pem").read_bytes() == before
    assert words in caplog.text


async def test_an_agent_that_has_joined_asks_once_with_a_token_that_is_refused(place, tmp_path, caplog):
    settings = place.agent_settings(tmp_path / "agent", await token_of(place))
    await join(settings, node_id=lambda: "unused")
    used = replace(settings, join=await token_of(place, node_id="n7"))
    for _ in range(2):
        await join(used, node_id=lambda: "unused")
    assert caplog.text.count("refuses the new token: the join token is for node 'n7'") == 1


async def test_a_token_of_another_control_plane_is_not_shown_to_this_one(place, tmp_path):
    other = Place(tmp_path / "other")
    await other.plane.start(http=False)
    try:
        token = await token_of(other)
        with pytest.raises(UnauthenticatedError, match="not the control plane that made this join token"):
            await join(place.agent_settings(tmp_path / "agent", token), node_id=lambda: "unused")
        async with other.client() as operator:
            [view] = await operator.list_join_tokens()
            assert view.used_by == ()
    finally:
        await other.plane.stop()


async def test_a_server_with_the_authority_s_certificate_alone_is_not_the_control_plane(place, tmp_path):
    """An agent of the cluster listens where the control plane should be, and hands out the right authority."""

    class Impostor:
        def __init__(self) -> None:
            self.tokens = []

        async def get_authority(self, _request, _call):
            return pb.GetAuthorityResponse(ca=place.certificates.trusted)

        async def join(self, request, _call):
            self.tokens.append(request.token)
            return pb.JoinResponse()

    impostor = Impostor()
    transport = GrpcTransport(security=ServerTls(place.certificates.agent("n7")))
    server = await transport.serve("127.0.0.1:0", [Service(methods_of(Enrollment), impostor)])
    settings = place.agent_settings(tmp_path / "agent", await token_of(place), join_address=(server.address,))
    clock = Hasty()
    joining = asyncio.ensure_future(join(settings, node_id=lambda: "unused", clock=clock))
    await clock.has_slept(3)
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    assert impostor.tokens == []
    assert not (settings.credentials_dir / "cert.pem").exists()
    await server.stop(0)


async def test_a_token_that_is_no_good_ends_the_agent(place, tmp_path):
    token = await token_of(place, node_id="n2")
    with pytest.raises(DeniedError, match="for node 'n2', not for 'n1'"):
        await join(place.agent_settings(tmp_path / "agent", token), node_id=lambda: "unused")
    async with place.client() as operator:
        [view] = await operator.list_join_tokens()
        await operator.revoke_join_token(view.token_id)
    with pytest.raises(DeniedError, match="not known, or it has expired"):
        await join(place.agent_settings(tmp_path / "agent", token, node_id="n2"), node_id=lambda: "unused")


async def test_a_control_plane_that_is_away_is_waited_for(tmp_path):
    place = Place(tmp_path / "place")
    await place.plane.start(http=False)
    token, address = await token_of(place), place.plane.join_address
    settings = place.agent_settings(tmp_path / "agent", token)
    port = int(address.rpartition(":")[2])
    await place.plane.stop()
    clock = Hasty()
    joining = asyncio.ensure_future(join(settings, node_id=lambda: "unused", clock=clock))
    await clock.has_slept(1)
    assert not joining.done()
    again = replace(place.settings, join_port=port)
    plane = ControlPlaneServer(
        again,
        transport=GrpcTransport(security=again.access.security()),
        join_transport=GrpcTransport(security=again.access.server_security()),
    )
    await plane.start(http=False)
    await asyncio.wait_for(joining, 60)
    await plane.stop()


class Two:
    """Two control planes on one store; the first one that is started leads."""

    def __init__(self, folder) -> None:
        self.seat = Seat()
        self._kept = KeptStore(SqliteStore(":memory:", decode_spec=decode_spec_bytes))
        self.one = Place(folder / "one", store=self._store())
        self.two = Place(folder / "two", certificates=self.one.certificates, store=self._store())

    def _store(self) -> SharedStore:
        return SharedStore(self._kept, self.seat, SystemClock())

    async def __aenter__(self):
        await self.one.plane.start(http=False)
        await self.two.plane.start(http=False)
        return self

    async def __aexit__(self, *_error) -> None:
        await self.two.plane.stop()
        await self.one.plane.stop()
        await self._kept.dispose()

    def agent_settings(self, folder, token, *places, **given) -> AgentSettings:
        return self.one.agent_settings(
            folder, token, join_address=tuple(each.plane.join_address for each in places), **given
        )


async def test_a_follower_that_is_asked_first_is_no_reason_to_end(tmp_path, caplog):
    async with Two(tmp_path) as both:
        assert both.one.plane.leads
        assert not both.two.plane.leads
        token = await token_of(both.one)
        settings = both.agent_settings(tmp_path / "agent", token, both.two, both.one)
        await asyncio.wait_for(join(settings, node_id=lambda: "unused"), 60)
        assert (settings.credentials_dir / "cert.pem").exists()
        assert f"joining at {both.two.plane.join_address}: this control plane does not lead" in caplog.text
        async with both.one.client() as operator:
            [view] = await operator.list_join_tokens()
            assert view.used_by == ("n1",)


async def test_an_error_names_every_address_that_was_tried(tmp_path):
    async with Two(tmp_path) as both:
        token = await token_of(both.one, node_id="n2")
        settings = both.agent_settings(tmp_path / "agent", token, both.two, both.one)
        with pytest.raises(DeniedError, match="for node 'n2', not for 'n1'") as caught:
            await asyncio.wait_for(join(settings, node_id=lambda: "unused"), 60)
        tried = f"tried to join at {both.two.plane.join_address}, {both.one.plane.join_address}"
        assert caught.value.message.endswith(tried)
        assert str(caught.value) == caught.value.message


async def test_while_nobody_leads_it_is_tried_again(tmp_path, caplog):
    async with Two(tmp_path) as both:
        token = await token_of(both.one)
        # Somebody else has the seat, of whom nobody knows an address: as between two leaders.
        both.seat.term, both.seat.holder, both.seat.address = both.seat.term + 1, "gone", ""
        both.seat.until = float("inf")
        async with asyncio.timeout(60):
            while both.one.plane.leads or both.two.plane.leads:
                await asyncio.sleep(0.05)
            settings = both.agent_settings(tmp_path / "agent", token, both.one, both.two)
            joining = asyncio.ensure_future(join(settings, node_id=lambda: "unused"))
            while "could not join yet at any of" not in caplog.text:
                assert not joining.done(), joining
                await asyncio.sleep(0.05)
            both.seat.until = 0.0
            await joining
        assert (settings.credentials_dir / "cert.pem").exists()
        assert "does not lead; nobody does" in caplog.text


class Crowded:
    """A door of a place that turns away the next few who come, and lets the others through."""

    def __init__(self, place, *, authority, join) -> None:
        self._place = place
        self._turned_away = {Enrollment.GET_AUTHORITY: authority, Enrollment.JOIN: join}

    async def get_authority(self, request, _call):
        return await self._pass(Enrollment.GET_AUTHORITY, request)

    async def join(self, request, _call):
        return await self._pass(Enrollment.JOIN, request)

    async def _pass(self, method, request):
        if self._turned_away[method] > 0:
            self._turned_away[method] -= 1
            RateLimit(per_second=0.0, burst=0, monotonic=lambda: 0.0).take()
        security = AnonymousTls(self._place.certificates.trusted, "control.default.shoal")
        channel = GrpcTransport(security=security).connect(self._place.plane.join_address)
        try:
            return await channel.call(method, request)
        finally:
            await channel.close()

    async def serve(self):
        transport = GrpcTransport(security=ServerTls(self._place.certificates.control()))
        return await transport.serve("127.0.0.1:0", [Service(methods_of(Enrollment), self)])


async def test_an_agent_that_is_refused_by_the_rate_limit_tries_again(place, tmp_path, caplog):
    server = await Crowded(place, authority=3, join=2).serve()
    settings = place.agent_settings(tmp_path / "agent", await token_of(place), join_address=(server.address,))
    clock = Hasty()
    await asyncio.wait_for(join(settings, node_id=lambda: "unused", clock=clock), 60)
    assert (settings.credentials_dir / "cert.pem").exists()
    assert len(clock.slept) == 5
    assert all(0.5 * plain <= seconds <= plain for seconds, plain in zip(clock.slept, (1, 2, 4, 8, 16), strict=True))
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([words for words in told if "too many nodes want to join at once" in words]) == 1
    assert len([words for words in told if "could not join yet" in words]) == 1
    await server.stop(0)


async def test_a_token_that_runs_out_in_a_crowd_ends_the_agent(place, tmp_path):
    server = await Crowded(place, authority=2, join=1).serve()
    settings = place.agent_settings(tmp_path / "agent", await token_of(place), join_address=(server.address,))
    async with place.client() as operator:
        [view] = await operator.list_join_tokens()
        await operator.revoke_join_token(view.token_id)
    clock = Hasty()
    with pytest.raises(DeniedError, match="not known, or it has expired"):
        await asyncio.wait_for(join(settings, node_id=lambda: "unused", clock=clock), 60)
    assert len(clock.slept) == 3
    await server.stop(0)


async def test_the_join_listener_serves_nothing_else_and_has_a_rate_limit(place):
    roots = place.certificates.trusted
    channel = GrpcTransport(security=AnonymousTls(roots, "control.default.shoal")).connect(place.plane.join_address)
    answer = await channel.call(Enrollment.GET_AUTHORITY, pb.GetAuthorityRequest())
    assert read_certificates(answer.ca)
    for method, request in (
        (AgentControl.LIST_NODES, control_pb2.ListNodesRequest()),
        (Credentials.CREATE_JOIN_TOKEN, pb.CreateJoinTokenRequest()),
    ):
        with pytest.raises(UnsupportedError):
            await channel.call(method, request)
    large = pb.JoinRequest(token="x", csr=b"x" * 200_000)
    with pytest.raises(ExhaustedError, match=r"200007 vs\. 65536"):
        await channel.call(Enrollment.JOIN, large)

    async def ask_for_ever():
        while True:
            await channel.call(Enrollment.GET_AUTHORITY, pb.GetAuthorityRequest())

    with pytest.raises(ExhaustedError, match="too many nodes want to join"):
        await asyncio.wait_for(ask_for_ever(), 60)
    await channel.close()
    async with aio.insecure_channel(place.plane.join_address) as plain:
        with pytest.raises(aio.AioRpcError):
            await plain.unary_unary(Enrollment.GET_AUTHORITY.path)(b"", timeout=5)


async def test_a_certificate_is_renewed_when_two_thirds_of_its_life_are_over(place, tmp_path):
    clock = SystemClock()
    identity = Identity(Role.AGENT, "default", "n1")
    life = timedelta(hours=3)
    pair = issue(place.certificates.authority, identity, now=clock.wall() - timedelta(hours=2.2), lifetime=life)
    paths = write_credentials(tmp_path / "certs", ca=place.certificates.trusted, pair=pair)
    transport = GrpcTransport(security=AgentSettings(data_dir=str(tmp_path)).access.security())
    client = ControlClient(transport, [place.plane.address])
    capacity = control_pb2.NodeCapabilities(cpu_total_millicores=1, memory_total_mb=1)
    request = control_pb2.RegisterNodeRequest(node_id="n1", capabilities=capacity, grpc_endpoint="127.0.0.1:1")
    channel = transport.connect(place.plane.address)
    assert (await channel.call(AgentControl.REGISTER_NODE, request)).accepted
    await channel.close()
    renewing = asyncio.ensure_future(Renewal(paths, lambda: client, clock=clock, entropy=SystemEntropy()).run())
    try:
        async with asyncio.timeout(30):
            while paths.cert.read_bytes() == pair.cert:
                await asyncio.sleep(0.05)
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
    facts = describe(read_certificates(paths.cert.read_bytes())[0])
    assert facts.identity == identity
    assert facts.not_after > clock.wall() + timedelta(days=29)
    assert CredentialPaths.within(tmp_path / "certs").key.read_bytes() != pair.key
