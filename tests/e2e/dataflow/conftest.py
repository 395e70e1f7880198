"""A folder of its own for each test, and what snippets start stopped behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.dataflow.api.apps import sending
from tests.e2e.dataflow.programs import Programs
from tests.services.kafka import KafkaBroker


@pytest.fixture
async def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Programs]:
    monkeypatch.chdir(tmp_path)
    made = Programs()
    yield made
    await made.stop()


@pytest.fixture
async def on_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka_broker: KafkaBroker
) -> AsyncIterator[Programs]:
    monkeypatch.chdir(tmp_path)
    made = Programs(broker=f"kafka://{kafka_broker.address}")
    yield made
    await made.stop()
    sending._senders.close()  # else they would miss the broker when it is stopped
