"""Finds every public function of the package whose name says that it reads something, and every codec."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

import shoal

_READS = re.compile(r"(parse|read|from|decode|load|unpack)(_.*)?|.*_from_.*")

#: Generated, or made for tests.
_LEFT_OUT = ("shoal.wire.pb", "shoal.testing")


def find_parsers() -> set[str]:
    """Their full names."""
    return {f"{module}.{name}" for module in _modules() for name in _functions(module)}


def _modules() -> Iterator[str]:
    for found in pkgutil.walk_packages(shoal.__path__, "shoal."):
        # A module that runs when it is imported has no parsers.
        if not found.name.startswith(_LEFT_OUT) and not found.name.endswith("__main__"):
            yield found.name


def exists(name: str) -> bool:
    """Whether a module of the package defines such a function, or a class with such a method."""
    for module in _modules():
        if name.startswith(f"{module}."):
            first, _, method = name.removeprefix(f"{module}.").partition(".")
            value = vars(importlib.import_module(module)).get(first)
            if getattr(value, "__module__", "") == module:
                return inspect.isfunction(getattr(value, method, None) if method else inspect.unwrap(value))
    return False


def _functions(module_name: str) -> Iterator[str]:
    module = importlib.import_module(module_name)
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module_name:
            continue
        if inspect.isclass(value):
            # Of methods only what decodes: most of those that read or load do so by a parser that has a line.
            if "decode" in vars(value) and not getattr(value, "_is_protocol", False):
                yield f"{name}.decode"
        elif inspect.isfunction(inspect.unwrap(value)) and _READS.fullmatch(name):
            yield name
