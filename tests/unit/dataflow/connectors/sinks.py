"""Helpers of tests of sinks: every class of them, and what a topic's readers see."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil

import shoal.dataflow.connectors
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.topics.base import TopicPartition


def all_sinks() -> set[type]:
    """The public sinks of Shoal."""
    found = pkgutil.iter_modules(shoal.dataflow.connectors.__path__, "shoal.dataflow.connectors.")
    members = (member for each in found for member in vars(importlib.import_module(each.name)).values())
    classes = {each for each in members if inspect.isclass(each) and hasattr(each, "open_writer")}
    return {each for each in classes if not each.__name__.startswith("_") and not getattr(each, "_is_protocol", False)}


def committed_values(broker: str, topic: str) -> list[int]:
    """The column `value` of every record that a reader of committed records sees."""
    place = TopicPartition(topic, 0)
    with topics_of(broker) as topics:
        if topic not in topics.names():
            return []
        with topics.reader() as reader:
            reader.assign({place: 0})
            found: list[int] = []
            end = topics.next_offsets([place])[place]
            while reader.positions()[place] < end:
                for fetched in reader.read(timeout=1.0):
                    found += [json.loads(value)["value"] for value in fetched.batch["value"].to_pylist()]
    return found
