"""Steady load, and the moments at which its effects are seen.

`Load` is an open loop: when each operation is due is fixed in advance, and latency is counted from then, so that an
operation that had to wait behind a slow one shows the wait. `Sightings` follows the control plane's events. `CpuWatch`
tells what a process uses meanwhile. Called by the areas.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

import psutil

from shoal.client import ControlPlane
from shoal.core.errors import DeadlineError
from shoal.core.tasks import task_scope
from shoal.model.events import Event

PATIENCE = 60.0
"""Seconds until something that should have happened is called missing. Far above any bar: a miss is a failure."""

_LEAD = 0.1


class Load:
    """Operations at a steady rate, and when the effects of each were seen."""

    def __init__(self, names: Iterable[str], *, rate: float, effects: Sequence[str]) -> None:
        self.names = tuple(names)
        self._rate = rate
        self._due: dict[str, float] = {}
        self._seen: dict[str, dict[str, float]] = {effect: {} for effect in effects}
        self._all_seen = asyncio.Event()

    def see(self, effect: str, name: str) -> None:
        """An effect shows. The first time counts; what belongs to no operation of this load is left out."""
        seen = self._seen.get(effect)
        if seen is None or name not in self._due or name in seen:
            return
        seen[name] = asyncio.get_running_loop().time()
        if all(len(each) == len(self.names) for each in self._seen.values()):
            self._all_seen.set()

    async def run(self, act: Callable[[str], Awaitable[object]], *, patience: float = PATIENCE) -> None:
        """Begin every operation when it is due and wait until every effect of every one was seen."""
        loop = asyncio.get_running_loop()
        begin = loop.time() + _LEAD
        self._due = {name: begin + number / self._rate for number, name in enumerate(self.names)}

        async def operate(name: str) -> None:
            await act(name)

        async with asyncio.TaskGroup() as operations:
            for name, moment in self._due.items():
                await asyncio.sleep(max(0.0, moment - loop.time()))
                operations.create_task(operate(name))
        try:
            async with asyncio.timeout(patience):
                await self._all_seen.wait()
        except TimeoutError:
            missing = {effect: len(self.names) - len(seen) for effect, seen in self._seen.items()}
            told = ", ".join(f"{count} of {effect!r}" for effect, count in missing.items() if count)
            raise DeadlineError(f"not seen within {patience:g} s after the load: {told}") from None

    def latencies(self, effect: str) -> list[float]:
        """Seconds from when each operation was due until its effect was seen."""
        return [moment - self._due[name] for name, moment in self._seen[effect].items()]


class Arrivals:
    """The commands that arrive at hollow nodes, handed to the load that is under way."""

    def __init__(self) -> None:
        self.load: Load | None = None
        self._generations: dict[str, int] = {}

    def arrived(self, verb: str, workload_id: str, generation: int) -> None:
        """A command has arrived. One that was sent twice, or once more for an older generation, is no news."""
        is_news = generation > self._generations.get(workload_id, 0)
        self._generations[workload_id] = max(generation, self._generations.get(workload_id, 0))
        if self.load is not None and (is_news or verb == "delete"):
            self.load.see(verb, workload_id)


class Observations:
    """The events of a control plane with the moments at which they arrived here."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Event]] = []
        self._listeners: list[Callable[[Event], None]] = []
        self._more = asyncio.Condition()

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call this for every event from now on."""
        self._listeners.append(listener)

    async def wait_for(
        self, matches: Callable[[Event], bool], *, count: int = 1, patience: float = PATIENCE
    ) -> list[float]:
        """Wait until so many events match, those seen already included. Returns when each of them was seen."""
        try:
            async with asyncio.timeout(patience), self._more:
                while len(found := [moment for moment, event in self.events if matches(event)]) < count:
                    await self._more.wait()
        except TimeoutError:
            raise DeadlineError(f"an event that should have come did not within {patience:g} s") from None
        return found

    async def follow(self, control: ControlPlane, cursor: int) -> None:
        """Note events for ever."""
        async for event in control.watch_events(after=cursor):
            self.events.append((asyncio.get_running_loop().time(), event))
            for listener in self._listeners:
                listener(event)
            async with self._more:
                self._more.notify_all()


class CpuWatch:
    """How much of a core a process uses from now on."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._begun = asyncio.get_running_loop().time()
        self._used = self._seconds()

    def _seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def share(self) -> float:
        """CPU time by time."""
        return (self._seconds() - self._used) / (asyncio.get_running_loop().time() - self._begun)


@contextlib.asynccontextmanager
async def observations(control: ControlPlane) -> AsyncIterator[Observations]:
    """Follow the events for the length of a block, beginning with the first one after now."""
    cursor = (await control.list_events(limit=1, newest=True)).next
    seen = Observations()
    async with task_scope("sightings") as scope:
        scope.start(seen.follow(control, cursor), name="events")
        yield seen
