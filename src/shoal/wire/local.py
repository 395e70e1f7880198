"""The transport without sockets: calls within one event loop, so that whole fleets run in virtual time.

A `LocalNetwork` knows servers by address. Messages are serialized and parsed, errors become statuses and errors again,
and buffers and sizes have the same bounds. So code that works here works over gRPC; both pass one conformance suite.
Network faults are scripted: calls fail, wait, or get lost before or after the handler ran, and two ends can be cut off
from each other.

    network = LocalNetwork()
    control = network.transport("control")
    agent = network.transport("agent-1")
    network.partition("control", "agent-1")

A transport may have an identity in place of a certificate. Then both ends of a call need one, and the rules apply as
they do over gRPC.

Used by tests and by `shoal.testing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from shoal.core.errors import InternalError, InvalidError, ShoalError, UnauthenticatedError, UnavailableError
from shoal.core.tasks import TaskScope, task_scope
from shoal.model.identity import CLOCK_SKEW, Caller, Identity, Peer
from shoal.wire.addresses import parse_address
from shoal.wire.health import Health
from shoal.wire.local_faults import Conversation, ScriptedFaults, canonical
from shoal.wire.serving import (
    Endpoint,
    RpcObserver,
    answer,
    checked_metadata,
    close_stream,
    converse,
    endpoints_of,
    pack,
    refuse,
    unknown_method,
    unpack,
)
from shoal.wire.status import OK, Code, Status, explain
from shoal.wire.transport import (
    DEFAULT_TIMEOUT,
    Call,
    Cardinality,
    CheckCaller,
    Diagnosis,
    Method,
    Request,
    Response,
    Service,
)
from shoal.wire.trust.authorization import RULES, Policy, Rule

_FIRST_PORT = 20_000
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_NEVER = datetime(9999, 1, 1, tzinfo=UTC)


class LocalNetwork(ScriptedFaults):
    """Servers by address, and what goes wrong between them and their callers."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: dict[str, LocalServer] = {}
        self._next_port = _FIRST_PORT

    def transport(
        self,
        name: str = "",
        *,
        observer: RpcObserver | None = None,
        identity: Identity | None = None,
        issued_at: datetime = _LONG_AGO,
        rules: Mapping[str, Rule] = RULES,
    ) -> LocalTransport:
        """A transport of this network for the program of that name; an insecure one without an identity."""
        caller = Caller(identity, issued_at - CLOCK_SKEW, _NEVER) if identity is not None else None
        return LocalTransport(self, name, observer, caller, rules)

    def free_port(self) -> int:
        """A port that nobody has had."""
        self._next_port += 1
        return self._next_port


class LocalTransport:
    """Makes channels and servers of a `LocalNetwork` for one program."""

    def __init__(
        self,
        network: LocalNetwork,
        name: str,
        observer: RpcObserver | None,
        caller: Caller | None,
        rules: Mapping[str, Rule],
    ) -> None:
        self.network = network
        self.name = name
        self.identity = caller.identity if caller is not None else None
        self._caller = caller
        self._observer = observer
        self._rules = rules

    def credentials_version(self) -> int:
        """Always the same: there are no files here."""
        return 0

    def connect(self, address: str, *, peer: Peer | None = None) -> LocalChannel:
        """A channel to host:port. Raises `InvalidError` when that is no address."""
        parse_address(address)
        return LocalChannel(self.network, self.name, address, self._caller, peer)

    async def diagnose(self, address: str, *, peer: Peer | None = None) -> Diagnosis | None:
        """Nothing more than the calls say."""
        return None

    async def serve(
        self, address: str, services: Sequence[Service], *, check_caller: CheckCaller | None = None
    ) -> LocalServer:
        """Serve at host:port (port 0: any free one). Raises `UnavailableError` when the address is taken."""
        wanted = parse_address(address, listening=True).dialable()
        if wanted.port == 0:
            wanted = wanted.with_port(self.network.free_port())
        key = canonical(str(wanted))
        if key in self.network.servers:
            raise UnavailableError(f"cannot listen on {wanted}: address already in use", address=wanted)
        server = LocalServer(
            self.network,
            self.name,
            key,
            services,
            observer=self._observer,
            identity=self.identity,
            rules=self._rules,
            check_caller=check_caller,
        )
        self.network.servers[key] = server
        return server


