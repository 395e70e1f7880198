"""The parts of a control plane that exist for one term: made when it begins, dropped when it ends.

The leader places workloads, commands agents and watches leases (`begin`). A follower only serves reads, from a working
set that `refresh` reads again when the store changed. Built by `shoal.control.server`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from shoal.control.agents.calls import Agents
from shoal.control.agents.pump import Pump
from shoal.control.agents.streams import Streams
from shoal.control.api.enrollment_service import CredentialService, EnrollmentService
from shoal.control.api.event_feed import EventFeed
from shoal.control.api.exec_service import ExecService
from shoal.control.api.secret_service import SecretService
from shoal.control.api.service import ControlService
from shoal.control.api.views import Views
from shoal.control.artifacts.service import ArtifactService
from shoal.control.jobs.building import make_jobs
from shoal.control.metrics import ControlMetrics
from shoal.control.nodes.contacts import Contacts
from shoal.control.nodes.drain import Drains
from shoal.control.nodes.heartbeats import Heartbeats
from shoal.control.nodes.lease_watch import LeaseWatch
from shoal.control.nodes.loss import LostNodes
from shoal.control.nodes.node_states import NodeStates
from shoal.control.nodes.operations import NodeOperations
from shoal.control.nodes.registration import Registration
from shoal.control.placement.placer import Placer
from shoal.control.settings import ControlSettings
from shoal.control.state.fleet import Fleet
from shoal.control.state.ledger import Ledger
from shoal.control.state.lifecycle.phases import Waiting
from shoal.control.store.base import EventQuery, Store
from shoal.control.store.journal import StoreJournal
from shoal.control.trust.enrollment import Enrollment, JoinListener
from shoal.control.trust.job_keys import KEY_FILE as JOB_KEY_FILE
from shoal.control.trust.job_keys import JobKeys
from shoal.control.trust.join_tokens import JoinTokens
from shoal.control.trust.revocations import Revocations
from shoal.control.trust.secrets import KEY_FILE, ClusterSecrets
from shoal.control.trust.signing import Signer
from shoal.control.workloads.adoption import Adoption
from shoal.control.workloads.announcements import Announcements
from shoal.control.workloads.commands import CommandLog
from shoal.control.workloads.copies import Copies
from shoal.control.workloads.dispatch import Dispatch
from shoal.control.workloads.groups import Groups
from shoal.control.workloads.pending import Pending
from shoal.control.workloads.placing import Placing
from shoal.control.workloads.relocation import Relocation
from shoal.control.workloads.requests import Workloads
from shoal.control.workloads.sender import Sender
from shoal.control.workloads.status_reports import StatusReports
from shoal.control.workloads.work_queue import WorkQueue
from shoal.control.workloads.workload_facts import WorkloadFacts
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.tasks import TaskScope
from shoal.discovery.directory import AddressDirectory
from shoal.discovery.embedded.owner import TreeOwner
from shoal.discovery.embedded.serving import CoordinationService
from shoal.jobs.engine import Engines
from shoal.jobs.workflows import Workflows
from shoal.wire import convert
from shoal.wire.transport import Transport

#: A follower reads everything at least this often.
QUIET_SECONDS = 10.0
#: After a read, it waits for this many times as long as the read took.
REST = 4.0


class Leadership:
    """The parts of a control plane, joined."""

    def __init__(
        self,
        settings: ControlSettings,
        *,
        store: Store,
        transport: Transport,
        clock: Clock,
        entropy: Entropy,
        metrics: ControlMetrics,
        join: JoinListener,
        signer: Signer,
        threads: Executor | None,
        engines: Engines,
        workflows: Workflows,
        term: int,
        is_confirmed: Callable[[], bool],
        on_store_failure: Callable[[], None],
    ) -> None:
        self.term = term
        self._store = store
        self.scope = TaskScope("leadership")
        self.fleet = Fleet()
        self.ledger = Ledger(
            store, self.fleet, term=term, scope=self.scope, on_commit=metrics.stored, on_failure=on_store_failure
        )
        self.streams = Streams(self.fleet, scope=self.scope, observer=metrics)
        self.agents = Agents(transport, streams=self.streams, term=term, on_call=metrics.called_agent)
        self.placer = Placer(self.ledger, clock=clock, strategy=settings.strategy)
        self.contacts = Contacts(self.ledger, clock=clock, settings=settings.leases)
        self.queue = WorkQueue()
        self.pump = Pump(
            self.scope,
            is_busy=lambda: self.placer.is_busy,
            has_backlog=lambda: self.placer.has_backlog,
            on_free=self.queue.enqueue,
        )
        self.commands = CommandLog(clock=clock, entropy=entropy)
        self.pending = Pending(self.queue, self.commands, clock=clock)
        facts = WorkloadFacts(self.fleet, self.commands, self.pending, self.contacts, clock=clock)
        self.copies = Copies(self.ledger, self.agents, self.pump, self.queue)
        self.reports = StatusReports(
            self.ledger, commands=self.commands, facts=facts, copies=self.copies, queue=self.queue, clock=clock
        )
        self.relocation = Relocation(self.ledger, self.placer, self.commands, self.copies, clock=clock)
        self.groups = Groups(
            self.ledger, facts, self.pending, self.placer, clock=clock, decode_spec=convert.decode_spec_bytes
        )
        placing = Placing(
            self.ledger,
            self.placer,
            commands=self.commands,
            pending=self.pending,
            copies=self.copies,
            groups=self.groups,
            clock=clock,
        )
        self.cluster_secrets = ClusterSecrets(
            self.ledger,
            key_file=Path(settings.data_dir) / KEY_FILE,
            given_key=settings.secret_key,
            shared=bool(settings.database),
            clock=clock,
            threads=threads,
        )
        sender = Sender(
            self.ledger,
            self.agents,
            commands=self.commands,
            facts=facts,
            reports=self.reports,
            secrets=self.cluster_secrets,
            placing=placing,
            relocation=self.relocation,
            clock=clock,
            on_step=metrics.step,
        )
        self.dispatch = Dispatch(
            self.ledger,
            queue=self.queue,
            pump=self.pump,
            commands=self.commands,
            pending=self.pending,
            facts=facts,
            copies=self.copies,
            groups=self.groups,
            placing=placing,
            relocation=self.relocation,
            sender=sender,
            clock=clock,
            entropy=entropy,
            scope=self.scope,
            on_step=metrics.step,
        )
        states = NodeStates(self.ledger, self.dispatch, self.contacts, clock=clock)
        self.registration = Registration(
            self.ledger, self.dispatch, self.contacts, clock=clock, entropy=entropy, cluster_id=settings.cluster_id
        )
        self.heartbeats = Heartbeats(
            self.ledger,
            self.contacts,
            states,
            reports=self.reports,
            pending=self.pending,
            clock=clock,
            scope=self.scope,
            on_heartbeat=metrics.heartbeat,
            on_ignored=metrics.ignored,
        )
        self.lost_nodes = LostNodes(
            self.ledger,
            self.queue,
            self.contacts,
            clock=clock,
            settings=settings.failover,
            cluster_id=settings.cluster_id,
        )
        self.lease_watch = LeaseWatch(self.ledger, self.queue, self.contacts, states, self.lost_nodes, clock=clock)
        self.revocations = Revocations(self.fleet)
        self.operations = NodeOperations(
            self.ledger, self.contacts, self.placer, self.pending, self.revocations, clock=clock
        )
        self.drains = Drains(
            self.ledger,
            self.relocation,
            self.placer,
            self.operations,
            clock=clock,
            entropy=entropy,
            parallel=settings.drain_parallel,
        )
        self.adoption = Adoption(self.ledger, self.placer, self.agents, clock=clock)
        self.workloads = Workloads(self.ledger, self.pending, clock=clock)
        self.views = Views(
            self.fleet,
            self.contacts,
            self.lost_nodes,
            commands=self.commands,
            pending=self.pending,
            drains=self.drains,
            clock=clock,
            cluster_id=settings.cluster_id,
        )
        self.feed = EventFeed(self.ledger)
        self.service = ControlService(
            fleet=self.fleet,
            contacts=self.contacts,
            registration=self.registration,
            heartbeats=self.heartbeats,
            lease_watch=self.lease_watch,
            operations=self.operations,
            adoption=self.adoption,
            workloads=self.workloads,
            groups=self.groups,
            placer=self.placer,
            views=self.views,
            feed=self.feed,
            store=store,
            agents=self.agents,
            streams=self.streams,
            clock=clock,
            term=term,
            is_confirmed=is_confirmed,
            issues_certificates=bool(settings.ca_key),
        )
        tokens = JoinTokens(self.ledger, signer, clock=clock, entropy=entropy)
        enrollment = Enrollment(
            self.fleet, signer, tokens, self.revocations, cluster_id=settings.cluster_id, clock=clock
        )
        self.exec = ExecService(self.ledger, self.agents, clock=clock)
        self.secrets = SecretService(self.cluster_secrets)
        self.tree = TreeOwner(clock, StoreJournal(store, term=term))
        self.coordination = CoordinationService(self.tree)
        self.addresses = AddressDirectory(self.tree)
        self.announcements = Announcements(self.ledger, self.tree, clock=clock)
        self.job_loop, self.jobs = make_jobs(
            self.ledger,
            self.workloads,
            self.groups,
            self.pending,
            self.feed,
            keys=JobKeys(
                key_file=Path(settings.data_dir) / JOB_KEY_FILE,
                given_key=settings.secret_key,
                shared=bool(settings.database),
                threads=threads,
            ),
            engines=engines,
            workflows=workflows,
            scope=self.scope,
            clock=clock,
            entropy=entropy,
        )
        self.artifacts = ArtifactService(settings, self.fleet, clock=clock, threads=threads, is_confirmed=is_confirmed)
        self.enrollment = EnrollmentService(enrollment, join)
        self.credentials = CredentialService(enrollment, tokens, join)
        self._decides = False
        self._clock = clock
        self._cursor, self._read_at, self._took = -1, -math.inf, 0.0

    @property
    def waiting(self) -> Waiting:
        """Why workloads do not start, beside what their records say."""
        return self.pending.waiting

    async def begin(self) -> None:
        """Read what is stored and begin to decide. Every node gets a full lease from now."""
        self._decides = True
        await self.ledger.load()
        await self.tree.restore()
        await self.lease_watch.store_promise()
        self.contacts.start()
        self.streams.open()
        self.scope.start(self.placer.run(), name="placer")
        self.scope.start(self.dispatch.run(), name="dispatch")
        self.scope.start(self.reports.run(), name="reports")
        self.scope.start(self.lease_watch.run(), name="leases")
        self.scope.start(self.drains.run(), name="drains")
        self.scope.start(self.announcements.run(), name="announcements")
        self.scope.start(self.job_loop.run(), name="jobs")
        self.scope.start(self.artifacts.run(), name="artifacts")
        self.dispatch.look_at_all()
        self.job_loop.look_at_all()

    async def refresh(self) -> None:
        """Read the store if it has changed. A leader does not: its memory is newer than what it would read.

        Changes without an event, such as the usage of a workload, are read every few seconds. The longer a read takes,
        the less often it is done.
        """
        if self._decides:
            return
        newest = (await self._store.events(EventQuery(limit=1, newest=True))).next
        began = self._clock.monotonic()
        due = self._read_at + (self._took * REST if newest != self._cursor else QUIET_SECONDS)
        if began < due:
            return
        await self.ledger.load(again=True)
        self._read_at = self._clock.monotonic()
        self._took, self._cursor = self._read_at - began, newest

    async def end(self) -> None:
        """Stop deciding. Workloads are not touched."""
        self.streams.close()
        self.coordination.close()
        self.addresses.close()
        await self.tree.close()
        self.queue.close()
        self.pump.close()
        self.pending.close()
        await self.job_loop.close()
        await self.scope.close()
        await self.agents.close()
