"""Query 3, local items: who sells in category 10, in three states. Either side may come first."""

from __future__ import annotations

from events import Events, Result

from shoal import col

STATES = ["OR", "ID", "CA"]


def query(events: Events) -> Result:
    """Sellers with what they sell."""
    merged = events.merged(events.persons(), events.auctions())
    persons = merged.filter(col("state").isin(STATES)).select("id", "name", "city", "state")
    auctions = merged.filter(col("category") == 10).select("seller", auction=col("id"))
    pairs = auctions.join(persons, "seller", "id", right_is_unique=True)
    return Result(pairs.select("name", "city", "state", "auction"))
