"""Query 5, hot items: the auctions with the most bids of the last ten seconds, every two seconds."""

from __future__ import annotations

from events import Events, Result
from schemas import TIME

from shoal import col, sliding, tumbling

SLIDE = 2


def query(events: Events) -> Result:
    """The auctions with the most bids in each window, all of them if several tie."""
    counts = (
        events.timed(events.bids()).group_by("auction").window(sliding(10, SLIDE)).count("num").uid("windows-of-bid")
    )
    # A result's time lies right before the end of its window: one slide has the results of one window.
    each = tumbling(SLIDE)
    most = counts.window(each).aggregate(num=("num", "max")).select("num")
    hot = counts.rename(window_start="start", window_end="end").join(most, on="num", window=each)
    rows = hot.select("auction", "num", window_start=col("start").cast(TIME), window_end=col("end").cast(TIME))
    return Result(rows, {"bid": counts})
