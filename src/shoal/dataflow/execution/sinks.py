"""A sink as the last step of a chain: drives a connector's `SinkWriter` through write, prepare and commit.

Made by `shoal.dataflow.execution.building`; called by `shoal.dataflow.execution.chain` from the task's thread.
"""

from __future__ import annotations

from shoal.core.faults import reach
from shoal.dataflow.connectors.abilities import SupportsTicks, takes_hidden
from shoal.dataflow.connectors.base import SinkConnector, SinkContext, SinkWriter
from shoal.dataflow.language.elements import HIDDEN_PREFIX, Batch, Schema
from shoal.dataflow.operators.base import Context, OperatorState, Output, StepOperator


class SinkStep(StepOperator):
    """Writes rows to outside."""

    def __init__(self, connector: SinkConnector, schema: Schema | None, context: SinkContext) -> None:
        self._connector = connector
        self._schema = schema
        self._context = context
        self._writer: SinkWriter | None = None
        self._takes_hidden = takes_hidden(connector)
        self._ticking: SupportsTicks | None = None
        self._hidden: list[str] = []
        self._seen: Schema | None = None

    def open(self, context: Context) -> None:
        """Open the writer."""
        self._writer = self._connector.open_writer(self._schema, self._context)
        self._ticking = self._writer if isinstance(self._writer, SupportsTicks) else None

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Write rows, without the engine's own columns."""
        self._open_writer().write(batch if self._takes_hidden else self._visible(batch))
        out.emit(batch)  # nobody reads it: it is counted

    def _visible(self, batch: Batch) -> Batch:
        if batch.schema is not self._seen:
            self._seen = batch.schema
            self._hidden = [name for name in batch.schema.names if name.startswith(HIDDEN_PREFIX)]
        return batch.drop_columns(self._hidden) if self._hidden else batch

    def on_tick(self, now: int, out: Output) -> None:
        """Writers that wait for more rows before they write are told the time."""
        if self._ticking is not None:
            self._ticking.on_tick(now)

    def next_tick(self) -> int | None:
        """When the writer wants to be told."""
        return None if self._ticking is None else self._ticking.next_tick()

    def prepare(self, checkpoint: int) -> OperatorState:
        """The write-ahead of a checkpoint."""
        reach("dataflow.prepare.before")
        state = OperatorState(shared=self._open_writer().prepare(checkpoint))
        reach("dataflow.prepare.after")
        return state

    def commit(self, checkpoint: int) -> None:
        """The checkpoint is complete."""
        reach("dataflow.commit.before")
        self._open_writer().commit(checkpoint)
        reach("dataflow.commit.after")

    def flush(self) -> None:
        """Make everything visible; there are no checkpoints."""
        self._open_writer().flush()

    def close(self) -> None:
        """Let go of it."""
        writer, self._writer, self._ticking = self._writer, None, None
        if writer is not None:
            writer.close()

    def _open_writer(self) -> SinkWriter:
        if self._writer is None:
            raise RuntimeError("the sink is not open")
        return self._writer
