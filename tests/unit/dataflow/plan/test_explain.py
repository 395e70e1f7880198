"""Plans for people."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import InvalidError, UnavailableError
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import count, session, sliding, tumbling
from shoal.dataflow.language.expressions.trees import col
from tests.services.absence import do_without
from tests.unit.dataflow.plan.plans import Same

SCHEMA = {"user": "string", "amount": "double", "ts": "timestamp[us]"}


def orders() -> Stream:
    def never() -> Any:
        raise AssertionError("explaining asked the source")

    return Stream.from_iterable(never, schema=SCHEMA, event_time="ts", disorder="4s", bounded=False)


def half(batch: Any) -> Any:
    raise AssertionError("explaining called the function")


def test_explain_prints_all_plans_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stream = orders().with_columns(x=col("amount") * 2).filter(col("user") == "a")
    windowed = stream.group_by("user").window(tumbling(seconds=60)).aggregate(total=("x", "sum"), n="count")
    text = windowed.map(half).explain(parallelism=2)
    assert capsys.readouterr().out == text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    written = lines[lines.index("logical plan") + 1 : lines.index("")]
    here = "tests/unit/dataflow/plan/test_explain.py"
    assert [line.split(f" {here}")[0] for line in written] == [
        "1 source never, endless, event time ts - 4s",
        "2 select + x = amount * 2 <- 1",
        "3 filter user == 'a' <- 2",
        "4 aggregate by user tumbling 1m total = sum(x), n = count(*) <- 3",
        "5 map half <- 4",
        "6 sink collect <- 5",
    ]
    assert (
        "(user: string, window_start: timestamp[us], window_end: timestamp[us], total: double, n: int64)" in written[3]
    )
    assert written[4].endswith("columns known at run")
    assert "optimised (push filters down, aggregate before exchange)" in lines
    assert "physical plan (parallelism 2)" in lines
    assert any("hash by user" in line for line in lines)


def test_what_explain_gives_does_not_fill_a_console() -> None:
    text = orders().explain()
    assert repr(text).startswith("<plan, ")
    assert "logical plan" in text


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"memory": "512MB", "cpu": 2}, "filter user == 'a' memory 512MB cpu 2 <- 1"),
        ({"memory": "1GiB"}, "filter user == 'a' memory 1GiB <- 1"),
        ({"memory": 1_000_001}, "filter user == 'a' memory 1000001B <- 1"),
        ({"cpu": 0.5}, "filter user == 'a' cpu 0.5 <- 1"),
    ],
)
def test_what_a_step_wants_is_shown(wanted: dict[str, Any], said: str) -> None:
    text = orders().filter(col("user") == "a").with_resources(**wanted).explain()
    assert said in " ".join(text.split())


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (lambda: orders().window(sliding(60, 10)).count(), "aggregate sliding 1m every 10s count = count(*)"),
        (lambda: orders().window(session(gap_seconds=30)).count(), "aggregate session 30s"),
        (lambda: orders().window(count(10, 5)).count(), "aggregate every 5 of 10 rows"),
        (lambda: orders().window(count(10)).count(), "aggregate 10 rows"),
        (lambda: orders().join(orders(), on="user", within=("-5s", "10s")), "join inner on user within -5s to 10s"),
        (lambda: orders().asof_join(orders(), on="user", tolerance="1m"), "join left on user as of backward, 1m away"),
        (lambda: orders().join(orders(), "user", "user", window=tumbling(seconds=5)), "join inner on user tumbling 5s"),
        (lambda: orders().join(orders(), on="user", ttl="1h"), "join inner on user ttl 1h"),
        (lambda: orders().join(orders(), on="user", broadcast=True), "join inner on user broadcast"),
        (lambda: Stream.merge(orders(), orders(), by="ts"), "merge by ts"),
        (lambda: orders().key_by("user").process(half), "process by user half"),
        (lambda: orders().apply(Same), "custom Same"),
        (lambda: orders().records().flat_map(half), "records flat_map half"),
        (lambda: orders().filter(half).with_parallelism(3), "filter half x3"),
        (lambda: orders().distinct("user"), "distinct by user"),
        (lambda: orders().key_by("user").batches(), "key-by by user"),
        (lambda: orders().window(tumbling(seconds=1)).count().side_output("late"), "sideoutput late"),
    ],
)
def test_every_step_has_words(stream: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in stream().explain()


def test_pictures(tmp_path: Path) -> None:
    stream = orders().filter(col("user") == 'say "hi"')
    text = stream.visualize()
    assert text.startswith("digraph plan {")
    assert text.count("->") == 2
    assert 'say \\"hi\\"' in text  # quotes inside a label are kept from ending it
    stream.visualize(str(tmp_path / "plan.dot"))
    assert (tmp_path / "plan.dot").read_text().startswith("digraph plan {")


def test_a_drawing_needs_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(UnavailableError, match="Graphviz is not installed") as caught:
        orders().visualize(str(tmp_path / "plan.svg"))
    assert ".dot" in caught.value.hint
    assert not (tmp_path / "plan.svg").exists()


def test_a_drawing_is_one(tmp_path: Path) -> None:
    if shutil.which("dot") is None:
        do_without("Graphviz is not installed: apt-get install graphviz")
    orders().visualize(str(tmp_path / "plan.svg"))
    assert "<svg" in (tmp_path / "plan.svg").read_text()
    orders().visualize(str(tmp_path / "plan.png"))
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["plan.jpeg", "plan"])
def test_text_is_not_written_under_the_name_of_something_else(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidError, match=r"must end in one of \.dot, \.gv, \.svg, \.png, \.pdf"):
        orders().visualize(str(tmp_path / name))
    assert not (tmp_path / name).exists()
