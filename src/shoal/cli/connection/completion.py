"""Tab completion of ids: asks the control plane, waits a moment at most, and stays silent without an answer.

Called by the shell through typer. Connection options that were typed before are used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from shoal.cli.connection import session

if TYPE_CHECKING:
    from shoal.client import ControlPlane

PATIENCE = 1.0
"""Seconds to wait for an answer after Tab."""

Names = list[tuple[str, str]]


def complete_nodes(ctx: typer.Context, incomplete: str) -> Names:
    """Node ids, with their states."""

    async def ask(control: ControlPlane) -> Names:
        return [(node.node_id, node.status) for node in await control.list_nodes()]

    return _ask(ctx, ask, incomplete)


def complete_workloads(ctx: typer.Context, incomplete: str) -> Names:
    """Workload ids, with their states."""

    async def ask(control: ControlPlane) -> Names:
        return [(view.workload_id, view.status) for view in await control.list_workloads()]

    return _ask(ctx, ask, incomplete)


def complete_groups(ctx: typer.Context, incomplete: str) -> Names:
    """Group ids, with their states."""

    async def ask(control: ControlPlane) -> Names:
        return [(group.group_id, group.status) for group in await control.list_groups()]

    return _ask(ctx, ask, incomplete)


def complete_jobs(ctx: typer.Context, incomplete: str) -> Names:
    """Job ids, with their states."""

    async def ask(control: ControlPlane) -> Names:
        return [(job.job_id, job.state.value) for job in await control.list_jobs()]

    return _ask(ctx, ask, incomplete)


def complete_services(ctx: typer.Context, incomplete: str) -> Names:
    """Ids of services, with their states."""

    async def ask(control: ControlPlane) -> Names:
        return [(job.job_id, job.state.value) for job in await control.list_jobs(engine="service")]

    return _ask(ctx, ask, incomplete)


def _ask(ctx: typer.Context, ask: Callable[[ControlPlane], Awaitable[Names]], incomplete: str) -> Names:
    import asyncio

    async def patiently(control: ControlPlane) -> Names:
        async with asyncio.timeout(PATIENCE):
            return await ask(control)

    names = ("addresses", "insecure", "ca", "cert", "key")
    given = {name: ctx.params[name] for name in names if ctx.params.get(name) is not None}
    try:
        found = session.call(session.Connection(**given), patiently)
    except Exception:  # noqa: BLE001  a failure must not write over the line that is being typed
        return []
    return [(name, state) for name, state in found if name.startswith(incomplete)]
