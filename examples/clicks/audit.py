"""Whether the results are right: what was sent joined and counted once more, in plain Python. Pure.

`expect` says what must come of traffic, `audit` compares it with what came. Every click within reach of its impression
has to be joined once. The one excuse for a click that was not is that it was on the way for longer than the program
waits and stands in `late`; nobody else's may be missing, and nothing may be there twice. Called by
`shoal.cli.local.demo_stream`; knows no topic and no engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from clicks.traffic import Click, Impression, chunks


@dataclass(frozen=True, slots=True)
class Rules:
    """What the program was told. Milliseconds."""

    within: int = 2000
    window: int = 2000
    disorder: int = 500


@dataclass(frozen=True, slots=True)
class Total:
    """A row of `rates`."""

    ad: str
    window_start: int
    shown: int
    clicked: int


@dataclass(frozen=True, slots=True)
class Sent:
    """Everything that was sent, once."""

    impressions: dict[int, Impression]
    clicks: dict[int, Click]


@dataclass(frozen=True, slots=True)
class Came:
    """Everything that came of it: clicks in `joined`, rows of `rates`, clicks in `late`."""

    joined: Sequence[int]
    totals: Sequence[Total]
    late: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong; nothing, if all of it is empty."""

    lost: tuple[int, ...] = ()
    """Clicks that should have been joined, and were not."""
    doubled: tuple[int, ...] = ()
    """Clicks that were joined more than once."""
    invented: tuple[int, ...] = ()
    """Clicks that were joined, and should not have been."""
    totals: tuple[str, ...] = ()
    """Windows whose totals are wrong, missing, or there twice."""

    @property
    def good(self) -> bool:
        """Whether nothing is."""
        return not (self.lost or self.doubled or self.invented or self.totals)

    def __str__(self) -> str:
        counts = {"lost": self.lost, "doubled": self.doubled, "invented": self.invented, "wrong totals": self.totals}
        return ", ".join(f"{len(found)} {what}" for what, found in counts.items() if found) or "nothing"


def sent(start: int, count: int) -> Sent:
    """What stands in the first chunks of traffic."""
    impressions: dict[int, Impression] = {}
    clicks: dict[int, Click] = {}
    for shown, clicked in islice(chunks(start), count):
        impressions.update((each.impression, each) for each in shown)
        clicks.update((each.click, each) for each in clicked)
    return Sent(impressions, clicks)


def expect(sent: Sent, rules: Rules) -> frozenset[int]:
    """The clicks that belong to their impression."""
    return frozenset(number for number, each in sent.clicks.items() if _belongs(each, sent, rules))


def _belongs(click: Click, sent: Sent, rules: Rules) -> bool:
    shown = sent.impressions.get(click.impression)
    return shown is not None and 0 <= click.clicked_at - shown.shown_at <= rules.within


def audit(sent: Sent, came: Came, rules: Rules) -> Findings:
    """Compare what came with what must come."""
    wanted = expect(sent, rules)
    counts = Counter(came.joined)
    excused = {number for number in came.late if number in wanted and sent.clicks[number].delay > rules.disorder}
    return Findings(
        lost=tuple(sorted(wanted - counts.keys() - excused)),
        doubled=tuple(sorted(number for number, times in counts.items() if times > 1)),
        invented=tuple(sorted(counts.keys() - wanted)),
        totals=tuple(_wrong_totals(sent, came, rules)),
    )


def count(sent: Sent, joined: Collection[int], rules: Rules) -> dict[tuple[int, str], tuple[int, int]]:
    """Impressions and joined clicks by window and ad: the one at its own time, the other at its own."""
    totals: dict[tuple[int, str], list[int]] = {}
    for shown in sent.impressions.values():
        totals.setdefault((_window(shown.shown_at, rules), shown.ad), [0, 0])[0] += 1
    for number in set(joined) & sent.clicks.keys():
        click = sent.clicks[number]
        if shown_for := sent.impressions.get(click.impression):
            totals.setdefault((_window(click.clicked_at, rules), shown_for.ad), [0, 0])[1] += 1
    return {place: (shown, clicked) for place, (shown, clicked) in totals.items()}


def _window(time: int, rules: Rules) -> int:
    return time // rules.window * rules.window


def _wrong_totals(sent: Sent, came: Came, rules: Rules) -> Iterator[str]:
    wanted = count(sent, came.joined, rules)
    seen: dict[tuple[int, str], list[Total]] = {}
    for total in came.totals:
        seen.setdefault((total.window_start, total.ad), []).append(total)
    for place in sorted(wanted.keys() | seen.keys()):
        rows = [(each.shown, each.clicked) for each in seen.get(place, [])]
        if rows != [wanted.get(place)]:
            yield f"{place[1]} at {place[0]}: {rows} instead of {wanted.get(place)}"
