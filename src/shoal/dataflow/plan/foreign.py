"""A user's own connector in a plan that was read from a document: what is known of it without loading it.

Made by `shoal.dataflow.plan.documents`. It is loaded when a task opens it; checking and explaining load nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.clock import Clock
from shoal.dataflow.connectors.abilities import (
    SupportsBounds,
    SupportsModes,
    error_policy,
    takes_hidden,
    topic_of,
)
from shoal.dataflow.connectors.base import (
    CommitContext,
    SinkCommitter,
    SinkConnector,
    SinkContext,
    SinkMode,
    SourceConnector,
    Split,
    SupportsCommit,
)
from shoal.dataflow.language.elements import Schema
from shoal.dataflow.language.functions import callable_of
from shoal.dataflow.language.logical import FunctionRef, OnError


@dataclass(frozen=True, slots=True)
class ForeignConnector:
    """A source or a sink of a user's own, by the name of its blob."""

    blob: str
    label: str
    is_bounded: bool = True
    mode_names: tuple[str, ...] = ()
    takes_hidden: bool = False
    #: What a source does with rows that it cannot read.
    on_error: OnError = OnError.FAIL
    #: The topic that a source reads, where it reads one.
    topic: str = ""

    @classmethod
    def describing(cls, connector: SourceConnector | SinkConnector, blob: str) -> ForeignConnector:
        """The description of a connector."""
        return cls(
            blob,
            str(connector.label),
            bool(connector.is_bounded) if isinstance(connector, SupportsBounds) else True,
            tuple(sorted(each.value for each in connector.modes)) if isinstance(connector, SupportsModes) else (),
            takes_hidden(connector),
            error_policy(connector) or OnError.FAIL,
            topic_of(connector),
        )

    @property
    def modes(self) -> frozenset[SinkMode]:
        """What it can hold, for a sink."""
        return frozenset(SinkMode(each) for each in self.mode_names)

    def _loaded(self) -> Any:
        return callable_of(FunctionRef(self.blob, self.label))

    def find_schema(self) -> Schema:
        """Its columns."""
        return self._loaded().find_schema()

    def find_splits(self) -> Sequence[Split]:
        """Its parts."""
        splits: Sequence[Split] = self._loaded().find_splits()
        return splits

    def open_reader(self, splits: Sequence[Split], schema: Schema, *, clock: Clock) -> Any:
        """Begin to read."""
        return self._loaded().open_reader(splits, schema, clock=clock)

    def open_writer(self, schema: Schema, context: SinkContext) -> Any:
        """Begin to write."""
        return self._loaded().open_writer(schema, context)

    def open_committer(self, context: CommitContext) -> SinkCommitter | None:
        """The coordinator's end of it, where it has one."""
        connector = self._loaded()
        return connector.open_committer(context) if isinstance(connector, SupportsCommit) else None
