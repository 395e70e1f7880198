"""The stream programs that users know from before, as they were printed. Only imports are missing.

`test_seed_snippets` runs each of them, and the pages that show them are checked against these.
"""

from __future__ import annotations

ORDER_WINDOWS = """\
@app.dataflow("process_orders")
def order_pipeline():
    return (Stream.from_kafka('orders')
        .filter(lambda b: pc.greater(b['amount'], 1000))
        .window(tumbling(seconds=60))
        .aggregate({'total': ('amount', 'sum')})
        .to_kafka('processed_orders'))
"""

ORDER_AGENT = """\
@app.agent("orders")
async def process_orders(order):
    yield order.total
"""

ORDER_PIPELINE = """\
@app.dataflow("process_orders")
def order_pipeline():
    return (Stream.from_kafka('orders')
        .map(lambda b: pc.multiply(b['total'], 1.1))
        .to_kafka('processed_orders'))
"""

FRAUD_AGENT = """\
@app.agent("transactions")
async def fraud_detector(transaction):
    if transaction['amount'] > 10000:
        yield {'alert': 'high_value', 'txn': transaction}
"""

FRAUD_PIPELINE = """\
@app.dataflow("fraud_detection")
def fraud_pipeline():
    import pyarrow.compute as pc

    return (Stream.from_kafka('transactions')
        .filter(lambda b: pc.greater(b['amount'], 10000))
        .map(lambda b: b.append_column('alert', pa.array(['high_value'] * b.num_rows)))
        .to_kafka('fraud_alerts'))
"""

TEST_AGENT = """\
async def test_fraud_agent():
    app = App(id="test")

    @app.agent("txns")
    async def detect(txn):
        if txn['amount'] > 1000:
            yield txn

    # Simulate sending
    await detect.send({'amount': 5000})
"""

TEST_DATAFLOW = """\
async def test_fraud_dataflow():
    app = App(id="test")

    @app.dataflow("fraud_detection")
    def fraud_pipeline():
        return (Stream.from_kafka('txns')
            .filter(lambda b: pc.greater(b['amount'], 1000))
            .to_kafka('alerts'))

    # Start dataflow
    dataflow = fraud_pipeline
    await dataflow.start(parallelism=1)

    # Send test data
    # ... use Kafka producer ...
"""

DEPLOYMENT = """\
app = App(id="production")

@app.dataflow("pipeline")
def pipeline():
    return (...)

# Submit to JobManager
await pipeline.start(parallelism=8)
"""

SNIPPETS = {
    "order-windows": ORDER_WINDOWS,
    "order-agent": ORDER_AGENT,
    "order-pipeline": ORDER_PIPELINE,
    "fraud-agent": FRAUD_AGENT,
    "fraud-pipeline": FRAUD_PIPELINE,
    "test-agent": TEST_AGENT,
    "test-dataflow": TEST_DATAFLOW,
    "deployment": DEPLOYMENT,
}
