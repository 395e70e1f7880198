"""Shoal runs a real-time machine-learning system on a fleet of node agents.

The public face is what is named here; a test freezes it.
"""

from __future__ import annotations

from shoal.core.errors import ShoalError

__all__ = ["ShoalError", "__version__"]

__version__: str


def __getattr__(name: str) -> str:
    # Looked up when asked for: reading the metadata of a package takes longer than the rest of this import.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("shoal")
        except PackageNotFoundError:  # run from a source tree that was never installed
            return "unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
