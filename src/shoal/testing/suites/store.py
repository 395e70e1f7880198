"""The conformance suite of the store: what every `shoal.control.store.base.Store` must do.

    class TestSqliteStore(StoreSuite):
        __test__ = True

        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda **settings: SqliteStore(tmp_path / "control.db", decode_spec=decode_spec, **settings)

`make_store` returns stores that are not yet open, all on one place that was empty when the test began.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.control.store.base import Batch, EventQuery, Snapshot, Store
from shoal.core import faults
from shoal.core.clock import epoch_ms, from_epoch_ms
from shoal.core.errors import ConflictError, InternalError, PreconditionError, ShoalError, UnavailableError
from shoal.core.ids import GroupId, NodeId, WorkloadId
from shoal.discovery.embedded import tree as trees
from shoal.model.events import Event
from shoal.testing.suites import store_records as values
from shoal.testing.suites.store_events import EventTests, StoreMaker
from shoal.testing.suites.store_records import event, group, node, observation, workload

_EXAMPLES = settings(
    max_examples=25,
    deadline=None,
    # The store goes through all examples; each begins with an empty one. Every backend runs the same function.
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],
)


class StoreSuite(EventTests):
    """Conformance of a store."""

    __test__ = False

    @pytest.fixture
    def make_store(self) -> StoreMaker:
        """To be given by the subclass."""
        raise NotImplementedError

    @pytest.fixture
    async def store(self, make_store: StoreMaker) -> AsyncIterator[Store]:
        """An open store."""
        store = make_store()
        await store.open()
        yield store
        await store.close()

    @pytest.fixture(autouse=True)
    def _no_faults(self) -> Iterator[None]:
        yield
        faults.disarm_all()

    # -----------------------------------------------------------------------------------------------------
    # Round trips

    async def test_starts_empty(self, store: Store) -> None:
        """Nothing is there that nobody stored."""
        assert await store.load() == Snapshot()
        page = await store.events(EventQuery())
        assert (page.events, page.next, page.oldest) == ((), 0, 0)

    @_EXAMPLES
    @given(
        nodes=st.lists(values.NODES, max_size=2, unique_by=lambda each: each.spec.node_id),
        workloads=st.lists(values.WORKLOADS, max_size=2, unique_by=lambda each: each.workload_id),
        groups=st.lists(values.GROUPS, max_size=2, unique_by=lambda each: each.group_id),
        observations=st.lists(values.OBSERVATIONS, max_size=2),
        events=st.lists(values.EVENTS, max_size=2),
    )
    async def test_reads_back_what_was_stored(
        self, store: Store, *, nodes: Any, workloads: Any, groups: Any, observations: Any, events: Any
    ) -> None:
        """Every record reads back equal, one version on."""
        await _remove_everything(store)
        # A report is kept for a workload that is stored, so each gets one of those that were drawn.
        observations = [
            dataclasses.replace(each, status=dataclasses.replace(each.status, workload_id=owner.workload_id))
            for each, owner in zip(observations, workloads, strict=False)
        ]
        batch = Batch(
            nodes=tuple(nodes),
            workloads=tuple(workloads),
            groups=tuple(groups),
            observations=tuple(observations),
            events=tuple(events),
        )
        stored = await store.commit(batch)
        loaded = await store.load()
        assert loaded == Snapshot(
            nodes=_later(sorted(nodes, key=lambda each: each.spec.node_id)),
            workloads=_later(sorted(workloads, key=lambda each: each.workload_id)),
            groups=_later(sorted(groups, key=lambda each: each.group_id)),
            observations=tuple(sorted(observations, key=lambda each: each.status.workload_id)),
        )
        assert [dataclasses.replace(each, cursor=0) for each in stored] == events
        if stored:
            page = await store.events(EventQuery(after=stored[0].cursor - 1))
            assert page.events == stored

    @_EXAMPLES
    @given(
        tokens=st.lists(values.TOKENS, max_size=2, unique_by=lambda each: each.token_id),
        secrets=st.lists(values.SECRETS, max_size=2, unique_by=lambda each: each.name),
        revocations=st.lists(values.REVOCATIONS, max_size=2, unique_by=lambda each: each.node_id),
    )
    async def test_keeps_tokens_secrets_and_revocations(
        self, store: Store, *, tokens: Any, secrets: Any, revocations: Any
    ) -> None:
        """They read back equal, are changed by compare-and-set like everything else, and can be removed."""
        await store.commit(Batch(tokens=tuple(tokens), secrets=tuple(secrets), revocations=tuple(revocations)))
        revoked = (await store.load()).revocations
        assert revoked == _later(sorted(revocations, key=lambda each: each.node_id))
        found, sealed = await store.tokens(), await store.secrets()
        for secret in sealed:
            assert await store.secrets([secret.name, "no-such"]) == (secret,)
        assert await store.secrets([]) == ()
        assert found == _later(sorted(tokens, key=lambda each: each.token_id))
        assert sealed == _later(sorted(secrets, key=lambda each: each.name))
        stale = Batch(revocations=tuple(revocations))
        for batch in (Batch(tokens=tuple(tokens)), Batch(secrets=tuple(secrets)), stale):
            if not batch.is_empty():
                with pytest.raises(ConflictError):
                    await store.commit(batch)
        later = Batch(
            tokens=tuple(dataclasses.replace(each, uses=each.uses + 1) for each in found),
            secrets=tuple(dataclasses.replace(each, sealed=each.sealed + b"x") for each in sealed),
        )
        await store.commit(later)
        assert (await store.tokens(), await store.secrets()) == (_later(later.tokens), _later(later.secrets))
        await store.commit(
            Batch(
                removed_tokens={each.token_id: each.version for each in _later(later.tokens)},
                removed_secrets={each.name: each.version for each in _later(later.secrets)},
                removed_revocations={each.node_id: each.version for each in revoked},
            )
        )
        assert (await store.tokens(), await store.secrets()) == ((), ())
        assert await store.load() == Snapshot()

    @_EXAMPLES
    @given(jobs=st.lists(values.JOBS, max_size=3, unique_by=lambda each: each.job_id))
    async def test_keeps_jobs(self, store: Store, *, jobs: Any) -> None:
        """Jobs read back equal, the engine's bytes included, are changed by compare-and-set, and can be removed."""
        await _remove_everything(store)
        await store.commit(Batch(jobs=tuple(jobs)))
        found = (await store.load()).jobs
        assert found == _later(sorted(jobs, key=lambda each: each.job_id))
        for each in jobs:
            with pytest.raises(ConflictError):
                await store.commit(Batch(jobs=(each,)))
        moved = tuple(
            dataclasses.replace(each, progress=each.progress + b"\x00", transition=each.transition // 2)
            for each in found
        )
        await store.commit(Batch(jobs=moved))
        assert (await store.load()).jobs == _later(moved)
        for each in found:
            with pytest.raises(ConflictError):
                await store.commit(Batch(removed_jobs={each.job_id: each.version}))
        await store.commit(Batch(removed_jobs={each.job_id: each.version for each in _later(moved)}))
        assert (await store.load()).jobs == ()

    async def test_keeps_the_exact_bytes_of_a_spec(self, store: Store) -> None:
        """Bytes that mean the same are not the same."""
        record = workload("a")
        padded = dataclasses.replace(record, spec_bytes=b"  " + record.spec_bytes + b"\n", spec_sha256=bytes(range(32)))
        await store.commit(Batch(workloads=(padded,)))
        [loaded] = (await store.load()).workloads
        assert (loaded.spec_bytes, loaded.spec_sha256, loaded.spec) == (
            padded.spec_bytes,
            padded.spec_sha256,
            record.spec,
        )

    async def test_replaces_a_record_whole(self, store: Store) -> None:
        """The version that follows takes the place of the one before."""
        await store.commit(Batch(nodes=(node("n"),), workloads=(workload("a"),), groups=(group("g"),)))
        later = Batch(
            nodes=(node("n", version=1, reason="later"),),
            workloads=(dataclasses.replace(workload("a", version=1), node_id=NodeId("n"), group_id=GroupId("g")),),
            groups=(group("g", version=1, message="later"),),
        )
        await store.commit(later)
        assert await store.load() == Snapshot(
            nodes=_later(later.nodes), workloads=_later(later.workloads), groups=_later(later.groups)
        )

    async def test_reads_again_what_changed_and_only_that_anew(self, store: Store) -> None:
        """What is read once more is as if it were read for the first time."""
        await store.commit(
            Batch(nodes=(node("n"),), workloads=(workload("a"), workload("b"), workload("c")), groups=(group("g"),))
        )
        first = await store.load(again=True)
        await store.commit(
            Batch(
                workloads=(dataclasses.replace(workload("b", version=1), node_id=NodeId("n")),),
                removed_workloads={WorkloadId("c"): 1},
                observations=(observation("a"),),
            )
        )
        second = await store.load(again=True)
        # The same name and version, and another workload.
        await store.commit(Batch(workloads=(dataclasses.replace(workload("c"), revision_id="another"),)))
        third = await store.load()
        assert second.workloads[0] is first.workloads[0]
        assert [each.workload_id for each in second.workloads] == ["a", "b"]
        assert second.workloads[1].node_id == "n"
        assert third.workloads[2].revision_id == "another"
        assert third == await store.load()

    async def test_an_empty_batch_does_nothing(self, store: Store) -> None:
        """It is accepted and stores nothing."""
        assert await store.commit(Batch()) == ()
        assert await store.load() == Snapshot()

    async def test_reopening_sees_everything(self, make_store: StoreMaker) -> None:
        """What one store wrote, the next on the same place reads; cursors go on."""
        first = make_store()
        await first.open()
        await first.commit(
            Batch(
                nodes=(node("n"),),
                workloads=(workload("a"),),
                groups=(group("g"),),
                observations=(observation("a"),),
                events=(event("a"), event("b")),
            )
        )
        before = await first.load()
        await first.close()
        second = make_store()
        await second.open()
        assert await second.load() == before
        [third] = await second.commit(Batch(events=(event("c"),)))
        assert third.cursor == 3
        page = await second.events(EventQuery())
        assert [each.subject_id for each in page.events] == ["a", "b", "c"]
        await second.close()

    # -----------------------------------------------------------------------------------------------------
    # Compare-and-set

    @pytest.mark.parametrize(
        ("batch", "kind", "key", "expected"),
        [
            (Batch(workloads=(workload("a"),)), "workload", "a", 0),
            (Batch(workloads=(workload("a", version=2),)), "workload", "a", 2),
            (Batch(workloads=(workload("none", version=1),)), "workload", "none", 1),
            (Batch(nodes=(node("n"),)), "node", "n", 0),
            (Batch(nodes=(node("n", version=7),)), "node", "n", 7),
            (Batch(groups=(group("g"),)), "group", "g", 0),
            (Batch(groups=(group("g", version=3),)), "group", "g", 3),
            (Batch(removed_workloads={WorkloadId("a"): 2}), "workload", "a", 2),
            (Batch(removed_workloads={WorkloadId("none"): 1}), "workload", "none", 1),
            (Batch(removed_nodes={NodeId("n"): 2}), "node", "n", 2),
            (Batch(removed_groups={GroupId("g"): 2}), "group", "g", 2),
        ],
    )
    async def test_a_moved_version_is_a_conflict(
        self, store: Store, batch: Batch, kind: str, key: str, expected: int
    ) -> None:
        """Nothing is stored, and the error names what moved."""
        await store.commit(
            Batch(
                nodes=(node("n"),),
                workloads=(workload("a"),),
                groups=(group("g"),),
                observations=(observation("a"),),
            )
        )
        before = await store.load()
        with pytest.raises(ConflictError) as caught:
            await store.commit(batch)
        assert {name: caught.value.facts[name] for name in ("kind", "id", "expected")} == {
            "kind": kind,
            "id": key,
            "expected": str(expected),
        }
        assert await store.load() == before

    async def test_a_batch_is_stored_whole_or_not_at_all(self, store: Store) -> None:
        """One conflict undoes everything that came with it, events and reports too."""
        await store.commit(
            Batch(nodes=(node("n"),), workloads=(workload("a"), workload("b")), observations=(observation("a"),))
        )
        before = await store.load()
        with pytest.raises(ConflictError):
            await store.commit(
                Batch(
                    nodes=(node("n2"),),
                    workloads=(workload("a", version=1, revision="r2"), workload("b", version=9)),
                    groups=(group("g"),),
                    removed_nodes={NodeId("n"): 1},
                    observations=(observation("a", message="new"),),
                    events=(event("a"),),
                )
            )
        assert await store.load() == before
        assert (await store.events(EventQuery())).events == ()
        [next_event] = await store.commit(Batch(events=(event("a"),)))
        assert next_event.cursor == 1

    async def test_removal_by_version(self, store: Store) -> None:
        """A removed record is gone and may be made again, even in the same batch."""
        await store.commit(Batch(nodes=(node("n"),), workloads=(workload("a"),), groups=(group("g"),)))
        await store.commit(
            Batch(
                removed_nodes={NodeId("n"): 1},
                removed_workloads={WorkloadId("a"): 1},
                removed_groups={GroupId("g"): 1},
                workloads=(workload("a", revision="again"),),
            )
        )
        loaded = await store.load()
        assert (loaded.nodes, loaded.groups) == ((), ())
        assert [(each.revision_id, each.version) for each in loaded.workloads] == [("again", 1)]

    async def test_the_generation_floor_only_rises(self, store: Store) -> None:
        """The highest that was ever told counts, also among batches in flight, unless its batch failed."""
        await store.commit(Batch(workloads=(workload("a"),)))
        floors = [3, 9, 4]
        await _commit_all(store, [Batch(generation_floor=floor) for floor in floors])
        assert (await store.load()).generation_floor == 9
        await store.commit(Batch(generation_floor=8, removed_workloads={WorkloadId("a"): 1}))
        with pytest.raises(ConflictError):
            await store.commit(Batch(generation_floor=99, removed_workloads={WorkloadId("a"): 1}))
        assert (await store.load()).generation_floor == 9

    async def test_one_of_many_rivals_wins(self, store: Store) -> None:
        """Of all that change one version, exactly one is stored."""
        await store.commit(Batch(workloads=(workload("a"),)))
        rivals = [Batch(workloads=(workload("a", version=1, revision=f"r{each}"),)) for each in range(20)]
        outcomes = await _commit_all(store, rivals)
        winners = [index for index, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)]
        assert len(winners) == 1
        assert all(isinstance(each, ConflictError) for each in outcomes if isinstance(each, Exception))
        [loaded] = (await store.load()).workloads
        assert (loaded.revision_id, loaded.version) == (f"r{winners[0]}", 2)

    async def test_conflicting_batches_fail_alone(self, store: Store) -> None:
        """A hundred in flight: those with a moved version fail, all others are stored, and cursors have no gap."""
        await store.commit(Batch(workloads=tuple(workload(f"old{each}") for each in range(10))))
        batches = []
        for each in range(100):
            conflicts = each % 10 == 3
            record = workload(f"old{each // 10}", version=5) if conflicts else workload(f"new{each}")
            batches.append(Batch(workloads=(record,), events=(event(f"new{each}"), event(f"more{each}"))))
        outcomes = await _commit_all(store, batches)
        cursors = []
        for each, outcome in enumerate(outcomes):
            if each % 10 == 3:
                assert isinstance(outcome, ConflictError)
                assert outcome.facts["id"] == f"old{each // 10}"
            else:
                assert not isinstance(outcome, Exception)
                assert [event.subject_id for event in outcome] == [f"new{each}", f"more{each}"]
                cursors += [event.cursor for event in outcome]
        assert sorted(cursors) == list(range(1, 181))
        stored = {each.workload_id for each in (await store.load()).workloads}
        assert stored == {f"old{each}" for each in range(10)} | {f"new{each}" for each in range(100) if each % 10 != 3}
        page = await store.events(EventQuery(limit=1000))
        assert [each.cursor for each in page.events] == list(range(1, 181))

    @_EXAMPLES
    @given(data=st.data())
    async def test_batches_in_flight_end_as_if_one_followed_the_other(self, store: Store, data: st.DataObject) -> None:
        """However batches are gathered, the outcome of each is that of applying them one by one."""
        await _remove_everything(store)
        model = _Model()
        for count in data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)):
            batches, expected = [], []
            for _ in range(count):
                batch = data.draw(_small_batches(model))
                batches.append(batch)
                expected.append(model.apply(batch))
            outcomes = await _commit_all(store, batches)
            assert [not isinstance(outcome, Exception) for outcome in outcomes] == expected
            loaded = await store.load()
            assert {each.workload_id: (each.version, each.revision_id) for each in loaded.workloads} == model.workloads
            assert {each.status.workload_id: each.status.message for each in loaded.observations} == model.observations
            assert {
                each.spec.node_id: (each.version, epoch_ms(each.last_heartbeat)) for each in loaded.nodes
            } == model.nodes

    # -----------------------------------------------------------------------------------------------------
    # Reports and heartbeats

    async def test_the_last_report_counts(self, store: Store) -> None:
        """Reports replace each other without a version."""
        await store.commit(Batch(workloads=(workload("a"), workload("b"))))
        await store.commit(Batch(observations=(observation("a", message="1"), observation("b", message="1"))))
        await store.commit(Batch(observations=(observation("a", message="2"), observation("a", message="3"))))
        loaded = await store.load()
        assert loaded.observations == (observation("a", message="3"), observation("b", message="1"))
        assert [each.version for each in loaded.workloads] == [1, 1]

    async def test_reports_go_with_their_workload(self, store: Store) -> None:
        """A removal drops the report; one that comes later leaves nothing behind."""
        await store.commit(
            Batch(
                workloads=(workload("a"), workload("b")),
                observations=(observation("a"), observation("b"), observation("never stored")),
            )
        )
        await store.commit(Batch(removed_workloads={WorkloadId("a"): 1}))
        await store.commit(Batch(observations=(observation("a", message="late"),)))
        assert (await store.load()).observations == (observation("b"),)

    async def test_a_report_can_be_forgotten(self, store: Store) -> None:
        """Without its workload, and without complaint when there is none."""
        await store.commit(Batch(workloads=(workload("a"),), observations=(observation("a"),)))
        await store.commit(Batch(forgotten_observations=(WorkloadId("a"), WorkloadId("b"))))
        loaded = await store.load()
        assert loaded.observations == ()
        assert len(loaded.workloads) == 1

    async def test_heartbeats_move_no_version(self, store: Store) -> None:
        """A heartbeat changes the time of the last contact, and nothing else; unknown nodes are ignored."""
        await store.commit(Batch(nodes=(node("n"), node("m"))))
        moment = values.MOMENT + timedelta(seconds=90)
        await store.commit(Batch(heartbeats={NodeId("n"): epoch_ms(moment), NodeId("gone"): 1}))
        m, n = (await store.load()).nodes
        assert n == dataclasses.replace(node("n", version=1), last_heartbeat=from_epoch_ms(epoch_ms(moment)))
        assert m == node("m", version=1)
        await store.commit(Batch(nodes=(node("n", version=1),)))

    # -----------------------------------------------------------------------------------------------------
    # The coordination tree

    async def test_keeps_the_coordination_tree(self, store: Store, make_store: StoreMaker) -> None:
        """Changes add up to the tree: nodes, sessions, and the number of the last change."""
        assert await store.coordination() == trees.Changes(0)
        tree = trees.Tree()
        session = trees.Session("s1", timedelta(milliseconds=1500), "agent n1")
        decisions: list[Callable[[], trees.Changes]] = [
            lambda: tree.open_session(session),
            lambda: tree.open_session(trees.Session("s2", timedelta(seconds=9))),
            lambda: _created(tree, "/a/ü:1", b"\x00\xff", makepath=True),
            lambda: _created(tree, "/a/mine", b"", ephemeral=True),
            lambda: _created(tree, "/a/n-", b"1", sequential=True),
            lambda: _created(tree, "/gone/x/y", b"", makepath=True),
            lambda: tree.set("/a", b"two", version=0, session_id="s1"),
            lambda: tree.delete("/gone", version=-1, recursive=True, session_id="s1"),
            lambda: tree.end_session("s2"),
        ]
        for decide in decisions:
            changes = decide()
            await store.commit(Batch(coordination=changes))
            tree.apply(changes)
            assert trees.Tree.of(await store.coordination()) == tree
        await store.commit(Batch(coordination=tree.end_session("s1")))
        stored = trees.Tree.of(await store.coordination())
        assert stored.children("/a") == ("n-0000000000", "ü:1")
        assert stored.sessions == {}

    async def test_the_tree_changes_from_its_last_change_on(self, store: Store) -> None:
        """A control plane whose memory is not what is stored cannot write."""
        tree = trees.Tree()
        first = tree.open_session(trees.Session("s1", timedelta(seconds=1)))
        await store.commit(Batch(coordination=first))
        with pytest.raises(ConflictError):
            await store.commit(Batch(coordination=first))
        with pytest.raises(ConflictError):
            await store.commit(Batch(coordination=dataclasses.replace(first, order=3)))
        assert trees.Tree.of(await store.coordination()).sessions.keys() == {"s1"}

    # -----------------------------------------------------------------------------------------------------
    # Transactions, faults, life and death

    async def test_a_guard_watches_every_transaction(self, make_store: StoreMaker) -> None:
        """What it raises reaches the caller, nothing is stored, and the store goes on when it is content again."""
        allowed = True

        def guard(_connection: Any) -> None:
            if not allowed:
                raise PreconditionError("the term is over")

        store = make_store(guard=guard)
        await store.open()
        await store.commit(Batch(workloads=(workload("a"),)))
        allowed = False
        outcomes = await _commit_all(store, [Batch(workloads=(workload(f"b{each}"),)) for each in range(5)])
        assert all(isinstance(each, PreconditionError) for each in outcomes)
        with pytest.raises(PreconditionError, match="the term is over"):
            await store.ping()
        assert len((await store.load()).workloads) == 1
        allowed = True
        await store.commit(Batch(workloads=(workload("b"),)))
        await store.ping()
        await store.close()

    @pytest.mark.parametrize(("point", "survives"), [("store.commit.before", False), ("store.commit.after", True)])
    async def test_fault_points_stand_around_the_commit(self, store: Store, point: str, *, survives: bool) -> None:
        """What fails before is undone; what fails after is stored, although the caller hears of a fault."""

        def fail(name: str) -> None:
            raise InternalError(f"{name} failed")

        faults.arm(point, fail)
        with pytest.raises(InternalError, match=point):
            await store.commit(Batch(workloads=(workload("a"),), events=(event("a"),)))
        faults.disarm_all()
        assert len((await store.load()).workloads) == survives
        [stored] = await store.commit(Batch(workloads=(workload("b"),), events=(event("b"),)))
        assert stored.cursor == 1 + survives

    async def test_a_batch_that_cannot_be_written_fails_alone(self, store: Store) -> None:
        """A bug in one caller's values costs the others nothing."""
        bad = [
            Batch(workloads=(dataclasses.replace(workload("too large"), generation=2**70),)),
            Batch(workloads=(dataclasses.replace(workload("naive"), created_at=values.MOMENT.replace(tzinfo=None)),)),
            Batch(nodes=(dataclasses.replace(node("naive"), last_heartbeat=values.MOMENT.replace(tzinfo=None)),)),
        ]
        good = [Batch(workloads=(workload(f"good{each}"),)) for each in range(6)]
        outcomes = await _commit_all(store, [*good[:3], *bad, *good[3:]])
        failed = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
        assert failed == [3, 4, 5]
        assert all(isinstance(outcomes[index], InternalError) for index in failed)
        assert len((await store.load()).workloads) == len(good)

    async def test_a_cancelled_caller_disturbs_nobody(self, store: Store) -> None:
        """The others are answered, and the store goes on."""
        tasks = [asyncio.ensure_future(store.commit(Batch(workloads=(workload(f"w{each}"),)))) for each in range(10)]  # noqa: TID251
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [outcome for outcome in outcomes[1::2] if outcome != ()] == []
        await store.commit(Batch(workloads=(workload("last"),)))
        stored = {each.workload_id for each in (await store.load()).workloads}
        assert stored >= {"last", "w1", "w3", "w5", "w7", "w9"}

    async def test_ping(self, store: Store) -> None:
        """A healthy store is content, and is left as it was."""
        await store.ping()
        await store.ping()
        assert await store.load() == Snapshot()

    async def test_a_closed_store_says_so(self, make_store: StoreMaker) -> None:
        """Before it is opened, and after it was closed, which may be said twice. It can be opened again."""
        store = make_store()
        await _expect_closed(store)
        await store.open()
        await store.close()
        await store.close()
        await _expect_closed(store)
        await store.open()
        await store.ping()
        await store.close()

    async def test_closing_finishes_what_was_accepted(self, make_store: StoreMaker) -> None:
        """Callers that wait when the store closes get their answer, and it is true."""
        store = make_store()
        await store.open()
        tasks = [asyncio.ensure_future(store.commit(Batch(workloads=(workload(f"w{each}"),)))) for each in range(50)]  # noqa: TID251
        await asyncio.sleep(0)
        await store.close()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        accepted = {f"w{index}" for index, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)}
        assert all(isinstance(each, UnavailableError) for each in outcomes if isinstance(each, BaseException))
        again = make_store()
        await again.open()
        stored = {each.workload_id for each in (await again.load()).workloads}
        await again.close()
        assert stored == accepted


