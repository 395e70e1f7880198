"""What workloads print: the keeper writes it, the agent reads it, both from here.

A log file is text, one entry per line, as the container world writes it:

    2026-01-31T12:00:00.250Z stdout F a whole line
    2026-01-31T12:00:00.311Z stderr P the beginning of a line that has no end y

`F` entries end a line, `P` entries do not, so the exact bytes can be put together again. An entry of the stream `run`
marks the start of a run; its text is the run's id. One of the stream `source` marks where one of several sources of a
run begins. Readers that do not know them skip them. Files are numbered and never
renamed, so that a reader cannot take one for another; after a full one comes the next number and the oldest is dropped.
The directory never holds more than `FILES` files of `FILE_SIZE`. A full disk costs output, counted and noted in the
log as soon as there is room; it never blocks or ends the workload.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.core.ids import RunId
from shoal.runtimes.clocks import KeeperClock, iso_millis

FILE_SIZE = 4 * 1024 * 1024
FILES = 4
#: Read from a pipe at once. An entry costs about 40 bytes more than its text: a chunk of nothing but line ends grows
#: to a third of a file, and no more.
CHUNK = 32 * 1024
_BLOCK = 128 * 1024
_SUFFIX = ".log"
_RUN = "run"
_SOURCE = "source"


class LogWriter:
    """The log files of one workload, on the keeper's side."""

    def __init__(self, directory: Path, clock: KeeperClock, *, file_size: int = FILE_SIZE) -> None:
        self._directory = directory
        self._clock = clock
        self._file_size = file_size
        self._handle = -1
        self._number = 0
        self._size = 0
        self._torn = False
        #: Bytes of output that could not be written, ever and since the last note about it.
        self.dropped = 0
        self._unnoted = 0
        #: Why the last write failed; empty when it did not.
        self.error = ""

    def write(self, stream: str, chunk: bytes, *, at_ms: int | None = None) -> None:
        """Append output, printed now or at a known time. Never raises on a disk that does not take it."""
        try:
            if self._unnoted:
                self._append(_entries(self._clock.wall_ms(), "stderr", self._note()))
                self._unnoted = 0
            self._append(_entries(self._clock.wall_ms() if at_ms is None else at_ms, stream, chunk))
            self.error = ""
        except OSError as error:
            self.dropped += len(chunk)
            self._unnoted += len(chunk)
            self.error = os.strerror(error.errno or 0)

    def begin_run(self, run_id: RunId) -> None:
        """Mark where the output of a run begins. A full disk costs the mark."""
        self._mark(_RUN, run_id)

    def begin_source(self, source: str) -> None:
        """Mark where the output of one of several sources of a run begins, such as a container."""
        self._mark(_SOURCE, source)

    def _mark(self, kind: str, text: str) -> None:
        with contextlib.suppress(OSError):
            self._append(f"{iso_millis(self._clock.wall_ms())} {kind} F {text}\n".encode())

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _note(self) -> bytes:
        return f"[shoal] {self._unnoted} bytes of output were lost here: {self.error}\n".encode()

    def _append(self, entries: bytes) -> None:
        if self._handle >= 0 and self._size and self._size + len(entries) >= self._file_size:
            self._begin(self._number + 1)
        elif self._handle < 0:
            self._begin(max(_numbers(self._directory), default=1))
        if self._torn:
            entries = b"\n" + entries
        rest = memoryview(entries)
        while rest:
            try:
                written = os.write(self._handle, rest)
            except OSError:
                # The disk took a part. What follows begins on a new line, and readers skip the torn one.
                self._torn = self._torn or len(rest) < len(entries)
                raise
            self._size += written
            rest = rest[written:]
        self._torn = False

    def _begin(self, number: int) -> None:
        """Go on with the file of this number, and drop those that are one too many: first, it may make room."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for old in _numbers(self._directory):
            if old <= number - FILES:
                _path(self._directory, old).unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        handle = os.open(_path(self._directory, number), flags, 0o640)
        self.close()
        self._handle, self._number = handle, number
        self._size = os.fstat(handle).st_size
        # A keeper that was killed while it wrote may have left a torn entry.
        self._torn = self._size > 0


def _entries(wall_ms: int, stream: str, chunk: bytes) -> bytes:
    stamp = iso_millis(wall_ms)
    whole, _, partial = chunk.rpartition(b"\n")
    lines = b""
    if whole or chunk.startswith(b"\n"):
        prefix = f"{stamp} {stream} F ".encode()
        lines = prefix + whole.replace(b"\n", b"\n" + prefix) + b"\n"
    if partial:
        lines += f"{stamp} {stream} P ".encode() + partial + b"\n"
    return lines


# ---------------------------------------------------------------------------------------------------------
# Reading


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log file."""

    stamp: str
    stream: str
    text: bytes
    ends_line: bool
    #: The offset after it in its file, when it was read from one.
    end: int = 0


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """A place in the log: the number of a file and an offset in it."""

    number: int
    offset: int


