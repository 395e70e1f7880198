"""Embedding tables: 64-bit ids to vectors with the state of their optimizers, without a vocabulary.

    from shoal.tables import EmbeddingTable, SliceSettings, TableSettings

`settings` says what a table is made of, `table` is the table, `shared` reads one of another process, `kernels` is the
compiled code. Optimizers, initializers, compressors and learning rates are in the modules of these names in `settings`.
Names are looked up when they are asked for: settings need neither numpy nor numba. `__init__.pyi` tells type checkers
the same.
"""

from __future__ import annotations

#: Where each public name lives.
_HOMES: dict[str, str] = {
    "AdmissionSettings": "shoal.tables.settings.table",
    "EmbeddingTable": "shoal.tables.table",
    "Entries": "shoal.tables.table",
    "ExpirySettings": "shoal.tables.settings.table",
    "FilterKind": "shoal.tables.settings.table",
    "HeapMemory": "shoal.tables.memory",
    "Memory": "shoal.tables.memory",
    "NotFinite": "shoal.tables.settings.table",
    "SharedMemory": "shoal.tables.memory",
    "SharedTableReader": "shoal.tables.shared",
    "SliceSettings": "shoal.tables.settings.table",
    "TableKind": "shoal.tables.settings.table",
    "TableSettings": "shoal.tables.settings.table",
    "TableStatistics": "shoal.tables.table",
    "TimeBasis": "shoal.tables.table",
}

__all__ = [*_HOMES]  # noqa: PLE0604  the names are in the table above


def __getattr__(name: str) -> object:
    if name in _HOMES:
        import importlib

        globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
