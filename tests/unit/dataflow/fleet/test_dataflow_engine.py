"""The engine of dataflow jobs decides from facts: a world of workloads and a coordinator's words, moved by hand."""

import dataclasses
import json
from datetime import UTC, datetime, timedelta

import pytest

from shoal.core.errors import InvalidError, PreconditionError
from shoal.core.ids import JobId
from shoal.dataflow.fleet.engine import DataflowEngine
from shoal.dataflow.fleet.progress import Move, Progress, decode, encode, went_back
from shoal.dataflow.fleet.reports import CoordinatorReport, HostReport, Phase, decode_coordinator, decode_host
from shoal.dataflow.fleet.reports import encode as report_bytes
from shoal.dataflow.fleet.spec import decode as decode_spec
from shoal.dataflow.fleet.spec import read_spec
from shoal.jobs.engine import Facts, Job, WorkloadFacts, WorkloadReport
from shoal.jobs.states import check, desired_after
from shoal.model.jobs import JobAction, JobDesired, JobRequest, JobState, JobView
from shoal.model.phases import WorkloadPhase

ENGINE = DataflowEngine()
START = datetime(2026, 1, 1, tzinfo=UTC)
COORDINATOR = "j-coordinator"
STEPS = {
    "sum-1": {"kind": "Aggregate", "text": "sum(amount) by user", "stateful": True},
    "sum-1.partial": {"kind": "Aggregate"},
    "all-1": {"kind": "Aggregate", "text": "sum(amount)", "stateful": True, "most_width": 1},
}


def spec(**changes):
    plain = {"name": "a.b", "plan": "a" * 64, "bundle": "b" * 64, "parallelism": 2, "insecure": True}
    plain["checkpoint"] = {"directory": "/c"}
    return json.dumps(plain | changes).encode()


class World:
    """A job, its workloads, what they say, and time. It carries plans out as the control plane does."""

    def __init__(self, **changes):
        self.now = 0.0
        self.job = Job(
            JobId("j"), ENGINE.validate(spec(**changes)), b"", JobState.SUBMITTED, JobDesired.RUNNING, JobRequest()
        )
        self.workloads = {}
        self.said = {}
        self.told = []
        self.decisions = []
        self.generation = 0
        self.taken = 1
        #: Why the last plan found no room, and whether the next ones do.
        self.waits = ""
        self.has_room = True

    @property
    def plan(self):
        return {each.workload_id: each for each in ENGINE.plan(self.job, {}).workloads}

    @property
    def progress(self):
        return decode(self.job.progress)

    def ask(self, action, *, spec=None, stop=False, **more):
        request = JobRequest(action, self.job.request.number + 1, stop=stop, **more)
        stored = ENGINE.validate(spec or self.job.spec, job=self.job, request=request)
        desired = desired_after(action, self.job.desired, stop=stop)
        self.job = dataclasses.replace(self.job, spec=stored, request=request, desired=desired)

    def say(self, phase, **more):
        generation = self.workloads[COORDINATOR].generation
        report = CoordinatorReport(phase, term=generation, **more)
        assert decode_coordinator(report_bytes(report)) == report
        self.said[COORDINATOR] = (report_bytes(report), self.now)

    def complain(self, number, seconds, term=None):
        found = HostReport(number, self.workloads[COORDINATOR].generation if term is None else term, "n0", seconds)
        assert decode_host(report_bytes(found)) == found
        self.said[f"j-host-{number}"] = (report_bytes(found), self.now)

    def facts(self):
        reports = {name: WorkloadReport(content, self.now - at) for name, (content, at) in self.said.items()}
        said = {name: each for name, each in reports.items() if name in self.workloads}
        return Facts(dict(self.workloads), said, self.waits)

    def step(self):
        found = ENGINE.decide(self.job, self.facts(), START + timedelta(seconds=self.now))
        if found.decision is None:
            return False
        check(found.decision.transition, self.job.state, found.decision.state)
        self.job = dataclasses.replace(self.job, state=found.decision.state, progress=found.decision.progress)
        self.told.append((found.decision.transition.value, found.decision.message))
        self.decisions.append(found.decision)
        if found.decision.takes_request:
            self.taken = self.job.request.number
        for name, each in self.plan.items():
            known = self.workloads.get(name)
            if not self.has_room:
                break
            if known is None or known.revision != each.revision:
                self.generation += 1
                node = f"n{len(self.workloads) % 3}" if known is None else "n9"
                self.workloads[name] = WorkloadFacts(
                    name, each.revision, WorkloadPhase.PENDING, node, generation=self.generation
                )
                self.said.pop(name, None)
        self.workloads = {name: each for name, each in self.workloads.items() if name in self.plan}
        return True

    def settle(self):
        for _ in range(20):
            if not self.step():
                return self.job.state
        raise AssertionError(f"it does not come to rest: {self.told[-5:]}")

    def run_for(self, seconds):
        self.now += seconds
        self.workloads = {
            name: dataclasses.replace(each, phase=WorkloadPhase.RUNNING, ready_for=(each.ready_for or 0.0) + seconds)
            for name, each in self.workloads.items()
        }


