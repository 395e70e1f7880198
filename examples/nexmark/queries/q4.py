"""Query 4, the average final price of each category."""

from __future__ import annotations

from events import Events, Result
from prices import final_prices

from shoal import col


def query(events: Events) -> Result:
    """How many auctions of a category were sold, and for how much."""
    totals = final_prices(events).group_by("category").aggregate(auctions="count", total_price=("price", "sum"))
    return Result(totals.with_columns(avg_price=col("total_price") // col("auctions")))
