"""Submits a prepared plan as a job of the engine `dataflow`: collects the user's code, uploads it, and stores the job.

`collect_job` reads the files of the user's modules; `submit_job` talks to the control plane. Settings of Kafka clusters
may be secret: each becomes a secret of the fleet, which the spec names. Called by `shoal.dataflow.api`
(`flow.start()`, `flow.upgrade()`) and `shoal job`; calls `submission`, which makes the spec.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.artifacts.bundles import Bundle
from shoal.artifacts.collecting import collect_bundle, current_versions
from shoal.artifacts.siblings import find_siblings
from shoal.client import ControlPlane
from shoal.core import files
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, UnsupportedError, problem
from shoal.core.ids import IDENTIFIER_RULE, is_identifier
from shoal.core.shape import build
from shoal.dataflow.connectors.abilities import TopicConnector
from shoal.dataflow.connectors.topics.brokers import has_settings, is_kafka, settings_of
from shoal.dataflow.execution.remote.submission import Package, pack_job
from shoal.dataflow.fleet import spec as specs
from shoal.dataflow.language.logical import Node, Sink, Source, walk
from shoal.dataflow.plan.prepare import Prepared
from shoal.dataflow.settings import FlowSettings
from shoal.model.jobs import JobView
from shoal.model.workloads import Constraint, ResourceRequest

if TYPE_CHECKING:
    from shoal.topics.kafka import KafkaSettings

_MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """What a job needs beyond the program: `App(job={…})`. The rules are those of the spec."""

    task_host: ResourceRequest = ResourceRequest()
    coordinator: ResourceRequest = ResourceRequest()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()
    most_crashes: int = 3


@dataclass(frozen=True, slots=True)
class CollectedJob:
    """A job that is ready to be submitted."""

    package: Package = field(repr=False)
    #: The settings of Kafka clusters, by the names of the secrets that are to hold them.
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def spec(self) -> specs.DataflowSpec:
        """The spec, before it is known whether the fleet has certificates."""
        return self.package.spec


def collect_job(
    prepared: Prepared,
    *,
    name: str,
    parallelism: int,
    settings: FlowSettings,
    module: str,
    given: Mapping[str, Any] | None = None,
) -> CollectedJob:
    """Pack a plan with the code that it needs. Blocks.

    Raises `PlanError` for what cannot leave this process, `InvalidError` for a wrong setting, `PreconditionError` for a
    plan that only this machine can run.

    Args:
        prepared: the plan.
        name: what its checkpoints and transactions are called.
        parallelism: how wide it begins.
        settings: how its tasks work.
        module: the user's module that the plan was made in.
        given: what `JobNeeds` has.
    """
    needs = build(JobNeeds, dict(given or {}), what="job")
    code, siblings = _collect(module, name)
    brokers = _brokers(prepared.sinks, name)
    package = pack_job(
        prepared,
        name=name,
        parallelism=parallelism,
        settings=_absolute(settings),
        entry=code.entry,
        files=code.files,
        versions=code.versions,
        brokers={broker: secret for broker, (secret, _) in brokers.items()},
        **{each.name: getattr(needs, each.name) for each in dataclasses.fields(needs)},
    )
    if siblings and package.has_functions:
        names = ", ".join(siblings)
        raise PreconditionError(
            f"module {code.entry.partition(':')[0]!r} imports {names} from its own folder, which would not be sent",
            hint="put the program and these into one package, or install them on the nodes and here",
        )
    specs.decode(specs.encode(package.spec))  # raises what the control plane would
    return CollectedJob(package, dict(brokers.values()))


async def submit_job(control: ControlPlane, job: CollectedJob, *, job_id: str = "") -> JobView:
    """Upload what a job needs, and store it. What is uploaded and not stored is removed by the control plane.

    Raises `PreconditionError` when a job of that id runs, and everything that the calls raise.
    """
    job_id = job_id or job.spec.name
    if not is_identifier(job_id):
        raise InvalidError([problem("job_id", job_id, IDENTIFIER_RULE)])
    spec = await _upload(control, job)
    view, _created = await control.submit_job(specs.ENGINE, spec, job_id=job_id)
    return view


async def deployed_spec(control: ControlPlane, job_id: str) -> specs.DataflowSpec:
    """The spec of a job as it is stored. Raises `NotFoundError`, and `UnsupportedError` for one of another engine."""
    view = await control.get_job(job_id)
    if view.engine != specs.ENGINE:
        hint = f"`shoal job upgrade {job_id} -f FILE` takes its spec"
        raise UnsupportedError(f"job {job_id!r} is of the engine {view.engine!r} and has no dataflow", hint=hint)
    return specs.decode(view.spec)


async def upgrade_job(control: ControlPlane, job: CollectedJob, *, job_id: str = "") -> JobView:
    """Give a job another program, on the state that it has. It is asked for here; the job then saves and goes on.

    What does not fit is refused before anything is uploaded: `InvalidError` with the texts of both.
    """
    job_id = job_id or job.spec.name
    specs.check_fit(await deployed_spec(control, job_id), job.spec)
    return await control.upgrade_job(job_id, await _upload(control, job))


async def _upload(control: ControlPlane, job: CollectedJob) -> bytes:
    """Store what a job needs, and return its spec."""
    for content in (job.package.plan, job.package.bundle):
        await control.upload_artifact(content)
    for name, value in job.secrets.items():
        await control.set_secret(name, value)
    return specs.encode(replace(job.spec, insecure=control.identity is None))


def _collect(module: str, flow: str) -> tuple[Bundle, list[str]]:
    """The files of a module, and the modules beside it that it imports: those are not sent.

    What was typed in by hand has no files, and travels with the plan.
    """
    search_path: Sequence[str] = [each or "." for each in sys.path]
    if module == _MAIN:
        main = sys.modules[_MAIN]
        name = getattr(getattr(main, "__spec__", None), "name", "")
        file = getattr(main, "__file__", "") or ""
        if name:  # python -m
            module = name.removesuffix(f".{_MAIN}")
        elif file and Path(file).stem.isidentifier():
            module, search_path = Path(file).stem, [str(Path(file).absolute().parent)]
        else:
            return Bundle(f"{_MAIN}:{flow}", versions=current_versions()), []
    try:
        bundle = collect_bundle(f"{module}:{flow}", search_path, {})
    except NotFoundError as error:
        raise PreconditionError(
            f"the files of module {module!r} are not found, so its code cannot be sent",
            hint="submit a program that lies in a directory: a module or a package",
        ) from error
    return bundle, find_siblings(bundle.files, search_path)


def _absolute(settings: FlowSettings) -> FlowSettings:
    """The same with checkpoints where other processes look for them."""
    checkpoint = settings.checkpoint
    if checkpoint is None or files.is_absolute(checkpoint.directory):
        return settings
    return replace(settings, checkpoint=replace(checkpoint, directory=str(Path(checkpoint.directory).absolute())))


def _brokers(sinks: Sequence[Node], job: str) -> dict[str, tuple[str, bytes]]:
    """The clusters of a plan that have settings: the name of the secret for each, and its value."""
    connectors = [node.connector for node in walk(*sinks) if isinstance(node, Source | Sink)]
    names = sorted({each.broker for each in connectors if isinstance(each, TopicConnector) and each.broker})
    relative = [name for name in names if not is_kafka(name) and not files.is_absolute(name)]
    if relative:
        raise PreconditionError(
            f"the local log {relative[0]!r} is a path of this program's directory, and a job runs elsewhere",
            hint="give App(broker=…) or App(data_dir=…) an absolute path, or use Kafka",
        )
    with_settings = [name for name in names if has_settings(name)]
    return {
        name: (f"{job}.broker-{number}", _settings_text(settings_of(name))) for number, name in enumerate(with_settings)
    }


def _settings_text(settings: KafkaSettings) -> bytes:
    body = {each.name: getattr(settings, each.name) for each in dataclasses.fields(settings)}
    return json.dumps({**body, "client": dict(settings.client)}, sort_keys=True).encode()