class LocalServer:
    """A running server."""

    def __init__(
        self,
        network: LocalNetwork,
        name: str,
        address: str,
        services: Sequence[Service],
        *,
        observer: RpcObserver | None,
        identity: Identity | None,
        rules: Mapping[str, Rule],
        check_caller: CheckCaller | None,
    ) -> None:
        self.name = name
        self.identity = identity
        self._check_caller = check_caller
        self._network = network
        self._address = address
        self._health = Health(method.service for service in services for method in service.methods)
        # Without identities there is nobody to refuse: an insecure server lets everyone do everything.
        policy = Policy(identity.cluster, rules) if identity is not None else None
        self._endpoints = endpoints_of([*services, self._health.service()], policy)
        self._observer = observer
        self._scope = TaskScope(f"server {address}")
        self._calls: set[Conversation] = set()

    @property
    def address(self) -> str:
        """host:port that others may dial."""
        return self._address

    def set_serving(self, serving: bool) -> None:
        """What the health service answers."""
        self._health.set_serving(serving)

    async def stop(self, grace: float = 1.0) -> None:
        """Take no new calls, give those under way `grace` seconds, then end them. Safe to call twice."""
        self._health.set_serving(False)
        if self._network.servers.get(self._address) is self:
            del self._network.servers[self._address]
        tasks = {call.task for call in self._calls if call.task is not None}
        if tasks and grace > 0:
            await asyncio.wait(tasks, timeout=grace)
        for call in list(self._calls):
            call.break_off("the server has stopped")
        await self._scope.close()

    def accept(self, conversation: Conversation, call: Call, caller: Caller | None) -> None:
        """Serve a call in the background."""
        self._calls.add(conversation)
        if caller is not None:
            call = replace(call, identity=caller.identity, standing=partial(self._seconds_left, caller))
        conversation.task = self._scope.start(self._serve(conversation, call), name=call.method)

    def _seconds_left(self, caller: Caller) -> float:
        if self._check_caller is not None:
            self._check_caller(caller)
        return math.inf

    async def _serve(self, conversation: Conversation, call: Call) -> None:
        try:
            status = await self._respond(conversation, call)
            await conversation.finish(status)
        except asyncio.CancelledError:
            conversation.break_off("the call was ended by the server")
            raise
        finally:
            self._calls.discard(conversation)

    async def _respond(self, conversation: Conversation, call: Call) -> Status:
        endpoint: Endpoint | None = self._endpoints.get(call.method)
        if endpoint is None:
            return unknown_method(call.method)
        try:
            if call.standing is not None:
                call.standing()
        except UnauthenticatedError as error:
            return refuse(endpoint, error, self._observer)
        requests = conversation.read_requests()
        if endpoint.method.cardinality is not Cardinality.UNARY:
            return await converse(endpoint, requests, conversation.replies.put, call, self._observer)
        result = await answer(endpoint, await anext(requests), call, self._observer)
        if isinstance(result, Status):
            return result
        await conversation.replies.put(result)
        return OK


