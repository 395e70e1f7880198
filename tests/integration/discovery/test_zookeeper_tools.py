"""The tools on a real ZooKeeper."""

from __future__ import annotations

import pytest

from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore
from tests.peers.tools_suite import ToolsSuite

pytestmark = pytest.mark.integration


class TestZookeeperTools(ToolsSuite):
    __test__ = True

    @pytest.fixture
    def make_tree(self, zookeeper):
        return lambda _servers: ZookeeperStore(ZookeeperSettings(zookeeper))
