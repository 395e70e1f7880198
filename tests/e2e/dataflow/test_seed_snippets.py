"""Every snippet of `seed_snippets` runs as it is written, on the local log and on Kafka."""

from __future__ import annotations

import pytest

from shoal import PlanError
from tests.e2e.dataflow import seed_snippets as snippets
from tests.e2e.dataflow.programs import Programs, feed

pytestmark = pytest.mark.e2e


# ---------------------------------------------------------------------------------------------------------
# Orders


async def test_order_windows(programs: Programs) -> None:
    app = programs.make_app()
    app.topic("orders", schema={"amount": "int64", "at": "int64"}, event_time="at", time_unit="s")
    names = await programs.run(snippets.ORDER_WINDOWS, app=app)
    flow = names["order_pipeline"]
    await flow.start(parallelism=2)
    rows = [(2000, 5), (500, 6), (3000, 59), (4000, 60), (9000, 121)]
    await feed(app, "orders", [{"amount": amount, "at": at} for amount, at in rows])
    found = await programs.rows(app, "processed_orders", 2)
    assert [row["total"] for row in found] == [5000, 4000]


async def test_order_agent(programs: Programs) -> None:
    app = programs.make_app()
    with pytest.warns(DeprecationWarning, match="Agents are now worker nodes, not user code"):
        exec(snippets.ORDER_AGENT, {"app": app})
    names = await programs.run(snippets.ORDER_AGENT, app=programs.make_app("other"))
    agent = names["process_orders"]
    assert await agent.send({"total": 12.5}) == (12.5,)
    await feed(programs.apps[-1], "orders", [{"total": 1.0}])
    await agent.start()
    assert agent.dataflow.is_running
    await agent.send({"total": 2.0}, key="a")
    assert len(await programs.rows(programs.apps[-1], "orders", 2)) == 2


async def test_order_pipeline(programs: Programs) -> None:
    app = programs.make_app()
    await feed(app, "orders", [{"id": 1, "total": 10.0}, {"id": 2, "total": 20.0}])
    names = await programs.run(snippets.ORDER_PIPELINE, app=app)
    await names["order_pipeline"].start()
    found = await programs.rows(app, "processed_orders", 2)
    assert [row["total"] for row in found] == pytest.approx([11.0, 22.0])
    assert list(found[0]) == ["total"]  # an Array is one column, named after the one that was read


# ---------------------------------------------------------------------------------------------------------
# Fraud

TRANSACTIONS = [{"user": "a", "amount": 20000.0}, {"user": "b", "amount": 5.0}, {"user": "c", "amount": 10001.0}]


async def test_fraud_agent(programs: Programs) -> None:
    app = programs.make_app()
    names = await programs.run(snippets.FRAUD_AGENT, app=app)
    agent = names["fraud_detector"]
    given = [each for row in TRANSACTIONS for each in await agent.send(row)]
    assert [each["txn"]["user"] for each in given] == ["a", "c"]
    assert given[0] == {"alert": "high_value", "txn": TRANSACTIONS[0]}


async def check_fraud_pipeline(programs: Programs) -> None:
    app = programs.make_app()
    app.topic("transactions", schema={"user": "string", "amount": "double"})
    names = await programs.run(snippets.FRAUD_PIPELINE, app=app)
    await names["fraud_pipeline"].start(parallelism=2)
    await feed(app, "transactions", TRANSACTIONS)
    found = await programs.rows(app, "fraud_alerts", 2)
    assert sorted((row["user"], row["amount"], row["alert"]) for row in found) == [
        ("a", 20000.0, "high_value"),
        ("c", 10001.0, "high_value"),
    ]


async def test_fraud_pipeline(programs: Programs) -> None:
    await check_fraud_pipeline(programs)


async def test_fraud_pipeline_on_kafka(on_kafka: Programs) -> None:
    await check_fraud_pipeline(on_kafka)


# ---------------------------------------------------------------------------------------------------------
# Tests and deployment


async def test_the_test_of_an_agent(programs: Programs) -> None:
    names = await programs.run(snippets.TEST_AGENT)
    with pytest.warns(DeprecationWarning, match="@app.agent is deprecated"):
        await names["test_fraud_agent"]()


async def check_test_of_a_dataflow(programs: Programs) -> None:
    await feed(programs.make_app("test"), "txns", [{"amount": 5000}, {"amount": 5}])
    names = await programs.run(snippets.TEST_DATAFLOW)
    await names["test_fraud_dataflow"]()
    app = programs.apps[-1]
    assert app.dataflows["fraud_detection"].is_running
    await feed(app, "txns", [{"amount": 7000}])
    assert [row["amount"] for row in await programs.rows(app, "alerts", 2)] == [5000, 7000]


async def test_the_test_of_a_dataflow(programs: Programs) -> None:
    await check_test_of_a_dataflow(programs)


async def test_the_test_of_a_dataflow_on_kafka(on_kafka: Programs) -> None:
    await check_test_of_a_dataflow(on_kafka)


async def test_an_empty_topic_is_an_error_that_shows_the_line_to_write(programs: Programs) -> None:
    names = await programs.run(snippets.TEST_DATAFLOW)
    with pytest.raises(PlanError, match="txns") as caught:
        await names["test_fraud_dataflow"]()
    assert 'app.topic("txns", schema=' in caught.value.hint


async def test_deployment(programs: Programs) -> None:
    with pytest.raises(PlanError, match="must return a stream with a sink, and returned a ellipsis"):
        await programs.run(snippets.DEPLOYMENT)
    await feed(programs.make_app("production"), "orders", [{"n": 1}])
    filled = snippets.DEPLOYMENT.replace("(...)", "Stream.from_kafka('orders').to_kafka('out')")
    names = await programs.run(filled)
    assert names["pipeline"].is_running
    assert await programs.rows(programs.apps[-1], "out", 1) == [{"n": 1}]
