"""Apps on the local log: started, fed, stopped, and started again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from shoal import App, PlanError, Stream, col
from shoal.core.errors import NotFoundError

pytestmark = pytest.mark.integration


async def rows_of(app: App, topic: str, count: int) -> list[dict[str, Any]]:
    """What a topic holds, once it holds so much."""
    for _ in range(400):
        try:
            rows = await asyncio.to_thread(lambda: app.stream(topic, bounded=True).to_pylist())
        except (NotFoundError, PlanError):  # nobody has written yet
            rows = []
        if len(rows) >= count:
            return rows
        await asyncio.sleep(0.05)
    raise AssertionError(f"{topic} holds {rows}")


def make_app(tmp_path: Path) -> App:
    app = App("shop", data_dir=tmp_path / "data")
    app.topic("txns", schema={"user": "string", "amount": "double"})

    @app.dataflow("fraud_detection")
    def fraud_pipeline() -> Any:
        return Stream.from_kafka("txns").filter(lambda b: pc.greater(b["amount"], 1000)).to_kafka("alerts")

    return app


async def test_a_dataflow_goes_on_where_it_was(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    flow = app.dataflows["fraud_detection"]
    txns = app.topic("txns", schema={"user": "string", "amount": "double"})
    await flow.start(parallelism=1)
    assert flow.is_running
    with pytest.warns(RuntimeWarning, match="runs already"):
        await flow.start()
    await txns.send({"user": "a", "amount": 5000.0}, key="a")
    await txns.send({"user": "b", "amount": 5.0}, key="b")
    assert await rows_of(app, "alerts", 1) == [{"user": "a", "amount": 5000.0}]
    await flow.stop()
    assert not flow.is_running
    again = make_app(tmp_path)
    await txns.send({"user": "c", "amount": 7000.0})
    await again.start()
    found = await rows_of(again, "alerts", 2)
    await again.stop()
    assert [row["user"] for row in found] == ["a", "c"]


async def test_an_agent_runs_as_a_dataflow(tmp_path: Path) -> None:
    app = App("old", data_dir=tmp_path)
    app.topic("txns", schema={"amount": "int64"})
    with pytest.warns(DeprecationWarning, match="deprecated"):

        @app.agent("txns", sink="alerts")
        async def detect(txn: Any) -> Any:
            await asyncio.sleep(0)
            if txn.amount > 1000:
                yield {"alert": "high", "amount": txn["amount"]}

    await app.start()
    await detect.send({"amount": 5})
    await detect.send({"amount": 5000})
    assert await rows_of(app, "alerts", 1) == [{"alert": "high", "amount": 5000}]
    await app.stop()
    assert await detect.send({"amount": 2000}) == ({"alert": "high", "amount": 2000},)


async def test_a_topic_that_nobody_declared_is_not_made_up(tmp_path: Path) -> None:
    app = App("shop", data_dir=tmp_path)
    flow = app.dataflow("f")(
        lambda: Stream.from_kafka("txms", schema={"a": "int64"}).filter(col("a") > 1).to_kafka("x")
    )
    with pytest.raises(NotFoundError, match="'txms' not found"):
        await flow.start()
    assert not flow.is_running
