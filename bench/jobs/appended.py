"""How soon a row of an exactly-once sink is appended to its topic, in a transaction that is committed later.

Rows go through Kafka: there a reader may see a transaction before its commit. Called by `bench.jobs.measures`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
import time
from collections.abc import Iterator

from bench import kafka
from bench.areas import Note
from bench.dataflow.kafka_job import make_app
from bench.figures import percentile
from bench.jobs.scale import Scale
from bench.jobs.stage import SETTLES, feeding, running_fleet, until
from shoal.core.errors import UnavailableError
from shoal.dataflow.connectors.topics.brokers import topics_of
from shoal.dataflow.execution.remote.submitting import submit_job
from shoal.model.jobs import JobState
from shoal.topics.base import ensure_topic

_SOURCE, _TARGET = "appended-in", "appended-out"
_MOST_AT_ONCE = 10_000


async def measure_appended(scale: Scale, note: Note) -> dict[str, float]:
    """A steady load through a job with an exactly-once sink, until each row is in the log of its topic."""
    try:
        jars = await asyncio.to_thread(kafka.find_jars)
    except UnavailableError as error:
        note(f"Appended rows of an exactly-once sink are left out: {error.message}")
        return {}
    with kafka.running(jars) as broker:
        return await _measure(broker, scale)


async def _measure(broker: str, scale: Scale) -> dict[str, float]:
    async with running_fleet(agents=2, slots=1) as stage:
        with topics_of(broker) as topics:
            for name in (_SOURCE, _TARGET):
                ensure_topic(topics, name)
        app = make_app(broker, _SOURCE, _TARGET, str(stage.place()), exactly_once=True)
        job = (await submit_job(stage.control, await app.dataflows["filter"].pack(1))).job_id
        await stage.wait(job, JobState.RUNNING)
        await asyncio.sleep(SETTLES)
        total = round(scale.rate * scale.seconds)
        with _watching(broker) as watch, feeding(broker, _SOURCE, scale.rate, scale.seconds):
            await until(lambda: watch.rows >= total, f"{total} rows")
        delays = watch.delays()
        await stage.cancel(job)
    steady = delays[len(delays) // 4 :]
    return {"appended_p50": percentile(steady, 0.5), "appended_p99": percentile(steady, 0.99)}


class _Watch:
    """Reads the topic from its beginning, also what is not committed, and notes when what came."""

    def __init__(self, broker: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        reading = {"group.id": "appended", "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
        self._consumer = Consumer({"bootstrap.servers": broker, **reading})
        self._consumer.assign([TopicPartition(_TARGET, 0, 0)])
        self._seen: list[tuple[float, list[bytes]]] = []
        self._rows = 0
        self._error: Exception | None = None

    @property
    def rows(self) -> int:
        """How many were seen. Raises what ended the reading."""
        if self._error is not None:
            raise self._error
        return self._rows

    def delays(self) -> list[float]:
        """Milliseconds from when each row was due to when it was seen."""
        return [1000 * moment - json.loads(value)["ts"] / 1000 for moment, values in self._seen for value in values]

    def run(self, stopped: threading.Event) -> None:
        """Read until it is stopped."""
        try:
            while not stopped.is_set():
                first = self._consumer.poll(0.05)
                if first is not None:
                    self._note([first, *self._consumer.consume(_MOST_AT_ONCE, 0)])
        except Exception as error:  # noqa: BLE001 - it is raised where rows are awaited
            self._error = error
        finally:
            self._consumer.close()

    def _note(self, messages: list[object]) -> None:
        moment, values = time.monotonic(), []
        for each in messages:
            error = each.error()  # type: ignore[attr-defined]
            if error is not None:
                raise UnavailableError(f"the topic {_TARGET} cannot be read: {error}")
            values.append(each.value())  # type: ignore[attr-defined]
        self._seen.append((moment, values))
        self._rows += len(values)


@contextlib.contextmanager
def _watching(broker: str) -> Iterator[_Watch]:
    watch, stopped = _Watch(broker), threading.Event()
    thread = threading.Thread(target=watch.run, args=(stopped,), daemon=True)
    gc.freeze()  # else it is the watcher that sees rows late
    thread.start()
    try:
        yield watch
    finally:
        stopped.set()
        thread.join()