def running(**changes):
    world = World(**changes)
    assert world.settle() is JobState.PENDING
    world.run_for(20)
    assert world.settle() is JobState.DEPLOYING
    world.say(Phase.STARTING)
    assert world.settle() is JobState.DEPLOYING
    world.say(Phase.RUNNING, epoch=1)
    assert world.settle() is JobState.RUNNING
    return world


def test_a_job_is_one_group_of_a_coordinator_and_task_hosts():
    world = running(parallelism=3, constraints=[{"key": "disk", "values": ["ssd"]}], task_host={"memory_mb": 100})
    assert list(world.plan) == [COORDINATOR, "j-host-0", "j-host-1", "j-host-2"]
    assert {each.group_id for each in world.plan.values()} == {"j"}
    assert [each.spec.slots for each in world.plan.values()] == [0, 1, 1, 1]
    assert all(each.spec.placement.constraints[0].key == "disk" for each in world.plan.values())
    host = world.plan["j-host-1"].spec
    assert host.placement.affinities
    assert not world.plan[COORDINATOR].spec.placement.affinities
    assert host.resources.memory_mb == 100
    assert world.step() is False


def test_it_ends_when_its_input_ends():
    world = running()
    world.say(Phase.FINISHED)
    assert world.settle() is JobState.FINISHED
    assert world.plan == {}
    assert world.settle() is JobState.FINISHED


def test_it_may_end_before_it_was_seen_to_run():
    world = World()
    world.settle()
    world.say(Phase.FINISHED)
    assert world.settle() is JobState.FINISHED


def test_it_fails_with_the_words_of_its_coordinator_and_begins_again_when_resumed():
    world = running()
    world.say(Phase.FAILED, message="step sum-1: boom")
    assert world.settle() is JobState.FAILED
    assert world.told[-1] == ("fail", "step sum-1: boom")
    assert world.plan == {}
    world.ask(JobAction.RESUME)
    assert world.settle() is JobState.PENDING
    assert {each.revision for each in world.plan.values()} == {"d2"}


def test_a_stop_keeps_its_processes_until_the_savepoint_is_there():
    world = running()
    world.ask(JobAction.SAVEPOINT, stop=True)
    assert world.settle() is JobState.STOPPING
    assert len(world.plan) == 3
    world.say(Phase.STOPPED, request=1)  # of an earlier request
    assert world.settle() is JobState.STOPPING
    assert world.plan
    world.say(Phase.STOPPED, request=2, savepoint="/c/a.b/7")
    assert world.settle() is JobState.STOPPED
    assert world.told[-1][1] == "/c/a.b/7"
    world.ask(JobAction.RESUME)
    assert world.settle() is JobState.PENDING
    assert world.progress.deployed_for == 3


def test_a_cancel_waits_for_nothing():
    world = running()
    world.ask(JobAction.CANCEL)
    assert world.settle() is JobState.CANCELED
    assert world.plan == {}


