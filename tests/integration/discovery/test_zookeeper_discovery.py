"""Discovery on a real ZooKeeper, as fleets of Monolith's agents and ours use it."""

from __future__ import annotations

import pytest

from tests.integration.discovery import test_zookeeper as zookeeper_suite
from tests.peers.discovery_suite import DiscoverySuite

pytestmark = pytest.mark.integration


class TestZookeeperDiscovery(DiscoverySuite):
    __test__ = True

    faults = zookeeper_suite.TestZookeeper.faults
    make_store = zookeeper_suite.TestZookeeper.make_store
