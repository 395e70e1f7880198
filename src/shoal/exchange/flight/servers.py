"""The Flight server of an endpoint: it asks each call for the job's token before anything of it is read.

Made by `endpoint`, one for each certificate: pyarrow fixes a server's certificate when it is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow.flight as fl

from shoal.core.errors import ShoalError
from shoal.exchange.errors import write_error
from shoal.exchange.tokens import Gate
from shoal.wire.trust.credentials import Credentials

#: The header of a call that carries the token.
TOKEN_HEADER = "x-shoal-exchange-token"  # noqa: S105 - the name of a header
#: What a call asks for. There is one thing to ask for.
COMMAND = b"shoal.exchange"

Take = Callable[["ExchangeServer", Any, Any], None]


class _AskForToken(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses a call before its first message is read."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def start_call(self, info: Any, headers: Any) -> None:
        """A call begins."""
        tokens = headers.get(TOKEN_HEADER, [""])
        try:
            self._gate.admit(str(tokens[0]))
        except ShoalError as error:
            raise fl.FlightUnauthenticatedError(error.message, write_error(error)) from None


class ExchangeServer(fl.FlightServerBase):  # type: ignore[misc]
    """Takes calls of senders."""

    def __init__(self, location: str, gate: Gate, credentials: Credentials | None, take: Take) -> None:
        tls: dict[str, Any] = {}
        if credentials is not None:
            tls = {
                "tls_certificates": [(credentials.cert, credentials.key)],
                "verify_client": True,
                "root_certificates": credentials.ca,
            }
        super().__init__(location, middleware={"token": _AskForToken(gate)}, **tls)
        self._take = take
        self._closing = threading.Thread(target=self.shutdown, name="exchange drain", daemon=True)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """A sender connects. The call lasts as long as this does."""
        del context
        if descriptor.command != COMMAND:
            raise fl.FlightServerError("unknown command")
        self._take(self, reader, writer)

    def drain(self) -> None:
        """Take no more calls; those under way go on. By one thread."""
        if self._closing.ident is None:
            self._closing.start()

    def wait_closed(self, seconds: float) -> bool:
        """Wait until the last call is over."""
        self._closing.join(seconds)
        return not self._closing.is_alive()
