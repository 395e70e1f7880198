"""The transport over sockets does what every transport does, with certificates and without."""

from __future__ import annotations

import pytest

from shoal.model.identity import Role
from shoal.testing.certificates import Certificates
from shoal.testing.suites.parrot import SERVED, UNHEARD_OF, Tally
from shoal.testing.suites.transport import TransportSuite
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Transport
from shoal.wire.trust.authorization import RULES, Rule

pytestmark = pytest.mark.integration


class TestGrpcTransport(TransportSuite):
    __test__ = True

    @pytest.fixture
    def transport(self, tally: Tally) -> Transport:
        return GrpcTransport(observer=tally)


class TestGrpcTransportWithCertificates(TransportSuite):
    __test__ = True

    @pytest.fixture
    def transport(self, tally: Tally, tmp_path) -> Transport:
        everyone = {method.path: Rule(frozenset(Role)) for method in (*SERVED, UNHEARD_OF)}
        return GrpcTransport(observer=tally, security=Certificates(tmp_path).control(), rules={**RULES, **everyone})
