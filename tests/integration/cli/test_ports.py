"""Ports for a control plane that is to come back where it was."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from shoal.cli.local.children import free_port, is_free
from shoal.core.entropy import SeededEntropy

pytestmark = pytest.mark.integration


def test_ports_are_free_and_not_of_the_range_that_the_system_hands_out():
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = free_port(SeededEntropy(7))
    assert is_free(port)
    assert port < low or port > 61_000


def test_a_port_with_a_listener_is_not_free():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not is_free(listener.getsockname()[1])
