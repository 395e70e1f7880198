"""Users' functions: how a plan names one, where in the user's program it stands, and how it becomes bytes and back.

A `FunctionRef` holds the callable itself while the plan stays in its process. Nothing is pickled until a plan is
written down (`shoal.dataflow.plan.documents` calls `pickle_function`); then its name is the hash of its bytes, and
`callable_of` finds it among the blobs that a task was given (`add_blobs`).
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import io
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from shoal.core.errors import NotFoundError, problem
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.logical import FunctionRef

_OURS = "shoal.dataflow"
_BLOB_PREFIX = "fn-"
_SETTINGS = "shoal.topics.kafka.settings"

#: Set in task hosts that are processes of their own: programs that are imported there for a function run nothing.
TASK_HOST_VARIABLE = "SHOAL_TASK_HOST"

_blobs: dict[str, bytes] = {}
_loaded: dict[str, Any] = {}
_lock = threading.Lock()


def find_location() -> Location | None:
    """The line of the user's program that is running: the first one outside of this package."""
    frame = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module != _OURS and not module.startswith(f"{_OURS}."):
            return Location(short_path(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def find_module() -> str:
    """The name of the user's module that is running: of the first frame outside of this package."""
    frame = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module != _OURS and not module.startswith(f"{_OURS}."):
            return module
        frame = frame.f_back
    return "__main__"


def short_path(path: str) -> str:
    """A path as a person would say it: from here, where it lies below here."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


def make_ref(function: Callable[..., Any], *, at: Location | None = None, what: str = "function") -> FunctionRef:
    """Name a user's function."""
    if not callable(function):
        raise PlanError([problem(what, function, "must be a function or an expression")], at=at)
    return FunctionRef("", label_of(function), reads_of(function), function)


def label_of(function: Any) -> str:
    """What people call it: its own name, or `lambda` and its line."""
    name = getattr(function, "__name__", "") or type(function).__name__
    code = getattr(function, "__code__", None)
    if name == "<lambda>" and isinstance(code, CodeType):
        return f"lambda {Path(code.co_filename).name}:{code.co_firstlineno}"
    return str(name)


def callable_of(ref: FunctionRef) -> Any:
    """The function, loaded from its blob when the plan came from elsewhere. Raises `NotFoundError`."""
    if ref.target is not None:
        return ref.target
    with _lock:
        if ref.name not in _loaded:
            if ref.name not in _blobs:
                raise NotFoundError("function", f"{ref.label} ({ref.name or 'never written down'})")
            import cloudpickle

            _loaded[ref.name] = cloudpickle.loads(_blobs[ref.name])
        return _loaded[ref.name]


def add_blobs(blobs: Mapping[str, bytes]) -> None:
    """Functions that plans of this process may call. Only bytes are kept until one is called."""
    with _lock:
        _blobs.update(blobs)


def pickle_function(ref: FunctionRef, *, at: Location | None = None) -> tuple[str, bytes]:
    """The name and the bytes of a function. Raises `PlanError` for one that cannot leave its process."""
    if ref.target is None:
        with _lock:
            blob = _blobs.get(ref.name)
        if blob is None:
            raise NotFoundError("function", f"{ref.label} ({ref.name})")
        return ref.name, blob
    try:
        blob = _pickled(ref.target)
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise PlanError(
            [problem(ref.label, None, f"cannot be written down: {type(error).__name__}: {error}")],
            at=at,
            hint="open connections, locks and generators inside the function, not outside of it",
        ) from error
    return f"{_BLOB_PREFIX}{hashlib.sha256(blob).hexdigest()[:32]}", blob


def _pickled(target: Any) -> bytes:
    """The bytes of something of a user's. Settings of Kafka stay out: plans lie about, and passwords must not."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        """Refuses what may be secret, however deep it lies."""

        def reducer_override(self, found: Any) -> Any:
            """Called for each object that is no plain value."""
            if type(found).__module__ == _SETTINGS:
                raise TypeError(f"{type(found).__name__} may hold secrets, and stays in its process")
            return super().reducer_override(found)

    with io.BytesIO() as file:
        Pickler(file).dump(target)
        return file.getvalue()


# ---------------------------------------------------------------------------------------------------------
# What a function reads


def reads_of(function: Any) -> str:
    """The one column that a batch function reads, seen in its code; empty when it is none, several, or unsure.

    Only `b["x"]`, `b.column("x")` and `b.num_rows` on the first argument count as sure. Nothing is called.
    """
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or code.co_argcount < 1:
        return ""
    batch = code.co_varnames[0]
    if batch in code.co_cellvars:
        return ""  # an inner function has it, too
    found: set[str] = set()
    steps = [
        each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "RESUME", "PUSH_NULL", "PRECALL")
    ]
    for place, step in enumerate(steps):
        if not (step.opname.startswith("LOAD_FAST") and step.argval == batch):
            if batch in _names(step.argval) and "FAST" in step.opname:
                return ""  # stored, deleted, or loaded together with another
            continue
        name = _column_read(steps[place + 1 : place + 4])
        if name is None:
            return ""
        found.add(name)
    found.discard("")
    return found.pop() if len(found) == 1 else ""


def _names(argval: Any) -> tuple[Any, ...]:
    return argval if isinstance(argval, tuple) else (argval,)


def _column_read(after: list[dis.Instruction]) -> str | None:
    """The column that the instructions behind a load of the batch read; empty for none, None when that is not sure."""
    if len(after) < 2:
        return None
    first, second = after[0], after[1]
    if first.opname == "LOAD_CONST" and isinstance(first.argval, str) and _is_subscript(second):
        return first.argval
    if first.opname in ("LOAD_METHOD", "LOAD_ATTR"):
        if first.argval == "num_rows":
            return ""
        if first.argval == "column" and second.opname == "LOAD_CONST" and isinstance(second.argval, str):
            return second.argval
    return None


def _is_subscript(step: dis.Instruction) -> bool:
    return step.opname == "BINARY_SUBSCR" or (step.opname == "BINARY_OP" and step.argrepr == "[]")
