"""Starts a dataflow eight tasks wide from a program, and stops it again.

`shoal run deployment.py --parallelism 8` does the same from the command line.
"""

# ruff: noqa: ANN201, D103, T201  (a script as people write them)

from __future__ import annotations

import asyncio

from watching import first_rows

from shoal import App, Stream, col

app = App(id="production")
orders = app.topic("orders", schema={"id": "int64", "amount": "double"})


@app.dataflow("pipeline")
def pipeline():
    return Stream.from_kafka("orders").filter(col("amount") > 10).to_kafka("large_orders")


async def main() -> None:
    await pipeline.start(parallelism=8)
    await orders.send_many([{"id": 1, "amount": 5.0}, {"id": 2, "amount": 50.0}])
    print(*await first_rows(app, "large_orders", 1))
    await pipeline.stop()


if __name__ == "__main__":
    asyncio.run(main())
