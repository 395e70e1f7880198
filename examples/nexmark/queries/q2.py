"""Query 2, selection: bids for some auctions."""

from __future__ import annotations

from events import Events, Result

from shoal import col


def query(events: Events) -> Result:
    """Bids for every 123rd auction."""
    return Result(events.bids().filter(col("auction") % 123 == 0).select("auction", "price"))