@pytest.mark.parametrize("state", ["submitted", "pending"])
def test_a_stop_before_anything_runs(state):
    world = World()
    if state == "pending":
        world.settle()
        world.workloads = {}
    world.ask(JobAction.SAVEPOINT, stop=True)
    assert world.settle() is JobState.STOPPED


def test_a_savepoint_is_told_and_changes_nothing_else():
    world = running()
    before = world.plan
    world.ask(JobAction.SAVEPOINT)
    assert world.settle() is JobState.RUNNING
    world.say(Phase.RUNNING, request=2, savepoint="/c/a.b/9")
    assert world.settle() is JobState.RUNNING
    assert "/c/a.b/9" in world.told[-1][1]
    assert world.plan == before


def test_a_lost_task_host_is_recovered_by_the_coordinator_alone():
    world = running()
    before = world.plan
    world.say(Phase.RECOVERING, missing={"1": 0.5}, message="process 1 is gone")
    assert world.settle() is JobState.RECOVERING
    assert world.plan == before
    world.say(Phase.RUNNING, epoch=2)
    assert world.settle() is JobState.RUNNING
    assert world.plan == before


def test_a_task_host_that_stays_away_is_placed_elsewhere_once():
    world = running()
    node = world.workloads["j-host-1"].node_id
    world.say(Phase.RECOVERING, missing={"1": 3.5})
    assert world.settle() is JobState.RECOVERING
    moved = world.plan["j-host-1"]
    assert moved.revision == "d1.1"
    assert moved.spec.placement.constraints[-1].values == (node,)
    assert {world.plan[each].revision for each in (COORDINATOR, "j-host-0")} == {"d1"}
    world.say(Phase.RECOVERING, missing={"1": 8.0})  # it is starting
    world.settle()
    assert world.plan["j-host-1"].revision == "d1.1"
    world.run_for(20)
    world.say(Phase.RUNNING, epoch=2)
    assert world.settle() is JobState.RUNNING
    assert world.plan["j-host-1"] == moved


def test_a_task_host_that_starts_slowly_everywhere_is_given_longer_each_time():
    world = running()
    starts = []
    for moves in range(1, 7):
        started = world.now
        while world.progress.revision("1") != f"d1.{moves}":
            world.run_for(1)
            world.say(Phase.RECOVERING, missing={"1": 3.5})
            world.settle()
        starts.append(world.now - started)
    assert starts == [1, 10, 20, 40, 80, 80]


def test_a_silent_coordinator_is_replaced_under_a_higher_generation():
    world = running()
    first = world.workloads[COORDINATOR]
    world.complain(0, 1.0)
    assert world.settle() is JobState.RUNNING
    world.run_for(3)
    world.complain(0, 3.2)
    assert world.settle() is JobState.RECOVERING
    assert world.plan[COORDINATOR].revision == "d1.1"
    assert world.plan[COORDINATOR].spec.placement.constraints[-1].values == (first.node_id,)
    assert world.workloads[COORDINATOR].generation > first.generation
    world.complain(1, 9.0, term=first.generation)  # about the one that is gone
    world.settle()
    assert world.plan[COORDINATOR].revision == "d1.1"
    world.say(Phase.RUNNING, epoch=2)
    world.said = {COORDINATOR: world.said[COORDINATOR]}
    assert world.settle() is JobState.RUNNING


def test_old_words_count_for_nothing():
    world = running()
    world.say(Phase.RECOVERING, missing={"1": 30.0})
    world.complain(0, 30.0)
    world.run_for(6)
    world.settle()
    assert {each.revision for each in world.plan.values()} == {"d1"}


