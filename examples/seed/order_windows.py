"""Totals of large orders, minute by minute.

python order_windows.py feeds it some orders and shows what comes out; shoal run order_windows.py runs it until Ctrl-C.
"""

# ruff: noqa: ANN201, D103, T201  (a script as people write them)

from __future__ import annotations

import asyncio

import pyarrow.compute as pc
from watching import first_rows

from shoal import App, Stream, tumbling

app = App("order-windows")
orders = app.topic("orders", schema={"amount": "int64", "at": "int64"}, event_time="at", time_unit="s")


@app.dataflow("process_orders")
def order_pipeline():
    return (
        Stream.from_kafka("orders")
        .filter(lambda b: pc.greater(b["amount"], 1000))
        .window(tumbling(seconds=60))
        .aggregate({"total": ("amount", "sum")})
        .to_kafka("processed_orders")
    )


async def main() -> None:
    await order_pipeline.start(parallelism=1)
    rows = [(2000, 5), (500, 6), (3000, 59), (4000, 60), (9000, 121)]
    await orders.send_many([{"amount": amount, "at": at} for amount, at in rows])
    for row in await first_rows(app, "processed_orders", 2):
        print(row["window_start"], row["total"])
    await order_pipeline.stop()


if __name__ == "__main__":
    asyncio.run(main())
