"""Our own coordination tree. It lives in one process, and needs nothing beside it.

tree = EmbeddedTree(clock)
store = tree.session()
await store.open()
"""

from __future__ import annotations

from shoal.discovery.embedded.session import EmbeddedStore, EmbeddedTree

__all__ = ["EmbeddedStore", "EmbeddedTree"]
