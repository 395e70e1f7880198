"""The program of a job's coordinator on a fleet: `python -m shoal.dataflow.execution.remote.coordinator`.

It claims the job, waits for its task hosts, runs the checkpoints, recovers lost hosts, and tells the control plane each
second how the job is. What a person asks of the job comes back with the answer: a stop, a savepoint. With the control
plane away the job goes on. When the job is over it stays, and says so, until the control plane removes it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from shoal.core import faults
from shoal.core.clock import SystemClock
from shoal.core.errors import CorruptError, InvalidError, PreconditionError, ShoalError
from shoal.dataflow.checkpoint.claim import JobRunsError
from shoal.dataflow.connectors.topics.brokers import add_settings
from shoal.dataflow.execution.coordinator.running import RunningFlow, is_away
from shoal.dataflow.execution.hosts.base import HostLostError
from shoal.dataflow.execution.remote.board import Answer, Board
from shoal.dataflow.execution.remote.code import open_code, plan_at_width
from shoal.dataflow.execution.remote.delegated import TermKey, keep_key, read_key
from shoal.dataflow.execution.remote.hosts import RemoteHosts
from shoal.dataflow.execution.remote.series import CoordinatorSeries
from shoal.dataflow.execution.remote.surroundings import Surroundings, surroundings_of, take_arguments
from shoal.dataflow.execution.remote.telling import StepTelling
from shoal.dataflow.fleet import spec as specs
from shoal.dataflow.fleet.reports import MOST_PAIRS, CoordinatorReport, Phase, encode
from shoal.dataflow.fleet.spec import DataflowSpec
from shoal.dataflow.fleet.workloads import BROKER_VARIABLE, CONTROL_PORT, SPEC_FILE
from shoal.model.jobs import JobAction
from shoal.wire.addresses import Address

log = logging.getLogger(__name__)

#: Seconds between two reports to the control plane, and between two tries to claim the job.
REPORT = 1.0
_CLAIM = 0.3
#: Seconds before the job is begun again after something that it needs could not be reached.
_AWAY = 3.0
_STOPPING = frozenset({JobAction.RESCALE.value, JobAction.UPGRADE.value})
_MOST_MESSAGE = 2000


class Life:
    """A job's coordinator from its start to its end."""

    def __init__(
        self, around: Surroundings, spec: DataflowSpec, hosts: RemoteHosts, telling: StepTelling, deployed_for: int
    ) -> None:
        self._around = around
        self._spec = spec
        self._hosts = hosts
        self._telling = telling
        self._lock = threading.Lock()
        self._flow: RunningFlow | None = None
        #: The end of the job, when it has one.
        self._end: Phase | None = None
        self._message = ""
        #: The last request that is carried out, or was begun.
        self._done = self._begun = deployed_for
        self._stops_for = 0
        #: Whether it stops with a savepoint. For another layout the last checkpoint is enough.
        self._keeps_last = False
        self._savepoint = self._refusal = ""
        self._checkpoint = 0
        kept = read_key(Path.cwd())
        self._key: TermKey | None = None
        if kept is not None and kept.term in (0, around.generation):  # the control plane may be away
            self._take_key(kept)
        self._changed = threading.Event()

    # -- the job --------------------------------------------------------------------------------------------------

    def run(self, flow: RunningFlow) -> None:
        """Run the job to its end. Returns when there is nothing more to do than to tell it."""
        try:
            self._claim(flow)
            with self._lock:
                self._flow = flow
            self._changed.set()
            flow.wait()
            self._finish(flow)
        except BaseException as error:
            log.exception("job %s failed", self._spec.name)
            with self._lock:
                self._end, self._message = Phase.FAILED, _words(error)
        self._changed.set()

    def _claim(self, flow: RunningFlow) -> None:
        """Start it. A coordinator that this one replaces may still hold the job for a moment."""
        while True:
            try:
                flow.begin()
            except JobRunsError as error:
                self._message = error.message
                threading.Event().wait(_CLAIM)
            except ShoalError as error:
                if not is_away(error):
                    raise
                # Neither the loss of a host nor a broker that is away ends a job before its first epoch.
                log.warning("job %s could not begin and tries again: %s", self._spec.name, error)
                self._message = error.message
                if not isinstance(error, HostLostError):
                    threading.Event().wait(_AWAY)
            else:
                self._message = ""
                return

    def _finish(self, flow: RunningFlow) -> None:
        stops_for = self._stops_for
        saved = flow.keep_last() if stops_for and self._keeps_last else ""
        with self._lock:
            if stops_for:
                self._end, self._done, self._savepoint = Phase.STOPPED, stops_for, saved
            else:
                self._end = Phase.FINISHED

    # -- the control plane ----------------------------------------------------------------------------------------

    def tell(self, board: Board, series: CoordinatorSeries) -> None:
        """Tell the control plane how it is, each second, for as long as this process lives."""
        while True:
            if self._flow is not None:
                series.write(self._flow.metrics())
            answer = self.say(board)
            if answer is not None:
                self._take_key(answer.key)
                self._obey(answer)
            self._changed.wait(REPORT)
            self._changed.clear()

    def say(self, board: Board) -> Answer | None:
        """Tell the control plane how it is, and hear; None when it is away.

        Ends this process when another coordinator has its place. So it is called before each claim of the job, too:
        this one, or an agent that starts it again, may have stood still while it was replaced.
        """
        try:
            return board.report(encode(self.report()), key_of=self._around.workload_id)
        except PreconditionError as error:
            log.warning("this coordinator was replaced: %s", error.message)
            os._exit(3)
        except ShoalError as error:
            log.info("the control plane is away: %s", error)
            return None

    def _take_key(self, key: TermKey) -> None:
        """The control plane gives a key for this term, or none to anybody."""
        if self._around.certificate is None or key == self._key or key.term not in (0, self._around.generation):
            return
        self._key = key
        keep_key(Path.cwd(), key)
        self._hosts.set_key(key.secret)

    def report(self) -> CoordinatorReport:
        """How it is."""
        around, flow = self._around, self._flow
        with self._lock:
            phase, message = self._end, self._message
        missing: Mapping[str, float] = {}
        unreachable: Sequence[tuple[int, int]] = ()
        if phase is None:
            unreachable = self._hosts.unreachable
            missing = {str(number): seconds for number, seconds in self._hosts.missing.items()}
            phase = Phase.STARTING if flow is None else Phase.RECOVERING if flow.is_recovering else Phase.RUNNING
            message = flow.last_loss if flow is not None and phase is Phase.RECOVERING else message
        counts = None if flow is None else flow.metrics()
        made = None if counts is None else counts.checkpoints
        if made is not None and made.last_number:  # between two epochs nobody counts
            self._checkpoint = made.last_number
        return CoordinatorReport(
            phase=phase,
            term=around.generation,
            address=str(Address(around.address, self._hosts.port)),
            node=around.node_id,
            metrics=f"http://{around.metrics}/jobs/{around.job_id}/metrics" if around.metrics else "",
            epoch=0 if flow is None else flow.epoch,
            request=self._done,
            savepoint=self._savepoint,
            refusal=self._refusal,
            checkpoint=self._checkpoint,
            checkpoint_age=None if made is None or made.age is None else round(made.age, 1),
            failed_checkpoints=0 if made is None else made.failed_in_a_row,
            checkpoint_error="" if made is None else made.reason[:_MOST_MESSAGE],
            recoveries=0 if flow is None else flow.recoveries,
            missing=missing,
            unreachable=tuple((str(one), str(other)) for one, other in unreachable[:MOST_PAIRS]),
            message=message[:_MOST_MESSAGE],
            steps=() if counts is None else self._telling.tell(counts),
        )

    def _obey(self, answer: Answer) -> None:
        """Carry out what a person asked for after this coordinator was deployed."""
        flow = self._flow
        if answer.request <= self._begun or flow is None or self._end is not None:
            return
        is_savepoint = answer.action == JobAction.SAVEPOINT
        if answer.action in _STOPPING or (is_savepoint and answer.stop):
            self._keeps_last = is_savepoint
            self._begun = self._stops_for = answer.request
            threading.Thread(target=self._stop, args=(flow,), name="stop", daemon=True).start()
        elif is_savepoint and answer.request > answer.taken:
            self._begun = answer.request
            threading.Thread(target=self._save, args=(flow, answer.request), name="savepoint", daemon=True).start()
        else:
            self._begun = self._done = answer.request

    def _stop(self, flow: RunningFlow) -> None:
        try:
            flow.stop()
        except BaseException as error:  # noqa: BLE001 - `run` tells it
            log.warning("the job could not be stopped: %s", error)

    def _save(self, flow: RunningFlow, request: int) -> None:
        try:
            self._savepoint, self._refusal = flow.save(), ""
        except Exception as error:  # noqa: BLE001 - somebody waits for an answer
            log.warning("there is no savepoint: %s", error)
            self._refusal = _words(error) or "it could not be made"
        self._done = max(self._done, request)
        self._changed.set()


