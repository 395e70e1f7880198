"""The local log under real processes: many of them, killed and stopped where it hurts most."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.topics.base import TopicPartition, Topics, records
from shoal.topics.local import LocalTopics
from tests.e2e.topics.actors import Actor

pytestmark = pytest.mark.e2e

Start = Callable[..., Actor]
WHERE = [TopicPartition("t", number) for number in range(2)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    actors: list[Actor] = []

    def starting(role: str, *words: object, fault: str = "", prefix: tuple[str, ...] = ()) -> Actor:
        actors.append(Actor(role, tmp_path / "log", *words, fault=fault, prefix=prefix))
        return actors[-1]

    yield starting
    for actor in actors:
        actor.kill()


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[LocalTopics]:
    with LocalTopics(tmp_path / "log") as opened:
        opened.create("t", partitions=2)
        yield opened


def read_all(topics: Topics) -> dict[int, list[bytes]]:
    """Everything, by partition; offsets have no holes here."""
    found: dict[int, list[bytes]] = {where.partition: [] for where in WHERE}
    with topics.reader() as reader:
        reader.assign(topics.first_offsets(WHERE))
        while fetched := reader.read():
            for each in fetched:
                assert each.batch["offset"][0].as_py() == len(found[each.partition])
                found[each.partition] += each.batch["value"].to_pylist()
    assert reader.positions() == topics.next_offsets(WHERE)
    return found


def values(found: dict[int, list[bytes]]) -> list[bytes]:
    return found[0] + found[1]


def until(condition: Callable[[], object], seconds: float = 30.0) -> bool:
    clock = SystemClock()
    deadline = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > deadline:
            return False
    return True


def test_eight_writers(topics: LocalTopics, start: Start, tmp_path: Path) -> None:
    writers = [start("append", f"w{number}", 150, 3) for number in range(8)]
    assert [writer.wait() for writer in writers] == [0] * 8
    found = read_all(topics)
    assert len(values(found)) == 8 * 150 * 3
    for number in range(8):
        for partition in range(2):
            own = [value for value in found[partition] if value.startswith(b"w%d:" % number)]
            assert own == [
                b"w%d:%d:%d" % (number, step, each) for step in range(partition, 150, 2) for each in range(3)
            ]
    with LocalTopics(tmp_path / "log") as others:
        assert read_all(others) == found


@pytest.mark.parametrize(
    ("point", "visible"),
    [
        ("topics.append.before", 0),
        ("topics.append.written", 0),
        ("topics.entry.appended", 1),
        ("topics.append.after", 1),
        ("topics.roll.before", 1),
    ],
)
def test_killed_inside_an_append(topics: LocalTopics, start: Start, point: str, visible: int) -> None:
    at = 1 if point == "topics.roll.before" else 20
    writer = start("append", "w", 10_000, 3, fault=f"{point}=kill@{at}")
    assert writer.wait() == -signal.SIGKILL
    done = sum(line.startswith("done") for line in writer.lines)
    found = values(read_all(topics))
    # What was acknowledged is there; of what was not, all or nothing, as the point says.
    assert sorted(found) == sorted(b"w:%d:%d" % (step, each) for step in range(done + visible) for each in range(3))
    after = start("append", "after", 30, 1)
    assert after.wait() == 0
    assert sum(value.startswith(b"after") for value in values(read_all(topics))) == 30


def test_killed_inside_transactions_and_begun_again(topics: LocalTopics, start: Start) -> None:
    points = ["append.before", "append.written", "commit.before", "entry.appended", "roll.before"]
    for number, point in enumerate(points):
        count = 1 if point == "roll.before" else 7
        writer = start("count_up", "w", 40 * (number + 1), fault=f"topics.{point}=kill@{count}")
        assert writer.wait() == -signal.SIGKILL
    assert start("count_up", "w", 300).wait() == 0
    found = read_all(topics)
    for part in range(2):
        assert found[part] == [b"w:%d:%d" % (step, part) for step in range(300) for _ in range(2)]
    assert topics.committed("w") == {WHERE[0]: 300}


@pytest.mark.parametrize("transactional", ["yes", "no"])
def test_stopped_inside_an_append_and_woken(topics: LocalTopics, start: Start, transactional: str) -> None:
    mine = topics.member("g", ["t"])
    zombie = start("refused", "z", transactional, fault="topics.append.written=stop@10")
    zombie.expect("member 1")
    zombie.wait_stopped()
    clock = SystemClock()
    stopped = clock.monotonic()
    # It holds up nobody, not even before it is given up.
    with topics.writer() as writer:
        writer.append("t", records([b"at once"]), partition=0)
    assert b"at once" in values(read_all(topics))
    assert until(lambda: len(mine.poll(0.1).partitions) == 2)
    print(f"partitions of a stopped member moved after {clock.monotonic() - stopped:.1f} s")
    before = read_all(topics)
    zombie.wake()
    assert zombie.expect("refused") == "refused 9 FencedError"
    zombie.expect("commit refused RebalancedError")
    zombie.expect("again")
    after = read_all(topics)
    assert after[0] == [*before[0], b"z:again"]
    assert [value for value in after[0] if value.startswith(b"z:")] == [*(b"z:%d" % n for n in range(9)), b"z:again"]
    assert topics.committed("g") == {}
    assert topics.committed("marker") == ({WHERE[0]: 8} if transactional == "yes" else {})


def test_stopped_between_an_entry_and_its_answer(topics: LocalTopics, start: Start) -> None:
    """What was committed before its author was given up stays, and its author learns so."""
    mine = topics.member("g", ["t"])
    sleeper = start("refused", "z", "no", fault="topics.append.after=stop@10")
    sleeper.expect("member 1")
    sleeper.wait_stopped()
    assert until(lambda: len(mine.poll(0.1).partitions) == 2)
    sleeper.wake()
    assert sleeper.expect("refused") == "refused 10 FencedError"
    sleeper.expect("again")
    assert read_all(topics)[0] == [*(b"z:%d" % number for number in range(10)), b"z:again"]


def test_a_killed_member_is_replaced(topics: LocalTopics, start: Start) -> None:
    mine = topics.member("g", ["t"])
    assert len(mine.poll().partitions) == 2
    victim = start("belong", "g")
    victim.expect("has")
    assert until(lambda: len(mine.poll(0.1).partitions) == 1)
    clock = SystemClock()
    begun = clock.monotonic()
    victim.process.kill()
    assert until(lambda: len(mine.poll(0.1).partitions) == 2)
    print(f"partitions of a killed member moved after {clock.monotonic() - begun:.1f} s")


def test_a_limit_on_files(start: Start, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    actor = start("fill", "limit")
    assert actor.wait() == 0, actor.lines
    assert actor.lines[-1] == "works again"


def test_a_full_disk(start: Start, tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    alone = (unshare or "unshare", "--user", "--map-root-user", "--mount")
    if unshare is None or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets nobody mount a small disk; the limit on files is tested instead")
    (tmp_path / "log").mkdir()
    actor = start("fill", "tmpfs", prefix=alone)
    assert actor.wait() == 0, actor.lines
    assert actor.lines[-1] == "works again"
