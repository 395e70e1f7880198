"""Whether kernels can be compiled here. Asked by the parsers, which have a slower way without."""

from __future__ import annotations

import functools
import importlib.util
import logging

logger = logging.getLogger(__name__)


@functools.cache
def has_numba() -> bool:
    """Whether kernels can be compiled here."""
    found = importlib.util.find_spec("numba") is not None
    if not found:
        logger.warning("numba is not installed: records are parsed by protobuf, which is much slower")
    return found
