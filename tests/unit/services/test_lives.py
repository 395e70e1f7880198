"""Generated lives of a service: replicas die, nodes die, revisions are bad, people scale and update meanwhile.

A small world stands for the control plane: it carries out plans as `TransitionSteps` does, and moves its workloads by
steps that hypothesis draws. Whatever happens, the invariants hold after every step; once things are quiet, the service
is as it should be.
"""

import dataclasses
import json
from datetime import UTC, datetime, timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.core.ids import JobId
from shoal.jobs.engine import Facts, Job, WorkloadFacts
from shoal.jobs.states import check
from shoal.model.jobs import JobAction, JobDesired, JobRequest, JobState
from shoal.model.phases import WorkloadPhase
from shoal.services.engine import ServiceEngine
from shoal.services.progress import decode as decode_progress

ENGINE = ServiceEngine()
START = datetime(2026, 1, 1, tzinfo=UTC)
SETTLE, DEADLINE = 5.0, 60.0


def service(count: int, command: str, *, parallel: int = 1, on_failure: str = "revert") -> bytes:
    return json.dumps(
        {
            "count": count,
            "update": {
                "parallel": parallel,
                "settle": f"{SETTLE:g}s",
                "deadline": f"{DEADLINE:g}s",
                "on_failure": on_failure,
            },
            "workload": {"type": "process", "process": {"command": [command]}},
        }
    ).encode()


@dataclasses.dataclass
class Running:
    """A workload in the world."""

    revision: str
    bad: bool
    phase: WorkloadPhase = WorkloadPhase.PENDING
    since: float = 0.0
    restarts: int = 0


class World:
    """A service, its workloads, and time."""

    def __init__(self, count: int, *, parallel: int, on_failure: str) -> None:
        self.now = 0.0
        self.parallel, self.on_failure = parallel, on_failure
        self.count, self.command = count, "good-0"
        spec = ENGINE.validate(service(count, self.command, parallel=parallel, on_failure=on_failure))
        self.job = Job(JobId("web"), spec, b"", JobState.SUBMITTED, JobDesired.RUNNING, JobRequest())
        self.workloads: dict[str, Running] = {}
        self.transitions: list[str] = []
        self.least_ready = 0

    def ask(self, action: JobAction, *, spec: bytes | None = None, width: int = 0) -> None:
        request = JobRequest(action, self.job.request.number + 1, width=width)
        stored = ENGINE.validate(spec or self.job.spec, job=self.job, request=request)
        desired = JobDesired.CANCELED if action is JobAction.CANCEL else JobDesired.RUNNING
        self.job = dataclasses.replace(self.job, spec=stored, request=request, desired=desired)

    def facts(self) -> Facts:
        found = {}
        for name, each in self.workloads.items():
            ready = each.phase is WorkloadPhase.RUNNING
            lasted = self.now - each.since
            found[name] = WorkloadFacts(
                workload_id=name,
                revision=each.revision,
                phase=each.phase,
                ready_for=lasted if ready else None,
                unready_for=0.0 if ready else lasted,
                restarts=each.restarts,
                message="exit 1" if each.restarts else "",
            )
        return Facts(found)

    def step(self) -> bool:
        """One transition, if there is one. As in the control plane, only through the table."""
        found = ENGINE.decide(self.job, self.facts(), START + timedelta(seconds=self.now))
        if found.decision is None:
            return False
        check(found.decision.transition, self.job.state, found.decision.state)
        self.job = dataclasses.replace(
            self.job,
            state=found.decision.state,
            progress=found.decision.progress,
            taken=self.job.request.number if found.decision.takes_request else self.job.taken,
        )
        self.transitions.append(f"{found.decision.transition} {found.decision.message}")
        plan = {each.workload_id: each for each in ENGINE.plan(self.job, {}).workloads}
        for name, each in plan.items():
            known = self.workloads.get(name)
            if known is None or known.revision != each.revision or known.phase is WorkloadPhase.DELETING:
                bad = each.spec.process.command[0].startswith("bad")
                self.workloads[name] = Running(each.revision, bad, since=self.now)
        for name, each in self.workloads.items():
            if name not in plan:
                self.set(each, WorkloadPhase.DELETING)
        return True

    def set(self, each: Running, phase: WorkloadPhase) -> None:
        if each.phase is not phase:
            each.phase, each.since = phase, self.now

    def work(self) -> None:
        """What agents do: start what is new, restart what crashed, remove what is deleted."""
        for name, each in list(self.workloads.items()):
            if each.phase is WorkloadPhase.DELETING:
                del self.workloads[name]
            elif each.bad:
                each.restarts += 1
                self.set(each, WorkloadPhase.CRASH_LOOP)
            else:
                self.set(each, WorkloadPhase.RUNNING)

    def settle(self) -> None:
        """Until nothing happens any more."""
        for _ in range(400):
            self.now += SETTLE
            self.work()
            moved = False
            for _step in range(50):
                if not self.step():
                    break
                moved = True
            else:
                raise AssertionError(f"it never rests: {self.transitions[-10:]}")
            still = all(each.phase is WorkloadPhase.RUNNING or each.bad for each in self.workloads.values())
            if not moved and still and all(self.now - each.since > SETTLE for each in self.workloads.values()):
                return
        raise AssertionError(f"it does not come to rest: {self.job.state} {self.transitions[-10:]}")

    @property
    def progress(self):
        return decode_progress(self.job.progress)


