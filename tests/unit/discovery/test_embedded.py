"""The embedded tree does what every coordination tree does."""

from __future__ import annotations

import pytest

from shoal.core.clock import SystemClock
from shoal.discovery.embedded import EmbeddedStore, EmbeddedTree
from shoal.testing.suites.coordination import CoordinationSuite


class EmbeddedFaults:
    async def suspend(self, store: EmbeddedStore) -> None:
        store.suspend()

    async def resume(self, store: EmbeddedStore) -> None:
        store.resume()

    async def expire(self, store: EmbeddedStore) -> None:
        await store.expire()

    async def outlast(self, store: EmbeddedStore) -> None:
        await store.expire()


class TestEmbedded(CoordinationSuite):
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
