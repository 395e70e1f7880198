"""What the migration page shows is true: every block of it runs, and before and after give the same."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal import PlanError
from shoal.dataflow.api.migrate import migrate
from shoal.dataflow.connectors.memory import BatchesSource, CollectSink
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import EventTime, Node, Sink, Source, rewrite
from shoal.dataflow.operators.rows import as_mapping
from tests.e2e.dataflow import seed_snippets as snippets
from tests.e2e.dataflow.programs import Programs, feed

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).parents[3] / "docs" / "migration" / "sabot.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"^```python\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)
}
SECOND = 1_000_000
ROWS = [
    {"user": user, "amount": amount, "total": amount / 2, "at": at * SECOND}
    for user, amount, at in [("a", 20000.0, 1), ("b", 5.0, 2), ("a", 10001.0, 59), ("c", 3000.0, 61)]
]


def test_every_snippet_is_on_the_page() -> None:
    blocks = [block for section in SECTIONS.values() for block in section]
    assert [name for name, text in snippets.SNIPPETS.items() if text not in blocks] == []
    assert len(blocks) == 15  # a new one needs a test below


async def results_of(programs: Programs, text: str) -> list[dict[str, Any]]:
    """What the one agent or dataflow of a block gives for the rows, in place of its topic's."""
    app = programs.make_app()
    await programs.run(text, app=app)
    if app._agents:
        (agent,) = app._agents.values()
        return [dict(as_mapping(each)) for row in ROWS for each in await agent.send(row)]
    (flow,) = app.dataflows.values()
    batch = pa.RecordBatch.from_pylist(ROWS)

    def change(node: Node) -> Node:
        if isinstance(node, Source):
            time = EventTime("at", unit="us")
            return replace(node, connector=BatchesSource((batch,)), schema=batch.schema, time=time)
        return replace(node, connector=CollectSink(), uid="result") if isinstance(node, Sink) else node

    report = await asyncio.to_thread(engine.run, rewrite(flow.plan(), change))
    rows: list[dict[str, Any]] = report.tables["result"].to_pylist()
    return rows


async def test_one_value_of_each_record(programs: Programs) -> None:
    before, after, batches = SECTIONS["One value of each record"]
    assert migrate(f"from shoal import Stream, col\n{before}").text == f"from shoal import Stream, col\n{after}"
    found = await results_of(programs, before)
    assert found == [{"value": row["total"]} for row in ROWS]
    assert await results_of(programs, after) == found
    scaled = await results_of(programs, batches)
    assert [row["total"] for row in scaled] == pytest.approx([row["total"] * 1.1 for row in ROWS])


async def test_conditions(programs: Programs) -> None:
    before, after, batches, expressions = SECTIONS["Conditions"]
    assert migrate(f"from shoal import Stream, col\n{before}").text == f"from shoal import Stream, col\n{after}"
    found = await results_of(programs, before)
    assert [row["txn"]["user"] for row in found] == ["a", "a"]
    assert await results_of(programs, after) == found
    flat = await results_of(programs, batches)
    assert flat == [{**row["txn"], "alert": "high_value"} for row in found]
    assert await results_of(programs, expressions) == flat


async def test_windows(programs: Programs) -> None:
    before, after = SECTIONS["Windows"]
    assert [row["total"] for row in await results_of(programs, before)] == [30001.0, 3000.0]
    by_user = await results_of(programs, after)
    assert [(row["user"], row["total"]) for row in by_user] == [("a", 30001.0), ("c", 3000.0)]


async def test_tests(programs: Programs) -> None:
    before, after, without_topics = SECTIONS["Tests"]
    with pytest.warns(DeprecationWarning, match=r"@app\.agent is deprecated"):
        await (await programs.run(before))["test_fraud_agent"]()
    await feed(programs.make_app("test"), "txns", [{"amount": 5000}])
    await (await programs.run(after))["test_fraud_dataflow"]()
    assert await programs.rows(programs.apps[-1], "alerts", 1) == [{"amount": 5000}]
    await asyncio.to_thread((await programs.run(without_topics))["test_large"])


async def test_deployment(programs: Programs) -> None:
    before, after = SECTIONS["Deployment"]
    with pytest.raises(PlanError, match="must return a stream with a sink"):
        await programs.run(before)
    names = await programs.run(after)
    assert not names["pipeline"].is_running


async def test_the_imports_that_the_page_gives(programs: Programs) -> None:
    (imports,) = SECTIONS["# Coming from Sabot"]
    names = await programs.run(imports)
    assert names["app"].id == "shop"
