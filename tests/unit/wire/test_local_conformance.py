"""The local transport does what every transport does, with identities and without."""

from __future__ import annotations

import pytest

from shoal.model.identity import Identity, Role
from shoal.testing.suites.parrot import SERVED, Tally
from shoal.testing.suites.transport import TransportSuite
from shoal.wire.local import LocalNetwork
from shoal.wire.transport import Transport
from shoal.wire.trust.authorization import RULES, Rule


@pytest.mark.looptime
class TestLocalTransport(TransportSuite):
    __test__ = True

    @pytest.fixture
    def transport(self, tally: Tally) -> Transport:
        return LocalNetwork().transport("here", observer=tally)


@pytest.mark.looptime
class TestLocalTransportWithIdentities(TransportSuite):
    __test__ = True

    @pytest.fixture
    def transport(self, tally: Tally) -> Transport:
        everyone = {method.path: Rule(frozenset(Role)) for method in SERVED}
        identity = Identity(Role.CONTROL, "default", "here")
        return LocalNetwork().transport("here", observer=tally, identity=identity, rules={**RULES, **everyone})
