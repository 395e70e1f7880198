"""Settings of a flow: every broken rule is named, by field, value and rule."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.errors import InvalidError
from shoal.dataflow.settings import CheckpointSettings, FlowSettings


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"batch_rows": "x"}, "batch_rows: must be a whole number of at least 1 (got 'x')"),
        ({"batch_rows": 1.5}, "batch_rows: must be a whole number of at least 1 (got 1.5)"),
        ({"batch_rows": True}, "batch_rows: must be a whole number of at least 1 (got True)"),
        ({"batch_rows": None}, "batch_rows: must be a whole number of at least 1"),
        ({"queue_bytes": 0}, "queue_bytes: must be at least 1 (got 0)"),
        ({"batch_bytes": 2**80}, "batch_bytes: must be at most"),
        ({"key_groups": 10**9}, "key_groups: must be at most 32768 (got 1000000000)"),
        ({"morsel_workers": 10**6}, "morsel_workers: must be at most 1024"),
        ({"pace": "fast"}, "pace: must be a number of seconds of at least 0 (got 'fast')"),
        ({"poll": float("nan")}, "poll: must be a number of seconds"),
        ({"discovery": float("inf")}, "discovery: must be at most"),
        ({"state": ["memory"]}, "state: must be memory or rocks"),
        ({"scratch": 5}, "scratch: must be a path"),
        ({"checkpoint": "here"}, "checkpoint: must be CheckpointSettings"),
    ],
)
def test_what_cannot_be_set(said: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError) as caught:
        FlowSettings(**said)
    assert told in str(caught.value)


def test_what_cannot_be_said_of_checkpoints() -> None:
    wrong: dict[str, Any] = {"directory": 5, "interval": "1s", "keep": 1.5, "from_checkpoint": -1}
    with pytest.raises(InvalidError) as caught:
        CheckpointSettings(**wrong)
    assert sorted(each.field for each in caught.value.problems) == ["directory", "from_checkpoint", "interval", "keep"]


def test_the_most_key_groups_are_possible() -> None:
    assert FlowSettings(key_groups=32_768, pace=0, morsel_workers=2).key_groups == 32_768
