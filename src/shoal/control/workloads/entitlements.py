"""Which workloads may have a certificate of their own, and what one may wish for with it. Pure.

A certificate of role workload stands for one group on one node. `shoal.wire.authorization` lets its holder call
ApplyGroup, for its own group; the rest is here, because it takes what the control plane knows. The holder may make its
group anew and get nothing by it that the group does not have: no other user, no other secret. Whoever was replaced
meanwhile, or whose group is gone, may wish for nothing, though its certificate is good for a while yet.

Called by `shoal.control.api.service` and `shoal.control.workloads.groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.control.workloads.requests import WorkloadRequest
from shoal.core.errors import DeniedError, InvalidError, Problem, problem
from shoal.core.ids import GroupId
from shoal.model.identity import Identity, Role
from shoal.model.workloads import DesiredState, GroupRecord, WorkloadRecord, WorkloadSpec, WorkloadType


def identity_problem(spec: WorkloadSpec, at: str, *, grouped: bool, issues: bool) -> Problem | None:
    """Why a workload cannot have a certificate although its spec asks for one; None when it can, or does not ask.

    Args:
        spec: what is wished for.
        at: where the spec is in the request.
        grouped: whether it is a member of a group.
        issues: whether this control plane can issue certificates at all.
    """
    if spec.process is None or not spec.process.identity:
        return None
    if not grouped:
        rule = "is for members of groups: there is nothing that another workload could be allowed to do"
    elif not issues:
        rule = "needs a control plane that issues certificates; this one has no signing key (--ca-key)"
    else:
        return None
    return problem(f"{at}.process.identity", True, rule)


def check_identities(requests: Sequence[WorkloadRequest], *, issues: bool) -> None:
    """Whether the members of a group can have the certificates that they ask for. Raises `InvalidError`."""
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
    requests: Sequence[WorkloadRequest],
    *,
    expected_generation: int | None,
) -> None:
    """Whether a workload may make its group what `requests` say. Others may; roles have been looked at before.

    Args:
        by: who asks.
        group_id: of which group.
        known: the group as it is stored.
        members: what it has now.
        requests: what it is to have.
        expected_generation: the one that the caller has seen.

    Raises:
        DeniedError: it may not.
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
    _check_gains(by, present, requests)


def _check_gains(by: Identity, present: Sequence[WorkloadRecord], requests: Sequence[WorkloadRequest]) -> None:
    users, secrets = set[str](), set[str]()
    for record in present:
        if record.spec.process is not None:
            users.add(record.spec.process.user)
            secrets.update(record.spec.process.env_from_secrets.values())
    for requested in requests:
        process = requested.spec.process
        if requested.spec.type is not WorkloadType.PROCESS or process is None:
            raise _denied(
                by, f"may wish for processes only: {requested.workload_id!r} is a {requested.spec.type.value}"
            )
        if process.user not in users:
            raise _denied(by, f"may not run {requested.workload_id!r} as another user than the members of its group do")
        gained = sorted(set(process.env_from_secrets.values()) - secrets)
        if gained:
            raise _denied(
                by, f"may not give {requested.workload_id!r} secret {gained[0]!r}: its group does not have it"
            )


def _denied(by: Identity, words: str) -> DeniedError:
    return DeniedError(f"{by} {words}", role=by.role, name=by.name, job=by.job)
