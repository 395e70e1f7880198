from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.entropy import SeededEntropy
from shoal.core.retry import Backoff


def test_delays_grow_to_the_cap() -> None:
    backoff = Backoff(first=0.5, cap=4.0, factor=2.0)
    assert [backoff.plain_delay(failures) for failures in range(6)] == [0.0, 0.5, 1.0, 2.0, 4.0, 4.0]


@given(
    failures=st.integers(-5, 10**9),
    first=st.floats(0, 100),
    cap=st.floats(0, 1000),
    factor=st.floats(1, 1e6),
    jitter=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_no_delay_is_negative_or_longer_than_the_cap(
    *, failures: int, first: float, cap: float, factor: float, jitter: float, seed: int
) -> None:
    backoff = Backoff(first=first, cap=cap, factor=factor, jitter=jitter)
    plain = backoff.plain_delay(failures)
    drawn = backoff.delay(failures, SeededEntropy(seed))
    assert 0 <= plain <= cap
    assert (1 - jitter) * plain - 1e-9 <= drawn <= plain
    assert plain <= backoff.plain_delay(failures + 1)
