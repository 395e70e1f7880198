"""What an agent of version 2 should load."""

from __future__ import annotations

import pytest

from shoal.discovery.mirror.records import PublishedModel, PublishType
from shoal.discovery.mirror.selection import expected_loading

MANY = {"entry": "/e", "ps_0": "/0", "ps_5": "/5"}
FEW = {"entry": "/e", "ps_1": "/1"}


def assigned(shard, replica, sub_models, total=2, **more):
    return PublishedModel(shard, replica, "m", 10, total, sub_models, **more)


OWN = assigned(2, 2, MANY)
FEWEST = assigned(3, 0, FEW)
PLAIN = assigned(2, 0, FEW, 1)


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ([], None),
        ([OWN], None),
        ([OWN, FEWEST], OWN),
        ([assigned(3, 1, MANY), FEWEST], assigned(2, 2, {"entry": "/e"})),
        ([PLAIN], assigned(2, 2, FEW, 1)),
        ([assigned(2, 0, FEW, 1, is_spec=True)], assigned(2, 2, {"entry": "/e"}, 1, is_spec=True)),
        ([assigned(2, 2, MANY, 1, ptype=PublishType.UNLOAD)], None),
        ([assigned(2, 2, MANY, 2), assigned(2, 1, MANY, 3)], None),
        ([PublishedModel(2, 2, None, 1)], None),
        ([assigned(2, 2, None, 1)], assigned(2, 2, None, 1)),
    ],
)
def test_the_assignment_of_an_agent(published, expected):
    found = expected_loading(published, shard_id=2, replica_id=2)
    assert found == ({"m": expected} if expected is not None else {})


def test_models_are_chosen_apart():
    other = PublishedModel(2, 2, "xm", 1, 1, FEW)
    assert list(expected_loading([PLAIN, other], shard_id=2, replica_id=2)) == ["m", "xm"]
