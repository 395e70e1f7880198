"""`shoal run`: which program is meant, what is said about it, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.programs.loading import ProgramError, load_program
from shoal.core.errors import InvalidError
from shoal.dataflow.api.context import Launch
from shoal.dataflow.errors import PlanError

GOLDEN = Path(__file__).parents[2] / "golden" / "cli"
PROGRAM = """\
from shoal import App, Stream, col

app = App("shop")
other = app
seen = []


@app.dataflow()
def large():
    return Stream.from_dicts([{"a": 1}, {"a": 5}]).filter(col("a") > 2).to_callback(lambda b: seen.append(b.num_rows))


@app.dataflow("all of them")
def every():
    return Stream.from_dicts([{"a": 1}, {"a": 5}]).to_callback(lambda b: seen.append(b.num_rows))


app.run()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a program, and modules as they were when the test is over."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_DEBUG", raising=False)
    (tmp_path / "my_app.py").write_text(PROGRAM)
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").touch()
    (tmp_path / "flows" / "shop.py").write_text(PROGRAM)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    "target", ["my_app", "my_app:app", "my_app:other", "my_app.py", "my_app.py:app", "./my_app.py", "flows.shop:app"]
)
def test_programs_are_found(folder: Path, target: str) -> None:
    found = load_program(target, Launch())
    assert found.app.id == "shop"
    assert found.dataflows == ()
    assert sys.modules[next(name for name in ("my_app", "flows.shop") if name in sys.modules)].seen == []  # not run


def test_a_dataflow_may_be_named_for_its_app(folder: Path) -> None:
    assert load_program("my_app:every", Launch()).dataflows == ("all of them",)


def test_a_file_does_not_take_the_place_of_a_module(folder: Path) -> None:
    (folder / "json.py").write_text(PROGRAM)
    before = sys.modules["json"]
    assert load_program("json.py", Launch()).app.id == "shop"
    assert sys.modules["json"] is before


def test_what_was_typed_wins_over_the_program(folder: Path) -> None:
    from datetime import timedelta

    launch = Launch(
        broker="kafka://one,two:9093",
        data_dir="elsewhere",
        exactly_once=True,
        checkpoint_interval=timedelta(milliseconds=250),
    )
    app = load_program("my_app", launch).app
    settings = app.settings_for(app.dataflows["large"].plan()).checkpoint
    assert (app.broker, str(app.data_dir)) == ("one:9092,two:9093", "elsewhere")
    assert settings is not None
    assert (settings.exactly_once, settings.interval) == (True, 0.25)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("", "must be a module or a file"),
        (":app", "must be a module or a file"),
        ("my_ap:app", "did you mean 'my_app'"),
        ("my_ap.py", "did you mean 'my_app.py'"),
        ("my_app:ap", r"did you mean 'app'\? \(the apps and dataflows are app, other, large, every\)"),
        ("my_app:seen", "must be an App, and is a list"),
        ("nowhere.flows:app", "there is no such module"),
        ("my_app.flows:app", "there is no such module"),
        ("flows/nothing.py", "there is no such file"),
        ("flows", "has no App"),
        ("two.py", "has several apps: one, other"),
    ],
)
def test_wrong_names_are_told_what_there_is(folder: Path, target: str, said: str) -> None:
    (folder / "two.py").write_text("from shoal import App\none = App('one')\nother = App('other')\n")
    with pytest.raises(InvalidError, match=said):
        load_program(target, Launch())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny = x / 0\n", r"broken\.py:2: ZeroDivisionError: division by zero"),
        ("def f(:\n", r"broken\.py:1: is not Python"),
        ("import nosuchthing\n", r"broken\.py:1: ModuleNotFoundError"),
        ("import sys\n\nsys.exit(3)\n", r"broken\.py:3: ends the program while it is loaded"),
        ("import json\n\njson.loads('{')\n", "JSONDecodeError"),
    ],
)
@pytest.mark.parametrize("target", ["broken", "broken.py"])
def test_what_a_module_raises_has_its_line(folder: Path, text: str, said: str, target: str) -> None:
    (folder / "broken.py").write_text(text)
    with pytest.raises(ProgramError, match=said):
        load_program(target, Launch())
    assert "broken" not in sys.modules


def test_errors_of_ours_stay_what_they_are(folder: Path) -> None:
    (folder / "broken.py").write_text("from shoal import App\napp = App('a', flight_port=8815)\n")
    with pytest.raises(PlanError, match=r"broken\.py:2.*flight_port: is no argument of App") as caught:
        load_program("broken", Launch())
    assert "there is no server to set up" in caught.value.hint


# ---------------------------------------------------------------------------------------------------------
# The command


def test_it_runs_everything_or_what_was_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "my_app"]) == 0
    assert sorted(sys.modules["my_app"].seen) == [1, 2]
    told = capsys.readouterr()
    assert told.out == ""
    assert "shop: large runs" in told.err
    assert "shop: all of them ended after" in told.err
    assert main.run(["run", "my_app", "--dataflow", "large"]) == 0
    assert sorted(sys.modules["my_app"].seen) == [1, 1, 2]


