"""Renews the certificate that an agent got by joining, when two thirds of its lifetime are over.

The new files replace the old ones, and the transport uses them by itself. If no leader answers, the agent asks again
later; a third of the lifetime is left for that. Run by `shoal.agent.server`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from shoal.agent.contact.control_client import ControlClient
from shoal.core.clock import Clock
from shoal.core.disk.private_files import read_private
from shoal.core.entropy import Entropy
from shoal.core.errors import InternalError, ShoalError
from shoal.core.retry import Backoff
from shoal.wire.routes import ask_in_turn
from shoal.wire.trust.authority import Pair, make_signing_request
from shoal.wire.trust.certificates import identity_of, matches, read_certificates
from shoal.wire.trust.credentials import CredentialPaths, write_credentials

log = logging.getLogger(__name__)

SHARE = 2 / 3
#: A changed clock or replaced files are noticed this soon.
LOOK_EVERY = timedelta(hours=1)

_RETRY = Backoff(first=5.0, cap=600.0)


class Renewal:
    """Renews the files of one agent."""

    def __init__(
        self, paths: CredentialPaths, connect: Callable[[], ControlClient], *, clock: Clock, entropy: Entropy
    ) -> None:
        self._paths = paths
        self._connect = connect
        self._clock = clock
        self._entropy = entropy

    async def run(self) -> None:
        """Renew when it is due. Runs until cancelled."""
        failures = 0
        # Agents that joined together do not renew together.
        share = SHARE - self._entropy.uniform(0.0, 0.05)
        while True:
            try:
                wait = self._due_in(share)
                if wait <= 0:
                    await self.renew()
                    failures = 0
                    continue
            except ShoalError as error:
                failures += 1
                log.warning("the certificate could not be renewed: %s", error.message)
                wait = _RETRY.delay(failures, self._entropy)
            await self._clock.sleep(min(wait, LOOK_EVERY.total_seconds()))

    async def renew(self) -> None:
        """Get a new key certified and put both in the place of the old ones."""
        identity = identity_of(read_certificates(read_private(self._paths.cert))[0])
        own = await asyncio.to_thread(make_signing_request, identity)
        answer = await ask_in_turn(self._connect, lambda way: way.renew_certificate(own.csr))
        fresh = read_certificates(answer.certificate)[0]
        if identity_of(fresh) != identity or not matches(fresh, own.key):
            raise InternalError("the control plane has issued a certificate for another identity")
        pair = Pair(answer.certificate, own.key)
        await asyncio.to_thread(write_credentials, self._paths.cert.parent, ca=answer.ca, pair=pair)
        log.info("the certificate was renewed; it is good until %s", fresh.not_valid_after_utc.isoformat())

    def _due_in(self, share: float) -> float:
        leaf = read_certificates(read_private(self._paths.cert))[0]
        life = leaf.not_valid_after_utc - leaf.not_valid_before_utc
        return (leaf.not_valid_before_utc + life * share - self._clock.wall()).total_seconds()
