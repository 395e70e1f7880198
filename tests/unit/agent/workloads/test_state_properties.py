"""What must never happen to a workload, whatever comes in whatever order, killed agents included."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.agent.facts import (
    BecameReady,
    BecameUnready,
    ConfirmOwnership,
    ContactLost,
    ForgetRun,
    ForgetWorkload,
    Forgotten,
    FoundRun,
    IntentChanged,
    LivenessFailed,
    Moment,
    OwnershipConfirmed,
    OwnershipDenied,
    ProbeReadiness,
    ReadinessTimedOut,
    RunEnded,
    RunOutcome,
    RunStarted,
    RunStopped,
    Stage,
    StartFailed,
    StartRefused,
    StartRun,
    StopRun,
    TimerFired,
    Wait,
)
from shoal.agent.store.intents import _read_progress, _write_progress
from shoal.agent.workloads.state import begin_life, handle, reopen
from shoal.agent.workloads.views import status_of, verdict_of
from shoal.model.workloads import DesiredState, Exit, FailureReason, RunState
from tests.unit.agent.making import START, intent, rules

POLICIES = ("always", "on-failure", "no")


class OneWorkload(RuleBasedStateMachine):
    """A workload with an agent that does as it is told, and a machine on which runs live and die."""

    def __init__(self):
        super().__init__()
        self.now = START
        self.numbers = 0
        self.alive: dict[str, bytes] = {}
        self.ended: dict[str, tuple[Exit, str]] = {}
        self.asked: list = []
        #: (life, spec, attempt) of everything that ran to its end, as far as the agent was told.
        self.completed: set[tuple[int, bytes, int]] = set()

    @initialize(policy=st.sampled_from(POLICIES), probed=st.booleans(), once=st.booleans(), retries=st.integers(0, 2))
    def begin(self, policy, probed, once, retries):
        self.rules = rules(policy, ready_within=5.0 if probed else None, at_most_one=once, max_retries=retries)
        self.intent = intent()
        self.take(begin_life(self.intent, self.rules, self.moment()))

    # -- the agent ---------------------------------------------------------------------------------------

    def moment(self, chance=0.0) -> Moment:
        self.numbers += 1
        self.now += timedelta(milliseconds=100)
        return Moment(self.now, f"w.{self.numbers}", chance)

    def take(self, step):
        self.state = step.state
        # What is remembered is what was written, not what was meant.
        self.written = _read_progress(_write_progress(step.state.progress))
        for instruction in step.instructions:
            match instruction:
                case StartRun():
                    progress = step.state.progress
                    key = (progress.born, progress.run_sha256, progress.attempt)
                    assert key not in self.completed, "a completed workload was run again"
                    assert step.state.intent.wanted, "something was started that nobody wants"
                    self.asked.append(instruction)
                case ForgetRun(run_id):
                    assert run_id not in self.alive
                    self.ended.pop(run_id, None)
                case StopRun() | ForgetWorkload():
                    self.asked.append(instruction)
                case Wait() | ProbeReadiness() | ConfirmOwnership():
                    pass

    def post(self, event):
        self.take(handle(self.state, event, self.moment()))

    def note_end(self, exit_, ended_by):
        progress = self.state.progress
        ends_well = exit_.code == 0 and not exit_.signal and not ended_by
        current = (progress.born, progress.run_sha256) == (self.state.intent.born, self.state.intent.spec_sha256)
        if ends_well and self.rules.restart.completes and current:
            self.completed.add((progress.born, progress.run_sha256, progress.attempt))

    # -- commands ------------------------------------------------------------------------------------------

    @rule(
        spec=st.sampled_from(["spec 1", "spec 2"]),
        desired=st.sampled_from([DesiredState.RUNNING, DesiredState.RUNNING, DesiredState.STOPPED]),
        retry=st.booleans(),
    )
    def apply(self, spec, desired, retry):
        before = self.intent
        generation = before.generation + 1
        if spec.encode() != before.spec_bytes:
            self.completed.clear()  # going back to an earlier spec is a change like any other
        self.intent = intent(
            spec=spec,
            desired=desired,
            generation=generation,
            born=generation if before.deleting else before.born,
            attempt=0 if before.deleting else before.attempt + retry,
            revision=f"r{generation}",
        )
        self.post(IntentChanged(self.intent, self.rules))

    @rule()
    def delete(self):
        if not self.intent.deleting:
            fields = {name: getattr(self.intent, name) for name in ("generation", "born", "attempt", "desired")}
            self.intent = intent(spec=self.intent.spec_bytes.decode(), deleting=True, **fields)
            self.post(IntentChanged(self.intent, self.rules))

    # -- the machine -------------------------------------------------------------------------------------

    @precondition(lambda self: self.asked)
    @rule(how=st.sampled_from(["well", "well", "transient", "badly", "refused"]))
    def answer(self, how):
        match self.asked.pop(0):
            case StartRun(run_id) if how in ("transient", "badly"):
                self.post(StartFailed(run_id, FailureReason.RUNTIME_ERROR, "no", transient=how == "transient"))
            case StartRun(run_id) if how == "refused" and self.rules.at_most_one:
                self.post(StartRefused(run_id))
            case StartRun(run_id):
                self.run_it(run_id)
                self.post(RunStarted(run_id, self.now))
            case StopRun(run_id):
                self.alive.pop(run_id, None)
                exit_, ended_by = self.ended.setdefault(run_id, (Exit(signal=15, ended_at=self.now), "stop"))
                self.note_end(exit_, ended_by)
                self.post(RunStopped(run_id, exit_, ended_by=ended_by))
            case ForgetWorkload():
                assert not self.alive, "a workload was forgotten that still runs"
                self.post(Forgotten())

    def run_it(self, run_id):
        assert run_id not in self.alive
        assert run_id not in self.ended
        # As it was decided, whatever was asked for since.
        assert run_id == self.state.progress.run_id
        self.alive[run_id] = self.state.progress.run_sha256

    @precondition(lambda self: self.alive)
    @rule(code=st.sampled_from([0, 0, 1]), by_deadline=st.booleans(), told=st.booleans())
    def run_ends(self, code, by_deadline, told):
        run_id = next(iter(self.alive))
        del self.alive[run_id]
        by_deadline = by_deadline and self.rules.at_most_one
        exit_ = Exit(signal=15, ended_at=self.now) if by_deadline else Exit(code, ended_at=self.now)
        self.ended[run_id] = (exit_, "deadline" if by_deadline else "")
        if told:
            self.tell_of_ends()

    @rule()
    def tell_of_ends(self):
        for run_id, (exit_, ended_by) in list(self.ended.items()):
            if run_id == self.state.progress.run_id and self.state.stage in (
                Stage.STARTING,
                Stage.PROBING,
                Stage.READY,
            ):
                self.note_end(exit_, ended_by)
            self.post(RunEnded(run_id, exit_, ended_by=ended_by))

    @rule(ready=st.booleans())
    def probe(self, ready):
        run_id = self.state.progress.run_id
        self.post(BecameReady(run_id) if ready else ReadinessTimedOut(run_id))

    @rule(hangs=st.booleans())
    def it_stops_answering(self, hangs):
        run_id = self.state.progress.run_id
        self.post(LivenessFailed(run_id) if hangs else BecameUnready(run_id))

    @rule()
    def time_passes(self):
        self.post(TimerFired(self.state.waits))

    @rule(ours=st.booleans(), generations_back=st.integers(0, 1))
    def control_plane_speaks(self, ours, generations_back):
        generation = self.intent.generation - generations_back
        self.post(OwnershipConfirmed(generation) if ours else OwnershipDenied(generation, "not yours"))

    @rule()
    def contact_is_lost(self):
        self.post(ContactLost())

    @precondition(lambda self: self.state.stage is not Stage.FORGOTTEN)
    @rule(started_anyway=st.booleans())
    def agent_is_killed(self, started_anyway):
        """The agent dies with what it was about to do done or not, and another takes over from what was written."""
        for each in self.asked:
            if isinstance(each, StartRun) and started_anyway:
                self.run_it(each.run_id)
        self.asked = []
        run_id = self.written.run_id
        found = None
        if run_id in self.alive:
            found = FoundRun(run_id, self.now)
        elif run_id in self.ended:
            exit_, ended_by = self.ended[run_id]
            found = FoundRun(run_id, self.now, exit=exit_, ended_by=ended_by)
            if not self.written.ended:
                self.note_end(exit_, ended_by)
        strays = set(self.alive) - {run_id}
        assert not strays, "runs were left that nobody remembers"
        self.take(reopen(self.intent, self.rules, self.written, found, self.moment()))

    @rule(times=st.integers(1, 6), code=st.sampled_from([0, 0, 1]))
    def the_natural_thing_happens(self, times, code):
        """Most of the time things just go on; drawn often, so that the odd ones meet every stage."""
        for _ in range(times):
            if self.asked:
                self.answer("well")
            elif self.state.stage is Stage.PROBING:
                self.probe(ready=True)
            elif self.state.stage is Stage.WAITING:
                self.time_passes()
            elif self.state.stage is Stage.HELD:
                self.control_plane_speaks(ours=True, generations_back=0)
            elif self.alive:
                self.run_ends(code, by_deadline=False, told=True)

    # -- what always holds -------------------------------------------------------------------------------

    @invariant()
    def there_are_never_two_runs(self):
        assert len(self.alive) <= 1

    @invariant()
    def no_order_is_lost(self):
        if hasattr(self, "state"):
            assert self.state.intent == self.intent

    @invariant()
    def the_status_is_true(self):
        if not hasattr(self, "state"):
            return
        status = status_of(self.state)
        assert status.generation == self.intent.generation
        assert status.ready == (status.state is RunState.RUNNING)
        if self.state.stage in (Stage.RESTING, Stage.WAITING, Stage.HELD, Stage.FORGETTING, Stage.FORGOTTEN):
            assert not self.alive
        if status.completed:
            assert status.state is RunState.STOPPED
        if status.state is RunState.FAILED:
            assert status.message

    def teardown(self):
        """Left in peace, with a machine that does as it is told, everything arrives where it was sent."""
        if not hasattr(self, "state"):
            return
        for _ in range(30):
            self.tell_of_ends()
            if self.asked:
                self.answer("well")
            elif self.state.stage is Stage.PROBING:
                self.probe(ready=True)
            elif self.state.stage is Stage.WAITING:
                self.time_passes()
            elif self.state.stage is Stage.HELD:
                self.control_plane_speaks(ours=True, generations_back=0)
        if self.intent.deleting:
            assert self.state.stage is Stage.FORGOTTEN
        elif self.intent.wanted and self.state.progress.outcome is RunOutcome.NONE:
            assert self.state.stage is Stage.READY
            assert list(self.alive.values()) == [self.intent.spec_sha256]
        else:
            assert self.state.stage is Stage.RESTING
            assert not self.alive
        assert verdict_of(self.state) is not None


OneWorkload.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestOneWorkload = OneWorkload.TestCase
