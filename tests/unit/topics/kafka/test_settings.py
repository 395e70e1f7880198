"""What the clients of a cluster are made with, and that secrets stay secret."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from confluent_kafka import Consumer

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError
from shoal.topics.kafka import KafkaSettings
from shoal.topics.kafka.secrecy import ClientLog, Redaction
from shoal.topics.kafka.translate import connect

SECRET = "hunter2-and-more"


def test_every_problem_is_named() -> None:
    with pytest.raises(InvalidError) as raised:
        KafkaSettings(
            "",
            fetch_ahead=0,
            patience=float("inf"),
            session_timeout=10.0,
            poll_timeout=5.0,
            replication=-1,
            client={"group.id": "mine", "isolation.level": "read_uncommitted", "error_cb": print},  # type: ignore[dict-item]
        )
    assert {each.field for each in raised.value.problems} == {
        "brokers",
        "fetch_ahead",
        "patience",
        "poll_timeout",
        "replication",
        "client.group.id",
        "client.isolation.level",
        "client.error_cb",
    }


def test_the_client_settings_win_over_defaults_but_not_over_promises() -> None:
    settings = KafkaSettings("a:1", client={"linger.ms": 50, "fetch.wait.max.ms": 7, "socket.nagle.disable": False})
    writer, reader = settings.for_writer("id"), settings.for_reader("name")
    assert (writer["linger.ms"], writer["socket.nagle.disable"]) == (50, False)
    assert (reader["fetch.wait.max.ms"], reader["isolation.level"]) == (7, "read_committed")
    assert reader["bootstrap.servers"] == writer["bootstrap.servers"] == "a:1"
    assert (writer["enable.idempotence"], writer["transactional.id"]) == (True, "id")
    assert "transactional.id" not in settings.for_writer(None)


def test_a_client_is_told_only_what_it_knows() -> None:
    settings = KafkaSettings("a:1", client={"linger.ms": 50, "fetch.wait.max.ms": 7, "security.protocol": "SSL"})
    assert "fetch.wait.max.ms" not in settings.for_writer(None)
    assert "linger.ms" not in settings.for_reader("name")
    for options in (
        settings.for_admin(),
        settings.for_writer(None),
        settings.for_reader("n"),
        settings.for_member("g", "n"),
    ):
        assert options["security.protocol"] == "SSL"
    assert not {"linger.ms", "fetch.wait.max.ms"} & settings.for_admin().keys()


def test_a_message_waits_no_longer_than_its_transaction() -> None:
    settings = KafkaSettings("a:1", patience=30.0, transaction_timeout=10.0)
    assert settings.for_writer(None)["message.timeout.ms"] == 30_000
    assert (
        settings.for_writer("id")["message.timeout.ms"] == settings.for_writer("id")["transaction.timeout.ms"] == 10_000
    )


def test_settings_survive_pickling() -> None:
    settings = KafkaSettings("a:1", client={"sasl.password": SECRET})
    assert pickle.loads(pickle.dumps(settings)) == settings


# -------------------------------------------------------------------------------------------------------------
# Secrets


@pytest.mark.parametrize(
    "name",
    ["sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"],
)
def test_a_secret_is_in_no_repr_error_or_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = KafkaSettings("a:1", client={name: SECRET})
    assert SECRET not in f"{settings!r} {settings} {settings.redaction!r}"
    with caplog.at_level(logging.DEBUG):
        logger = settings.for_reader("name")["logger"]
        logger.log(logging.WARNING, "%s [%s] %s", "FAIL", "rdkafka#1", f"password {SECRET} was refused")
    assert caplog.messages == ["FAIL [rdkafka#1] password … was refused"]


def test_a_secret_under_a_name_that_is_ours_is_not_shown() -> None:
    with pytest.raises(InvalidError) as raised:
        KafkaSettings("a:1", client={"group.id": SECRET})
    assert SECRET not in str(raised.value)


def test_the_parts_of_a_configuration_are_secret_too() -> None:
    redaction = Redaction.of({"sasl.oauthbearer.config": f"principal=me secret={SECRET}", "client.id": "public"})
    assert (
        redaction.clean(f"unrecognised beginning at: secret={SECRET} of public")
        == "unrecognised beginning at: …=… of public"
    )


def test_the_same_warning_is_logged_from_time_to_time(caplog: pytest.LogCaptureFixture) -> None:
    class Clock(SystemClock):
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    log = ClientLog(Redaction.of({}), clock)
    with caplog.at_level(logging.DEBUG):
        for step in range(4):
            log.log(logging.ERROR, "no broker after %sms", step)
            log.log(logging.DEBUG, "detail %s", "x")
        log.log(logging.ERROR, "another")
        clock.now += 11.0
        log.log(logging.ERROR, "no broker after %sms", 9)
    assert [each for each in caplog.messages if each != "detail x"] == [
        "no broker after 0ms",
        "another",
        "no broker after 9ms (3 more of these since)",
    ]
    assert caplog.messages.count("detail x") == 4


def test_places_of_files_are_shown() -> None:
    redaction = Redaction.of({"ssl.key.location": "/etc/keys/my.pem", "ssl.ca.location": "/etc/ca.pem"})
    assert redaction.clean("no /etc/keys/my.pem") == "no /etc/keys/my.pem"


@pytest.mark.parametrize(
    "client",
    [
        {"ssl.key.pem": SECRET, "security.protocol": "ssl"},
        {"ssl.key.password": SECRET, "no.such.setting": 1},
        {"sasl.password": SECRET, "sasl.mechanism": SECRET, "security.protocol": "sasl_plaintext"},
    ],
)
def test_settings_that_the_client_refuses_are_named_without_secrets(client: dict[str, Any]) -> None:
    settings = KafkaSettings("127.0.0.1:1", client=client)
    with pytest.raises(InvalidError) as raised:
        connect(lambda: Consumer(settings.for_reader("name")), settings.redaction)
    assert raised.value.__context__ is None
    assert SECRET not in str(raised.value)
    assert "client: " in str(raised.value)


@pytest.mark.parametrize("megabytes", [1, 64, 1024])
def test_what_is_fetched_ahead_is_bounded_by_its_memory(megabytes: int) -> None:
    """By records, which take more in the client than they have bytes, and by bytes."""
    bound = megabytes * 1024 * 1024
    options = KafkaSettings("a:1", fetch_ahead=bound).for_reader("name")
    assert options["queued.min.messages"] * 1024 <= max(bound, 1000 * 1024)
    assert options["queued.max.messages.kbytes"] * 1024 * 2 <= bound
    assert 64 * 1024 <= options["fetch.message.max.bytes"] <= 1024 * 1024