# ---------------------------------------------------------------------------------------------------------
# What the tests are made of


def _later(records: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dataclasses.replace(record, version=record.version + 1) for record in records)


async def _commit_all(store: Store, batches: Sequence[Batch]) -> list[tuple[Event, ...] | ShoalError]:
    """Commit batches at once, in their order, and return the result of each."""

    async def one(batch: Batch) -> tuple[Event, ...] | ShoalError:
        try:
            return await store.commit(batch)
        except ShoalError as error:
            return error

    return list(await asyncio.gather(*(one(batch) for batch in batches)))


async def _remove_everything(store: Store) -> None:
    loaded = await store.load()
    await store.commit(
        Batch(
            removed_nodes={NodeId(each.spec.node_id): each.version for each in loaded.nodes},
            removed_workloads={each.workload_id: each.version for each in loaded.workloads},
            removed_groups={each.group_id: each.version for each in loaded.groups},
            removed_jobs={each.job_id: each.version for each in loaded.jobs},
        )
    )
    assert await store.load() == Snapshot()


async def _expect_closed(store: Store) -> None:
    with pytest.raises(UnavailableError):
        await store.commit(Batch(workloads=(workload("a"),)))
    with pytest.raises(UnavailableError):
        await store.load()
    with pytest.raises(UnavailableError):
        await store.events(EventQuery())
    with pytest.raises(UnavailableError):
        await store.ping()


