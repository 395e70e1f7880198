"""Every write and every loop of the control plane, under every failure that a store can have. In virtual time."""

import time

import pytest

from shoal.testing.stores import Fault
from tests.unit.control.leadership.test_two_leaders import two_control_planes
from tests.unit.control.store_faults import WORKS, WRITES, check_work, check_write, checked_kit, name_of
from tests.unit.control.trust_faults import (
    ISSUING,
    TOKEN_WRITES,
    check_feed,
    check_following,
    check_issuing,
    trust_kit,
)

pytestmark = pytest.mark.looptime(start=time.monotonic)


@pytest.mark.parametrize("fault", Fault, ids=name_of)
@pytest.mark.parametrize("write", WRITES, ids=name_of)
async def test_a_write_that_fails_is_told_so_and_can_be_repeated(tmp_path, write, fault):
    async with checked_kit(tmp_path) as kit:
        await check_write(kit, write, fault)


@pytest.mark.parametrize("fault", Fault, ids=name_of)
@pytest.mark.parametrize("work", WORKS, ids=name_of)
async def test_a_loop_survives_a_store_that_fails_until_it_is_back(tmp_path, work, fault):
    async with checked_kit(tmp_path) as kit:
        await check_work(kit, work, fault)


@pytest.mark.parametrize("fault", Fault, ids=name_of)
@pytest.mark.parametrize("write", TOKEN_WRITES, ids=name_of)
async def test_a_token_that_is_not_stored_can_be_asked_for_again(tmp_path, write, fault):
    async with trust_kit(tmp_path) as kit:
        await check_write(kit, write, fault)


@pytest.mark.parametrize("fault", Fault, ids=name_of)
@pytest.mark.parametrize("way", ISSUING, ids=name_of)
async def test_certificates_are_issued_while_the_store_fails(tmp_path, way, fault):
    async with trust_kit(tmp_path) as kit:
        await check_issuing(kit, way, fault)


@pytest.mark.parametrize("fault", Fault, ids=name_of)
async def test_a_follower_of_events_misses_none(tmp_path, fault):
    async with checked_kit(tmp_path) as kit:
        await check_feed(kit, fault)


@pytest.mark.parametrize("fault", Fault, ids=name_of)
async def test_a_control_plane_that_follows_survives_a_store_that_fails(tmp_path, fault):
    async with two_control_planes(tmp_path) as it:
        await check_following(it, fault)
