"""The old form of stream programs: `@app.agent(topic)` over an async function or generator of single records.

It still works, as a dataflow that calls the function record by record, and warns with the new form. Made by
`shoal.dataflow.api.apps.app`; `shoal.dataflow.api.migrate` rewrites whole programs.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from shoal.core.errors import problem
from shoal.dataflow.api.apps.lifetime import in_own_thread
from shoal.dataflow.api.apps.topic import VALUE, append_rows
from shoal.dataflow.api.context import TopicSpec
from shoal.dataflow.api.streams.reading import make_policy
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.logical import OnError
from shoal.dataflow.operators.record import Record


def deprecation_text(function: Callable[..., Any], topic: str) -> str:
    """The warning, with what to write instead."""
    from shoal.dataflow.api.migrate import dataflow_form

    name = getattr(function, "__name__", "process")
    try:
        form = dataflow_form(inspect.getsource(function))
    except (OSError, TypeError):  # made where there is no text, as in a console
        form = None
    if form is None:
        form = (
            f"@app.dataflow({name!r})\ndef {name}():\n    return (\n        Stream.from_kafka({topic!r})\n"
            '        .filter(col("…") > 0)\n        .to_kafka("results")\n    )'
        )
    return (
        "@app.agent is deprecated. Use @app.dataflow instead. Agents are now worker nodes, not user code. "
        f"The new form:\n\n{textwrap.indent(form, '    ')}\n\n"
        "`shoal migrate my_app.py` prints it for a whole program."
    )


def agent_policy(policy: str | OnError, at: Location | None) -> OnError:
    """What happens to records that an agent's function raises for. An agent has no side output."""
    found = make_policy(policy, at)
    if found is OnError.SIDE:
        rule = 'must be "fail" or "skip" (dropped and counted): an agent has no side output'
        hint = 'a dataflow has one: .map(…, on_error="side"), and stream.side_output("errors")'
        raise PlanError([problem("on_error", found.value, rule)], at=at, hint=hint)
    return found


class Agent:
    """A function over the records of a topic."""

    #: The dataflow that runs it; set by the app that makes it.
    dataflow: Any

    def __init__(
        self,
        name: str,
        function: Callable[[Any], Any],
        find_topic: Callable[[], TopicSpec],
        at: Location | None,
        on_error: OnError = OnError.FAIL,
    ) -> None:
        self.name = name
        self.at = at
        #: Asked each time: a program may say what its topic holds below the agent.
        self._find_topic = find_topic
        self._function = function
        self._on_error = on_error

    @property
    def topic(self) -> TopicSpec:
        """What is known of its topic by now."""
        return self._find_topic()

    def __repr__(self) -> str:
        return f"<Agent {self.name} of {self.topic.name}>"

    async def send(self, value: Any, key: Any = None) -> tuple[Any, ...]:
        """Append a record to its topic; while the app does not run, call the function at once.

        Then it returns what the function yielded or returned.
        """
        if self.dataflow.is_running:
            row = value if isinstance(value, Mapping) else {VALUE: value}
            await in_own_thread(lambda: append_rows(self.topic, [row], None if key is None else [key]))
            return ()
        return tuple(await results_of(self._function, value))

    async def __call__(self, value: Any) -> tuple[Any, ...]:
        """Call the function with one record."""
        return tuple(await results_of(self._function, value))

    def define(self, sink: TopicSpec | None) -> Any:
        """The dataflow that does the same. Without a sink results go nowhere, as they did.

        The function is never tried with made-up records: agents may do anything to the world. The first real ones
        decide.
        """
        calls = RecordCalls(self._function, keep=sink is not None)
        records = Stream.from_topic(self.topic).records(probe=False).flat_map(calls, on_error=self._on_error)
        return records.to_callback(_drop) if sink is None else records.to_topic(sink)

    async def start(self, parallelism: int = 1) -> None:
        """Start it alone."""
        await self.dataflow.start(parallelism)

    async def stop(self) -> Any:
        """Stop it."""
        return await self.dataflow.stop()


def _drop(_batch: Any) -> None:
    """Results that nobody asked for."""


def as_argument(value: Any) -> Any:
    """What an agent's function gets: a record, or the value itself of a topic that holds plain values."""
    if not isinstance(value, Mapping):
        return value
    return value[VALUE] if len(value) == 1 and VALUE in value else Record(value)


async def results_of(function: Callable[[Any], Any], value: Any) -> list[Any]:
    """Everything that a function of any kind returns for one record."""
    result = function(as_argument(value))
    if inspect.isasyncgen(result):
        return [each async for each in result]
    if inspect.isawaitable(result):
        result = await result
    elif inspect.isgenerator(result):
        return list(result)
    return [] if result is None else [result]


class RecordCalls:
    """An agent's function, of any kind, as a flat one. The operator that calls it owns the event loop."""

    def __init__(self, function: Callable[[Any], Any], *, keep: bool) -> None:
        self._function = function
        self._keep = keep
        self.__name__ = getattr(function, "__name__", "agent")

    async def __call__(self, record: Any) -> list[Any]:
        """What the function returns for a record; nothing when it is not wanted."""
        results = await results_of(self._function, record)
        return results if self._keep else []