@dataclass(slots=True)
class _Model:
    """What a store should hold, by the simplest means."""

    workloads: dict[str, tuple[int, str]] = field(default_factory=dict)
    observations: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)

    def apply(self, batch: Batch) -> bool:
        """Apply a batch whole, or not at all and return False."""
        workloads, observations, nodes = dict(self.workloads), dict(self.observations), dict(self.nodes)
        for workload_id, version in batch.removed_workloads.items():
            if workloads.get(workload_id, (0, ""))[0] != version or not version:
                return False
            del workloads[workload_id]
            observations.pop(workload_id, None)
        for workload_id in batch.forgotten_observations:
            observations.pop(workload_id, None)
        for record in batch.workloads:
            if workloads.get(record.workload_id, (0, ""))[0] != record.version:
                return False
            workloads[record.workload_id] = (record.version + 1, record.revision_id)
        for each in batch.nodes:
            if nodes.get(each.spec.node_id, (0, 0))[0] != each.version:
                return False
            nodes[each.spec.node_id] = (each.version + 1, epoch_ms(each.last_heartbeat))
        for report in batch.observations:
            if report.status.workload_id in workloads:
                observations[report.status.workload_id] = report.status.message
        for node_id, moment in batch.heartbeats.items():
            if node_id in nodes:
                nodes[node_id] = (nodes[node_id][0], moment)
        self.workloads, self.observations, self.nodes = workloads, observations, nodes
        return True


