"""The local log keeps what every backend of topics promises, also while its journals end all the time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.testing.suites.topics import TopicsSuite
from shoal.topics.base import Topics
from shoal.topics.local import Fsync, LocalLogSettings, LocalTopics


class LocalLog(TopicsSuite):
    settings = LocalLogSettings()
    patience = 10.0
    pause = 0.03

    @pytest.fixture
    def open_topics(self, tmp_path: Path) -> Iterator[Callable[[], Topics]]:
        with contextlib.ExitStack() as opened:
            yield lambda: opened.enter_context(LocalTopics(tmp_path, self.settings))


class TestLocalLog(LocalLog):
    __test__ = True


class TestLocalLogOfSmallFiles(LocalLog):
    """Everything that happens once in a while happens all the time."""

    __test__ = True
    settings = LocalLogSettings(
        fsync=Fsync.NEVER,
        segment_bytes=4096,
        journal_bytes=4096,
        upkeep_interval=timedelta(milliseconds=20),
        fsync_interval=timedelta(milliseconds=20),
    )
