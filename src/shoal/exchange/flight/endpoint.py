"""An `Endpoint` that others reach by Arrow Flight, with the fleet's certificates on both sides.

A process has one call to each process that it sends to, and all channels to it share that. TLS lets in peers that the
fleet's authority has signed for; who may send is decided by the job's token. When the certificate is renewed, a second
server takes new calls at the same address, senders move to it at their next control frame, and the first one goes when
its last call is over.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.flight as fl

from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import ShoalError
from shoal.exchange.base import Batch, Control, Receiving, Sender
from shoal.exchange.errors import Cancelled, PeerLostError
from shoal.exchange.flight.calls import ClientCall, ServerCall, as_raised
from shoal.exchange.flight.servers import COMMAND, TOKEN_HEADER, ExchangeServer
from shoal.exchange.frames import Kind
from shoal.exchange.intake import Intake, Served
from shoal.exchange.outlet import ChannelSender, Outlet
from shoal.exchange.tokens import Gate
from shoal.model.identity import own_server_name
from shoal.wire.trust.credentials import Credentials

log = logging.getLogger(__name__)

#: How often a server is made again whose port is not free yet: the one before lets go of it at once.
_BINDS = 100
_BIND_PAUSE = 0.02
_BACKOFFS = ("initial", "min", "max")
#: Seconds that `close` waits for callers to hang up. One that is dead does not.
_CLOSE = 3.0


@dataclass(frozen=True, slots=True)
class FlightSettings:
    """Limits of a Flight endpoint."""

    #: Seconds in which a peer has to say who it is, and in which it has to answer.
    handshake: float = 10.0
    #: Seconds after which a peer that says nothing is lost.
    stall: float = 15.0
    #: Calls from others at most.
    most_peers: int = 1024


@dataclass(slots=True, eq=False)
class _Taken:
    """A call from another process."""

    server: ExchangeServer
    call: ServerCall
    intake: Intake


class FlightEndpoint:
    """An `Endpoint` at a port.

    Args:
        host: the address that it listens at, and that others reach it at unless `advertise` says otherwise.
        gate: which peers it lets in.
        credentials: the newest certificate, such as `CredentialWatch.look`; None without TLS.
        server_name: the name that the certificates of its peers must be good for; its own unless given.
    """

    def __init__(
        self,
        host: str,
        gate: Gate,
        credentials: Callable[[], Credentials] | None = None,
        *,
        port: int = 0,
        advertise: str = "",
        server_name: str = "",
        settings: FlightSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._host = host
        self._gate = gate
        self._look = credentials
        self._server_name = server_name
        self._settings = settings or FlightSettings()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._dialing = threading.Lock()
        self._served = Served()
        self._taken: set[_Taken] = set()
        self._calls: set[ClientCall] = set()
        self._outlets: dict[str, Outlet] = {}
        self._is_closed = threading.Event()
        self._credentials = credentials() if credentials else None
        self._server = self._listen(port)
        self._port = int(self._server.port)
        self.address = f"{advertise or host}:{self._port}"
        self._watch = threading.Thread(target=self._keep, name=f"exchange watch {self._port}", daemon=True)
        self._watch.start()
        # Flight's threads must not call into an interpreter that is being torn down.
        atexit.register(self.close)

    def serve(self, names: Sequence[str], inbox: Receiving) -> None:
        """Let senders connect to channels."""
        self._served.add(names, inbox)

    def connect(self, address: str, name: str) -> Sender:
        """Connect to a channel that another endpoint serves."""
        return FlightSender(self._outlet(address, name).open(name), lambda: self._outlet(address, name))

    def close(self) -> None:
        """Close every channel."""
        with self._lock:
            if self._is_closed.is_set():
                return
            self._is_closed.set()
            outlets, taken = list(self._outlets.values()), list(self._taken)
        atexit.unregister(self.close)
        self._server.drain()
        for outlet in outlets:
            outlet.close()
        for each in taken:
            each.call.shutdown()
        deadline = self._clock.monotonic() + _CLOSE
        for each in taken:
            each.intake.close(max(0.0, deadline - self._clock.monotonic()))
        self._served.fail_all("this end was closed")
        self._watch.join()
        if not self._server.wait_closed(_CLOSE):
            log.warning("a caller of %s does not hang up: its call ends with this process", self.address)

    # -- calls of ours ----------------------------------------------------------------------------------------

    def _outlet(self, address: str, name: str) -> Outlet:
        with self._dialing:  # not the other lock: who answers may be this endpoint
            outlet = self._outlets.get(address)
            if outlet is None or outlet.is_lost or outlet.is_moving:
                outlet = self._dial(address, name)
            with self._lock:
                if not self._is_closed.is_set():
                    self._outlets[address] = outlet
                    return outlet
        outlet.close()
        raise PeerLostError(name, "this end was closed")

    def _dial(self, address: str, name: str) -> Outlet:
        if self._is_closed.is_set():
            raise PeerLostError(name, "this end was closed")
        handshake, token = self._settings.handshake, self._gate.token
        call = self._call(address, name)
        with self._lock:
            self._calls = {each for each in self._calls if not each.is_over} | {call}
        call.limit_reads(handshake)
        try:
            call.start()
        except (OSError, ShoalError) as error:
            call.close()
            raise _as_lost(error, address, name) from error
        return Outlet.greet(call, address=address, channel=name, token=token, handshake=handshake)

    def _call(self, address: str, name: str) -> ClientCall:
        options = fl.FlightCallOptions(headers=[(TOKEN_HEADER.encode(), self._gate.token.encode())])
        try:
            client = self._client(address)
            writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(COMMAND), options)
        except Exception as error:
            raise _as_lost(as_raised(error), address, name) from error
        return ClientCall(client, writer, reader, stall=self._settings.stall, clock=self._clock)

    def _client(self, address: str) -> Any:
        # Every call has a connection of its own, made with the newest certificate.
        own = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        # It bounds the time of connecting, which nobody can end.
        own += [(f"grpc.{name}_reconnect_backoff_ms", int(self._settings.handshake * 1000)) for name in _BACKOFFS]
        if self._look is None:
            return fl.FlightClient(f"grpc+tcp://{address}", generic_options=own)
        newest = self._look()
        return fl.FlightClient(
            f"grpc+tls://{address}",
            tls_root_certs=newest.ca,
            cert_chain=newest.cert,
            private_key=newest.key,
            override_hostname=self._server_name or own_server_name(newest.identity),
            generic_options=own,
        )

    # -- calls of others --------------------------------------------------------------------------------------

    def _listen(self, port: int) -> ExchangeServer:
        scheme = "grpc+tls" if self._credentials is not None else "grpc+tcp"
        location = f"{scheme}://{self._host}:{port}"
        try:
            return ExchangeServer(location, self._gate, self._credentials, self._take)
        except Exception as error:
            raise ShoalError(f"cannot listen at {self._host}:{port}: {error}") from error

    def _take(self, server: ExchangeServer, reader: Any, writer: Any) -> None:
        """By the thread of a call, which ends with this."""
        with self._lock:
            if self._is_closed.is_set() or len(self._taken) >= self._settings.most_peers:
                raise fl.FlightUnavailableError("there are as many peers as are allowed")
            call = ServerCall(reader, writer, stall=self._settings.stall, clock=self._clock)
            taken = _Taken(server, call, Intake(call, self._gate, self._served))
            self._taken.add(taken)
        try:
            taken.intake.run(self._settings.handshake)
        finally:
            with self._lock:
                self._taken.discard(taken)

    # -- the watch --------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        settings = self._settings
        while not self._is_closed.wait(min(1.0, settings.stall / 8, settings.handshake / 8)):
            self._look_at_calls()
            if self._look is not None and self._look() is not self._credentials:
                self._renew()

    def _look_at_calls(self) -> None:
        with self._lock:
            taken, calls = list(self._taken), list(self._calls)
        for call in calls:
            call.look()
        for each in taken:
            if reason := each.call.silent():
                each.intake.lose(reason)
            elif each.server is not self._server:
                each.intake.tell(Kind.MOVING, 0)

    def _renew(self) -> None:
        """Take new calls with the newest certificate, at the same port. What fails is tried again at the next look."""
        before, self._credentials = self._credentials, self._look() if self._look else None
        self._server.drain()
        problem: ShoalError | None = None
        for _ in range(_BINDS):
            try:
                self._server = self._listen(self._port)
            except ShoalError as error:
                problem = error
                if self._is_closed.wait(_BIND_PAUSE):
                    return
            else:
                log.info("%s takes new streams with a new certificate", self.address)
                return
        self._credentials = before
        log.error("%s takes no new streams: %s", self.address, problem.message if problem else "")


def _as_lost(error: BaseException, address: str, name: str) -> BaseException:
    return PeerLostError(name, f"{address}: {error}") if isinstance(error, OSError) else error


class FlightSender:
    """The sending end of a channel, which moves to another call when the receiver asks for it."""

    def __init__(self, sender: ChannelSender, redial: Callable[[], Outlet]) -> None:
        self._sender = sender
        self._redial = redial
        self._next: ChannelSender | None = None
        self._is_closed = False
        self._blocked_before = 0.0

    @property
    def blocked_seconds(self) -> float:
        """How long it has waited for credit so far."""
        return self._blocked_before + self._sender.blocked_seconds

    def send(self, batch: Batch) -> None:
        """Append rows; waits for credit."""
        self._sender.send(batch)

    def control(self, frame: Control) -> None:
        """Append a control frame."""
        if self._sender.outlet.is_moving:
            self._move()
        self._sender.control(frame)

    def end(self) -> None:
        """Nothing more comes."""
        self._sender.end()

    def fail(self, error: BaseException) -> None:
        """This side failed."""
        self._sender.fail(error)

    def close(self) -> None:
        """Let go of it."""
        self._is_closed = True
        self._sender.close()
        if self._next is not None:
            self._next.close()

    def _move(self) -> None:
        before = self._sender
        try:
            self._next = after = self._redial().follow(before.name)
        except ShoalError as error:
            # What it has is as good as before. It is told again, and tries again.
            before.outlet.is_moving = False
            log.warning("channel %r stays where it is: %s", before.name, error.message)
            return
        before.leave(after)
        self._blocked_before += before.blocked_seconds
        self._sender, self._next = after, None
        if self._is_closed:
            after.close()
            raise Cancelled
