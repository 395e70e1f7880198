"""The area of discovery measures what it declares, on a small scale."""

from __future__ import annotations

import math

import pytest

from bench.discovery import FIGURES, Scale, measure_all
from tests.services import jvm
from tests.services.absence import do_without

pytestmark = pytest.mark.e2e

SMALL = Scale(changes=2, tasks=10, seconds=0.1, callers=2, watched=100)


async def test_every_figure_of_discovery_gets_a_value() -> None:
    if jvm.find_jars() is None:
        do_without("there is no ZooKeeper: run scripts/fetch_kafka.sh (it needs Java and Maven)")
    found = await measure_all(SMALL, with_memory=True)
    assert found.keys() == {figure.name for figure in FIGURES}
    assert all(value > 0 and math.isfinite(value) for value in found.values())
    assert found["layout_to_binding_p50"] <= found["layout_to_binding_p99"]
