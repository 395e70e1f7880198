"""From a layout to the models of one container, and from their states to its bindings. Pure.

A mistake in one entry of a layout is a problem of that entry; the others are served. A model is bound as soon as it is
available. It is unbound when its model server says that it is not, when the layout no longer has it, or when the model
server has not answered several times in a row: one lost call makes no peer look elsewhere. Called by
`shoal.serving.agents.layout`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.errors import Problem, problem
from shoal.discovery.models.layouts import Layout, LayoutEntry
from shoal.discovery.models.records import LATEST, LATEST_ONCE, SavedModel
from shoal.discovery.replicas.updater import MISSED_CALLS
from shoal.serving.filters import LayoutFilter, accepts
from shoal.serving.models.configs import model_config, server_config
from shoal.serving.models.lifecycle import VersionStatus
from shoal.wire.pb.tensorflow import serving_pb2 as pb

POLICIES = (LATEST, LATEST_ONCE, "all")


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The models that a container should serve."""

    config: pb.ModelServerConfig
    #: By the name in the configuration.
    models: Mapping[str, SavedModel]
    problems: tuple[Problem, ...] = ()
    #: Models whose directory has no version yet: look again.
    waiting: tuple[str, ...] = ()


def chosen_entries(
    layout: Layout, filters: Sequence[LayoutFilter]
) -> tuple[tuple[LayoutEntry, ...], tuple[Problem, ...]]:
    """The entries of a layout that the filters accept, and what is wrong with the others."""
    entries: list[LayoutEntry] = []
    problems = list(layout.problems)
    for entry in layout.entries:
        name = str(entry.saved_model)
        try:
            if not accepts(filters, entry.saved_model.sub_graph):
                continue
        except ValueError as error:
            problems.append(problem(name, None, str(error)))
            continue
        policy = entry.config.version_policy or LATEST
        if policy not in POLICIES:
            problems.append(problem(f"{name}.version_policy", policy, f"must be one of {', '.join(POLICIES)}"))
            continue
        entries.append(entry)
    return tuple(entries), tuple(problems)


def plan_models(
    entries: Sequence[LayoutEntry],
    problems: Sequence[Problem],
    newest: Mapping[SavedModel, int],
    *,
    empty: Collection[SavedModel] = (),
) -> ModelPlan:
    """The configuration of the model server.

    `newest` has the versions that `latest_once` stays at, `empty` the models of other policies whose directory has no
    version: a stock model server that is told of one takes no other configuration until there is one.
    """
    made: list[pb.ModelConfig] = []
    models: dict[str, SavedModel] = {}
    waiting: list[str] = []
    found = list(problems)
    for entry in entries:
        name = str(entry.saved_model)
        policy = entry.config.version_policy or LATEST
        version = newest.get(entry.saved_model)
        if entry.saved_model in empty or (policy == LATEST_ONCE and version is None):
            waiting.append(name)
            continue
        try:
            config = model_config(name, entry.config.model_base_path or "", policy=policy, newest=version)
        except ValueError as error:  # a protobuf message takes no such text
            found.append(problem(name, entry.config.model_base_path, f"cannot be configured: {error}"))
            continue
        made.append(config)
        models[name] = entry.saved_model
    return ModelPlan(server_config(made), models, tuple(found), tuple(waiting))


@dataclass(frozen=True, slots=True)
class Bindings:
    """The models that a container is bound to."""

    bound: frozenset[str] = frozenset()
    #: Calls without an answer in a row, by model.
    missed: Mapping[str, int] = field(default_factory=dict)

    def after(self, wanted: Mapping[str, SavedModel], statuses: Mapping[str, VersionStatus]) -> Bindings:
        """The bindings after a look at the states of the models that should be served."""
        bound: set[str] = set()
        missed: dict[str, int] = {}
        for name in wanted:
            status = statuses.get(name)
            if status is None or not status.was_answered:
                count = self.missed.get(name, 0) + (status is not None)
                missed[name] = count
                if name in self.bound and count < MISSED_CALLS:
                    bound.add(name)
            elif status.is_available:
                bound.add(name)
        return Bindings(frozenset(bound), missed)
