"""A job with state in RocksDB, as a process of its own: `python rocks_job.py DATA_DIR [forever]`.

Says `running` when state is on disk. Counts what each key has, for ever or to the end of its few rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

from shoal import App, FlowSettings, FunctionContext, ProcessFunction, Record, Stream


class Counting(ProcessFunction):
    """How many records of its key there were."""

    def open(self, context: FunctionContext) -> None:
        """Have state."""
        self.total = context.value_state("total")
        self.has_told = False

    def process(self, record: Record, context: FunctionContext) -> Any:
        """Count it."""
        self.total.set((self.total.get() or 0) + 1)
        if not self.has_told:
            self.has_told = True
            print("running", flush=True)
        return {"key": record.key, "total": self.total.get()}


def main(data_dir: str, forever: str = "") -> None:
    """Run it."""
    app = App("counting", data_dir=data_dir, settings=FlowSettings(state="rocks", batch_rows=1))

    def rows() -> Iterator[dict[str, Any]]:
        yield from ({"key": f"k{number % 3}"} for number in (count() if forever else range(3)))

    @app.dataflow()
    def totals() -> Any:
        keyed = Stream.from_generator(rows, schema={"key": "string"}, bounded=not forever).key_by("key")
        return keyed.process(Counting, schema={"key": "string", "total": "int64"}).to_callback(lambda _batch: None)

    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
