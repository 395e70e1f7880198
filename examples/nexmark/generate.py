"""Writes a folder of Nexmark events: `person.parquet`, `auction.parquet` and `bid.parquet`.

    python examples/nexmark/generate.py --events 1000000 --seed 7 --disorder-ms 4000 --output events/

The same arguments give the same rows. Of each 50 events one is a person, three are auctions and 46 are bids. Rows are
out of order by no more than `--disorder-ms`, some by exactly that; some lie on the edges of windows, and a millisecond
before them. Half of the bids go to a few hot auctions, the rest mostly to recent ones; bids come before their auction,
after its expiry, or name one that never comes. Half of the persons never sell. In the middle nothing happens for 25 s.
With `--late-rows` so many rows are `--late-by-ms` behind the newest row before them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from schemas import SCHEMAS

#: 2026-03-01T00:00:05: windows begin before the first row.
_BEGIN_MS = 1_772_323_205_000
_SILENCE_MS = 25_000
#: Starts and ends of windows are multiples of this.
_EDGE_MS = 2_000
_PERSONS, _AUCTIONS, _TURN = 1, 3, 50
_FIRST_ID = 1_000
#: Rows that are made at once: what bounds memory.
_BLOCK = 1_000_000
_STATES = ("OR", "ID", "CA", "WA", "AZ", "WY")
_CITIES = ("Portland", "Boise", "San José", "Kent", "Phoenix", "Cheyenne", "Zürich", "東京", "Łódź")
_GIVEN = ("Peter", "Paul", "Luke", "Zoë", "Łukasz", "Saul", "Vicky", "Kate", "Jürgen", "美咲")
_FAMILY = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Ñúñez", "Noris", "佐藤")
_WORDS = (
    "red",
    "old",
    "größer",
    "tiny",
    "東",
    "naïve",
    "brass",
    "left",
    "quick",
    "écru",
    "plain",
    "🐟",
    "lamp",
    "chair",
)


@dataclass(frozen=True, slots=True)
class EventOptions:
    """What to write."""

    events: int
    seed: int
    disorder_ms: int
    #: 0: so many that the events take some minutes.
    per_second: float = 0
    late_rows: int = 0
    late_by_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Stage:
    """Where and when each event happens: its time, and who has come before it."""

    #: Milliseconds since 1970, by arrival.
    times: Any
    #: Events of a ten-second window, about.
    per_window: float

    @property
    def events(self) -> int:
        """How many there are."""
        return len(self.times)


def main(arguments: list[str] | None = None) -> int:
    """Write a folder. The exit status."""
    parser = argparse.ArgumentParser(description="Write a folder of Nexmark events.")
    parser.add_argument("--events", type=int, required=True, help="how many, of all three kinds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--disorder-ms", type=int, default=0, help="how far rows are behind the newest before them")
    parser.add_argument("--output", type=Path, required=True, help="the folder")
    parser.add_argument(
        "--events-per-second", type=float, default=0, help="of event time; by default they take minutes"
    )
    parser.add_argument("--late-rows", type=int, default=0, help="so many rows come far too late")
    parser.add_argument("--late-by-ms", type=int, default=60_000, help="how late those are")
    said = parser.parse_args(arguments)
    if min(said.events, said.disorder_ms, said.events_per_second, said.late_rows, said.late_by_ms, said.seed) < 0:
        parser.error("numbers must not be below 0")
    options = EventOptions(
        said.events, said.seed, said.disorder_ms, said.events_per_second, said.late_rows, said.late_by_ms
    )
    try:
        write_folder(options, said.output)
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def write_folder(options: EventOptions, folder: Path) -> None:
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(options.seed)
    stage = make_stage(options, generator)
    texts = _Texts(generator)
    makers = {"person": _persons, "auction": _auctions, "bid": _bids}
    for name, make in makers.items():
        with pq.ParquetWriter(folder / f"{name}.parquet", SCHEMAS[name]) as writer:
            for arrivals in _blocks(name, stage.events):
                columns = make(arrivals, stage, texts, generator)
                columns["date_time"] = stage.times[arrivals]
                columns["arrival"] = arrivals
                writer.write_batch(_batch(columns, SCHEMAS[name]))


# ---------------------------------------------------------------------------------------------------------
# Time


def make_stage(options: EventOptions, generator: np.random.Generator) -> Stage:
    """The time of every event. Some events lead; the others are behind the newest leader, never more than allowed."""
    events = options.events
    if not events:
        return Stage(np.zeros(0, np.int64), 1)
    rate = options.per_second or events / (300 + events / 20_000)
    leads = generator.random(events) < (0.25 if options.disorder_ms else 1.1)
    leads[0] = True
    steady = _BEGIN_MS + (np.arange(events) * (1000 / rate)).astype(np.int64)
    steady[events // 2 :] += _SILENCE_MS
    leaders = _on_edges(steady[leads])
    newest = leaders[np.cumsum(leads) - 1]
    times = np.where(leads, newest, newest - _delays(events, options.disorder_ms, generator))
    times = _some_on_edges(times, newest, leads, options.disorder_ms, generator)
    _make_late(times, options, generator)
    return Stage(times, max(1.0, rate * 10))


def _on_edges(leaders: Any) -> Any:
    """The first leader behind an edge is on it, the last one before it a millisecond before it; the order stays."""
    edges = np.arange(leaders[0] // _EDGE_MS + 1, leaders[-1] // _EDGE_MS + 1) * _EDGE_MS
    places = np.searchsorted(leaders, edges)
    moved = leaders.copy()
    moved[places - 1] = np.maximum(moved[places - 1], np.minimum(edges - 1, moved[places - 1] + _EDGE_MS // 20))
    moved[places] = np.maximum(edges, moved[places] - _EDGE_MS // 20)
    return np.maximum.accumulate(moved)


def _delays(events: int, disorder: int, generator: np.random.Generator) -> Any:
    """Most rows are a little behind, some are as far as may be."""
    delays = (generator.random(events) ** 3 * disorder).astype(np.int64)
    delays[generator.random(events) < 0.01] = disorder
    return delays


def _some_on_edges(times: Any, newest: Any, leads: Any, disorder: int, generator: np.random.Generator) -> Any:
    """Some of those that do not lead lie on the edge before them, or a millisecond before it, where that may be."""
    draw = generator.random(len(times))
    wanted = times // _EDGE_MS * _EDGE_MS - (draw < 0.01)
    may = ~leads & (draw < 0.02) & (newest - wanted <= disorder)
    return np.where(may, wanted, times)


def _make_late(times: Any, options: EventOptions, generator: np.random.Generator) -> None:
    """Rows far behind the newest row before them, not before there is one that is so much newer than the first."""
    newest = np.maximum.accumulate(times)
    may = np.flatnonzero(newest - times[0] > options.late_by_ms + 20_000)
    if options.late_rows and len(may):
        chosen = generator.choice(may, min(options.late_rows, len(may)), replace=False)
        times[chosen] = newest[chosen - 1] - options.late_by_ms - generator.integers(0, 10_000, len(chosen))


# ---------------------------------------------------------------------------------------------------------
# Rows


class _Texts:
    """Texts to choose from."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._pool = pa.array([_phrase(generator, 2 + number % 9) for number in range(4_000)])
        self._items = pa.array([_phrase(generator, 2) for _ in range(1_000)])

    def extras(self, rows: int, generator: np.random.Generator) -> Any:
        """Some are null."""
        places = pa.array(generator.integers(0, len(self._pool), rows), mask=generator.random(rows) < 0.2)
        return self._pool.take(places)

    def phrases(self, rows: int, generator: np.random.Generator) -> Any:
        """None is null."""
        return self._pool.take(pa.array(generator.integers(0, len(self._pool), rows)))

    def items(self, rows: int, generator: np.random.Generator) -> Any:
        """Short ones."""
        return self._items.take(pa.array(generator.integers(0, len(self._items), rows)))


