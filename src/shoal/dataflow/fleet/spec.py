"""What a dataflow job is: the spec that a client submits and the control plane keeps, as JSON. Pure.

    {"format": 1, "name": "shop.totals", "plan": "<sha256>", "bundle": "<sha256>", "parallelism": 2,
     "checkpoint": {"directory": "s3://bucket/checkpoints", "interval": 1.0}, "settings": {"key_groups": 128},
     "task_host": {"cpu_millicores": 500, "memory_mb": 512}, "coordinator": {"memory_mb": 256},
     "secrets": {"AWS_SECRET_ACCESS_KEY": "s3-key"}, "brokers": {"kafka://main@k1:9092": "kafka-main"},
     "constraints": [{"key": "disk", "operator": "in", "values": ["ssd"]}], "widths": {"sum-1": 4},
     "steps": {"sum-1": {"kind": "Aggregate", "text": "sum(amount) by user", "stateful": true}}}

`plan` and `bundle` are artifacts: the prepared plan as JSON, and users' code with the plan's blobs. `widths` are those
of steps that were rescaled alone. `steps` is what an upgrade compares. Written by clients
(`shoal.dataflow.execution.remote.submission`), read by the engine and by the programs of the job.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.shape import Check, MaxLength, Pattern, Range, build, to_mapping
from shoal.dataflow.settings import KEY_GROUPS, PARTIAL, CheckpointSettings, FlowSettings
from shoal.model.workloads import Constraint, ResourceRequest

ENGINE = "dataflow"
FORMAT = 1
MOST_WIDTH = 128
MOST_STEPS = 10_000
_MOST_NAMED = 20

_NAME_RULE = "must be letters, digits, dots, dashes and underscores, and begin with a letter or a digit"
_HASH_RULE = "must be the SHA-256 of an artifact, as 64 lower-case hex digits"
_VARIABLE_RULE = "must be the name of an environment variable that does not begin with SHOAL_"
Hash = Annotated[str, Pattern(r"[0-9a-f]{64}", _HASH_RULE)]
Variable = Annotated[str, MaxLength(256, 1), Pattern(r"(?!SHOAL_)[A-Za-z_][A-Za-z0-9_]*", _VARIABLE_RULE)]
SecretName = Annotated[str, MaxLength(128, 1)]
Uid = Annotated[str, MaxLength(512, 1)]
Plain = object
#: Settings of a flow that are no business of a job: checkpoints have a field of their own, and paths are the node's.
_NOT_SETTINGS = ("checkpoint", "scratch")


def _is_a_number(value: int) -> str | None:
    return None if value == FORMAT else f"must be {FORMAT}: another version of the program wrote this"


@dataclass(frozen=True, slots=True)
class StepState:
    """A step of the plan, as an upgrade compares it."""

    kind: Annotated[str, MaxLength(128, 1)]
    #: For people.
    text: Annotated[str, MaxLength(4096)] = ""
    #: Whether a checkpoint has to have something of it.
    stateful: bool = False
    #: What its state is about, such as its keys, aggregates and window. State of another one does not fit.
    fingerprint: Annotated[str, MaxLength(256)] = ""
    #: How many tasks it can have; 0: as many as there are key groups.
    most_width: Annotated[int, Range(0, 1)] = 0


@dataclass(frozen=True, slots=True)
class DataflowSpec:
    """A dataflow job as a person wants it."""

    #: What its checkpoints and transactions are called.
    name: Annotated[str, MaxLength(200), Pattern(r"[A-Za-z0-9][A-Za-z0-9._-]*", _NAME_RULE)]
    plan: Hash
    bundle: Hash
    format: Annotated[int, Check(_is_a_number)] = FORMAT
    parallelism: Annotated[int, Range(1, MOST_WIDTH)] = 1
    #: How many tasks single steps have, by uid; the others have as many as the plan and `parallelism` say.
    widths: Annotated[Mapping[Uid, Annotated[int, Range(1, MOST_WIDTH)]], MaxLength(MOST_STEPS)] = field(
        default_factory=dict
    )
    #: Fields of `CheckpointSettings`; None: nothing survives the loss of a task host.
    checkpoint: Annotated[Mapping[str, Plain], MaxLength(64)] | None = None
    #: Fields of `FlowSettings`, without `checkpoint` and `scratch`.
    settings: Annotated[Mapping[str, Plain], MaxLength(64)] = field(default_factory=dict)
    #: What each task host, and the coordinator, gets on its node.
    task_host: ResourceRequest = ResourceRequest()
    coordinator: ResourceRequest = ResourceRequest()
    #: Variables of all processes of the job, and those by the names of secrets.
    env: Annotated[Mapping[Variable, Annotated[str, MaxLength(32_768)]], MaxLength(256)] = field(default_factory=dict)
    secrets: Annotated[Mapping[Variable, SecretName], MaxLength(64)] = field(default_factory=dict)
    #: Settings of Kafka clusters: what the plan calls a cluster, and the secret that has its settings as JSON.
    brokers: Annotated[Mapping[Annotated[str, MaxLength(2048, 1)], SecretName], MaxLength(16)] = field(
        default_factory=dict
    )
    #: How often a task host may die without a new checkpoint between; then the job fails.
    most_crashes: Annotated[int, Range(1, 1000)] = 3
    constraints: Annotated[tuple[Constraint, ...], MaxLength(32)] = ()
    steps: Annotated[Mapping[Uid, StepState], MaxLength(MOST_STEPS)] = field(default_factory=dict)
    #: For a fleet without certificates: processes of the job connect without them.
    insecure: bool = False

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        for name in _NOT_SETTINGS:
            if name in self.settings:
                yield problem(f"{prefix}settings.{name}", self.settings[name], "must not be given here")
        for each in sorted(set(self.env) & set(self.secrets)):
            yield problem(f"{prefix}secrets.{each}", self.secrets[each], "is in env, too: give it once")
        settings = {key: value for key, value in self.settings.items() if key not in _NOT_SETTINGS}
        yield from _problems_of(FlowSettings, settings, f"{prefix}settings")
        if self.checkpoint is not None:
            yield from _problems_of(CheckpointSettings, self.checkpoint, f"{prefix}checkpoint")
        groups = self.settings.get("key_groups", KEY_GROUPS)
        if isinstance(groups, int):
            rule = f"must be at most the number of key groups, {groups}"
            if self.parallelism > groups:
                yield problem(f"{prefix}parallelism", self.parallelism, rule)
            for uid, width in self.widths.items():
                if width > groups:
                    yield problem(f"{prefix}widths.{uid}", width, rule)

    @property
    def key_groups(self) -> int:
        """The shares of the key space, which never change."""
        return self.flow_settings("").key_groups

    def flow_settings(self, scratch: str) -> FlowSettings:
        """How its tasks work. `scratch`: a directory of the process."""
        given: dict[str, Any] = dict(self.settings)
        return FlowSettings(**given, scratch=scratch, checkpoint=self.checkpoint_settings)

    @property
    def checkpoint_settings(self) -> CheckpointSettings | None:
        """Where its checkpoints lie, and how often there is one."""
        given: Any = self.checkpoint
        return None if given is None else CheckpointSettings(**given)


def _problems_of(kind: type, given: Mapping[str, Plain], at: str) -> list[Problem]:
    """What is wrong with fields of a frozen value that checks itself."""
    known = [each.name for each in dataclasses.fields(kind)]
    unknown = [problem(f"{at}.{key}", given[key], "is not a setting of a job") for key in given if key not in known]
    if unknown:
        return unknown
    try:
        kind(**given)
    except InvalidError as error:
        return [dataclasses.replace(each, field=f"{at}.{each.field}") for each in error.problems]
    except TypeError:  # a field that is required is missing
        needed = [each.name for each in dataclasses.fields(kind) if each.default is dataclasses.MISSING]
        return [problem(f"{at}.{name}", None, "is required") for name in needed if name not in given]
    return []


def read_spec(given: object) -> DataflowSpec:
    """Read a parsed document. Raises `InvalidError` with every problem in it."""
    return build(DataflowSpec, given, what="dataflow job")


def encode(spec: DataflowSpec) -> bytes:
    """A spec as it is stored. Equal specs have equal bytes: what earlier versions did not know is left out if empty."""
    plain = to_mapping(spec)
    if not spec.widths:
        del plain["widths"]
    for step in plain["steps"].values():
        if not step["most_width"]:
            del step["most_width"]
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def decode(data: bytes) -> DataflowSpec:
    """Read a spec from JSON. Raises `InvalidError`."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidError([problem("spec", None, "must be JSON: the spec of a dataflow job")]) from None
    return read_spec(given)


