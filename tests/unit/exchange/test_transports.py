"""Every transport of the exchange through its suite."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.exchange.flight.endpoint import FlightEndpoint
from shoal.exchange.local import Switchboard
from shoal.exchange.unix import UnixEndpoint
from shoal.testing.certificates import Certificates
from shoal.testing.suites.exchange import ExchangeSuite, MakeEndpoint, closing_all
from shoal.wire.trust.credentials import CredentialPaths, Credentials, read_credentials
from shoal.wire.trust.security import MutualTls


class TestLocal(ExchangeSuite):
    __test__ = True

    @pytest.fixture
    def endpoints(self) -> Iterator[MakeEndpoint]:
        board = Switchboard()
        with closing_all() as keep:
            yield lambda gate: keep(board.endpoint(gate))


class TestUnix(ExchangeSuite):
    __test__ = True

    @pytest.fixture
    def endpoints(self) -> Iterator[MakeEndpoint]:
        numbers = itertools.count()
        # Not below `tmp_path`: the path of a socket has to be short.
        with tempfile.TemporaryDirectory(prefix="sx") as folder, closing_all() as keep:
            yield lambda gate: keep(UnixEndpoint(f"{folder}/{next(numbers)}.sock", gate))


class TestFlight(ExchangeSuite):
    __test__ = True

    @pytest.fixture
    def endpoints(self, tmp_path: Path) -> Iterator[MakeEndpoint]:
        credentials = read_files(Certificates(tmp_path).workload("orders", "n1"))
        with closing_all() as keep:
            yield lambda gate: keep(FlightEndpoint("127.0.0.1", gate, lambda: credentials))


class TestFlightWithoutTls(ExchangeSuite):
    __test__ = True

    @pytest.fixture
    def endpoints(self) -> Iterator[MakeEndpoint]:
        with closing_all() as keep:
            yield lambda gate: keep(FlightEndpoint("127.0.0.1", gate))


def read_files(files: MutualTls) -> Credentials:
    paths = CredentialPaths(files.ca, files.cert, files.key)
    return read_credentials(paths, now=SystemClock().wall())
