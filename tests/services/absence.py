"""What a test does whose service cannot be had here: it is skipped with the way to get it, and in CI it fails."""

from __future__ import annotations

import os
import socket
from typing import NoReturn

import pytest


def do_without(words: str) -> NoReturn:
    """Skip the test that asks, or fail it in CI. The words name what is missing, and how to get it."""
    if os.environ.get("CI") == "true":
        pytest.fail(words, pytrace=False)
    pytest.skip(words)


def need_ipv6() -> None:
    """Skip a test on a machine that has no IPv6 loopback."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
