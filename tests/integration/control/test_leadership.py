"""Who leads on a real PostgreSQL: one at a time, by the database's clock, and nobody writes in a term that is over."""

import asyncio
import threading

import psycopg
import pytest

from shoal.control.store.base import Batch
from shoal.control.store.postgres import PostgresStore
from shoal.core.errors import NotLeaderError, UnavailableError
from shoal.testing.suites.store_records import decode_spec, node

pytestmark = pytest.mark.integration


@pytest.fixture
async def stores(postgres_url):
    opened = [PostgresStore(postgres_url, decode_spec=decode_spec) for _ in range(2)]
    for store in opened:
        await store.open()
    yield opened
    for store in opened:
        await store.close()


async def until(holds):
    """Wait until something holds by the database's clock."""
    async with asyncio.timeout(30):
        while not await holds():
            await asyncio.sleep(0.02)


async def until_over(store):
    """Wait until nobody leads any longer."""

    async def is_over():
        return (await store.leader()).holder == ""

    await until(is_over)


async def test_the_first_wins_and_the_second_hears_of_it(stores):
    one, two = stores
    won = await one.acquire_leadership("a", "host-a:1", seconds=30)
    assert (won.holder, won.expires_in) == ("a", 30)
    heard = await two.acquire_leadership("b", "host-b:1", seconds=30)
    assert (heard.term, heard.holder, heard.address) == (won.term, "a", "host-a:1")
    assert 0 < heard.expires_in <= 30
    assert (await two.leader()).holder == "a"


async def test_renewing_keeps_the_term(stores):
    one, _two = stores
    won = await one.acquire_leadership("a", "host-a:1", seconds=30)

    async def time_has_passed():
        return (await one.leader()).expires_in < 29.9

    await until(time_has_passed)
    assert (await one.acquire_leadership("a", "host-a:1", seconds=30)).term == won.term


async def test_a_leader_that_resigned_or_fell_silent_is_followed_by_the_next_term(stores):
    one, two = stores
    first = await one.acquire_leadership("a", "host-a:1", seconds=30)
    await one.resign("a")
    assert (await two.leader()).holder == ""
    second = await two.acquire_leadership("b", "host-b:1", seconds=0.2)
    await until_over(one)
    third = await one.acquire_leadership("a", "host-a:1", seconds=30)
    assert first.term < second.term < third.term


async def test_only_the_leader_resigns(stores):
    one, two = stores
    await one.acquire_leadership("a", "host-a:1", seconds=30)
    await two.resign("b")
    assert (await two.leader()).holder == "a"


async def test_nothing_is_written_in_a_term_that_is_over(stores):
    one, two = stores
    await one.acquire_leadership("a", "host-a:1", seconds=0.2)
    await one.commit(Batch(nodes=(node("n1"),)))
    await until_over(two)
    await two.acquire_leadership("b", "host-b:1", seconds=30)
    with pytest.raises(NotLeaderError, match="host-b:1"):
        await one.commit(Batch(nodes=(node("n2"),)))
    assert [each.node_id for each in (await two.load()).nodes] == ["n1"]
    await two.commit(Batch(nodes=(node("n3"),)))


async def test_an_earlier_life_of_the_same_name_is_over_at_once(stores):
    one, two = stores
    before = await one.acquire_leadership("a", "host-a:1", seconds=30)
    reborn = await two.acquire_leadership("a", "host-a:1", seconds=30)
    assert reborn.term > before.term
    with pytest.raises(NotLeaderError):
        await one.commit(Batch(nodes=(node("n1"),)))


async def test_of_many_that_ask_for_the_leadership_at_once_one_leads(stores):
    one, two = stores
    outcomes = await asyncio.gather(
        *(
            store.acquire_leadership(f"{index}", "host:1", seconds=30)
            for index, store in enumerate([one, two])
            for _ in range(5)
        )
    )
    assert len({(outcome.holder, outcome.term) for outcome in outcomes}) == 1


async def test_terms_go_up_although_an_older_copy_of_the_database_was_restored(stores, postgres_url):
    one, two = stores
    last = await one.acquire_leadership("a", "host-a:1", seconds=30)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE shoal.leadership SET term = 3, holder = 'gone', expires_at = 0")

    async def is_a_later_second():  # terms follow the seconds of the database
        with psycopg.connect(postgres_url) as connection:
            (now,) = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        return int(now) > last.term

    await until(is_a_later_second)
    assert (await two.acquire_leadership("b", "host-b:1", seconds=30)).term > last.term
    with pytest.raises(NotLeaderError):
        await one.commit(Batch(nodes=(node("n1"),)))


async def test_a_clock_that_was_set_back_does_not_bring_a_term_back(stores, postgres_url):
    one, _two = stores
    far_ahead = 2**40
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE shoal.leadership SET term = %s", (far_ahead,))
    assert (await one.acquire_leadership("a", "host-a:1", seconds=30)).term == far_ahead + 1


