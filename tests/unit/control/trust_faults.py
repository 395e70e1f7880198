"""More of the matrix of store failures: tokens and certificates, the feed of events, and a follower.

Used by `test_store_faults` here and, for all pairs, in `tests/long`; `store_faults` has the other entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.tasks import running
from shoal.model.identity import Identity, Role
from shoal.model.trust import JoinToken
from shoal.testing.control import ControlKit
from shoal.testing.stores import Fault
from shoal.wire.methods import AgentControl, Credentials, Enrollment
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as pb
from shoal.wire.trust.authority import make_signing_request
from tests.unit.control.leadership.test_two_leaders import TwoControlPlanes
from tests.unit.control.store_faults import answer_of
from tests.unit.control.trusting import CLUSTER, TrustingFleet

OF_READS = {Fault.REFUSED, Fault.NOT_APPLIED, Fault.DAMAGED, Fault.HANGS, Fault.HANGS_THEN_FAILS}


class TrustKit(TrustingFleet):
    """A control plane that issues certificates; it remembers the answers that later requests are made from."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.token = pb.CreateJoinTokenResponse()
        self.csr = make_signing_request(Identity(Role.AGENT, CLUSTER, "new")).csr

    async def create_token(self) -> pb.CreateJoinTokenResponse:
        self.token = await self.channel.call(Credentials.CREATE_JOIN_TOKEN, pb.CreateJoinTokenRequest())
        return self.token

    async def join(self) -> pb.JoinResponse:
        channel = self.network.transport("new").connect(self.plane.join_address)
        try:
            return await channel.call(Enrollment.JOIN, pb.JoinRequest(token=self.token.token, csr=self.csr))
        finally:
            await channel.close()

    async def as_agent(self, name: str, method: Any, request: Any) -> Any:
        channel = self.as_one(Identity(Role.AGENT, CLUSTER, name))
        try:
            return await channel.call(method, request)
        finally:
            await channel.close()


@contextlib.asynccontextmanager
async def trust_kit(folder: Path) -> Any:
    """A control plane that must not fail as a whole."""
    async with TrustKit(folder) as kit, running(kit.plane.failed(), name="failed") as failed:
        yield kit
        assert not failed.done(), failed.exception()


async def _nothing(_kit: TrustKit) -> None:
    """No preparation."""


@dataclass(frozen=True)
class TokenWrite:
    """One RPC that changes a join token. An entry as `store_faults.Write` is."""

    method: Any
    call: Callable[[TrustKit], Awaitable[Any]]
    #: Whether what it asks for is so, by the tokens that are stored.
    holds: Callable[[tuple[JoinToken, ...]], bool]
    prepare: Callable[[TrustKit], Awaitable[Any]] = _nothing

    @property
    def name(self) -> str:
        return self.method.name

    async def is_done(self, kit: TrustKit) -> bool:
        return self.holds(await kit.store.tokens())


async def _revoke(kit: TrustKit) -> Any:
    request = pb.RevokeJoinTokenRequest(token_id=kit.token.view.token_id)
    return await kit.channel.call(Credentials.REVOKE_JOIN_TOKEN, request)


TOKEN_WRITES = [
    TokenWrite(Credentials.CREATE_JOIN_TOKEN, TrustKit.create_token, lambda tokens: len(tokens) == 1),
    TokenWrite(Credentials.REVOKE_JOIN_TOKEN, _revoke, lambda tokens: tokens == (), TrustKit.create_token),
    TokenWrite(Enrollment.JOIN, TrustKit.join, lambda tokens: len(tokens[0].used) == 1, TrustKit.create_token),
]


# ---------------------------------------------------------------------------------------------------------
# Certificates: nothing is stored for them


@dataclass(frozen=True)
class Issuing:
    """One way to a certificate after the first."""

    name: str
    method: Any
    prepare: Callable[[TrustKit], Awaitable[Any]]
    call: Callable[[TrustKit], Awaitable[Any]]
    #: Whether the store is read for it. Without, it is issued whatever the store does.
    reads: bool = False


