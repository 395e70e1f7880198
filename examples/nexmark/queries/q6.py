"""Query 6, the average of each seller's last ten final prices."""

from __future__ import annotations

from events import Events, Result
from last import LastOf
from prices import final_prices

from shoal import col

LAST = 10


def query(events: Events) -> Result:
    """For each seller the last ten auctions that were sold, by their expiry."""
    prices = final_prices(events)
    last = LastOf.each(LAST, "seller", by=("expires", "auction"))
    recent = prices.apply(last, keys=["seller"], schema=prices.schema)
    totals = recent.group_by("seller").aggregate(auctions="count", total_price=("price", "sum"))
    return Result(totals.with_columns(avg_price=col("total_price") // col("auctions")))
