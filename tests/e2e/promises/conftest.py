"""One fleet for all tests of a module, whole again before each of them."""

import uuid

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from tests.e2e.promises.guarded import GuardedPlanes


@pytest.fixture(scope="module")
def database(postgres_server):
    """The URL of a database that is empty and this module's own."""
    name = sql.Identifier(f"promises_{uuid.uuid4().hex}")
    with psycopg.connect(postgres_server.database_url("postgres"), autocommit=True, connect_timeout=10) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        yield postgres_server.database_url(name.as_string().strip('"'))
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory, database):
    """Two control planes and four agents, with certificates."""
    planes = GuardedPlanes(tmp_path_factory.mktemp("promises"), database)
    try:
        await planes.start()
        yield planes
    finally:
        await planes.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control(running):
    """The operator's client of both control planes."""
    async with running.client() as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def planes(running, control):
    """The fleet, whole: a test that has failed does not make the next one fail."""
    await running.make_whole(control)
    return running