def test_a_rescale_saves_deploys_anew_and_runs():
    world = running()
    world.ask(JobAction.RESCALE, width=4)
    with pytest.raises(PreconditionError, match="under way"):
        world.ask(JobAction.RESCALE, width=5)
    assert world.settle() is JobState.RESCALING
    assert len(world.plan) == 3  # the old layout makes its savepoint
    with pytest.raises(PreconditionError, match="under way"):
        world.ask(JobAction.RESCALE, width=2)
    world.say(Phase.STOPPED, request=2, savepoint="/c/a.b/5", checkpoint=5)
    assert world.settle() is JobState.RESCALING
    assert len(world.plan) == 5
    assert {each.revision for each in world.plan.values()} == {"d2"}
    world.run_for(5)
    world.say(Phase.RUNNING)
    assert world.settle() is JobState.RUNNING
    world.ask(JobAction.RESCALE, width=1)
    world.settle()
    world.say(Phase.STOPPED, request=3)
    world.settle()
    assert list(world.plan) == [COORDINATOR, "j-host-0"]


def test_one_step_is_rescaled_alone_until_the_whole_job_is():
    world = running(steps=STEPS)
    world.ask(JobAction.RESCALE, width=4, operator="sum-1")
    assert world.settle() is JobState.RESCALING
    world.say(Phase.STOPPED, request=2, checkpoint=5)
    world.settle()
    assert len(world.plan) == 3  # it has as many task hosts as before
    coordinator = next(each for each in world.plan.values() if each.workload_id == COORDINATOR)
    (document,) = coordinator.spec.process.files
    assert read_spec(json.loads(document.content)).widths == {"sum-1": 4}
    world.say(Phase.RUNNING)
    assert world.settle() is JobState.RUNNING
    world.ask(JobAction.UPGRADE, spec=spec(steps=STEPS, bundle="c" * 64))
    assert decode_spec(world.job.spec).widths == {"sum-1": 4}
    world.settle()
    world.say(Phase.STOPPED, request=3, checkpoint=7)
    world.settle()
    world.say(Phase.RUNNING)
    assert world.settle() is JobState.RUNNING
    world.ask(JobAction.RESCALE, width=3)
    assert decode_spec(world.job.spec).widths == {}


def test_requests_that_cannot_be_are_refused_and_change_nothing():
    world = running(steps=STEPS)
    for width in (0, 129, -3):
        with pytest.raises(InvalidError, match="width"):
            world.ask(JobAction.RESCALE, width=width)
    for width, operator, words in (
        (0, "sum-1", "between 1 and 128"),
        (129, "sum-1", "between 1 and 128"),
        (2, "all-1", "all rows meet in one task"),
        (2, "sum-2", "its steps are all-1, sum-1 "),
        (2, "sum-1.partial", "is no step"),
    ):
        with pytest.raises(InvalidError, match=words):
            world.ask(JobAction.RESCALE, width=width, operator=operator)
    without = running(checkpoint=None)
    for action, more in ((JobAction.RESCALE, {"width": 3}), (JobAction.SAVEPOINT, {}), (JobAction.UPGRADE, {})):
        with pytest.raises(PreconditionError, match="needs checkpoints"):
            without.ask(action, **more)
    assert world.settle() is JobState.RUNNING


def test_an_upgrade_is_checked_before_the_old_job_stops():
    step = {"kind": "Aggregate", "text": "sum(amount)", "stateful": True}
    world = running(steps={"sum-1": step})
    with pytest.raises(InvalidError, match=r"sum\(amount\)"):
        world.ask(JobAction.UPGRADE, spec=spec(steps={}))
    assert world.settle() is JobState.RUNNING
    world.ask(JobAction.UPGRADE, spec=spec(steps={"sum-1": step}, bundle="c" * 64))
    assert world.settle() is JobState.UPGRADING
    world.say(Phase.STOPPED, request=2, checkpoint=8)
    assert world.settle() is JobState.UPGRADING
    assert "c" * 64 in world.progress.spec
    world.say(Phase.RUNNING)
    assert world.settle() is JobState.RUNNING


def test_each_revision_of_a_part_is_a_process_of_its_own():
    """An agent does not begin a workload anew whose spec is as it was; its process would say that it is the old one."""
    world = running()
    world.run_for(20)
    before = {name: each.spec.process for name, each in world.plan.items()}
    world.ask(JobAction.RESCALE, width=3)
    world.settle()
    world.say(Phase.STOPPED, request=2, checkpoint=8)
    world.settle()
    after = {name: each.spec.process for name, each in world.plan.items()}
    assert all(after[name] != each for name, each in before.items())


