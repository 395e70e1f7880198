"""Ten percent on top of each order's total.

python order_pipeline.py feeds it some orders and shows what comes out; shoal run order_pipeline.py runs it.
"""

# ruff: noqa: ANN201, D103, T201  (a script as people write them)

from __future__ import annotations

import asyncio

import pyarrow.compute as pc
from watching import first_rows

from shoal import App, Stream

app = App("order-pipeline")
orders = app.topic("orders", schema={"id": "int64", "total": "double"})


@app.dataflow("process_orders")
def order_pipeline():
    return Stream.from_kafka("orders").map(lambda b: pc.multiply(b["total"], 1.1)).to_kafka("processed_orders")


async def main() -> None:
    await order_pipeline.start(parallelism=1)
    await orders.send_many([{"id": 1, "total": 10.0}, {"id": 2, "total": 20.0}])
    for row in await first_rows(app, "processed_orders", 2):
        print(f"{row['total']:.2f}")
    await order_pipeline.stop()


if __name__ == "__main__":
    asyncio.run(main())
