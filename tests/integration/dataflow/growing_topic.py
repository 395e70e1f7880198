"""A source whose partitions appear while a job runs. In a module of its own, because task hosts import it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.dataflow.connectors.base import Split
from shoal.dataflow.connectors.topics.endpoints import TopicSource


class GrowingTopic(TopicSource):
    """A topic that has as many partitions as the file beside it says."""

    def find_splits(self) -> Sequence[Split]:
        """The first so many."""
        return super().find_splits()[: int(Path(f"{self.broker}.found").read_text())]