async def test_a_dead_leader_is_followed_although_the_clock_was_set_back(stores, postgres_url):
    one, two = stores
    await one.acquire_leadership("a", "host-a:1", seconds=0.5)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE shoal.leadership SET expires_at = expires_at + 3600000")
    assert (await two.acquire_leadership("b", "host-b:1", seconds=0.5)).holder == "a"

    async def is_followed():
        assert (await two.acquire_leadership("b", "host-b:1", seconds=30)).holder == "a", "its own patience is longer"
        return (await two.acquire_leadership("b", "host-b:1", seconds=0.5)).holder == "b"

    await until(is_followed)


async def test_a_leader_that_renews_is_left_alone_however_far_its_time_reaches(stores):
    one, two = stores
    for _ in range(4):
        await one.acquire_leadership("a", "host-a:1", seconds=30)
        assert (await two.acquire_leadership("b", "host-b:1", seconds=0.5)).holder == "a"
        await asyncio.sleep(0.3)  # together longer than the patience of the other one


async def test_what_was_decided_in_an_earlier_term_is_not_written_after_winning_again(stores):
    one, two = stores
    first = await one.acquire_leadership("a", "host-a:1", seconds=0.2)
    await one.commit(Batch(nodes=(node("n1"),)), term=first.term)
    await until_over(two)
    await two.acquire_leadership("b", "host-b:1", seconds=0.2)
    await until_over(one)
    again = await one.acquire_leadership("a", "host-a:1", seconds=30)
    assert again.term > first.term
    with pytest.raises(NotLeaderError):
        await one.commit(Batch(nodes=(node("n2"),)), term=first.term)
    await one.commit(Batch(nodes=(node("n3"),)), term=again.term)
    assert sorted(each.node_id for each in (await two.load()).nodes) == ["n1", "n3"]


def in_the_middle_of_rows(connection):
    """Send a statement of many, and no end of them: for the server such a session is at work, not idle."""
    raw = connection.connection.driver_connection
    raw.pgconn.enter_pipeline_mode()
    raw.pgconn.send_query_params(b"SELECT 1", None)
    raw.pgconn.send_flush_request()
    raw.pgconn.flush()


@pytest.mark.parametrize("first", [lambda _connection: None, in_the_middle_of_rows], ids=["idle", "sending"])
async def test_a_leader_that_hangs_within_a_transaction_is_followed_all_the_same(postgres_url, first):
    """It holds a lock on the row of the leader then, and the server cannot know that it will never go on."""
    hung, wakes = threading.Event(), threading.Event()

    def hang(connection):
        first(connection)
        hung.set()
        wakes.wait(60)

    one = PostgresStore(postgres_url, decode_spec=decode_spec, guard=hang)
    two = PostgresStore(postgres_url, decode_spec=decode_spec)
    await one.open()
    await two.open()
    try:
        before = await one.acquire_leadership("a", "host-a:1", seconds=0.2)
        writing = asyncio.ensure_future(one.commit(Batch(nodes=(node("n1"),))))
        await asyncio.to_thread(hung.wait, 30)
        await until_over(two)
        async with asyncio.timeout(30):
            after = await two.acquire_leadership("b", "host-b:1", seconds=30)
        assert (after.holder, after.term > before.term) == ("b", True)
        wakes.set()
        with pytest.raises((NotLeaderError, UnavailableError)):
            await writing
        assert (await two.load()).nodes == ()
        with pytest.raises(NotLeaderError):
            await one.commit(Batch(nodes=(node("n2"),)))
    finally:
        wakes.set()
        await one.close()
        await two.close()


async def test_a_leader_in_its_time_is_not_disturbed_however_long_it_writes(postgres_url):
    hung, wakes = threading.Event(), threading.Event()

    def hang(connection):
        in_the_middle_of_rows(connection)
        hung.set()
        wakes.wait(60)
        raw = connection.connection.driver_connection
        raw.pgconn.pipeline_sync()
        drain(raw.pgconn)
        raw.pgconn.exit_pipeline_mode()

    one = PostgresStore(postgres_url, decode_spec=decode_spec, guard=hang, patience=60)
    two = PostgresStore(postgres_url, decode_spec=decode_spec)
    await one.open()
    await two.open()
    try:
        await one.acquire_leadership("a", "host-a:1", seconds=60)
        writing = asyncio.ensure_future(one.commit(Batch(nodes=(node("n1"),))))
        await asyncio.to_thread(hung.wait, 30)
        # It cannot have the row, and says who leads all the same.
        assert (await two.acquire_leadership("b", "host-b:1", seconds=60)).holder == "a"
        wakes.set()
        await writing
        assert [each.node_id for each in (await two.load()).nodes] == ["n1"]
    finally:
        wakes.set()
        await one.close()
        await two.close()


def drain(pgconn):
    """Take every answer of a pipeline."""
    while True:
        result = pgconn.get_result()
        if result is not None and result.status == psycopg.pq.ExecStatus.PIPELINE_SYNC:
            return
