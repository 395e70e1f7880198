"""Query 7, the highest bids of every ten seconds."""

from __future__ import annotations

from events import Events, Result
from schemas import TIME

from shoal import col, tumbling

COLUMNS = ("auction", "bidder", "price", "date_time", "extra")


def query(events: Events) -> Result:
    """The bids with the highest price of each window, all of them if several tie."""
    window = tumbling(seconds=10)
    # What is the highest of all is decided in one place. Were the join in another, it would hear of the watermark
    # later than the aggregate, and take a late bid for a tie.
    bids = events.timed(events.bids()).with_parallelism(1)
    highest = bids.window(window).max("price").uid("windows-of-bid")
    best = bids.select(*COLUMNS).join(highest.select("price"), on="price", window=window).with_parallelism(1)
    rows = best.with_columns(window_start=col("window_start").cast(TIME), window_end=col("window_end").cast(TIME))
    return Result(rows, {"bid": highest})
