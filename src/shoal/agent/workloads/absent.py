"""Stands in for a runtime that this agent does not have, so that workloads of its kind are kept and not lost.

An agent that is started with fewer runtimes than before still has workloads of the others in its store. They wait, and
say why, until an agent with that runtime takes over. Made by `shoal.agent.workloads.executor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from shoal.core.errors import UnavailableError
from shoal.core.ids import RunId, WorkloadId
from shoal.model.workloads import FailureReason, WorkloadType
from shoal.runtimes.base import RunError, RunInfo, RunRequest


class AbsentRuntime:
    """A `Runtime` that runs nothing, and knows nothing of what an earlier agent ran."""

    def __init__(self, kind: WorkloadType) -> None:
        self._kind = kind
        self.reason = f"this agent has no {kind.value} runtime"

    @property
    def type(self) -> WorkloadType:
        """The kind that cannot run here."""
        return self._kind

    async def open(self) -> None:
        """Nothing to do."""

    async def start(self, request: RunRequest) -> RunInfo:
        """Refuse, for now."""
        raise RunError(self.reason, failure=FailureReason.RUNTIME_ERROR, transient=True)

    async def stop(self, run_id: RunId) -> RunInfo | None:
        """Whether it still runs is not known."""
        raise UnavailableError(self.reason)

    async def inspect(self, run_id: RunId) -> RunInfo | None:
        """Nothing is known."""
        raise UnavailableError(self.reason)

    async def list_runs(self) -> tuple[RunInfo, ...]:
        """None are known."""
        return ()

    async def forget(self, run_id: RunId) -> None:
        """Left to the runtime that has it."""
        raise UnavailableError(self.reason)

    async def forget_workload(self, workload_id: WorkloadId, *, delete_data: bool) -> None:
        """Left to the runtime that has it."""
        raise UnavailableError(self.reason)

    async def watch(self) -> AsyncIterator[RunInfo]:
        """Nothing ends."""
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    async def health(self) -> str:
        """Why."""
        return f"unhealthy: {self.reason}"

    async def close(self) -> None:
        """Nothing to do."""
