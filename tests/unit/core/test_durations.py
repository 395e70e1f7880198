from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.durations import RULE, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("0.5s", timedelta(milliseconds=500)),
        (" 10s ", timedelta(seconds=10)),
        ("5m", timedelta(minutes=5)),
        ("1.5h", timedelta(minutes=90)),
        ("8d", timedelta(days=8)),
        ("0.5d", timedelta(hours=12)),
        ("36500d", timedelta(days=36500)),
        ("0s", timedelta(0)),
        ("0.001ms", timedelta(microseconds=1)),
    ],
)
def test_durations_are_read(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "s",
        "-1s",
        "1 s",
        "1w",
        "36501d",
        "1e3s",
        ".5s",
        "1.s",
        "infs",
        "nans",
        "١s",
        "99999999h",
        "9" * 400 + "s",
    ],
)
def test_other_texts_are_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration") as raised:
        parse_duration(text)
    assert str(raised.value) == RULE
    assert "7d" in RULE
    assert "between 0s and 36500d" in RULE


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (timedelta(0), "0ms"),
        (timedelta(hours=3), "3h"),
        # Stored and sent, also to programs of the version before, which cannot read days.
        (timedelta(days=7), "168h"),
        (timedelta(seconds=90), "90s"),
        (timedelta(minutes=2), "2m"),
        (timedelta(milliseconds=1234567), "1234.567s"),
        (timedelta(microseconds=500), "0.5ms"),
        (0.25, "250ms"),
    ],
)
def test_durations_are_written(value: timedelta | float, expected: str) -> None:
    assert format_duration(value) == expected


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36500)))
def test_what_is_written_is_read_back_exactly(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value
