"""Finds the app of a stream program by what a person types: `my_app:app`, `my_app.py`, `package.module:app`.

Loading runs the user's module as an import does, with the current folder first among those that are searched. Called
by `shoal.cli.programs.run`; calls `shoal.dataflow.api.apps.app`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shoal.core.errors import InvalidError, ShoalError, problem

if TYPE_CHECKING:
    from shoal.dataflow.api.apps.app import App
    from shoal.dataflow.api.context import Launch

_SUFFIX = ".py"
_PROGRAM = "PROGRAM"
_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


@dataclass(frozen=True, slots=True)
class Program:
    """An app, and which of its dataflows were named along with it."""

    app: App
    dataflows: tuple[str, ...] = ()


class ProgramError(ShoalError):
    """A user's module raised while it was loaded. What it raised is the cause."""


def load_program(target: str, launch: Launch) -> Program:
    """Load a module, and find its app. Raises `InvalidError` with what there is, or `ProgramError`."""
    from shoal.dataflow.api.context import launching

    place, _, attribute = target.partition(":")
    if not place.strip():
        rule = "must be a module or a file, such as my_app:app or my_app.py"
        raise InvalidError([problem(_PROGRAM, target, rule)])
    _search(Path.cwd())
    with launching(launch), warnings.catch_warnings():
        # Python shows such warnings of scripts only, and here the program is a module.
        warnings.filterwarnings("default", message="@app.agent is deprecated", category=DeprecationWarning)
        module = _load(place)
    return _find_app(module, place, attribute)


def _search(folder: Path) -> None:
    """Modules are looked for there first, as Python does for a script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _load(place: str) -> ModuleType:
    path = Path(place)
    if place.endswith(_SUFFIX) or os.sep in place:
        return _load_file(path)
    try:
        found = importlib.util.find_spec(place)
    except (ImportError, ValueError, AttributeError):  # a package above it that is none, or a name that is none
        found = None
    except Exception as error:  # a package above it raised
        raise failure_of(place, error) from error
    if found is None:
        raise InvalidError([problem(_PROGRAM, place, f"there is no such module; {_near(place, _modules_here())}")])
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise failure_of(place, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        here = [f"{name}{_SUFFIX}" for name in _modules_here(path.parent)]
        raise InvalidError([problem(_PROGRAM, str(path), f"there is no such file; {_near(path.name, here)}")])
    _search(path.parent.resolve())
    # A file that is called like a module which is loaded already must not take its place.
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"program_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise InvalidError([problem(_PROGRAM, str(path), "must be a Python file, which ends in .py")])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise failure_of(str(path), error) from error
    return module


def failure_of(place: str, error: BaseException) -> BaseException:
    """What a user's code raised, as an error with its line. SHOAL_DEBUG leaves it as it is, with the way there."""
    if isinstance(error, ShoalError) or os.environ.get("SHOAL_DEBUG"):
        return error
    if isinstance(error, SyntaxError):
        return ProgramError(f"{_short(error.filename or place)}:{error.lineno}: is not Python: {error.msg}")
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not _is_ours(each.filename)]
    where = f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else place
    if isinstance(error, SystemExit):
        what = "ends the program while it is loaded"
        return ProgramError(f"{where}: {what}", hint='put it behind `if __name__ == "__main__":`')
    text = str(error).strip().partition("\n")[0]
    return ProgramError(f"{where}: {type(error).__name__}: {text}", hint="SHOAL_DEBUG=1 shows the way there")


def is_of_user(error: BaseException) -> bool:
    """Whether it was raised by code outside of this package, or of a library that was called from there."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = max((place for place, each in enumerate(frames) if each.filename.startswith(_PACKAGE)), default=-1)
    return any(not _is_ours(each.filename) for each in frames[ours + 1 :])


def _is_ours(filename: str) -> bool:
    """Whether a frame belongs to this package or to loading, not to what is loaded."""
    return filename.startswith((_PACKAGE, "<frozen importlib"))


def _short(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


# ---------------------------------------------------------------------------------------------------------
# The app in a module


def _find_app(module: ModuleType, place: str, attribute: str) -> Program:
    from shoal.dataflow.api.apps.agents import Agent
    from shoal.dataflow.api.apps.app import App, Dataflow

    apps = {name: each for name, each in vars(module).items() if isinstance(each, App)}
    if not attribute:
        return Program(_only(apps, place))
    known = [name for name, each in vars(module).items() if isinstance(each, App | Dataflow | Agent)]
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    match found:
        case App():
            return Program(found)
        case Dataflow():
            return Program(found.app, (found.name,))
        case Agent():
            return Program(found.dataflow.app, (found.name,))
        case None:
            rule = f"{place} has no such name; {_near(attribute, known, 'apps and dataflows')}"
        case _:
            rule = f"must be an App, and is a {type(found).__name__}; {_near(attribute, known, 'apps and dataflows')}"
    raise InvalidError([problem(_PROGRAM, attribute, rule)])


def _only(apps: dict[str, App], place: str) -> App:
    distinct = {id(each): each for each in apps.values()}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    if not distinct:
        hint = 'from shoal import App; app = App("my-app")'
        raise InvalidError([problem(_PROGRAM, place, "has no App")], hint=hint)
    names = sorted(apps)
    rule = f"has several apps: {', '.join(names)}"
    raise InvalidError([problem(_PROGRAM, place, rule)], hint=f"name one: {place}:{names[0]}")


def _near(name: str, known: Iterable[str], kind: str = "Python files here") -> str:
    from shoal.dataflow.errors import near

    return near(name, known, kind)


def _modules_here(folder: Path | None = None) -> list[str]:
    try:
        return sorted(each.stem for each in (folder or Path.cwd()).glob(f"*{_SUFFIX}"))
    except OSError:
        return []
