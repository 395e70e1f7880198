"""A stage for one test, and nothing left of it afterwards."""

from contextlib import AsyncExitStack

import pytest

from tests.e2e.partition.stage import Stage
from tests.services.network import Network, require_network
from tests.services.postgres import do_without, find_programs

PLANES = ("one", "two", "three")
AGENTS = ("n1", "n2")


@pytest.fixture
async def stage(tmp_path):
    """PostgreSQL, three control planes and two agents, each on a machine of its own."""
    require_network()
    if find_programs() is None:
        do_without()
    async with AsyncExitStack() as stack:
        network = stack.enter_context(Network("db", *PLANES, *AGENTS))
        made = Stage(tmp_path, network, planes=PLANES, agents=AGENTS)
        stack.push_async_callback(made.close)
        await made.start()
        yield made
