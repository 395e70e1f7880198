"""Lists: a table or JSON, once, or again and again as entries change (`--watch`). Called by the `list` commands."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column, Layout
from shoal.core.errors import DeadlineError, ShoalError, UnavailableError
from shoal.core.tasks import Signal, task_scope

if TYPE_CHECKING:
    from shoal.client import ControlPlane

T = TypeVar("T")

LOOK_EVERY = 2.0
"""Seconds after which a watched list is read again without an event: not every change has one."""

REST = 0.2
"""Seconds between two reads at least: events come in bursts."""


def _as_it_is(entry: object) -> object:
    return entry


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """What a list shows, and how."""

    #: The key of the JSON document, such as workloads; one of them is a workload.
    noun: str
    columns: Sequence[Column]
    fetch: Callable[[], Awaitable[Sequence[T]]]
    row: Callable[[T, datetime], Sequence[str | Cell]]
    #: The id of an entry.
    name: Callable[[T], str]
    #: What has to differ for an entry to have changed; ages and heartbeats are none of it.
    state: Callable[[T], object]
    #: Said when there is nothing to list.
    empty: str
    #: An entry for JSON, where it is not shown as it is.
    plain: Callable[[T], object] = _as_it_is


async def show(control: ControlPlane, listing: Listing[T], *, as_json: bool, watch: bool) -> None:
    """Print a list; with `watch`, go on and print each entry again when it changes, until Ctrl-C."""
    entries = await listing.fetch()
    if watch:
        await _watch(control, listing, entries, as_json=as_json)
    elif as_json:
        output.json_document({listing.noun: [listing.plain(each) for each in entries]})
    else:
        now = session.clock().wall()
        output.table(listing.columns, [listing.row(each, now) for each in entries], empty=listing.empty)


async def _watch(control: ControlPlane, listing: Listing[T], entries: Sequence[T], *, as_json: bool) -> None:
    layout: Layout | None = None
    known: dict[str, object] = {}
    async for _ in _whenever_something_happens(control):
        changed = [each for each in entries if known.get(listing.name(each)) != listing.state(each)]
        gone = sorted(known.keys() - {listing.name(each) for each in entries})
        if as_json:
            _print_json(listing, changed, gone)
        else:
            now = session.clock().wall()
            rows = [list(listing.row(each, now)) for each in changed] + [_gone(name, listing) for name in gone]
            if rows or layout is None:
                layout = output.table(listing.columns, rows, above=layout)
        known = {listing.name(each): listing.state(each) for each in entries}
        entries = await _fetch(listing, entries)


def _print_json(listing: Listing[T], changed: Sequence[T], gone: Sequence[str]) -> None:
    single = listing.noun.removesuffix("s")
    for each in changed:
        output.json_line({"change": "changed", single: listing.plain(each)})
    for name in gone:
        output.json_line({"change": "gone", single: {f"{single}_id": name}})


def _gone(name: str, listing: Listing[T]) -> list[str | Cell]:
    return [name, output.state("Gone"), *["-"] * (len(listing.columns) - 2)]


async def _fetch(listing: Listing[T], before: Sequence[T]) -> Sequence[T]:
    """The list as it is now; as it was before, while the control plane is away."""
    try:
        return await listing.fetch()
    except (UnavailableError, DeadlineError) as error:
        output.words(f"{error.message}; still watching", style="yellow")
        return before


async def _whenever_something_happens(control: ControlPlane) -> AsyncIterator[None]:
    """Yields at once, then after each event, and from time to time without one."""
    wake = Signal()

    async def listen() -> None:
        with contextlib.suppress(ShoalError):
            async for _ in control.watch_events(patience=math.inf):
                wake.set()

    async with task_scope("watch") as scope:
        scope.start(listen(), name="events")
        while True:
            yield
            await session.clock().sleep(REST)
            await wake.wait(LOOK_EVERY)
