"""What discovery does on every tree, with Monolith's agents on it. A test module makes a subclass for each tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from shoal.core.clock import SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, UnavailableError
from shoal.discovery.client import ServingAgentClient
from shoal.discovery.documents import write_record
from shoal.discovery.mirror.assignments import remove_unrequested, write_assignments
from shoal.discovery.mirror.mirror import Mirror, MirrorEvent
from shoal.discovery.mirror.records import AgentResource, PortalModel, PublishedModel, SchedulerPaths
from shoal.discovery.mirror.registrations import AgentRegistrations
from shoal.discovery.models.catalog import Catalog
from shoal.discovery.models.layouts import Layout, LayoutEntry, LayoutWatcher
from shoal.discovery.models.overview import collect_overview
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.records import DeployConfig, SavedModel
from shoal.discovery.models.service_map import ServiceMap
from shoal.discovery.registrar import Registrar
from shoal.discovery.replicas.paths import Location, service_root
from shoal.discovery.replicas.records import ModelState, Replica, ServerType
from shoal.discovery.replicas.registrations import owned_tasks
from shoal.discovery.replicas.table import SyncTarget
from shoal.discovery.replicas.updater import ReplicaUpdater
from shoal.discovery.replicas.watcher import ReplicaWatcher
from shoal.discovery.service import ServingAgentHandlers
from shoal.discovery.store import CoordinationStore, SessionState
from shoal.discovery.views import AddressView, MirrorAddresses, ModelAddresses, ReplicaAddresses
from shoal.testing.suites.coordination_kit import CoordinationKit
from shoal.wire.sockets.channel import GrpcTransport
from tests.peers.monolith import DENSE, ENTRY, PS, ForeignAgent, HeartbeatClient

LF = Location("lf", "default")
POD = "p.s.m;lf;default:pod-1"
GRPC = "192.0.2.2:58703"


class QuickClock(SystemClock):
    """Time that passes a hundred times as fast."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


