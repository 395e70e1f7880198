"""Programs with agents in their new form: what it looks like, and that it gives what the agent gave."""

from __future__ import annotations

import asyncio
import textwrap
import warnings
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from shoal.core.errors import InvalidError
from shoal.dataflow.api.migrate import Migration, dataflow_form, migrate
from shoal.dataflow.connectors.memory import BatchesSource, CollectSink
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import Node, Sink, Source, rewrite
from shoal.dataflow.operators.rows import as_mapping

ROWS = [
    {"amount": amount, "user": user, "total": total}
    for amount, user, total in [(5.0, "a", 1.0), (11.0, "x", 2.0), (20.0, "abc", 3.5), (0.5, "b", 0.0)]
]


def program_of(body: str, *, decorator: str = '@app.agent("orders", sink="out")') -> str:
    return f'from shoal import App\n\napp = App("test")\n\n\n{decorator}\n{textwrap.dedent(body).strip()}\n'


def moved(body: str, *, decorator: str) -> Migration:
    return migrate(program_of(body, decorator=decorator))


def chain(done: Migration) -> list[str]:
    """The steps of the one dataflow."""
    lines = [line.strip() for line in done.text.splitlines()]
    start = lines.index("return (")
    return lines[start + 1 : lines.index(")", start)]


def load(text: str, name: str) -> Any:
    """The app of a program."""
    names: dict[str, Any] = {"LIMIT": 10, "compute": lambda o: o["amount"], "others": {5.0}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        exec(compile(text, name, "exec"), names)
    return names["app"]


def by_agent(program: str) -> list[dict[str, Any]]:
    """What the agent of a program gives for the rows."""
    (agent,) = load(program, "old")._agents.values()

    async def feed() -> list[Any]:
        return [each for row in ROWS for each in await agent.send(row)]

    return [dict(as_mapping(each)) for each in asyncio.run(feed())]


def by_dataflow(program: str) -> list[dict[str, Any]]:
    """What the dataflow of a program gives for the rows, in place of its topic's."""
    (flow,) = load(program, "new").dataflows.values()
    batch = pa.RecordBatch.from_pylist(ROWS)

    def change(node: Node) -> Node:
        if isinstance(node, Source):
            return replace(node, connector=BatchesSource((batch,)), schema=batch.schema, time=None)
        return replace(node, connector=CollectSink(), uid="result") if isinstance(node, Sink) else node

    rows: list[dict[str, Any]] = engine.run(rewrite(flow.plan(), change)).tables["result"].to_pylist()
    return rows


def gives_the_same(program: str) -> Migration:
    done = migrate(program)
    assert by_dataflow(done.text) == by_agent(program)
    return done


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("async def f(o):\n    yield o.total", ['.select(value=col("total"))']),
        ("async def f(o):\n    yield o['total'] * 1.1", ['.select(value=col("total") * 1.1)']),
        ("async def f(o):\n    if o['amount'] > 10:\n        yield o", ['.filter(col("amount") > 10)']),
        ("async def f(o):\n    if o.amount > LIMIT:\n        yield {'n': LIMIT}", None),
        (
            "async def f(o):\n    if o.amount > 10 and o.user == 'x':\n        yield {'who': o.user, 'n': 1}",
            ['.filter((col("amount") > 10) & (col("user") == "x"))', '.select(who=col("user"), n=lit(1))'],
        ),
        (
            "async def f(o):\n    if o.amount > 1:\n        if o.user in ('a', 'b'):\n            yield o",
            ['.filter(col("amount") > 1)', '.filter(col("user").isin(["a", "b"]))'],
        ),
        ("async def f(o):\n    if o.user is None or 1 < o.amount <= 5:\n        yield o", None),
        ("async def f(o):\n    return {'total': o.amount, 'up': o.user.upper()}", None),
        ("async def f(o):\n    if o.user.startswith('a'):\n        yield -o.amount", None),
        ("def f(o):\n    yield o.get('amount')", ['.select(value=col("amount"))']),
        ("def f(o):\n    yield {'amount': o.amount, 'user': o.user}", ['.select("amount", "user")']),
        ("def f(o):\n    yield {**o, 'big': o.amount > 10}", ['.with_columns(big=col("amount") > 10)']),
    ],
)
def test_columns_become_expressions(body: str, steps: list[str] | None) -> None:
    done = gives_the_same(program_of(body))
    assert done.rewritten == 1
    found = chain(done)
    assert found[0] == 'Stream.from_kafka("orders")'
    assert found[-1] == '.to_kafka("out")'
    if steps is not None:
        assert found[1:-1] == steps
    assert ".records(" not in done.text
    assert done.notes == ()


