"""A writer overtaken between deciding and writing is refused: the order in the journal decides, nobody's opinion."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.core import faults
from shoal.core.errors import PreconditionError
from shoal.topics.base import Fetched, Reset, TopicPartition, records
from shoal.topics.errors import FencedError, OffsetOutOfRangeError, RebalancedError
from shoal.topics.local import LocalTopics
from shoal.topics.local.history.entries import (
    ChunkDraft,
    Commit,
    CreateTopic,
    EndSession,
    OpenSession,
    OpenWriter,
    Roll,
    Stamp,
    Trim,
    encode,
)
from shoal.topics.local.history.replay import Verdict, replay

WHERE = TopicPartition("t", 0)


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[LocalTopics]:
    with LocalTopics(tmp_path) as opened:
        opened.create("t")
        yield opened


@pytest.fixture
def others(tmp_path: Path, topics: LocalTopics) -> Iterator[LocalTopics]:
    with LocalTopics(tmp_path) as opened:
        yield opened


def once(action) -> object:
    """Something to arm a fault point with that acts the first time only, because it reaches the point itself."""
    waiting = [action]

    def act(_name: str) -> None:
        if waiting:
            waiting.pop()()

    return act


@pytest.mark.parametrize("point", ["topics.append.before", "topics.append.written", "topics.commit.before"])
def test_a_writer_that_is_overtaken_while_it_writes(topics: LocalTopics, others: LocalTopics, point: str) -> None:
    writer = topics.writer(transactional_id="x")
    writer.begin()
    newer = []
    faults.arm(point, once(lambda: newer.append(others.writer(transactional_id="x"))))
    with pytest.raises(FencedError):  # noqa: PT012 - which of the two notices depends on the point
        writer.append("t", records([b"never"]))
        writer.commit(offsets={"g": {WHERE: 1}})
    assert newer
    assert others.next_offsets([WHERE]) == {WHERE: 0}
    assert others.committed("g") == {}
    with pytest.raises(FencedError):
        writer.begin()
    newer[0].begin()
    newer[0].append("t", records([b"new"]))
    newer[0].commit()
    assert topics.next_offsets([WHERE]) == {WHERE: 1}


def test_a_session_that_is_given_up_while_it_writes(topics: LocalTopics, others: LocalTopics) -> None:
    writer = topics.writer()
    writer.append("t", records([b"before"]))
    session = topics._live_session().name
    faults.arm("topics.append.written", once(lambda: others._view.submit(EndSession(session))))
    with pytest.raises(FencedError) as raised:
        writer.append("t", records([b"never"]))
    assert "taken for dead" in str(raised.value)
    assert others.next_offsets([WHERE]) == {WHERE: 1}
    with topics.writer() as again:
        again.append("t", records([b"after"]))
    assert others.next_offsets([WHERE]) == {WHERE: 2}


def test_a_group_that_moves_on_while_a_transaction_commits(topics: LocalTopics, others: LocalTopics) -> None:
    member = topics.member("g", ["t"])
    member.poll()
    writer = topics.writer(transactional_id="x")
    writer.begin()
    writer.append("t", records([b"never"]))
    faults.arm("topics.commit.before", once(lambda: others.member("g", ["t"])))
    with pytest.raises(RebalancedError):
        writer.commit(offsets={"g": {WHERE: 1}}, member=member)
    assert topics.next_offsets([WHERE]) == {WHERE: 0}
    assert topics.committed("g") == {}


def test_an_older_epoch_is_void() -> None:
    begin = [CreateTopic("t", 1, None, None), OpenSession("s"), OpenWriter("s", "w"), OpenWriter("s", "w")]
    draft = ChunkDraft(topic=1, partition=0, segment="x-s-1", position=0, length=8, rows=3, checksum=0)
    for epoch, verdict in (
        (0, Verdict.SUPERSEDED),
        (1, Verdict.SUPERSEDED),
        (2, Verdict.VALID),
        (3, Verdict.SUPERSEDED),
    ):
        state = replay(begin)
        commit = Commit("s", "w", epoch, at_us=0, chunks=(draft,), offsets=(), fence=None)
        assert state.apply(commit).verdict is verdict
        assert state.topics[1].partitions[0].following == (3 if verdict is Verdict.VALID else 0)


def test_of_two_who_trim_one_is_counted() -> None:
    drafts = tuple(ChunkDraft(1, 0, "x-s-1", position=8 * n, length=8, rows=1, checksum=0) for n in range(5))
    commit = Commit("s", "", 0, at_us=0, chunks=drafts, offsets=(), fence=None)
    state = replay([CreateTopic("t", 1, None, None), OpenSession("s"), commit])
    partition = state.topics[1].partitions[0]
    assert state.apply(Trim(1, 0, since=0, first=2, freed=16)).verdict is Verdict.VALID
    assert state.apply(Trim(1, 0, since=0, first=3, freed=24)).verdict is Verdict.NOTHING_TO_DO
    assert (partition.first, partition.length, len(partition.chunks)) == (2, 24, 3)
    assert state.apply(Trim(1, 0, since=2, first=5, freed=24)).verdict is Verdict.VALID
    assert (partition.first, partition.length, partition.chunks, state.segments) == (5, 0, [], {})


def test_what_a_sleeper_says_to_an_ended_journal_is_void(topics: LocalTopics, others: LocalTopics) -> None:
    journal = topics._view._journal
    others._view.submit(Roll())
    assert others._view.journal_number == 2
    journal.append(encode(CreateTopic("void", 1, None, None), Stamp("somebody", 1)))
    assert topics.names() == others.names() == ("t",)
    # Said by somebody who waits for the answer, it is said again where it counts.
    others._view.submit(Roll())
    topics.create("u")
    assert others.names() == ("t", "u")
    assert topics._view.journal_number == others._view.journal_number == 3


def test_the_next_journal_does_not_begin_with_what_is_void(topics: LocalTopics, others: LocalTopics) -> None:
    journal = topics._view._journal
    journal.append(encode(Roll(), Stamp("somebody", 1)))
    journal.append(encode(CreateTopic("void", 1, None, None), Stamp("somebody", 2)))
    assert topics.names() == others.names() == ("t",)
    assert topics._view.journal_number == others._view.journal_number == 2


@pytest.mark.parametrize(("reset", "position"), [(Reset.EARLIEST, 0), (Reset.LATEST, 3)])
def test_a_topic_made_anew_is_another_topic(
    topics: LocalTopics, others: LocalTopics, reset: Reset, position: int
) -> None:
    with topics.writer() as writer, topics.reader(reset=reset) as reader, topics.reader() as strict:
        writer.append("t", records([b"old"] * 2))
        for each in (reader, strict):
            each.assign({WHERE: 0})
            assert each.read(max_records=1)[0].batch.num_rows == 1
        others.delete("t")
        others.create("t")
        writer.append("t", records([b"new"] * 3))
        with pytest.raises(OffsetOutOfRangeError):
            strict.read()
        found = [value for each in reader.read() for value in each.batch["value"].to_pylist()]
        assert found == [b"new"] * (3 - position)
        assert reader.positions() == {WHERE: 3}


def test_closing_ends_those_who_wait(topics: LocalTopics) -> None:
    reader, member = topics.reader(), topics.member("g", ["t"])
    reader.assign({WHERE: 0})
    member.poll()
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(reader.read, timeout=60.0), threads.submit(member.poll, 60.0)]
        topics.close()
        for each in waiting:
            with pytest.raises(PreconditionError):
                each.result()
    reader.wake()


def test_a_read_that_is_closed_while_it_looks_does_not_find_nothing(
    topics: LocalTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = topics.reader()
    reader.assign({WHERE: 0})
    fetch = reader._fetch

    def close_meanwhile(*limits: int) -> list[Fetched]:
        found = fetch(*limits)
        reader._closed = True  # as `close` does in another thread, which then waits for this read
        reader.wake()
        return found

    monkeypatch.setattr(reader, "_fetch", close_meanwhile)
    with pytest.raises(PreconditionError):
        reader.read(timeout=60.0)


def test_a_fork_cannot_write_with_its_parents_log(topics: LocalTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics._view, "_process", -1)
    with pytest.raises(PreconditionError):
        topics.create("u")
    monkeypatch.undo()
    topics.create("u")
