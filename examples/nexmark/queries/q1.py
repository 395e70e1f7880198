"""Query 1, currency: prices in euros, half a cent rounds up."""

from __future__ import annotations

from events import Events, Result

from shoal import col


def query(events: Events) -> Result:
    """Bids in another currency."""
    euros = (col("price") * 908 + 500) // 1000
    return Result(events.bids().select("auction", "bidder", euros.alias("price"), "date_time", "extra"))
