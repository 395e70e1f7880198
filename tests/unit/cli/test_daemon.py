"""What the servers share: signals and the ready file."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from shoal.agent.settings import ENV_NAMES as AGENT_ENV_NAMES
from shoal.agent.settings import AgentSettings
from shoal.cli.servers import daemon
from shoal.cli.servers.control import ENV_NAMES
from shoal.control.settings import ControlSettings
from shoal.core.errors import InvalidError


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_first_signal_asks_and_a_second_ctrl_c_does_not(first):
    stop, hurry = asyncio.Event(), asyncio.Event()
    before = signal.getsignal(signal.SIGTERM)
    with daemon.stopping_on_signals(stop, second=hurry.set):
        os.kill(os.getpid(), first)
        await asyncio.wait_for(stop.wait(), 10)
        os.kill(os.getpid(), signal.SIGTERM)  # a service manager may ask again; that is no hurry
        await asyncio.sleep(0)
        assert not hurry.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(hurry.wait(), 10)
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_ready_file_is_json_and_appears_whole(tmp_path):
    path = tmp_path / "deep" / "ready.json"
    daemon.write_ready_file(str(path), {"role": "agent", "grpc": "127.0.0.1:1"})
    assert json.loads(path.read_text()) == {"pid": os.getpid(), "role": "agent", "grpc": "127.0.0.1:1"}
    assert [each.name for each in path.parent.iterdir()] == ["ready.json"]
    daemon.write_ready_file(None, {})


@pytest.mark.parametrize(
    ("settings", "env_names"),
    [(ControlSettings, ENV_NAMES), (AgentSettings, AGENT_ENV_NAMES)],
    ids=["control", "agent"],
)
def test_certificates_of_the_environment_are_named_when_they_contradict_what_was_typed(
    monkeypatch, settings, env_names
):
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.setenv(f"SHOAL_{name}", f"/certs/{name}")
    with pytest.raises(InvalidError) as caught:
        daemon.load(
            settings,
            flags={"data_dir": "d", "insecure": True},
            env_names=env_names,
            config=None,
            log_level=None,
            log_format=None,
        )
    told = [str(each) for each in caught.value.problems if each.field == "--insecure"]
    assert told == [
        "--insecure: must not be given together with certificates "
        "(from the environment SHOAL_CA, SHOAL_CERT, SHOAL_KEY): one or the other"
    ]
    assert caught.value.hint == "`unset SHOAL_CA SHOAL_CERT SHOAL_KEY`, or leave --insecure out"
