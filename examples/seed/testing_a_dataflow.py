"""How a dataflow is tested: start it, send rows to its topic, look at what it writes."""

# ruff: noqa: ANN201, ANN202, D103, S101, T201  (a script as people write them)

from __future__ import annotations

import asyncio

import pyarrow.compute as pc
from watching import first_rows

from shoal import App, Stream


async def test_fraud_dataflow():
    app = App(id="test")
    txns = app.topic("txns", schema={"amount": "int64"})

    @app.dataflow("fraud_detection")
    def fraud_pipeline():
        return Stream.from_kafka("txns").filter(lambda b: pc.greater(b["amount"], 1000)).to_kafka("alerts")

    # Start dataflow
    dataflow = fraud_pipeline
    await dataflow.start(parallelism=1)

    # Send test data
    await txns.send_many([{"amount": 5000}, {"amount": 5}])
    assert await first_rows(app, "alerts", 1) == [{"amount": 5000}]
    await dataflow.stop()


if __name__ == "__main__":
    asyncio.run(test_fraud_dataflow())
    print("passed")
