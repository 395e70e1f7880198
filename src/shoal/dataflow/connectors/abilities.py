"""Optional abilities of connectors that a plan asks for: one small protocol each, no I/O.

A connector has an ability when it has the member; nothing is registered. `shoal.dataflow.plan` and
`shoal.dataflow.execution` check for them with `isinstance`. Abilities of readers are in `connectors.base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from shoal.dataflow.language.logical import OnError


@runtime_checkable
class SupportsErrorPolicy(Protocol):
    """A source that can skip rows it cannot read. Without it such a row fails the run."""

    @property
    def on_error(self) -> OnError:
        """What happens to a row that cannot be read."""
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


@runtime_checkable
class SupportsNamedColumns(Protocol):
    """A sink with settings that name columns. The plan is refused when its rows lack one."""

    @property
    def named_columns(self) -> Mapping[str, Sequence[str]]:
        """The columns, by the setting that names them."""
        ...


@runtime_checkable
class SupportsCollect(Protocol):
    """A sink that collects rows in the memory of the process that started the run."""

    @property
    def into(self) -> Any:
        """Where the rows are collected."""
        ...


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
