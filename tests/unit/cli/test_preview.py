"""A dry run in words: the differences, what restarts, and why there."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.cli.commands.common.preview import Planned, difference, restarts, why
from shoal.model.documents import read_document
from shoal.model.views import NodeScore, PlannedPlacement
from shoal.model.workloads import Rejection
from tests.unit.cli.scripted import workload

WEB = {
    "id": "web",
    "type": "process",
    "process": {"command": ["sleep", "60"], "env": {"B": "1", "A": "2"}},
    "labels": {"tier": "front", "app": "web"},
}
STORED = workload("web", spec=read_document(WEB).spec, revision_id="ab", spec_sha256=b"\xab")


def changed(**fields):
    return read_document({**WEB, **fields})


def test_what_is_equal_has_no_difference():
    assert difference(STORED, read_document(WEB)) == []
    assert difference(dataclasses.replace(STORED, revision_id="v1"), read_document(WEB)) == []


def test_a_difference_names_what_goes_and_what_comes():
    lines = difference(STORED, changed(labels={"app": "web", "tier": "back"}, slots=2))
    assert [line for line in lines if line[0] in "+-"] == ["+slots: 2", "-  tier: front", "+  tier: back"]


def test_a_revision_that_was_given_is_part_of_it():
    lines = difference(dataclasses.replace(STORED, revision_id="v1"), changed(revision="v2"))
    assert [line for line in lines if line[0] in "+-"] == ["-revision: v1", "+revision: v2"]


@pytest.mark.parametrize(
    ("fields", "node", "expected"),
    [
        ({"labels": {"app": "other"}}, "node-1", False),
        ({"placement": {"constraints": [{"key": "zone", "operator": "exists"}]}}, "node-1", False),
        ({"failover": {"policy": "keep"}}, "node-1", False),
        ({"process": {"command": ["sleep", "61"]}}, "node-1", True),
        ({"resources": {"memory_mb": 64}}, "node-1", True),
        ({"desired_state": "Stopped"}, "node-1", True),
        ({"labels": {"app": "other"}}, "node-2", True),
        ({"process": {"command": ["sleep", "61"]}}, "", True),
    ],
)
def test_what_restarts(fields, node, expected):
    placement = PlannedPlacement("web", node, "update")
    assert restarts(STORED, changed(**fields), placement) is expected


@pytest.mark.parametrize("status", ["Stopped", "Completed", "Failed"])
def test_what_does_not_run_does_not_restart(status):
    stored = dataclasses.replace(STORED, status=status)
    assert not restarts(stored, changed(process={"command": ["x"]}), PlannedPlacement("web", "node-1", "update"))


REJECTED = (Rejection("node-9", "memory", "too little"),)


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (PlannedPlacement("web", "", "create"), "there are no nodes"),
        (PlannedPlacement("web", "", "create", rejections=REJECTED), "rejected by 1 of 1 nodes"),
        (PlannedPlacement("web", "a", "unchanged"), "nothing to do"),
        (PlannedPlacement("web", "", "delete"), "the group no longer has it"),
        (PlannedPlacement("web", "a", "create", scores=(NodeScore("a", 1.0),)), "the only node that fits"),
        (
            PlannedPlacement("web", "a", "update", scores=(NodeScore("a", 1.0, {"spread": 1.0, "current": 9.0}),)),
            "it runs there",
        ),
        (
            PlannedPlacement(
                "web",
                "a",
                "create",
                rejections=REJECTED,
                scores=(NodeScore("a", 90.0, {"spread": 90.0}), NodeScore("b", 80.0, {"spread": 80.0})),
            ),
            "the emptiest of 2 nodes that fit; 1 rejected",
        ),
        (
            PlannedPlacement(
                "web",
                "a",
                "create",
                scores=(
                    NodeScore("a", 130.0, {"pack": 80.0, "near app=db by zone": 50.0}),
                    NodeScore("b", 90.0, {"pack": 90.0, "near app=db by zone": 0.0}),
                ),
            ),
            "the best for being near app=db by zone of 2 nodes that fit",
        ),
        (
            PlannedPlacement(
                "web",
                "a",
                "create",
                scores=(NodeScore("a", 9.0, {"spread": 9.0}), NodeScore("b", 9.0, {"spread": 9.0})),
            ),
            "as good as any of 2 nodes that fit",
        ),
    ],
)
def test_why_there(placement, words):
    assert why(Planned("", placement)) == words
