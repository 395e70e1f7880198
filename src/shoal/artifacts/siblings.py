"""Finds the modules beside a user's program that it imports and a bundle of it does not have. Nothing is imported.

Called by clients before they submit code that would fail where it runs.
"""

from __future__ import annotations

import ast
import importlib.metadata
import site
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_TESTS = frozenset({"tests", "test"})


def find_siblings(files: Mapping[str, bytes], search_path: Sequence[str]) -> list[str]:
    """The names of modules that these files import and that lie beside them, in the same directory of the search path.

    What is installed counts as there: nodes have it, too. So do the standard library, tests of a package, imports for
    type checkers, and those that may fail.
    """
    tops = {path.partition("/")[0] for path in files}
    base = next((Path(each) for each in search_path if tops and all(Path(each, top).exists() for top in tops)), None)
    if base is None or any(base.samefile(each) for each in site.getsitepackages() if Path(each).is_dir()):
        return []
    own = {top.removesuffix(".py") for top in tops}
    found: set[str] = set()
    for path, content in files.items():
        if path.endswith(".py") and not _TESTS.intersection(path.split("/")):
            found.update(_imports(content))
    beside = {name for name in found - own - sys.stdlib_module_names if _is_module(base, name)}
    return sorted(beside - importlib.metadata.packages_distributions().keys()) if beside else []


def _is_module(base: Path, name: str) -> bool:
    return (base / f"{name}.py").is_file() or ((base / name).is_dir() and any((base / name).rglob("*.py")))


def _imports(content: bytes) -> Iterator[str]:
    """The first parts of the names of modules that a file needs."""
    try:
        waiting: list[ast.AST] = [ast.parse(content)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it says so itself when it is imported
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Import():
                yield from (each.name.partition(".")[0] for each in node.names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield module.partition(".")[0]
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                waiting += node.orelse
            case ast.Try() if any(map(_is_about_imports, node.handlers)):
                waiting += [*node.orelse, *node.finalbody, *node.handlers]
            case _:
                waiting += ast.iter_child_nodes(node)


def _is_about_imports(handler: ast.ExceptHandler) -> bool:
    kinds = [] if handler.type is None else ast.walk(handler.type)
    return any(isinstance(each, ast.Name) and each.id in ("ImportError", "ModuleNotFoundError") for each in kinds)
