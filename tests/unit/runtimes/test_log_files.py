"""Log files: the exact bytes come back, in order, and never more than a bound is kept."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shoal.runtimes.log_files import (
    FILES,
    OLDEST,
    LogEntry,
    LogPosition,
    LogWriter,
    find_previous_run,
    find_since,
    find_tail,
    last_output,
    parse_entry,
    read_entries,
    read_position,
    resume,
    write_position,
)


class StepClock:
    """A millisecond passes with every look."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def boottime(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        self.now += 1
        return self.now


def read_from(directory: Path, position: LogPosition = OLDEST) -> tuple[list[LogEntry], LogPosition]:
    found: list[LogEntry] = []
    while True:
        entries, position, at_end = read_entries(directory, position)
        found += entries
        if at_end:
            return found, position


def text_of(entries: list[LogEntry], stream: str | None = None) -> bytes:
    chosen = [entry for entry in entries if stream in (None, entry.stream)]
    return b"".join(entry.text + (b"\n" if entry.ends_line else b"") for entry in chosen)


def tail(directory: Path, lines: int) -> bytes:
    return text_of(read_from(directory, find_tail(directory, lines))[0])


def test_an_entry_is_readable(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, StepClock())
    writer.write("stdout", b"one\ntwo")
    writer.write("stderr", b" and a half\n")
    writer.close()
    assert (tmp_path / "00000001.log").read_text().splitlines() == [
        "2027-01-15T08:00:00.001Z stdout F one",
        "2027-01-15T08:00:00.001Z stdout P two",
        "2027-01-15T08:00:00.002Z stderr F  and a half",
    ]


chunks = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=60)), max_size=30)


