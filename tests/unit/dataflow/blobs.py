"""Functions that a test has added to this process, and takes out again."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.dataflow.language import functions


def forget_blobs(names: Iterable[str]) -> None:
    """As in a process that has never heard of them."""
    for name in names:
        functions._blobs.pop(name, None)
        functions._loaded.pop(name, None)
