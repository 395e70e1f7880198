"""Conformance of a store: its list of events. A part of `shoal.testing.suites.store.StoreSuite`."""

from __future__ import annotations

from typing import Any, Protocol

from shoal.control.store.base import Batch, EventQuery, Store
from shoal.model.events import Event
from shoal.model.selectors import parse_selector
from shoal.testing.suites.store_records import event


class StoreMaker(Protocol):
    """Makes stores on the place of one test."""

    def __call__(self, **settings: Any) -> Store:
        """A store that is not open. Settings are `max_events` and `guard`."""
        ...


class EventTests:
    """What every store does with events."""

    async def test_events_by_cursor(self, store: Store) -> None:
        """Pages follow each other without gap or overlap, and the last one leads to what comes next."""
        stored: list[Event] = []
        for each in range(7):
            stored += await store.commit(Batch(events=(event(f"w{each}"),)))
        assert [each.cursor for each in stored] == [1, 2, 3, 4, 5, 6, 7]
        seen: list[Event] = []
        after = 0
        for expected in (3, 3, 1, 0):
            page = await store.events(EventQuery(after=after, limit=3))
            assert len(page.events) == expected
            assert page.oldest == 1
            seen += page.events
            after = page.next
        assert seen == stored
        assert after == 7
        [more] = await store.commit(Batch(events=(event("w7"),)))
        assert (await store.events(EventQuery(after=after))).events == (more,)

    async def test_events_of_a_subject(self, store: Store) -> None:
        """Only its own, in order; and a page that is not full has passed all others."""
        subjects = [("workload", "a"), ("node", "a"), ("workload", "b"), ("workload", "a"), ("node", "c")]
        await store.commit(Batch(events=tuple(event(name, subject_kind=kind) for kind, name in subjects)))
        by_both = await store.events(EventQuery(subject_kind="workload", subject_id="a"))
        assert [each.cursor for each in by_both.events] == [1, 4]
        assert by_both.next == 5
        first = await store.events(EventQuery(subject_kind="workload", subject_id="a", limit=1))
        assert ([each.cursor for each in first.events], first.next) == ([1], 1)
        by_kind = await store.events(EventQuery(subject_kind="node"))
        assert [each.cursor for each in by_kind.events] == [2, 5]
        by_id = await store.events(EventQuery(subject_id="a", after=1))
        assert [each.cursor for each in by_id.events] == [2, 4]

    async def test_events_of_labels(self, store: Store) -> None:
        """Those whose labels matched then: the first ones after a cursor, or the newest, in order."""
        labels = [{"app": "web"}, {}, {"app": "db"}, {"app": "web", "tier": "1"}, {"note": "app"}, {"app": "web"}]
        await store.commit(Batch(events=tuple(event("a", labels=each) for each in labels)))

        async def cursors(selector: str, **query: Any) -> tuple[list[int], int]:
            page = await store.events(EventQuery(selector=parse_selector(selector), **query))
            return [each.cursor for each in page.events], page.next

        assert await cursors("app=web") == ([1, 4, 6], 6)
        assert await cursors("app=web", limit=2) == ([1, 4], 4)
        assert await cursors("app=web", limit=2, newest=True) == ([4, 6], 6)
        assert await cursors("app=web", limit=1, after=1) == ([4], 4)
        assert await cursors("app=web,!tier", subject_id="a") == ([1, 6], 6)
        assert await cursors("app!=web") == ([2, 3, 5], 6)
        assert await cursors("app") == ([1, 3, 4, 6], 6)
        assert await cursors("tier in (2,3)") == ([], 6)

    async def test_a_subject_may_have_any_name(self, store: Store) -> None:
        """What somebody tried to use as an id can be told and found, whatever it was."""
        name = "\x00é\U0001f41f\ud800"
        [stored] = await store.commit(Batch(events=(event(name, message=name),)))
        page = await store.events(EventQuery(subject_id=name))
        assert page.events == (stored,)
        assert stored.subject_id == stored.message == name

    async def test_newest_events(self, store: Store) -> None:
        """The last ones, still in order."""
        await store.commit(Batch(events=tuple(event("odd" if each % 2 else "even") for each in range(1, 10))))
        newest = await store.events(EventQuery(newest=True, limit=3))
        assert [each.cursor for each in newest.events] == [7, 8, 9]
        assert newest.next == 9
        odd = await store.events(EventQuery(newest=True, limit=2, subject_id="odd"))
        assert [each.cursor for each in odd.events] == [7, 9]
        assert (await store.events(EventQuery(newest=True, limit=0))).events == ()

    async def test_events_are_bounded(self, make_store: StoreMaker) -> None:
        """The oldest go; the newest are always there; cursors never start again."""
        store = make_store(max_events=50)
        await store.open()
        kept = []
        for each in range(40):
            await store.commit(Batch(events=tuple(event(f"w{each}") for _ in range(7))))
            page = await store.events(EventQuery(limit=1000))
            kept.append(len(page.events))
            assert page.events[-1].cursor == 7 * (each + 1)
            assert [event.cursor for event in page.events] == list(range(page.oldest, page.next + 1))
        assert min(kept[8:]) >= 50
        assert max(kept) <= 55
        await store.close()

    async def test_the_bound_holds_after_reopening(self, make_store: StoreMaker) -> None:
        """A store that finds more events than it may keep trims them with the next one; none is counted twice."""
        store = make_store()
        await store.open()
        await store.commit(Batch(events=tuple(event("many") for _ in range(280))))
        await store.close()
        again = make_store(max_events=50)
        await again.open()
        assert len((await again.events(EventQuery(limit=1000))).events) == 280
        await again.commit(Batch(events=(event("one more"),)))
        page = await again.events(EventQuery(limit=1000))
        assert (len(page.events), page.oldest, page.next) == (50, 232, 281)
        await again.close()
