"""The process runtime keeps every promise of the suite, with cgroups and without."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.ids import NodeId
from shoal.runtimes.base import Runtime
from shoal.runtimes.cgroups import Cgroups
from shoal.runtimes.process import ProcessRuntime
from shoal.testing.suites.runtime import RuntimeSuite

pytestmark = pytest.mark.e2e


def _limits_here() -> str:
    groups = Cgroups.find(f"test-{os.getpid()}")
    groups.close()
    return groups.limits


class TestProcessRuntime(RuntimeSuite):
    __test__ = True

    limits_memory = _limits_here().startswith("cgroup") or f"limits here: {_limits_here()}"

    @pytest.fixture
    def make_runtime(self, tmp_path: Path) -> Callable[[], Runtime]:
        return lambda: ProcessRuntime(tmp_path / "agent", clock=SystemClock(), node_id=NodeId("n1"))
