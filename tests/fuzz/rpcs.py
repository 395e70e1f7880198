"""What is checked of every call, whatever it carried. Used by the quick tests here and the long ones in tests/long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from shoal.testing.fuzz import check_typed, send, wrong_requests
from shoal.wire.methods import (
    AgentControl,
    AgentExec,
    AgentService,
    Artifacts,
    Coordination,
    Credentials,
    Enrollment,
    Jobs,
    Secrets,
    ServingAgent,
    WorkloadExec,
    methods_of,
)
from shoal.wire.transport import Cardinality, Method
from tests.fuzz.requests import AGENT, CONTROL, DISCOVERY, TRUST
from tests.fuzz.worlds import (
    World,
    agent_world,
    changed_nothing,
    control_world,
    discovery_world,
    in_virtual_time,
    trust_world,
)

#: The world in which each service is called. A new service needs one.
SERVICES: dict[type, str] = {
    AgentControl: "control",
    AgentService: "agent",
    Enrollment: "trust",
    Credentials: "trust",
    Secrets: "trust",
    WorkloadExec: "control",
    Jobs: "control",
    Artifacts: "control",
    Coordination: "control",
    AgentExec: "agent",
    ServingAgent: "discovery",
}
METHODS = [(kind, method) for service, kind in SERVICES.items() for method in methods_of(service)]
KINDS = sorted(set(SERVICES.values()))

_WORLDS = {
    "control": (control_world, CONTROL),
    "agent": (agent_world, AGENT),
    "trust": (trust_world, TRUST),
    "discovery": (discovery_world, DISCOVERY),
}


def open_world(kind: str, folder: Path):
    """A server of that kind, to be entered."""
    return _WORLDS[kind][0](folder)


def requests_of(kind: str) -> dict[str, Any]:
    """The right requests to it, by the names of the methods."""
    return _WORLDS[kind][1]


def good_request(world: World, kind: str, method: Method[Any, Any]):
    return requests_of(kind)[method.name](world)


def fuzz_method(kind: str, method: Method[Any, Any], data: st.DataObject, *, most: int) -> None:
    """A fresh server, some wrong requests to one method, a right one, and the server is as well as before."""

    async def work(folder: Path) -> None:
        async with open_world(kind, folder) as world:
            good = good_request(world, kind, method)
            drawn = data.draw(st.lists(_batches(method, good), min_size=most // 2, max_size=most), label=method.name)
            await _send_all(world, [(method, batch) for batch in drawn])
            await send(world.channel_for(method), method, [good.SerializeToString()], metadata=world.metadata)
            await world.check_alive()

    in_virtual_time(work)


def fuzz_life(kind: str, data: st.DataObject, *, most: int) -> None:
    """A fresh server and requests to all its methods, right and wrong in any order."""

    async def work(folder: Path) -> None:
        table = requests_of(kind)
        methods = {method.name: method for of, method in METHODS if of == kind}
        async with open_world(kind, folder) as world:
            for _ in range(data.draw(st.integers(most // 2, most), label="calls")):
                name = data.draw(st.sampled_from(sorted(table)), label="method")
                good = table[name](world)
                right = st.just([good.SerializeToString()])
                batch = data.draw(right | _batches(methods[name], good), label=name)
                await _send_all(world, [(methods[name], batch)])
            await world.check_alive()

    in_virtual_time(work)


def _batches(method: Method[Any, Any], good) -> st.SearchStrategy[list[bytes]]:
    most = 4 if method.cardinality is Cardinality.BOTH_STREAM else 1
    return st.lists(wrong_requests(good), min_size=1, max_size=most)


async def _send_all(world: World, calls) -> None:
    for method, batch in calls:
        before, kept = await world.state(), world.census()
        outcome = await send(world.channel_for(method), method, batch, metadata=world.metadata)
        what = f"{method.name} with {_shown(method, batch)}: {outcome.error}"
        check_typed(outcome, what)
        if outcome.invalid and method.cardinality is not Cardinality.BOTH_STREAM:
            assert await world.state() == before, f"refused, and changed something: {what}"
        await world.settle()
        world.moved = world.moved or not changed_nothing(method, outcome)
        if not world.moved:
            left = world.census() - kept
            assert not left, f"refused, and left something behind: {left}: {what}"


def _shown(method: Method[Any, Any], batch: list[bytes]) -> str:
    """A batch for people: as messages where it is some."""
    shown = []
    for data in batch:
        try:
            shown.append(repr(method.request.FromString(data)))
        except DecodeError:
            shown.append(repr(data))
    return "; ".join(shown)