def with_width(spec: DataflowSpec, width: int) -> DataflowSpec:
    """The same job at another width, all of its steps. Raises `InvalidError`."""
    _check_width(width, min(MOST_WIDTH, spec.key_groups))
    return dataclasses.replace(spec, parallelism=width, widths={})


def with_step_width(spec: DataflowSpec, uid: str, width: int) -> DataflowSpec:
    """The same job with another number of tasks of one step. Raises `InvalidError`."""
    step = spec.steps.get(uid)
    if step is None or uid in _parts_of_steps(spec):
        known = sorted(set(spec.steps) - _parts_of_steps(spec))
        more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
        rule = f"is no step of the job; its steps are {', '.join(known[:_MOST_NAMED])}{more}"
        raise InvalidError([problem("operator", uid, rule)])
    if step.most_width and width > step.most_width:
        raise InvalidError([problem("width", width, f"must be 1: all rows meet in one task of {uid!r} ({step.text})")])
    _check_width(width, min(MOST_WIDTH, spec.key_groups))
    return dataclasses.replace(spec, widths={**spec.widths, uid: width})


def with_widths_of(spec: DataflowSpec, before: DataflowSpec) -> DataflowSpec:
    """Another plan of a job, whose steps keep the widths that they were given alone while the job's width stays."""
    if spec.widths or spec.parallelism != before.parallelism:
        return spec
    return dataclasses.replace(spec, widths={uid: width for uid, width in before.widths.items() if uid in spec.steps})


