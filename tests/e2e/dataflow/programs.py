"""Runs snippets of stream programs with what they leave out, and stops afterwards what they started."""

from __future__ import annotations

import ast
import asyncio
import warnings
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal import App, PlanError, Stream, col, lit, tumbling
from shoal.core.errors import NotFoundError
from shoal.dataflow.api.context import Launch, launching


class Programs:
    """The snippets of one test."""

    def __init__(self, *, broker: str | None = None) -> None:
        self.broker = broker
        self.apps: list[App] = []

    def make_app(self, id: str = "seed") -> App:  # noqa: A002  as the snippets call it
        with launching(Launch(broker=self.broker)):
            self.apps.append(App(id=id))
        return self.apps[-1]

    async def run(self, text: str, **names: Any) -> dict[str, Any]:
        """The names that a snippet leaves behind."""
        known = {"App": self.make_app, "Stream": Stream, "tumbling": tumbling, "col": col, "lit": lit}
        known |= {"pa": pa, "pc": pc, **names}
        code = compile(text, "<snippet>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # agents have tests of their own
            waiting = eval(code, known)
            if waiting is not None:
                await waiting
        return known

    async def rows(self, app: App, topic: str, count: int) -> list[dict[str, Any]]:
        """What a topic holds, once it holds so much."""
        rows: list[dict[str, Any]] = []
        for _ in range(600):
            try:
                rows = await asyncio.to_thread(lambda: app.stream(topic, bounded=True).to_pylist())
            except (NotFoundError, PlanError):  # nobody has written yet
                rows = []
            if len(rows) >= count:
                return rows
            await asyncio.sleep(0.05)
        raise AssertionError(f"{topic} holds {rows}")

    async def stop(self) -> None:
        """Stop everything that runs."""
        for app in self.apps:
            await app.stop()


async def feed(app: App, topic: str, rows: Sequence[dict[str, Any]]) -> None:
    """Rows into a topic of an app."""
    await app.topic(topic).send_many(rows)
