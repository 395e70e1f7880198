"""Who counts as dead, when, and what becomes of what they say."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from shoal.topics.base import TopicPartition, records
from shoal.topics.errors import FencedError, RebalancedError
from shoal.topics.local import LocalLogSettings, LocalTopics
from shoal.topics.local.leases import HeldLease, Lease, is_over, read_lease
from tests.unit.topics.local.clocks import StoppedClock

BOOT = "b" * 36


@pytest.mark.parametrize(
    ("lease", "patient", "over"),
    [
        (Lease(BOOT, until=10.0, locked=True), False, False),
        (Lease(BOOT, until=4.9, locked=True), False, True),
        (Lease(BOOT, until=4.9, locked=True), True, False),
        (Lease(BOOT, until=10.0, locked=False), True, True),
        (Lease("c" * 36, until=10.0, locked=True), True, True),
        (None, True, True),
    ],
)
def test_when_a_lease_is_over(lease: Lease | None, patient: bool, over: bool) -> None:
    assert is_over(lease, boot=BOOT, now=5.0, patient=patient) is over


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert read_lease(path) is None
    held = HeldLease(path, BOOT, 12.5)
    assert read_lease(path) == Lease(BOOT, until=12.5, locked=True)
    held.renew(99.25)
    assert read_lease(path) == Lease(BOOT, until=99.25, locked=True)
    held.close()
    assert read_lease(path) is None
    path.write_bytes(b"torn")
    assert is_over(read_lease(path), boot=BOOT, now=0.0, patient=True)


def test_a_dead_member_is_noticed_within_five_seconds() -> None:
    settings = LocalLogSettings()
    # A lease, the wait until somebody looks, and a second for a busy process.
    assert settings.lease + settings.check_interval + timedelta(seconds=1) <= timedelta(seconds=5)
    # A process that is alive has several chances to say so.
    assert settings.lease >= 5 * settings.check_interval


class TestAStoppedProcess:
    """Two processes, of which one stands still: its clock does, so its renewals say what they said before."""

    @pytest.fixture
    def clock(self) -> StoppedClock:
        return StoppedClock()

    def test_is_refused_everything_when_it_wakes(self, tmp_path: Path, clock: StoppedClock) -> None:
        with LocalTopics(tmp_path, clock=StoppedClock()) as stopped, LocalTopics(tmp_path, clock=clock) as others:
            where = others.create("t", partitions=1).topic_partitions()[0]
            plain = stopped.writer()
            plain.append("t", records([b"before"]))
            transactional = stopped.writer(transactional_id="x")
            transactional.begin()
            transactional.append("t", records([b"never"]))
            member = stopped.member("g", ["t"])
            assert member.poll().partitions == {where}
            mine = others.member("g", ["t"])
            member.poll()

            clock.seconds += 3.0
            others._live_session().end_dead_sessions()
            assert mine.poll().partitions == frozenset()
            clock.seconds += 1.0
            others._live_session().end_dead_sessions()
            assert mine.poll().partitions == {where}

            with pytest.raises(RebalancedError):
                member.commit({where: 1} if where in member._last.partitions else {})
            with pytest.raises(FencedError):
                plain.append("t", records([b"never"]))
            with pytest.raises(FencedError):
                transactional.commit(offsets={"g": {where: 1}})
            assert others.committed("g") == {}
            assert others.next_offsets([where]) == {where: 1}

            # It may begin again: a new session, a new writer, a member with a newer generation.
            fresh = stopped.writer()
            fresh.append("t", records([b"after"]))
            assert member.poll().generation > mine._last.generation
            assert others.next_offsets([where]) == {where: 2}
            mine.close()
            assert member.poll().partitions == {where}
            member.commit({where: 2})
            assert others.committed("g") == {where: 2}

    def test_that_closes_leaves_at_once(self, tmp_path: Path) -> None:
        with LocalTopics(tmp_path) as others:
            others.create("t", partitions=2)
            mine = others.member("g", ["t"])
            with LocalTopics(tmp_path) as closing:
                closing.member("g", ["t"])
                assert len(mine.poll().partitions) == 1
            assert len(mine.poll().partitions) == 2

    def test_that_hangs_loses_its_partitions(self, tmp_path: Path, clock: StoppedClock) -> None:
        with LocalTopics(tmp_path, clock=clock) as topics:
            where = topics.create("t").topic_partitions()[0]
            hung, other = topics.member("g", ["t"]), topics.member("g", ["t"])
            assert hung.poll().partitions == {where}
            clock.seconds += 200
            assert other.poll().partitions == frozenset()
            clock.seconds += 200
            topics._find_hung_members()
            assert other.poll().partitions == {where}
            with pytest.raises(RebalancedError):
                hung.commit({where: 1})
            assert hung.poll().generation > 0

    def test_that_was_asleep_itself_judges_nobody_at_once(self, tmp_path: Path) -> None:
        lease = HeldLease(tmp_path / "s", BOOT, 10.0)
        found = read_lease(tmp_path / "s")
        assert not is_over(found, boot=BOOT, now=1000.0, patient=True)
        assert is_over(found, boot=BOOT, now=1000.0, patient=False)
        lease.close()


def test_a_topic_that_comes_later_is_shared_when_it_comes(tmp_path: Path) -> None:
    with LocalTopics(tmp_path) as topics:
        member = topics.member("g", ["later"])
        assert member.poll().partitions == frozenset()
        topics.create("later", partitions=2)
        assert member.poll(5.0).partitions == {TopicPartition("later", 0), TopicPartition("later", 1)}
        topics.delete("later")
        assert member.poll(5.0).partitions == frozenset()
