"""A control plane with some of everything, for the tests of commands."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from shoal.model.events import Event
from shoal.model.resources import Resources
from shoal.model.views import GroupView, Reason
from shoal.model.workloads import Exit, RunState, RunStatus
from tests.unit.cli.scripted import NO_ROOM, START, ScriptedControl, node, workload


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch):
    for name in ("COLUMNS", "NO_COLOR", "SHOAL_CONTROL", "SHOAL_INSECURE", "SHOAL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def control():
    failed = RunStatus(
        "batch",
        RunState.FAILED,
        message="the program ended with exit code 3",
        exit=Exit(code=3),
        restarts=4,
        last_output="line one\nTraceback: no such table\n",
    )
    return ScriptedControl(
        nodes={
            "node-1": node("node-1"),
            "node-2": node(
                "node-2",
                status="NotReady",
                status_reason="its lease ran out 40s after the last heartbeat",
                last_heartbeat=START - timedelta(seconds=75),
                available=Resources(0, 128, 0, 0),
            ),
        },
        workloads={
            "web": workload("web"),
            "batch": workload(
                "batch",
                status="Failed",
                assigned_node_id="node-2",
                group_id="nightly",
                reason=Reason("RUNTIME_ERROR", "the program ended with exit code 3"),
                run=failed,
                usage=None,
            ),
            "huge": workload(
                "huge",
                status="Pending",
                assigned_node_id="",
                reason=Reason("INSUFFICIENT_RESOURCES", "no node can take it: 1 memory, 1 not_ready"),
                rejections=NO_ROOM,
                usage=None,
            ),
        },
        groups={"nightly": GroupView("nightly", 2, "Failed", "a member failed", (workload("batch", status="Failed"),))},
        events=[
            Event(START, "node", "node-1", "NodeRegistered", "node-1 registered", "agent", cursor=1),
            Event(
                START + timedelta(seconds=5),
                "workload",
                "web",
                "WorkloadPlaced",
                "placed on node-1",
                "scheduler",
                cause="it was applied",
                cursor=2,
            ),
        ],
        logs=[(b"hello\n", "stdout"), (b"oh no\n", "stderr"), (b"\xff\xfe no text", "stdout")],
    )


@pytest.fixture
def labelled(control):
    for name, labels in (("web", {"app": "web"}), ("batch", {"app": "nightly"}), ("huge", {"app": "web", "big": ""})):
        control.workloads[name] = dataclasses.replace(control.workloads[name], labels=labels)
    return control
