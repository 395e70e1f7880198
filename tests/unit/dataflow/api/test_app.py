"""Apps, dataflows, agents: what is defined, when functions are called, and what is refused."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from shoal.core.errors import InvalidError, PreconditionError
from shoal.dataflow.api.apps.app import App, Dataflow
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import tumbling
from shoal.dataflow.connectors.memory import CallbackSink
from shoal.dataflow.connectors.topics.endpoints import TopicSink, TopicSource
from shoal.dataflow.errors import OperatorFailedError, PlanError
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.language.logical import Join, JoinMode, Sink, Source, walk
from shoal.dataflow.plan.prepare import sketch
from shoal.dataflow.settings import CheckpointSettings, FlowSettings


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App("shop", data_dir=tmp_path / "shop")


def source_of(flow: Dataflow) -> Source:
    return next(node for node in walk(*flow.plan()) if isinstance(node, Source))


# ---------------------------------------------------------------------------------------------------------
# Dataflows


def test_a_function_is_called_when_it_is_needed_and_anew_each_time(app: App) -> None:
    calls: list[int] = []

    @app.dataflow("process_orders")
    def order_pipeline() -> Any:
        calls.append(1)
        return (
            Stream.from_kafka("orders")
            .filter(lambda b: pc.greater(b["amount"], 1000))
            .window(tumbling(seconds=60))
            .aggregate({"total": ("amount", "sum")})
            .to_kafka("processed_orders")
        )

    assert calls == []
    assert isinstance(order_pipeline, Dataflow)
    assert order_pipeline.name == "process_orders"
    assert app.dataflows == {"process_orders": order_pipeline}
    one, other = order_pipeline.plan(), order_pipeline.plan()
    assert calls == [1, 1]
    assert one[0] is not other[0]
    text = order_pipeline.explain()
    assert "columns known at run" in text
    assert not Path(app.data_dir).exists()  # nothing was opened


def test_names_of_dataflows(app: App) -> None:
    @app.dataflow
    def one() -> Any: ...

    @app.dataflow()
    def two() -> Any: ...

    assert list(app.dataflows) == ["one", "two"]
    assert one.job == "shop.one"
    with pytest.raises(PlanError, match="is the name of another dataflow"):
        app.dataflow("one")(lambda: None)


def test_topics_take_broker_and_group_from_the_app(app: App) -> None:
    remote = App("shop", broker="kafka.example:9092")

    def make() -> Any:
        return Stream.from_kafka("orders").to_kafka("results", key=None)

    here, there = app.dataflow("f")(make), remote.dataflow("f")(make)
    local, kafka = source_of(here).connector, source_of(there).connector
    assert isinstance(local, TopicSource)
    assert (local.topic, local.broker, local.group) == ("orders", str(app.data_dir / "topics"), "shop")
    assert (kafka.broker, kafka.group) == ("kafka.example:9092", "shop")
    sink = there.plan()[0]
    assert isinstance(sink, Sink)
    assert isinstance(sink.connector, TopicSink)
    assert (sink.connector.topic, sink.connector.broker) == ("results", "kafka.example:9092")


def test_three_arguments_still_work(app: App) -> None:
    flow = app.dataflow("f")(
        lambda: Stream.from_kafka("other:9092", "orders", "mine", codec_type="arrow").to_kafka("third:9092", "out")
    )
    connector = source_of(flow).connector
    assert (connector.broker, connector.topic, connector.group, connector.codec) == (
        "other:9092",
        "orders",
        "mine",
        "arrow",
    )
    assert flow.plan()[0].connector.broker == "third:9092"  # type: ignore[attr-defined]


def test_what_is_known_of_a_topic_is_used(app: App) -> None:
    orders = app.topic(
        "orders", schema={"id": "int64", "at": "int64"}, event_time="at", time_unit="ms", disorder="5s", key="id"
    )
    flow = app.dataflow("f")(lambda: Stream.from_kafka("orders").to_kafka("orders"))
    source = source_of(flow)
    assert source.schema == orders.schema == pa.schema([("id", pa.int64()), ("at", pa.int64())])
    assert source.time is not None
    assert (source.time.column, source.time.unit, source.time.disorder) == ("at", "ms", 5_000_000)
    assert flow.plan()[0].connector.key == "id"  # type: ignore[attr-defined]
    assert source_of(app.dataflow("g")(lambda: Stream.from_topic(orders.spec).to_topic("x"))).schema == orders.schema
    later = app.dataflow("h")(lambda: Stream.from_kafka("orders", schema={"at": "int64"}, disorder="9s").to_kafka("x"))
    assert source_of(later).schema == orders.schema  # what the app says of a topic comes first
    assert source_of(later).time.disorder == 9_000_000  # type: ignore[union-attr]


def test_a_record_has_its_own_time_where_no_column_is_named(app: App) -> None:
    flow = app.dataflow("f")(lambda: Stream.from_kafka("orders").window(tumbling(seconds=1)).count().to_kafka("x"))
    assert source_of(flow).time.column == ""  # type: ignore[union-attr]


def test_every_sink_counts_also_those_that_are_not_returned(app: App) -> None:
    @app.dataflow()
    def branches() -> Any:
        windowed = Stream.from_kafka("orders", schema={"x": "int64"}).window(tumbling(seconds=1)).count()
        windowed.side_output("late").to_kafka("late").uid("late-rows")
        return windowed.to_kafka("counts").with_parallelism(2)

    plan = branches.plan()
    assert sorted(sink.connector.topic for sink in plan) == ["counts", "late"]  # type: ignore[attr-defined]
    assert [sink.uid for sink in plan] == ["late-rows", ""]
    assert plan[1].parallelism == 2
    sketch(plan)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda: Stream.from_dicts([{"a": 1}]), "returns a stream without a sink"),
        (lambda: None, "must return a stream with a sink, and returned nothing"),
        (lambda: 5, "must return a stream with a sink, and returned a int"),
    ],
)
def test_a_dataflow_without_a_sink_is_refused(app: App, returned: Any, said: str) -> None:
    flow = app.dataflow("f")(returned)
    with pytest.raises(PlanError, match=said) as caught:
        flow.plan()
    assert caught.value.at is not None
    assert ".to_kafka" in caught.value.hint


@pytest.mark.parametrize("terminal", ["collect", "to_pylist", "count", "__iter__"])
def test_nothing_runs_while_it_is_defined(app: App, terminal: str) -> None:
    flow = app.dataflow("f")(lambda: list(getattr(Stream.from_dicts([{"a": 1}]), terminal)()))
    with pytest.raises(PlanError, match="would run the stream while the dataflow is being defined"):
        flow.plan()


async def test_stop_before_start_warns_and_does_nothing(app: App) -> None:
    flow = app.dataflow("f")(lambda: Stream.from_kafka("orders").to_kafka("x"))
    with pytest.warns(RuntimeWarning, match="'f' was not started"):
        await flow.stop()
    assert not flow.is_running


async def test_an_app_does_not_run_inside_of_a_loop(app: App) -> None:
    app.dataflow("f")(lambda: Stream.from_dicts([{"a": 1}]).to_callback(print))
    with pytest.raises(PreconditionError, match="one runs here already") as caught:
        app.run()
    assert caught.value.hint == "await app.start()"


async def test_jobs_have_a_name_while_they_are_started(app: App) -> None:
    flow = app.dataflow("f")(lambda: Stream.from_dicts([{"a": 1}]).to_callback(lambda batch: None))
    assert flow.job_id is None
    await flow.start(parallelism=1)
    assert flow.job_id == "shop.f"
    await flow.stop()
    assert flow.job_id is None


def test_more_dataflows_than_a_pool_has_threads_end_together(app: App) -> None:
    seen: list[int] = []
    for number in range(40):
        app.dataflow(f"f{number}")(
            lambda number=number: Stream.from_dicts([{"a": number}]).to_callback(
                lambda batch: seen.extend(batch.column("a").to_pylist())
            )
        )
    app.run()
    assert sorted(seen) == list(range(40))


async def test_an_app_without_dataflows_cannot_start(app: App) -> None:
    with pytest.raises(PlanError, match="has no dataflow"):
        await app.start()
    await app.stop()


def test_endless_flows_have_checkpoints(app: App, tmp_path: Path) -> None:
    endless = app.dataflow("a")(lambda: Stream.from_kafka("orders").to_kafka("x")).plan()
    bounded = app.dataflow("b")(lambda: Stream.from_dicts([{"a": 1}]).to_kafka("x")).plan()
    found = app.settings_for(endless).checkpoint
    assert found is not None
    assert (found.directory, found.interval, found.exactly_once) == (str(app.data_dir / "checkpoints"), 1.0, False)
    assert app.settings_for(bounded).checkpoint is None
    exact = (
        App("shop", data_dir=tmp_path, exactly_once=True, checkpoint_interval="200ms").settings_for(bounded).checkpoint
    )
    assert exact is not None
    assert (exact.interval, exact.exactly_once) == (0.2, True)
    own = FlowSettings(checkpoint=CheckpointSettings(directory=str(tmp_path), interval=5))
    assert App("shop", settings=own).settings_for(endless).checkpoint is own.checkpoint


@pytest.mark.parametrize("bad", ["", "a b", "a/b"])
def test_names_of_apps(bad: str) -> None:
    with pytest.raises(InvalidError, match="id: must be letters"):
        App(bad)


# ---------------------------------------------------------------------------------------------------------
# Tables


def test_a_table_is_the_right_side_of_a_join(app: App) -> None:
    app.topic("users", schema={"id": "int64", "name": "string"})
    users = app.table("users", "users", key="id")
    orders = Stream.from_dicts([{"user": 1, "amount": 5}])
    joined = orders.join(users, "user", how="left")
    node = joined.node
    assert isinstance(node, Join)
    assert (node.mode, node.left_keys, node.right_keys) == (JoinMode.TABLE, ("user",), ("id",))
    assert joined.schema is not None
    assert joined.schema.names == ["user", "amount", "id", "name"]
    with pytest.raises(PreconditionError, match="lies in the state of the joins"):
        _ = users[1]
    with pytest.raises(PlanError, match="needs a key"):
        app.table("others", orders)


def test_a_table_may_stand_above_its_topic(app: App) -> None:
    users = app.table("users", "users", key="id")
    orders = Stream.from_dicts([{"user": 1, "amount": 5}])
    app.topic("users", schema={"id": "int64", "name": "string"})
    joined = orders.join(users, "user", how="left")
    assert joined.schema is not None
    assert joined.schema.names == ["user", "amount", "id", "name"]
    # One source serves all joins with the table.
    assert orders.join(users, "user").node.inputs[1] is joined.node.inputs[1]
    with pytest.raises(PlanError, match="topic"):
        app.table("others", "no name", key="id")


def test_the_unit_of_a_topics_times_is_checked_where_it_is_said(app: App) -> None:
    with pytest.raises(PlanError, match="time unit: must be s, ms, us or ns") as caught:
        app.topic("users", schema={"id": "int64", "at": "int64"}, event_time="at", time_unit="sec")
    assert caught.value.at is not None
    assert caught.value.at.file.endswith("test_app.py")


def test_a_table_without_a_source_is_a_mapping(app: App) -> None:
    counts = app.table("counts")
    counts["a"] = counts.get("a", 0) + 1
    assert dict(counts) == {"a": 1}
    del counts["a"]
    assert len(counts) == 0


# ---------------------------------------------------------------------------------------------------------
# Agents


def test_agents_warn_with_their_new_form(app: App) -> None:
    with pytest.warns(DeprecationWarning, match="Agents are now worker nodes, not user code") as caught:

        @app.agent("transactions")
        async def fraud_detector(transaction: Any) -> Any:
            if transaction["amount"] > 10000:
                yield transaction

    text = str(caught[0].message)
    assert '@app.dataflow("fraud_detector")\n    def fraud_detector():' in text
    assert '.filter(col("amount") > 10000)' in text
    assert "shoal migrate" in text
    assert caught[0].filename == __file__


@pytest.fixture
def agent(app: App) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        @app.agent(app.topic("txns", schema={"amount": "int64"}), sink="alerts", name="detect")
        async def detect(txn: Any) -> Any:
            if txn["amount"] > 1000:
                yield txn
                yield {"double": txn.amount * 2}

    return detect


async def test_sending_to_an_agent_that_does_not_run_calls_it(agent: Any) -> None:
    assert await agent.send({"amount": 5000}) == ({"amount": 5000}, {"double": 10000})
    assert await agent.send({"amount": 5}) == ()


async def test_agents_may_be_any_kind_of_function(app: App) -> None:
    async def returning(x: Any) -> Any:
        return x.a

    def plain(x: Any) -> Any:
        return [x.a]

    def generating(x: Any) -> Any:
        yield x.a

    async def silent(x: Any) -> None:
        pass

    with pytest.warns(DeprecationWarning, match="deprecated"):
        agents = [app.agent("t")(each) for each in (returning, plain, generating, silent)]
    assert [await agent.send({"a": 1}) for agent in agents] == [(1,), ([1],), (1,), ()]
    assert list(app.dataflows) == ["returning", "plain", "generating", "silent"]


async def test_an_agent_is_a_dataflow_of_its_app(app: App, agent: Any) -> None:
    flow = app.dataflows["detect"]
    plan = flow.plan()
    assert plan[0].connector.topic == "alerts"  # type: ignore[attr-defined]
    call = plan[0].inputs[0].function.target  # type: ignore[attr-defined]
    assert await call({"amount": 2000}) == [{"amount": 2000}, {"double": 4000}]
    assert await call({"amount": 2}) == []


async def test_results_of_an_agent_without_a_sink_go_nowhere(app: App) -> None:
    with pytest.warns(DeprecationWarning, match="deprecated"):

        @app.agent("orders")
        async def process(order: Any) -> Any:
            yield order.total

    plan = app.dataflows["process"].plan()
    assert isinstance(plan[0].connector, CallbackSink)  # type: ignore[attr-defined]
    assert await plan[0].inputs[0].function.target({"total": 1}) == []  # type: ignore[attr-defined]


def test_an_agent_cannot_take_the_name_of_a_dataflow(app: App) -> None:
    app.dataflow("f")(lambda: None)
    with pytest.warns(DeprecationWarning, match="deprecated"), pytest.raises(PlanError, match="name of another"):
        app.agent("t", name="f")(lambda r: r)


# ---------------------------------------------------------------------------------------------------------
# Streams that are used twice


def test_a_stream_that_two_branches_read_is_read_once(app: App) -> None:
    @app.dataflow()
    def branches() -> Any:
        orders = Stream.from_kafka("orders", schema={"x": "int64"})
        return [orders.filter(col("x") > 1).to_kafka("big"), orders.filter(col("x") <= 1).to_kafka("small")]

    assert sum(isinstance(node, Source) for node in walk(*branches.plan())) == 1


# ---------------------------------------------------------------------------------------------------------
# When something fails


async def run_agent(app: App, seen: list[int], **options: Any) -> Any:
    topic = app.topic("numbers", schema={"n": "int64"})
    await topic.send({"n": 1})
    await topic.send({"n": 2})
    await topic.send({"n": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)

        @app.agent(topic, name="picky", **options)
        async def picky(record: Any) -> None:
            seen.append(record.n)
            if record.n == 2:
                raise ValueError("two")

    await picky.start()
    return picky


async def test_an_agent_may_skip_records_that_it_fails_on(app: App) -> None:
    seen: list[int] = []
    picky = await run_agent(app, seen, on_error="skip")
    async with asyncio.timeout(10):
        while len(seen) < 3:
            await asyncio.sleep(0.01)
    report = await picky.stop()
    assert seen == [1, 2, 3]
    assert sum(step.statistics.get("skipped", 0) for step in report.steps) == 1


async def test_an_agent_that_fails_is_not_called_again_and_fails_once(app: App) -> None:
    seen: list[int] = []
    picky = await run_agent(app, seen)
    with pytest.raises(OperatorFailedError, match="ValueError: two"):
        await picky.dataflow.wait()
    assert seen == [1, 2]
    assert await picky.stop() is None  # the caller that waited knows it


async def test_stopping_raises_a_failure_that_nobody_has_heard_of(app: App) -> None:
    picky = await run_agent(app, [])
    async with asyncio.timeout(10):
        while picky.dataflow.is_running:
            await asyncio.sleep(0.01)
    with pytest.raises(OperatorFailedError, match="ValueError: two"):
        await picky.stop()


def test_arguments_of_agents(app: App) -> None:
    with pytest.raises(PlanError, match='must be "fail" or "skip"'):
        app.agent("t", on_error="side")
    with pytest.raises(PlanError, match='on_error: must be "fail"'):
        app.agent("t", on_error="perhaps")
    with pytest.raises(PlanError, match=r"on_eror: is no argument of app\.agent; did you mean 'on_error'") as raised:
        app.agent("t", on_eror="skip")
    assert "self" not in str(raised.value)


async def test_a_topic_may_be_declared_below_its_agent(app: App) -> None:
    seen: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)

        @app.agent("orders", "mine", sink="doubled")
        async def process(order: Any) -> Any:
            seen.append(order.x)
            yield {"x": order.x * 2}

    app.topic("orders", schema={"x": "int64"}, key="x")
    app.topic("doubled", partitions=2)
    assert process.name == "mine"
    assert process.topic.key == "x"
    await process.start()
    await process.send({"x": 1})
    async with asyncio.timeout(10):
        while not seen:
            await asyncio.sleep(0.01)
    await process.stop()
    assert seen == [1]
    (sink,) = app.dataflows["mine"].plan()
    assert isinstance(sink, Sink)
    assert sink.connector.partitions == 2


async def test_warnings_name_the_line_of_the_program(app: App, agent: Any) -> None:
    flow = app.dataflow("f")(lambda: None)
    for stop in (agent.stop, flow.stop):
        with pytest.warns(RuntimeWarning, match="was not started") as caught:
            await stop()
        assert caught[0].filename == __file__
