"""Expiry in the background: a thread that looks at a few places of each table at a time.

Between two looks, writers get their turn; lookups never wait. Called by the processes that hold tables.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from shoal.core.errors import PreconditionError
from shoal.tables.table import EmbeddingTable

_log = logging.getLogger(__name__)


class Evictor:
    """Sweeps tables until it is closed.

    Args:
        tables: by name; read at each round, so that it may change.
        interval: seconds from look to look.
        places: how many places of the index a look takes. A writer waits for one look at most.
    """

    def __init__(self, tables: Mapping[str, EmbeddingTable], *, interval: float = 0.01, places: int = 1 << 12) -> None:
        self._tables = tables
        self._interval = interval
        self._places = places
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-evictor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait until it has."""
        self._stopped.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            for name, table in tuple(self._tables.items()):
                try:
                    table.expire_some(self._places)
                except PreconditionError:
                    continue  # it was closed in between
                except Exception:  # noqa: BLE001  a sweep that failed must not end expiry
                    _log.exception("table %s could not be swept; it is tried again", name)
