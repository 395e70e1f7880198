"""What a journal means depends on the order of its entries and on nothing else; what must never happen never does."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from shoal.topics.local.history import snapshots
from shoal.topics.local.history.entries import (
    ChunkDraft,
    CloseWriter,
    Commit,
    CreateTopic,
    DeleteTopic,
    EndSession,
    Entry,
    JoinGroup,
    LeaveGroup,
    MemberFence,
    OpenSession,
    OpenWriter,
    Roll,
    Stamp,
    Trim,
    decode,
    encode,
)
from shoal.topics.local.history.replay import Chunk, State, Verdict, replay

sessions = st.sampled_from(["s1", "s2", "s3"])
writers = st.sampled_from(["w1", "w2"])
groups = st.sampled_from(["g1", "g2"])
names = st.sampled_from(["t1", "t2"])
small = st.integers(0, 4)


def draft(topic: int, author: str, **rest: int) -> ChunkDraft:
    """A writer has a segment for each topic."""
    return ChunkDraft(topic=topic, segment=f"x-{author}-{topic}", **rest)


drafts = st.builds(
    draft,
    topic=st.integers(1, 4),
    author=st.sampled_from(["s1", "s2", "s3"]),
    partition=st.integers(0, 2),
    position=st.integers(0, 1000),
    length=st.integers(1, 100),
    rows=st.integers(1, 5),
    checksum=st.integers(0, 2**32 - 1),
)
entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        CreateTopic,
        name=names,
        partitions=st.integers(1, 3),
        retention_us=st.none() | small,
        retention_bytes=st.none() | small,
    ),
    st.builds(DeleteTopic, topic=st.integers(1, 4)),
    st.builds(OpenSession, session=sessions),
    st.builds(OpenSession, session=sessions),
    st.builds(EndSession, session=sessions),
    st.builds(OpenWriter, session=sessions, writer=writers),
    st.builds(CloseWriter, session=sessions, writer=writers, epoch=small),
    st.builds(
        Commit,
        session=sessions,
        writer=writers | st.just(""),
        epoch=small,
        at_us=st.integers(0, 10**6),
        chunks=st.lists(drafts, max_size=3).map(tuple),
        offsets=st.lists(st.tuples(groups, st.integers(1, 4), st.integers(0, 2), small), max_size=2).map(tuple),
        fence=st.none() | st.builds(MemberFence, group=groups, member=st.sampled_from(["m1", "m2"]), generation=small),
    ),
    st.builds(
        JoinGroup,
        session=sessions,
        group=groups,
        member=st.sampled_from(["m1", "m2"]),
        topics=st.lists(names).map(tuple),
    ),
    st.builds(LeaveGroup, session=sessions, group=groups, member=st.sampled_from(["m1", "m2"])),
    st.builds(
        Trim,
        topic=st.integers(1, 4),
        partition=st.integers(0, 2),
        since=small,
        first=st.integers(0, 20),
        freed=st.integers(0, 100),
    ),
)
# Most of what is random is void; a log in which something happens begins like this.
prologue: list[Entry] = [
    CreateTopic("t1", 2, None, None),
    OpenSession("s1"),
    OpenSession("s2"),
    OpenWriter("s1", "w1"),
    JoinGroup("s1", "g1", "m1", ("t1", "t2")),
]
journals = st.lists(entries, max_size=40).map(lambda some: prologue + some)


@given(entries, st.integers(0, 10**9))
def test_an_entry_is_read_as_it_was_written(entry: Entry, number: int) -> None:
    assert decode(encode(entry, Stamp("author", number))) == (Stamp("author", number), entry)


@given(journals)
def test_offsets_are_dense_and_only_grow(journal: list[Entry]) -> None:
    state = State()
    seen: dict[tuple[int, int, int], Chunk] = {}
    for entry in journal:
        before = {
            (topic.number, number): (partition.first, partition.following)
            for topic in state.topics.values()
            for number, partition in enumerate(topic.partitions)
        }
        state.apply(entry)
        for topic in state.topics.values():
            for number, partition in enumerate(topic.partitions):
                first, following = before.get((topic.number, number), (0, 0))
                assert first <= partition.first <= partition.following
                assert following <= partition.following
                at = partition.following
                for chunk in reversed(partition.chunks):
                    assert chunk.end == at
                    at = chunk.start
                    assert seen.setdefault((topic.number, number, chunk.start), chunk) == chunk
                assert at <= partition.first or not partition.chunks
                assert partition.starts == [chunk.start for chunk in partition.chunks]


@given(journals)
def test_what_a_dead_session_or_a_fenced_writer_says_is_void(journal: list[Entry]) -> None:
    state = State()
    alive: set[str] = set()
    holder: dict[str, tuple[str, int]] = {}
    for entry in journal:
        outcome = state.apply(entry)
        valid = outcome.verdict is Verdict.VALID
        if isinstance(entry, OpenSession):
            alive.add(entry.session)
        elif isinstance(entry, EndSession):
            alive.discard(entry.session)
            holder = {name: held for name, held in holder.items() if held[0] != entry.session}
        elif isinstance(entry, OpenWriter) and valid:
            assert outcome.value > max((epoch for _, epoch in holder.values()), default=0)
            holder[entry.writer] = (entry.session, outcome.value)
        elif isinstance(entry, CloseWriter) and valid:
            assert holder.pop(entry.writer) == (entry.session, entry.epoch)
        if isinstance(entry, Commit | OpenWriter | JoinGroup) and entry.session not in alive:
            assert outcome.verdict is Verdict.SESSION_ENDED
        if isinstance(entry, Commit) and valid and entry.writer:
            assert holder[entry.writer] == (entry.session, entry.epoch)
        if isinstance(entry, Commit) and valid and entry.fence:
            group = state.groups[entry.fence.group]
            assert (group.generation, entry.fence.member in group.members) == (entry.fence.generation, True)


@given(journals)
def test_a_void_entry_changes_nothing(journal: list[Entry]) -> None:
    state = State()
    for entry in journal:
        before = copy.deepcopy(state)
        if state.apply(entry).verdict is not Verdict.VALID:
            assert state == before


@given(journals)
def test_partitions_belong_to_live_members(journal: list[Entry]) -> None:
    state = replay(journal)
    for group in state.groups.values():
        assert all(member.session in state.sessions for member in group.members.values())
        assert set(group.owners.values()) <= group.members.keys()
        wanted = {name for member in group.members.values() for name in member.topics} & state.numbers.keys()
        expected = {
            (state.numbers[n], p) for n in wanted for p in range(len(state.topics[state.numbers[n]].partitions))
        }
        assert group.owners.keys() == expected
        assert all(state.partition(*partition) is not None for partition in group.offsets)


@given(journals)
def test_generations_only_grow_while_a_group_lives(journal: list[Entry]) -> None:
    state = State()
    for entry in journal:
        before = {name: (group.generation, dict(group.owners)) for name, group in state.groups.items()}
        state.apply(entry)
        for name, group in state.groups.items():
            generation, owners = before.get(name, (0, {}))
            assert group.generation >= generation
            assert group.owners == owners or group.generation > generation


@given(journals)
def test_a_segment_is_known_as_long_as_something_in_it_can_be_read(journal: list[Entry]) -> None:
    state = replay(journal)
    readable: dict[str, set[int]] = {}
    for topic in state.topics.values():
        for number, partition in enumerate(topic.partitions):
            for chunk in partition.chunks:
                if chunk.end > partition.first:
                    readable.setdefault(chunk.segment, set()).add(number)
    for name, numbers in readable.items():
        assert numbers <= state.segments[name].ends.keys()
    assert all(segment.topic in state.topics and segment.ends for segment in state.segments.values())


@given(journals, st.data())
def test_going_on_from_a_snapshot_is_going_on(journal: list[Entry], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(journal)))
    whole, first = replay(journal), replay(journal[:cut])
    taken = snapshots.take(first, 7)
    second = snapshots.load(taken.document)
    assert chunks_of(second, {7: taken.chunks}) == chunks_of(first, {})
    for entry in journal[cut:]:
        second.apply(entry)
    assert chunks_of(second, {7: taken.chunks}) == chunks_of(whole, {})
    for state in (whole, second):
        for topic in state.topics.values():
            for partition in topic.partitions:
                partition.chunks, partition.starts, partition.index = [], [], []
    assert second == whole


def test_nothing_counts_behind_the_end_of_a_journal() -> None:
    state = replay([*prologue, Roll(), CreateTopic("t9", 1, None, None)])
    assert state.rolled
    assert "t9" not in state.numbers


def chunks_of(state: State, index: dict[int, list[Chunk]]) -> dict[tuple[int, int], list[Chunk]]:
    """What can be read of each partition, wherever it is written down."""
    found: dict[tuple[int, int], list[Chunk]] = {}
    for topic in state.topics.values():
        for number, partition in enumerate(topic.partitions):
            old: Iterable[Chunk] = (
                chunk for part in partition.index for chunk in index[part.number][part.row : part.row + part.rows]
            )
            chunks = [chunk for chunk in [*old, *partition.chunks] if chunk.end > partition.first]
            found[topic.number, number] = chunks
    return found
