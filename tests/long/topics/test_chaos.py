"""Writers of the local log, killed and stopped at random: nothing is lost or doubled, and nobody sees two histories."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from shoal.topics.base import TopicPartition
from shoal.topics.local import LocalTopics
from tests.e2e.topics.actors import Actor

pytestmark = pytest.mark.e2e

WRITERS = 4
SECONDS = 40.0
WHERE = [TopicPartition("t", number) for number in range(2)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_exactly_once_whatever_happens_to_the_writers(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    directory = tmp_path / "log"
    with LocalTopics(directory) as topics, contextlib.ExitStack() as started:

        def start(name: str, count: int) -> Actor:
            actor = Actor("count_up", directory, name, count)
            started.callback(actor.kill)
            return actor

        topics.create("t", partitions=2)
        seen: dict[TopicPartition, list[bytes]] = {where: [] for where in WHERE}
        reader = topics.reader()
        reader.assign(dict.fromkeys(WHERE, 0))
        writers: dict[str, Actor | None] = {f"w{number}": None for number in range(WRITERS)}
        zombies: list[tuple[float, Actor]] = []

        def look(timeout: float) -> None:
            for fetched in reader.read(timeout=timeout):
                known = seen[fetched.topic_partition]
                assert fetched.batch["offset"][0].as_py() == len(known)
                known.extend(fetched.batch["value"].to_pylist())

        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            name = chance.choice(list(writers))
            actor = writers[name]
            if actor is None:
                writers[name] = start(name, 10**9)
            elif chance.random() < 0.6:
                actor.kill()
                writers[name] = None
            else:
                # Its successor begins while it sleeps; it wakes to find itself fenced.
                os.kill(actor.process.pid, signal.SIGSTOP)
                zombies.append((time.monotonic() + chance.uniform(0.1, 8.0), actor))
                writers[name] = None
            look(chance.uniform(0.2, 1.5))
            for due, zombie in list(zombies):
                if time.monotonic() > due:
                    zombie.wake()
                    zombies.remove((due, zombie))
        started.close()
        done = {name: topics.committed(name).get(WHERE[0], 0) for name in writers}
        for name, count in done.items():
            assert start(name, count + 5).wait() == 0
        with LocalTopics(directory) as others, others.reader() as again:
            again.assign(dict.fromkeys(WHERE, 0))
            found: dict[TopicPartition, list[bytes]] = {where: [] for where in WHERE}
            while batches := again.read():
                for fetched in batches:
                    found[fetched.topic_partition].extend(fetched.batch["value"].to_pylist())
        for where in WHERE:
            assert found[where][: len(seen[where])] == seen[where]
            for name, count in done.items():
                own = [value for value in found[where] if value.startswith(name.encode() + b":")]
                expected = [
                    b"%s:%d:%d" % (name.encode(), step, where.partition) for step in range(count + 5) for _ in range(2)
                ]
                assert own == expected
        assert sum(done.values()) > 0
