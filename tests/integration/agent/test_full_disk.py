"""The agent's database on a real disk that is full, and stays full whatever is given back."""

import pytest

from shoal.agent.store import action_log, intents
from shoal.agent.store.database import AgentDatabase
from shoal.testing.threads import InlineThreads
from tests.services.disks import fill, small_disk
from tests.unit.agent.making import intent

pytestmark = pytest.mark.integration


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", megabytes=24) as path:
        yield path


async def open_database(disk):
    database = AgentDatabase(disk / "data", threads=InlineThreads())
    await database.open()
    return database


async def test_changes_are_stored_while_somebody_else_takes_every_block(disk):
    database = await open_database(disk)
    told = [intent(workload_id=f"w{number}", spec="x" * 1000) for number in range(50)]
    for each in told:
        await database.write(lambda c, each=each: intents.put_intent(c, each))
    fill(disk / "filler")
    for turn in range(40):
        for each in told:
            await database.write(lambda c, each=each, turn=turn: intents.raise_highest(c, each.workload_id, turn + 2))
        fill(disk / "filler")
    for each in told:
        await database.write(lambda c, each=each: intents.remove_intent(c, each.workload_id))
    assert await database.read(intents.load_workloads) == []
    assert await database.read(action_log.open_actions) == []
    await database.close()


async def test_it_opens_again_on_a_full_disk(disk):
    database = await open_database(disk)
    await database.write(lambda c: intents.put_meta(c, "node_id", "n1"))
    fill(disk / "filler")
    await database.close()
    fill(disk / "filler")
    again = await open_database(disk)
    assert await again.read(lambda c: intents.get_meta(c, "node_id")) == "n1"
    await again.write(lambda c: intents.put_meta(c, "node_id", "n2"))
    await again.close()


async def test_what_was_given_back_is_set_aside_again(disk):
    database = await open_database(disk)
    await database.write(lambda c: intents.put_meta(c, "node_id", "n1"))
    reserve = disk / "data" / "agent.reserve"
    assert reserve.exists()
    await database.close()
    fill(disk / "filler")
    again = await open_database(disk)
    assert not reserve.exists()
    (disk / "filler").unlink()
    await again.keep_room()
    assert reserve.exists()
    await again.close()
