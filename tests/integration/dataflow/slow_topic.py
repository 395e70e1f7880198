"""Topics for tests over processes, where nothing but files says what happened. Task hosts import this module."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from shoal.core.clock import Clock
from shoal.dataflow.connectors.base import Fetched, Split
from shoal.dataflow.connectors.topics.endpoints import TopicSource
from shoal.dataflow.language.elements import Schema


class SlowTopic(TopicSource):
    """A topic of two partitions. The second one brings one row until there is a file `go` beside the log.

    When the first one is held the file `held` is made.
    """

    def open_reader(self, splits: Sequence[Split], schema: Schema, *, clock: Clock) -> Any:
        """A reader of one partition."""
        reader = super().open_reader(splits, schema, clock=clock)
        fetch, hold = reader.fetch, reader.hold
        mine = splits[0].name
        rows = 0

        def slow(*, max_rows: int, timeout: float) -> Fetched | None:
            nonlocal rows
            if not Path(f"{self.broker}.go").exists():
                if mine == "1" and rows:
                    time.sleep(timeout)
                    return None
                time.sleep(0.005)
                max_rows = 1
            found = fetch(max_rows=max_rows, timeout=timeout)
            rows += 0 if found is None else found.batch.num_rows
            return found

        def held(names: Collection[str]) -> None:
            if "0" in names:
                Path(f"{self.broker}.held").touch()
            hold(names)

        reader.fetch, reader.hold = slow, held
        return reader


class CountedTopic(TopicSource):
    """A topic that writes down which process looked at its records for their columns."""

    def find_schema(self) -> Schema:
        """As ever."""
        with Path(f"{self.broker}.sampled").open("a") as file:
            file.write(f"{os.getpid()}\n")
        return super().find_schema()
