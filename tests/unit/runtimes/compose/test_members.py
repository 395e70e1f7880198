"""What the containers of a project say of its run."""

from __future__ import annotations

import pytest

from shoal.runtimes.compose.members import Member, MemberState, judge, stop_waves
from shoal.runtimes.compose.output import LineCutter
from shoal.runtimes.container.records import RunEnd

OK, CRASH, LATE_CRASH = RunEnd(ended_at_ms=5), RunEnd(code=3, ended_at_ms=7), RunEnd(signal=9, ended_at_ms=9)
GONE = RunEnd(unknown=True, ended_at_ms=1)


def state(service: str, end: RunEnd | None = None) -> MemberState:
    return MemberState(Member(f"c-{service}", service, 1, 1, 1), is_running=end is None, end=end)


@pytest.mark.parametrize(
    ("states", "words", "has_failed", "end"),
    [
        ([state("a"), state("b")], {"a": "running", "b": "running"}, False, None),
        ([state("a"), state("b", OK)], {"a": "running", "b": "exited (0)"}, False, None),
        ([state("a", OK), state("b", OK)], {"a": "exited (0)", "b": "exited (0)"}, False, OK),
        ([state("a"), state("b", CRASH)], {"a": "running", "b": "exited (3)"}, True, None),
        ([state("a", LATE_CRASH), state("b", CRASH)], {"a": "killed by signal 9", "b": "exited (3)"}, True, CRASH),
        ([state("a", OK), state("b", GONE)], {"a": "exited (0)", "b": "missing"}, True, GONE),
        ([state("a")], {"a": "running", "b": "missing"}, True, None),
        ([], {"a": "missing", "b": "missing"}, True, RunEnd(unknown=True)),
        ([state("a"), state("a", CRASH), state("b")], {"a": "exited (3)", "b": "running"}, True, None),
    ],
)
def test_a_run_is_judged_by_its_containers(
    states: list[MemberState], words: dict[str, str], has_failed: bool, end: RunEnd | None
) -> None:
    verdict = judge(states, ["a", "b"])
    assert (dict(verdict.services), verdict.has_failed, verdict.end) == (words, has_failed, end)


@pytest.mark.parametrize(
    ("services", "waves"),
    [
        ({"a": {}, "b": {}}, (("a", "b"),)),
        ({"db": {}, "web": {"depends_on": ["db"]}}, (("web",), ("db",))),
        ({"db": {}, "web": {"depends_on": {"db": {}}, "links": ["x:y"]}, "x": {}}, (("web",), ("db", "x"))),
        ({"a": {"depends_on": ["b"]}, "b": {"depends_on": ["a"]}}, (("a", "b"),)),
    ],
)
def test_services_stop_before_what_they_need(
    services: dict[str, dict[str, object]], waves: tuple[tuple[str, ...], ...]
) -> None:
    assert stop_waves(services) == waves


def test_lines_of_several_containers_are_told_apart() -> None:
    lines = LineCutter(b"web | ")
    assert lines.feed("stdout", b"one\ntw") == b"web | one\n"
    assert lines.feed("stderr", b"err\n") == b"web | err\n"
    assert lines.feed("stdout", b"o\n") == b"web | two\n"
    assert lines.feed("stdout", b"rest") == b""
    assert lines.rest() == [("stdout", b"web | rest\n")]


def test_a_line_without_an_end_is_cut() -> None:
    lines = LineCutter(b"web | ")
    written = lines.feed("stdout", b"x" * 40_000)
    assert written.count(b"web | ") == 2
    assert len(lines.rest()[0][1]) < 16 * 1024


def test_a_single_container_is_copied_as_it_is() -> None:
    lines = LineCutter(b"")
    assert lines.feed("stdout", b"one\ntw") == b"one\ntw"
    assert lines.rest() == []
