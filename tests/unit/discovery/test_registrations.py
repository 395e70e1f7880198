"""Which tasks an agent of version 1 runs."""

from __future__ import annotations

import pytest

from shoal.core.errors import InvalidError
from shoal.discovery.replicas.paths import Location
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.replicas.registrations import model_of, owned_tasks

ALL = tuple(ServerType)


@pytest.mark.parametrize(
    ("types", "more", "names"),
    [
        (ALL, {}, ["entry:0", "ps:0", "dense:0"]),
        ([ServerType.PS], {"num_ps": 5, "num_shard": 2, "shard_id": 1}, ["ps:1", "ps:3"]),
        ([ServerType.ENTRY], {"num_ps": 5, "num_shard": 5, "shard_id": 4}, ["entry:0"]),
        ([ServerType.PS], {"num_ps": 1, "num_shard": 2, "shard_id": 1}, []),
    ],
)
def test_the_tasks_of_an_agent(types, more, names):
    assert [task.name for task in owned_tasks(types, **more)] == names


def test_tasks_have_the_location_of_their_agent():
    (task,) = owned_tasks([ServerType.DENSE], location=Location("lf", "a"))
    assert task.key == "lf:a/dense:0"


@pytest.mark.parametrize("shard_id", [-1, 2])
def test_a_shard_that_does_not_exist_is_refused(shard_id):
    with pytest.raises(InvalidError, match="shard_id"):
        owned_tasks(ALL, num_ps=4, num_shard=2, shard_id=shard_id)


def test_the_models_of_tasks():
    tasks = owned_tasks(ALL, num_ps=4, num_shard=4, shard_id=3)
    assert [model_of(task) for task in tasks] == ["entry", "ps_3", "dense_0"]
