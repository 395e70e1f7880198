"""Discovery on the embedded tree, in the process and served."""

from __future__ import annotations

import pytest

from shoal.core.clock import SystemClock
from shoal.discovery.embedded import EmbeddedTree
from tests.peers.discovery_suite import DiscoverySuite
from tests.unit.discovery.test_embedded import EmbeddedFaults
from tests.unit.discovery.test_served import Served


class TestEmbeddedDiscovery(DiscoverySuite):
    __test__ = True

    @pytest.fixture
    async def tree(self):
        tree = EmbeddedTree(SystemClock())
        yield tree
        await tree.close()

    @pytest.fixture
    def make_store(self, tree):
        return tree.session

    @pytest.fixture
    def faults(self):
        return EmbeddedFaults()


class TestServedDiscovery(DiscoverySuite):
    __test__ = True

    @pytest.fixture
    async def faults(self):
        served = Served()
        await served.start()
        yield served
        await served.stop()

    @pytest.fixture
    def make_store(self, faults):
        return faults.store
