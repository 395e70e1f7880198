"""Hypothesis strategies made from the declared kinds and rules of dataclasses: whatever a rule allows can be drawn."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any

from hypothesis import strategies as st

from shoal.core.shape import MaxLength, NumberToo, OneOf, Pattern, Range, field_kinds, find_problems, plain_kind
from shoal.model.documents import GroupDocument, WorkloadDocument
from shoal.model.resources import PoolShare, Resources
from shoal.model.workloads import (
    CommandProbe,
    ComposeSpec,
    Constraint,
    ContainerSpec,
    Failover,
    FileSpec,
    Liveness,
    PortMapping,
    ProcessSpec,
    Readiness,
    RestartPolicy,
    Ulimit,
    VmBoot,
    VmDisk,
    VmNetwork,
    VmSpec,
    WorkloadSpec,
    WorkloadType,
)

MOST_ENTRIES = 3
MOST_CHARACTERS = 20


def values_of(kind: Any, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Valid values of a kind; `fixed` gives strategies for fields of a dataclass by name."""
    kind, rules = _strip(kind)
    return _plain(kind, rules, fixed).filter(lambda value: value is None or not any(r.broken(value) for r in rules))


def workload_specs() -> st.SearchStrategy[WorkloadSpec]:
    """Valid specs of every kind of workload."""
    return st.one_of(*(_specs_of(kind) for kind in WorkloadType))


def documents() -> st.SearchStrategy[WorkloadDocument | GroupDocument]:
    """Valid documents of workloads and groups."""
    identifiers = st.sampled_from(["web", "a-1", "x.y_z"])
    workloads = st.builds(
        WorkloadDocument,
        id=identifiers,
        spec=workload_specs(),
        revision=st.sampled_from(["", "v1", "0x10", "null"]),
        desired_state=st.sampled_from(["Running", "Stopped"]),
    )
    members = st.lists(workloads, min_size=1, max_size=3, unique_by=lambda each: each.id).map(tuple)
    return workloads | st.builds(GroupDocument, id=identifiers, members=members)


@functools.cache
def _specs_of(kind: WorkloadType) -> st.SearchStrategy[WorkloadSpec]:
    body = values_of(plain_kind(field_kinds(WorkloadSpec)[kind.value]))
    absent = {other.value: st.none() for other in WorkloadType}
    return values_of(WorkloadSpec, type=st.just(kind), **{**absent, kind.value: body})


