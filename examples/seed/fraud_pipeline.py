"""Alerts for transactions of high value.

python fraud_pipeline.py feeds it some transactions and shows the alerts; shoal run fraud_pipeline.py runs it.
"""

# ruff: noqa: ANN201, D103, T201  (a script as people write them)

from __future__ import annotations

import asyncio

import pyarrow as pa
from watching import first_rows

from shoal import App, Stream

app = App("fraud-pipeline")
transactions = app.topic("transactions", schema={"user": "string", "amount": "double"})


@app.dataflow("fraud_detection")
def fraud_pipeline():
    import pyarrow.compute as pc

    return (
        Stream.from_kafka("transactions")
        .filter(lambda b: pc.greater(b["amount"], 10000))
        .map(lambda b: b.append_column("alert", pa.array(["high_value"] * b.num_rows)))
        .to_kafka("fraud_alerts")
    )


async def main() -> None:
    await fraud_pipeline.start(parallelism=1)
    await transactions.send_many([{"user": "a", "amount": 20000.0}, {"user": "b", "amount": 5.0}])
    print(*await first_rows(app, "fraud_alerts", 1))
    await fraud_pipeline.stop()


if __name__ == "__main__":
    asyncio.run(main())
