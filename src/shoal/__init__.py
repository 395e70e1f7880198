"""Shoal runs a real-time machine-learning system on a fleet of node agents.

The public API is what is named here; a test freezes it. Names are imported on first use, so only stream programs load
Arrow. `__init__.pyi` has the same names for type checkers.
"""

from __future__ import annotations

from shoal.core.errors import ShoalError

__version__: str

#: Where each public name lives.
_HOMES: dict[str, str] = {
    "AggregatingState": "shoal.dataflow.state.handles",
    "App": "shoal.dataflow.api.apps.app",
    "CheckpointSettings": "shoal.dataflow.settings",
    "Dataflow": "shoal.dataflow.api.apps.app",
    "FlowSettings": "shoal.dataflow.settings",
    "FunctionContext": "shoal.dataflow.api.process_function",
    "KeyedState": "shoal.dataflow.state.groups",
    "ListState": "shoal.dataflow.state.handles",
    "MapState": "shoal.dataflow.state.handles",
    "Operator": "shoal.dataflow.api.own_operator",
    "PlanError": "shoal.dataflow.errors",
    "ProcessFunction": "shoal.dataflow.api.process_function",
    "Record": "shoal.dataflow.operators.record",
    "ReducingState": "shoal.dataflow.state.handles",
    "Stream": "shoal.dataflow.api.streams.stream",
    "Topic": "shoal.dataflow.api.apps.topic",
    "ValueState": "shoal.dataflow.state.handles",
    "col": "shoal.dataflow.language.expressions.trees",
    "count": "shoal.dataflow.api.streams.windows",
    "fn": "shoal.dataflow.api.streams.fn",
    "lit": "shoal.dataflow.language.expressions.trees",
    "session": "shoal.dataflow.api.streams.windows",
    "sliding": "shoal.dataflow.api.streams.windows",
    "tumbling": "shoal.dataflow.api.streams.windows",
}

__all__ = [  # noqa: PLE0604  the lazy names are in the table above
    "ShoalError",
    "__version__",
    *_HOMES,
]


def __getattr__(name: str) -> object:
    # Looked up when asked for: reading the metadata of a package takes longer than the rest of this import.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("shoal")
        except PackageNotFoundError:  # run from a source tree that was never installed
            return "unknown"
    if name in _HOMES:
        import importlib

        home = importlib.import_module(_HOMES[name])
        globals()[name] = home if name == _HOMES[name].rpartition(".")[2] else getattr(home, name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
