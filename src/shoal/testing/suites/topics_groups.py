"""The part of the conformance suite of topics about transactions and consumer groups."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from shoal.core.errors import InvalidError, NotFoundError, PreconditionError
from shoal.testing.suites.topics_kit import TopicsKit
from shoal.topics.base import Reset, TopicPartition, Topics, records, start_offsets
from shoal.topics.errors import FencedError, RebalancedError


class TransactionsSuite(TopicsKit):
    """Conformance of transactions."""

    # ------------------------------------------------------------------------------------------------
    # Transactions

    def test_a_transaction_is_visible_as_a_whole(self, topics: Topics, name: str) -> None:
        wanted = topics.create(name, partitions=2).topic_partitions()
        (second,) = topics.create(f"{name}-2").topic_partitions()
        with topics.reader() as reader, topics.writer(transactional_id=name) as writer:
            reader.assign({**dict.fromkeys(wanted, 0), second: 0})
            writer.begin()
            writer.append(name, records([b"a", b"b"]), partition=pa.array([0, 1], pa.int32()))
            writer.append(second.topic, records([b"c"]))
            writer.append(name, records([b"d"]), partition=0)
            writer.flush()
            assert list(reader.read(timeout=self.pause)) == []
            writer.commit()
            got = self.collect(reader, 4)
        assert sorted(value for value in self.values(got) if value) == [b"a", b"b", b"c", b"d"]
        assert self.values(each for each in got if each.topic_partition == wanted[0]) == [b"a", b"d"]

    def test_an_aborted_transaction_is_never_visible(self, topics: Topics, name: str) -> None:
        where = topics.create(name).topic_partitions()[0]
        with topics.writer(transactional_id=name) as writer:
            for commit in (False, True, False, True):
                writer.begin()
                writer.append(name, records([b"%d" % commit] * 3))
                writer.flush()
                if commit:
                    writer.commit(offsets={"kept": {where: 3}})
                else:
                    writer.abort()
            writer.begin()
            writer.append(name, records([b"left open"]))
        assert self.values(self.read(topics, {where: 0}, 6)) == [b"1"] * 6
        with topics.writer(transactional_id=name) as writer:
            writer.begin()
            writer.append(name, records([b"after"]))
            writer.commit()
        assert self.values(self.read(topics, {where: 0}, 7)) == [b"1"] * 6 + [b"after"]

    def test_offsets_are_stored_with_a_transaction_or_not_at_all(self, topics: Topics, name: str) -> None:
        one, other = topics.create(name, partitions=2).topic_partitions()
        with topics.writer(transactional_id=name) as writer:
            writer.begin()
            writer.append(name, records([b"x"]))
            writer.abort()
            assert topics.committed(name) == {}
            writer.begin()
            writer.append(name, records([b"x"]))
            writer.commit(offsets={name: {one: 5, other: 6}, f"{name}-marker": {one: 77}})
            assert self.until(lambda: topics.committed(name) == {one: 5, other: 6})
            assert topics.committed(f"{name}-marker") == {one: 77}
            writer.begin()
            writer.commit(offsets={name: {other: 9}})
            assert self.until(lambda: topics.committed(name) == {one: 5, other: 9})
            writer.begin()
            writer.commit()
            with pytest.raises(NotFoundError):
                writer.begin()
                writer.commit(offsets={name: {TopicPartition(f"{name}-none", 0): 1}})

    def test_calls_out_of_turn_are_refused(self, topics: Topics, name: str) -> None:
        topics.create(name)
        with topics.writer() as plain:
            for call in (plain.begin, plain.commit):
                with pytest.raises(PreconditionError):
                    call()
        with topics.writer(transactional_id=name) as writer:
            with pytest.raises(PreconditionError):
                writer.append(name, records([b"x"]))
            with pytest.raises(PreconditionError):
                writer.commit()
            writer.abort()
            writer.begin()
            with pytest.raises(PreconditionError):
                writer.begin()
            writer.append(name, records([b"x"]))
            writer.commit()
        assert self.values(self.read(topics, {TopicPartition(name, 0): 0}, 1)) == [b"x"]

    def test_a_newer_writer_fences_the_older(self, open_topics: Callable[[], Topics], name: str) -> None:
        topics, others = open_topics(), open_topics()
        where = topics.create(name).topic_partitions()[0]
        older = topics.writer(transactional_id=name)
        older.begin()
        older.append(name, records([b"old"]))
        older.flush()
        newer = others.writer(transactional_id=name)
        newer.begin()
        newer.append(name, records([b"new"]))
        newer.commit(offsets={name: {where: 1}})
        with pytest.raises(FencedError):
            older.append(name, records([b"old"]))
            older.commit(offsets={name: {where: 2}})
        with pytest.raises(FencedError):
            older.begin()
        assert self.values(self.read(topics, {where: 0}, 1)) == [b"new"]
        assert topics.committed(name) == {where: 1}
        older.close()
        newer.begin()
        newer.append(name, records([b"newer"]))
        newer.commit()
        assert self.values(self.read(topics, {where: 0}, 2)) == [b"new", b"newer"]

    def test_a_transaction_that_was_left_open_holds_up_nobody(
        self, open_topics: Callable[[], Topics], name: str
    ) -> None:
        topics = open_topics()
        where = topics.create(name).topic_partitions()[0]
        left = open_topics().writer(transactional_id=name)
        left.begin()
        left.append(name, records([b"left open"]))
        left.flush()
        with topics.writer() as plain:
            plain.append(name, records([b"plain"]))
            plain.flush()
        with open_topics().writer(transactional_id=name):
            assert self.values(self.read(topics, {where: 0}, 1)) == [b"plain"]


class GroupsSuite(TopicsKit):
    """Conformance of consumer groups."""

    # ------------------------------------------------------------------------------------------------
    # Groups

    def test_members_share_the_partitions(self, open_topics: Callable[[], Topics], name: str) -> None:
        topics = open_topics()
        wanted = set(topics.create(name, partitions=4).topic_partitions())
        with topics.member(name, [name]) as one:
            alone = self.assigned(one, lambda found: found.partitions == wanted)
            with open_topics().member(name, [name]) as other:
                assert one.member_id != other.member_id
                first, second = self.both(one, other, lambda a, b: len(a) == len(b) == 2)
                assert first.partitions | second.partitions == wanted
                assert first.generation == second.generation > alone.generation
            again = self.assigned(one, lambda found: found.partitions == wanted)
            assert again.generation > first.generation

    def test_a_group_of_several_topics(self, topics: Topics, name: str) -> None:
        first = topics.create(name, partitions=2).topic_partitions()
        second = topics.create(f"{name}-2", partitions=3).topic_partitions()
        with topics.member(name, [name, f"{name}-2"]) as member:
            assert self.assigned(member, lambda found: found.partitions == {*first, *second})

    def test_groups_do_not_know_each_other(self, topics: Topics, name: str) -> None:
        wanted = set(topics.create(name, partitions=2).topic_partitions())
        with topics.member(f"{name}-a", [name]) as one, topics.member(f"{name}-b", [name]) as other:
            for member in (one, other):
                assert self.assigned(member, lambda found: found.partitions == wanted)
            one.commit({TopicPartition(name, 0): 3})
            assert topics.committed(f"{name}-a") == {TopicPartition(name, 0): 3}
            assert topics.committed(f"{name}-b") == {}

    def test_a_group_goes_on_where_it_was(self, open_topics: Callable[[], Topics], name: str) -> None:
        topics = open_topics()
        one, other = topics.create(name, partitions=2).topic_partitions()
        with topics.writer() as writer:
            writer.append(name, records([b"a", b"b", b"c"]), partition=0)
            writer.append(name, records([b"d"]), partition=1)
            writer.flush()
        assert start_offsets(topics, name, [one, other]) == {one: 0, other: 0}
        assert start_offsets(topics, name, [one, other], otherwise=Reset.LATEST) == {one: 3, other: 1}
        with pytest.raises(InvalidError):
            start_offsets(topics, name, [one], otherwise=Reset.FAIL)
        with topics.member(name, [name]) as member:
            self.assigned(member, lambda found: len(found.partitions) == 2)
            member.commit({one: 2})
            member.commit({one: 1, other: 1})
        assert open_topics().committed(name) == {one: 1, other: 1}
        assert start_offsets(topics, name, [one]) == {one: 1}

    def test_a_commit_of_an_old_generation_is_refused(self, open_topics: Callable[[], Topics], name: str) -> None:
        topics = open_topics()
        where = topics.create(name, partitions=2).topic_partitions()[0]
        with topics.member(name, [name]) as one:
            self.assigned(one, lambda found: len(found.partitions) == 2)
            one.commit({where: 1})
            with open_topics().member(name, [name]) as other:
                self.moved_on(one, other)
                with pytest.raises(RebalancedError):
                    one.commit({where: 99})
                assert topics.committed(name) == {where: 1}
                first, second = self.both(one, other, lambda a, b: len(a) == len(b) == 1)
                (kept,) = first.partitions
                one.commit({kept: 5})
                assert topics.committed(name)[kept] == 5
                with pytest.raises(InvalidError):
                    one.commit(dict.fromkeys(second.partitions, 7))

    def test_a_transaction_of_an_old_generation_is_refused(self, open_topics: Callable[[], Topics], name: str) -> None:
        topics = open_topics()
        where = topics.create(name, partitions=2).topic_partitions()[0]
        output = topics.create(f"{name}-out").topic_partitions()[0]
        with topics.member(name, [name]) as one, topics.writer(transactional_id=name) as writer:
            self.assigned(one, lambda found: len(found.partitions) == 2)
            writer.begin()
            writer.append(output.topic, records([b"in time"]))
            writer.commit(offsets={name: {where: 1}}, member=one)
            writer.begin()
            writer.append(output.topic, records([b"too late"]))
            with open_topics().member(name, [name]) as other:
                self.moved_on(one, other)
                with pytest.raises(RebalancedError):
                    writer.commit(offsets={name: {where: 2}}, member=one)
                assert topics.committed(name) == {where: 1}
                self.both(one, other, lambda a, b: len(a) == len(b) == 1)
                writer.begin()
                writer.append(output.topic, records([b"in time again"]))
                writer.commit(offsets={name: {where: 2}}, member=one)
        assert self.values(self.read(topics, {output: 0}, 2)) == [b"in time", b"in time again"]

    def test_offsets_of_a_group_without_members_are_stored(self, topics: Topics, name: str) -> None:
        """Nobody has to join for it, and nothing else of the group changes."""
        topics.create(name, partitions=2)
        one, other = TopicPartition(name, 0), TopicPartition(name, 1)
        topics.store_offsets(f"{name}-group", {one: 3, other: 0})
        topics.store_offsets(f"{name}-group", {one: 5})
        assert topics.committed(f"{name}-group") == {one: 5, other: 0}

    def test_offsets_of_what_is_not_there_are_refused(self, topics: Topics, name: str) -> None:
        """Nothing is stored."""
        topics.create(name)
        with pytest.raises(NotFoundError):
            topics.store_offsets(f"{name}-group", {TopicPartition(name, 7): 1})
        with pytest.raises(InvalidError):
            topics.store_offsets(f"{name}-group", {TopicPartition(name, 0): -1})
        with pytest.raises(InvalidError):
            topics.store_offsets("", {TopicPartition(name, 0): 1})
        assert topics.committed(f"{name}-group") == {}

    def test_members_of_a_group_store_its_offsets_themselves(
        self, open_topics: Callable[[], Topics], name: str
    ) -> None:
        """Offsets from outside are refused."""
        topics, others = open_topics(), open_topics()
        topics.create(name)
        with topics.member(f"{name}-group", [name]) as member:
            self.assigned(member, lambda each: bool(each.partitions))
            with pytest.raises(PreconditionError):
                others.store_offsets(f"{name}-group", {TopicPartition(name, 0): 1})

    def test_deleting_a_topic_forgets_the_offsets_of_groups(self, topics: Topics, name: str) -> None:
        where = topics.create(name).topic_partitions()[0]
        with topics.member(name, [name]) as member:
            self.assigned(member, lambda found: found.partitions == {where})
            member.commit({where: 3})
        topics.delete(name)
        assert self.until(lambda: topics.committed(name) == {})