class LocalChannel:
    """A connection to one address of a `LocalNetwork`."""

    def __init__(
        self, network: LocalNetwork, name: str, address: str, caller: Caller | None, peer: Peer | None
    ) -> None:
        self._network = network
        self._name = name
        self._address = address
        self._caller = caller
        self._identity = caller.identity if caller is not None else None
        self._peer = peer
        self._key = canonical(address)
        self._closed = False
        self._calls: set[Conversation] = set()

    @property
    def address(self) -> str:
        """Where it leads."""
        return self._address

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        """A unary call."""
        replies = self._exchange(method, _only(request), timeout=timeout, metadata=metadata)
        try:
            results = [reply async for reply in replies]
        finally:
            await close_stream(replies)
        if len(results) != 1:
            raise InternalError(f"{method.path}: {self._address} gave {len(results)} answers instead of one")
        return results[0]

    async def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """A call whose answer is a stream."""
        replies = self._exchange(method, _only(request), timeout=timeout, metadata=metadata)
        try:
            async for reply in replies:
                yield reply
        finally:
            await close_stream(replies)

    async def converse(
        self,
        method: Method[Request, Response],
        requests: AsyncIterator[Request],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """A call that streams both ways."""
        replies = self._exchange(method, requests, timeout=None, metadata=metadata)
        try:
            async for reply in replies:
                yield reply
        finally:
            await close_stream(replies)

    async def close(self) -> None:
        """Let go. Calls under way end with `UnavailableError`."""
        self._closed = True
        for call in list(self._calls):
            call.break_off("the channel was closed")

    # -----------------------------------------------------------------------------------------------------

    async def _exchange(
        self,
        method: Method[Request, Response],
        requests: AsyncIterator[Request],
        *,
        timeout: float | None,
        metadata: Mapping[str, str] | None,
    ) -> AsyncIterator[Response]:
        headers = dict(checked_metadata(metadata))
        if self._closed:
            raise UnavailableError(f"the channel to {self._address} is closed", address=self._address)
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        failures: list[Exception] = []
        conversation = Conversation(self._links())
        self._calls.add(conversation)
        self._network.calls.add(conversation)
        try:
            async with task_scope("local call") as scope:
                first = await self._prepare(method, requests)
                async with self._deadline(deadline, method, timeout):
                    await self._reach(method, conversation, headers, deadline)
                scope.start(self._send(method, conversation, first, requests, failures), name=method.path)
                while True:
                    async with self._deadline(deadline, method, timeout):
                        data = await conversation.replies.get()
                        await self._arrive(conversation, method)
                    if data is None:
                        break
                    yield self._read(method, data)
                if failures:
                    raise failures[0]
                self._end(conversation, method, timeout)
        finally:
            conversation.abandon()
            self._calls.discard(conversation)
            self._network.calls.discard(conversation)
            await close_stream(requests)

    async def _prepare(self, method: Method[Any, Any], requests: AsyncIterator[Any]) -> bytes | None:
        """A single request is packed before anything is sent: one that is too large reaches nobody."""
        if method.cardinality is Cardinality.BOTH_STREAM:
            return None
        return pack(await anext(requests), method)

    async def _reach(
        self, method: Method[Any, Any], conversation: Conversation, headers: dict[str, str], deadline: float | None
    ) -> None:
        faults = self._network.faults(self._key)
        await self._cross(conversation, method)
        if faults.lost_requests > 0:
            faults.lost_requests -= 1
            raise self._unavailable("the connection broke before the request arrived", method)
        if faults.error is not None:
            raise explain(faults.error, address=self._address, method=method.path, timeout=None)
        if faults.seconds > 0:
            await asyncio.sleep(faults.seconds)
        server = self._network.servers.get(self._key)
        if server is None or conversation.status is not None:
            raise self._unavailable("connection refused", method)
        self._shake_hands(server.identity, method)
        left = None if deadline is None else deadline - asyncio.get_running_loop().time()
        server.accept(conversation, Call(method.path, f"local:{self._name}", headers, left), self._caller)

    def _shake_hands(self, server: Identity | None, method: Method[Any, Any]) -> None:
        """What TLS does: both sides have certificates or neither has, and the server is the one we mean."""
        if (server is None) != (self._identity is None):
            raise self._unavailable("handshake failed: only one side has a certificate", method)
        if server is None or self._identity is None or self._peer is None:
            return
        if not self._peer.accepts(server, cluster=self._identity.cluster):
            text = f"the server there has no certificate of {self._peer} of this cluster"
            raise self._unavailable(text, method)

    async def _send(
        self,
        method: Method[Any, Any],
        conversation: Conversation,
        first: bytes | None,
        requests: AsyncIterator[Any],
        failures: list[Exception],
    ) -> None:
        try:
            if first is not None:
                await conversation.requests.put(first)
            else:
                async for request in requests:
                    data = pack(request, method)
                    await self._cross(conversation, method)
                    await conversation.requests.put(data)
            await conversation.requests.put(None)
        except Exception as error:  # noqa: BLE001 - raised by the reader of the answers
            failures.append(error)
            conversation.break_off("the requests ended with an error")

    async def _arrive(self, conversation: Conversation, method: Method[Any, Any]) -> None:
        """A reply, or the status at the end, has come this far: it may be lost, or have to wait."""
        if conversation.broken:
            return
        faults = self._network.faults(self._key)
        if faults.lost_replies > 0:
            faults.lost_replies -= 1
            raise self._unavailable("the connection broke before the answer arrived", method)
        await self._cross(conversation, method)

    async def _cross(self, conversation: Conversation, method: Method[Any, Any]) -> None:
        try:
            await self._network.cross(conversation.links)
        except UnavailableError as error:
            raise self._unavailable(error.message, method) from None

    @contextlib.asynccontextmanager
    async def _deadline(self, deadline: float | None, method: Method[Any, Any], timeout: float | None) -> Any:
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError:
            status = Status(Code.DEADLINE_EXCEEDED)
            raise explain(status, address=self._address, method=method.path, timeout=timeout) from None

    def _end(self, conversation: Conversation, method: Method[Any, Any], timeout: float | None) -> None:
        status = conversation.status or OK
        if status.code is not Code.OK:
            raise explain(status, address=self._address, method=method.path, timeout=timeout)

    def _unavailable(self, why: str, method: Method[Any, Any]) -> ShoalError:
        status = Status(Code.UNAVAILABLE, why)
        return explain(status, address=self._address, method=method.path, timeout=None)

    def _links(self) -> frozenset[frozenset[str]]:
        server = self._network.servers.get(self._key)
        ends = {self._key, self._address, *([server.name] if server is not None and server.name else [])}
        return frozenset(frozenset({self._name, end}) for end in ends)

    def _read(self, method: Method[Any, Response], data: bytes) -> Response:
        try:
            return unpack(method.response, data, method)  # type: ignore[no-any-return]
        except InvalidError as error:
            raise InternalError(
                f"{method.path}: the answer of {self._address} cannot be read", address=self._address
            ) from error


async def _only(request: Request) -> AsyncIterator[Request]:
    yield request
