"""The store on a real PostgreSQL: the suite, and connections that break, hang and come back."""

import asyncio
import os
import signal
import socket

import psycopg
import pytest

from shoal.control.store.base import Batch, EventQuery
from shoal.control.store.errors import StoreError, StoreOutcome
from shoal.control.store.postgres import PostgresStore
from shoal.core import faults
from shoal.core.errors import InvalidError, UnavailableError
from shoal.testing.suites.store import StoreSuite
from shoal.testing.suites.store_records import decode_spec, event, workload

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shared_url(postgres_server):
    """One database for all tests here: to make one takes longer than most of them."""
    with psycopg.connect(postgres_server.database_url("postgres"), autocommit=True) as admin:
        database = f"store_suite_{os.getpid()}"
        admin.execute(f"CREATE DATABASE {database}")
        yield postgres_server.database_url(database)
        admin.execute(f"DROP DATABASE {database} WITH (FORCE)")


@pytest.fixture
def url(shared_url):
    """That database without anything of ours in it."""
    with psycopg.connect(shared_url, autocommit=True) as admin:
        admin.execute("DROP SCHEMA IF EXISTS shoal CASCADE")
    return shared_url


class TestPostgresStore(StoreSuite):
    __test__ = True

    @pytest.fixture
    def make_store(self, url):
        return lambda **settings: PostgresStore(url, decode_spec=decode_spec, **settings)


class Backend:
    """The server's process that the store writes through, learned from inside its transactions."""

    def __init__(self, url):
        self.url = url
        self.pid = 0

    def learn(self, connection):
        self.pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()

    def end(self, *_):
        """End it as an administrator would, and wait until it is gone."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 10000)", [self.pid])


@pytest.fixture
def backend(url):
    return Backend(url)


@pytest.fixture
async def store(url, backend):
    store = PostgresStore(url, decode_spec=decode_spec, guard=backend.learn, patience=60)
    await store.open()
    yield store
    await store.close()


async def test_everything_lies_in_its_own_schema(store, url):
    with psycopg.connect(url) as other:
        rows = other.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
    assert {schema for schema, _table in rows} == {"shoal"}
    assert {table for _schema, table in rows} == {
        *("nodes", "workloads", "groups", "observations", "events", "meta", "leadership", "schema_migrations"),
        *("join_tokens", "revocations", "secrets", "jobs", "coordination_nodes", "coordination_sessions"),
    }


async def test_a_server_that_was_restarted_meanwhile_costs_nothing(store, backend):
    await store.commit(Batch(workloads=(workload("a"),)))
    assert len((await store.load()).workloads) == 1
    with psycopg.connect(backend.url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    await store.commit(Batch(workloads=(workload("b"),)))
    assert len((await store.load()).workloads) == 2
    await store.ping()


async def test_a_commit_without_an_answer_is_reported_as_such(store, backend):
    await store.commit(Batch(workloads=(workload("a"),)))
    faults.arm("store.commit.before", backend.end)
    with pytest.raises(UnavailableError, match="whether it was stored is not known") as caught:
        await store.commit(Batch(workloads=(workload("b"),), events=(event("b"),)))
    assert caught.value.facts["outcome"] == "unknown"
    faults.disarm_all()
    assert [each.workload_id for each in (await store.load()).workloads] == ["a"]
    [stored] = await store.commit(Batch(workloads=(workload("b"),), events=(event("b"),)))
    assert stored.cursor == 1


async def test_a_server_that_hangs_is_cut_off(url, backend, postgres_server):
    if postgres_server.pid is None:
        pytest.skip("the server is not ours to stop")
    store = PostgresStore(url, decode_spec=decode_spec, guard=backend.learn, patience=2)
    await store.open()
    await store.commit(Batch(workloads=(workload("a"),)))
    hung = backend.pid
    os.kill(hung, signal.SIGSTOP)
    try:
        outcomes = await asyncio.gather(
            store.commit(Batch(workloads=(workload("b"),))), store.ping(), return_exceptions=True
        )
        assert [type(each) for each in outcomes] == [StoreError, StoreError]
        assert outcomes[0].outcome is StoreOutcome.UNKNOWN
        # The store goes on through another process of the server while that one still hangs.
        async with asyncio.timeout(60):
            while True:
                try:
                    await store.commit(Batch(workloads=(workload("c"),)))
                    break
                except UnavailableError:
                    await asyncio.sleep(0.1)
        assert backend.pid != hung
    finally:
        os.kill(hung, signal.SIGCONT)
    stored = {each.workload_id for each in (await store.load()).workloads}
    assert stored - {"b"} == {"a", "c"}
    await store.close()


async def test_a_database_that_only_reads_is_unavailable(store, backend):
    await store.commit(Batch(workloads=(workload("a"),)))
    with psycopg.connect(backend.url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET default_transaction_read_only = on")
        try:
            backend.end()  # the next connection gets the new setting
            with pytest.raises(UnavailableError, match="read-only"):
                await store.ping()
            with pytest.raises(UnavailableError, match="read-only"):
                await store.commit(Batch(workloads=(workload("b"),)))
            assert [each.workload_id for each in (await store.load()).workloads] == ["a"]
        finally:
            admin.execute(f"ALTER DATABASE {admin.info.dbname} RESET default_transaction_read_only")
    await store.commit(Batch(workloads=(workload("b"),)))


async def test_nobody_answers_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused at once
        port = taken.getsockname()[1]
        store = PostgresStore(f"postgresql://me:secret@127.0.0.1:{port}/db", decode_spec=decode_spec)
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}/db") as caught:
            await store.open()
        assert "secret" not in str(caught.value)
        with pytest.raises(UnavailableError):
            await store.open()  # it may be tried again
        await store.close()


async def test_two_may_open_a_new_database_at_once(url):
    stores = [PostgresStore(url, decode_spec=decode_spec) for _ in range(3)]
    await asyncio.gather(*(store.open() for store in stores))
    outcomes = await asyncio.gather(
        *(store.commit(Batch(events=(event(f"w{each}"),))) for store in stores for each in range(10))
    )
    assert sorted(each.cursor for [each] in outcomes) == list(range(1, 31))
    page = await stores[0].events(EventQuery())
    assert [each.cursor for each in page.events] == list(range(1, 31))
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_schema_of_that_name_that_is_not_ours(url):
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA shoal")
        admin.execute("CREATE TABLE shoal.fish (name TEXT)")
    with pytest.raises(InvalidError, match="fish"):
        await PostgresStore(url, decode_spec=decode_spec).open()


async def test_a_careless_server_is_made_to_wait_for_the_disk(url):
    seen = []

    def look(connection):
        seen.append(connection.exec_driver_sql("SHOW synchronous_commit").scalar())

    careless = f"{url}?options=-csynchronous_commit%3Doff"
    store = PostgresStore(careless, decode_spec=decode_spec, guard=look)
    await store.open()
    await store.commit(Batch(workloads=(workload("a"),)))
    await store.close()
    assert seen == ["on"]
