"""Arguments and methods of apps that programs for other engines use, and what to write here instead. Pure.

Called by `shoal.dataflow.api.apps.app` and `shoal.dataflow.api.streams.reading`: whatever they do not know is an error
that helps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from shoal.core.errors import problem
from shoal.dataflow.errors import Location, PlanError, near

_CODEC = 'say it for each topic: app.topic("orders", codec="arrow")'
_KEY = 'keys are text or bytes; name their column: app.topic("orders", key="id")'
_NO_SERVER = "leave it out: there is no server to set up"
_STATE = 'leave it out: state lies in checkpoints below data_dir, and in FlowSettings(state="rocks") beyond memory'
_WIDTH = "say how wide it runs when it is started: await app.start(parallelism=4), shoal run --parallelism 4"

_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

#: What to write instead of an argument that other engines have.
_ARGUMENTS: Mapping[str, str] = {
    "value_serializer": _CODEC,
    "key_serializer": _KEY,
    "key_extractor": _KEY,
    "flight_port": _NO_SERVER,
    "enable_flight": _NO_SERVER,
    "enable_interactive": "leave it out: streams run at once with .collect() or a for loop",
    "redis_host": _STATE,
    "redis_port": _STATE,
    "redis_max_connections": _STATE,
    "enable_redis_cache": _STATE,
    "enable_distributed_state": _STATE,
    "database_url": _STATE,
    "backend": _STATE,
    "use_cython": "leave it out: there is one implementation",
    "use_cpp": "leave it out: there is one implementation",
    "enable_gpu": "leave it out: dataflows run on processors",
    "gpu_device": "leave it out: dataflows run on processors",
    "concurrency": _WIDTH,
    "max_concurrency": _WIDTH,
    "enabled": "leave the decorator out, or choose what runs: shoal run my_app:app --dataflow NAME",
    "replication_factor": "make the topic with Kafka's own tools first; here it gets the broker's default",
    "batch_size": "batches grow and shrink with the load; their bound is FlowSettings(batch_rows=…)",
    "auto_offset_reset": 'say where to begin: from_kafka("orders", start="latest")',
}

#: What to write instead of a method that apps of other engines have; `missing` has those that nothing replaces.
METHODS: Mapping[str, str] = {
    "channel": 'app.topic("name") is a channel that lasts',
    "async_channel": 'app.topic("name") is a channel that lasts',
    "memory_channel": 'app.topic("name") is a channel that lasts',
    "kafka_channel": 'app.topic("name") on App(broker="host:9092")',
    "redis_channel": 'app.topic("name") is a channel that lasts',
    "flight_channel": 'app.topic("name") is a channel that lasts',
    "rocksdb_channel": 'app.topic("name") is a channel that lasts',
    "windowed_stream": "stream.key_by(…).window(tumbling(seconds=60)).aggregate({…})",
    "joins": "stream.join(other, on=…), stream.join(table, on=…), stream.asof_join(…)",
    "materializations": 'app.table("users", source, key="id"), and stream.join(table, on=…)',
    "create_flink_stream": "Stream, inside of @app.dataflow()",
    "create_stream_builder": "Stream, inside of @app.dataflow()",
    "get_stats": "dataflow.running.metrics()",
}


def refuse_others(
    what: str, given: Mapping[str, Any], function: Callable[..., Any], *, at: Location | None = None
) -> None:
    """Raise `PlanError` for arguments that a function does not have, with what to write instead."""
    if not given:
        return
    known = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind in _BY_NAME and each.name != "self"
    ]
    problems = [
        problem(
            name,
            None,  # it may be a password
            f"is no argument of {what}" + ("" if name in _ARGUMENTS else f"; {near(name, known, 'arguments')}"),
        )
        for name in given
    ]
    hints = dict.fromkeys(f"{name}: {_ARGUMENTS[name]}" for name in given if name in _ARGUMENTS)
    raise PlanError(problems, at=at, hint="; ".join(hints))
