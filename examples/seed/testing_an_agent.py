"""How an agent is tested: what is sent to it while the app does not run goes straight to its function."""

# ruff: noqa: ANN001, ANN201, ANN202, D103, T201  (a script as people write them)

from __future__ import annotations

import asyncio

from shoal import App


async def test_fraud_agent():
    app = App(id="test")

    @app.agent("txns")
    async def detect(txn):
        if txn["amount"] > 1000:
            yield txn

    # Simulate sending
    await detect.send({"amount": 5000})


if __name__ == "__main__":
    asyncio.run(test_fraud_agent())
    print("passed")
