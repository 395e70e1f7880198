"""Every transport of the exchange through its suite."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator

import pytest

from shoal.exchange.local import Switchboard
from shoal.exchange.unix import UnixEndpoint
from shoal.testing.suites.exchange import ExchangeSuite, MakeEndpoint, closing_all


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