LEAVING_OUT = """\
from shoal import App, Stream, col, tumbling

app = App("shop")
rows = [{"n": "1", "at": 100}, {"n": "one", "at": 101}, {"n": "2", "at": 1}]


@app.dataflow()
def totals():
    read = Stream.from_iterable(rows, batch_size=1, event_time="at", time_unit="s", on_error="skip")
    numbers = read.select("at", n=col("n").cast("int64"), on_error="skip")
    return numbers.window(tumbling(seconds=10)).sum("n").to_callback(print)


@app.dataflow()
def shares():
    records = Stream.from_list([4, 0, 2, 0]).records()
    made = records.map(lambda record: {"share": 8 / record.value}, schema={"share": "double"}, on_error="side")
    return [made.to_callback(print), made.side_output("errors").to_callback(print)]


@app.dataflow()
def breaks():
    made = Stream.from_list(["1", "x", "y"], batch_size=2).select(n=col("value").cast("int64"), on_error="skip")
    return made.records().map(lambda record: 1 // 0, schema={"value": "int64"}).to_callback(print)
"""


@pytest.mark.parametrize(
    ("flow", "code", "lines"),
    [
        (
            "totals",
            0,
            [
                "shop: totals begins to leave rows out: 1 row skipped at select",
                "shop: totals begins to leave rows out: 1 row late at aggregate",
                "shop: totals left out 1 row skipped at select",
                "1 row late at aggregate",
            ],
        ),
        (
            "shares",
            0,
            [
                "shop: shares begins to leave rows out: 2 rows put aside as errors at records(lambda leaving.py:17)",
                "shop: shares left out 2 rows put aside as errors at records(lambda leaving.py:17)",
            ],
        ),
        ("breaks", 1, ["shop: breaks left out 1 row skipped at select"]),
    ],
)
def test_rows_that_are_left_out_are_told_of(
    folder: Path, capsys: pytest.CaptureFixture[str], flow: str, code: int, lines: list[str]
) -> None:
    (folder / "leaving.py").write_text(LEAVING_OUT)
    assert main.run(["run", "leaving.py", "--dataflow", flow]) == code
    said = capsys.readouterr().err
    for line in lines:
        assert line in said


def test_nothing_is_said_of_rows_when_none_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "my_app"]) == 0
    assert "left out" not in capsys.readouterr().err


def test_wrong_dataflows_are_told_what_there_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "my_app", "--dataflow", "larg"]) == 2
    assert "did you mean 'large'? (the dataflows are large, all of them)" in capsys.readouterr().err


def test_explaining_prints_every_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "my_app", "--explain", "--parallelism", "3"]) == 0
    told = capsys.readouterr()
    assert told.out.count("physical plan (parallelism 3)") == 2
    assert "dataflow all of them" in told.out
    assert sys.modules["my_app"].seen == []


def test_a_plan_looks_like_this(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "my_flow.py").write_text(
        "from shoal import App, Stream, col, tumbling\n\napp = App('shop', broker='nowhere.invalid:9092')\n"
        "app.topic('orders', schema={'user': 'string', 'amount': 'double', 'at': 'int64'}, event_time='at', "
        "time_unit='ms')\n\n\n"
        "@app.dataflow()\ndef totals():\n"
        "    orders = Stream.from_kafka('orders').filter(col('amount') > 5)\n"
        "    return orders.group_by('user').window(tumbling(seconds=60)).sum('amount').to_kafka('totals')\n"
    )
    assert main.run(["run", "my_flow", "--explain", "--parallelism", "2"]) == 0
    plan, kafka, _which = capsys.readouterr().out.partition("kafka: ")
    assert plan == (GOLDEN / "run-explain.txt").read_text()
    assert kafka, "how Kafka is talked to depends on what is installed, and is said"


def test_agents_warn_when_they_are_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "old.py").write_text(
        "from shoal import App\napp = App('old')\n\n\n@app.agent('orders')\nasync def f(order):\n    yield order\n"
    )
    with pytest.warns(DeprecationWarning, match="@app.agent is deprecated"):
        load_program("old", Launch())
    assert main.run(["run", "old", "--explain"]) == 0
    assert "dataflow f" in capsys.readouterr().out


def test_mistakes_of_a_program_have_their_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.py").write_text(PROGRAM.replace('col("a") > 2', 'col("b") > 2'))
    assert main.run(["run", "wrong"]) == 2
    told = capsys.readouterr().err
    assert "error: wrong.py:10: column 'b': does not exist" in told
    assert "runs" not in told  # the other one is not started either
    (folder / "raising.py").write_text(PROGRAM.replace("    return Stream", "    1 / 0\n    return Stream", 1))
    assert main.run(["run", "raising"]) == 1
    assert "error: raising.py:10: ZeroDivisionError: division by zero" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--parallelism", "0"], "--parallelism: must be at least 1"),
        (["--checkpoint-interval", "soon"], "must be a duration"),
        (["--broker", "somewhere"], "must be host:port or kafka://host:port of Kafka"),
        (["--log-level", "loud"], "--log-level: must be one of"),
    ],
)
def test_wrong_options(folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert main.run(["run", "my_app", *options]) == 2
    assert said in capsys.readouterr().err
