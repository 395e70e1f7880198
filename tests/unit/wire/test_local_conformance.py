"""The local transport does what every transport does."""

from __future__ import annotations

import pytest

from shoal.testing.suites.parrot import Tally
from shoal.testing.suites.transport import TransportSuite
from shoal.wire.local import LocalNetwork
from shoal.wire.transport import Transport


@pytest.mark.looptime
class TestLocalTransport(TransportSuite):
    __test__ = True

    @pytest.fixture
    def transport(self, tally: Tally) -> Transport:
        return LocalNetwork().transport("here", observer=tally)
