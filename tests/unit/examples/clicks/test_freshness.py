"""How fresh results were, without and with what kills hold up."""

from __future__ import annotations

import math

from clicks.watch import Sample, calm, longest_silence, quantile

#: One click each tenth of a second; killed at 2.05, back at 3.05 with everything that waited.
SAMPLES = [
    Sample(number / 10, max(number / 10 + 0.01 * (number % 3 + 1), 3.05 if 20 <= number <= 30 else 0.0))
    for number in range(60)
]


def test_quantiles() -> None:
    assert math.isnan(quantile([], 0.5))
    assert quantile([Sample(0, 1)], 0.99) == 1
    assert [round(quantile([Sample(0, each) for each in range(100)], share)) for share in (0, 0.5, 0.99)] == [0, 50, 99]


def test_what_a_kill_held_up_is_not_calm() -> None:
    quiet = calm(SAMPLES, [2.05])
    assert [round(each.appended * 10) for each in quiet] == [*range(20), *range(31, 60)]
    assert max(each.seconds for each in quiet) < 0.04
    assert calm(SAMPLES, []) == SAMPLES


def test_how_long_nothing_came() -> None:
    assert round(longest_silence(SAMPLES, [2.05]), 2) == 1.0
    assert longest_silence(SAMPLES, []) == 0
    assert longest_silence(SAMPLES, [100.0]) == math.inf
