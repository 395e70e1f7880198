"""What the conformance suite of coordination trees is made of: the fixtures to override, and how its tests wait.

`shoal.testing.suites.coordination` has the suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pytest

from shoal.core.entropy import SystemEntropy
from shoal.discovery.store import CoordinationStore, SessionState

T = TypeVar("T")


class Faults(Protocol):
    """Breaks what a store stands on."""

    async def suspend(self, store: CoordinationStore) -> None:
        """Break the connection, and keep it broken, until the store knows it."""
        ...

    async def resume(self, store: CoordinationStore) -> None:
        """Let the store connect again."""
        ...

    async def expire(self, store: CoordinationStore) -> None:
        """End the session of a store at the server."""
        ...

    async def outlast(self, store: CoordinationStore) -> None:
        """Wait until the server has given up the session of a suspended store."""
        ...


class Seen(Generic[T]):
    """What a watch delivered."""

    def __init__(self, patience: float) -> None:
        self.values: list[T] = []
        self._patience = patience
        self._more = asyncio.Event()

    def __call__(self, value: T) -> None:
        """Called by the watch."""
        self.values.append(value)
        self._more.set()

    @property
    def last(self) -> T:
        """The last value."""
        return self.values[-1]

    async def until(self, wanted: Callable[[T], bool]) -> T:
        """Wait for a last value that is as wanted."""
        async with asyncio.timeout(self._patience):
            while not self.values or not wanted(self.last):
                self._more.clear()
                await self._more.wait()
        return self.last

    async def is_now(self, value: T) -> None:
        """Wait for this last value."""
        try:
            await self.until(lambda last: last == value)
        except TimeoutError:
            raise AssertionError(f"expected {value!r} at the end of {self.values!r}") from None


class CoordinationKit:
    """Fixtures and tools."""

    __test__ = False

    patience: ClassVar[float] = 20.0
    """How long something may take that must happen, in seconds."""

    @pytest.fixture
    def make_store(self) -> Callable[[], CoordinationStore]:
        """Makes stores that are not open, all of one tree, each with its own session."""
        raise NotImplementedError

    @pytest.fixture
    def faults(self) -> Faults:
        """Breaks connections and sessions of the stores."""
        raise NotImplementedError

    @pytest.fixture
    async def made(self, make_store: Callable[[], CoordinationStore]) -> AsyncIterator[Callable[[], CoordinationStore]]:
        """Makes stores, and closes them at the end."""
        stores: list[CoordinationStore] = []

        def make() -> CoordinationStore:
            stores.append(make_store())
            return stores[-1]

        yield make
        for store in stores:
            await store.close()

    @pytest.fixture
    async def store(self, made: Callable[[], CoordinationStore]) -> CoordinationStore:
        """An open store."""
        store = made()
        await store.open()
        return store

    @pytest.fixture
    async def other(self, made: Callable[[], CoordinationStore]) -> CoordinationStore:
        """A second client."""
        store = made()
        await store.open()
        return store

    @pytest.fixture
    async def base(self, store: CoordinationStore) -> str:
        """The path of an empty node that no other test uses."""
        return await store.create(f"/t-{SystemEntropy().token(8)}")

    def seen(self) -> Seen[Any]:
        """A function for a watch, which keeps what it gets."""
        return Seen(self.patience)

    async def reach(self, store: CoordinationStore, state: SessionState) -> None:
        """Wait until the store has this state."""
        states = self.seen()
        watch = store.on_state(states)
        try:
            if store.state is not state:
                await states.is_now(state)
        finally:
            watch.close()
