"""Settings, from every source."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shoal.agent.settings import ENV_NAMES, AgentSettings
from shoal.core.config import load_settings
from shoal.core.errors import InvalidError
from shoal.core.shape import check, field_kinds


def load(env=None, **flags) -> AgentSettings:
    return load_settings(AgentSettings, flags=flags, env=env or {}, env_names=ENV_NAMES)


def test_flags_as_they_are_typed():
    settings = load(
        data_dir="/data",
        control="10.0.0.1:9000,10.0.0.2,[::1]",
        slots="4",
        cpu="2.5",
        memory="2048MB",
        labels=["zone=a", "disk=ssd"],
        http_port="0",
        insecure=True,
        stop_grace="5s",
    )
    assert settings.control_addresses == ("10.0.0.1:9000", "10.0.0.2:8085", "[::1]:8085")
    assert (settings.slots, settings.cpu, settings.memory_mb) == (4, 2.5, 2048)
    assert settings.all_labels == {"zone": "a", "disk": "ssd"}
    assert (settings.http_address, settings.grpc_address) == ("127.0.0.1:0", "127.0.0.1:50051")
    assert settings.stop_grace == timedelta(seconds=5)


def test_the_names_of_the_published_agent_are_understood():
    settings = load(
        env={
            "PERSYS_GRPC_ADDR": "0.0.0.0",
            "PERSYS_GRPC_PORT": "50052",
            "PERSYS_METRICS_PORT": "8089",
            "PERSYS_STATE_PATH": "/var/lib/persys/state.db",
            "PERSYS_SCHEDULER_ADDR": "scheduler:8085",
            "PERSYS_SCHEDULER_INSECURE": "true",
            "PERSYS_AGENT_GRPC_ENDPOINT": "edge.example:50051",
            "PERSYS_NODE_ID": "node-7",
            "PERSYS_NODE_REGION": "eu",
            "PERSYS_NODE_ENV": "prod",
            "PERSYS_NODE_LABELS": "zone=a,disk=ssd",
            "PERSYS_VERSION": "9.9",
            "PERSYS_LOG_LEVEL": "debug",
        }
    )
    assert (settings.grpc_address, settings.http_address) == ("0.0.0.0:50052", "127.0.0.1:8089")
    assert str(settings.directory) == "/var/lib/persys"
    assert (settings.control_addresses, settings.insecure) == (("scheduler:8085",), True)
    assert (settings.node_id, settings.version, settings.log_level) == ("node-7", "9.9", "debug")
    assert settings.all_labels == {"zone": "a", "disk": "ssd", "region": "eu", "env": "prod"}
    assert settings.endpoint("127.0.0.1:50052", local_host=lambda: "never") == "edge.example:50051"


def test_our_own_names_and_flags_win():
    env = {"PERSYS_NODE_ID": "theirs", "SHOAL_AGENT_NODE_ID": "ours", "SHOAL_CONTROL": "c:1", "PERSYS_GRPC_PORT": "1"}
    settings = load(env, data_dir="d", grpc_port="2", insecure=True)
    assert (settings.node_id, settings.grpc_port) == ("ours", 2)


def test_the_data_directory_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"insecure": True, "standalone": True}
    assert load(data_dir="state", **given).directory == tmp_path / "state"
    assert load(data_dir="state/agent.db", **given).directory == tmp_path / "state"


def test_every_variable_sets_something():
    assert set(ENV_NAMES) <= set(field_kinds(AgentSettings))


def test_everything_wrong_is_said_at_once():
    with pytest.raises(InvalidError) as caught:
        load(control="a b:1", memory="lots", cpu="-1", node_id="../x", slots="many", grpc_host="not a host")
    fields = {found.field for found in caught.value.problems}
    assert fields >= {"--data-dir", "--memory", "--cpu", "--node-id", "--slots"}


def test_rules_across_fields():
    with pytest.raises(InvalidError) as caught:
        check(AgentSettings(data_dir="d", control=("a b:1", "ok:1"), grpc_host="not a host", advertise="h:99999"))
    assert {found.field for found in caught.value.problems} == {"control[0]", "grpc_host", "advertise", "ca"}


def test_certificates_all_three_or_none_of_them_and_said_so():
    given = {"data_dir": "d", "standalone": True}
    with pytest.raises(InvalidError, match="ca: is required, with cert and key: join with --join TOKEN, or make them"):
        check(AgentSettings(**given))
    with pytest.raises(InvalidError) as caught:
        check(AgentSettings(**given, cert="c"))
    assert [found.field for found in caught.value.problems] == ["ca", "key"]
    with pytest.raises(InvalidError, match="insecure: must not be given together with certificates"):
        check(AgentSettings(**given, cert="c", insecure=True))
    names = {"PERSYS_TLS_CA": "a", "PERSYS_TLS_CERT": "c", "PERSYS_TLS_KEY": "k", "SHOAL_CERT": "own"}
    settings = load(names, **given)
    assert (settings.ca, settings.cert, settings.key) == ("a", "own", "k")
    assert settings.grpc_address == "0.0.0.0:50051"


def test_joining_with_a_token(tmp_path):
    token = f"shoal1.{'a' * 10}.{'b' * 40}.{'0' * 64}"
    given = {"data_dir": str(tmp_path), "control": ("c1:9", "c2", "c1:10"), "join": token}
    settings = AgentSettings(**given)
    check(settings)
    assert settings.join_addresses == ("c1:8086", "c2:8086")
    assert settings.access.cert == str(tmp_path / "certs" / "cert.pem")
    assert settings.grpc_address == "0.0.0.0:50051"
    assert AgentSettings(**given, join_address=("j", "k:1")).join_addresses == ("j:8086", "k:1")
    with pytest.raises(InvalidError, match="must be a token") as caught:
        check(AgentSettings(**{**given, "join": "b" * 40}))
    assert "b" * 40 not in str(caught.value)
    with pytest.raises(InvalidError, match="join: must not be given together with certificates or --insecure"):
        check(AgentSettings(**given, insecure=True))
    with pytest.raises(InvalidError, match="join_address: is required"):
        check(AgentSettings(data_dir="d", standalone=True, join=token))
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs" / "cert.pem").write_text("x")
    later = AgentSettings(data_dir=str(tmp_path), control=("c1",))
    check(later)
    assert later.has_joined
    assert not AgentSettings(data_dir=str(tmp_path), control=("c1",), insecure=True).has_joined


def test_an_agent_needs_a_control_plane_or_standalone():
    with pytest.raises(InvalidError, match="--standalone"):
        check(AgentSettings(data_dir="d", insecure=True))
    alone = AgentSettings(data_dir="d", control=("c:1",), standalone=True, insecure=True)
    check(alone)
    assert alone.control_addresses == ()


@pytest.mark.parametrize(
    ("fields", "endpoint"),
    [
        ({"insecure": True}, "127.0.0.1:1234"),
        ({}, "10.9.8.7:1234"),
        ({"grpc_host": "0.0.0.0"}, "10.9.8.7:1234"),
        ({"grpc_host": "::"}, "10.9.8.7:1234"),
        ({"advertise": "edge"}, "edge:1234"),
        ({"advertise": "edge:99"}, "edge:99"),
        ({"advertise": "fd00::1"}, "[fd00::1]:1234"),
    ],
)
def test_the_registered_address_can_be_reached(fields, endpoint):
    settings = AgentSettings(data_dir="d", standalone=True, **fields)
    assert settings.endpoint("127.0.0.1:1234", local_host=lambda: "10.9.8.7") == endpoint
