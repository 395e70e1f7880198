"""Does something to several workloads and waits for the result. Called by the verbs of `workload` and by `delete`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from shoal.cli import output
from shoal.cli.commands.common import waiting
from shoal.cli.commands.common.waiting import Goal
from shoal.cli.connection import session
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.client import ControlPlane


async def for_each(
    control: ControlPlane,
    names: Sequence[str],
    request: Callable[[str], Awaitable[object]],
    *,
    done: str,
    goal: Goal,
    detach: bool,
    timeout: timedelta,
) -> int:
    """Make a request for each, whether or not others fail, and wait for those that were accepted.

    Returns the exit code. `done` is the word for success, such as deleted.
    """
    accepted: list[str] = []
    worst = 0
    for name in dict.fromkeys(names):
        try:
            await request(name)
            accepted.append(name)
        except ShoalError as error:
            output.fail(error)
            worst = max(worst, session.exit_code_of(error))
    if detach:
        for name in accepted:
            output.words(f"{name}: will be {done}")
        return worst
    waited = await wait_for(control, accepted, goal, timeout, done=done) if accepted else 0
    return worst or waited


async def wait_for(control: ControlPlane, names: Sequence[str], goal: Goal, timeout: timedelta, *, done: str) -> int:
    """Wait until all of them are at the goal, and say so of each. Returns the exit code."""
    waited = await waiting.wait_all(
        control, dict.fromkeys(names, goal), clock=session.clock(), timeout=timeout.total_seconds(), grace=None
    )
    for name in waited.having(waiting.Verdict.DONE):
        output.words(f"{name}: {done}")
    waiting.explain(waited)
    return waited.exit_code
