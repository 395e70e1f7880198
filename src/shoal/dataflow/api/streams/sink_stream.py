"""A stream that ends in a sink: what can be run, started and stopped. Made by `shoal.dataflow.api.streams.writing`."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any, Self

from shoal.dataflow.api.context import note_change, refuse_running
from shoal.dataflow.api.streams.steps import Steps
from shoal.dataflow.language.functions import find_location
from shoal.dataflow.language.logical import Node, Sink
from shoal.dataflow.plan.explain import Explanation, Picture, explain, visualize
from shoal.dataflow.plan.facts import Facts, NoAnswers
from shoal.dataflow.plan.inference import infer


class SinkStream(Steps[Any]):
    """The end of a stream."""

    __slots__ = ("_flow",)

    called = "a stream that ended in a sink"

    def __init__(self, node: Node, facts: Facts, before: tuple[Facts, ...] = ()) -> None:
        super().__init__(node, facts, before)
        self._flow: Any = None

    @classmethod
    def behind(cls, sink: Sink, facts: Facts) -> SinkStream:
        """An output behind a stream with these facts."""
        return cls(sink, infer(sink, (facts,), NoAnswers()), (facts,))

    @staticmethod
    def _make(node: Node, facts: Facts, before: tuple[Facts, ...]) -> SinkStream:
        return SinkStream(node, facts, before)

    def _changed(self, **changes: Any) -> Self:
        made = super()._changed(**changes)
        if isinstance(self._node, Sink) and isinstance(made.node, Sink):
            note_change(self._node, made.node)
        return made

    def run(self, *, parallelism: int = 1, name: str = "flow", settings: Any = None, clock: Any = None) -> Any:
        """Run it to its end, and say how it went.

        Its checkpoints, if `settings` has them, lie under its name. Tests pass a clock, such as `VirtualTime`.
        """
        from shoal.dataflow.execution import engine

        refuse_running("run()", find_location())
        return engine.run([self._node], name=name, parallelism=parallelism, settings=settings, clock=clock)

    async def start(self, parallelism: int = 1, *, name: str = "flow", settings: Any = None) -> None:
        """Start it, and come back when it runs."""
        from shoal.dataflow.execution import engine

        refuse_running("start()", find_location())
        self._flow = await asyncio.to_thread(
            engine.start, [self._node], name=name, parallelism=parallelism, settings=settings
        )

    async def stop(self) -> Any:
        """Stop it, and wait until everything under way has come through."""
        if self._flow is None:
            warnings.warn("this stream was not started", RuntimeWarning, stacklevel=2)
            return None
        flow, self._flow = self._flow, None
        return await asyncio.to_thread(flow.stop)

    def explain(self, parallelism: int = 1) -> Explanation:
        """Print the logical and the physical plan. Nothing is run or connected to."""
        return explain([self._node], parallelism=parallelism)

    def visualize(self, path: str | None = None, *, parallelism: int = 1) -> Picture:
        """The plan as a picture: Graphviz text, or a file of it (.dot, .svg)."""
        return visualize([self._node], path)
