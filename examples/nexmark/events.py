"""The streams that the queries begin with, and what a query gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from schemas import SCHEMAS

from shoal import Stream, col, lit

ARRIVAL = "arrival"
#: The names of the steps that are looked at when a run is over: the merge, and those that find rows late.
MERGED = "merged"
LATE_STEPS = "windows-of-"


class InputError(Exception):
    """The folder is not what it should be."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a query gives: its rows, and the windowed steps that put late rows of each file aside."""

    rows: Stream
    windows: Mapping[str, Stream] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Events:
    """A folder of events, as streams."""

    folder: Path
    #: Rows may be so many milliseconds behind the newest one before them.
    lateness_ms: int

    def persons(self) -> Stream:
        """Those who join."""
        return self._file("person")

    def auctions(self) -> Stream:
        """What they sell."""
        return self._file("auction")

    def bids(self) -> Stream:
        """What they bid."""
        return self._file("bid")

    def merged(self, first: Stream, second: Stream) -> Stream:
        """Two files in the order in which their rows arrived."""
        return Stream.merge(first, second, by=ARRIVAL).uid(MERGED)

    def timed(self, stream: Stream) -> Stream:
        """A stream whose windows are made of the time of its rows."""
        # However long a machine pauses: a file that has not ended has more rows, and time waits for them.
        return stream.event_time("date_time", disorder=timedelta(milliseconds=self.lateness_ms), idle_after=None)

    def _file(self, name: str) -> Stream:
        path = self.folder / f"{name}.parquet"
        schema = SCHEMAS[name]
        check_file(path, schema)
        return Stream.from_parquet(str(path), schema=schema).uid(name)


def late_rows(windows: Stream, name: str) -> Stream:
    """What a windowed step put aside, as the late output wants it."""
    return windows.side_output("late").select(stream=lit(name), arrival=col(ARRIVAL))


def check_file(path: Path, schema: Any) -> None:
    """Refuse a file that is not there, is no Parquet, or has other columns."""
    try:
        found = pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: {error}") from error
    for wanted in schema:
        if wanted.name not in found.names:
            raise InputError(f"{path} has no column {wanted.name!r}")
        kind = found.field(wanted.name).type
        if not _is_alike(kind, wanted.type):
            raise InputError(f"{path}: column {wanted.name!r} is {kind}, not {wanted.type}")


def _is_alike(found: Any, wanted: Any) -> bool:
    """Texts may be laid out in any way."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return found == wanted or (wanted == pa.string() and any(each(found) for each in texts))
