"""A serving agent that moves between two machines with addresses of their own: drained, and cut off."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from shoal.discovery.models.catalog import Catalog
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.remote import RemoteStore
from shoal.wire.addresses import parse_address
from shoal.wire.sockets.channel import GrpcTransport
from tests.e2e.fleet.drill import until, until_status
from tests.e2e.partition.stage import Stage
from tests.e2e.serving.placed import ENTRY, Sampler, group, model_servers
from tests.services.network import Network, require_network
from tests.services.postgres import do_without, find_programs

pytestmark = pytest.mark.e2e

PATIENCE = 100.0
CONTAINER = f"unknown;None;None:{ENTRY}"


@pytest.fixture
async def stage(tmp_path):
    require_network()
    if find_programs() is None:
        do_without()
    async with AsyncExitStack() as stack:
        network = stack.enter_context(Network("db", "one", "n1", "n2"))
        made = Stage(tmp_path, network, planes=("one",), agents=("n1", "n2"))
        stack.push_async_callback(made.close)
        await made.start()
        yield made


# It ends by itself before it is ended from outside, which would leave its network behind.
@pytest.mark.timeout(300)
async def test_peers_find_an_agent_where_it_has_moved(stage, tmp_path):
    async with asyncio.timeout(250), stage.client() as control:
        store = RemoteStore(GrpcTransport(), [stage.address("one")])
        await store.open()
        catalog = Catalog(store, ModelPaths("gip"))
        (tmp_path / "entry" / "1").mkdir(parents=True)
        await catalog.declare("m", {"entry": str(tmp_path / "entry")})
        await catalog.publish("m:*", "prod")
        sampler = Sampler(stage.folder, store, f"/gip/container_service/{CONTAINER}")

        async def serves_on(node: str) -> str:
            """Wait until the agent is registered and bound with the address of a node. Returns that."""

            async def holds() -> str:
                view = await control.get_workload(ENTRY)
                if view.assigned_node_id != node or view.run is None or "grpc" not in view.run.ports:
                    return ""
                address = f"{stage.network.address(node)}:{view.run.ports['grpc']}"
                service = json.loads((await store.get(f"/gip/container_service/{CONTAINER}")).data)
                bound = await store.children("/gip/binding/m")
                return address if service["grpc"] == address and bound == (f"entry:{CONTAINER}",) else ""

            found = await until(holds, what=f"{ENTRY} serves on {node}", patience=PATIENCE)
            where = parse_address(found)
            _, writer = await asyncio.open_connection(where.host, where.port)  # from the machine of a peer
            writer.close()
            return found

        flags = ("--session-timeout", "2s", "--insecure", "--control", stage.control_address)
        await control.apply_group(group(ENTRY, env={}, flags=flags, identity=False, at_most_one=True))
        await until_status(control, ENTRY, "Running", patience=PATIENCE)
        first = (await control.get_workload(ENTRY)).assigned_node_id
        second = next(name for name in stage.agents if name != first)
        addresses = [await serves_on(first)]

        await control.drain_node(first)
        addresses.append(await serves_on(second))
        assert not model_servers(stage.folder / first)
        await control.uncordon_node(first)

        # Its machine is cut off while everything on it runs on: it ends there at its deadline, before it runs here.
        stage.network.cut(second, "one")
        addresses.append(await serves_on(first))
        assert not model_servers(stage.folder / second)
        stage.network.heal()

        async def is_ready():
            return (await control.get_node(second)).status == "Ready"

        await until(is_ready, what=f"{second} is Ready again", patience=PATIENCE)
        assert await serves_on(first) == addresses[-1], "it does not go back"
        await sampler.close()
        assert sampler.most == 1
        assert sampler.addresses == addresses, "each registration in its turn, with nothing in between"
        await store.close()
