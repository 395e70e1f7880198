"""Lines of child processes: whole, named, and not more than a terminal can take."""

from __future__ import annotations

import pytest

from shoal.dataflow.execution.hosts.child_output import MOST_CHARACTERS, MOST_LINES, ChildOutput


def shown(*pieces: tuple[bytes, float]) -> list[str]:
    lines: list[str] = []
    output = ChildOutput("host 1", lines.append)
    for data, now in pieces:
        output.feed(data, now)
    output.finish()
    return lines


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_lines_are_whole_however_they_come(size: int) -> None:
    text = "one\ntwo: ü\r\n\nlast".encode()
    pieces = [(text[at : at + size], 0.0) for at in range(0, len(text), size)]
    assert shown(*pieces) == ["[host 1] one", "[host 1] two: ü", "[host 1] ", "[host 1] last"]


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert shown((b"\xff\xfe\n", 0.0)) == ["[host 1] \ufffd\ufffd"]


def test_what_comes_too_fast_is_counted() -> None:
    lines = shown((b"x\n" * (MOST_LINES + 7), 5.0), (b"y\n", 5.9), (b"z\n", 6.0))
    assert lines == [
        *["[host 1] x"] * MOST_LINES,
        "[host 1] … 8 more lines, which came too fast to show",
        "[host 1] z",
    ]
    assert shown((b"x\n" * (MOST_LINES + 1), 5.0))[-1] == "[host 1] … 1 more lines, which came too fast to show"


def test_a_long_line_is_cut_and_memory_is_bounded() -> None:
    assert shown((b"x" * (MOST_CHARACTERS + 3) + b"\n", 0.0)) == [
        f"[host 1] {'x' * MOST_CHARACTERS} … 3 more characters"
    ]
    lines: list[str] = []
    output = ChildOutput("host 1", lines.append)
    for _ in range(MOST_CHARACTERS):
        output.feed(b"x" * 10, 0.0)
    assert len(lines) >= 9  # without an end of line it is shown in parts
