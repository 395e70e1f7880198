"""Waits until a topic holds enough rows, and gives them. Used by the scripts here."""

from __future__ import annotations

import asyncio
from typing import Any

from shoal import App, PlanError, ShoalError

_PATIENCE = 30.0


async def first_rows(app: App, topic: str, count: int) -> list[dict[str, Any]]:
    """The first rows of a topic, once there are so many."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            rows = await asyncio.to_thread(_read, app, topic)
            if len(rows) >= count:
                return rows[:count]
            await asyncio.sleep(0.05)


def _read(app: App, topic: str) -> list[dict[str, Any]]:
    try:
        return app.stream(topic, bounded=True).to_pylist()
    except (PlanError, ShoalError):  # nobody has written to it yet
        return []
