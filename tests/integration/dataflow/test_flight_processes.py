"""The job of `test_processes` with Arrow Flight and TLS between its processes: a sample, on the same oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.testing.certificates import Certificates
from tests.integration.dataflow.test_processes import jobs

pytestmark = pytest.mark.integration

__all__ = ["jobs"]


@pytest.fixture
def flight(tmp_path: Path) -> dict[str, str]:
    """Every process thinks that it is on a host of its own: their host ids are not known."""
    files = Certificates(tmp_path / "certificates").workload("job", "n1")
    found = {"SHOAL_CA": files.ca, "SHOAL_CERT": files.cert, "SHOAL_KEY": files.key}
    return {"SHOAL_EXCHANGE_HOST": "127.0.0.1", "SHOAL_HOST_ID": ""} | {name: str(path) for name, path in found.items()}


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.long)])
def test_over_flight_it_is_what_it_is_in_one(jobs, flight, processes):
    job = jobs(processes, **flight)
    job.wait()
    job.check()


@pytest.mark.parametrize(
    "point", ["dataflow.snapshot.after", pytest.param("dataflow.commit.before", marks=pytest.mark.long)]
)
def test_a_host_that_is_killed_takes_its_region_back(jobs, flight, point):
    job = jobs(**flight, SHOAL_FAULTS_HOST_1_EPOCH_1=f"{point}=kill@2")
    assert job.wait() >= 1
    job.check()


def test_a_host_that_is_stopped_is_replaced_and_its_zombie_changes_nothing(jobs, flight):
    job = jobs(**flight, SHOAL_FAULTS_HOST_1_EPOCH_1="dataflow.commit.before=stop@1")
    job.wait_running()
    assert job.wait() >= 1
    job.check()