@pytest.mark.parametrize(
    "body",
    [
        "async def f(o):\n    if o.user != 'x':\n        yield o",
        "async def f(o):\n    if not o.user == 'x':\n        yield o",
        "async def f(o):\n    if o.user not in ('a', 'b'):\n        yield o",
    ],
)
def test_what_nulls_do_is_noted(body: str) -> None:
    done = gives_the_same(program_of(body))
    assert [note.line for note in done.notes] == [8]
    assert "a null is neither equal nor unequal" in done.notes[0].text


@pytest.mark.parametrize(
    "body",
    [
        "async def f(o):\n    for n in range(3):\n        yield {'n': n, 'x': o.amount}",
        "async def f(o):\n    if o.amount > 1:\n        yield {'a': 1}\n    else:\n        yield {'a': 2}",
        "async def f(o):\n    yield {'a b': o.amount}",
        "async def f(o):\n    yield compute(o)",
        "async def f(o):\n    yield {**o}",
        "async def f(o):\n    if o.amount in others:\n        yield o",
        "async def f(o):\n    if o.amount:\n        yield o",
        "async def f(o):\n    yield o.user or 'nobody'",
        "def f(o):\n    if 1 < 2:\n        yield o",
    ],
)
def test_anything_else_is_called_record_by_record(body: str) -> None:
    done = gives_the_same(program_of(body))
    assert chain(done)[1:] == [".records(probe=False).flat_map(f_record)", '.to_kafka("out")']
    assert "def f_record(o):" in done.text
    assert "async def" not in done.text
    assert [note.line for note in done.notes] == [7]
    assert "record by record" in done.notes[0].text


RETURNING = ".records(probe=False).flat_map(lambda record: [each for each in [f_record(record)] if each is not None])"


@pytest.mark.parametrize(
    ("body", "step"),
    [
        ("async def f(o):\n    total = o.amount * 2\n    if total > 15:\n        return {'total': total}", RETURNING),
        ("async def f(o):\n    total = o.amount * 2\n    if total > 0:\n        return {'total': total}", RETURNING),
        ("async def f(o):\n    total = [o.amount, o.total]\n    return total", RETURNING),
        (
            "def f(o):\n    def inner():\n        yield 1\n    return {'n': sum(inner())}",
            ".records(probe=False).map(f_record)",
        ),
    ],
)
def test_what_is_returned_is_one_result_or_none(body: str, step: str) -> None:
    done = gives_the_same(program_of(body))
    assert chain(done)[1:-1] == [step]


def test_a_condition_becomes_an_expression_also_where_the_result_does_not() -> None:
    body = "async def f(t):\n    if t['amount'] > 10:\n        yield {'alert': 'high_value', 'txn': t}"
    done = gives_the_same(program_of(body))
    assert chain(done)[1:-1] == [
        '.filter(col("amount") > 10)',
        ".records(probe=False).map(lambda t: {'alert': 'high_value', 'txn': t})",
    ]
    assert [(note.line, note.by_hand) for note in done.notes] == [(9, False)]


@pytest.mark.parametrize(
    "body",
    [
        "async def f(o):\n    seen.append(o.user)\n    yield {'n': len(seen), 'user': o.user}",
        "async def f(o):\n    seen.append(o.user)\n    return {'n': len(seen)}",
        "async def f(o):\n    if o.amount > 1:\n        yield {'n': seen.append(o.user) or len(seen)}",
        "async def f(o):\n    await asyncio.sleep(0)\n    seen.append(o.user)\n    yield {'n': len(seen)}",
    ],
)
def test_an_agent_that_counts_sees_real_records_alone(body: str) -> None:
    done = gives_the_same("import asyncio\n" + program_of(body).replace("app = ", "seen = []\napp = "))
    assert by_dataflow(done.text)[0]["n"] == 1


def test_the_name_may_be_the_second_argument() -> None:
    done = moved("async def f(o):\n    yield o", decorator='@app.agent("orders", "mine")')
    assert '@app.dataflow("mine")' in done.text
    done = moved("async def f(o):\n    yield o", decorator='@app.agent("orders", None)')
    assert '@app.dataflow("f")' in done.text


