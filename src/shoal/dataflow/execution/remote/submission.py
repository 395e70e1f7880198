"""Makes what a client submits: the prepared plan, the bundle of users' code, and the spec that names both by hash.

Called by `submitting`, where the program is; nothing here talks to a control plane.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.artifacts.bundles import Bundle, pack_bundle
from shoal.dataflow.execution.building import stateful_uids
from shoal.dataflow.execution.engine import plan_and_check
from shoal.dataflow.fleet.spec import DataflowSpec, StepState
from shoal.dataflow.language.logical import Aggregate, Distinct, Join, Node, Reduce
from shoal.dataflow.plan.physical import Exchange, PhysicalPlan, kind_of, needs_of
from shoal.dataflow.plan.prepare import Prepared
from shoal.dataflow.plan.prepared import write_prepared
from shoal.dataflow.settings import FlowSettings

#: Settings that follow the node, or have a field of their own.
_OWN = ("checkpoint", "scratch")


@dataclass(frozen=True, slots=True)
class Package:
    """A job on its way: two artifacts, and the spec that names them."""

    spec: DataflowSpec
    plan: bytes
    bundle: bytes
    #: Whether the plan has functions of users, which need users' modules where they run.
    has_functions: bool = False


def pack_job(
    prepared: Prepared,
    *,
    name: str,
    parallelism: int,
    settings: FlowSettings,
    entry: str = "",
    files: Mapping[str, bytes] | None = None,
    versions: Mapping[str, str] | None = None,
    **more: Any,
) -> Package:
    """Pack a prepared plan with the users' modules. `more`: other fields of `DataflowSpec`.

    Raises `PlanError` for what cannot leave its process, `InvalidError` and `ExhaustedError`.
    """
    physical = plan_and_check(prepared, parallelism=parallelism, settings=settings)
    document = write_prepared(prepared, physical)
    plan = document.to_json().encode()
    bundle = pack_bundle(Bundle(entry, dict(files or {}), dict(document.blobs), dict(versions or {})))
    spec = DataflowSpec(
        name=name,
        plan=hashlib.sha256(plan).hexdigest(),
        bundle=hashlib.sha256(bundle).hexdigest(),
        parallelism=parallelism,
        checkpoint=None if settings.checkpoint is None else _changed(settings.checkpoint, ()),
        settings=_changed(settings, _OWN),
        steps=_steps(physical),
        **more,
    )
    return Package(spec, plan, bundle, bool(document.blobs))


def _changed(settings: Any, without: tuple[str, ...]) -> dict[str, Any]:
    """The fields that are not as they are by default: a later program may have other defaults."""
    return {
        each.name: getattr(settings, each.name)
        for each in dataclasses.fields(settings)
        if each.name not in without and getattr(settings, each.name) != each.default
    }


def _steps(physical: PhysicalPlan) -> dict[str, StepState]:
    stateful = stateful_uids(physical)
    found = {}
    for step in (step for stage in physical.stages for step in stage.steps):
        shape = _shape(step.node)
        text = f"{step.name}: {shape}" if shape else step.name
        mark = hashlib.sha256(shape.encode()).hexdigest()[:32] if shape else ""
        most = 1 if any(need.exchange is Exchange.GATHER for need in needs_of(step.node)) else 0
        found[step.uid] = StepState(kind_of(step.node), text[:4096], step.uid in stateful, mark, most)
    return found


def _shape(node: Node) -> str:
    """What the state of a step is about. State of another shape does not fit it."""
    match node:
        case Aggregate():
            what = ", ".join(f"{each.function}({each.column})" for each in node.aggregations)
            return _by(what, node.keys, node.window)
        case Reduce():
            return _by("reduce", node.keys, node.window)
        case Distinct():
            return _by("distinct", node.columns, node.window)
        case Join():
            return _by(f"{node.mode.value} join", (*node.left_keys, *node.right_keys), node.window)
        case _:
            return ""


def _by(what: str, keys: Sequence[str], window: object) -> str:
    by = f" by {', '.join(keys)}" if keys else ""
    return f"{what}{by}" + (f" in {window}" if window is not None else "")
