"""What the servers share: signals and the ready file."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from shoal.cli import daemon


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_first_signal_asks_and_a_second_ctrl_c_does_not(first):
    stop, hurry = asyncio.Event(), asyncio.Event()
    before = signal.getsignal(signal.SIGTERM)
    with daemon.stopping_on_signals(stop, second=hurry.set):
        os.kill(os.getpid(), first)
        await asyncio.wait_for(stop.wait(), 10)
        os.kill(os.getpid(), signal.SIGTERM)  # whoever stops services may ask again; that is no hurry
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
