"""Tables as users hold them: the newest row for each key of a stream, for joins; or a mapping that agents share.

Made by `shoal.dataflow.api.apps.app`; `shoal.dataflow.api.streams.joins` takes one as the right side of a join.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Self

from shoal.core.errors import PreconditionError
from shoal.dataflow.api.streams.steps import Steps


class Table(MutableMapping[Any, Any]):
    """A table of an app.

    With a source it stands for that stream's newest rows, and is the right side of joins; it is kept in the state of
    the join, and read nowhere else. Without one it is a mapping in the memory of this process: it is empty after a
    restart, so what has to last belongs into a dataflow's state.
    """

    def __init__(self, name: str, source: Steps[Any] | Callable[[], Steps[Any]] | None, keys: tuple[str, ...]) -> None:
        self.name = name
        self._source = source
        self.keys_of_rows = keys
        self._values: dict[Any, Any] = {}
        self._lock = threading.RLock()

    @property
    def changelog(self) -> Steps[Any] | None:
        """The stream whose newest rows it holds. That of a topic is as the topic is known when a join is planned."""
        return self._source() if callable(self._source) else self._source

    def _own(self) -> dict[Any, Any]:
        if self._source is not None:
            raise PreconditionError(
                f"table {self.name!r} lies in the state of the joins that use it",
                hint="ask for its rows with stream.join(table, on=…)",
            )
        return self._values

    def __getitem__(self, key: Any) -> Any:
        with self._lock:
            return self._own()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        with self._lock:
            self._own()[key] = value

    def __delitem__(self, key: Any) -> None:
        with self._lock:
            del self._own()[key]

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            return iter(list(self._own()))

    def __len__(self) -> int:
        with self._lock:
            return len(self._own())

    # -- the same for programs that await every access --------------------------------------------------------

    async def aget(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self.get(key, default)

    async def aset(self, key: Any, value: Any) -> None:
        """Set a value."""
        self[key] = value

    async def adelete(self, key: Any) -> None:
        """Remove a key; one that is not there is no error."""
        self.pop(key, None)

    async def akeys(self) -> list[Any]:
        """All keys."""
        return list(self)

    async def avalues(self) -> list[Any]:
        """All values."""
        return list(self.values())

    async def aitems(self) -> list[tuple[Any, Any]]:
        """All keys with their values."""
        return list(self.items())

    async def aclear(self) -> None:
        """Remove everything."""
        self.clear()

    async def asize(self) -> int:
        """How many keys there are."""
        return len(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Nothing is open that would have to be closed."""

    def __repr__(self) -> str:
        return f"<Table {self.name}>"