def _check_width(width: int, most: int) -> None:
    if not 1 <= width <= most:
        raise InvalidError([problem("width", width, f"must be between 1 and {most}")])


def _parts_of_steps(spec: DataflowSpec) -> set[str]:
    """What is done of a step in the tasks of the one before it has no width of its own."""
    return {f"{uid}{PARTIAL}" for uid in spec.steps} & set(spec.steps)


def check_fit(before: DataflowSpec, after: DataflowSpec) -> None:
    """Raise `InvalidError` with the texts of both unless the state of a job fits another plan of it."""
    misfits = find_misfits(before, after)
    if misfits:
        raise InvalidError(misfits, what="the new plan does not fit the state of the job")


def find_misfits(before: DataflowSpec, after: DataflowSpec) -> list[Problem]:
    """Why the state of a job does not fit another plan of it; with the texts of both."""
    if before.checkpoint is None:
        return []
    problems: list[Problem] = []
    if after.name != before.name:
        problems.append(problem("name", after.name, f"must stay {before.name!r}: its checkpoints are called that"))
    if before.key_groups != after.key_groups:
        rule = f"must stay {before.key_groups}: its checkpoints are laid out by it"
        problems.append(problem("settings.key_groups", after.key_groups, rule))
    settings = after.checkpoint_settings
    directory = before.checkpoint.get("directory")
    if settings is None or settings.directory != directory:
        given = None if settings is None else settings.directory
        problems.append(problem("checkpoint.directory", given, f"must stay {directory!r}: its state is there"))
    for uid, old in sorted(before.steps.items()):
        new = after.steps.get(uid)
        if not old.stateful:
            continue
        if new is None:
            if settings is None or not settings.allow_unknown_state:
                rule = f"is gone, and the job has state of it ({old.kind}: {old.text}); give it back its uid, or set "
                problems.append(problem(f"steps.{uid}", None, f"{rule}checkpoint.allow_unknown_state"))
        elif new.kind != old.kind or new.fingerprint != old.fingerprint:
            rule = f"does not fit the state of the running one, which is {old.kind}: {old.text}"
            problems.append(problem(f"steps.{uid}", f"{new.kind}: {new.text}", rule))
    for uid, new in sorted(after.steps.items()):
        if new.stateful and uid not in before.steps and (settings is None or not settings.allow_missing_state):
            rule = "is new and keeps state, which no checkpoint has; set checkpoint.allow_missing_state to begin empty"
            problems.append(problem(f"steps.{uid}", f"{new.kind}: {new.text}", rule))
    return problems