def test_a_change_without_room_is_told_from_one_that_came_true():
    world = running()
    world.ask(JobAction.RESCALE, width=3)
    job = world.job
    old, new = spec(), job.spec
    view = JobView(JobId("j"), "dataflow", 1, JobState.RUNNING, job.desired, "", 3, job.request, (), new, b"")
    back = Progress().deployed(old, 2, START)
    assert went_back(dataclasses.replace(view, progress=encode(back)))
    assert not went_back(dataclasses.replace(view, progress=encode(back.deployed(new, 2, START))))
    assert not went_back(dataclasses.replace(view, progress=encode(back), state=JobState.RECOVERING))


def test_a_part_that_was_deleted_is_requested_again():
    world = running()
    del world.workloads["j-host-0"]
    assert world.step()
    assert world.job.state is JobState.RECOVERING
    assert "j-host-0" in world.workloads


def save(world):
    """A person asks for a savepoint, and the coordinator has not answered yet."""
    world.ask(JobAction.SAVEPOINT)
    assert world.settle() is JobState.RUNNING
    return world


def test_a_savepoint_that_cannot_be_made_is_told_and_the_job_goes_on():
    world = save(running())
    assert world.taken == 1
    world.say(Phase.RUNNING, request=2, refusal="job 'a.b' had no complete checkpoint within 600 s")
    assert world.settle() is JobState.RUNNING
    assert world.told[-1][1] == "no savepoint: job 'a.b' had no complete checkpoint within 600 s"
    assert world.progress.savepoint == ""
    assert world.taken == 2


@pytest.mark.parametrize(
    ("phase", "state"), [(Phase.FINISHED, JobState.FINISHED), (Phase.FAILED, JobState.FAILED)], ids=str
)
def test_a_job_may_end_before_its_savepoint_is_there(phase, state):
    world = save(running())
    world.say(phase, message="boom")
    assert world.settle() is state
    assert world.taken == 2
    assert world.settle() is state  # it does not begin again for a request that is over


def test_a_lost_task_host_is_placed_elsewhere_while_a_savepoint_is_waited_for():
    world = save(running())
    world.say(Phase.RECOVERING, missing={"1": 3.5})
    assert world.settle() is JobState.RECOVERING
    assert world.plan["j-host-1"].revision == "d1.1"
    assert world.taken == 1  # the request is still waited for
    world.run_for(20)
    world.say(Phase.RUNNING, epoch=2)
    world.settle()
    world.say(Phase.RUNNING, epoch=2, request=2, savepoint="/c/a.b/4")
    assert world.settle() is JobState.RUNNING
    assert world.progress.savepoint == "/c/a.b/4"
    assert world.taken == 2


def test_no_savepoint_is_taken_while_the_layout_changes():
    world = running()
    world.ask(JobAction.RESCALE, width=4)
    with pytest.raises(PreconditionError, match="under way"):
        world.ask(JobAction.SAVEPOINT)
    world.settle()
    with pytest.raises(PreconditionError, match="under way"):
        world.ask(JobAction.SAVEPOINT)
    world.ask(JobAction.SAVEPOINT, stop=True)
    assert world.settle() is JobState.STOPPING


def test_a_task_host_that_is_lost_during_a_stop_is_placed_elsewhere_so_that_the_stop_can_end():
    world = running()
    world.ask(JobAction.SAVEPOINT, stop=True)
    assert world.settle() is JobState.STOPPING
    world.say(Phase.RECOVERING, missing={"0": 4.0})
    assert world.settle() is JobState.STOPPING
    assert world.plan["j-host-0"].revision == "d1.1"
    del world.workloads["j-host-1"]
    assert world.settle() is JobState.STOPPING
    assert "j-host-1" in world.workloads
    world.say(Phase.STOPPED, request=2, savepoint="/c/a.b/7")
    assert world.settle() is JobState.STOPPED


