"""Who leads on a real PostgreSQL: one at a time, by the database's clock, and nobody writes in a term that is over."""

import asyncio

import pytest

from shoal.control.store.base import Batch
from shoal.control.store.postgres import PostgresStore
from shoal.core.errors import NotLeaderError
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


async def test_the_first_wins_and_the_second_hears_of_it(stores):
    one, two = stores
    won = await one.campaign("a", "host-a:1", seconds=30)
    assert (won.term, won.holder) == (1, "a")
    heard = await two.campaign("b", "host-b:1", seconds=30)
    assert (heard.term, heard.holder, heard.address) == (1, "a", "host-a:1")
    assert 0 < heard.expires_in <= 30
    assert (await two.leader()).holder == "a"


async def test_renewing_keeps_the_term(stores):
    one, _two = stores
    await one.campaign("a", "host-a:1", seconds=30)
    assert (await one.campaign("a", "host-a:1", seconds=30)).term == 1


async def test_a_leader_that_resigned_or_fell_silent_is_followed_by_the_next_term(stores):
    one, two = stores
    await one.campaign("a", "host-a:1", seconds=30)
    await one.resign("a")
    assert (await two.leader()).holder == ""
    assert (await two.campaign("b", "host-b:1", seconds=0.2)).term == 2
    await asyncio.sleep(0.4)
    assert (await one.campaign("a", "host-a:1", seconds=30)).term == 3


async def test_only_the_leader_resigns(stores):
    one, two = stores
    await one.campaign("a", "host-a:1", seconds=30)
    await two.resign("b")
    assert (await two.leader()).holder == "a"


async def test_nothing_is_written_in_a_term_that_is_over(stores):
    one, two = stores
    await one.campaign("a", "host-a:1", seconds=0.2)
    await one.commit(Batch(nodes=(node("n1"),)))
    await asyncio.sleep(0.4)
    await two.campaign("b", "host-b:1", seconds=30)
    with pytest.raises(NotLeaderError, match="host-b:1"):
        await one.commit(Batch(nodes=(node("n2"),)))
    assert [each.node_id for each in (await two.load()).nodes] == ["n1"]
    await two.commit(Batch(nodes=(node("n3"),)))


async def test_an_earlier_life_of_the_same_name_is_over_at_once(stores):
    one, two = stores
    await one.campaign("a", "host-a:1", seconds=30)
    reborn = await two.campaign("a", "host-a:1", seconds=30)
    assert reborn.term == 2
    with pytest.raises(NotLeaderError):
        await one.commit(Batch(nodes=(node("n1"),)))


async def test_of_many_that_campaign_at_once_one_wins(stores):
    one, two = stores
    outcomes = await asyncio.gather(
        *(store.campaign(f"{index}", "host:1", seconds=30) for index, store in enumerate([one, two]) for _ in range(5))
    )
    assert len({(outcome.holder, outcome.term) for outcome in outcomes}) == 1
