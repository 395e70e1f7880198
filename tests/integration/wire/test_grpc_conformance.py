"""The transport over sockets does what every transport does."""

from __future__ import annotations

import pytest

from shoal.testing.suites.parrot import Tally
from shoal.testing.suites.transport import TransportSuite
from shoal.wire.channel import GrpcTransport
from shoal.wire.transport import Transport

pytestmark = pytest.mark.integration


class TestGrpcTransport(TransportSuite):
    __test__ = True

    @pytest.fixture
    def transport(self, tally: Tally) -> Transport:
        return GrpcTransport(observer=tally)
