"""Writes and loops of the control plane under the failures that a store can have. In virtual time.

Every row meets some failures here. All pairs are in `tests/long`.
"""

import time

import pytest

from shoal.testing.stores import Fault
from shoal.wire.methods import AgentControl
from tests.unit.control.leadership.test_two_leaders import two_control_planes
from tests.unit.control.store_faults import (
    IN_LOOPS,
    OTHER_LOOPS,
    WORKS,
    WRITES,
    check_work,
    check_write,
    checked_kit,
    every_write,
    loops_of,
    name_of,
    some_pairs,
)
from tests.unit.control.trust_faults import (
    ISSUING,
    TOKEN_WRITES,
    check_feed,
    check_following,
    check_issuing,
    trust_kit,
)

pytestmark = pytest.mark.looptime(start=time.monotonic)


def test_the_matrix_has_every_write():
    rows = {row.method.path for row in (*WRITES, *TOKEN_WRITES, *ISSUING)}
    assert rows | IN_LOOPS | {AgentControl.WATCH_EVENTS.path} == every_write()


async def test_the_matrix_has_every_loop(tmp_path):
    async with checked_kit(tmp_path) as kit:
        assert await loops_of(kit) == {row.loop for row in WORKS if row.loop} | OTHER_LOOPS


@pytest.mark.parametrize("rows", [WRITES, WORKS, TOKEN_WRITES, ISSUING], ids=["writes", "loops", "tokens", "issuing"])
def test_some_pairs_have_every_row_and_spread_over_the_failures(rows):
    pairs = some_pairs(rows)
    assert {id(row) for row, _fault in pairs} == {id(row) for row in rows}
    assert len({fault for _row, fault in pairs}) >= len(Fault) * 3 // 4


@pytest.mark.parametrize(("write", "fault"), some_pairs(WRITES), ids=name_of)
async def test_a_write_that_fails_is_told_so_and_can_be_repeated(tmp_path, write, fault):
    async with checked_kit(tmp_path) as kit:
        await check_write(kit, write, fault)


@pytest.mark.parametrize(("work", "fault"), some_pairs(WORKS), ids=name_of)
async def test_a_loop_survives_a_store_that_fails_until_it_is_back(tmp_path, work, fault):
    async with checked_kit(tmp_path) as kit:
        await check_work(kit, work, fault)


@pytest.mark.parametrize(("write", "fault"), some_pairs(TOKEN_WRITES), ids=name_of)
async def test_a_token_that_is_not_stored_can_be_asked_for_again(tmp_path, write, fault):
    async with trust_kit(tmp_path) as kit:
        await check_write(kit, write, fault)


@pytest.mark.parametrize(("way", "fault"), some_pairs(ISSUING), ids=name_of)
async def test_certificates_are_issued_while_the_store_fails(tmp_path, way, fault):
    async with trust_kit(tmp_path) as kit:
        await check_issuing(kit, way, fault)


@pytest.mark.parametrize("fault", [Fault.NOT_APPLIED, Fault.UNKNOWN_APPLIED, Fault.HANGS], ids=name_of)
async def test_a_follower_of_events_misses_none(tmp_path, fault):
    async with checked_kit(tmp_path) as kit:
        await check_feed(kit, fault)


@pytest.mark.parametrize("fault", [Fault.NOT_APPLIED, Fault.DAMAGED, Fault.HANGS], ids=name_of)
async def test_a_control_plane_that_follows_survives_a_store_that_fails(tmp_path, fault):
    async with two_control_planes(tmp_path) as it:
        await check_following(it, fault)
