"""The area of containers and processes measures what it declares, on a real Podman and a small scale."""

from __future__ import annotations

import math
import os
import shutil

import pytest

from bench.runtimes import FIGURES, Scale, measure_all
from tests.services.absence import do_without

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SMALL = Scale(starts=2, idle=2, settle=0.1, watch=0.5)


async def test_every_figure_of_runtimes_gets_a_value() -> None:
    if os.geteuid() != 0 or shutil.which("podman") is None:
        do_without("containers are measured as root, with the Debian packages podman, runc and busybox-static")
    found = await measure_all(SMALL, pytest.fail, with_idle=True)
    assert found.keys() == {figure.name for figure in FIGURES}
    assert all(value >= 0 and math.isfinite(value) for value in found.values())
    assert found["container_start_p50"] <= found["container_start_p99"]
