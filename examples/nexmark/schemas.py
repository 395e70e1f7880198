"""The columns of the three files of events, and of what the queries write. Used by all scripts here."""

from __future__ import annotations

import pyarrow as pa

TIME = pa.timestamp("ms")

PERSON = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "email": pa.string(),
        "credit_card": pa.string(),
        "city": pa.string(),
        "state": pa.string(),
        "date_time": TIME,
        "extra": pa.string(),
        "arrival": pa.int64(),
    }
)

AUCTION = pa.schema(
    {
        "id": pa.int64(),
        "item_name": pa.string(),
        "description": pa.string(),
        "initial_bid": pa.int64(),
        "reserve": pa.int64(),
        "date_time": TIME,
        "expires": TIME,
        "seller": pa.int64(),
        "category": pa.int64(),
        "extra": pa.string(),
        "arrival": pa.int64(),
    }
)

BID = pa.schema(
    {
        "auction": pa.int64(),
        "bidder": pa.int64(),
        "price": pa.int64(),
        "date_time": TIME,
        "extra": pa.string(),
        "arrival": pa.int64(),
    }
)

SCHEMAS = {"person": PERSON, "auction": AUCTION, "bid": BID}

#: A late row: which file it is of, and its place there.
LATE = pa.schema({"stream": pa.string(), "arrival": pa.int64()})
