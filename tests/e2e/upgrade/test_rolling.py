"""docs/upgrade.md, step by step: a fleet that serves and takes requests while each of its programs is replaced.

What is replaced is this version by itself, on the database of the version before; versions side by side are in
`test_side_by_side.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request

import pytest

from tests.e2e.fleet.drill import insist, process, until, until_status
from tests.e2e.upgrade.processes import Machines, pids_of, port
from tests.services.versions import version_before

pytestmark = pytest.mark.e2e

BEFORE = version_before()


class Requests:
    """Somebody who changes a workload all the time, and remembers what was acknowledged."""

    def __init__(self, control) -> None:
        self._control = control
        self._task: asyncio.Future[None] | None = None
        self.acknowledged = 0

    @contextlib.asynccontextmanager
    async def going_on(self):
        self._task = asyncio.ensure_future(self._go_on())
        try:
            yield self
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _go_on(self) -> None:
        while True:
            revision = str(self.acknowledged + 1)
            await insist(lambda revision=revision: self._control.apply(process("churn", revision=revision)))
            self.acknowledged += 1
            await asyncio.sleep(0.05)

    async def more(self) -> None:
        """Wait until a few more were acknowledged."""
        target = self.acknowledged + 3

        async def reached() -> bool:
            if self._task is not None and self._task.done():
                raise AssertionError(f"a change was refused: {self._task.exception()!r}")
            return self.acknowledged >= target

        await until(reached, what="more requests are acknowledged")


async def get(url: str) -> tuple[int, dict]:
    def ask() -> tuple[int, dict]:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                body, status = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            body, status = error.read(), error.code
        with contextlib.suppress(ValueError):
            return status, json.loads(body)
        return status, {}

    return await asyncio.to_thread(ask)


async def test_several_control_planes_and_their_agents_one_at_a_time(machines: Machines, postgres_url: str) -> None:
    BEFORE.restore_postgres(postgres_url)
    ports = {"one": port(), "two": port()}
    addresses = {name: f"127.0.0.1:{number}" for name, number in ports.items()}

    async def role(name: str) -> str:
        return (await get(f"{machines.http_of(name)}/health"))[1]["role"]

    async def start(name: str) -> None:
        await machines.start_control(name, port=ports[name], database=postgres_url)

        async def ready() -> bool:
            return (await get(f"{machines.http_of(name)}/readyz"))[0] == 200

        await until(ready, what=f"{name} is ready")

    await start("one")
    await start("two")
    await machines.start_agent("n1", control=list(addresses.values()))
    data = machines.data_dir("n1")
    async with machines.client(*addresses.values()) as control:
        here = {"constraints": [{"key": "node_id", "values": ["n1"]}]}
        await insist(lambda: control.apply(process("kept", placement=here)))
        kept = await until_status(control, "kept", "Running")
        async with Requests(control).going_on() as requests:
            await requests.more()
            assert (await role("one"), await role("two")) == ("leader", "follower")
            # A follower.
            await machines.stop("two")
            await start("two")
            await requests.more()
            assert await role("one") == "leader"
            # The leader: another one leads when it is gone.
            await machines.stop("one")

            async def two_leads() -> bool:
                return await role("two") == "leader"

            await until(two_leads, what="the other one leads")
            await requests.more()
            await start("one")
            assert await role("one") == "follower"
            await requests.more()
            # The agents.
            await machines.stop("n1")
            await requests.more()
            await machines.start_agent("n1", control=list(addresses.values()))
            await requests.more()
        view = await control.get_workload("churn")
        assert int(view.revision_id) >= requests.acknowledged
        now = await until_status(control, "kept", "Running")
        assert (now.generation, now.run.pid) == (kept.generation, kept.run.pid)
        assert kept.run.pid in pids_of(data)
        # What was there before everything began is there.
        for name, facts in BEFORE.picture("postgresql")["workloads"].items():
            assert (await control.get_workload(name)).revision_id == facts["revision"]


async def test_one_control_plane_is_replaced_and_nothing_stops(machines: Machines) -> None:
    number = port()
    address = f"127.0.0.1:{number}"
    BEFORE.restore_control(machines.data_dir("control") / "control.db")
    await machines.start_control("control", port=number)
    await machines.start_agent("n1", control=[address])
    async with machines.client(address) as control:
        here = {"constraints": [{"key": "node_id", "values": ["n1"]}]}
        await control.apply(process("kept", placement=here))
        kept = await until_status(control, "kept", "Running")
        async with Requests(control).going_on() as requests:
            await requests.more()
            await machines.stop("control")
            assert kept.run.pid in pids_of(machines.data_dir("n1"))
            await machines.start_control("control", port=number)
            await requests.more()
        now = await until_status(control, "kept", "Running")
        assert (now.generation, now.run.pid) == (kept.generation, kept.run.pid)


async def test_an_agent_takes_up_the_memory_of_an_earlier_one(machines: Machines) -> None:
    number = port()
    address = f"127.0.0.1:{number}"
    BEFORE.restore_control(machines.data_dir("control") / "control.db")
    BEFORE.restore_agent(machines.data_dir("real") / "agent.db")
    await machines.start_control("control", port=number)
    await machines.start_agent("real", control=[address])
    async with machines.client(address) as control:
        recorded = BEFORE.picture("sqlite")["workloads"]
        for name in ("web", "single"):

            async def runs(name: str = name) -> bool:
                view = await control.get_workload(name)
                return view.status == "Running" and view.run.pid in pids_of(machines.data_dir("real"))

            await until(runs, what=f"{name} runs again")
            assert (await control.get_workload(name)).revision_id == recorded[name]["revision"]
        await until_status(control, "once", "Completed")
        assert len(pids_of(machines.data_dir("real"))) >= 2
