"""`shoal topic` with a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.core.entropy import SystemEntropy
from shoal.topics.kafka import KafkaSettings, KafkaTopics
from tests.services.kafka import PASSWORD, USER, KafkaBroker

pytestmark = pytest.mark.integration


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = main.run(["topic", *arguments])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


def test_a_topic_of_kafka_is_fed_described_and_shown(
    kafka_broker: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"t-{SystemEntropy().token(8)}"
    broker = ["--broker", kafka_broker.address]
    rows = [{"user": f"u{each % 7}", "n": each} for each in range(50)]
    (tmp_path / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(["feed", topic, str(tmp_path / "rows"), "--key", "user", "--create", "3", *broker], capsys)

    listed = json.loads(run(["list", "--json", *broker], capsys))
    assert [each["records"] for each in listed["topics"] if each["name"] == topic] == [50]
    described = json.loads(run(["describe", topic, "--group", "nobody", "--json", *broker], capsys))
    assert len(described["partitions"]) == 3
    assert described["groups"][0]["lag"] is None
    found = [json.loads(line) for line in run(["peek", topic, "-n", "100", "--json", *broker], capsys).splitlines()]
    assert sorted(each["value"]["n"] for each in found) == list(range(50))
    assert all(each["key"] == each["value"]["user"] for each in found)
    assert len(run(["peek", topic, "-n", "5", *broker], capsys).splitlines()) == 6


def test_the_client_is_set_up_from_a_file(
    kafka_broker: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kafka_broker.sasl_address is None:
        pytest.skip("the broker is not ours and has no address that asks for a password")
    topic = f"t-{SystemEntropy().token(8)}"
    with KafkaTopics(KafkaSettings(kafka_broker.address)) as topics:
        topics.create(topic)
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    (tmp_path / "client").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    broker = ["--broker", kafka_broker.sasl_address, "--client-config", str(tmp_path / "client")]
    assert topic in run(["list", *broker], capsys)