@given(chunks)
def test_the_exact_bytes_come_back(written: list[tuple[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        writer = LogWriter(Path(name), StepClock())
        for stream, chunk in written:
            writer.write(stream, chunk)
        writer.close()
        entries, _ = read_from(Path(name))
        assert text_of(entries) == b"".join(chunk for _, chunk in written)
        for stream in ("stdout", "stderr"):
            assert text_of(entries, stream) == b"".join(chunk for each, chunk in written if each == stream)


@given(chunks, st.integers(300, 2000))
def test_the_bound_is_kept_and_what_is_kept_is_the_end(written: list[tuple[str, bytes]], file_size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        writer = LogWriter(Path(name), StepClock(), file_size=file_size)
        for stream, chunk in written:
            writer.write(stream, chunk)
        writer.close()
        sizes = [path.stat().st_size for path in Path(name).iterdir()]
        assert len(sizes) <= FILES
        # A chunk is never split: of nothing but line ends it may be larger than so small a file.
        assert all(size <= max(file_size, 61 * 45) for size in sizes)
        everything = b"".join(chunk for _, chunk in written)
        assert everything.endswith(text_of(read_from(Path(name))[0]))


@given(
    st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), min_size=1, max_size=40), st.integers(1, 50)
)
def test_the_tail_is_the_last_lines(lines: list[bytes], count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        writer = LogWriter(Path(name), StepClock(), file_size=400)
        for line in lines:
            # In two writes, so that most lines are made of a part and a rest.
            writer.write("stdout", line[:7] or b"")
            writer.write("stdout", line[7:] + b"\n")
        writer.close()
        kept = text_of(read_from(Path(name))[0]).split(b"\n")[:-1]
        assert tail(Path(name), count) == b"".join(line + b"\n" for line in kept[-count:])


def test_an_unfinished_line_at_the_end_counts(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, StepClock())
    writer.write("stdout", b"one\ntwo\nthr")
    assert tail(tmp_path, 1) == b"thr"
    assert tail(tmp_path, 2) == b"two\nthr"
    writer.write("stdout", b"ee\n")
    assert tail(tmp_path, 1) == b"three\n"
    writer.close()


def test_a_long_file_is_read_backward_in_blocks(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, StepClock())
    for number in range(3000):
        writer.write("stdout", b"%d %s\n" % (number, b"x" * 100))
    writer.close()
    assert [line.split()[0] for line in tail(tmp_path, 2500).splitlines()] == [b"%d" % n for n in range(500, 3000)]


def test_a_reader_goes_on_over_rotation(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, StepClock(), file_size=200)
    position, read = OLDEST, b""
    for number in range(50):
        writer.write("stdout", b"line %d\n" % number)
        entries, position = read_from(tmp_path, position)
        read += text_of(entries)
    assert read == b"".join(b"line %d\n" % number for number in range(50))
    # One who was away too long goes on with what is left.
    stale = position
    for number in range(50, 100):
        writer.write("stdout", b"line %d\n" % number)
    late = text_of(read_from(tmp_path, stale)[0])
    assert late.endswith(b"line 99\n")
    assert 0 < late.count(b"\n") < 50
    writer.close()


def test_what_a_crash_tore_is_skipped(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, StepClock())
    writer.write("stdout", b"before\n")
    writer.close()
    with (tmp_path / "00000001.log").open("ab") as file:
        file.write(b"2027-01-15T08:00:00.001Z std")
    again = LogWriter(tmp_path, StepClock())
    again.write("stdout", b"after\n")
    again.close()
    assert text_of(read_from(tmp_path)[0]) == b"before\nafter\n"
    assert tail(tmp_path, 1) == b"after\n"


def test_lost_output_is_counted_and_never_raises(tmp_path: Path) -> None:
    (tmp_path / "00000001.log").symlink_to("/dev/full")
    writer = LogWriter(tmp_path, StepClock())
    writer.write("stdout", b"into nothing\n")
    writer.write("stdout", b"and again\n")
    assert writer.dropped == 23
    assert writer.error == "No space left on device"
    (tmp_path / "00000001.log").unlink()
    writer.close()
    writer.write("stdout", b"there is room\n")
    assert writer.error == ""
    writer.close()
    assert text_of(read_from(tmp_path)[0]) == (
        b"[shoal] 23 bytes of output were lost here: No space left on device\nthere is room\n"
    )


def test_the_last_output_is_that_of_the_run(tmp_path: Path) -> None:
    clock = StepClock()
    writer = LogWriter(tmp_path, clock)
    writer.write("stdout", b"of an earlier run\n")
    began = clock.now + 1
    writer.write("stdout", b"first ")
    writer.write("stderr", b"second\n")
    writer.close()
    assert last_output(tmp_path, since_ms=began, limit=100) == b"first second\n"
    assert last_output(tmp_path, since_ms=began, limit=4) == b"ond\n"
    assert last_output(tmp_path, since_ms=clock.now + 1, limit=100) == b""


@given(st.binary(max_size=80))
def test_no_line_breaks_the_reader(line: bytes) -> None:
    entry = parse_entry(line)
    assert entry is None or entry.stream in ("stdout", "stderr")


def test_a_directory_without_files_is_empty(tmp_path: Path) -> None:
    assert read_from(tmp_path / "nowhere") == ([], OLDEST)
    assert find_tail(tmp_path / "nowhere", 3) == OLDEST


def write_runs(directory: Path, *runs: bytes, file_size: int = 4000) -> list[bytes]:
    """Some runs with their output; what is kept of each in the end."""
    writer = LogWriter(directory, StepClock(), file_size=file_size)
    for number, output in enumerate(runs):
        writer.begin_run(f"web-{number}")
        for line in output.splitlines(keepends=True):
            writer.write("stdout", line)
    writer.close()
    return list(runs)


def test_the_mark_of_a_run_is_no_output(tmp_path: Path) -> None:
    write_runs(tmp_path, b"one\n", b"two\n")
    assert (tmp_path / "00000001.log").read_text().splitlines()[0] == "2027-01-15T08:00:00.001Z run F web-0"
    assert text_of(read_from(tmp_path)[0]) == b"one\ntwo\n"
    assert tail(tmp_path, 2) == b"one\ntwo\n"
    assert last_output(tmp_path, since_ms=0, limit=100) == b"one\ntwo\n"


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=6).map(lambda n: b"".join(b"%d\n" % i for i in n)), max_size=5),
    st.sampled_from([300, 4000]),
)
def test_the_previous_run_is_the_one_before_the_last(runs: list[bytes], file_size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        write_runs(Path(name), *runs, file_size=file_size)
        found = find_previous_run(Path(name))
        if len(runs) < 2:
            assert found is None
        elif found is None:  # its mark and its output were dropped with the oldest files
            assert len(list(Path(name).iterdir())) == FILES or not runs[-2]
        else:
            begin, end = found
            entries, position = [], begin
            while position < end:
                read, position, at_end = read_entries(Path(name), position)
                entries += [each for each in read if LogPosition(position.number, each.end) <= end]
                if at_end:
                    break
            assert runs[-2].endswith(text_of(entries))


def test_output_since_a_moment(tmp_path: Path) -> None:
    write_runs(tmp_path, b"one\n", b"two\nthree\n", file_size=60)
    stamps = [entry.stamp for entry in read_from(tmp_path)[0]]
    clock = StepClock()
    moments = [clock.wall_ms() for _ in range(8)]
    for moment in moments:
        kept = [text for text, stamp in zip((b"one\n", b"two\n", b"three\n"), stamps, strict=True)]
        at = f"2027-01-15T08:00:00.{moment - 1_800_000_000_000:03d}Z"
        wanted = b"".join(text for text, stamp in zip(kept, stamps, strict=True) if stamp >= at)
        assert text_of(read_from(tmp_path, find_since(tmp_path, moment))[0]) == wanted


def test_a_position_is_read_as_it_was_written() -> None:
    assert read_position(write_position(LogPosition(3, 1024))) == LogPosition(3, 1024)
    assert [read_position(text) for text in ("", ":", "1:", ":1", "a:1", "1:-1", "1:2:3", "²:1", "9" * 40 + ":1")] == (
        [None] * 9
    )


def test_every_entry_is_a_place_to_continue(tmp_path: Path) -> None:
    write_runs(tmp_path, b"one\ntwo\n", b"three\n", file_size=80)
    position, rest = OLDEST, text_of(read_from(tmp_path)[0])
    while True:
        entries, after, at_end = read_entries(tmp_path, position)
        for entry in entries:
            rest = rest.removeprefix(entry.text + b"\n")
            place = resume(tmp_path, LogPosition(after.number, entry.end))
            assert text_of(read_from(tmp_path, place)[0]) == rest
        if at_end:
            break
        position = after


def test_a_position_of_a_deleted_log_leads_to_the_beginning_of_the_new_one(tmp_path: Path) -> None:
    write_runs(tmp_path, b"new\n")
    assert resume(tmp_path, LogPosition(1, 5000)) == OLDEST
    assert resume(tmp_path, LogPosition(9, 0)) == OLDEST
    assert resume(tmp_path / "none", LogPosition(1, 10)) == OLDEST
    (tmp_path / "00000001.log").rename(tmp_path / "00000007.log")
    assert resume(tmp_path, LogPosition(2, 10)) == LogPosition(
        2, 10
    )  # dropped since: reading goes on with what is left


def test_a_full_disk_costs_the_mark_of_a_run_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no directory")
    LogWriter(tmp_path / "logs" / "web", StepClock()).begin_run("web-1")
