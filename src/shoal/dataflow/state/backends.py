"""Opens the backend of keyed state that the settings name. Called by operators with state of their own."""

from __future__ import annotations

from pathlib import Path

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.state.base import StateBackend
from shoal.dataflow.state.memory import MemoryState


def open_backend(kind: str, scratch: str) -> StateBackend:
    """An empty backend, `memory` or `rocks`; the latter in a folder of the step's own."""
    if kind == "memory":
        return MemoryState()
    from shoal.dataflow.state.rocks import RocksState

    if not scratch:
        raise InvalidError([problem("scratch", scratch, "must be a directory for state in RocksDB")])
    return RocksState(str(Path(scratch) / "state"))
