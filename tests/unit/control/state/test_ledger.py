"""Memory follows the store, also while it is read anew."""

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest

from shoal.control.state.fleet import Fleet
from shoal.control.state.ledger import ANSWER_SECONDS, Ledger
from shoal.control.store.base import Batch
from shoal.control.store.sqlite import SqliteStore
from shoal.control.workloads.status_reports import StatusReports
from shoal.core.errors import ConflictError, UnavailableError
from shoal.model.workloads import Observation, RunState, RunStatus
from shoal.testing.clock import LoopClock
from shoal.testing.stores import Fault, KeptStore
from shoal.testing.suites.store_records import MOMENT, decode_spec, node, workload

pytestmark = pytest.mark.looptime


class SlowStore(KeptStore):
    """What it reads arrives a second later."""

    async def load(self, *, again=False):
        snapshot = await super().load(again=again)
        await asyncio.sleep(1.0)
        return snapshot


async def test_a_commit_that_is_under_way_when_memory_is_read_anew_is_not_forgotten():
    store = SlowStore(SqliteStore(":memory:", decode_spec=decode_spec))
    await store.open()
    ledger = Ledger(store, Fleet())
    store.fail(Fault.HANGS, "commit")
    committing = asyncio.ensure_future(ledger.commit(Batch(nodes=(node("n1"),))))
    await asyncio.sleep(0.1)
    ledger.doubt()
    reading = asyncio.ensure_future(ledger.settle())
    await asyncio.sleep(0.5)
    store.heal()
    await asyncio.gather(committing, reading)
    assert set(ledger.fleet.nodes) == {"n1"}
    await store.dispose()


async def test_a_commit_whose_caller_goes_away_holds_up_nobody_for_ever():
    store = KeptStore(SqliteStore(":memory:", decode_spec=decode_spec))
    await store.open()
    ledger = Ledger(store, Fleet())
    store.fail(Fault.HANGS, "commit", times=1)
    committing = asyncio.ensure_future(ledger.commit(Batch(nodes=(node("n1"),))))
    await asyncio.sleep(0.1)
    committing.cancel()
    ledger.doubt()
    with pytest.raises(UnavailableError):
        await ledger.commit(Batch(nodes=(node("n2"),)))
    await asyncio.sleep(ANSWER_SECONDS)
    await ledger.commit(Batch(nodes=(node("n2"),)))
    assert set(ledger.fleet.nodes) == {"n2"}
    await store.dispose()


async def test_what_was_decided_before_memory_was_read_anew_is_not_committed():
    store = KeptStore(SqliteStore(":memory:", decode_spec=decode_spec))
    await store.open()
    ledger = Ledger(store, Fleet())
    picture = ledger.picture
    ledger.doubt()
    with pytest.raises(ConflictError, match="read anew"):
        await ledger.commit(Batch(nodes=(node("n1"),)), picture=picture)
    assert not ledger.fleet.nodes
    await ledger.commit(Batch(nodes=(node("n1"),)), picture=ledger.picture)
    assert set(ledger.fleet.nodes) == {"n1"}
    await store.dispose()


async def test_nothing_is_decided_while_there_is_a_new_doubt():
    store = KeptStore(SqliteStore(":memory:", decode_spec=decode_spec))
    await store.open()
    ledger = Ledger(store, Fleet())
    doubts, decided_on = [ledger.doubt], []
    ledger.on_reload(lambda: doubts.pop()() if doubts else None)
    ledger.doubt()

    def decide():
        decided_on.append(ledger.picture)
        return Batch(nodes=(node("n1"),))

    await ledger.change(decide)
    assert decided_on == [2]
    await store.dispose()


def report(workload_id, generation):
    return RunStatus(workload_id=workload_id, state=RunState.RUNNING, generation=generation)


async def test_a_report_is_judged_by_what_is_stored():
    store = KeptStore(SqliteStore(":memory:", decode_spec=decode_spec))
    await store.open()
    ledger = Ledger(store, Fleet())
    here = dataclasses.replace(workload("web"), node_id="n1", generation=1, placed_generation=1)
    await ledger.commit(Batch(workloads=(here,)))
    superseded = []
    copies = SimpleNamespace(superseded=lambda *copy: superseded.append(copy))
    reports = StatusReports(ledger, commands=None, facts=None, copies=copies, queue=None, clock=LoopClock(MOMENT))
    moved = dataclasses.replace(here, node_id="n2", generation=2, placed_generation=2, version=1)
    store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)
    with pytest.raises(UnavailableError):
        await ledger.commit(Batch(workloads=(moved,)))
    await reports.take_in("n1", [report("web", 1)])
    assert superseded == [("web", "n1", 1)]
    assert not (await store.load()).observations
    await store.dispose()


def test_a_report_that_comes_after_its_workload_was_forgotten_leaves_nothing_behind():
    fleet = Fleet()
    fleet.take(Batch(observations=(Observation("n1", report("web", 1), MOMENT),)))
    assert not fleet.observations
