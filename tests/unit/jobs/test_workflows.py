"""The order of steps, what is loaded when, and the workflows in memory against the suite."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.jobs.workflows import FORMAT, STEPS
from shoal.testing.suites.workflows import WorkflowSuite
from shoal.testing.workflows import MemoryWorkflows, WorkflowMemory

GOLDEN = Path(__file__).parents[2] / "golden" / "jobs.json"


def test_a_published_order_of_steps_never_changes():
    """DBOS fails a workflow that finds another step than it recorded. A new order needs a new number."""
    published = {int(number): tuple(steps) for number, steps in json.loads(GOLDEN.read_text()).items()}
    assert dict(STEPS) == published
    assert max(STEPS) == FORMAT


def test_a_control_plane_without_jobs_does_not_load_dbos():
    program = (
        "import shoal.control.server, shoal.cli.servers.control, sys\n"
        "from shoal.jobs.engine import find_engines\n"
        "print(find_engines().names, 'dbos' in sys.modules, 'pyarrow' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "('dataflow', 'service') False False"


class TestMemoryWorkflows(WorkflowSuite):
    @pytest.fixture
    def open_workflows(self):
        memory = WorkflowMemory()
        return lambda: MemoryWorkflows(memory)
