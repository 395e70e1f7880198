"""What registrar and election do on every backend. Part of `shoal.testing.suites.coordination`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from shoal.core.entropy import SystemEntropy
from shoal.discovery.election import Election
from shoal.discovery.registrar import Registrar
from shoal.discovery.store import CoordinationStore, SessionState
from shoal.testing.suites.coordination_kit import CoordinationKit, Faults, Seen


class RegistrarSuite(CoordinationKit):
    """Registrations hold, whatever happens to the session."""

    @pytest.fixture
    async def registrar(self, store: CoordinationStore) -> AsyncIterator[Registrar]:
        registrar = Registrar(store)
        registrar.start()
        yield registrar
        await registrar.close()

    async def test_registrations_appear_change_and_go(
        self, registrar: Registrar, store: CoordinationStore, other: CoordinationStore, base: str
    ) -> None:
        registrar.register(f"{base}/a/one", b"1")
        registrar.register(f"{base}/a/two", b"2")
        await registrar.settled()
        assert await other.children(f"{base}/a") == ("one", "two")
        first = await other.get(f"{base}/a/one")
        assert (first.data, first.stat.owner) == (b"1", store.session_id)
        registrar.register(f"{base}/a/one", b"new")
        registrar.withdraw(f"{base}/a/two")
        await registrar.settled()
        changed = await other.get(f"{base}/a/one")
        assert (changed.data, changed.stat.created) == (b"new", first.stat.created)
        assert await other.children(f"{base}/a") == ("one",)
        await registrar.close()
        assert await other.children(f"{base}/a") == ()

    async def test_what_is_in_place_is_left_alone(
        self, registrar: Registrar, other: CoordinationStore, store: CoordinationStore, base: str
    ) -> None:
        await store.create(f"{base}/mine", b"x", ephemeral=True)
        before = await other.exists(f"{base}/mine")
        for number in range(5):
            registrar.register(f"{base}/mine", b"x")
            registrar.register(f"{base}/n-{number}")
            await registrar.settled()
        assert await other.exists(f"{base}/mine") == before

    async def test_all_registrations_return_once_after_the_session_is_lost(
        self, registrar: Registrar, store: CoordinationStore, other: CoordinationStore, base: str, faults: Faults
    ) -> None:
        names = tuple(f"n-{number:02}" for number in range(40))
        for name in names:
            registrar.register(f"{base}/{name}", name.encode())
        await registrar.settled()
        states = self.seen()
        store.on_state(states)
        await faults.expire(store)
        await states.until(lambda _: "lost" in states.values and store.state is SessionState.CONNECTED)
        await registrar.settled()
        assert await other.children(base) == names
        values = [await other.get(f"{base}/{name}") for name in names]
        assert [value.data for value in values] == [name.encode() for name in names]
        assert {(value.stat.owner, value.stat.version) for value in values} == {(store.session_id, 0)}

    async def test_a_short_break_changes_nothing(
        self, registrar: Registrar, store: CoordinationStore, other: CoordinationStore, base: str, faults: Faults
    ) -> None:
        registrar.register(f"{base}/a", b"1")
        await registrar.settled()
        before = await other.exists(f"{base}/a")
        seen = self.seen()
        other.watch_children(base, seen)
        await seen.is_now(("a",))
        await faults.suspend(store)
        registrar.register(f"{base}/b", b"2")
        await faults.resume(store)
        await seen.is_now(("a", "b"))
        await registrar.settled()
        assert await other.exists(f"{base}/a") == before
        assert seen.values == [("a",), ("a", "b")]

    async def test_what_others_remove_or_change_is_put_back(
        self, registrar: Registrar, other: CoordinationStore, base: str
    ) -> None:
        registrar.register(f"{base}/a", b"1")
        await registrar.settled()
        seen = self.seen()
        other.watch_data(f"{base}/a", seen)
        first = await seen.until(lambda value: value is not None)
        await other.delete(f"{base}/a")
        again = await seen.until(lambda value: value is not None and value.stat.created > first.stat.created)
        assert again.data == b"1"
        changed = await other.set(f"{base}/a", b"wrong")
        await seen.until(lambda value: value is not None and value.stat.modified > changed.modified)
        assert seen.last.data == b"1"

    async def test_the_node_of_a_previous_life_is_replaced(
        self, registrar: Registrar, store: CoordinationStore, other: CoordinationStore, base: str
    ) -> None:
        await other.create(f"{base}/a", b"old", ephemeral=True)
        registrar.register(f"{base}/a", b"new")
        await registrar.settled()
        value = await other.get(f"{base}/a")
        assert (value.data, value.stat.owner) == (b"new", store.session_id)

    async def test_two_that_claim_one_node_do_not_fight(
        self,
        registrar: Registrar,
        store: CoordinationStore,
        other: CoordinationStore,
        base: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        registrar.register(f"{base}/a", b"first")
        await registrar.settled()
        seen, mine = self.seen(), self.seen()
        second = Registrar(other)
        second.start()
        store.watch_data(f"{base}/a", mine)
        second.register(f"{base}/a", b"second")
        await second.settled()
        await mine.until(lambda value: value is not None and value.data == b"second")
        registrar.register(f"{base}/b")  # makes the first look at all of its nodes once more
        other.watch_data(f"{base}/b", seen)
        await seen.until(lambda value: value is not None)
        taken = await other.get(f"{base}/a")
        assert (taken.data, taken.stat.owner) == (b"second", other.session_id)
        assert "was taken over by session" in caplog.text
        await second.close()
        await registrar.settled()
        assert (await other.get(f"{base}/a")).data == b"first"

    async def test_registrations_wait_for_the_store(
        self, made: Callable[[], CoordinationStore], other: CoordinationStore, base: str
    ) -> None:
        late = made()
        registrar = Registrar(late)
        registrar.start()
        registrar.register(f"{base}/a")
        await late.open()
        await registrar.settled()
        assert await other.children(base) == ("a",)
        await registrar.close()


class ElectionSuite(CoordinationKit):
    """One candidate leads."""

    def candidate(self, store: CoordinationStore, base: str, identifier: str) -> tuple[Election, Seen[bool]]:
        seen = self.seen()
        election = Election(store, f"{base}/election", identifier, entropy=SystemEntropy(), changed=seen)
        election.start()
        return election, seen

    async def test_the_first_leads_until_it_resigns(
        self, store: CoordinationStore, other: CoordinationStore, base: str
    ) -> None:
        first, first_leads = self.candidate(store, base, "one")
        await first_leads.is_now(True)
        second, second_leads = self.candidate(other, base, "two")
        joined = self.seen()
        other.watch_children(f"{base}/election", joined)
        await joined.until(lambda names: names is not None and len(names) == 2)
        assert await second.candidates() == ("one", "two")
        assert (first.leads, second.leads) == (True, False)
        await first.close()
        await second_leads.is_now(True)
        assert await second.candidates() == ("two",)
        assert first.leads is False
        await second.close()
        assert second.leads is False

    async def test_a_leader_whose_session_is_lost_goes_to_the_end(
        self, store: CoordinationStore, other: CoordinationStore, base: str, faults: Faults
    ) -> None:
        first, first_leads = self.candidate(store, base, "one")
        await first_leads.is_now(True)
        second, second_leads = self.candidate(other, base, "two")
        joined = self.seen()
        other.watch_children(f"{base}/election", joined)
        before = await joined.until(lambda names: names is not None and len(names) == 2)
        await faults.expire(store)
        await second_leads.is_now(True)
        await joined.until(lambda names: names is not None and len(names) == 2 and names != before)
        assert await second.candidates() == ("two", "one")
        assert (first.leads, second.leads) == (False, True)
        await first.close()
        await second.close()

    async def test_a_leader_without_a_connection_does_not_lead(
        self, store: CoordinationStore, base: str, faults: Faults
    ) -> None:
        election, leads = self.candidate(store, base, "one")
        await leads.is_now(True)
        await faults.suspend(store)
        await leads.is_now(False)
        assert election.leads is False
        await faults.resume(store)
        await leads.is_now(True)
        assert await election.candidates() == ("one",)
        await election.close()
