"""Every write and every loop of the control plane, under every failure that a store can have. In virtual time."""

import asyncio
import math
import time
from datetime import timedelta

import pytest

from shoal.control.store.errors import StoreOutcome
from shoal.core.errors import ShoalError
from shoal.core.tasks import running
from shoal.testing.control import ControlKit
from shoal.testing.stores import Fault, error_of
from tests.unit.control.store_faults import ELSEWHERE, WORKS, WRITES, every_write, is_consistent

pytestmark = pytest.mark.looptime(start=time.monotonic)

#: After these the change may be stored all the same.
UNCERTAIN = {Fault.UNKNOWN_APPLIED, Fault.UNKNOWN_NOT_APPLIED, Fault.HANGS, Fault.HANGS_THEN_FAILS}
#: Of one call these are made up for before the caller hears of them.
HIDDEN = {Fault.CONFLICT}


@pytest.fixture
async def kit(tmp_path):
    made = ControlKit(tmp_path, lease=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=10), streams=True)
    async with made as kit, running(kit.plane.failed(), name="failed") as failed:
        kit.failed = failed
        yield kit
        assert not failed.done(), failed.exception()


async def answer_of(write, kit):
    """What a call came to: its error, or None when it says that it succeeded."""
    try:
        answer = await write.call(kit)
    except ShoalError as error:
        return error
    refused = getattr(answer, "error_message", "") or ("" if getattr(answer, "accepted", True) else answer.reason)
    return ShoalError(refused) if refused else None


def test_the_matrix_has_every_write():
    assert {write.method.path for write in WRITES} | ELSEWHERE == every_write()


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.method.name)
async def test_a_write_that_fails_is_told_so_and_can_be_repeated(kit, write, fault):
    await write.prepare(kit)
    assert not write.holds(kit.plane.leadership.fleet)
    failing = kit.store.fail(fault, "commit", times=1)
    error = await answer_of(write, kit)
    kit.store.heal()
    assert failing.met == 1
    await kit.clock.sleep(3)
    held = write.holds(kit.plane.leadership.fleet)
    if error is None:
        assert fault in HIDDEN | {Fault.HANGS}
        assert held
    elif fault not in UNCERTAIN:
        assert type(error).__mro__[-4:] == type(error_of(fault)).__mro__[-4:] or "outcome" in error.facts
        assert not held
    elif error.facts.get("outcome") == StoreOutcome.UNKNOWN.value:
        assert held == (fault in {Fault.UNKNOWN_APPLIED, Fault.HANGS})
    if not held:
        assert await answer_of(write, kit) is None
    assert write.holds(kit.plane.leadership.fleet)
    await kit.clock.sleep(3)
    assert await is_consistent(kit)


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
async def test_a_loop_survives_a_store_that_fails_until_it_is_back(kit, work, fault):
    await work.prepare(kit)
    kit.store.fail(fault, times=math.inf)
    await work.during(kit)
    await kit.clock.sleep(45)
    assert not kit.failed.done(), kit.failed.exception()
    kit.store.heal()
    await work.done(kit)
    await kit.wait(kit.plane.is_ready, seconds=20)
    await kit.clock.sleep(5)
    assert await is_consistent(kit)
    await asyncio.sleep(0)
