"""One command to a foreign agent, by its behavior, with a restart in between, until everything is as requested.

`live` is one cell of the matrix: every command, every behavior, every restart. `tests/peers` runs a part of it and
`tests/long` all of it. At the end nothing is stuck and no reservation is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from tests.peers.conftest import Stage
from tests.peers.contract import agent
from tests.peers.foreign import BEHAVIORS, ForeignAgent, container, until

#: How many workloads each life has: more than the shortest queue has room for.
WORKLOADS = 4
NAMES = [f"w{number}" for number in range(WORKLOADS)]
FREE = 4.0


async def each(send: Callable[[str], Awaitable[object]]) -> None:
    await asyncio.gather(*(send(name) for name in NAMES))


async def applied(stage: Stage) -> None:
    await each(lambda name: stage.client.apply(name, container(), revision="r1"))


async def running(stage: Stage) -> None:
    await applied(stage)
    await each(lambda name: stage.client.wait_status(name, "Running"))


async def update(stage: Stage) -> None:
    await each(lambda name: stage.client.apply(name, container("nginx:2"), revision="r2"))


async def stop(stage: Stage) -> None:
    await each(lambda name: stage.client.call("ApplyWorkload", workload_id=name, desired_state="Stopped"))


async def start(stage: Stage) -> None:
    await each(lambda name: stage.client.call("ApplyWorkload", workload_id=name, desired_state="Running"))


async def stopped(stage: Stage) -> None:
    await running(stage)
    await stop(stage)
    await each(lambda name: stage.client.wait_status(name, "Stopped"))


async def delete(stage: Stage) -> None:
    await each(stage.client.delete)


async def retry(stage: Stage) -> None:
    await each(lambda name: stage.client.call("RetryWorkload", workload_id=name))


async def nothing(stage: Stage) -> None:
    pass


#: What comes first, the command, and the state in which the workloads end; None for deleted.
COMMANDS: dict[str, tuple[Callable[[Stage], Awaitable[None]], Callable[[Stage], Awaitable[None]], str | None]] = {
    "apply": (nothing, applied, "Running"),
    "update": (running, update, "Running"),
    "stop": (running, stop, "Stopped"),
    "start": (stopped, start, "Running"),
    "retry": (running, retry, "Running"),
    "delete": (running, delete, None),
    "delete what is starting": (applied, delete, None),
    "delete what is stopped": (stopped, delete, None),
}


async def none(stage: Stage, foreign: ForeignAgent) -> None:
    pass


async def restart_agent(stage: Stage, foreign: ForeignAgent) -> None:
    await foreign.restart()


async def restart_plane(stage: Stage, foreign: ForeignAgent) -> None:
    await stage.restart_plane()


async def restart_both(stage: Stage, foreign: ForeignAgent) -> None:
    await asyncio.gather(stage.restart_plane(), foreign.restart())


RESTARTS = {"no restart": none, "agent": restart_agent, "control plane": restart_plane, "both": restart_both}


async def live(stage: Stage, command: str, behavior: str, restart: str) -> None:
    foreign = await stage.agent("n1", behavior=BEHAVIORS[behavior], interval=0.1)
    before, send, end = COMMANDS[command]
    await before(stage)
    await send(stage)
    await RESTARTS[restart](stage, foreign)
    await each(lambda name: is_over(stage, foreign, name, end))
    await until(lambda: is_free(stage, 0 if end is None else sum(end == "Running" for _ in NAMES)), "what is free")


async def is_over(stage: Stage, foreign: ForeignAgent, name: str, end: str | None) -> None:
    if end is None:
        await stage.client.wait_gone(name)
        await until(lambda: name not in foreign.runs or name in foreign.ghosts, f"{name} removed")
        return
    actual = {"Running": agent.ACTUAL_STATE_RUNNING, "Stopped": agent.ACTUAL_STATE_STOPPED}[end]

    async def reached() -> bool:
        try:
            view = await stage.client.view(name)
        except grpc.aio.AioRpcError:
            return False
        run = foreign.runs.get(name)
        told = run is not None and (run.state, run.request.revision_id) == (actual, view.revision_id)
        return view.status == end and told

    await until(reached, f"{name} {end}")


async def is_free(stage: Stage, workloads: int) -> bool:
    """Whether so many workloads and no more have a reservation on the node."""
    node = (await stage.client.call("GetNode", node_id="n1")).node
    return abs(node.available_cpu_cores - (FREE - 0.1 * workloads)) < 0.001