class Lives(RuleBasedStateMachine):
    """Random lives."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    @precondition(lambda self: self.world is None)
    @rule(count=st.integers(0, 6), parallel=st.integers(1, 3), on_failure=st.sampled_from(["revert", "pause"]))
    def submit(self, count, parallel, on_failure):
        self.world = World(count, parallel=parallel, on_failure=on_failure)

    @precondition(lambda self: self.world is not None)
    @rule(seconds=st.sampled_from([0.0, 1.0, SETTLE, DEADLINE]))
    def time_passes(self, seconds):
        self.world.now += seconds

    @precondition(lambda self: self.world is not None)
    @rule()
    def agents_work(self):
        self.world.work()

    @precondition(lambda self: self.world is not None)
    @rule(times=st.integers(1, 4))
    def control_works(self, times):
        for _ in range(times):
            self.world.step()

    @precondition(lambda self: self.world is not None and self.world.workloads)
    @rule(
        data=st.data(), phase=st.sampled_from([WorkloadPhase.CRASH_LOOP, WorkloadPhase.UNKNOWN, WorkloadPhase.PENDING])
    )
    def replica_dies(self, data, phase):
        name = data.draw(st.sampled_from(sorted(self.world.workloads)))
        each = self.world.workloads[name]
        if each.phase is not WorkloadPhase.DELETING:
            self.world.set(each, phase)

    @precondition(lambda self: self.world is not None and self.world.workloads)
    @rule(data=st.data())
    def somebody_deletes_a_replica(self, data):
        del self.world.workloads[data.draw(st.sampled_from(sorted(self.world.workloads)))]

    @precondition(lambda self: self.world is not None and self.world.job.desired is JobDesired.RUNNING)
    @rule(number=st.integers(1, 3), kind=st.sampled_from(["good", "good", "bad"]))
    def update(self, number, kind):
        world = self.world
        command = f"{kind}-{number}"
        spec = service(world.count, command, parallel=world.parallel, on_failure=world.on_failure)
        world.ask(JobAction.UPGRADE, spec=spec)
        world.command = command

    @precondition(lambda self: self.world is not None and self.world.job.desired is JobDesired.RUNNING)
    @rule(count=st.integers(0, 6))
    def scale(self, count):
        self.world.ask(JobAction.RESCALE, width=count)
        self.world.count = count

    @precondition(lambda self: self.world is not None and self.world.job.desired is JobDesired.RUNNING)
    @rule()
    def cancel(self):
        self.world.ask(JobAction.CANCEL)

    @precondition(lambda self: self.world is not None and self.world.job.state is JobState.CANCELED)
    @rule(count=st.integers(1, 4))
    def submit_again(self, count):
        world = self.world
        world.count, world.command = count, "good-0"
        spec = ENGINE.validate(service(count, "good-0", parallel=world.parallel, on_failure=world.on_failure))
        request = JobRequest(number=world.job.request.number + 1)
        world.job = dataclasses.replace(world.job, spec=spec, progress=b"", request=request, desired=JobDesired.RUNNING)

    @invariant()
    def an_update_takes_down_at_most_so_many_replicas(self):
        """A new revision is in at most `parallel` replicas that have not settled, unless it is the first."""
        world = self.world
        if world is None or world.job.state is not JobState.UPGRADING or not world.progress.good:
            return
        progress = world.progress
        fresh = [
            name
            for index, number in enumerate(progress.replicas)
            if number == progress.target != progress.good
            and (each := world.workloads.get(name := f"web-{index}")) is not None
            and each.bad
        ]
        assert len(fresh) <= world.parallel, world.transitions[-10:]

    @invariant()
    def history_is_bounded(self):
        if self.world is not None:
            assert len(self.world.progress.revisions) <= 24

    def teardown(self):
        if self.world is None:
            return
        world = self.world
        world.settle()
        if world.job.desired is JobDesired.CANCELED:
            assert world.job.state is JobState.CANCELED
            assert world.workloads == {}
            return
        assert len(world.workloads) == world.count
        assert set(world.workloads) == {f"web-{index}" for index in range(world.count)}
        progress = world.progress
        ran_well = all(not each.bad for each in world.workloads.values())
        if world.job.state is JobState.RUNNING:
            assert ran_well
            assert {each.revision for each in world.workloads.values()} <= {f"r{progress.target}"}
        elif world.job.state is JobState.PAUSED:
            assert world.on_failure == "pause"
        else:
            assert not ran_well, (
                world.job.state,
                world.transitions[-10:],
            )  # the first revision is bad: none to go back to
            assert not progress.good or world.command.startswith("bad")


Lives.TestCase.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLives = Lives.TestCase


def _running(count: int = 10, **update) -> World:
    world = World(count, parallel=update.get("parallel", 1), on_failure=update.get("on_failure", "revert"))
    world.settle()
    assert world.job.state is JobState.RUNNING
    return world


def test_a_bad_revision_stops_after_the_first_replica_and_is_reverted():
    world = _running()
    world.ask(JobAction.UPGRADE, spec=service(10, "bad-1"))
    touched = set()
    for _ in range(50):
        world.step()
        touched |= {name for name, each in world.workloads.items() if each.revision == "r2"}
        world.now += 1
        world.work()
    world.settle()
    assert touched == {"web-0"}
    assert world.job.state is JobState.RUNNING
    assert {each.revision for each in world.workloads.values()} == {"r1"}
    failed = world.progress.revision(2)
    assert (failed.state, "web-0 was restarted 2 times" in failed.message) == ("failed", True)


def test_a_paused_update_goes_on_when_it_is_asked_for_again():
    world = _running(3, on_failure="pause")
    world.ask(JobAction.UPGRADE, spec=service(3, "bad-1", on_failure="pause"))
    world.settle()
    assert world.job.state is JobState.PAUSED
    assert sorted(each.revision for each in world.workloads.values()) == ["r1", "r1", "r2"]
    world.ask(JobAction.UPGRADE, spec=service(3, "good-2", on_failure="pause"))
    world.settle()
    assert world.job.state is JobState.RUNNING
    assert {each.revision for each in world.workloads.values()} == {"r3"}


def test_a_revision_that_never_becomes_ready_fails_at_its_deadline():
    world = _running(2)
    world.ask(JobAction.UPGRADE, spec=service(2, "good-1"))
    while not any(each.revision == "r2" for each in world.workloads.values()):
        assert world.step()
    world.now += DEADLINE + 1  # nothing was reported of it
    world.step()
    assert world.job.state is JobState.REVERTING
    assert "not ready within" in world.progress.revision(2).message


def test_a_scale_changes_no_revision():
    world = _running(3)
    world.ask(JobAction.RESCALE, width=5)
    world.settle()
    assert len(world.workloads) == 5
    assert [each.number for each in world.progress.revisions] == [1]
