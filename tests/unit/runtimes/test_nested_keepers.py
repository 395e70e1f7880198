"""A workload may have a keeper of its own, as a serving agent does: its processes belong to the run of the workload."""

from __future__ import annotations

import subprocess

import pytest

from shoal.runtimes.keeper.procfs import Census, outer_runs


@pytest.mark.parametrize(
    ("environ", "value"),
    [
        ({}, ""),
        ({"SHOAL_RUN_ID": "web-1"}, ""),
        ({"SHOAL_KEEPER": "k1", "SHOAL_RUN_ID": "web-1"}, "k1=web-1"),
        ({"SHOAL_KEEPER": "k2", "SHOAL_RUN_ID": "b-1", "SHOAL_WITHIN": "k1=a-1"}, "k1=a-1,k2=b-1"),
    ],
)
def test_what_the_runs_of_a_nested_keeper_are_inside(environ, value):
    assert outer_runs(environ) == value


def test_a_process_counts_for_every_keeper_around_it():
    marks = {"SHOAL_KEEPER": "t-in", "SHOAL_RUN_ID": "ps-1", "SHOAL_WITHIN": "t-out=a-1,t-mid=b-1"}
    child = subprocess.Popen(["sleep", "60"], env={"PATH": "/usr/bin:/bin", **marks})
    try:
        expected = {"t-in": "ps-1", "t-mid": "b-1", "t-out": "a-1", "t-ou": "", "out": ""}
        for keeper, run in expected.items():
            census = Census(keeper)
            assert census.runs == ({run} if run else set())
            assert [stat.pid for stat in census.marked] == ([child.pid] if run else [])
    finally:
        child.kill()
        child.wait()
