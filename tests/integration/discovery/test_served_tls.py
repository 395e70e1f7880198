"""A served tree over TLS: a session outlives the certificates of its client, and belongs to their holder."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import DeniedError, UnavailableError
from shoal.discovery.embedded.owner import TreeOwner
from shoal.discovery.embedded.serving import CoordinationService
from shoal.discovery.grants import Grant, create_grant
from shoal.discovery.remote import RemoteStore
from shoal.discovery.store import SessionState
from shoal.model.identity import workload_identity
from shoal.testing.certificates import Certificates
from shoal.testing.journals import MemoryJournal
from shoal.testing.suites.coordination_kit import Seen
from shoal.wire.methods import Coordination, methods_of
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Service

pytestmark = pytest.mark.integration


class LaterClock(SystemClock):
    """The clock of the server, which can be set forward: certificates expire by it."""

    later = timedelta(0)

    def wall(self) -> datetime:
        return super().wall() + self.later


@pytest.fixture
def clock():
    return LaterClock()


@pytest.fixture
async def served(tmp_path, clock):
    certificates = Certificates(tmp_path)
    owner = TreeOwner(SystemClock(), MemoryJournal())
    service = CoordinationService(owner)
    transport = GrpcTransport(security=certificates.control(), clock=clock)
    server = await transport.serve("127.0.0.1:0", [Service(methods_of(Coordination), service)])
    operator = RemoteStore(GrpcTransport(security=certificates.operator()), [server.address])
    await operator.open()
    yield certificates, server.address, operator
    await operator.close()
    service.close()
    await server.stop()
    await owner.close()


async def test_a_session_outlives_a_certificate(served, clock):
    certificates, address, operator = served
    await create_grant(operator, Grant("workload:serving", "/gip"))
    identity = workload_identity("default", job="serving", node="n1")
    files = certificates.issue(identity, lifetime=timedelta(hours=1))
    store = RemoteStore(GrpcTransport(security=files), [address], session_timeout=timedelta(seconds=20))
    states: Seen[SessionState] = Seen(30)
    store.on_state(states)
    await store.open()
    await store.create("/gip/a", b"1", ephemeral=True, makepath=True)
    before, session = (await operator.get("/gip/a")).stat, store.session_id
    told: Seen[object] = Seen(30)
    operator.watch_data("/gip/a", told)
    await told.until(lambda value: value is not None)
    clock.later = timedelta(hours=2)
    with pytest.raises(UnavailableError):
        await store.set("/gip/a", b"2")
    await states.is_now(SessionState.SUSPENDED)  # the stream ended with the certificate
    assert certificates.issue(identity, lifetime=timedelta(hours=3)) == files  # its agent has renewed it
    await states.is_now(SessionState.CONNECTED)
    assert (store.session_id, (await operator.get("/gip/a")).stat) == (session, before)
    await store.set("/gip/a", b"2")
    assert len([value for value in told.values if value is None]) == 0
    await store.close()
    assert await operator.exists("/gip/a") is None


async def test_what_listens_there_must_be_the_control_plane(served):
    certificates, _, _ = served
    imposter = GrpcTransport(security=certificates.agent("n2"))
    owner = TreeOwner(SystemClock(), MemoryJournal())
    server = await imposter.serve("127.0.0.1:0", [Service(methods_of(Coordination), CoordinationService(owner))])
    short = timedelta(seconds=2)
    store = RemoteStore(GrpcTransport(security=certificates.operator()), [server.address], call_timeout=short)
    with pytest.raises(UnavailableError):
        await store.open()
    assert owner.tree.sessions == {}
    await server.stop()
    await owner.close()


async def test_roles_are_those_of_certificates(served):
    certificates, address, operator = served
    await create_grant(operator, Grant("agent:n1", "/racks"))
    stores = {}
    for name, files in (("n1", certificates.agent("n1")), ("n2", certificates.agent("n2"))):
        stores[name] = RemoteStore(GrpcTransport(security=files), [address])
        await stores[name].open()
    await stores["n1"].create("/racks/a", makepath=True)
    with pytest.raises(DeniedError, match="shoal grant create"):
        await stores["n2"].create("/racks/b")
    assert await stores["n2"].children("/racks") == ("a",)
    await asyncio.gather(*(store.close() for store in stores.values()))