class DiscoverySuite(CoordinationKit):
    """Discovery on one kind of tree."""

    @pytest.fixture
    def bzid(self):
        return f"b{SystemEntropy().token(8)}"

    @pytest.fixture
    def peer(self, other, bzid):
        """A foreign agent, with a session of its own."""
        return ForeignAgent(other, bzid)

    @pytest.fixture
    async def serve(self):
        """Serves a view, and returns the address."""
        servers = []

        async def start(view: AddressView, **more) -> str:
            handlers = ServingAgentHandlers(view, **more)
            servers.append(await GrpcTransport().serve("127.0.0.1:0", [handlers.service()]))
            return servers[-1].address

        yield start
        for server in servers:
            await server.stop()

    @pytest.fixture
    async def watcher(self, store, bzid):
        made = ReplicaWatcher(store, bzid, "m")
        yield made
        made.close()

    @pytest.fixture
    async def registrar(self, store):
        made = Registrar(store)
        made.start()
        yield made
        await made.close()

    @pytest.fixture
    async def updater(self, store, registrar, bzid):
        """Makes updaters whose servers are asked all the time."""
        made = []

        def make(tasks, state_of) -> ReplicaUpdater:
            replica = Replica("10.1.1.1:1", "[::]:1", archon_address="10.1.1.1:2", archon_address_ipv6="[::]:2")
            made.append(
                ReplicaUpdater(
                    store,
                    registrar,
                    service_root(bzid, "m"),
                    dict.fromkeys(tasks, replica),
                    state_of=state_of,
                    clock=QuickClock(),
                )
            )
            return made[-1]

        yield make
        for each in made:
            await each.close()

    @pytest.fixture
    async def services(self, store, bzid):
        made = ServiceMap(store, ModelPaths(bzid))
        yield made
        made.close()

    async def until(self, check: Callable[[], bool]) -> None:
        """Wait for a state that must come."""
        async with asyncio.timeout(self.patience):
            while not check():
                await asyncio.sleep(0.005)

    async def expire(self, faults, store: CoordinationStore) -> None:
        """End the session of a store, and wait for its next one."""
        ended = store.session_id
        await faults.expire(store)
        await self.until(lambda: store.state is SessionState.CONNECTED and store.session_id != ended)

    # -----------------------------------------------------------------------------------------------------
    # Version 1

    async def test_replicas_of_foreign_agents_are_found_in_a_plain_tree(self, watcher, peer):
        await peer.replica("m/ps:0/1", "10.0.0.2")
        await peer.replica("m/ps:0/0", "10.0.0.1")
        await peer.replica("m/ps:10/0", "10.0.0.3", stat=20)
        await peer.replica("m/entry:0/00000000000", "10.0.0.4")
        await peer.replica("m2/ps:0/0", "10.0.0.9")
        watcher.start()
        await watcher.wait_loaded()
        table = watcher.table
        assert table.all_replicas(ServerType.PS) == {"ps:0": ["10.0.0.1:44059", "10.0.0.2:44059"], "ps:10": []}
        assert table.task_replicas(ServerType.ENTRY, 0) == ["10.0.0.4:44059"]
        assert table.replica(ServerType.PS, 0, 1) == "10.0.0.2:44059"
        assert table.replica(ServerType.PS, 0, 12) is None
        assert table.replica(ServerType.PS, 10, 0) is None

    async def test_replicas_are_found_by_location(self, watcher, peer):
        await peer.replica("m/lf:default/ps:3/7", "10.0.0.1")
        await peer.replica("m/hl:1/ps:3/8", "10.0.0.2")
        watcher.start()
        await watcher.wait_loaded()
        table = watcher.table
        assert table.all_replicas(ServerType.PS) == {
            "hl:1/ps:3": ["10.0.0.2:44059"],
            "lf:default/ps:3": ["10.0.0.1:44059"],
        }
        assert table.task_replicas(ServerType.PS, 3, location=LF) == ["10.0.0.1:44059"]
        assert table.sync_targets(ServerType.PS, 3) == {
            "10.0.0.1:44059": SyncTarget("lf", "default", 7),
            "10.0.0.2:44059": SyncTarget("hl", "1", 8),
        }

    async def test_the_table_follows_changes_and_a_task_that_vanishes_and_returns(self, watcher, peer):
        watcher.start()
        await watcher.wait_loaded()
        assert len(watcher.table) == 0

        def addresses():
            return watcher.table.all_replicas(ServerType.PS)

        await peer.replica("m/ps:0/0", "10.0.0.1", stat=0)
        await self.until(lambda: addresses() == {"ps:0": []})
        await peer.replica("m/ps:0/0", "10.0.0.1")
        await self.until(lambda: addresses() == {"ps:0": ["10.0.0.1:44059"]})
        await peer.remove("service/m/ps:0")
        await self.until(lambda: addresses() == {})
        await peer.replica("m/ps:0/0", "10.0.0.2")
        await self.until(lambda: addresses() == {"ps:0": ["10.0.0.2:44059"]})
        await peer.remove("service/m")
        await self.until(lambda: addresses() == {})
        await peer.replica("m/ps:0/0", "10.0.0.3")
        await self.until(lambda: addresses() == {"ps:0": ["10.0.0.3:44059"]})

    async def test_replicas_go_with_the_session_of_their_agent(self, watcher, peer, other, faults):
        await peer.replica("m/ps:0/0", "10.0.0.1")
        watcher.start()
        await self.until(lambda: len(watcher.table) == 1)
        await self.expire(faults, other)
        await self.until(lambda: len(watcher.table) == 0)

    async def test_the_table_survives_the_loss_of_its_own_session(self, watcher, peer, store, faults):
        await peer.replica("m/ps:0/0", "10.0.0.1")
        watcher.start()
        await self.until(lambda: len(watcher.table) == 1)
        await self.expire(faults, store)
        await peer.replica("m/ps:0/0", "10.0.0.2")
        await self.until(lambda: watcher.table.task_replicas(ServerType.PS, 0) == ["10.0.0.2:44059"])

    async def test_an_unreadable_replica_is_unknown_and_harms_no_other(self, watcher, peer):
        await peer.replica("m/ps:0/0", "10.0.0.1")
        await peer.replica("m/ps:0/1", "10.0.0.2")
        watcher.start()
        await self.until(lambda: len(watcher.table) == 2)
        await peer.ephemeral("service/m/ps:0/0", '{"stat": "30"}')
        await peer.ephemeral("service/m/ps:0/x", "{}")
        await self.until(lambda: watcher.table.task_replicas(ServerType.PS, 0) == ["10.0.0.2:44059"])
        await peer.ephemeral("service/m/ps:0/1", "")
        await self.until(lambda: watcher.table.all_replicas(ServerType.PS) == {"ps:0": []})
        assert len(watcher.table) == 2

    async def test_a_model_server_of_version_1_gets_its_peers(self, watcher, peer, serve):
        for task in range(20):
            for replica in range(2):
                await peer.replica(f"m/lf:default/ps:{task}/{replica}", f"192.168.1.{replica + 1}")
        await peer.replica("m/hl:default/ps:0/9", "10.9.9.9")
        await peer.replica("m/lf:default/dense:0/1", "192.168.1.1", stat=10)
        watcher.start()
        await watcher.wait_loaded()
        client = HeartbeatClient(await serve(ReplicaAddresses(watcher, location=LF)))
        await client.beat()
        assert client.api_version == 0
        assert len(client.addresses) == 21
        assert client.peers("m", "ps_3") == ["192.168.1.1:44059", "192.168.1.2:44059"]
        assert client.peers("m", "dense_0") == []
        assert set(await client.heart_beat(DENSE)) == {"dense:0"}
        assert await client.get_replicas(PS, 1) == ["192.168.1.1:44059", "192.168.1.2:44059"]
        assert await client.get_replicas(ENTRY, 0) == []

    async def test_an_agent_without_a_location_answers_for_all_of_them(self, watcher, peer, serve):
        await peer.replica("m/lf:default/ps:0/0", "10.0.0.1")
        await peer.replica("m/hl:default/ps:0/0", "10.0.0.2")
        watcher.start()
        await watcher.wait_loaded()
        client = HeartbeatClient(await serve(ReplicaAddresses(watcher)))
        assert await client.heart_beat(PS) == {"ps:0": ["10.0.0.2:44059", "10.0.0.1:44059"]}

    async def test_nothing_is_answered_before_the_first_view_is_loaded(self, watcher, peer, serve):
        await peer.replica("m/ps:0/0", "10.0.0.1")
        address = await serve(ReplicaAddresses(watcher))
        channel = GrpcTransport().connect(address)
        client = ServingAgentClient(channel)
        with pytest.raises(UnavailableError, match="not loaded yet"):
            await client.heart_beat(ServerType.PS)
        with pytest.raises(UnavailableError, match="not loaded yet"):
            await client.get_replicas(ServerType.PS, 0)
        watcher.start()
        await watcher.wait_loaded()
        assert await client.heart_beat(ServerType.PS) == {"ps:0": ["10.0.0.1:44059"]}
        await client.close()

    async def test_our_replicas_are_what_a_foreign_agent_reads(self, watcher, updater, registrar, other, bzid):
        """One entry, the PS tasks of shard 1 of 2, and a server that fails."""
        tasks = owned_tasks([ServerType.ENTRY, ServerType.PS], location=LF, num_ps=4, num_shard=2, shard_id=1)
        states = {"entry": ModelState.AVAILABLE, "ps_1": ModelState.LOADING}

        async def state_of(model: str) -> ModelState:
            if model not in states:
                raise UnavailableError("no answer")
            return states[model]

        agent = updater(tasks, state_of)
        await agent.start()
        watcher.start()
        root = f"/{bzid}/service/m/lf:default"
        assert agent.replica_id == 0
        ours = Replica("10.1.1.1:1", "[::]:1", archon_address="10.1.1.1:2", archon_address_ipv6="[::]:2")

        async def seen(path: str, stat: int) -> None:
            expected = write_record(replace(ours, stat=ModelState(stat)))
            value = None
            async with asyncio.timeout(self.patience):
                while value is None or value.data != expected:
                    await asyncio.sleep(0.005)
                    value = await other.get(path) if await other.exists(path) else None
            assert value.stat.owner != ""

        await seen(f"{root}/entry:0/00000000000", 30)
        await seen(f"{root}/ps:1/0", 20)
        await seen(f"{root}/ps:3/0", 0)
        states.update(ps_1=ModelState.AVAILABLE, ps_3=ModelState.AVAILABLE)
        await self.until(
            lambda: (
                watcher.table.all_replicas(ServerType.PS)
                == {"lf:default/ps:1": ["10.1.1.1:1"], "lf:default/ps:3": ["10.1.1.1:1"]}
            )
        )
        states["ps_3"] = ModelState.END
        await self.until(lambda: watcher.table.task_replicas(ServerType.PS, 3) == [])
        assert watcher.table.task_replicas(ServerType.PS, 1) == ["10.1.1.1:1"]
        await agent.close()
        await registrar.settled()
        await self.until(lambda: len(watcher.table) == 0)

    async def test_our_replicas_return_once_after_a_lost_session(self, updater, registrar, store, peer, faults):
        async def state_of(_model: str) -> ModelState:
            return ModelState.AVAILABLE

        agent = updater(owned_tasks([ServerType.ENTRY, ServerType.PS]), state_of)
        await agent.start()
        await self.until(lambda: all(state is ModelState.AVAILABLE for state in agent.states.values()))
        await registrar.settled()
        await self.expire(faults, store)
        path = f"/{peer.bzid}/service/m/ps:0/0"
        states: list[object] = []
        watch = peer.store.watch_data(path, lambda value: states.append(value and value.stat.owner))
        await self.until(lambda: bool(states) and states[-1] == store.session_id)
        await registrar.settled()
        assert [owner for owner in states if owner].count(store.session_id) == 1
        assert b'"stat": 30' in (await peer.store.get(path)).data
        assert b'"stat": 30' in (await peer.store.get(f"/{peer.bzid}/service/m/entry:0/00000000000")).data
        watch.close()

    async def test_each_entry_gets_the_next_number(self, updater, peer):
        await peer.replica("m/entry:0/00000000000", "10.0.0.1")  # its number was given to it

        async def state_of(_model: str) -> ModelState:
            return ModelState.START

        first, second = (updater(owned_tasks([ServerType.ENTRY]), state_of) for _ in range(2))
        await first.start()
        await second.start()
        assert (first.replica_id, second.replica_id) == (1, 2)
        with pytest.raises(InvalidError, match="replica_id"):
            await updater(owned_tasks([ServerType.PS]), state_of).start()

    # -----------------------------------------------------------------------------------------------------
    # Version 2

    async def test_the_scheduler_tree_is_mirrored(self, store, peer, bzid, serve):
        paths = SchedulerPaths(bzid)
        events: list[MirrorEvent] = []
        mirror = Mirror(store, paths, on_event=events.append)
        mirror.start()
        await mirror.wait_loaded()
        await peer.write(
            "portal/m",
            '{"model_name": "m", "model_dir": "/d", "ckpt": null, "num_shard": 5, "action": "NONE", '
            '"spec_replicas": []}',
        )
        await self.until(lambda: len(events) == 1)
        assert events[0].portal_model == PortalModel("m", "/d", None, 5, action="CREATED")
        sub_models = {"entry": "/d/entry/1", "ps_0": "/d/ps_0/1", "ps_5": "/d/ps_5/1"}
        published = [PublishedModel(shard, replica, "m", 10, 6, sub_models) for shard in (2, 3) for replica in range(3)]
        await write_assignments(store, paths, published)
        await write_assignments(store, paths, published)
        await self.until(lambda: [event.kind for event in events] == ["portal", "publish"])
        assert mirror.expected_loading(shard_id=2, replica_id=2) == {"m": published[2]}
        assert mirror.expected_loading(shard_id=9, replica_id=0)["m"].sub_models == {"entry": "/d/entry/1"}
        await peer.scheduled_replica("m", "ps", 0, 2, "10.0.0.5:8080")
        await peer.scheduled_replica("m", "ps", 5, 2, "10.0.0.5:8080")
        await peer.scheduled_replica("m2", "ps", 0, 2, "10.0.0.6:8080")
        await peer.scheduled_replica("m", "entry", 0, 2, "10.0.0.5:8080")
        await peer.ephemeral(
            "resource/2:2",
            '{"address": "10.0.0.5:1234", "shard_id": 2, "replica_id": 2, "memory": 12345, "cpu": 5.6, '
            '"network": 3.2, "work_load": 0.7}',
        )
        await self.until(lambda: len(mirror.all_replicas(ServerType.PS)) == 3 and mirror.resources() != [])
        await self.until(lambda: mirror.all_replicas(ServerType.ENTRY) != {})
        assert mirror.resources() == [AgentResource("10.0.0.5:1234", 2, 2, 12345, 5.6, 3.2, 0.7)]
        assert list(mirror.model_replicas("m", ServerType.PS)) == ["m:ps:0", "m:ps:5"]
        found = mirror.replica("m", ServerType.PS, 5, 2)
        assert found is not None
        assert found.address == "10.0.0.5:8080"
        assert mirror.replica("m", ServerType.PS, 5, 3) is None
        client = HeartbeatClient(await serve(MirrorAddresses(mirror)))
        assert await client.heart_beat(ENTRY) == {"m:entry:0": ["10.0.0.5:8080"]}
        assert await client.get_replicas(PS, 0, "m2") == ["10.0.0.6:8080"]
        await peer.remove("portal/m")
        await self.until(lambda: events[-1].kind == "portal")
        assert events[-1].portal_model.action == "DELETED"
        assert len(await remove_unrequested(store, paths, mirror)) == 6
        await self.until(lambda: mirror.published() == {} and events[-1].kind == "publish")
        mirror.close()

    async def test_our_agent_is_seen_in_the_scheduler_tree(self, store, peer, registrar, faults):
        other, bzid = peer.store, peer.bzid
        paths, root = SchedulerPaths(bzid), f"/{bzid}/service/m"
        agent = AgentRegistrations(registrar, paths)
        mirror = Mirror(other, paths)
        mirror.start()
        foreign = await peer.scheduled_replica("m", "ps", 0, 1, "10.0.0.6:8080")
        entry, ps_0, ps_5 = (
            Replica("10.0.0.5:8080", stat=ModelState.AVAILABLE, model_name="m", server_type=kind, task=task, replica=2)
            for kind, task in (("entry", 0), ("ps", 0), ("ps", 5))
        )
        agent.update_service([entry, ps_0, ps_5])
        agent.report_resource(AgentResource("10.0.0.5:1234", 2, 2, 12345, 5.6, 3.2, 0.7))
        assert agent.local_replica_paths == {f"{root}/entry:0/2", f"{root}/ps:0/2", f"{root}/ps:5/2"}
        await self.until(lambda: mirror.replica("m", ServerType.PS, 5, 2) == ps_5 and mirror.resources() != [])
        await self.until(lambda: len(mirror.task_replicas("m", ServerType.PS, 0)) == 2)
        await self.until(lambda: mirror.all_replicas(ServerType.ENTRY) == {"m:entry:0": [entry]})
        assert list(mirror.model_replicas("m", ServerType.PS)) == ["m:ps:0", "m:ps:5"]
        assert (await other.get(f"{root}/ps:5/2")).data.decode() == (
            '{"address": "10.0.0.5:8080", "address_ipv6": null, "stat": 30, "model_name": "m", "server_type": "ps", '
            '"task": 5, "replica": 2, "archon_address": null, "archon_address_ipv6": null}'
        )
        assert (await other.get(f"/{bzid}/resource/2:2")).data.decode() == (
            '{"address": "10.0.0.5:1234", "shard_id": 2, "replica_id": 2, "memory": 12345, "cpu": 5.6, '
            '"network": 3.2, "work_load": 0.7}'
        )
        # One is updated, one goes; what others have registered stays.
        for change in ({"model_name": "m/n"}, {"server_type": "gpu"}, {"task": -1}, {"replica": -1}):
            with pytest.raises(InvalidError, match=next(iter(change))):
                agent.update_service([replace(entry, **change)])
        agent.update_service([ps_0, replace(ps_5, stat=ModelState.UNLOADING)])
        agent.report_resource(AgentResource("10.0.0.5:1234", 2, 2, 99))
        await self.until(lambda: mirror.all_replicas(ServerType.PS).keys() == {"m:ps:0"})
        await self.until(lambda: mirror.all_replicas(ServerType.ENTRY) == {})
        await self.until(lambda: [each.memory for each in mirror.resources()] == [99])
        assert agent.local_replica_paths == {f"{root}/ps:0/2", f"{root}/ps:5/2"}
        assert await store.exists(foreign) is not None
        # They return after a lost session, as they were last.
        await self.expire(faults, store)
        await registrar.settled()
        await self.until(lambda: mirror.replica("m", ServerType.PS, 0, 2) == ps_0 and len(mirror.resources()) == 1)
        assert b'"stat": 40' in (await other.get(f"{root}/ps:5/2")).data
        assert await other.exists(f"{root}/entry:0/2") is None
        agent.update_service([])
        await self.until(lambda: mirror.replica("m", ServerType.PS, 0, 2) is None)
        mirror.close()

    # -----------------------------------------------------------------------------------------------------
    # Version 3

    async def test_containers_of_foreign_agents_are_found_whatever_comes_first(self, services, peer):
        services.start()
        await services.wait_loaded()
        await peer.bind("m", "ps_0", POD)
        await self.until(lambda: services.services() == {"m": {"ps_0": []}})
        await peer.container(POD, GRPC)
        await self.until(lambda: services.addresses() == {"m:ps_0": [GRPC]})
        await peer.container(POD, "192.0.2.2:1")
        await self.until(lambda: services.addresses() == {"m:ps_0": ["192.0.2.2:1"]})
        assert services.sync_targets(SavedModel("m", "ps_0")) == ("m:ps_0", ["192.0.2.2:1"])
        assert services.sync_targets(SavedModel("m", "ps_1")) == ("m:ps_1", [])

    async def test_a_container_vanishes_with_its_session_and_returns(self, services, peer, other, faults):
        await peer.container(POD, GRPC)
        await peer.bind("m", "ps_0", POD)
        services.start()
        await self.until(lambda: services.addresses() == {"m:ps_0": [GRPC]})
        await self.expire(faults, other)
        await self.until(lambda: services.addresses() == {})
        await peer.bind("m", "ps_0", POD)
        await peer.container(POD, GRPC)
        await self.until(lambda: services.addresses() == {"m:ps_0": [GRPC]})

    async def test_our_addresses_are_written_before_our_bindings(self, store, peer, registrar, faults):
        """Also in the next session, where every watch fires at once."""
        container = f"/{peer.bzid}/container_service/{POD}"
        bindings = [f"/{peer.bzid}/binding/m/ps_{number}:{POD}" for number in range(50)]
        for path in bindings:
            registrar.register(path, rank=1)
        registrar.register(container, b"{}")
        for lose in (False, True):
            if lose:
                await self.expire(faults, store)
            await registrar.settled()
            first, *others = [await peer.store.exists(path) for path in (container, *bindings)]
            assert {each.owner for each in (first, *others)} == {store.session_id}
            assert first.created < min(each.created for each in others)

    async def test_a_model_server_of_version_3_learns_its_peers_by_name(self, services, peer, serve):
        for sub_graph in ("entry", "ps_0", "ps_1"):
            await peer.declare("m", sub_graph, f"/d/{sub_graph}")
        await peer.declare("other", "ps_0", "/d/other")
        services.start()
        layout: list[set[str] | None] = [None]
        view = ModelAddresses(services, models=lambda: layout[0])
        address = await serve(view)
        await services.wait_loaded()
        early = HeartbeatClient(address)
        await early.beat()
        assert early.api_version == 0  # for its life: agents load no models before they can answer
        layout[0] = {"m"}
        client = HeartbeatClient(address)
        await client.beat()
        assert client.api_version == 1
        assert client.addresses == {"m:entry": [], "m:ps_0": [], "m:ps_1": []}
        await peer.container(POD, GRPC)
        await peer.bind("m", "ps_0", POD)
        await peer.bind("other", "ps_0", POD)
        await self.until(lambda: {"m", "other"} == {m for m, found in services.services().items() if found["ps_0"]})
        await client.beat()
        assert client.peers("m", "ps_0") == [GRPC]
        assert "other:ps_0" not in client.addresses
        assert await client.get_replicas(PS, 0, "m") == [GRPC]
        assert await client.get_replicas(PS, 0, "m:ps_0") == [GRPC]
        assert await client.get_replicas(ENTRY, 0, "m") == []

    async def test_a_layout_is_followed_with_its_declarations(self, store, peer, bzid):
        layouts: list[Layout] = []
        watcher = LayoutWatcher(store, ModelPaths(bzid), "test_layout", changed=layouts.append)
        watcher.start()
        await self.until(lambda: layouts == [Layout()])

        def entry(sub_graph, base_path):
            return LayoutEntry(SavedModel("m", sub_graph), DeployConfig(base_path, "latest"))

        def names():
            return [str(each.saved_model) for each in layouts[-1].entries]

        for sub_graph in ("ps_2", "entry", "ps_0"):
            await peer.declare("m", sub_graph, f"/d/{sub_graph}")
            await peer.publish("test_layout", f"m:{sub_graph}")
        await self.until(lambda: names() == ["m:entry", "m:ps_0", "m:ps_2"])
        assert layouts[-1].entries[0] == entry("entry", "/d/entry")
        await peer.declare("m", "entry", "/new")
        await self.until(lambda: layouts[-1].entries[0] == entry("entry", "/new"))
        await peer.publish("test_layout", "m:late")
        await self.until(lambda: [each.field for each in layouts[-1].problems] == [f"/{bzid}/saved_models/m/late"])
        assert names() == ["m:entry", "m:ps_0", "m:ps_2"]
        await peer.declare("m", "late", "/late")
        await self.until(lambda: names() == ["m:entry", "m:late", "m:ps_0", "m:ps_2"])
        await peer.publish("test_layout", "nonsense")
        await peer.write("saved_models/m/ps_0", "{broken")
        await self.until(lambda: len(layouts[-1].problems) == 2)
        assert names() == ["m:entry", "m:late", "m:ps_2"]
        for name in ("m:entry", "m:late", "nonsense"):
            await peer.remove(f"layouts/test_layout/{name}")
        await self.until(lambda: names() == ["m:ps_2"] and len(layouts[-1].problems) == 1)
        watcher.close()

    async def test_models_are_declared_published_and_unpublished(self, store, bzid):
        catalog = Catalog(store, ModelPaths(bzid))
        sub_graphs = {name: f"/d/{name}" for name in ("entry", "ps_0", "ps_1", "ps_2", "ps_3", "ps_4")}
        await catalog.declare("m", sub_graphs)
        assert [each.sub_graph for each in await catalog.sub_graphs("m")] == sorted(sub_graphs)
        assert (await store.get(f"/{bzid}/saved_models/m/entry")).data == (
            b'{"model_base_path": "/d/entry", "version_policy": "latest"}'
        )
        assert (await store.get(f"/{bzid}/saved_models/m/ps_0")).data == (
            b'{"model_base_path": "/d/ps_0", "version_policy": "latest_once"}'
        )
        with pytest.raises(PreconditionError, match="declared already"):
            await catalog.declare("m", {"entry": "/x"})
        await catalog.declare("m", {"entry": "/x"}, overwrite=True)
        assert b'"/x"' in (await store.get(f"/{bzid}/saved_models/m/entry")).data
        assert [each.sub_graph for each in await catalog.sub_graphs("m")] == sorted(sub_graphs)

        async def members():
            return (await collect_overview(store, ModelPaths(bzid)))["layout_info"]

        assert await catalog.publish("m:entry", "l1") == ["m:entry"]
        assert await members() == {"l1": ["m:entry"]}
        await catalog.publish("m:ps_*", "l1")
        await catalog.publish("m:ps_*", "l1")
        assert await members() == {"l1": ["m:entry", "m:ps_0", "m:ps_1", "m:ps_2", "m:ps_3", "m:ps_4"]}
        await catalog.unpublish("m:ps_*", f"/{bzid}/layouts/l1")
        assert await members() == {"l1": ["m:entry"]}
        await catalog.unpublish("m:entry", "l1")
        assert await members() == {"l1": []}

    async def test_an_entry_that_cannot_be_served_can_be_unpublished(self, store, peer, bzid):
        catalog = Catalog(store, ModelPaths(bzid))
        await peer.publish("l1", "m:ps_0:1")
        await peer.write("saved_models/m/a:b", "{}")
        await peer.declare("m", "entry", "/d")
        assert await catalog.sub_graphs("m") == [SavedModel("m", "entry")]
        assert await catalog.publish("m:*", "l1") == ["m:entry"]
        assert await catalog.unpublish("m:ps_*", "l1") == ["m:ps_0:1"]
        assert await store.children(f"/{bzid}/layouts/l1") == ("m:entry",)

    async def test_a_container_without_a_usable_address_is_not_called(self, services, peer):
        await peer.container(POD, "0.0.0.0:58703")
        await peer.bind("m", "ps_0", POD)
        await peer.container("c:other", "10.0.0.1:None")
        await peer.bind("m", "ps_0", "c:other")
        services.start()
        await services.wait_loaded()
        assert len(services.containers(SavedModel("m", "ps_0"))) == 2
        assert services.addresses() == {"m:ps_0": []}

    async def test_what_matches_nothing_is_an_error(self, store, bzid):
        catalog = Catalog(store, ModelPaths(bzid))
        await catalog.declare("m", {"entry": "/d"})
        for call, error in [
            (catalog.publish("m:ps_*", "l1"), NotFoundError),
            (catalog.publish("nobody:entry", "l1"), NotFoundError),
            (catalog.publish("m", "l1"), InvalidError),
            (catalog.publish("m:entry", "a/b"), InvalidError),
            (catalog.unpublish("m:entry", "l1"), NotFoundError),
            (catalog.declare("a:b", {"entry": "/d"}), InvalidError),
            (catalog.declare("n", {"..": "/d"}), InvalidError),
            (catalog.declare("n", {}), InvalidError),
        ]:
            with pytest.raises(error):
                await call
        assert await store.exists(f"/{bzid}/layouts") is None
        assert await store.children(f"/{bzid}/saved_models") == ("m",)

    async def test_the_overview_has_everything(self, store, peer, bzid):
        for sub_graph in ("entry", "ps_0"):
            await peer.declare("m", sub_graph, f"/d/{sub_graph}")
        await peer.declare("idle", "entry", "/i")
        await peer.publish("prod", "m:ps_0")
        await peer.publish("prod", "m:entry")
        await peer.container(POD, GRPC)
        await peer.bind("m", "entry", POD)
        found = await collect_overview(store, ModelPaths(bzid))
        assert found["model_info"] == {
            "idle": {
                "entry": {
                    "deploy_config": '{"model_base_path": "/i", "version_policy": "latest"}',
                    "bindings": [],
                },
                "sub_graphs_total": 1,
            },
            "m": {
                "entry": {
                    "deploy_config": '{"model_base_path": "/d/entry", "version_policy": "latest"}',
                    "bindings": [POD],
                },
                "ps_0": {
                    "deploy_config": '{"model_base_path": "/d/ps_0", "version_policy": "latest"}',
                    "bindings": [],
                },
                "sub_graphs_available": 1,
                "sub_graphs_total": 2,
            },
        }
        assert list(found["model_info"]["m"]) == ["entry", "ps_0", "sub_graphs_available", "sub_graphs_total"]
        container = found["container_info"]["p.s.m;lf;default"]["pod-1"]
        assert container["saved_models"] == ["m:entry"]
        assert container["service_info"].startswith('{"grpc": "192.0.2.2:58703"')
        assert found["layout_info"] == {"prod": ["m:entry", "m:ps_0"]}
