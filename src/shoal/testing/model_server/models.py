"""The models of the fake model server and their states. Nothing here waits: a version is loaded when it is asked for.

A test decides what differs from that: `hold` keeps a model in LOADING until `release`, `break_model` makes it fail to
load, as a damaged export does. Versions are the directories below the base path; without that directory, `latest`
serves the versions 1 to its number, and `all` version 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.errors import NotFoundError, PreconditionError
from shoal.discovery.replicas.records import ModelState
from shoal.serving.models.configs import is_version
from shoal.serving.models.lifecycle import TRANSITIONS
from shoal.wire.pb.tensorflow import serving_pb2 as pb


@dataclass(slots=True)
class FakeVersion:
    """One version of a model."""

    number: int
    state: ModelState = ModelState.UNKNOWN
    error: str = ""


@dataclass(slots=True)
class _Model:
    config: pb.ModelConfig
    versions: dict[int, FakeVersion] = field(default_factory=dict)


class FakeModels:
    """Every model, by name."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}
        self._broken: dict[str, str] = {}
        self._held: set[str] = set()
        self._changed = asyncio.Event()
        #: Every change of a state: (model, version, state).
        self.transitions: list[tuple[str, int, ModelState]] = []
        #: The configurations that were applied.
        self.applied: list[pb.ModelServerConfig] = []

    # --- what a test decides ------------------------------------------------------------------------------

    def break_model(self, name: str, error: str = "the export is damaged") -> None:
        """Let every load of a model fail from now on."""
        self._broken[name] = error

    def repair_model(self, name: str) -> None:
        """Let it be loaded again: at the next look at the directories."""
        self._broken.pop(name, None)

    def hold(self, name: str) -> None:
        """Keep the versions of a model in LOADING."""
        self._held.add(name)

    def release(self, name: str) -> None:
        """Let them go on."""
        self._held.discard(name)
        if name in self._models:
            self._load(name, self._models[name])
        self._tell()

    # --- what a model server does -------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """The models that are configured."""
        return tuple(sorted(self._models))

    def apply(self, config: pb.ModelServerConfig) -> None:
        """Serve these models and no others."""
        self.applied.append(config)
        wanted = {model.name: model for model in config.model_config_list.config}
        for name in self._models.keys() - wanted.keys():
            self._unload(name, self._models[name], self._models[name].versions)
            del self._models[name]
        for name, model in wanted.items():
            self._models.setdefault(name, _Model(model)).config = model
        self.poll()

    def poll(self) -> None:
        """Look at the directories: load what is new, unload what the policy does not want."""
        for name, model in self._models.items():
            wanted = _wanted_versions(model.config)
            for number in wanted:
                known = model.versions.get(number)
                if known is None or known.state is ModelState.END:
                    model.versions[number] = FakeVersion(number)
            self._load(name, model)
            # The old version is served until there is another.
            if not wanted or any(model.versions[number].state is ModelState.AVAILABLE for number in wanted):
                self._unload(name, model, [number for number in model.versions if number not in wanted])
        self._tell()

    def versions_of(self, spec: pb.ModelSpec) -> tuple[FakeVersion, ...]:
        """The versions that a request means. Raises `NotFoundError`."""
        model = self._models.get(spec.name)
        if model is None or not model.versions:
            raise NotFoundError("any version of model", spec.name)
        number = _number(spec, model)
        if number is None:
            return tuple(model.versions[each] for each in sorted(model.versions))
        if number not in model.versions:
            raise NotFoundError(f"version {number} of model", spec.name)
        return (model.versions[number],)

    def available_version(self, spec: pb.ModelSpec) -> FakeVersion:
        """The version that answers a call. Raises `NotFoundError`."""
        found = [each for each in self.versions_of(spec) if each.state is ModelState.AVAILABLE]
        if not found:
            raise NotFoundError("available version of model", spec.name)
        return found[-1]

    def config_of(self, name: str) -> pb.ModelConfig:
        """The configuration of a model."""
        return self._models[name].config

    async def wait_loaded(self, names: Iterable[str]) -> None:
        """Wait until each of the models has a version that is loaded, or could not be.

        Without any version it waits for one. Raises `PreconditionError` when one could not be loaded.
        """
        wanted = set(names)
        while any(self._is_awaited(name) for name in wanted):
            await self._changed.wait()
        failed = sorted(name for name in wanted if name in self._broken and name in self._models)
        if failed:
            reasons = ", ".join(f"{name} due to error: {self._broken[name]}" for name in failed)
            raise PreconditionError(f"{len(failed)} servable(s) did not become available: {{{reasons}}}")

    def _is_awaited(self, name: str) -> bool:
        model = self._models.get(name)
        reached = {ModelState.AVAILABLE, ModelState.END}
        return model is not None and not any(each.state in reached for each in model.versions.values())

    def _load(self, name: str, model: _Model) -> None:
        for version in model.versions.values():
            if version.state is ModelState.UNKNOWN:
                self._enter(name, version, ModelState.START)
                self._enter(name, version, ModelState.LOADING)
            if version.state is ModelState.LOADING and name not in self._held:
                version.error = self._broken.get(name, "")
                self._enter(name, version, ModelState.END if version.error else ModelState.AVAILABLE)

    def _unload(self, name: str, model: _Model, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            version = model.versions.pop(number)
            if version.state is ModelState.AVAILABLE:
                self._enter(name, version, ModelState.UNLOADING)
            if version.state is not ModelState.END:
                self._enter(name, version, ModelState.END)

    def _enter(self, name: str, version: FakeVersion, state: ModelState) -> None:
        assert state in TRANSITIONS[version.state], (version, state)
        version.state = state
        self.transitions.append((name, version.number, state))

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _number(spec: pb.ModelSpec, model: _Model) -> int | None:
    """The version that a request names; None when it names none. Raises `NotFoundError` for an unknown label."""
    if spec.HasField("version"):
        return spec.version.value
    if not spec.version_label:
        return None
    if spec.version_label not in model.config.version_labels:
        raise NotFoundError(f"label {spec.version_label!r} of model", spec.name)
    return model.config.version_labels[spec.version_label]


def _wanted_versions(config: pb.ModelConfig) -> list[int]:
    """The versions that the policy of a model asks for."""
    policy = config.model_version_policy
    base = Path(config.base_path)
    choice = policy.WhichOneof("policy_choice")
    most = max(policy.latest.num_versions, 1)
    if not base.is_dir():
        return {"all": [1], "specific": list(policy.specific.versions)}.get(choice or "", list(range(1, most + 1)))
    found = sorted(int(each.name) for each in base.iterdir() if is_version(each.name))
    if choice == "specific":
        return [number for number in found if number in policy.specific.versions]
    return found if choice == "all" else found[-most:]
