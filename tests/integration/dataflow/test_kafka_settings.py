"""An app on a cluster that asks for a password: every reader and writer of it has it, and nobody gets in without."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from shoal import App, ShoalError, Stream, col
from shoal.core.entropy import SystemEntropy
from shoal.dataflow.plan.documents import write_plan
from shoal.topics import KafkaSettings
from tests.services.kafka import PASSWORD, USER, KafkaBroker

pytestmark = pytest.mark.integration

#: A broker that is asked without the right password lets one wait.
PATIENCE = 3.0


def secured(broker: KafkaBroker, password: str = PASSWORD, **others: Any) -> KafkaSettings:
    if broker.sasl_address is None:
        pytest.skip("the broker in SHOAL_TEST_KAFKA has no address that asks for a password")
    client = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    return KafkaSettings(
        broker.sasl_address, client={**client, "sasl.username": USER, "sasl.password": password}, **others
    )


def make_app(broker: Any, data_dir: Path, name: str) -> App:
    """Copies large orders, exactly once."""
    app = App(name, broker=broker, data_dir=data_dir, checkpoint_interval="100ms", exactly_once=True)
    app.topic(f"{name}-in", schema={"amount": "int64"}, partitions=2)

    @app.dataflow()
    def large() -> Any:
        return Stream.from_kafka(f"{name}-in").filter(col("amount") > 5).to_kafka(f"{name}-out")

    return app


async def test_an_app_uses_its_settings_for_all_that_it_reads_and_writes(
    tmp_path: Path, kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"secured-{SystemEntropy().token(8)}"
    app = make_app(secured(kafka_broker), tmp_path, name)
    flow = app.dataflows["large"]
    with caplog.at_level(logging.DEBUG):
        await flow.start(parallelism=2)  # makes the topic that it reads
        await app.topic(f"{name}-in").send_many([{"amount": number} for number in range(10)])
        rows: list[Any] = []
        for _ in range(400):
            if len(rows) == 4:
                break
            await asyncio.sleep(0.05)
            reading = app.stream(f"{name}-out", schema={"amount": "int64"}, bounded=True)
            rows = await asyncio.to_thread(reading.to_pylist)
        await flow.stop()
    assert sorted(row["amount"] for row in rows) == [6, 7, 8, 9]
    written = write_plan(flow.plan())
    said = [caplog.text, written.to_json(), str(flow.explain()), repr(app), *map(repr, written.blobs.values())]
    assert not [each for each in said if PASSWORD in each]


async def test_a_wrong_password_is_an_error_that_does_not_say_it(
    tmp_path: Path, kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    name, wrong = f"refused-{SystemEntropy().token(8)}", "no-sesame-at-all"
    app = make_app(secured(kafka_broker, wrong, patience=PATIENCE), tmp_path, name)
    with caplog.at_level(logging.DEBUG), pytest.raises(ShoalError) as raised:
        await app.start()
    assert wrong not in f"{caplog.text} {raised.value} {raised.value.facts}"