def _phrase(generator: np.random.Generator, words: int) -> str:
    return " ".join(_WORDS[place] for place in generator.integers(0, len(_WORDS), words))


def _blocks(name: str, events: int) -> Iterator[Any]:
    """The arrivals of one kind of event, some at a time."""
    first, end = {"person": (0, _PERSONS), "auction": (_PERSONS, _PERSONS + _AUCTIONS)}.get(
        name, (_PERSONS + _AUCTIONS, _TURN)
    )
    step = _BLOCK // _TURN * _TURN
    for start in range(0, events, step):
        arrivals = np.arange(start, min(start + step, events))
        turn = arrivals % _TURN
        yield arrivals[(turn >= first) & (turn < end)]


def _count_before(arrivals: Any, first: int, count: int) -> Any:
    """How many events of a kind have come before each arrival."""
    turns, turn = np.divmod(arrivals, _TURN)
    return turns * count + np.clip(turn - first, 0, count)


def _persons(arrivals: Any, stage: Stage, texts: _Texts, generator: np.random.Generator) -> dict[str, Any]:
    rows = len(arrivals)
    numbers = _count_before(arrivals, 0, _PERSONS)
    names = _paired(_GIVEN, _FAMILY, " ", generator, rows)
    return {
        "id": numbers + _FIRST_ID,
        "name": names,
        "email": _joined(names.cast(pa.string()), "@example.org"),
        "credit_card": pa.array(generator.integers(10**15, 10**16, rows)).cast(pa.string()),
        "city": _chosen(_CITIES, generator, rows),
        "state": _chosen(_STATES, generator, rows),
        "extra": texts.extras(rows, generator),
    }


