"""Workflows in memory: for tests of a control plane in virtual time.

They outlive a leadership as long as the `WorkflowMemory` does, so a test can end a control plane within a workflow and
let the next one finish it. Passes the same suite as the real ones (`shoal.testing.suites.workflows`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from shoal.core.errors import InternalError, NotLeaderError
from shoal.jobs.workflows import Change, Document, Steps, run_steps, workflow_id


@dataclass(slots=True)
class _Kept:
    change: Change
    done: dict[str, Document] = field(default_factory=dict)


class WorkflowMemory:
    """What a database of workflows would hold: unfinished workflows with the results of their steps."""

    def __init__(self) -> None:
        self.unfinished: dict[str, _Kept] = {}


class MemoryWorkflows:
    """Workflows of one leadership."""

    def __init__(self, memory: WorkflowMemory | None = None) -> None:
        self._memory = memory or WorkflowMemory()
        self._steps: Steps | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    async def open(self, steps: Steps) -> None:
        """Resume what is unfinished."""
        self._steps = steps
        for name in list(self._memory.unfinished):
            self._start(name)

    async def run(self, change: Change) -> None:
        """Carry out a transition, or finish the one that has its number."""
        if self._closed:
            raise NotLeaderError("")
        name = workflow_id(change["job"], change["number"])
        task = self._tasks.get(name)
        if task is None or task.done():
            self._memory.unfinished.setdefault(name, _Kept(change))
            task = self._start(name)
        await asyncio.wait({task})
        if task.cancelled():
            raise NotLeaderError("")
        error = task.exception()
        if isinstance(error, NotLeaderError):
            raise error
        if error is not None:
            self._memory.unfinished.pop(name, None)
            raise InternalError(f"workflow {name} failed: {error}", workflow=name) from error

    async def forget(self, job_id: str) -> None:
        """Drop what is kept of a job."""
        prefix = workflow_id(job_id, "")
        for name in [each for each in self._memory.unfinished if each.startswith(prefix)]:
            del self._memory.unfinished[name]

    async def close(self) -> None:
        """Leave the rest to the next leader."""
        self._closed = True
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._carry_out(name), name=f"workflow {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda ended: self._ended(name, ended))
        return task

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]

    async def _carry_out(self, name: str) -> None:
        kept = self._memory.unfinished[name]
        if self._steps is None:
            raise NotLeaderError("")
        await run_steps(self._steps, kept.change, done=kept.done)
        self._memory.unfinished.pop(name, None)
