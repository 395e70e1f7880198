"""What the acts of `shoal demo` share: the report, workload documents, and waits.

Called by `shoal.cli.local.demo`, `demo_stream` and `demo_container`; calls the client of the control plane.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.cli import output
from shoal.core.clock import Clock
from shoal.core.errors import DeadlineError
from shoal.model.documents import WorkloadDocument, read_document
from shoal.model.workloads import WorkloadType

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.model.views import WorkloadView

PATIENCE = 60.0


@dataclass(slots=True)
class Report:
    """One line for each promise, and whether it was kept. Counts the acts."""

    #: None for what was left out.
    lines: list[tuple[bool | None, str]] = field(default_factory=list)
    acts: int = 0

    def act(self, text: str) -> None:
        """Begin the next act, with its heading."""
        self.acts += 1
        title(f"Act {self.acts}: {text}")

    def note(self, kept: bool, promise: str) -> None:
        """Add a promise, and whether it was kept."""
        self.lines.append((kept, promise))

    def leave_out(self, reason: str) -> None:
        """Say what was not shown, and why."""
        output.words(reason)
        self.lines.append((None, reason))

    @property
    def good(self) -> bool:
        """Whether everything was as promised."""
        return any(kept for kept, _ in self.lines) and not any(kept is False for kept, _ in self.lines)


def title(text: str) -> None:
    """A heading."""
    output.words("")
    output.words(text, style="bold")


def process_document(
    name: str, command: list[str], *, cpu: int = 200, memory: int = 128, **process: object
) -> WorkloadDocument:
    """A process as a workload, with so many thousandths of a core and so many MB."""
    spec = {"process": {"command": command, **process}}
    return workload_document(name, WorkloadType.PROCESS, spec, cpu=cpu, memory=memory)


def workload_document(
    name: str, kind: WorkloadType, spec: Mapping[str, object], *, cpu: int, memory: int
) -> WorkloadDocument:
    """A workload with so many thousandths of a core and so many MB."""
    resources = {"cpu_millicores": cpu, "memory_mb": memory}
    document = read_document({"id": name, "revision": "v1", "type": kind.value, "resources": resources, **spec})
    assert isinstance(document, WorkloadDocument)  # noqa: S101 it has no kind, so it is a workload
    return document


def pid_of(view: WorkloadView) -> int:
    """The process of a workload, or 0."""
    return view.run.pid if view.run is not None else 0


async def wait_for(
    control: ControlPlane, clock: Clock, workload_id: str, holds: Callable[[WorkloadView], bool]
) -> None:
    """Wait until a condition holds for a workload."""

    async def done() -> bool:
        return holds(await control.get_workload(workload_id))

    await until(clock, f"{workload_id} is as expected", done)


async def until(clock: Clock, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds. Raises `DeadlineError`."""
    deadline = clock.monotonic() + PATIENCE
    while not await holds():
        if clock.monotonic() > deadline:
            raise DeadlineError(
                f"waited {PATIENCE:.0f} s until {what}",
                hint="is this machine busy? run it again",
            )
        await clock.sleep(0.1)