def _strip(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    if typing.get_origin(kind) is Annotated:
        inner, *rules = typing.get_args(kind)
        inner, deeper = _strip(inner)
        return inner, (*deeper, *rules)
    return (_strip(kind.__supertype__)) if hasattr(kind, "__supertype__") else (kind, ())


def _plain(kind: Any, rules: tuple[Any, ...], fixed: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    origin = typing.get_origin(kind)
    least = max((rule.least for rule in rules if isinstance(rule, MaxLength)), default=0)
    if origin in (typing.Union, types.UnionType):
        return st.none() | values_of(typing.get_args(kind)[0])
    if origin is tuple:
        return st.lists(values_of(typing.get_args(kind)[0]), min_size=least, max_size=MOST_ENTRIES).map(tuple)
    if origin is frozenset:
        return st.frozensets(values_of(typing.get_args(kind)[0]), min_size=least, max_size=MOST_ENTRIES)
    if origin in (dict, Mapping):
        key, value = typing.get_args(kind)
        return st.dictionaries(values_of(key), values_of(value), min_size=least, max_size=MOST_ENTRIES)
    if dataclasses.is_dataclass(kind):
        fixed = {**_related(kind), **fixed}
        return st.one_of(*(_built(kind, {**each, **fixed}) for each in _alternatives(kind)))
    return _scalar(kind, rules)


def _built(kind: Any, fixed: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    fields = {name: fixed[name] if name in fixed else values_of(inner) for name, inner in field_kinds(kind).items()}
    return st.builds(kind, **fields).filter(lambda value: not find_problems(value))


@functools.cache
def _alternatives(kind: type) -> tuple[Mapping[str, st.SearchStrategy[Any]], ...]:
    """Fields of which a rule allows certain combinations only: each of these is one."""
    if kind in (Readiness, Liveness):
        probes = {name: plain_kind(field_kinds(kind)[name]) for name in ("tcp_port", "http", "command")}
        return tuple(
            {each: values_of(probes[name]) if each == name else st.none() for each in probes} for name in probes
        )
    if kind is Constraint:
        values = values_of(field_kinds(kind)["values"])
        return (
            {"operator": st.sampled_from(["in", "not_in"]), "values": values.filter(bool)},
            {"operator": st.sampled_from(["exists", "not_exists"]), "values": st.just(())},
        )
    if kind is Failover:
        after = values_of(field_kinds(kind)["after"])
        return (
            {"policy": st.just("replace")},
            {"policy": st.just("keep"), "after": st.just(timedelta(0))},
            {"policy": st.just("stop"), "after": after.filter(bool)},
        )
    return ({},)


@functools.cache
def _related(kind: type) -> Mapping[str, st.SearchStrategy[Any]]:
    """Fields whose rules depend on each other so much that values drawn apart would seldom pass."""
    command = CommandProbe(("true",))
    sha256 = "0" * 64
    tables: dict[type, Callable[[], dict[str, st.SearchStrategy[Any]]]] = {
        Resources: lambda: {
            "pools": st.dictionaries(st.sampled_from(["a", "b"]), st.integers(1, 9)).map(
                lambda sizes: tuple(PoolShare(name, gb) for name, gb in sorted(sizes.items()))
            )
        },
        FileSpec: lambda: {"content": st.sampled_from(["", "x\n", "ü"]), "secret": st.just(""), "mode": _MODES},
        ProcessSpec: lambda: {
            "command": values_of(field_kinds(ProcessSpec)["args"]).map(lambda words: ("run", *words)),
            "files": _files("etc/"),
            "env_from_secrets": _SECRETS,
        },
        ComposeSpec: lambda: {"files": _files("./"), "env_from_secrets": _SECRETS},
        ContainerSpec: lambda: {
            "files": _files("/etc/"),
            "env_from_secrets": _SECRETS,
            "ports": _mappings(),
            "restart": st.none() | st.builds(RestartPolicy, policy=st.just("no"), max_retries=st.integers(0, 9)),
            "restart_policy": st.sampled_from(["", "no"]),
            "readiness": st.none() | st.just(Readiness(command=command)) | st.just(Readiness(tcp_port="80")),
            "liveness": st.none() | st.just(Liveness(command=command, failure_threshold=9)),
            "ulimits": st.lists(st.sampled_from([Ulimit("nofile", 1, 2), Ulimit("core", -1, -1)]), unique=True).map(
                tuple
            ),
        },
        VmDisk: lambda: {
            "image": st.just(""),
            "path": st.just(""),
            "sha256": st.just(""),
            "read_only": st.just(False),
        },
        VmNetwork: lambda: {"bridge": st.just(""), "ports": st.just(())},
        VmSpec: lambda: {
            "disks": st.lists(
                values_of(VmDisk)
                | st.sampled_from(
                    [
                        VmDisk(image="/a.iso", format="iso", read_only=True),
                        VmDisk(image="https://example.org/a", sha256=sha256),
                        VmDisk(path="/a.raw", format="raw"),
                    ]
                ),
                max_size=3,
                unique_by=lambda disk: disk.name or object(),
            ).map(tuple),
            "networks": st.sampled_from(
                [
                    (),
                    (VmNetwork("br0", True, "10.0.0.2/24"), VmNetwork(tap="tap0", mac="52:54:00:00:00:01", name="lan")),
                    (VmNetwork(ports=(PortMapping(22, 0, "tcp", "ssh"), PortMapping(80, 8080))),),
                ]
            ),
            "kernel": st.just("/boot/vmlinuz"),
            "boot": st.none()
            | st.just(VmBoot("login: $", guest_agent=True))
            | st.just(VmBoot("^ready", deadline=_A_WEEK)),
        },
    }
    return tables.get(kind, dict)()


_A_WEEK = timedelta(weeks=1)
_MODES = st.sampled_from([0o444, 0o400, 0o555])
_SECRETS = st.dictionaries(st.sampled_from(["SECRET_A", "SECRET_B"]), st.sampled_from(["a", "b"]))


def _files(prefix: str) -> st.SearchStrategy[tuple[FileSpec, ...]]:
    paths = st.sampled_from(["a", "b.conf", "c/d"]).map(lambda name: f"{prefix}{name}")
    files = values_of(FileSpec, path=paths) | st.builds(FileSpec, paths, secret=st.just("key"))
    return st.lists(files, max_size=MOST_ENTRIES, unique_by=lambda file: file.path).map(tuple)


def _mappings() -> st.SearchStrategy[tuple[PortMapping, ...]]:
    """One of them is a port that a probe can reach."""
    some = values_of(PortMapping)
    return st.lists(some, max_size=2).map(lambda drawn: (*drawn, PortMapping(80, 0, "tcp", "reserved-for-probes")))


def _scalar(kind: Any, rules: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if kind is bool:
        return st.booleans()
    if kind is timedelta:
        return st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=365))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    bounds = next((rule for rule in rules if isinstance(rule, Range)), Range(-(10**9), 10**9))
    if kind is int:
        return st.integers(int(bounds.low), int(bounds.high))
    if kind is float:
        return st.floats(bounds.low, bounds.high)
    assert kind is str, kind
    return _text(rules)


def _text(rules: tuple[Any, ...]) -> st.SearchStrategy[str]:
    for rule in rules:
        if isinstance(rule, OneOf):
            return st.sampled_from(rule.words)
        if isinstance(rule, Pattern):
            matching = st.from_regex(rule.pattern, fullmatch=True).filter(lambda text: len(text) <= 40)
            return (st.just("") | matching) if rule.allow_empty else matching
        if isinstance(rule, NumberToo):
            return st.integers(1, 65535).map(str)
    least = max((rule.least for rule in rules if isinstance(rule, MaxLength)), default=0)
    if any(rule.broken("relative") for rule in rules):  # a path
        paths = st.text("abc./", max_size=MOST_CHARACTERS).map(lambda text: f"/{text}")
        return paths if least else st.just("") | paths
    return st.text(st.characters(exclude_characters="\x00", codec="utf-8"), min_size=least, max_size=MOST_CHARACTERS)
