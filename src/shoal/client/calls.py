"""Calls the control plane: finds the leader, tries every address, and repeats what is safe to repeat.

With several addresses, a call that is safe to repeat goes to the next address when one cannot be reached. A call that
is not (compare-and-set, or an error the second time) is made once, at an address that has just answered. A follower
names the leader, and that address is tried next, configured or not. Live data (heartbeats, usage) is read
from the leader while one can be reached, otherwise from any control plane, without it. Base class of `ControlPlane`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import DeadlineError, DeniedError, NotLeaderError, UnavailableError
from shoal.model.identity import CONTROL_PLANE, Identity
from shoal.wire.methods import LIVE_HEADER, AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import jobs_pb2
from shoal.wire.routes import ControlAddresses, Route, in_doubt, was_said
from shoal.wire.transport import DEFAULT_TIMEOUT, Channel, Method, Transport

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

PagedT = TypeVar("PagedT", pb.ListNodesRequest, pb.ListWorkloadsRequest, pb.ListGroupsRequest, jobs_pb2.ListJobsRequest)
PageT = TypeVar(
    "PageT", pb.ListNodesResponse, pb.ListWorkloadsResponse, pb.ListGroupsResponse, jobs_pb2.ListJobsResponse
)

PAGE_SIZE = 1000
"""How many entries of a list one call asks for."""

COMES_BACK_WITHIN = 2.0
"""Seconds that a call waits for a control plane that has answered before: it may be restarting. One that never answered
fails at once, because then the address is likely to be wrong."""

LIVE_WITHIN = 3.0
"""Seconds that a read waits for the leader when another control plane could answer as well."""

LEADER_WITHIN = 10.0
"""Seconds that a call waits for a leader after a follower refused it."""

_RETRY_EVERY = 0.1


class Calls:
    """The connections to one control plane, which may have several addresses.

    Args:
        addresses: host:port of each; tried in turn.
        transport: how they are reached.
        clock: tells and waits time.
        timeout: seconds that one call may take.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        transport: Transport,
        *,
        clock: Clock | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        #: The address that answered last is tried first. A follower may have named it as the leader's.
        self._addresses = ControlAddresses(addresses, field="addresses")
        self.addresses = self._addresses.configured
        self._transport = transport
        self._clock: Clock = clock or SystemClock()
        self._timeout = timeout
        self._channels: dict[str, Channel] = {}
        self._answered = False

    @property
    def identity(self) -> Identity | None:
        """Who we are by our certificate; None without one."""
        return self._transport.identity

    async def close(self) -> None:
        """Close every connection."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    async def _call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        once: bool = False,
        live: bool = False,
        look: str = "",
    ) -> ResponseT:
        """Make a call at the first address that can answer it.

        Args:
            method: the RPC.
            request: its request.
            once: it must not happen twice.
            live: the leader knows more than the others, which are asked when it cannot be reached.
            look: for a call that changes something, the command that shows whether it did.
        """
        began, patience = self._clock.monotonic(), COMES_BACK_WITHIN if self._answered else 0.0
        while True:
            route = Route(self._addresses.in_order())
            for address in route:
                made = False
                try:
                    channel = self._channel(address)
                    if once:
                        # A call that failed may have had an effect: find an address that answers, then make it there.
                        summary = pb.GetClusterSummaryRequest()
                        with contextlib.suppress(DeniedError):  # a refusal is an answer too
                            await channel.call(AgentControl.GET_CLUSTER_SUMMARY, summary, timeout=self._timeout)
                    made = True
                    timeout = min(LIVE_WITHIN, self._timeout) if live and route.has_more else self._timeout
                    metadata = {LIVE_HEADER: "1"} if live else None
                    answer = await channel.call(method, request, timeout=timeout, metadata=metadata)
                except NotLeaderError as refusal:
                    route.follow(refusal)  # nothing was done, so it is safe to repeat
                except (UnavailableError, DeadlineError) as failure:
                    error = in_doubt(failure, look) if look and made else failure
                    if once and made:
                        raise error from None
                    route.fail(address, error)
                else:
                    self._addresses.use(address)
                    self._answered = True
                    return answer
            if live and route.refusal is not None:
                live = False  # without a leader, what the others know is better than nothing
                continue
            await self._wait_to_try_again(route, began, patience)

    async def _pages(self, method: Method[PagedT, PageT], request: PagedT) -> AsyncIterator[PageT]:
        """Every page of a list. A control plane without pages answers with everything at once."""
        request.page_size = PAGE_SIZE
        while True:
            page = await self._call(method, request, live=True)
            yield page
            # Tokens grow; one that does not would never end.
            if page.next_page_token <= request.page_token:
                return
            request.page_token = page.next_page_token

    async def _stream(self, method: Method[RequestT, ResponseT], request: RequestT) -> AsyncGenerator[ResponseT, None]:
        began = self._clock.monotonic()
        while True:
            route = Route(self._addresses.in_order())
            for address in route:
                begun = False
                try:
                    stream = self._channel(address).stream(method, request)
                    async with contextlib.aclosing(_closable(stream)) as closable:
                        async for each in closable:
                            begun = True
                            self._addresses.use(address)
                            yield each
                except NotLeaderError as refusal:
                    if begun:
                        raise
                    route.follow(refusal)
                except UnavailableError as error:
                    if begun:
                        raise
                    route.fail(address, error)
                else:
                    return
            await self._wait_to_try_again(route, began, 0.0)

    async def _converse(
        self, method: Method[RequestT, ResponseT], first: RequestT, rest: AsyncIterator[RequestT]
    ) -> AsyncGenerator[ResponseT, None]:
        """A call that streams both ways. `rest` is read once an answer has come: before, the call can be repeated."""
        began = self._clock.monotonic()
        while True:
            route = Route(self._addresses.in_order())
            for address in route:
                answered = asyncio.Event()
                try:
                    stream = self._channel(address).converse(method, _after(first, rest, answered))
                    async with contextlib.aclosing(_closable(stream)) as closable:
                        async for each in closable:
                            answered.set()
                            self._addresses.use(address)
                            yield each
                except NotLeaderError as refusal:
                    if answered.is_set():
                        raise
                    route.follow(refusal)
                except UnavailableError as error:
                    if answered.is_set():
                        raise
                    route.fail(address, error)
                else:
                    return
            await self._wait_to_try_again(route, began, 0.0)

    async def _wait_to_try_again(self, route: Route, began: float, patience: float) -> None:
        """Wait before every address is tried again, or raise the error."""
        waited = self._clock.monotonic() - began
        for error in filter(was_said, route.failures):
            raise error
        if waited >= (LEADER_WITHIN if route.refusal is not None else patience):
            # The leader's own failure says more than the refusal of a follower: the leader may even have done it.
            raise route.failure_of_leader or route.refusal or await self._unavailable(route.failures)
        await self._clock.sleep(_RETRY_EVERY)

    def _channel(self, address: str) -> Channel:
        if address not in self._channels:
            self._channels[address] = self._transport.connect(address, peer=CONTROL_PLANE)
        return self._channels[address]

    async def _unavailable(
        self, errors: Sequence[UnavailableError | DeadlineError]
    ) -> UnavailableError | DeadlineError:
        """One error for all addresses, with the reason of each in one sentence."""
        addresses = [error.facts["address"] for error in errors]
        found = {each: await self._transport.diagnose(each, peer=CONTROL_PLANE) for each in addresses}
        if len(errors) == 1 and isinstance(errors[0], DeadlineError):
            known = found[errors[0].facts["address"]]
            # It may have been reached and have done it, unless no connection is possible.
            if known is None or errors[0].hint:
                return errors[0]
        reasons: dict[str, None] = {}
        hints: dict[str, None] = {}
        for error in errors:
            known = found[error.facts["address"]]
            reasons[known.reason if known is not None else _reason(error)] = None
            hints[known.hint if known is not None else _START] = None
        where = ", ".join(self.addresses)
        return UnavailableError(
            f"the control plane at {where} cannot be reached: {'; '.join(reasons)}",
            hint=next((each for each in hints if each), _START),
            address=where,
        )


_START = "start one with `shoal up`, or give its address with --control or SHOAL_CONTROL"


def _reason(error: UnavailableError | DeadlineError) -> str:
    """The cause at the end of gRPC's text. A connection that breaks has none: gRPC calls it OK."""
    reason = error.message.rpartition(": ")[2].strip("[].")
    return reason if reason not in ("", "OK") else "the connection broke"


async def _after(first: RequestT, rest: AsyncIterator[RequestT], answered: asyncio.Event) -> AsyncIterator[RequestT]:
    """The requests of a stream both ways: the first at once, the others after the first answer."""
    yield first
    await answered.wait()
    async for request in rest:
        yield request


async def _closable(stream: AsyncIterator[ResponseT]) -> AsyncGenerator[ResponseT, None]:
    """The same stream with an `aclose`."""
    try:
        async for each in stream:
            yield each
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
