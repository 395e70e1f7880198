"""Alerts for transactions of high value, in the old form. It still works, and warns.

python fraud_agent.py sends it some transactions; `shoal migrate fraud_agent.py` prints its new form.
"""

# ruff: noqa: ANN001, ANN201, D103, T201  (a script as people write them)

from __future__ import annotations

import asyncio

from shoal import App

app = App("fraud-agent")
app.topic("transactions", schema={"user": "string", "amount": "double"})


@app.agent("transactions")
async def fraud_detector(transaction):
    if transaction["amount"] > 10000:
        yield {"alert": "high_value", "txn": transaction}


async def main() -> None:
    for amount in (20000.0, 5.0):
        print(amount, await fraud_detector.send({"user": "a", "amount": amount}))


if __name__ == "__main__":
    asyncio.run(main())
