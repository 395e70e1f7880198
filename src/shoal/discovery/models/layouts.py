"""Follows a layout: which sub-graphs a container should serve, with how each is deployed.

Both the members of the layout and their declarations are followed, so a model that is declared again, or after it was
published, takes effect at once. An entry that cannot be served is a problem of its own; the others stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shoal.core.errors import InvalidError, Problem, problem
from shoal.discovery.documents import read_record
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.records import DeployConfig, SavedModel, parse_saved_model
from shoal.discovery.store import CoordinationStore, NodeValue, Watch


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """A sub-graph of a layout."""

    saved_model: SavedModel
    config: DeployConfig


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout: what can be served, by name, and what is wrong with the rest."""

    entries: tuple[LayoutEntry, ...] = ()
    problems: tuple[Problem, ...] = ()


class LayoutWatcher:
    """Calls a function with the layout, first when it is completely known and then after every change.

    Args:
        store: the tree.
        paths: the namespace.
        layout: the name of the layout, or its absolute path. It may not exist yet.
        changed: what to call.
    """

    def __init__(
        self, store: CoordinationStore, paths: ModelPaths, layout: str, *, changed: Callable[[Layout], None]
    ) -> None:
        self._store = store
        self._paths = paths
        self._path = paths.layout(layout)
        self._changed = changed
        self._members: Watch | None = None
        #: The members, each with what is wrong with its name.
        self._names: dict[str, SavedModel | Problem] = {}
        self._watches: dict[SavedModel, Watch] = {}
        self._values: dict[SavedModel, NodeValue | None] = {}
        self._told: Layout | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._members = self._store.watch_children(self._path, self._on_members)

    def close(self) -> None:
        """Follow no longer."""
        for watch in (self._members, *self._watches.values()):
            if watch is not None:
                watch.close()

    def _on_members(self, names: tuple[str, ...] | None) -> None:
        self._names = {name: self._member(name) for name in names or ()}
        wanted = {each for each in self._names.values() if isinstance(each, SavedModel)}
        for gone in self._watches.keys() - wanted:
            self._watches.pop(gone).close()
            self._values.pop(gone, None)
        for each in sorted(wanted - self._watches.keys()):
            path = self._paths.saved_model(each)
            self._watches[each] = self._store.watch_data(path, partial(self._on_config, each))
        self._tell()

    def _member(self, name: str) -> SavedModel | Problem:
        try:
            return parse_saved_model(name, field=f"{self._path}/{name}")
        except InvalidError as error:
            return error.problems[0]

    def _on_config(self, saved_model: SavedModel, value: NodeValue | None) -> None:
        self._values[saved_model] = value
        self._tell()

    def _tell(self) -> None:
        if self._watches.keys() - self._values.keys():
            return  # the declaration of a member is still being read
        layout = self._layout()
        if layout != self._told:
            self._told = layout
            self._changed(layout)

    def _layout(self) -> Layout:
        entries, problems = [], []
        for name in sorted(self._names):
            member = self._names[name]
            if isinstance(member, Problem):
                problems.append(member)
                continue
            path, value = self._paths.saved_model(member), self._values[member]
            if value is None:
                problems.append(problem(path, None, "is published but not declared; declare it, or unpublish it"))
                continue
            try:
                config = read_record(DeployConfig, value.data, at=path)
            except InvalidError as error:
                problems.extend(error.problems)
                continue
            if config.model_base_path:
                entries.append(LayoutEntry(member, config))
            else:
                problems.append(problem(f"{path}.model_base_path", None, "is required"))
        return Layout(tuple(entries), tuple(problems))
