"""The versions that models with the policy `latest_once` stay at, in a file of the agent.

A version is chosen when a model is first served, and kept while the model is, also by the next agent with the same data
directory. It is chosen again when a model server has to load it and it is no longer there, when the model moves to
another directory, and after `forget`. Called by the agents, in threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core import files
from shoal.core.errors import InvalidError, ShoalError
from shoal.core.shape import build, to_mapping
from shoal.serving.models.configs import versions_in

log = logging.getLogger(__name__)

FILE_NAME = "versions.json"

Find = Callable[[str], frozenset[int]]
"""Lists the versions in a directory. Raises `ShoalError` when it cannot be read."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    base_path: str
    version: int


@dataclass(frozen=True, slots=True)
class _Document:
    #: By model.
    models: Mapping[str, _Chosen] = field(default_factory=dict)


class ChosenVersions:
    """The file of one data directory. One that is missing or damaged has chosen nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._models: dict[str, _Chosen] = {}
        #: Those that an earlier agent or model server had: their directory is looked at before they are loaded.
        self._unseen: set[str] = set()

    @classmethod
    def load(cls, data_dir: Path) -> ChosenVersions:
        """Read the file of a data directory."""
        made = cls(data_dir / FILE_NAME)
        try:
            document = build(_Document, json.loads(made._path.read_bytes()), at=str(made._path))
        except FileNotFoundError:
            return made
        except (OSError, ValueError, RecursionError, InvalidError) as error:
            log.warning("the chosen versions in %s cannot be read, and are chosen again: %s", made._path, error)
            return made
        made._models = dict(document.models)
        made._unseen = set(document.models)
        return made

    def is_settled(self, model: str, base_path: str) -> bool:
        """Whether the version of a model is known without a look into its directory."""
        known = self._models.get(model)
        return known is not None and known.base_path == base_path and model not in self._unseen

    def choose(self, model: str, base_path: str, *, find: Find = versions_in) -> int | None:
        """The version of a model; None while its directory has none. Raises `ShoalError` when it cannot be read.

        `find` lists the versions in a directory.
        """
        known = self._models.get(model)
        if known is not None and known.base_path == base_path and self._is_there(model, known, find):
            return known.version
        newest = max(find(base_path), default=None)
        if newest is not None:
            if model in self._unseen and known is not None and known.base_path == base_path:
                log.warning("version %d of %s is no longer there; %d is chosen", known.version, model, newest)
            self._models[model] = _Chosen(base_path, newest)
            self._unseen.discard(model)
            self._save()
        return newest

    def _is_there(self, model: str, known: _Chosen, find: Find) -> bool:
        """Whether a version can be kept. One that a model server has loaded is not looked for again."""
        if model not in self._unseen:
            return True
        try:
            found = find(known.base_path)
        except ShoalError as error:
            # Nothing else could be chosen now; a model server that has it loaded goes on.
            log.warning("version %d of %s cannot be looked for, and is kept: %s", known.version, model, error)
            return True
        if known.version in found:
            self._unseen.discard(model)
        return known.version in found

    def look_again(self, models: Iterable[str]) -> None:
        """A model server has to load these models again: their versions may have been removed meanwhile."""
        self._unseen |= self._models.keys() & set(models)

    def keep_only(self, models: Collection[str]) -> None:
        """Drop models that are no longer served. When they come back, the newest version is chosen."""
        left = {name: chosen for name, chosen in self._models.items() if name in models}
        if left != self._models:
            self._models = left
            self._save()

    def _save(self) -> None:
        """Write the file. Serving goes on without it: only the next agent would choose again."""
        text = json.dumps(to_mapping(_Document(dict(sorted(self._models.items())))), indent=2)
        try:
            files.write_atomic(str(self._path), f"{text}\n".encode())
        except ShoalError as error:
            log.warning("the chosen versions cannot be written, and are chosen again after a restart: %s", error)


def forget(data_dir: Path) -> None:
    """Have every version chosen again by the next agent."""
    (data_dir / FILE_NAME).unlink(missing_ok=True)