def test_a_silent_part_begins_again_where_it_is_when_there_is_no_room_elsewhere():
    world = running()
    world.waits = "no node has a slot"
    world.say(Phase.RECOVERING, missing={"1": 3.5})
    assert world.settle() is JobState.RECOVERING
    part = world.plan["j-host-1"]
    assert part.revision == "d1.1"
    assert not part.spec.placement.constraints
    assert world.decisions[-1].instead
    assert "no room" in world.told[-1][1]


@pytest.mark.parametrize("answers", [True, False])
def test_task_hosts_on_the_node_of_a_coordinator_go_with_it_when_that_node_is_gone(answers):
    world = running()
    world.run_for(20)
    lost = dataclasses.replace(world.workloads[COORDINATOR], node_answers=answers)
    world.workloads[COORDINATOR] = lost
    world.workloads["j-host-1"] = dataclasses.replace(world.workloads["j-host-1"], node_id=lost.node_id)
    before = world.workloads["j-host-1"].generation
    world.complain(0, 3.5)
    assert world.settle() is JobState.RECOVERING
    assert world.workloads[COORDINATOR].generation > lost.generation
    assert (world.workloads["j-host-1"].generation > before) is not answers
    assert world.workloads["j-host-0"].revision == "d1", "it said something"
    assert ("with task host 1" in world.told[-1][1]) is not answers


def test_a_coordinator_of_which_nobody_hears_is_placed_elsewhere_before_the_lease_of_its_node_ends():
    world = running()
    first = world.workloads[COORDINATOR]
    world.run_for(4)
    assert world.settle() is JobState.RUNNING
    world.run_for(2)
    assert world.settle() is JobState.RECOVERING
    assert world.told[-1][1] == "nobody hears of the coordinator"
    assert world.plan[COORDINATOR].revision == "d1"
    world.run_for(5)
    assert world.settle() is JobState.RECOVERING
    assert world.plan[COORDINATOR].revision == "d1.1"
    assert world.plan[COORDINATOR].spec.placement.constraints[-1].values == (first.node_id,)
    world.say(Phase.RUNNING, epoch=2)
    assert world.settle() is JobState.RUNNING


def test_a_coordinator_that_is_heard_again_stays():
    world = running()
    world.run_for(300)  # also the leader itself may have stood still for so long
    assert world.settle() is JobState.RECOVERING
    assert world.plan[COORDINATOR].revision == "d1"
    world.say(Phase.RUNNING, epoch=1)
    assert world.settle() is JobState.RUNNING
    assert world.progress.silent_since is None
    world.run_for(300)
    world.settle()
    assert world.plan[COORDINATOR].revision == "d1"


def test_nothing_of_the_job_is_placed_on_a_lost_node_for_a_minute():
    world = running()
    node = world.workloads["j-host-1"].node_id
    world.say(Phase.RECOVERING, missing={"1": 3.5})
    world.settle()
    world.ask(JobAction.SAVEPOINT, stop=True)
    world.settle()
    world.say(Phase.STOPPED, request=2)
    assert world.settle() is JobState.STOPPED
    world.now += 30
    world.ask(JobAction.RESUME)
    assert world.settle() is JobState.PENDING
    for each in world.plan.values():
        assert each.spec.placement.constraints[-1].values == (node,)
    world.now += 31
    world.ask(JobAction.CANCEL)
    world.settle()
    world.ask(JobAction.RESUME)
    world.settle()
    assert not any(each.spec.placement.constraints for each in world.plan.values())


def test_a_part_without_a_node_may_be_on_the_lost_one_again_after_a_minute():
    world = running()
    world.say(Phase.RECOVERING, missing={"1": 3.5})
    world.settle()
    host = world.workloads["j-host-1"]
    world.workloads["j-host-1"] = dataclasses.replace(host, phase=WorkloadPhase.UNPLACEABLE, node_id=None)
    world.say(Phase.RECOVERING, missing={"1": 30.0})
    world.settle()
    assert world.plan["j-host-1"].revision == "d1.1"
    world.now += 61
    world.say(Phase.RECOVERING, missing={"1": 91.0})
    world.settle()
    assert world.plan["j-host-1"].revision == "d1.2"
    assert not world.plan["j-host-1"].spec.placement.constraints


