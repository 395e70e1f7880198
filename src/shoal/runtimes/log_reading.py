"""Reads the log files that the keeper writes, as pieces that answer a query. Called by `shoal.runtimes.process`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

from shoal.core.clock import Clock, epoch_ms
from shoal.core.errors import InvalidError, NotFoundError, problem
from shoal.core.ids import WorkloadId
from shoal.model.logs import LogPiece, LogQuery
from shoal.runtimes import log_files as logs
from shoal.runtimes.log_files import LogEntry, LogPosition

_FOLLOW_INTERVAL = 0.1
#: A piece ends after so many bytes, so that a reader who continues after one repeats little.
_PIECE = 64 * 1024


async def read_logs(directory: Path, workload_id: WorkloadId, query: LogQuery, clock: Clock) -> AsyncIterator[LogPiece]:
    """The pieces that a query asks for, oldest first. Raises `NotFoundError` and `InvalidError`."""
    position, end = await asyncio.to_thread(_find_part, directory, workload_id, query)
    while end is None or position < end:
        entries, after, at_end = await asyncio.to_thread(logs.read_entries, directory, position)
        if end is not None:
            entries = [each for each in entries if LogPosition(after.number, each.end) <= end]
        for piece in _pieces(entries, after.number, times=query.times):
            yield piece
        position = after
        if at_end:
            if not query.follow or end is not None or not await asyncio.to_thread(directory.is_dir):
                return
            await clock.sleep(_FOLLOW_INTERVAL)


def _find_part(directory: Path, workload_id: WorkloadId, query: LogQuery) -> tuple[LogPosition, LogPosition | None]:
    """Where to begin, and where to end; None: at the end of the log."""
    if not directory.is_dir():
        raise NotFoundError("workload", workload_id, hint="it has not run on this node")
    if query.after:
        position = logs.read_position(query.after)
        if position is None:
            raise InvalidError([problem("after", query.after, "must be the position of an earlier piece")])
        return logs.resume(directory, position), None
    begin, end = logs.OLDEST, None
    if query.previous:
        found = logs.find_previous_run(directory)
        if found is None:
            raise NotFoundError("previous run of workload", workload_id, hint="its log has the output of one run only")
        begin, end = found
    if query.since is not None:
        begin = max(begin, logs.find_since(directory, epoch_ms(query.since)))
    if query.tail_lines > 0:
        begin = max(begin, logs.find_tail(directory, query.tail_lines, before=end))
    return begin, end


def _pieces(entries: list[LogEntry], number: int, *, times: bool) -> list[LogPiece]:
    """Neighboring entries of one stream joined; of one stream and one time, if times count."""
    pieces: list[LogPiece] = []
    texts: list[bytes] = []
    size = 0
    for index, entry in enumerate(entries):
        texts.append(entry.text + b"\n" if entry.ends_line else entry.text)
        size += len(texts[-1])
        follower = entries[index + 1] if index + 1 < len(entries) else None
        is_joined = follower is not None and follower.stream == entry.stream and size < _PIECE
        if is_joined and (not times or (follower is not None and follower.stamp == entry.stamp)):
            continue
        pieces.append(
            LogPiece(
                data=b"".join(texts),
                stream=entry.stream,
                time=_time_of(entry) if times else None,
                position=logs.write_position(LogPosition(number, entry.end)),
            )
        )
        texts, size = [], 0
    return pieces


def _time_of(entry: LogEntry) -> datetime | None:
    try:
        return datetime.fromisoformat(entry.stamp)
    except ValueError:  # a damaged stamp costs the time, not the text
        return None
