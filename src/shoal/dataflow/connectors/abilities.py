"""Optional abilities of connectors that a plan asks for: one small protocol each, no I/O.

A connector has an ability when it has the member; nothing is registered. `shoal.dataflow.plan` and
`shoal.dataflow.execution` check for them with `isinstance`. Abilities of readers are in `connectors.base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from shoal.dataflow.language.logical import OnError
from shoal.dataflow.settings import CheckpointSettings


@runtime_checkable
class SupportsErrorPolicy(Protocol):
    """A source that can skip rows it cannot read. Without it such a row fails the run."""

    @property
    def on_error(self) -> OnError:
        """What happens to a row that cannot be read."""
        ...


def error_policy(connector: object) -> OnError | None:
    """What a connector does with rows that it cannot read; None when it says nothing."""
    found: object = connector.on_error if isinstance(connector, SupportsErrorPolicy) else None
    return found if isinstance(found, OnError) else None


@runtime_checkable
class SupportsBounds(Protocol):
    """A connector that says whether it has an end: every source."""

    @property
    def is_bounded(self) -> bool:
        """Whether it has an end."""
        ...


@runtime_checkable
class SupportsModes(Protocol):
    """A connector that says what it can hold: every sink."""

    @property
    def modes(self) -> frozenset[Any]:
        """What it can hold."""
        ...


@runtime_checkable
class SupportsPartitions(Protocol):
    """A sink that puts rows into folders by some of their columns."""

    @property
    def partition_by(self) -> Sequence[str]:
        """The columns; none for one folder."""
        ...


@runtime_checkable
class SupportsColumnPruning(Protocol):
    """A source that can read fewer columns."""

    def with_columns(self, names: tuple[str, ...]) -> Any:
        """The same connector, reading only these columns."""
        ...


@runtime_checkable
class SupportsSplitLimit(Protocol):
    """A source that knows, without looking, how many splits it has at most. No more tasks are planned for it."""

    @property
    def most_splits(self) -> int | None:
        """The upper bound; None when it is not known after all."""
        ...


@runtime_checkable
class SupportsHiddenColumns(Protocol):
    """A sink that can write the engine's hidden columns, such as event time."""

    @property
    def takes_hidden(self) -> bool:
        """Whether it wants them."""
        ...


def takes_hidden(connector: object) -> bool:
    """Whether a sink wants the engine's hidden columns."""
    return isinstance(connector, SupportsHiddenColumns) and bool(connector.takes_hidden)


@runtime_checkable
class SupportsNamedColumns(Protocol):
    """A sink with settings that name columns. The plan is refused when its rows lack one."""

    @property
    def named_columns(self) -> Mapping[str, Sequence[str]]:
        """The columns, by the setting that names them."""
        ...


@runtime_checkable
class SupportsPlaceCheck(Protocol):
    """A sink that can tell before a run whether its place can be written."""

    def check_place(self) -> None:
        """Raise `PreconditionError` when it cannot."""
        ...


@runtime_checkable
class SupportsRunCheck(Protocol):
    """A sink that not every run can write."""

    def check_run(self, *, parallelism: int, has_checkpoints: bool) -> None:
        """Raise `PreconditionError` for a run that cannot."""
        ...


@runtime_checkable
class SupportsCheckpointCheck(Protocol):
    """A sink whose output cannot wait for checkpoints for any length of time."""

    def check_checkpoints(self, settings: CheckpointSettings) -> None:
        """Raise `PreconditionError` for checkpoints that come too seldom."""
        ...


@runtime_checkable
class SupportsTicks(Protocol):
    """A sink's writer that waits for more rows before it writes, and so has to be told the time."""

    def next_tick(self) -> int | None:
        """When `on_tick` is to be called next, in microseconds since 1970; None when there is no need."""
        ...

    def on_tick(self, now: int) -> None:
        """The time has come."""
        ...


@runtime_checkable
class SupportsCollect(Protocol):
    """A sink that collects rows in the memory of the process that started the run."""

    @property
    def into(self) -> Any:
        """Where the rows are collected."""
        ...


@runtime_checkable
class SupportsTopic(Protocol):
    """A source that reads a topic: places in one topic mean nothing in another."""

    @property
    def topic(self) -> str:
        """The name of the topic."""
        ...


def topic_of(connector: object) -> str:
    """The topic that a source reads; empty for others, whose splits have names that no other source has."""
    return str(connector.topic) if isinstance(connector, SupportsTopic) else ""


@runtime_checkable
class TopicConnector(Protocol):
    """A source or a sink of a topic."""

    @property
    def topic(self) -> str:
        """The name of the topic."""
        ...

    @property
    def broker(self) -> str:
        """The address of the broker, as plans call it."""
        ...

    @property
    def codec(self) -> str:
        """The name of the codec."""
        ...

    @property
    def options(self) -> Any:
        """The options of the codec."""
        ...