#: Before everything that is kept.
OLDEST = LogPosition(number=0, offset=0)


def parse_entry(line: bytes, end: int = 0) -> LogEntry | None:
    """Read one line of a log file; None for one that was torn by a crash or a full disk, and for the mark of a run."""
    parts = line.split(b" ", 3)
    if len(parts) != 4 or parts[2] not in (b"F", b"P") or parts[1] not in (b"stdout", b"stderr"):
        return None
    return LogEntry(parts[0].decode(errors="replace"), parts[1].decode(), parts[3], parts[2] == b"F", end)


def find_tail(directory: Path, lines: int, *, before: LogPosition | None = None) -> LogPosition:
    """Where the last so many lines begin, of all or before a position. An unfinished line at the end counts as one."""
    counted = 0
    newest = True
    place = OLDEST
    for number, offset, line in _backward(directory):
        entry = parse_entry(line)
        if entry is None or (before is not None and LogPosition(number, offset) >= before):
            continue
        if entry.ends_line or newest:
            counted += 1
        if counted > lines:
            return place
        newest = False
        place = LogPosition(number, offset)
    return OLDEST


def find_since(directory: Path, since_ms: int) -> LogPosition:
    """Where the output begins that was printed at or after a moment."""
    since = iso_millis(since_ms)
    place: LogPosition | None = None
    for number, offset, line in _backward(directory):
        entry = parse_entry(line)
        if entry is None:
            continue
        if entry.stamp < since:
            return place or LogPosition(number, offset + len(line) + 1)
        place = LogPosition(number, offset)
    return OLDEST


def find_previous_run(directory: Path) -> tuple[LogPosition, LogPosition] | None:
    """Where the output of the run before the last one begins and ends; None when none is kept."""
    last: LogPosition | None = None
    printed = False
    for number, offset, line in _backward(directory):
        if line.split(b" ", 2)[1:2] == [_RUN.encode()]:
            place = LogPosition(number, offset)
            if last is not None:
                return place, last
            last = place
        elif last is not None:
            printed = printed or parse_entry(line) is not None
    # The run that began before the oldest file that is kept has lost its mark.
    return (OLDEST, last) if last is not None and printed else None


def printed_by_run(directory: Path, run_id: RunId) -> int | None:
    """How many bytes of a run's output the log has; None when the run's mark is not there, or not any longer."""
    size = 0
    mark = _mark(run_id)
    for _, _, line in _backward(directory):
        if line.split(b" ", 3)[1:] == mark:
            return size
        entry = parse_entry(line)
        if entry is not None:
            size += len(entry.text) + entry.ends_line
    return None


def printed_by_source(directory: Path, source: str, prefix: bytes) -> dict[str, int] | None:
    """How many bytes of a source's output the log has, by stream; None when the source's mark is not there.

    Every line of the source begins with `prefix`, which is not counted.
    """
    sizes: dict[str, int] = {}
    mark = [_SOURCE.encode(), b"F", source.encode()]
    for _, _, line in _backward(directory):
        if line.split(b" ", 3)[1:] == mark:
            return sizes
        entry = parse_entry(line)
        if entry is not None and entry.text.startswith(prefix):
            size = len(entry.text) - len(prefix) + entry.ends_line
            sizes[entry.stream] = sizes.get(entry.stream, 0) + size
    return None


