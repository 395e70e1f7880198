"""Deaths of a task host count while there is no new checkpoint, and the error says what it read."""

import json

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.checkpoint.handles import StepState
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.checkpoint.records import Checkpoint
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.execution.hosts.control_messages import HostShare
from shoal.dataflow.execution.remote.crashes import Crashes
from shoal.dataflow.plan.physical import plan
from shoal.dataflow.plan.prepare import prepare
from shoal.dataflow.settings import FlowSettings
from tests.unit.dataflow.execution.flows import SCHEMA


def test_only_deaths_from_one_checkpoint_count():
    crashes = Crashes(2)
    assert crashes.begin(None) is None
    crashes.died(1)
    assert crashes.begin(None) is None
    assert crashes.begin(None) is None  # nobody died in that epoch
    crashes.died(1)
    assert crashes.begin(7) is None  # once since checkpoint 7, which is newer than the first time
    crashes.died(0)
    assert crashes.begin(7) is None
    crashes.died(1)
    assert crashes.begin(7) == 1


def test_the_error_names_the_host_its_steps_and_the_places_that_it_reads_from():
    source = Stream.from_source(TopicSource("in", "/log", schema=SCHEMA), schema=SCHEMA)
    physical = plan(prepare([source.to_sink(TopicSink("out", "/log", key="key")).node]).sinks, parallelism=2)
    uid = physical.stages[0].steps[0].uid
    shared = json.dumps(
        {"topic": None, "splits": {"0": {"position": 40}, "1": {"position": 51}, "2": {"position": None}}}
    )
    found = Checkpoint(7, 128, {}, {uid: [(0, StepState(shared=shared.encode()))]})
    splits = {uid: ((Split("0"),), (Split("1"), Split("2")))}
    share = HostShare("j", (), FlowSettings(), splits, 7, 0, 3)
    crashes = Crashes(1)
    crashes.begin(7)
    crashes.died(1)
    assert crashes.begin(7) == 1
    error = crashes.error(1, "n4", physical, share, tasks=[TaskId(0, 1)], found=found)
    assert "task host 1 on node n4 died 1 times since checkpoint 7" in error.message
    assert "topic in split 1 from 51 on, topic in split 2" in error.message
    assert "topic in split 0" not in error.message
    assert "topic out" in error.message
