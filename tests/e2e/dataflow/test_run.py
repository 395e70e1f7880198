"""Stream programs as people run them: by `shoal run`, by themselves, stopped, killed and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal import App, PlanError
from shoal.core.errors import NotFoundError

pytestmark = pytest.mark.e2e

PATIENCE = 60.0
ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(each for each in (ROOT / "examples" / "seed").glob("*.py") if each.name != "watching.py")

BOUNDED = """\
from shoal import App, Stream, col

app = App("shop")


@app.dataflow()
def large():
    rows = [{"id": n, "amount": n * 1.5} for n in range(10)]
    return Stream.from_dicts(rows).filter(col("amount") > 10).to_json("large")


app.run()
"""

ENDLESS = """\
from shoal import App, Stream, col

app = App("shop", checkpoint_interval="100ms")
app.topic("orders", schema={"id": "int64"})


@app.dataflow()
def copies():
    return Stream.from_kafka("orders").filter(col("id") >= 0).to_kafka("copies")


if __name__ == "__main__":
    app.run()
"""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs in the folder of the test, and ends what is left of them."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def until(condition: Callable[[], Any]) -> Any:
    """What a condition gives, once it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return found


def said(process: subprocess.Popen[str], words: str) -> None:
    """Read what a program says until it says this."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"it ended with {process.wait()} and did not say {words!r}")


def ids(folder: Path, topic: str) -> list[int]:
    app = App("shop", data_dir=folder / ".shoal" / "shop")
    try:
        return [row["id"] for row in app.stream(topic, bounded=True).to_pylist()]
    except (NotFoundError, PlanError):  # nobody has written yet
        return []


def send(folder: Path, numbers: range) -> None:
    import asyncio

    topic = App("shop", data_dir=folder / ".shoal" / "shop").topic("orders", schema={"id": "int64"})
    asyncio.run(topic.send_many([{"id": n} for n in numbers]))


# ---------------------------------------------------------------------------------------------------------
# The ways


@pytest.mark.parametrize(
    "arguments",
    [
        ("my_app.py",),
        ("-m", "shoal", "run", "my_app:app"),
        ("-m", "shoal", "run", "my_app.py"),
        ("-m", "shoal", "run", "my_app.py:app"),
        ("-m", "shoal", "run", "shop.flows:app"),
        ("-m", "shoal", "run", "shop.flows:large"),
        ("-m", "shoal", "run", "my_app", "--dataflow", "large", "--parallelism", "2"),
    ],
    ids=" ".join,
)
def test_every_way_runs_it(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "my_app.py").write_text(BOUNDED)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "flows.py").write_text(BOUNDED)
    done = call(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    found = [
        json.loads(line) for each in (tmp_path / "large").glob("*.jsonl") for line in each.read_text().splitlines()
    ]
    assert sorted(row["id"] for row in found) == [7, 8, 9]


def test_explaining_runs_and_connects_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(ENDLESS)
    done = call(tmp_path, "-m", "shoal", "run", "my_app", "--explain", "--broker", "nowhere.invalid:9092")
    assert done.returncode == 0, done.stderr
    assert "physical plan (parallelism 1)" in done.stdout
    assert not (tmp_path / ".shoal").exists()


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples(tmp_path: Path, script: Path) -> None:
    done = call(tmp_path, "-W", "ignore::DeprecationWarning", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr


# ---------------------------------------------------------------------------------------------------------
# Its end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("arguments", [("my_app.py",), ("-m", "shoal", "run", "my_app:app")], ids=["python", "shoal"])
def test_a_signal_stops_it_in_good_order(
    tmp_path: Path, begin: Callable[..., subprocess.Popen[str]], arguments: tuple[str, ...], number: signal.Signals
) -> None:
    (tmp_path / "my_app.py").write_text(ENDLESS)
    send(tmp_path, range(10))
    process = begin(*arguments)
    until(lambda: len(ids(tmp_path, "copies")) == 10)
    process.send_signal(number)
    assert process.wait(PATIENCE) == 0
    send(tmp_path, range(10, 20))
    again = begin(*arguments)
    until(lambda: len(ids(tmp_path, "copies")) >= 20)
    again.send_signal(number)
    assert again.wait(PATIENCE) == 0
    assert ids(tmp_path, "copies") == list(range(20))  # it went on from the last checkpoint


def test_a_run_leaves_a_savepoint_and_another_goes_on_from_it(
    tmp_path: Path, begin: Callable[..., subprocess.Popen[str]]
) -> None:
    (tmp_path / "my_app.py").write_text(ENDLESS)

    def run_until(rows: int, *options: str) -> None:
        process = begin("-m", "shoal", "run", "my_app:app", *options)
        until(lambda: len(ids(tmp_path, "copies")) >= rows)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0

    send(tmp_path, range(10))
    run_until(10, "--savepoint", "first")
    send(tmp_path, range(10, 20))
    run_until(20)
    run_until(30, "--from-checkpoint", "first")
    assert sorted(ids(tmp_path, "copies")) == sorted([*range(10), *range(10, 20), *range(10, 20)])
    listed = call(tmp_path, "-m", "shoal", "savepoint", "list", "my_app:app", "--json")
    assert [(each["job"], each["name"]) for each in json.loads(listed.stdout)["savepoints"]] == [
        ("shop.copies", "first")
    ]
    folder = ".shoal/shop/checkpoints/shop.copies"
    assert (
        "savepoint second is checkpoint" in call(tmp_path, "-m", "shoal", "savepoint", "take", folder, "second").stderr
    )
    refused = call(tmp_path, "-m", "shoal", "run", "my_app:app", "--from-checkpoint", "thrid")
    assert refused.returncode == 2
    assert "the savepoints are first, second" in refused.stderr
    restored = call(tmp_path, "-m", "shoal", "savepoint", "restore", folder, "first", "--accept-duplicates")
    assert "shop.copies: the next start goes on from checkpoint" in restored.stderr
    assert call(tmp_path, "-m", "shoal", "savepoint", "delete", "my_app:app", "first").returncode == 0


def test_a_run_goes_back_to_a_checkpoint_when_duplicates_are_accepted(
    tmp_path: Path, begin: Callable[..., subprocess.Popen[str]]
) -> None:
    (tmp_path / "my_app.py").write_text(ENDLESS)

    def run_until(rows: int, *options: str) -> None:
        process = begin("-m", "shoal", "run", "my_app:app", "--exactly-once", *options)
        until(lambda: len(ids(tmp_path, "copies")) >= rows)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0

    send(tmp_path, range(10))
    run_until(10, "--savepoint", "first")  # so that it is not removed
    (kept,) = (tmp_path / ".shoal/shop/checkpoints/shop.copies").glob("*/savepoint*")
    number = str(int(kept.parent.name))
    send(tmp_path, range(10, 20))
    run_until(20)
    refused = call(tmp_path, "-m", "shoal", "run", "my_app:app", "--exactly-once", "--from-checkpoint", number)
    assert refused.returncode == 1
    assert f"would go on from checkpoint {number}" in refused.stderr
    assert f"--from-checkpoint {number} --accept-duplicates" in refused.stderr
    assert ids(tmp_path, "copies") == list(range(20))
    run_until(30, "--from-checkpoint", number, "--accept-duplicates")
    assert ids(tmp_path, "copies") == [*range(20), *range(10, 20)]
    run_until(50, "--from-checkpoint", "0", "--accept-duplicates")
    assert ids(tmp_path, "copies") == [*range(20), *range(10, 20), *range(20)]


@pytest.mark.parametrize("way", ["shoal run", "App.run"])
def test_tasks_run_in_child_processes(tmp_path: Path, way: str) -> None:
    program = BOUNDED.replace("Stream.from_dicts(rows)", "Stream.from_dicts(rows).map(speak)").replace(
        "@app.dataflow()", "def speak(batch):\n    print('spoken')\n    return batch\n\n\n@app.dataflow()"
    )
    (tmp_path / "my_app.py").write_text(program.replace("app.run()", "app.run(processes=2)"))
    command = ("my_app.py",) if way == "App.run" else ("-m", "shoal", "run", "my_app:app", "--processes", "2")
    done = call(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert "[host 0] spoken" in done.stderr
    lines = [line for each in (tmp_path / "large").glob("*.jsonl") for line in each.read_text().splitlines()]
    assert sorted(json.loads(line)["id"] for line in lines) == [7, 8, 9]


def test_a_second_signal_ends_it_at_once(tmp_path: Path, begin: Callable[..., subprocess.Popen[str]]) -> None:
    (tmp_path / "my_app.py").write_text(
        ENDLESS.replace('.to_kafka("copies")', ".to_callback(stuck)")
        + "\n\ndef stuck(batch):\n    import time\n\n    print('stuck', flush=True)\n    time.sleep(3600)\n"
    )
    send(tmp_path, range(10))
    process = begin("-m", "shoal", "run", "my_app:app")
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGINT)
    said(process, "stopping; once more ends at once")
    time.sleep(0.5)  # two that come together are one request
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_what_fails_ends_it_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(
        ENDLESS.replace("if __name__", "@app.dataflow()\ndef breaks():\n    return broken()\n\n\nif __name__").replace(
            "@app.dataflow()\ndef copies",
            "def boom(batch):\n    raise ValueError('no good')\n\n\ndef broken():\n"
            "    return Stream.from_dicts([{'a': 1}]).map(boom).to_callback(print)\n\n\n@app.dataflow()\ndef copies",
        )
    )
    done = call(tmp_path, "-m", "shoal", "run", "my_app:app")
    assert done.returncode == 1
    assert "copies ended" in done.stderr
    assert "error: map(boom)" in done.stderr
    assert "ValueError: no good" in done.stderr
    told = dict(line.split(None, 1) for line in done.stderr.splitlines() if line.startswith("  "))
    assert (told["input"], told["row"]) == ("a: int64", "{'a': 1}")
    assert told["read"].endswith("offsets 0 to 0")
    assert "Traceback" not in done.stderr
    own = call(tmp_path, "my_app.py")
    assert own.returncode == 1
    assert "OperatorFailedError" in own.stderr


@pytest.mark.parametrize("parallelism", [1, 2])
def test_killed_and_run_again_loses_and_doubles_nothing(
    tmp_path: Path, begin: Callable[..., subprocess.Popen[str]], parallelism: int
) -> None:
    (tmp_path / "my_app.py").write_text(ENDLESS.replace('"int64"}', '"int64"}, partitions=2'))
    send(tmp_path, range(1000))
    for round_ in range(3):
        process = begin("-m", "shoal", "run", "my_app", "--exactly-once", "--parallelism", str(parallelism))
        until(lambda enough=1000 * (round_ + 1): len(ids(tmp_path, "copies")) >= enough)
        send(tmp_path, range(1000 * (round_ + 1), 1000 * (round_ + 2)))
        time.sleep(0.05 * round_)  # somewhere in the next checkpoint
        process.kill()
        process.wait()
    last = begin("-m", "shoal", "run", "my_app", "--exactly-once")
    said(last, "copies runs, from checkpoint")
    until(lambda: len(ids(tmp_path, "copies")) >= 4000)
    last.send_signal(signal.SIGTERM)
    assert last.wait(PATIENCE) == 0
    assert sorted(ids(tmp_path, "copies")) == list(range(4000))


def test_a_program_that_ends_without_stopping_stops_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(
        ENDLESS.partition("if __name__")[0]
        + "import asyncio\n\n\nasync def main():\n    await copies.start()\n"
        + "    await app.topic('orders').send({'id': 1})\n\n\nasyncio.run(main())\n"
    )
    done = call(tmp_path, "my_app.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / ".shoal" / "shop" / "checkpoints" / "shop.copies").is_dir()


def test_rubbish_in_a_topic_is_an_error_that_says_where(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(ENDLESS)
    rubbish = (
        "from shoal.topics.local import LocalTopics\nfrom shoal.topics.base import ensure_topic, records\n"
        "topics = LocalTopics('.shoal/shop/topics')\nensure_topic(topics, 'orders', partitions=1)\n"
        "with topics.writer() as writer:\n"
        "    writer.append('orders', records([b'{\"id\": 1}', b'no json', b'{\"id\": \"x\"}']))\n    writer.flush()\n"
        "topics.close()\n"
    )
    assert call(tmp_path, "-c", rubbish).returncode == 0
    done = call(tmp_path, "-m", "shoal", "run", "my_app")
    assert done.returncode == 1
    assert "topic orders, split 0: 2 rows cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
