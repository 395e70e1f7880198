"""Help, completion and mistakes are answered at once: the command tree loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "cryptography",
    "fsspec",
    "google",
    "grpc",
    "prometheus_client",
    "psutil",
    "pyarrow",
    "rich",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "yaml",
)


def test_importing_the_command_tree_loads_no_heavy_package():
    program = "import sys, shoal.cli.main; shoal.cli.main.app; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()).isdisjoint(HEAVY)


def test_the_process_of_an_agent_loads_nothing_that_it_does_not_need():
    """An idle agent has no use for what stores or draws."""
    program = (
        "import sys, shoal.cli.servers.agent_process, shoal.agent.server, shoal.wire.sockets.channel\n"
        "import shoal.agent.contact.renewal, shoal.agent.contact.joining, shoal.runtimes.process\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"opentelemetry", "pydantic", "rich", "sqlalchemy", "typer", "yaml"})


def test_running_a_stream_program_loads_nothing_of_the_fleet():
    """What it takes from a command line to its first row is waited for."""
    program = (
        "import sys, shoal.cli.main as main\nmain.build(['run'])\n"
        "import shoal.dataflow.api.apps.app, shoal.dataflow.execution.engine\n"
        "import shoal.dataflow.connectors.topics.endpoints, shoal.topics.local\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    unwanted = ("confluent_kafka", "duckdb", "grpc", "pandas", "rich", "rocksdict", "sqlalchemy")
    assert loaded.isdisjoint(unwanted)
    assert loaded.isdisjoint({"shoal.agent", "shoal.control", "shoal.client", "shoal.model.workloads", "yaml"})