def test_what_finds_no_room_while_it_keeps_away_from_a_node_may_be_there():
    world = running()
    world.say(Phase.RECOVERING, missing={"1": 3.5})
    world.settle()
    world.ask(JobAction.CANCEL)
    world.settle()
    world.ask(JobAction.RESUME)
    world.has_room = False
    world.waits = "no node has a slot"
    world.step()
    world.step()
    world.step()
    assert world.job.state is JobState.PENDING
    assert world.decisions[-1].instead
    assert not any(each.spec.placement.constraints for each in world.plan.values())
    before = world.plan
    world.step()
    assert world.plan == before  # the same again is held back by the control plane
    assert not world.decisions[-1].instead


def test_one_task_host_that_misses_the_coordinator_is_moved_when_the_others_hear_it():
    world = running(parallelism=3)
    world.say(Phase.RECOVERING, missing={"1": 3.2})
    world.complain(1, 3.3)
    assert world.settle() is JobState.RECOVERING
    assert world.plan[COORDINATOR].revision == "d1"
    assert world.plan["j-host-1"].revision == "d1.1"


def test_most_task_hosts_that_miss_the_coordinator_outweigh_its_word():
    world = running(parallelism=3)
    world.say(Phase.RECOVERING, missing={"1": 3.2, "2": 3.2})
    world.complain(1, 3.3)
    world.complain(2, 3.3)
    assert world.settle() is JobState.RECOVERING
    assert world.plan[COORDINATOR].revision == "d1.1"
    assert world.plan["j-host-1"].revision == "d1"


def test_task_hosts_that_do_not_reach_each_other_leave_the_node_with_most_such_pairs():
    world = running(parallelism=4)
    for number, node in enumerate(("a", "b", "c", "b")):
        host = world.workloads[f"j-host-{number}"]
        world.workloads[f"j-host-{number}"] = dataclasses.replace(host, node_id=node)
    world.say(Phase.RECOVERING, unreachable=(("0", "1"), ("1", "2")))
    assert world.settle() is JobState.RECOVERING
    assert [world.plan[f"j-host-{number}"].revision for number in range(4)] == ["d1", "d1.1", "d1", "d1.1"]
    assert world.plan["j-host-1"].spec.placement.constraints[-1].values == ("b",)
    assert world.plan[COORDINATOR].revision == "d1"
    world.settle()
    assert world.plan["j-host-1"].revision == "d1.1"  # it has time to start


def test_checkpoints_that_fail_are_told_once_and_the_job_runs_on():
    world = running()
    before = world.plan
    failing = {"checkpoint": 7, "failed_checkpoints": 2, "checkpoint_error": "No space left on device"}
    world.say(Phase.RUNNING, checkpoint_age=20.0, **failing)
    assert not world.step()
    world.say(Phase.RUNNING, checkpoint_age=30.0, **(failing | {"failed_checkpoints": 3}))
    assert world.settle() is JobState.RUNNING
    words = "it goes on, and 3 checkpoints failed: No space left on device; the last good one is 7, 30 s ago"
    assert world.told[-1] == ("run", words)
    world.say(Phase.RUNNING, checkpoint_age=60.0, **(failing | {"failed_checkpoints": 9}))
    assert not world.step()
    world.say(Phase.RUNNING, checkpoint=8, checkpoint_age=0.5)
    assert world.settle() is JobState.RUNNING
    assert world.told[-1] == ("run", "checkpoints are made again: 8")
    assert world.plan == before


def test_progress_is_read_back():
    progress = Progress("{}", 3, 4, 5, {"1": Move(2, ("n1",))}, {"n1": START}, "/s", ("n2",), START, True)
    assert decode(encode(progress)) == progress
    assert decode(b"") == Progress()
    after = progress.moved("1", "n2", START - timedelta(seconds=1))
    assert after.moves["1"] == Move(3, ("n1", "n2"))
    assert progress.moved("1", None, START + timedelta(seconds=61)).avoided == {}
