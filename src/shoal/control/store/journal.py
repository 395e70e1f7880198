"""The journal of the coordination tree in the store of the control plane. Made for one term of leadership."""

from __future__ import annotations

from shoal.control.store.base import Batch, Store
from shoal.discovery.embedded.tree import Changes


class StoreJournal:
    """Implements `shoal.discovery.embedded.owner.Journal`. A leader that was replaced cannot write."""

    def __init__(self, store: Store, *, term: int) -> None:
        self._store = store
        self._term = term

    async def load(self) -> Changes:
        """Everything that is stored."""
        return await self._store.coordination()

    async def append(self, changes: Changes) -> None:
        """Store one change of the tree."""
        await self._store.commit(Batch(coordination=changes), term=self._term)
