from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from shoal.core.errors import InvalidError, NotFoundError
from shoal.core.telemetry import MetricRegistry, hide_secrets, is_secret_name, setup_logging

log = logging.getLogger("shoal.test")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(style: str, level: str = "info", **env: str) -> io.StringIO:
    stream = io.StringIO()
    setup_logging(level, style=style, env=env, stream=stream)
    return stream


def test_a_line_of_text_has_time_level_logger_message_and_facts() -> None:
    stream = lines("text")
    log.warning("node %s is late", "n1", extra={"seconds": 3})
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING shoal\.test: node n1 is late seconds=3\n", stream.getvalue()
    )


def test_a_line_of_json_has_the_same() -> None:
    stream = lines("json")
    log.info("node %s", "n1", extra={"seconds": 3, "level": "mine"})
    body = json.loads(stream.getvalue())
    assert body.pop("time").endswith("Z")
    assert body == {"level": "info", "logger": "shoal.test", "message": "node n1", "seconds": "3"}


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_error_comes_with_its_trace_and_facts(style: str) -> None:
    stream = lines(style)
    try:
        raise NotFoundError("node", "n1")
    except NotFoundError:
        log.exception("failed")
    text = stream.getvalue()
    assert "NotFoundError" in text
    assert "Traceback" in text
    if style == "json":
        assert json.loads(text)["kind"] == "node"
        assert text.count("\n") == 1


def test_the_level_holds() -> None:
    stream = lines("text", "error")
    log.warning("unseen")
    log.error("seen")
    assert "unseen" not in stream.getvalue()
    assert "seen" in stream.getvalue()


def test_the_environment_sets_what_was_not_typed() -> None:
    stream = io.StringIO()
    setup_logging(env={"LOG_LEVEL": "ERROR", "LOG_FORMAT": "json"}, stream=stream)
    log.warning("unseen")
    log.error("seen")
    assert json.loads(stream.getvalue())["message"] == "seen"


def test_setting_up_again_replaces_and_does_not_add() -> None:
    first = lines("text")
    second = lines("text")
    log.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_wrong_words_are_reported_together_under_their_names() -> None:
    with pytest.raises(InvalidError) as raised:
        setup_logging("loud", env={"LOG_FORMAT": "xml"})
    assert [each.field for each in raised.value.problems] == ["--log-level", "LOG_FORMAT"]


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    "emit",
    [
        lambda: log.info("token=hunter2"),
        lambda: log.info("joined", extra={"session_token": "hunter2"}),
        lambda: log.info("joined", extra={"request": {"password": "hunter2"}}),
        lambda: log.info("headers %s", {"Authorization": "Bearer hunter2", "a": 1}),
        lambda: log.info("authorization: Bearer hunter2"),
        lambda: log.info('{"client_secret": "hunter2"}'),
        lambda: log.info("connect to postgresql://shoal:hunter2@db:5432/shoal"),
        lambda: log.info("session: hunter2, next"),
        lambda: log.exception("failed", exc_info=ValueError("PASSWORD='hunter2'")),
    ],
)
def test_secrets_do_not_leave(style: str, emit: object) -> None:
    stream = lines(style)
    emit()  # type: ignore[operator]
    assert "***" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "node 'n1': this session was superseded by a newer registration",
        "3 tokens left",
        "postgresql://db:5432/shoal",
        "count=3 node=n1",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert hide_secrets(text) == text


def test_a_very_long_word_is_no_trap() -> None:
    for text in ("a" * 2_000_000, "token" * 200_000, "://" * 300_000, "a:" * 500_000):
        assert len(hide_secrets(text)) <= len(text)


def test_names_of_secrets() -> None:
    assert is_secret_name("X-Session-Token")
    assert is_secret_name("DB_PASSWORD")
    assert not is_secret_name("node_id")


# ---------------------------------------------------------------------------------------------------------
# Metrics


def test_series_are_rendered_as_prometheus_reads_them() -> None:
    metrics = MetricRegistry()
    metrics.counter("shoal_control_heartbeats_total", "Heartbeats.", ("result",)).labels("ok").inc(2)
    metrics.gauge("shoal_agent_slots_used", "Slots.").set(3)
    metrics.histogram("shoal_control_rpc_seconds", "RPCs.", buckets=(1, 2)).observe(1.5)
    text = metrics.render().decode()
    assert 'shoal_control_heartbeats_total{result="ok"} 2.0\n' in text
    assert "shoal_agent_slots_used 3.0\n" in text
    assert 'shoal_control_rpc_seconds_bucket{le="2.0"} 1.0\n' in text
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text


def test_registries_do_not_know_each_other() -> None:
    one, two = MetricRegistry(), MetricRegistry()
    one.gauge("shoal_agent_slots_used", "Slots.").set(1)
    two.gauge("shoal_agent_slots_used", "Slots.").set(2)
    assert "shoal_agent_slots_used 1.0" in one.render().decode()
    assert "shoal_agent_slots_used 2.0" in two.render().decode()


def test_asking_again_gives_the_same_series() -> None:
    metrics = MetricRegistry()
    assert metrics.gauge("shoal_agent_slots_used", "Slots.") is metrics.gauge("shoal_agent_slots_used", "Slots.")
    with pytest.raises(ValueError, match="exists already"):
        metrics.gauge("shoal_agent_slots_used", "Slots.", ("node",))


@pytest.mark.parametrize("name", ["slots", "shoal_slots", "shoal_Agent_slots", "other_agent_slots_used"])
def test_names_follow_the_rule(name: str) -> None:
    with pytest.raises(ValueError, match="must be named"):
        MetricRegistry().gauge(name, "Wrong.")


def test_a_counter_says_that_it_is_a_total() -> None:
    with pytest.raises(ValueError, match="_total"):
        MetricRegistry().counter("shoal_control_rounds", "Heartbeats.")


@pytest.mark.parametrize("name", ["httpx", "httpcore.http11"])
def test_a_request_is_no_line(name):
    stream = io.StringIO()
    setup_logging("info", stream=stream)
    logging.getLogger(name).info("HTTP Request: GET http://engine/_ping")
    logging.getLogger(name).warning("kept")
    assert [line.split()[-1] for line in stream.getvalue().splitlines()] == ["kept"]