def _auctions(arrivals: Any, stage: Stage, texts: _Texts, generator: np.random.Generator) -> dict[str, Any]:
    rows = len(arrivals)
    numbers = _count_before(arrivals, _PERSONS, _AUCTIONS)
    opening = generator.integers(1, 100_000, rows)
    lasts = (generator.random(rows) ** 2 * 30_000).astype(np.int64) + generator.integers(0, 2, rows) * 10_000
    return {
        "id": numbers + _FIRST_ID,
        "item_name": texts.items(rows, generator),
        "description": texts.phrases(rows, generator),
        "initial_bid": opening,
        "reserve": opening + generator.integers(0, 100_000, rows),
        "expires": stage.times[arrivals] + lasts,
        "seller": _sellers(arrivals, stage, generator),
        "category": 10 + generator.integers(0, 5, rows),
        "extra": texts.extras(rows, generator),
    }


def _sellers(arrivals: Any, stage: Stage, generator: np.random.Generator) -> Any:
    """Every second person sells. Most sellers are new, a few are busy, some come later than what they sell."""
    rows = len(arrivals)
    last = _count_before(arrivals, 0, _PERSONS)
    draw = generator.random(rows)
    recent = last - (generator.random(rows) ** 2 * 40).astype(np.int64)
    hot = last // 100 * 100
    coming = last + generator.integers(1, 4, rows)
    chosen = np.where(draw < 0.2, hot, np.where(draw < 0.95, recent, coming))
    return np.maximum(chosen, 0) // 2 * 2 + _FIRST_ID


def _bids(arrivals: Any, stage: Stage, texts: _Texts, generator: np.random.Generator) -> dict[str, Any]:
    rows = len(arrivals)
    # Prices have a ceiling that is reached about once in a window: by nobody in some, by several in others.
    share = generator.random(rows)
    price = np.where(share < 2 / stage.per_window, 10_000_000, (10 ** (2 + share * 4.9)).astype(np.int64))
    people = _count_before(arrivals, 0, _PERSONS)
    bidder = np.where(generator.random(rows) < 0.5, people // 10 * 10, people - generator.integers(0, 1_000, rows))
    return {
        "auction": _bid_for(arrivals, stage.events, generator),
        "bidder": np.maximum(bidder, 0) + _FIRST_ID,
        "price": price,
        "extra": texts.extras(rows, generator),
    }


def _bid_for(arrivals: Any, events: int, generator: np.random.Generator) -> Any:
    """Half of the bids go to hot auctions, others to recent ones, to some that come later, to some that never do."""
    rows = len(arrivals)
    last = _count_before(arrivals, _PERSONS, _AUCTIONS) - 1
    draw = generator.random(rows)
    hot = last // 50 * 50
    recent = last - (generator.random(rows) ** 3 * 300).astype(np.int64)
    coming = last + generator.integers(1, 8, rows)
    never = events + generator.integers(0, 1_000, rows)
    chosen = np.select([draw < 0.5, draw < 0.97, draw < 0.995], [hot, recent, coming], never)
    return np.maximum(chosen, 0) + _FIRST_ID


def _chosen(values: tuple[str, ...], generator: np.random.Generator, rows: int) -> Any:
    return pa.array(values).take(pa.array(generator.integers(0, len(values), rows)))


def _paired(first: tuple[str, ...], second: tuple[str, ...], by: str, generator: np.random.Generator, rows: int) -> Any:
    return _chosen(tuple(f"{one}{by}{two}" for one in first for two in second), generator, rows)


def _joined(texts: Any, ending: str) -> Any:
    unique = texts.dictionary_encode()
    made = pa.array([f"{text.replace(' ', '.')}{ending}" for text in unique.dictionary.to_pylist()], pa.string())
    return made.take(unique.indices)


def _batch(columns: dict[str, Any], schema: Any) -> Any:
    arrays = []
    for field in schema:
        column = columns[field.name]
        array = column if isinstance(column, pa.Array) else pa.array(column)
        if pa.types.is_timestamp(field.type):
            array = array.view(field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


if __name__ == "__main__":
    sys.exit(main())