def test_a_function_that_gives_nothing_ends_in_a_callback() -> None:
    done = moved("async def f(o):\n    o.clear()", decorator='@app.agent("orders")')
    assert chain(done)[1:] == [".records(probe=False).flat_map(f_record)", ".to_callback(lambda batch: None)"]
    assert by_dataflow(done.text) == []


def test_what_waits_goes_on_waiting() -> None:
    body = "async def f(o):\n    await asyncio.sleep(0)\n    yield o"
    done = gives_the_same("import asyncio\n" + program_of(body))
    assert "async def f_record(o):" in done.text
    assert chain(done)[1:-1] == [".records(probe=False).flat_map(f_record)"]


@pytest.mark.parametrize(
    ("decorators", "body", "line", "said"),
    [
        ('@app.agent("orders")', "async def f(a, b):\n    yield a", 7, "takes not one record"),
        ('@app.agent("orders")', "async def f(s):\n    async for o in s:\n        yield o", 8, "goes through a stream"),
        ('@other\n@app.agent("orders")', "async def f(o):\n    yield o", 8, "has other decorators"),
    ],
)
def test_what_cannot_be_translated_is_left_alone_and_named(decorators: str, body: str, line: int, said: str) -> None:
    done = moved(body, decorator=decorators)
    assert done.rewritten == 0
    assert "@app.agent" in done.text
    assert [(note.line, note.by_hand) for note in done.notes] == [(line, True)]
    assert said in done.notes[0].text


def test_arguments_that_dataflows_do_not_have_are_noted() -> None:
    done = moved("async def f(o):\n    yield o", decorator='@app.agent(topic="orders", sink="out", concurrency=3)')
    assert 'Stream.from_kafka("orders")' in done.text
    assert "concurrency was left out; say it at start: --parallelism" in done.notes[0].text


def test_results_that_went_nowhere_get_a_topic_and_a_note() -> None:
    done = moved("async def f(o):\n    yield o.x", decorator='@app.agent("orders")')
    assert '.to_kafka("f_results")' in done.text
    assert "went nowhere" in done.notes[0].text


def test_a_whole_program() -> None:
    program = '''\
"""Orders."""
import asyncio
from sabot import App, tumbling

app = App(id="shop")


@app.agent("orders", name="totals", sink="totals")
async def process(order):
    """Totals of orders.

    More words.
    """
    yield order.total


def helper():
    return 5


async def main():
    await process.send({"total": 5}, key="ä"); await process.send({"total": 6})
'''
    done = migrate(program)
    assert (
        done.text
        == '''\
"""Orders."""
import asyncio
from shoal import App, tumbling
from shoal import Stream, col

app = App(id="shop")


@app.dataflow("totals")
def process():
    """Totals of orders."""
    return (
        Stream.from_kafka("orders")
        .select(value=col("total"))
        .to_kafka("totals")
    )


def helper():
    return 5


async def main():
    await app.topic("orders").send({"total": 5}, key="ä"); await app.topic("orders").send({"total": 6})
'''
    )
    assert [note.line for note in done.notes] == [22, 22]
    assert "now it goes to the topic always" in done.notes[0].text


def test_imports_stand_behind_the_docstring() -> None:
    done = migrate('"""Words."""\n\napp = App("x")\n\n@app.agent("a", sink="b")\ndef f(o):\n    yield o\n')
    assert done.text.startswith('"""Words."""\nfrom shoal import Stream\n')


def test_methods_keep_their_indent() -> None:
    program = 'class Flows:\n    @app.agent("orders", sink="x")\n    async def f(o):\n        yield o.a\n'
    text = migrate(program).text
    assert '    @app.dataflow("f")\n    def f():\n        return (\n' in text


def test_a_program_without_agents_stays_as_it_is() -> None:
    program = "import os\n\nprint(os.name)  # no agents\n"
    assert migrate(program) == Migration(program, (), 0)


def test_what_is_no_python_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"my_app\.py: is not Python"):
        migrate("def f(:\n", filename="my_app.py")


def test_the_form_of_one_function() -> None:
    form = dataflow_form('    @app.agent("orders", sink="x")\n    async def f(o):\n        yield o.a\n')
    assert form is not None
    assert form.startswith('@app.dataflow("f")\ndef f():')
    assert dataflow_form("lambda: 1)") is None
    assert dataflow_form("x = 1") is None
