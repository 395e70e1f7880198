"""Finds the example programs. A wheel holds them inside the package, a checkout at its root. Called by the demo."""

from __future__ import annotations

import sys
from pathlib import Path

import shoal
from shoal.core.errors import NotFoundError

_PACKAGE = Path(shoal.__file__).resolve().parent
_PLACES = (_PACKAGE / "examples", _PACKAGE.parent.parent / "examples")


def examples_folder() -> Path:
    """The folder of the examples. Raises `NotFoundError` when neither a wheel nor a checkout is there."""
    for place in _PLACES:
        if (place / "clicks").is_dir():
            return place
    raise NotFoundError("file", str(_PLACES[0] / "clicks"), hint="install shoal again: its examples are missing")


def make_importable() -> Path:
    """Let this process import the examples as modules, such as `clicks.feed`. Returns their folder."""
    folder = examples_folder()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return folder
