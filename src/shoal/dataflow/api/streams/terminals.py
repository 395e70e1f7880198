"""What runs a stream at once, in this process: collect, count, take, iteration. Part of `Stream`."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from shoal.core.errors import problem
from shoal.dataflow.api.context import refuse_running
from shoal.dataflow.api.streams.steps import S_co, Steps, check_parallelism
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.functions import find_location, make_ref
from shoal.dataflow.language.logical import (
    Sink,
    Source,
    walk,
)
from shoal.dataflow.settings import FlowSettings

#: Batches that wait for the iterating caller. A slow reader slows the source.
_WAITING = 4
_END: Any = object()


class Terminals(Steps[S_co]):
    """Ways to run a stream."""

    __slots__ = ()

    def collect(self, *, parallelism: int = 1, settings: Any = None) -> Any:
        """All rows, as an Arrow table. For streams that end."""
        return self._collect("collect()", parallelism, settings)

    def to_pylist(self, *, parallelism: int = 1, settings: Any = None) -> list[dict[str, Any]]:
        """All rows, as dictionaries. For streams that end."""
        rows: list[dict[str, Any]] = self._collect("to_pylist()", parallelism, settings).to_pylist()
        return rows

    def count(self, *, parallelism: int = 1, settings: Any = None) -> int:
        """How many rows there are. For streams that end."""
        total = _Total()
        self._call("count()", total.add, parallelism, settings)
        return total.rows

    def foreach(self, function: Callable[[Batch], Any], *, parallelism: int = 1, settings: Any = None) -> None:
        """Run the stream, and call a function with each batch: to its end, or until the function raises."""
        self._call("foreach()", function, parallelism, settings, waits_for_end=False)

    def take(self, batches: int) -> list[Batch]:
        """The first batches; the stream is stopped behind them."""
        refuse_running("take()", find_location())
        taken: list[Batch] = []
        if batches > 0:
            with contextlib.closing(iter_batches(self)) as rest:
                for batch in rest:
                    taken.append(batch)
                    if len(taken) == batches:
                        break
        return taken

    def __iter__(self) -> Iterator[Batch]:
        """Batch by batch, while it runs. Leaving the loop stops it."""
        refuse_running("iteration", find_location())
        return iter_batches(self)

    def _collect(self, what: str, parallelism: int, settings: Any) -> Any:
        from shoal.dataflow.connectors.memory import CollectSink

        report, uid = self._run(what, CollectSink(), parallelism, settings)
        return report.tables[uid]

    def _call(
        self,
        what: str,
        function: Callable[[Batch], Any],
        parallelism: int,
        settings: Any,
        *,
        waits_for_end: bool = True,
    ) -> None:
        from shoal.dataflow.connectors.memory import CallbackSink

        sink = CallbackSink(make_ref(function, at=find_location(), what=what))
        self._run(what, sink, parallelism, settings, waits_for_end=waits_for_end)

    def _refuse_endless(self, what: str, at: Location | None) -> None:
        """Refuse to wait for the end of a stream that has none."""
        endless = [
            node.connector.label
            for node in walk(self._node)
            if isinstance(node, Source) and not node.connector.is_bounded
        ]
        if endless:
            rule = f"waits for the end of the stream, and {', '.join(dict.fromkeys(endless))} has none"
            hint = (
                "read what is there now: from_kafka(…, bounded=True); or take(n) batches of it, go through it with "
                "`for batch in stream`, or end it with a sink"
            )
            raise PlanError([problem(what, None, rule)], at=at, hint=hint)

    def _run(
        self, what: str, connector: Any, parallelism: int, settings: Any, *, waits_for_end: bool = True
    ) -> tuple[Any, str]:
        from shoal.dataflow.execution import engine

        at = find_location()
        refuse_running(what, at)
        if not isinstance(settings, FlowSettings | None):
            raise PlanError([problem("settings", settings, "must be FlowSettings(…)")], at=at)
        check_parallelism(parallelism, at, (settings or FlowSettings()).key_groups)
        if waits_for_end:
            self._refuse_endless(what, at)
        uid = "result"
        sink = Sink(inputs=(self._node,), connector=connector, uid=uid, at=at)
        return engine.run([sink], parallelism=parallelism, settings=settings, is_look=True), uid


class _Total:
    """Counts rows. Tasks of several threads add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.rows = 0

    def add(self, batch: Batch) -> None:
        with self._lock:
            self.rows += batch.num_rows


def iter_batches(stream: Steps[Any]) -> Generator[Batch, None, None]:
    """Start a stream, and yield its batches as they come. Closing the iterator stops the stream."""
    from shoal.dataflow.connectors.memory import CallbackSink
    from shoal.dataflow.execution import engine

    handed = _Handed()
    sink = Sink(inputs=(stream.node,), connector=CallbackSink(make_ref(handed.put)), uid="result")
    flow = engine.start([sink], is_look=True)
    waiting = threading.Thread(target=handed.finish, args=(flow,), name="shoal-iteration", daemon=True)
    waiting.start()
    try:
        yield from handed.take_all()
        waiting.join()
        if handed.error is not None:
            raise handed.error
    finally:
        handed.close()
        if not flow.is_done:
            flow.abort()
        waiting.join()


class _Handed:
    """Batches from tasks to one reader, few at a time."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(_WAITING)
        self._closed = threading.Event()
        self.error: BaseException | None = None

    def put(self, batch: Batch) -> None:
        """Called by tasks; waits while the reader is behind, unless it went away."""
        self._put(batch)

    def _put(self, item: Any) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=0.1)
                return

    def finish(self, flow: Any) -> None:
        """Wait for the stream, and tell the reader."""
        try:
            flow.wait()
        except BaseException as error:  # noqa: BLE001  it is raised to the iterating caller
            self.error = error
        self._put(_END)

    def take_all(self) -> Iterator[Batch]:
        """What tasks put here, to the end."""
        while (item := self._queue.get()) is not _END:
            yield item

    def close(self) -> None:
        """The reader goes away."""
        self._closed.set()
