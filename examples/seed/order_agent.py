"""The total of each order, in the old form: a function over single records. It still works, and warns.

python order_agent.py sends it some orders; order_pipeline.py beside it is the new form.
"""

# ruff: noqa: ANN001, ANN201, D103, T201  (a script as people write them)

from __future__ import annotations

import asyncio

from shoal import App

app = App("order-agent")
app.topic("orders", schema={"total": "double"})


@app.agent("orders")
async def process_orders(order):
    yield order.total


async def main() -> None:
    # The app does not run: what is sent goes straight to the function, and its results come back.
    print(*await process_orders.send({"total": 12.5}))
    # Now it does: what is sent goes to the topic, and the function reads it there.
    await app.start()
    await process_orders.send({"total": 20.0}, key="a")
    await app.stop()


if __name__ == "__main__":
    asyncio.run(main())
