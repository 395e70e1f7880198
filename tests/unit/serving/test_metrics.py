from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from shoal.core.telemetry import MetricRegistry
from shoal.serving.config.deployment import deploy
from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import ServingSettings
from shoal.serving.metrics import ServingMetrics


class Wall:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def wall(self) -> datetime:
        return self.now


@pytest.fixture
def wall():
    return Wall()


def shown(metrics: ServingMetrics) -> list[str]:
    return [line for line in metrics.render().decode().splitlines() if line.startswith("shoal_serving")]


TAGS = 'base_name="m",cluster="c",idc="lf",model_name="ps_0",replica_id="3",shard_id="0"'


def who(metrics: ServingMetrics) -> None:
    settings = ServingSettings(bzid="g", base_name="m", base_path="/d", deploy_type="mixed")
    metrics.agent(deploy(settings, read_environment({"TCE_INTERNAL_IDC": "lf", "TCE_CLUSTER": "c"})), 3)


def test_versions_and_their_ages(wall):
    metrics = ServingMetrics(wall, MetricRegistry())
    who(metrics)
    metrics.available("ps_0", 7)
    wall.now += timedelta(seconds=30)
    metrics.available("ps_0", 7)
    assert shown(metrics)[1:] == [
        f"shoal_serving_model_latest_version{{{TAGS}}} 7.0",
        f"shoal_serving_model_since_last_update_seconds{{{TAGS}}} 30.0",
        f"shoal_serving_model_update_ts_seconds{{{TAGS}}} 1.7672256e+09",
    ]
    metrics.available("ps_0", 8)
    assert f"shoal_serving_model_since_last_update_seconds{{{TAGS}}} 0.0" in shown(metrics)
    metrics.available("ps_0", 8, replica_id=4)
    assert f"shoal_serving_model_latest_version{{{TAGS.replace('3', '4')}}} 8.0" in shown(metrics)
    metrics.gone("ps_0", replica_id=4)
    assert f"shoal_serving_model_latest_version{{{TAGS}}} 8.0" in shown(metrics)
    assert len(shown(metrics)) == 4
    metrics.gone("ps_0")
    assert len(shown(metrics)) == 1
    metrics.available("ps_0", 8)
    metrics.gone("ps_0")  # before its age was ever shown
    metrics.gone("ps_0")
    assert len(shown(metrics)) == 1


def test_received_models(wall):
    metrics = ServingMetrics(wall, MetricRegistry())
    metrics.received("rank", int(wall.now.timestamp()) - 100)
    metrics.missed("rank")
    wall.now += timedelta(seconds=5)
    assert shown(metrics) == [
        'shoal_serving_version_delay_seconds{model_name="rank"} 105.0',
        'shoal_serving_update_delay_seconds{model_name="rank"} 5.0',
        'shoal_serving_loop_once_failed_total{model_name="rank"} 1.0',
    ]


def test_who_the_agent_is(wall):
    metrics = ServingMetrics(wall, MetricRegistry())
    who(metrics)
    metrics.restarted("ps")
    assert shown(metrics) == [
        'shoal_serving_agent{base_name="m",cluster="c",idc="lf",replica_id="3",shard_id="0"} 1.0',
        'shoal_serving_restarts_total{process="ps"} 1.0',
    ]


def test_without_a_registry_nothing_is_counted(wall):
    metrics = ServingMetrics(wall)
    metrics.available("m", 1)
    metrics.gone("m")
    metrics.missed("m")
    metrics.restarted("m")
    assert metrics.render() == b""