def _csr_of(name: str) -> bytes:
    return make_signing_request(Identity(Role.AGENT, CLUSTER, name)).csr


async def _renew(kit: TrustKit, name: str) -> Any:
    return await kit.as_agent(name, Credentials.RENEW_CERTIFICATE, pb.RenewCertificateRequest(csr=_csr_of(name)))


async def _joined(kit: TrustKit) -> None:
    await kit.create_token()
    await kit.join()


async def _registered(kit: TrustKit) -> None:
    await kit.start("n1")


async def _member_runs(kit: TrustKit) -> None:
    await kit.start("n1")
    await kit.apply_trusted()
    await kit.wait_status("a", "Running")


async def _issue(kit: TrustKit) -> Any:
    request = pb.IssueWorkloadCertificateRequest(workload_id="a", csr=_csr_of("n1"))
    return await kit.as_agent("n1", Credentials.ISSUE_WORKLOAD_CERTIFICATE, request)


ISSUING = [
    Issuing("node", Credentials.RENEW_CERTIFICATE, _registered, partial(_renew, name="n1")),
    Issuing("new node", Credentials.RENEW_CERTIFICATE, _joined, partial(_renew, name="new"), reads=True),
    Issuing("workload", Credentials.ISSUE_WORKLOAD_CERTIFICATE, _member_runs, _issue),
]


async def check_issuing(kit: TrustKit, way: Issuing, fault: Fault) -> None:
    """A certificate is issued while the store fails, unless it has to be read; then it can be asked for again."""
    await way.prepare(kit)
    failing = kit.store.fail(fault, times=math.inf)
    error = await answer_of(way, kit)
    kit.store.heal()
    if way.reads and fault in OF_READS:
        assert failing.met
        assert isinstance(error, ShoalError)
    else:
        assert error is None
    await kit.wait(kit.plane.is_ready, seconds=20)
    assert await answer_of(way, kit) is None


# ---------------------------------------------------------------------------------------------------------
# The feed of events


async def check_feed(kit: ControlKit, fault: Fault) -> None:
    """Who follows the events misses none of those that are stored, and gets none twice, whatever the store does."""
    heard: list[int] = []

    async def follow() -> None:
        while True:
            request = control.WatchEventsRequest(after=heard[-1] if heard else 0)
            with contextlib.suppress(ShoalError):
                async for event in kit.channel.stream(AgentControl.WATCH_EVENTS, request):
                    heard.append(event.cursor)
            await kit.clock.sleep(0.5)

    async def stored() -> list[int]:
        answer = await kit.channel.call(AgentControl.LIST_EVENTS, control.ListEventsRequest(limit=1000))
        return [event.cursor for event in answer.events]

    async with running(follow(), name="follow"):
        await kit.apply("before")
        await kit.wait(lambda: len(heard) >= 1)
        kit.store.fail(fault, times=math.inf)
        writing = [asyncio.ensure_future(kit.apply(name)) for name in ("a", "b", "c")]
        await kit.clock.sleep(1)
        kit.store.heal()
        await asyncio.gather(*writing, return_exceptions=True)
        await kit.wait(kit.plane.is_ready, seconds=20)
        assert (await kit.apply("later")).success
        await kit.clock.sleep(5)
        assert heard == await stored()


# ---------------------------------------------------------------------------------------------------------
# A control plane that follows another


async def check_following(it: TwoControlPlanes, fault: Fault) -> None:
    """A follower survives a store that fails for it alone, takes nothing over, and knows everything once it is back."""
    async with running(it.other.failed(), name="failed") as failed:
        it.other_store.fail(fault, times=math.inf)
        assert (await it.apply("web")).success
        await it.clock.sleep(45)
        assert not failed.done(), failed.exception()
        it.other_store.heal()
        await it.wait(lambda: "web" in it.other.leadership.fleet.workloads, seconds=20)
        await it.wait(it.other.is_ready, seconds=20)
        assert (it.plane.leads, it.other.leads) == (True, False)
        assert not failed.done(), failed.exception()
