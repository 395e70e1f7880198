"""What a workload may change of its own group with its certificate. Pure.

A certificate of role workload stands for one group on one node. `shoal.wire.trust.authorization` lets its holder call
ApplyGroup for that group; the rest is decided here. The table says for each field of a spec whether a member may change
it: arguments within the bounds that the operator set (`member_changes`), and nothing else. New members are copies of
members that are there, as many as the bounds allow. A field that is not in the table may not be changed, and a test
compares the table with the specs. A member that was replaced, or whose group is deleted, may change nothing, although
its certificate is still valid.

Called by `shoal.control.api.service` and `shoal.control.workloads.groups`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from shoal.core.errors import DeniedError, InvalidError, Problem, problem
from shoal.core.ids import GroupId, WorkloadId
from shoal.model.identity import Identity, Role
from shoal.model.workloads import (
    ComposeSpec,
    ContainerSpec,
    DesiredState,
    GroupRecord,
    MemberChanges,
    ProcessSpec,
    VmSpec,
    WorkloadRecord,
    WorkloadSpec,
)


class RequestedMember(Protocol):
    """A member of a group as it is requested."""

    @property
    def workload_id(self) -> WorkloadId: ...  # noqa: D102

    @property
    def spec(self) -> WorkloadSpec: ...  # noqa: D102

    @property
    def desired(self) -> DesiredState: ...  # noqa: D102


class Rule(enum.Enum):
    """Whether a member may change a field."""

    FIXED = "must stay as it is"
    BY_FIELD = "each of its fields has a rule of its own"
    ARGUMENTS = "only arguments that begin with one of member_changes.arg_prefixes may differ"


def _fixed(names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), Rule.FIXED)


#: What a member may change of a spec, field by field.
TABLE: Mapping[type, Mapping[str, Rule]] = {
    WorkloadSpec: _fixed("type resources metadata placement slots at_most_one labels failover")
    | dict.fromkeys(("container", "compose", "vm", "process"), Rule.BY_FIELD),
    ProcessSpec: _fixed(
        "command env working_dir user restart readiness liveness stop ports clear_env env_from_secrets identity files "
        "artifacts"
    )
    | {"args": Rule.ARGUMENTS},
    ContainerSpec: _fixed(
        "image command env volumes ports restart_policy privileged managed_volumes args init user working_dir stop "
        "pull_policy ulimits labels cpu_shares restart readiness liveness env_from_secrets files"
    ),
    ComposeSpec: _fixed(
        "source_type git_repo git_ref inline_yaml env stop restart retain_policy env_from_secrets files"
    ),
    VmSpec: _fixed(
        "vcpus memory_mb disks networks cloud_init os_image managed_volumes kernel initrd kernel_args os_image_sha256 "
        "acceleration boot stop restart retain_policy"
    ),
}


def identity_problem(spec: WorkloadSpec, at: str, *, grouped: bool, issues: bool) -> Problem | None:
    """Why a workload cannot have the certificate that its spec asks for; None when it can, or does not ask.

    Args:
        spec: the requested spec.
        at: where the spec is in the request.
        grouped: whether it is a member of a group.
        issues: whether this control plane can issue certificates at all.
    """
    if not spec.body.identity:
        return None
    if not grouped:
        rule = "is for members of groups: there is nothing that another workload could be allowed to do"
    elif not issues:
        rule = "needs a control plane that issues certificates; this one has no signing key (--ca-key)"
    else:
        return None
    return problem(f"{at}.process.identity", True, rule)


def check_identities(requests: Sequence[RequestedMember], *, issues: bool) -> None:
    """Raise `InvalidError` if members of a group cannot have the certificates that they ask for."""
    found = (
        identity_problem(requested.spec, f"members[{index}].spec", grouped=True, issues=issues)
        for index, requested in enumerate(requests)
    )
    problems = [each for each in found if each is not None]
    if problems:
        raise InvalidError(problems)


def check_entitled(
    by: Identity | None,
    group_id: GroupId,
    known: GroupRecord | None,
    members: Iterable[WorkloadRecord],
    requests: Sequence[RequestedMember],
    *,
    member_changes: MemberChanges | None,
    expected_generation: int | None,
) -> None:
    """Raise `DeniedError` if a workload may not change its group this way. Other roles were checked before.

    Args:
        by: the caller.
        group_id: the group to change.
        known: the group as it is stored.
        members: its present members.
        requests: the members that it is to have.
        member_changes: the requested bounds; only an operator sets these.
        expected_generation: the one that the caller has seen.
    """
    if by is None or by.role is not Role.WORKLOAD:
        return
    if by.job != group_id:
        raise _denied(by, f"may change its own group only, not {group_id!r}")
    if known is None or known.desired is DesiredState.DELETED:
        raise _denied(by, f"may not make a group, and there is no group {group_id!r}")
    if expected_generation is None:
        raise _denied(by, "must say which generation of its group it has seen: expected_generation")
    present = [each for each in members if each.desired is not DesiredState.DELETED]
    if not any(each.node_id == by.node for each in present):
        raise _denied(by, f"has been replaced: no member of group {group_id!r} is on node {by.node!r} now")
    bounds = known.member_changes.resolved(len(known.members))
    if member_changes is not None and not _are_same(member_changes, bounds):
        raise _denied(by, "may not change member_changes: its operator sets the bounds")
    if not bounds.min_members <= len(requests) <= bounds.max_members:
        allowed = f"{bounds.min_members} to {bounds.max_members}"
        raise _denied(by, f"may not give its group {len(requests)} members: its operator allows {allowed}")
    by_id = {each.workload_id: each for each in present}
    for requested in requests:
        own = by_id.get(requested.workload_id)
        _check_member(by, requested, [own] if own is not None else present, bounds)


def _are_same(given: MemberChanges, bounds: MemberChanges) -> bool:
    """Whether a member sends the bounds of its group as they are; a number that it leaves out is no change."""
    numbers = ((given.min_members, bounds.min_members), (given.max_members, bounds.max_members))
    return given.arg_prefixes == bounds.arg_prefixes and all(one in (0, other) for one, other in numbers)


def _check_member(
    by: Identity, requested: RequestedMember, templates: Sequence[WorkloadRecord], bounds: MemberChanges
) -> None:
    """A member keeps its own spec; a new one has that of a present member."""
    changed = [_changed(template, requested, bounds) for template in templates]
    if "" not in changed:
        raise _denied(
            by,
            f"may not change {changed[0]} of {requested.workload_id!r}; a member may change process.args, within the "
            "member_changes of its group",
        )


def _changed(template: WorkloadRecord, requested: RequestedMember, bounds: MemberChanges) -> str:
    """The first field that differs from a template's and may not; empty when there is none."""
    if requested.desired is not template.desired:
        return "desired_state"
    return _first_difference(template.spec, requested.spec, bounds, at="")


def _first_difference(before: Any, after: Any, bounds: MemberChanges, *, at: str) -> str:
    table = TABLE.get(type(before), {})
    for field in dataclasses.fields(before):
        name = f"{at}.{field.name}" if at else field.name
        was, wanted = getattr(before, field.name), getattr(after, field.name)
        rule = table.get(field.name, Rule.FIXED)
        if was == wanted or (rule is Rule.ARGUMENTS and _without(was, bounds) == _without(wanted, bounds)):
            continue
        if rule is not Rule.BY_FIELD or was is None or wanted is None:
            return name
        found = _first_difference(was, wanted, bounds, at=name)
        if found:
            return found
    return ""


def _without(args: Sequence[str], bounds: MemberChanges) -> list[str]:
    """The arguments that must stay as they are."""
    return [each for each in args if not each.startswith(bounds.arg_prefixes)]


def _denied(by: Identity, words: str) -> DeniedError:
    return DeniedError(f"{by} {words}", role=by.role, name=by.name, job=by.job)
