"""The final price of each auction, which queries 4 and 6 begin with."""

from __future__ import annotations

from events import Events

from shoal import Stream, col


def final_prices(events: Events) -> Stream:
    """Auctions with their highest valid bid: one made between the auction's beginning and its expiry."""
    merged = events.merged(events.auctions(), events.bids())
    auctions = merged.filter(col("category").is_valid()).select(
        "id", "category", "seller", "expires", opened=col("date_time")
    )
    bids = merged.filter(col("price").is_valid()).select("auction", "price", "date_time")
    valid = bids.join(auctions, "auction", "id", right_is_unique=True).filter(
        col("date_time").between(col("opened"), col("expires"))
    )
    return valid.group_by("auction").aggregate(
        price=("price", "max"), category=("category", "max"), seller=("seller", "max"), expires=("expires", "max")
    )
