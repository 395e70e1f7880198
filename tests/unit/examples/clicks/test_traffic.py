"""Traffic is the same each time, from any sender and any beginning."""

from __future__ import annotations

from itertools import islice

from clicks.traffic import ADS, CHUNK, LONGEST_DELAY, USUAL_DELAY, chunks, click, impression

START = 1_700_000_000_000


def test_a_sender_that_begins_in_the_middle_sends_the_same() -> None:
    whole = list(islice(chunks(START), 200))
    for first in (1, 30, 77, 150, 199):
        assert list(islice(chunks(START, first), 200 - first)) == whole[first:]


def test_every_event_arrives_once_and_in_its_chunk() -> None:
    seen: list[tuple[str, int]] = []
    for number, (impressions, clicks) in enumerate(islice(chunks(START), 300)):
        for event in (*impressions, *clicks):
            assert START + number * CHUNK <= event.arrives_at < START + (number + 1) * CHUNK
        seen += [("impression", each.impression) for each in impressions]
        seen += [("click", each.click) for each in clicks]
    assert len(seen) == len(set(seen))
    # All that must have arrived by then has.
    end = START + 300 * CHUNK
    numbers = range((300 * CHUNK - USUAL_DELAY) // 2)
    assert {("impression", each) for each in numbers} <= set(seen)
    clicks_due = [made for each in numbers if (made := click(START, each)) is not None and made.arrives_at < end]
    assert {("click", each.click) for each in clicks_due} <= set(seen)


def test_it_has_everything_that_makes_streams_hard() -> None:
    made = [each for number in range(5000) if (each := click(START, number)) is not None]
    assert {impression(START, number).ad for number in range(5000)} == set(ADS)
    assert [each.arrives_at for each in made] != sorted(each.arrives_at for each in made)
    assert any(500 < each.delay <= LONGEST_DELAY for each in made)
    assert any(each.clicked_at - (START + each.impression * 2) > 2000 for each in made)
    assert 0.1 < len(made) / 5000 < 0.4
