"""Query 8, new users who sell: those who join and sell something within the same ten seconds."""

from __future__ import annotations

from events import Events, Result
from schemas import TIME

from shoal import col, tumbling


def query(events: Events) -> Result:
    """Persons with an auction in the window in which they joined, once each. Either may arrive first."""
    window = tumbling(seconds=10)
    merged = events.timed(events.merged(events.persons(), events.auctions()))
    persons, auctions = merged.filter(col("name").is_valid()), merged.filter(col("seller").is_valid())
    joined = persons.group_by("id").window(window).aggregate(name=("name", "first")).uid("windows-of-person")
    sellers = auctions.group_by("seller").window(window).count().uid("windows-of-auction")
    both = joined.select("id", "name").join(sellers.select("seller"), "id", "seller", window=window)
    rows = both.select(
        "id", "name", window_start=col("window_start").cast(TIME), window_end=col("window_end").cast(TIME)
    )
    return Result(rows, {"person": joined, "auction": sellers})
