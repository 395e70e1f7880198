"""A local fleet whose control plane cannot be started as it was meant to be."""

from __future__ import annotations

import socket

import pytest

from shoal.cli.local import children
from shoal.cli.local import fleet as fleets
from shoal.cli.local.fleet import LocalFleet
from shoal.core.errors import DeadlineError, UnavailableError


@pytest.fixture
def taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


async def test_another_port_is_chosen_when_somebody_was_faster(tmp_path, taken, monkeypatch):
    first = iter([True])
    is_free = fleets.is_free
    monkeypatch.setattr(fleets, "is_free", lambda port: next(first, None) or is_free(port))
    fleet = LocalFleet(tmp_path, agents=0, secure=False, usual_ports=(taken, 0, 0))
    async with fleet:
        assert fleet.control_address != f"127.0.0.1:{taken}"
        async with fleet.client() as control:
            assert (await control.summary()).total_nodes == 0


async def test_a_port_that_was_given_is_insisted_on(tmp_path, taken):
    with pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{taken}"):
        async with LocalFleet(tmp_path, agents=0, secure=False, grpc_port=taken):
            pass


async def test_a_control_plane_that_takes_too_long_is_not_in_the_way_of_the_next(tmp_path, monkeypatch):
    fleet = LocalFleet(tmp_path, agents=0, secure=False)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(children, "STARTS_WITHIN", 0.01)
            with pytest.raises(DeadlineError, match="control did not serve within 10ms"):
                await fleet.start_control()
        assert not fleet.is_running("control")
        await fleet.start_control()
        assert fleet.is_running("control")
    finally:
        await fleet.stop()