def write_position(position: LogPosition) -> str:
    """A position as text, for readers that continue later."""
    return f"{position.number}:{position.offset}"


def read_position(text: str) -> LogPosition | None:
    """A position from its text; None when it is none."""
    number, separator, offset = text.partition(":")
    digits = number + offset
    if not separator or not number or not offset or not digits.isascii() or not digits.isdigit() or len(digits) > 30:
        return None
    return LogPosition(int(number), int(offset))


def resume(directory: Path, position: LogPosition) -> LogPosition:
    """Where to continue after a position: from the beginning, if that log was deleted and another has begun."""
    try:
        is_kept = _path(directory, position.number).stat().st_size >= position.offset
    except OSError:
        is_kept = position.number < max(_numbers(directory), default=0)
    return position if is_kept else OLDEST


def read_entries(directory: Path, position: LogPosition) -> tuple[list[LogEntry], LogPosition, bool]:
    """The next block of entries after a position, the position after them, and whether this was the end for now."""
    numbers = _numbers(directory)
    if not numbers:
        return [], position, True
    if position.number < numbers[-1]:  # dropped meanwhile, or not begun: go on with the oldest that is left
        position = LogPosition(numbers[-1], 0)
    try:
        with _path(directory, position.number).open("rb") as file:
            file.seek(position.offset)
            block = file.read(_BLOCK)
    except FileNotFoundError:
        return [], position, position.number >= numbers[0]
    end = block.rfind(b"\n") + 1
    if end:
        entries, at = [], position.offset
        for line in block[: end - 1].split(b"\n"):
            at += len(line) + 1
            entry = parse_entry(line, at)
            if entry is not None:
                entries.append(entry)
        return entries, LogPosition(position.number, position.offset + end), False
    if position.number >= numbers[0]:
        return [], position, True
    # Listed before it was read to its end, so nothing more comes into this file: a newer one was there already.
    return [], LogPosition(position.number + 1, 0), False


def last_output(directory: Path, *, limit: int, since_ms: int = 0, run_id: RunId | None = None) -> bytes:
    """The end of what was printed since a moment, or by one run."""
    since = iso_millis(since_ms)
    mark = _mark(run_id) if run_id is not None else None
    pieces: list[bytes] = []
    size = 0
    for _, _, line in _backward(directory):
        if line.split(b" ", 3)[1:] == mark:
            break
        entry = parse_entry(line)
        if entry is None:
            continue
        if entry.stamp < since or size >= limit:
            break
        pieces.append(entry.text + (b"\n" if entry.ends_line else b""))
        size += len(pieces[-1])
    return b"".join(reversed(pieces))[-limit:]


def _mark(run_id: RunId) -> list[bytes]:
    """What follows the time in the mark of a run."""
    return [_RUN.encode(), b"F", run_id.encode()]


def _path(directory: Path, number: int) -> Path:
    return directory / f"{number:08d}{_SUFFIX}"


def _numbers(directory: Path) -> list[int]:
    """The numbers of the files that are kept, newest first."""
    stems = (path.name.removesuffix(_SUFFIX) for path in directory.glob(f"*{_SUFFIX}"))
    return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)


def _backward(directory: Path) -> Iterator[tuple[int, int, bytes]]:
    """(number of the file, offset, line) of every line, last first."""
    for number in _numbers(directory):
        try:
            file = _path(directory, number).open("rb")
        except FileNotFoundError:
            continue
        with file:
            end = file.seek(0, os.SEEK_END)
            carried = b""
            while end > 0:
                begin = max(0, end - _BLOCK)
                file.seek(begin)
                block = file.read(end - begin) + carried
                lines = block.split(b"\n")
                carried = lines.pop(0) if begin else b""
                offset = begin + len(block)
                for line in reversed(lines):
                    offset -= len(line)
                    yield number, offset, line
                    offset -= 1
                end = begin
