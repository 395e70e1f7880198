"""An agent that listens nowhere and a client that knows one address only, while control planes are killed."""

import signal

import pytest

from tests.e2e.fleet.drill import process, processes_of, until, until_gone, until_status
from tests.e2e.ha.planes import Planes

pytestmark = pytest.mark.e2e


@pytest.fixture
async def planes(tmp_path, postgres_url):
    planes = Planes(tmp_path, postgres_url)
    try:
        await planes.start_plane("one")
        await planes.start_plane("two")
        yield planes
    finally:
        await planes.close()


async def start_agent(planes, control):
    await planes._start(
        "node-1",
        *("agent", "--insecure", "--control", control, "--node-id", "node-1", "--no-listen"),
        *("--data-dir", str(planes.folder / "node-1"), "--cpu", "4", "--memory", "4096MB"),
    )


def other(name):
    return "two" if name == "one" else "one"


async def test_one_address_is_enough_to_find_the_leader(planes):
    leader = await planes.leader()
    follower = other(leader)
    await start_agent(planes, planes.addresses[follower])
    async with planes.client(follower) as control:
        await control.apply(process("web", command=["sh", "-c", "echo hello; exec sleep 3600"]))
        await until_status(control, "web", "Running")

        async def has_spoken():
            return b"".join([piece.data async for piece in control.logs("web")]) == b"hello\n"

        await until(has_spoken, what="it has spoken")
        await control.delete("web")
        await until_gone(control, "web")


@pytest.mark.parametrize(
    "how",
    [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.long)],
)
async def test_a_leader_that_goes_is_followed_by_agent_and_client(planes, how):
    await start_agent(planes, planes.control_address)
    async with planes.client() as control:
        await control.apply(process("web", revision="v1"))
        await until_status(control, "web", "Running")
        old = await planes.leader()
        planes.signal(old, how)
        assert await planes.leader(among=[other(old)]) == other(old)
        async with planes.client(other(old)) as direct:
            await direct.apply(process("web", revision="v2", command=["sleep", "77"]))
            await until_status(direct, "web", "Running", revision="v2")
            await control.delete("web")
            await until_gone(direct, "web")
        assert processes_of(planes, "web") == []
        if how is signal.SIGSTOP:
            planes.signal(old, signal.SIGCONT)

            async def follows():
                return (await planes.health(old))["role"] == "follower"

            await until(follows, what="the old leader follows")

            async def ready():
                return (await control.get_node("node-1")).status == "Ready"

            await until(ready, what="the node is Ready")
