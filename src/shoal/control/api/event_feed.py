"""Streams events to followers, with a bounded queue for each.

A follower that reads too slowly loses its queue and continues from the store at the same position, so it misses no
event and memory stays bounded. It also continues from the store when a cursor is skipped, and after memory was read
again from the store: a commit whose outcome was unknown may have stored events that were never published.
Called by `shoal.control.api.service`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncIterator

from shoal.control.state.ledger import Ledger
from shoal.control.store.base import EventQuery
from shoal.model.events import Event

MAX_QUEUED = 1000
PAGE = 500


class _Follower:
    def __init__(self) -> None:
        self.queue: deque[Event] = deque()
        #: Whether the queue may lack events; those are read from the store.
        self.is_behind = False
        self.ready = asyncio.Event()

    def fall_behind(self) -> None:
        self.queue.clear()
        self.is_behind = True
        self.ready.set()


class EventFeed:
    """Reads and follows the list of events."""

    def __init__(self, ledger: Ledger) -> None:
        self._store = ledger.store
        self._followers: set[_Follower] = set()
        ledger.on_events(self._publish)
        ledger.on_reload(self._read_stored)

    def _publish(self, events: tuple[Event, ...]) -> None:
        for follower in self._followers:
            if len(follower.queue) + len(events) > MAX_QUEUED:
                follower.fall_behind()
            elif not follower.is_behind:
                follower.queue.extend(events)
            follower.ready.set()

    def _read_stored(self) -> None:
        for follower in self._followers:
            follower.fall_behind()

    async def newest_cursor(self) -> int:
        """The cursor of the newest event."""
        return (await self._store.events(EventQuery(limit=1, newest=True))).next

    async def follow(self, query: EventQuery) -> AsyncIterator[Event]:
        """Matching events after `query.after`: first the stored ones, then each new one."""
        follower = _Follower()
        self._followers.add(follower)
        try:
            cursor = query.after
            async for event in self._catch_up(query, cursor):
                cursor = event.cursor
                yield event
            while True:
                await follower.ready.wait()
                follower.ready.clear()
                if follower.is_behind:
                    follower.is_behind = False
                    async for event in self._catch_up(query, cursor):
                        cursor = event.cursor
                        yield event
                while follower.queue:
                    newest = follower.queue.popleft()
                    if newest.cursor > cursor + 1:
                        async for event in self._catch_up(query, cursor):
                            cursor = event.cursor
                            yield event
                    elif newest.cursor > cursor and query.matches(newest):
                        yield newest
                    cursor = max(cursor, newest.cursor)
        finally:
            self._followers.discard(follower)

    async def _catch_up(self, query: EventQuery, cursor: int) -> AsyncIterator[Event]:
        while True:
            page = await self._store.events(dataclasses.replace(query, after=cursor, limit=PAGE))
            for event in page.events:
                yield event
            if len(page.events) < PAGE:
                return
            cursor = page.next
