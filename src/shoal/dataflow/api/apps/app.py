"""Apps: what a stream program is written in. Defining one runs nothing and connects to nothing.

    app = App("shop", broker="localhost:9092")

    @app.dataflow()
    def totals():
        orders = Stream.from_kafka("orders").filter(col("amount") > 5)
        return orders.group_by("user").window(tumbling(seconds=60)).sum("amount").to_kafka("totals")

    app.run()

A dataflow's function is called when it is explained or started, and anew each time. `shoal.cli` runs apps by name;
`shoal.dataflow.execution.engine` does the work.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, ShoalError, problem
from shoal.dataflow.api import context, legacy
from shoal.dataflow.api.apps.agents import Agent, agent_policy, deprecation_text
from shoal.dataflow.api.apps.lifetime import (
    Told,
    in_own_thread,
    run_all,
    say_plainly,
    start_all,
    stop_all,
    stop_at_exit,
    warn_user,
)
from shoal.dataflow.api.apps.topic import Topic, find_columns, make_topic, with_line
from shoal.dataflow.api.context import Broker, Definition, TopicSpec, launched_broker, name_broker
from shoal.dataflow.api.streams.missing import no_method
from shoal.dataflow.api.streams.reading import check_unit, make_idle, make_schema
from shoal.dataflow.api.streams.sink_stream import SinkStream
from shoal.dataflow.api.streams.steps import check_parallelism
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.tables import Table
from shoal.dataflow.connectors.abilities import TopicConnector
from shoal.dataflow.connectors.topics.names import check_topic
from shoal.dataflow.errors import Location, PlanError, near
from shoal.dataflow.language.elements import Schema
from shoal.dataflow.language.functions import TASK_HOST_VARIABLE, find_location, find_module, short_path
from shoal.dataflow.language.lengths import Span, micros
from shoal.dataflow.language.logical import (
    EventTime,
    Node,
    OnError,
    Source,
    rewrite,
    walk,
)
from shoal.dataflow.plan.explain import Explanation, Picture, explain, visualize
from shoal.dataflow.settings import CheckpointSettings, FlowSettings

if TYPE_CHECKING:
    from shoal.dataflow.execution.remote.submitting import CollectedJob

_DEFAULT_DIRECTORY = ".shoal"
_LOG = "topics"
_CHECKPOINTS = "checkpoints"
_SCRATCH = "scratch"
#: From the beginning of one checkpoint to the next, by default.
_SECOND = 1.0


class App:
    """A stream program: topics, tables and dataflows that belong together.

    A broker is the address of Kafka, or `KafkaSettings` with all that belongs to it (`shoal.topics`), or the directory
    of a local log; without one it is a log below `data_dir`, for one machine. State and offsets are always exact; with
    `exactly_once` sinks are, too: their rows appear with a checkpoint, and never twice.

    With the address of a control plane, given or in SHOAL_CONTROL, `start` submits dataflows as jobs of its fleet.
    `job` has what such a job needs beyond the program: `task_host` and `coordinator` (their resources), `env`,
    `secrets` (the name of a secret by the name of a variable) and `constraints` on nodes.
    """

    def __init__(
        self,
        id: str,  # noqa: A002  what users of such apps write
        *,
        broker: Broker | None = None,
        data_dir: str | Path | None = None,
        checkpoint_interval: Span | None = None,
        exactly_once: bool = False,
        settings: FlowSettings | None = None,
        control: str = "",
        job: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        legacy.refuse_others("App", others, type(self), at=find_location())
        if not id or not all(each.isalnum() or each in "._-" for each in id):
            raise InvalidError([problem("id", id, "must be letters, digits, dots, dashes and underscores")], what="app")
        said = context.launch() or context.Launch()
        data_dir = said.data_dir or data_dir
        chosen = launched_broker(said.broker, broker, group=id)
        checkpoint_interval = said.checkpoint_interval or checkpoint_interval
        exactly_once = exactly_once if said.exactly_once is None else said.exactly_once
        self.id = id
        #: The control plane that jobs are submitted to; empty: dataflows run here.
        self.control = control or context.control_of_environment()
        self.job_fields: Mapping[str, Any] = dict(job or {})
        #: The user's module that it was made in.
        self.module = find_module()
        self.data_dir = Path(data_dir) if data_dir is not None else Path(_DEFAULT_DIRECTORY) / id
        self.data_dir = self.data_dir.absolute() if self.control or said.is_remote else self.data_dir
        self.broker = chosen or str(self.data_dir / _LOG)
        started: dict[str, Any] = {"from_checkpoint": said.from_checkpoint, "accept_duplicates": said.accept_duplicates}
        self._settings = settings or FlowSettings()
        if self._settings.checkpoint is not None and (said.from_checkpoint is not None or said.accept_duplicates):
            self._settings = replace(self._settings, checkpoint=replace(self._settings.checkpoint, **started))
        self._checkpoint = CheckpointSettings(
            directory=str(self.data_dir / _CHECKPOINTS),
            interval=micros(_SECOND if checkpoint_interval is None else checkpoint_interval, "checkpoint_interval")
            / 1e6,
            exactly_once=exactly_once,
            **started,
        )
        self._always_checkpoints = checkpoint_interval is not None or exactly_once
        #: Child processes that each dataflow runs in; 0 for this one.
        self.processes = 0
        self._topics: dict[str, TopicSpec] = {}
        self._tables: dict[str, Table] = {}
        self._dataflows: dict[str, Dataflow] = {}
        self._agents: dict[str, Agent] = {}

    # -- what belongs to it -----------------------------------------------------------------------------------

    @property
    def dataflows(self) -> Mapping[str, Dataflow]:
        """The dataflows by name, agents among them."""
        return {**self._dataflows, **{name: agent.dataflow for name, agent in self._agents.items()}}

    def settings_for(self, plan: Sequence[Node]) -> FlowSettings:
        """How a plan of this app runs: with checkpoints if it has no end, or if they were asked for.

        What has an end begins anew when it is run again; what has none goes on where it was.
        """
        sources = [node for node in walk(*plan) if isinstance(node, Source)]
        endless = any(not node.connector.is_bounded for node in sources)
        settings = replace(self._settings, scratch=self._settings.scratch or str(self.data_dir / _SCRATCH))
        if settings.checkpoint is not None or not (endless or self._always_checkpoints):
            return settings
        return replace(settings, checkpoint=self._checkpoint)

    @property
    def checkpoint_directory(self) -> str:
        """Where the checkpoints of its dataflows lie, each in a folder of its own."""
        return (self._settings.checkpoint or self._checkpoint).directory

    def topic(
        self,
        name: str,
        *,
        schema: Schema | Mapping[str, Any] | None = None,
        event_time: str = "",
        disorder: Span = 0,
        time_unit: str = "",
        idle_after: Span | None = 5,
        key: str = "",
        codec: str = "json",
        partitions: int = 1,
        broker: Broker | None = None,
        **others: Any,
    ) -> Topic:
        """What is known of a topic: its columns, its event time, its key.

        It is made, where it is not there, when a dataflow that reads it starts. With its name alone, what was declared
        before. `idle_after` is how long a partition that was read to its end stays empty until it holds no watermark
        back; None is never.
        """
        at = find_location()
        legacy.refuse_others("app.topic", others, App.topic, at=at)
        said = (schema, event_time, disorder, time_unit, idle_after, key, codec, partitions, broker)
        if name in self._topics and said == (None, "", 0, "", 5, "", "json", 1, None):
            return Topic(self._topics[name])  # asked for, not declared anew
        check_unit(time_unit, at)
        time = EventTime(event_time, micros(disorder, "disorder", at=at), time_unit, make_idle(idle_after, at))
        made = None if schema is None else make_schema(schema, at=at)
        place = name_broker(broker, group=self.id, own=self.broker, at=at) if broker else self.broker
        check_topic(name, place, codec, at=at)
        spec = TopicSpec(name, place, self.id, made, time, codec, key, partitions)
        self._topics[name] = spec
        return Topic(spec)

    def table(
        self,
        name: str,
        source: Stream | Topic | str | None = None,
        *,
        key: str | Sequence[str] = (),
        **others: Any,
    ) -> Table:
        """A table: the newest row for each key of a stream or a topic, for `stream.join(table, on=…)`.

        Without a source it is a mapping that the app's agents share, in the memory of this process.
        """
        at = find_location()
        legacy.refuse_others("app.table", others, App.table, at=at)
        keys = (key,) if isinstance(key, str) and key else tuple(key)
        stream: Stream | Callable[[], Stream] | None
        stream = self._late_stream(source, at) if isinstance(source, str | Topic) else source
        if stream is not None and not keys:
            raise PlanError(
                [problem(f"table {name}", None, "needs a key")], at=at, hint='app.table("users", …, key="id")'
            )
        self._tables[name] = Table(name, stream, keys)
        return self._tables[name]

    def stream(self, topic: str | Topic, **options: Any) -> Stream:
        """The records of a topic of this app, also outside of a dataflow function."""
        with context.defining(self._definition()):
            return Stream.from_topic(topic if isinstance(topic, str) else topic.spec, **options)

    @overload
    def dataflow(self, name: str | None = None) -> Callable[[Callable[[], Any]], Dataflow]: ...

    @overload
    def dataflow(self, name: Callable[[], Any]) -> Dataflow: ...

    def dataflow(self, name: str | Callable[[], Any] | None = None) -> Any:
        """Makes a dataflow of a function that returns a stream: `@app.dataflow()` or `@app.dataflow("name")`."""
        if callable(name):  # without parentheses
            return self._register(name.__name__, name)

        def decorate(function: Callable[[], Any]) -> Dataflow:
            return self._register(name or function.__name__, function)

        return decorate

    def _register(self, name: str, function: Callable[[], Any]) -> Dataflow:
        self._refuse_taken(name)
        self._dataflows[name] = Dataflow(name, function, self)
        return self._dataflows[name]

    def _refuse_taken(self, name: str) -> None:
        if name in self._dataflows or name in self._agents:
            rule = "is the name of another dataflow of this app"
            raise PlanError([problem("dataflow", name, rule)], at=find_location(), hint='@app.dataflow("another name")')

    def agent(
        self,
        topic: str | Topic,
        name: str | None = None,
        *,
        sink: str | Topic | None = None,
        on_error: str | OnError = OnError.FAIL,
        **others: Any,
    ) -> Callable[[Callable[[Any], Any]], Agent]:
        """Deprecated: a function over single records of a topic. `@app.dataflow` is the new form.

        Results go to the topic `sink`, and nowhere without one. A topic whose only column is `value` holds plain
        values: its function gets the value itself. When it raises the app fails; with `on_error="skip"` the record is
        left out and counted. What `app.topic` says of the topics counts when the agent starts, also if it stands below.
        """
        at = find_location()
        legacy.refuse_others("app.agent", others, App.agent, at=at)
        read = self._late_spec(topic)
        written = self._late_spec(sink) if sink else None
        policy = agent_policy(on_error, at)

        def decorate(function: Callable[[Any], Any]) -> Agent:
            warnings.warn(deprecation_text(function, read().name), DeprecationWarning, stacklevel=2)
            label = name or function.__name__
            self._refuse_taken(label)
            agent = Agent(label, function, read, at, policy)
            agent.dataflow = Dataflow(label, lambda: agent.define(written() if written else None), self, at=at)
            self._agents[label] = agent
            return agent

        return decorate

    def make_topics(self, plan: Sequence[Node]) -> None:
        """Make the topics that a plan reads and the app was told of, where they are not there yet. Blocks.

        Others are left to their writers: a name that was not declared may be a mistake.
        """
        sources = [node.connector for node in walk(*plan) if isinstance(node, Source)]
        read = {each.topic for each in sources if isinstance(each, TopicConnector)}
        for spec in self._topics.values():
            if spec.name in read:
                make_topic(spec)

    def _spec(self, topic: str) -> TopicSpec:
        known = self._topics.get(topic)
        if known is not None:
            return known
        check_topic(topic, self.broker, "json", at=find_location())
        return TopicSpec(topic, self.broker, self.id)

    def _late_spec(self, topic: str | Topic) -> Callable[[], TopicSpec]:
        """What is known of a topic at the time of the call. A name that can be none is refused now."""
        if isinstance(topic, Topic):
            spec = topic.spec
            return lambda: spec
        self._spec(topic)
        return lambda: self._spec(topic)

    def _late_stream(self, topic: str | Topic, at: Location | None) -> Callable[[], Stream]:
        """The records of a topic as it is known at the time of the call; one stream while that does not change."""
        known = self._late_spec(topic)
        made: dict[TopicSpec, Stream] = {}

        def read() -> Stream:
            spec = known()
            if spec not in made:
                made.clear()
                with context.defining(self._definition()):
                    made[spec] = Stream.from_topic(spec)._changed(at=at)  # noqa: SLF001  its own kind
            return made[spec]

        return read

    def _definition(self) -> Definition:
        return Definition(self.broker, self.id, self._topics)

    # -- running ----------------------------------------------------------------------------------------------

    async def start(self, parallelism: int = 1) -> None:
        """Start every dataflow, none before all were checked. If one cannot start, those that did are stopped."""
        await start_all(self.choose(), parallelism=parallelism)

    async def stop(self) -> None:
        """Stop every dataflow that runs."""
        await stop_all(list(self.dataflows.values()))

    def run(
        self, parallelism: int = 1, *, processes: int = 0, only: Sequence[str] = (), told: Told | None = None
    ) -> None:
        """Run every dataflow (or only these) until it ends, or until Ctrl-C or SIGTERM. Raises what stops one of them.

        With `processes`, the tasks of each run in so many child processes, which use as many cores. Does nothing in a
        program that `shoal run` or a task host loads: they run the app themselves. An error of the program that nobody
        catches is told as `shoal run` tells it, and the program ends with 1.
        """
        if context.launch() is not None or TASK_HOST_VARIABLE in os.environ:
            return
        self.processes, self.control = processes, ""  # run means here
        if _has_loop():
            raise PreconditionError(
                "app.run() has an event loop of its own, and one runs here already", hint="await app.start()"
            )
        try:
            check_parallelism(parallelism, find_location(), self._settings.key_groups)
            asyncio.run(run_all(self.choose(only), parallelism=parallelism, told=told))
        except ShoalError as error:
            say_plainly(error)
            raise

    def choose(self, names: Sequence[str] = ()) -> list[Dataflow]:
        """The dataflows of these names; all without any. Raises `PlanError` with what there is."""
        there = self.dataflows
        if not there:
            hint = "@app.dataflow() over a function that returns a stream"
            raise PlanError([problem(f"app {self.id}", None, "has no dataflow")], hint=hint)
        wrong = [
            problem("dataflow", name, f"is none of app {self.id}; {near(name, there, 'dataflows')}")
            for name in names
            if name not in there
        ]
        if wrong:
            raise PlanError(wrong)
        return [there[name] for name in dict.fromkeys(names)] if names else list(there.values())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'App' object has no attribute {name!r}")
        raise no_method("an app", name, legacy.METHODS, [each for each in dir(App) if not each.startswith("_")])


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Dataflow:
    """A named part of an app that can be explained, started and stopped."""

    def __init__(self, name: str, function: Callable[[], Any], app: App, *, at: Location | None = None) -> None:
        self.name = name
        #: The line of the user's program that stands for all of it; None when each step has its own.
        self._at = at
        self.app = app
        self._function = function
        self._flow: Any = None
        self._is_starting = False
        self._prepared: Any = None
        #: What the last wait raised.
        self._told: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Dataflow {self.name}{', running' if self.is_running else ''}>"

    def plan(self) -> list[Node]:
        """Call the function, and return the sinks that it made. Nothing is run."""
        with context.defining(self.app._definition()) as definition:  # noqa: SLF001  its own app
            returned = self._function()
        sinks: list[Node] = list(definition.sinks)
        for each in returned if isinstance(returned, list | tuple) else (returned,):
            if isinstance(each, SinkStream):
                sinks += [] if each.node in sinks else [each.node]
            elif each is not None:
                raise self._no_sink(each)
        if not sinks:
            raise self._no_sink(None)
        return list(rewrite(sinks, self._located)) if self._at is not None else sinks

    def _located(self, node: Node) -> Node:
        return replace(node, at=self._at)

    def _no_sink(self, returned: Any) -> PlanError:
        field = f"dataflow {self.name!r}"
        code = getattr(self._function, "__code__", None)
        at = returned.node.at if isinstance(returned, Stream) else None
        if at is None and code is not None:
            at = Location(short_path(code.co_filename), code.co_firstlineno, self.name)
        if isinstance(returned, Stream):
            rule = "returns a stream without a sink: its results would go nowhere"
            return PlanError([problem(field, None, rule)], at=at, hint='end it with one: .to_kafka("results")')
        shown = "nothing" if returned is None else f"a {type(returned).__name__}"
        hint = 'return Stream.from_kafka("orders") … .to_kafka("results")'
        return PlanError(
            [problem(field, None, f"must return a stream with a sink, and returned {shown}")], at=at, hint=hint
        )

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not come to its end."""
        return self._flow is not None and not self._flow.is_done

    @property
    def is_started(self) -> bool:
        """Whether it was started and nobody stopped it since; it may have come to its end by itself."""
        return self._flow is not None

    @property
    def running(self) -> Any:
        """What runs: metrics and more; None before it was started."""
        return self._flow

    async def start(self, parallelism: int = 4) -> None:
        """Start it, and come back when it runs. Raises `PlanError` before anything ran if it cannot.

        A program that ends without `stop()` stops it then. With a control plane (`App(control=…)`, SHOAL_CONTROL) it is
        submitted as a job instead, which goes on when this program ends; `job_id` names it.
        """
        if self.is_running or self._is_starting:
            warn_user(f"dataflow {self.name!r} runs already")
            return
        self._is_starting = True
        try:
            if self._prepared is None:
                await self.prepare()
            prepared, self._prepared = self._prepared, None
            begin = self._submit if self.app.control else self._start
            flow = await in_own_thread(lambda: begin(prepared, parallelism), unwanted=lambda flow: flow.abort())
        finally:
            self._is_starting = False
        self._flow = flow

    async def prepare(self) -> None:
        """Check everything that can be checked before it runs. Sources are asked for their columns; nothing is read on.

        Raises `PlanError`. What was found out serves the next start.
        """
        plan = self.plan()
        self._prepared = await in_own_thread(lambda: self._prepare(plan))

    def _prepare(self, plan: Sequence[Node]) -> Any:
        from shoal.dataflow.plan.prepare import prepare

        self.app.make_topics(plan)
        return prepare(plan, find_schema=find_columns)

    def _start(self, prepared: Any, parallelism: int) -> Any:
        from shoal.dataflow.execution import engine

        settings = self.app.settings_for(prepared.sinks)
        try:
            flow = engine.start_prepared(
                prepared,
                name=self.job,
                parallelism=parallelism,
                settings=settings,
                processes=self.app.processes,
            )
        except NotFoundError as error:
            raise with_line(error) from error
        stop_at_exit(flow)
        return flow

    async def pack(self, parallelism: int = 1) -> CollectedJob:
        """Everything that a job of it needs, ready to be submitted. Raises `PlanError` if it cannot be one."""
        await self.prepare()
        prepared, self._prepared = self._prepared, None
        return await in_own_thread(lambda: self._pack(prepared, parallelism))

    def _pack(self, prepared: Any, parallelism: int) -> CollectedJob:
        from shoal.dataflow.execution.remote.submitting import collect_job

        return collect_job(
            prepared,
            name=self.job,
            parallelism=parallelism,
            settings=self.app.settings_for(prepared.sinks),
            module=self.app.module,
            given=self.app.job_fields,
        )

    def _submit(self, prepared: Any, parallelism: int) -> Any:
        from shoal.dataflow.api.apps.remote import submit

        return submit(self._pack(prepared, parallelism), self.app.control)

    async def upgrade(self, parallelism: int | None = None) -> None:
        """Give the job of this dataflow the program that is loaded here, on the state that the job has.

        The job keeps its width unless another is given. What does not fit its state is an `InvalidError` with both
        texts, and the job goes on. Comes back when the job runs again.
        """
        if not self.app.control:
            raise PreconditionError(
                f"dataflow {self.name!r} is no job: its app has no control plane",
                hint='App(control="host:8085"), or SHOAL_CONTROL; what runs here is stopped and started again',
            )
        await self.prepare()
        prepared, self._prepared = self._prepared, None
        self._flow = await in_own_thread(lambda: self._upgrade(prepared, parallelism))

    def _upgrade(self, prepared: Any, parallelism: int | None) -> Any:
        from shoal.dataflow.api.apps.remote import upgrade

        return upgrade(lambda width: self._pack(prepared, width), self.job, self.app.control, parallelism=parallelism)

    @property
    def job_id(self) -> str | None:
        """The name of its job while it is started; None before and after."""
        return getattr(self._flow, "job_id", self.job) if self.is_started else None

    @property
    def job(self) -> str:
        """The name that its checkpoints and transactions have."""
        cleaned = "".join(each if each.isalnum() or each in "._-" else "-" for each in self.name)
        return f"{self.app.id}.{cleaned}"

    async def stop(self) -> Any:
        """Stop reading, let what is under way come through, and wait for that. Before a start it warns only.

        A job is stopped with a savepoint, from which a start of the same name goes on.

        Raises what stopped it before, unless `wait` has raised that already.
        """
        if self._flow is None:
            warn_user(f"dataflow {self.name!r} was not started")
            return None
        flow, self._flow = self._flow, None
        told, self._told = self._told, None
        if told is not None and told is flow.failed:
            return None  # the waiting caller has got the error
        return await in_own_thread(flow.stop)

    async def wait(self) -> Any:
        """Until it has come to its end. Raises what stopped it."""
        flow = self._flow
        if flow is None:
            return None
        try:
            return await in_own_thread(flow.wait)
        except BaseException as error:
            self._told = error
            raise

    def run(self, parallelism: int = 1, *, processes: int = 0) -> Any:
        """Run it here to its end, and say how it went. With `processes`, its tasks run in so many child processes."""
        self.app.processes = processes
        flow = self._start(self._prepare(self.plan()), parallelism)
        try:
            return flow.wait()
        except BaseException:
            flow.abort()
            raise

    def explain(self, parallelism: int = 1) -> Explanation:
        """Print the logical and the physical plan. Nothing is run or connected to."""
        return explain(self.plan(), parallelism=parallelism)

    def visualize(self, path: str | None = None) -> Picture:
        """The plan as Graphviz text; with a path, as a file of it (.dot or .svg)."""
        return visualize(self.plan(), path)