def _words(error: BaseException) -> str:
    """An error in one line: what it says, and its details, such as the rows that a step failed on."""
    if not isinstance(error, ShoalError):
        return f"{type(error).__name__}: {error}"[:_MOST_MESSAGE]
    return "; ".join([error.message, *(f"{label}: {text}" for label, text in error.details)])[:_MOST_MESSAGE]


def _add_brokers(spec: DataflowSpec, environment: Mapping[str, str]) -> None:
    """Take in the settings of Kafka clusters, which are secrets."""
    if not spec.brokers:
        return
    from shoal.topics.kafka import KafkaSettings

    found = {}
    for index, name in enumerate(sorted(spec.brokers)):
        variable = BROKER_VARIABLE.format(index=index)
        try:
            found[name] = KafkaSettings(**json.loads(environment.get(variable, "")))
        except (ValueError, TypeError):
            raise PreconditionError(
                f"secret {spec.brokers[name]!r} has no settings of the Kafka cluster {name}",
                hint='store them as JSON: {"brokers": "host:9092", "client": {"sasl.password": "…"}}',
            ) from None
        os.environ.pop(variable, None)  # no child of this process sees it
    add_settings(found)


def _tell_refusal(board: Board, around: Surroundings, error: ShoalError) -> NoReturn:
    """Tell the control plane that this job cannot run here, until it ends this process."""
    log.error("job %s cannot run: %s", around.job_id, error)
    refusal = CoordinatorReport(Phase.FAILED, around.generation, node=around.node_id, message=_words(error))
    while True:
        try:
            board.report(encode(refusal))
        except PreconditionError:
            os._exit(3)  # the control plane has another one
        except ShoalError as away:
            log.info("the control plane is away: %s", away)
        threading.Event().wait(REPORT)


