"""Announces the named ports of ready workloads in the coordination tree, so that any workload finds another by name.

    /service/<service>/<workload id>    {"node": "n1", "ports": {"http": "10.0.0.5:8080"}}

The service is the label `service` of the workload, or its group. A node is there while the workload is ready and its
node is in contact. It is stored with the tree: after a restart only what differs is written. Made for each leadership.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.control.state.fleet import Fleet
from shoal.control.state.ledger import Ledger
from shoal.control.state.lifecycle.phases import Waiting, contract_status
from shoal.control.state.loops import Rounds
from shoal.control.store.base import Batch
from shoal.core.clock import Clock
from shoal.core.errors import InvalidError
from shoal.core.ids import WorkloadId
from shoal.core.tasks import Signal
from shoal.discovery.embedded.owner import TreeOwner
from shoal.discovery.embedded.tree import Changes
from shoal.discovery.services import ROOT, Endpoint, write_endpoint
from shoal.discovery.store import check_path, join
from shoal.model.phases import ContractStatus
from shoal.wire.addresses import Address, parse_address

SERVICE_LABEL = "service"
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Announcement:
    """A node of the tree for one workload."""

    path: str
    data: bytes


def announcement_of(fleet: Fleet, workload_id: WorkloadId) -> Announcement | None:
    """What is announced of a workload; None when it is not ready, has no named port or belongs to no service."""
    record, observation = fleet.workloads.get(workload_id), fleet.observations.get(workload_id)
    if record is None or observation is None or not observation.status.ready or not observation.status.ports:
        return None
    service = record.spec.labels.get(SERVICE_LABEL) or record.group_id
    owner = fleet.owner_of(record)
    if not service or "/" in service or owner is None or not owner.spec.endpoint:
        return None
    if contract_status(record, observation, owner, Waiting()) is not ContractStatus.RUNNING:
        return None
    try:
        path = check_path(f"{ROOT}/{service}/{workload_id}")
        host = parse_address(owner.spec.endpoint).host
    except InvalidError:
        return None
    ports = {name: str(Address(host, port)) for name, port in observation.status.ports.items()}
    return Announcement(path, write_endpoint(Endpoint(workload_id, owner.node_id, ports)))


class Announcements:
    """Keeps the announcements in the tree true."""

    def __init__(self, ledger: Ledger, tree: TreeOwner, *, clock: Clock) -> None:
        self._ledger = ledger
        self._tree = tree
        self._clock = clock
        self._everything = True
        #: The workloads that have reported a named port. The others are never announced, and most are others.
        self._named: set[WorkloadId] = set()
        self._dirty: set[WorkloadId] = set()
        self._published: dict[WorkloadId, Announcement] = {}
        self._wake = Signal()
        ledger.on_batch(self._stored)
        ledger.on_reload(self._reloaded)

    async def run(self) -> None:
        """Write what changed, until cancelled."""
        rounds = Rounds("announcements")
        self._wake.set()
        while True:
            await self._wake.wait()
            with rounds.attempt():
                await self._publish()
                continue
            self._reloaded()
            await self._clock.sleep(_RETRY_SECONDS)

    def _reloaded(self) -> None:
        self._everything = True
        self._wake.set()

    def _stored(self, batch: Batch) -> None:
        self._named.update(each.status.workload_id for each in batch.observations if each.status.ports)
        if not self._named:
            return
        changed = {each.workload_id for each in batch.workloads}
        changed.update(each.status.workload_id for each in batch.observations)
        changed.update(batch.removed_workloads, batch.forgotten_observations)
        for node_id in (*(each.node_id for each in batch.nodes), *batch.removed_nodes):
            changed |= self._ledger.fleet.owned_by(node_id)
        self._dirty |= changed & self._named
        self._named.difference_update(batch.removed_workloads)
        if self._dirty:
            self._wake.set()

    async def _publish(self) -> None:
        fleet = self._ledger.fleet
        if self._everything:
            self._published = self._stored_ones()
            self._named = {each for each, known in fleet.observations.items() if known.status.ports}
            self._dirty = self._named | self._published.keys()
            self._everything = False
        dirty, self._dirty = self._dirty, set()
        changed = {
            workload_id: (self._published.get(workload_id), announced)
            for workload_id in dirty
            if (announced := announcement_of(fleet, workload_id)) != self._published.get(workload_id)
        }
        if not changed:
            return
        put = {new.path: new.data for _old, new in changed.values() if new is not None}
        gone = {old.path for old, _new in changed.values() if old is not None} - put.keys()

        def decide() -> tuple[None, Changes]:
            return None, self._tree.tree.publish(put, gone)

        await self._tree.change(decide)
        for workload_id, (_old, new) in changed.items():
            if new is None:
                self._published.pop(workload_id, None)
            else:
                self._published[workload_id] = new

    def _stored_ones(self) -> dict[WorkloadId, Announcement]:
        """What the tree has, from before this leadership."""
        tree = self._tree.tree
        found: dict[WorkloadId, Announcement] = {}
        for service in tree.find_children(ROOT) or ():
            for name in tree.children(join(ROOT, service)):
                path = join(join(ROOT, service), name)
                if not tree.get(path).stat.owner:  # an ephemeral one is somebody else's
                    found[WorkloadId(name)] = Announcement(path, tree.get(path).data)
        return found
