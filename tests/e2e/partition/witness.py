"""Watches a fleet: clients that request things and note the answers, and repeated looks at every process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

from shoal.core.errors import NotFoundError, NotLeaderError, ShoalError
from shoal.testing.evidence import Answer, Ended, Evidence, Ran, Wrote, difference
from tests.e2e.fleet.drill import process
from tests.e2e.partition.stage import ONLY_ONCE

LOOK_SECONDS = 0.05
CALL_SECONDS = 4.0
#: A process that was just forked has the environment of its parent until it executes something else.
_LOOKS_BEFORE_STRANGER = 10
_TICK = os.sysconf("SC_CLK_TCK")


class Processes:
    """Which processes of workloads there are, by what they carry in their environment."""

    def __init__(self, control_address):
        self._mark = f"SHOAL_CONTROL={control_address}"
        self._strangers = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness", daemon=True)
        self._lock = threading.Lock()
        self._runs = {}

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self._ended.set()
        self._thread.join()

    @property
    def runs(self):
        with self._lock:
            return tuple(self._runs.values())

    def alive(self, workload_id):
        return [run for run in self.runs if run.workload_id == workload_id and run.missed_at is None]

    def _watch(self):
        while not self._ended.wait(LOOK_SECONDS):
            self._look()

    def _look(self):
        began, seen = time.monotonic(), {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    self._look_at(entry.name, began, seen)
        now = time.monotonic()
        gone = {
            key: replace(run, missed_at=now)
            for key, run in self._runs.items()
            if key not in seen and run.missed_at is None
        }
        with self._lock:
            self._runs.update(seen | gone)

    def _look_at(self, pid, now, seen):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        state, parent, started = fields[0], fields[1], fields[19]
        key = f"{pid}/{started}"
        if state in "ZX" or self._strangers.get(key, 0) >= _LOOKS_BEFORE_STRANGER:
            return
        if key in self._runs:
            seen[key] = replace(self._runs[key], last_seen=now)
            return
        said = dict(
            each.partition("=")[::2]
            for each in Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        )
        ours = f"SHOAL_CONTROL={said.get('SHOAL_CONTROL')}" == self._mark and "SHOAL_WORKLOAD_ID" in said
        if not ours or any(known.startswith(f"{parent}/") for known in (*seen, *self._runs)):
            self._strangers[key] = self._strangers.get(key, 0) + 1
            return
        seen[key] = Ran(
            workload_id=said["SHOAL_WORKLOAD_ID"],
            node_id=said["SHOAL_NODE_ID"],
            generation=int(said["SHOAL_GENERATION"]),
            revision=said.get("REVISION", ""),
            process=key,
            began=min(now, (int(started) + 1) / _TICK),
            last_seen=now,
        )


class Clients:
    """Clients that request things, one at a time for each workload, and note what they were told."""

    def __init__(self, stage, *, plain, only_once, seed):
        self._stage = stage
        self.plain, self.only_once = tuple(plain), tuple(only_once)
        self._random = random.Random(seed)
        self._revision = 0
        self._tasks = []
        self._under_way = set()
        self.writes = []
        self._control = stage.client()

    async def close(self):
        await self.rest()
        await self._control.close()

    async def write(self, name, *, delete=False):
        """Ask once, and note what came of it. True when it was acknowledged."""
        self._revision += 1
        revision = None if delete else f"r{self._revision}"
        asked_at, answer = time.monotonic(), Answer.LOST
        try:
            async with asyncio.timeout(CALL_SECONDS):
                if delete:
                    await self._control.delete(name)
                else:
                    await self._control.apply(self._document(name, revision))
            answer = Answer.ACKNOWLEDGED
        except NotFoundError:
            answer = Answer.ACKNOWLEDGED  # it is gone already, which is what was requested
        except NotLeaderError:
            answer = Answer.REFUSED
        except (ShoalError, TimeoutError):
            pass
        self.writes.append(Wrote(name, revision, asked_at, time.monotonic(), answer))
        return answer is Answer.ACKNOWLEDGED

    async def insist(self, name):
        """Ask until it is acknowledged."""
        while not await self.write(name):
            await asyncio.sleep(0.2)

    def begin(self):
        """Go on asking for changes, side by side for all workloads."""
        self._tasks = [asyncio.ensure_future(self._go_on(name)) for name in (*self.plain, *self.only_once)]

    async def rest(self):
        """Request no more, and wait for the answers to what was requested."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        await asyncio.gather(*self._under_way)

    async def _go_on(self, name):
        while True:
            await asyncio.sleep(self._random.uniform(0.5, 3.0) if name in self.plain else self._random.uniform(4, 10))
            delete = name in self.plain and self._random.random() < 0.25
            # Shielded: a request that was sent has to be noted, whatever becomes of this task.
            writing = asyncio.ensure_future(self.write(name, delete=delete))
            self._under_way.add(writing)
            writing.add_done_callback(self._under_way.discard)
            await asyncio.shield(writing)

    def _document(self, name, revision):
        command = ["sleep", "3600"]
        if name in self.only_once:
            command = ["sh", "-c", ONLY_ONCE, str(self._stage.folder / f"{name}.lock")]
        fields = {"at_most_one": True} if name in self.only_once else {}
        return process(name, revision=revision, command=command, process={"env": {"REVISION": revision}}, **fields)

    # -----------------------------------------------------------------------------------------------------
    # In the end

    async def converge(self, processes, *, healed_at, bound):
        """Wait until everything is as it should be, and put the whole history together."""
        evidence = None
        while time.monotonic() < healed_at + bound:
            with contextlib.suppress(ShoalError):
                evidence = await self._evidence(processes, healed_at, time.monotonic())
                if not difference(evidence):
                    return evidence
            await asyncio.sleep(0.2)
        assert evidence is not None, "nobody answered"
        return replace(evidence, converged_at=None)

    async def _evidence(self, processes, healed_at, now):
        views = await self._control.list_workloads()
        return Evidence(
            writes=tuple(self.writes),
            runs=processes.runs,
            only_once=frozenset(self.only_once),
            ends={view.workload_id: Ended(view.status, view.revision_id, view.assigned_node_id) for view in views},
            healed_at=healed_at,
            converged_at=now,
        )