def main(arguments: list[str]) -> None:
    """The entry point."""
    given = take_arguments("coordinator", arguments, {"job": str, "revision": str, "deployed-for": int})
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    faults.arm_from_environment()
    folder, environment = Path.cwd(), dict(os.environ)
    around = surroundings_of(given.job, environment)
    spec = specs.decode((folder / SPEC_FILE).read_bytes())
    clock = SystemClock()
    try:
        _add_brokers(spec, environment)
        bundle = open_code(folder)
        plan, document = plan_at_width(folder, bundle, spec)
    except (PreconditionError, CorruptError, InvalidError) as error:  # another try would find the same
        _tell_refusal(Board(around), around, error)
    port = int(environment.get(f"SHOAL_PORT_{CONTROL_PORT.upper()}", "0"))
    hosts = RemoteHosts(
        plan,
        document,
        hosts=spec.parallelism,
        around=around,
        port=port,
        clock=clock,
        most_crashes=spec.most_crashes,
    )
    life = Life(around, spec, hosts, StepTelling(plan.physical, clock), given.deployed_for)
    board = Board(around)
    flow = RunningFlow(spec.name, plan, spec.flow_settings(""), clock, hosts, before_claim=lambda: life.say(board))
    threading.Thread(target=life.run, args=(flow,), name="job", daemon=True).start()
    life.tell(board, CoordinatorSeries(folder, given.job, spec.name, clock))


if __name__ == "__main__":
    main(sys.argv[1:])