@st.composite
def _small_batches(draw: st.DrawFn, model: _Model) -> Batch:
    """A change or two to few records, so that batches get in each other's way; most versions are right."""
    ids = st.sampled_from(["a", "b"])
    off = st.sampled_from([0, 0, 0, 0, 0, 1])
    parts: dict[str, Any] = {}
    changes = st.sampled_from(["put", "remove", "report", "forget", "node", "heartbeat"])
    for change in draw(st.lists(changes, max_size=2, unique=True)):
        key = draw(ids)
        version = model.workloads.get(key, (0, ""))[0] + draw(off)
        if change == "put":
            parts["workloads"] = (workload(key, version=version, revision=draw(st.sampled_from(["r1", "r2"]))),)
        elif change == "remove":
            parts["removed_workloads"] = {WorkloadId(key): max(1, version)}
        elif change == "report":
            parts["observations"] = (observation(key, message=draw(st.sampled_from(["x", "y"]))),)
        elif change == "forget":
            parts["forgotten_observations"] = (WorkloadId(key),)
        elif change == "node":
            parts["nodes"] = (node(key, version=model.nodes.get(key, (0, 0))[0] + draw(off)),)
        else:
            parts["heartbeats"] = {NodeId(key): draw(st.integers(0, 2**40))}
    return Batch(**parts, events=(event("a"),) * draw(st.integers(0, 1)))


def _created(
    tree: trees.Tree,
    path: str,
    data: bytes,
    *,
    ephemeral: bool = False,
    sequential: bool = False,
    makepath: bool = False,
) -> trees.Changes:
    _, changes = tree.create(path, data, session_id="s1", ephemeral=ephemeral, sequential=sequential, makepath=makepath)
    return changes
