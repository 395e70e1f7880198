"""How a job with checkpoints starts: claim → fence every sink → read what each has committed → choose → recover.

The order is the point: when the checkpoint is chosen no earlier attempt can commit. `choose` in
`shoal.dataflow.checkpoint.restore` decides, this module acts. Called by `shoal.dataflow.execution.engine`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.core import files
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import ShoalError
from shoal.core.faults import reach
from shoal.dataflow.checkpoint.claim import Claim, Claimant, claim_job, draw_incarnation
from shoal.dataflow.checkpoint.records import Checkpoint, History, Layout
from shoal.dataflow.checkpoint.restore import Choice, Refusal, SinkFacts, StartFacts, StartRequest, check_match, choose
from shoal.dataflow.checkpoint.savepoints import number_of_savepoint
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.connectors.base import CommitContext, Recovery, SinkCommitter, SinkConnector, SupportsCommit
from shoal.dataflow.connectors.markers import Marker
from shoal.dataflow.settings import CheckpointSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedSink:
    """A sink of the plan."""

    uid: str
    connector: SinkConnector
    parallelism: int


@dataclass(frozen=True, slots=True)
class StartedJob:
    """A job that may run: everything before the checkpoint is visible, and nobody else commits."""

    claim: Claim
    storage: CheckpointStorage
    history: History
    #: What to go on from; None for the beginning.
    checkpoint: Checkpoint | None
    #: The coordinator's ends of the sinks that commit with checkpoints, by uid.
    committers: Mapping[str, SinkCommitter]

    def release(self) -> None:
        """Let go of the sinks and of the job."""
        with contextlib.ExitStack() as each:  # all of them, although one fails
            each.callback(self.claim.release)
            for committer in self.committers.values():
                each.callback(committer.close)


def start_job(
    job: str,
    settings: CheckpointSettings,
    layout: Layout,
    sinks: Sequence[PlannedSink],
    *,
    stateful: frozenset[str],
    clock: Clock,
    entropy: Entropy | None = None,
    claimant: Claimant | None = None,
) -> StartedJob:
    """Start a job. Raises `PreconditionError` when it runs already, or when going on would double output."""
    chance = entropy or SystemEntropy()
    storage = CheckpointStorage(settings.directory, job, keep=settings.keep)
    claim = claim_job(settings.directory, job, chance, is_new=storage.is_empty(), claimant=claimant)
    start = _Start(job, settings, storage, claim)
    try:
        reach("dataflow.start.claimed")
        claim.check()  # one that stood still for long must not fence the sinks of the next one
        history = storage.begin(layout)
        for sink in sinks:
            start.open(sink, history, clock)
        found, highest = start.recover(layout, stateful, chance, history.highest)
    except BaseException:
        StartedJob(claim, storage, History(0, {}), None, start.committers).release()
        raise
    return StartedJob(claim, storage, replace(history, highest=highest), found, start.committers)


@dataclass(frozen=True, slots=True)
class _Start:
    """One start, behind the claim."""

    job: str
    settings: CheckpointSettings
    storage: CheckpointStorage
    claim: Claim
    committers: dict[str, SinkCommitter] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    def open(self, sink: PlannedSink, history: History, clock: Clock) -> None:
        """Open the coordinator's end of a sink, if it has one."""
        connector = sink.connector
        if not isinstance(connector, SupportsCommit):
            return
        context = CommitContext(
            job=self.job,
            sink=sink.uid,
            epoch=self.claim.record.epoch,
            parallelism=sink.parallelism,
            former_parallelism=history.widths.get(sink.uid, 0),
            clock=clock,
            exactly_once=self.settings.exactly_once,
        )
        committer = connector.open_committer(context)
        if committer is not None:
            self.committers[sink.uid] = committer
            self.labels[sink.uid] = f"{sink.connector.label} (sink {sink.uid!r})"

    def recover(
        self, layout: Layout, stateful: frozenset[str], entropy: Entropy, highest: int
    ) -> tuple[Checkpoint | None, int]:
        """Fence, choose, and make visible what the chosen checkpoint had prepared.

        Returns the checkpoint and the highest number that was ever used.
        """
        markers = {uid: committer.fence() for uid, committer in self.committers.items()}
        reach("dataflow.start.fenced")
        asked = number_of_savepoint(self.storage, self.settings.from_checkpoint)
        self.storage.follow(self.claim.record.branch)
        search = self.storage.search(asked)
        found = search.checkpoint
        choice = self._choose(markers, found, search.damaged, asked)
        checkpoint = found if choice.checkpoint else None
        if checkpoint is not None:
            check_match(
                checkpoint,
                layout,
                stateful=stateful,
                allow_missing=self.settings.allow_missing_state,
                allow_unknown=self.settings.allow_unknown_state,
            )
        highest = max(highest, self._highest_known(markers))
        if choice.is_rollback:
            incarnation = draw_incarnation(entropy) if asked == 0 else None
            self.claim.roll_back(choice.checkpoint, highest, incarnation=incarnation)
            self.storage.follow(self.claim.record.branch)
        reach("dataflow.recover.before")
        self.claim.check()
        for uid, committer in self.committers.items():
            committer.recover(self._recovery(uid, checkpoint, choice))
        reach("dataflow.recover.after")
        if checkpoint is not None and self.committers:
            try:
                self.claim.note_committed(checkpoint.number)
            except ShoalError as error:  # a full disk: the sinks' markers say it, too
                log.warning(
                    "job %s: the commit of checkpoint %d is not recorded: %s", self.job, checkpoint.number, error
                )
        return checkpoint, highest

    def _highest_known(self, markers: Mapping[str, Mapping[int, Marker | None]]) -> int:
        """The highest number that a sink, or the record, says was used. Its checkpoint may be lost."""
        record = self.claim.record
        found = [marker.checkpoint for each in markers.values() for marker in each.values() if marker is not None]
        return max(record.through or 0, record.highest, *found, 0)

    def _choose(
        self,
        markers: Mapping[str, Mapping[int, Marker | None]],
        found: Checkpoint | None,
        damaged: Mapping[int, str],
        asked: int | None,
    ) -> Choice:
        settings = self.settings
        prepared = {uid: _prepared(found, uid) for uid in markers}
        facts = StartFacts(
            job=self.job,
            place=files.join(settings.directory, self.job),
            incarnation=self.claim.record.incarnation,
            through=self.claim.record.through,
            newest=0 if found is None else found.number,
            damaged=damaged,
            sinks=[
                SinkFacts(
                    uid,
                    self.labels[uid],
                    markers[uid],
                    frozenset(task for task, content in prepared[uid].items() if content),
                    is_repeatable=self.committers[uid].is_repeatable,
                )
                for uid in markers
            ],
            base=self.claim.record.base,
            highest=self.claim.record.highest,
        )
        # Where rows may come twice anyway, nobody has to accept it.
        accepted = settings.accept_duplicates or not settings.exactly_once
        choice = choose(facts, StartRequest(asked, accepted))
        if isinstance(choice, Refusal):
            raise choice.error()
        for number, reason in sorted(damaged.items(), reverse=True):
            log.warning("checkpoint %d of job %s cannot be used: %s", number, self.job, reason)
        return choice

    def _recovery(self, uid: str, checkpoint: Checkpoint | None, choice: Choice) -> Recovery:
        committed = choice.committed[uid]
        return Recovery(
            incarnation=self.claim.record.incarnation,
            checkpoint=choice.checkpoint,
            prepared=_prepared(checkpoint, uid),
            committed=committed if choice.checkpoint else dict.fromkeys(committed, 0),
            through=self.claim.record.through or 0,
        )


def _prepared(checkpoint: Checkpoint | None, uid: str) -> dict[int, bytes]:
    """What each subtask of a sink had prepared."""
    return {} if checkpoint is None else {task: state.shared for task, state in checkpoint.states.get(uid, ())}
