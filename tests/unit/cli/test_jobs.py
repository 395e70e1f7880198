"""`shoal job` and `shoal service` on a control plane in virtual time: what they print where, and their exit codes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from datetime import timedelta

import pytest

from shoal.cli.commands.common.waiting import Verdict
from shoal.cli.commands.jobs import changing, reading, upgrading
from shoal.cli.commands.jobs.waiting import JobGoal, explain, judge, wait_for
from shoal.cli.commands.services import applying
from shoal.cli.commands.services import reading as services
from shoal.cli.connection import session
from shoal.client import ControlPlane
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, UnsupportedError
from shoal.jobs.engine import Engines
from shoal.model.jobs import JobAction, JobDesired, JobRequest, JobState, JobView
from shoal.services import ServiceEngine
from shoal.testing.clock import LoopClock
from shoal.testing.control import CONTROL_ADDRESS, START, ControlKit

pytestmark = pytest.mark.looptime
SECONDS = timedelta(seconds=60)

SPEC = """
kind: service
id: {name}
count: {count}
update: {{parallel: 1, settle: 1s, on_failure: {on_failure}}}
workload:
  type: process
  resources: {{cpu_millicores: {cpu}}}
  process: {{command: [{command}]}}
"""


@pytest.fixture
async def kit(tmp_path):
    engines = Engines({"service": ServiceEngine()})
    async with ControlKit(
        tmp_path, lease=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=10), engines=engines, streams=True
    ) as made:
        for number in range(3):
            made.node(f"n{number}")
        for number in range(3):
            await made.wait_node(f"n{number}", "Ready")
        around = session.Surroundings(make_clock=lambda: made.clock)
        token = session.surroundings.set(around)
        yield made
        session.surroundings.reset(token)


@pytest.fixture
async def control(kit):
    async with ControlPlane([CONTROL_ADDRESS], kit.network.transport("client"), clock=kit.clock) as client:
        yield client


@pytest.fixture
def write(tmp_path):
    """Writes a service.yaml and returns its path."""

    def write(name="web", count=2, command="serve", on_failure="revert", cpu=10):
        path = tmp_path / f"{name}.yaml"
        path.write_text(SPEC.format(name=name, count=count, command=command, on_failure=on_failure, cpu=cpu))
        return str(path)

    return write


async def apply(control, path, **more):
    return await applying.apply(control, files=[path], timeout=more.pop("timeout", SECONDS), **more)


def break_new_ones(kit, revision):
    """Let every replica of a revision fail, from now on."""

    def look():
        for node in kit.agents.nodes.values():
            for name in node.runs:
                record = kit.plane.leadership.fleet.workloads.get(name)
                if record is not None and record.revision_id == revision:
                    node.fail(name)
        return f'"number":{revision[1:]},"state":"failed"'.encode() in kit.plane.leadership.fleet.jobs["web"].progress

    return look


async def test_apply_creates_changes_and_leaves_alone(kit, control, write, capsys):
    assert await apply(control, write()) == 0
    shown = capsys.readouterr()
    assert shown.out.split() == [
        *("SERVICE", "CHANGE", "STATE", "REVISION", "MESSAGE"),
        *("web", "created", "Running", "r1", "2", "of", "2", "replicas", "are", "ready"),
    ]
    assert "web: Pending 2 replicas of r1 are requested" in shown.err
    assert await apply(control, write()) == 0
    assert "unchanged" in capsys.readouterr().out
    assert await apply(control, write(command="two"), as_json=True) == 0
    (applied,) = json.loads(capsys.readouterr().out)["applied"]
    assert (applied["outcome"], applied["revision"], applied["state"]) == ("updated", "r2", "Running")
    assert await apply(control, write(command="three"), detach=True) == 0
    assert "updated" in capsys.readouterr().out


async def test_status_and_history_show_what_is(kit, control, write, capsys):
    await services.status(control)
    assert "no service yet" in capsys.readouterr().err
    await apply(control, write())
    capsys.readouterr()
    await services.status(control)
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["web", "Running", "2/2", "r1"]
    await services.status(control, "web")
    shown = capsys.readouterr().out
    for words in ("2 of 2 ready", "1 at a time, each ready for 1s within 5m, else revert", "web-0", "web-1"):
        assert words in shown
    await services.status(control, "web", as_json=True)
    found = json.loads(capsys.readouterr().out)["service"]
    assert (found["service_id"], found["count"], found["ready"], found["revision"]) == ("web", 2, 2, "r1")
    assert [each["workload_id"] for each in found["replicas"]] == ["web-0", "web-1"]
    await services.history(control, "web")
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["r1", "healthy", "2"]
    await services.history(control, "web", as_json=True)
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["revisions"]] == ["r1"]
    with pytest.raises(NotFoundError):
        await services.status(control, "none-such")


async def test_a_revision_that_is_reverted_is_an_error_with_its_reason(kit, control, write, capsys):
    await apply(control, write())
    capsys.readouterr()
    look = break_new_ones(kit, "r2")
    kit.agents.nodes["n0"].changed.set()
    watching = kit.wait(look, seconds=600, what="r2 has failed")
    code, _ = await asyncio.gather(apply(control, write(command="two"), timeout=timedelta(minutes=10)), watching)
    assert code == 1
    shown = capsys.readouterr()
    assert "service web: r2 failed and was reverted" in shown.err
    assert shown.out.splitlines()[1].split()[:4] == ["web", "updated", "Running", "r2"]
    # What was reverted does not come back with a scale, and an apply of the same file tries it again.
    assert await applying.scale(control, "web", 3, timeout=SECONDS) == 0
    assert {each.revision_id for each in kit.plane.leadership.fleet.workloads.values()} == {"r1"}
    assert await apply(control, write(command="two", count=3)) == 0
    assert {each.revision_id for each in kit.plane.leadership.fleet.workloads.values()} == {"r3"}


async def test_rollback_goes_to_the_last_healthy_revision_or_a_named_one(kit, control, write, capsys):
    for command in ("one", "two", "three"):
        await apply(control, write(command=command))
    capsys.readouterr()
    assert await applying.rollback(control, "web", timeout=SECONDS) == 0
    assert "web: rolled back to r2, as r4" in capsys.readouterr().err
    assert await applying.rollback(control, "web", to="r1", timeout=SECONDS) == 0
    assert "web: rolled back to r1, as r5" in capsys.readouterr().err
    assert await applying.rollback(control, "web", to="r1", timeout=SECONDS) == 0
    assert "r5 runs already, and is the same as r1" in capsys.readouterr().err
    with pytest.raises(InvalidError, match="must be a revision that is kept: r1, r2, r3, r4, r5"):
        await applying.rollback(control, "web", to="r9", timeout=SECONDS)


async def test_rollback_without_an_earlier_revision_is_refused(kit, control, write):
    await apply(control, write())
    with pytest.raises(PreconditionError, match="no healthy revision before r1"):
        await applying.rollback(control, "web", timeout=SECONDS)


async def test_no_room_is_3_and_no_time_is_4(kit, control, write, capsys):
    assert await apply(control, write(cpu=10_000_000)) == 3
    shown = capsys.readouterr().err
    assert "no node can take web-0 and 1 more" in shown
    assert "n0" in shown
    assert "it stays Pending" in shown
    assert await changing.cancel(control, "web", timeout=SECONDS) == 0
    # No readiness without a report: the node is silent.
    for node in list(kit.agents.nodes):
        kit.agents.kill(node)
    assert await apply(control, write("late"), timeout=timedelta(seconds=1)) == 4
    assert "is still" in capsys.readouterr().err


async def test_generic_commands_list_get_and_change_jobs(kit, control, write, capsys):
    await reading.list_jobs(control)
    assert "no job yet" in capsys.readouterr().err
    await apply(control, write())
    capsys.readouterr()
    await reading.list_jobs(control, as_json=True)
    (listed,) = json.loads(capsys.readouterr().out)["jobs"]
    assert "spec" not in listed
    assert (listed["job_id"], listed["state"], listed["engine"]) == ("web", "Running", "service")
    await reading.get_job(control, "web")
    assert "last request" in (shown := capsys.readouterr().out)
    assert "web-1" in shown
    await reading.get_job(control, "web", as_json=True)
    found = json.loads(capsys.readouterr().out)["job"]
    assert found["spec"]["count"] == 2
    assert found["progress"]["target"] == 1
    assert await changing.rescale(control, "web", 1, timeout=SECONDS) == 0
    assert "web: rescaled to 1" in capsys.readouterr().err
    assert await upgrading.upgrade(control, "web", file=write(command="two", count=1), timeout=SECONDS) == 0
    assert await changing.savepoint(control, "web", stop=True, timeout=SECONDS) == 0
    assert "web: stopped" in capsys.readouterr().err
    assert await changing.resume(control, "web", timeout=SECONDS) == 0
    assert await changing.cancel(control, "web", timeout=SECONDS, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["job"]["state"] == "Canceled"
    assert await changing.cancel(control, "web", detach=True) == 0
    assert await apply(control, write()) == 0
    assert "created" in capsys.readouterr().out


async def test_bad_requests_name_what_was_given(kit, control, write, tmp_path):
    await apply(control, write())
    with pytest.raises(InvalidError, match="WIDTH"):
        await changing.rescale(control, "web", -1, timeout=SECONDS)
    with pytest.raises(InvalidError, match="COUNT"):
        await applying.scale(control, "web", 1001, timeout=SECONDS)
    with pytest.raises(InvalidError, match="--operator"):
        await changing.rescale(control, "web", 2, operator="sum", timeout=SECONDS)
    with pytest.raises(UnsupportedError, match="no state to save"):
        await changing.savepoint(control, "web", timeout=SECONDS)
    with pytest.raises(UnsupportedError, match="only dataflow jobs have a graph") as caught:
        await reading.graph(control, "web")
    assert "shoal job get web" in caught.value.hint
    with pytest.raises(PreconditionError, match="is Running"):
        await changing.resume(control, "web", timeout=SECONDS)
    with pytest.raises(InvalidError, match="must hold the service 'web' alone"):
        await upgrading.upgrade(control, "web", file=write("other"), timeout=SECONDS)
    with pytest.raises(InvalidError, match="--parallelism: is for a program"):
        await upgrading.upgrade(control, "web", file=write(), parallelism=2, timeout=SECONDS)
    for work in (changing.cancel, changing.resume, reading.get_job):
        with pytest.raises(NotFoundError):
            await work(control, "none-such")


BAD = [
    ("kind: workload", "kind", "must be service"),
    ("id: ../x", "id", "is required"),
    ("count: -1", "count", "must be"),
    ("count: many", "count", "must be"),
    ("spread: '!'", "spread", "must be a label key"),
    ("update: {parallel: 0}", "update.parallel", "must be"),
    ("update: {settle: soon}", "update.settle", "must be"),
    ("update: {deadline: 0s}", "update.deadline", "must be above 0"),
    ("update: {on_failure: cry}", "update.on_failure", "must be"),
    ("update: {speed: 3}", "update.speed", "is not a known field"),
    ("replicas: 3", "replicas", "is not a known field"),
    ("workload: 3", "workload", "is required"),
    ("workload: {type: process, id: x, process: {command: [x]}}", "workload.id", "must not be given"),
    ("workload: {type: process, revision: x, process: {command: [x]}}", "workload.revision", "must not be given"),
    ("workload: {type: process, at_most_one: true, process: {command: [x]}}", "workload.at_most_one", "must not"),
    ("workload: {type: process, labels: {shoal.job: x}, process: {command: [x]}}", "workload.labels", "must not"),
    ("workload: {type: process, process: {command: []}}", "workload.process.command", "must"),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad[0])
async def test_a_bad_file_names_line_field_and_rule_and_stores_nothing(kit, control, tmp_path, bad):
    line, field, rule = bad
    path = tmp_path / "bad.yaml"
    key = line.partition(":")[0]
    lines = {
        "kind": "kind: service",
        "id": "id: web",
        "workload": "workload: {type: process, process: {command: [x]}}",
        key: line,
    }
    path.write_text("\n".join(lines.values()) + "\n")
    with pytest.raises(InvalidError) as caught:
        await apply(control, str(path))
    found = [each for each in caught.value.problems if f": {field}" in each.field and rule in each.rule]
    assert found, caught.value.problems
    number = 1 + list(lines).index(key)
    assert found[0].field.startswith(f"{path}:{number}: "), found
    assert kit.plane.leadership.fleet.jobs == {}


def job(state, *, taken=1, number=1):
    return JobView(
        "web", "service", 1, state, JobDesired.RUNNING, "words", 1, JobRequest(number=number), (), b"", b"", taken=taken
    )


@pytest.mark.parametrize("state", JobState)
def test_a_request_that_was_not_taken_in_is_waited_for(state):
    for goal in JobGoal:
        assert judge(job(state, taken=1, number=2), goal).verdict is Verdict.WAITING


@pytest.mark.parametrize(
    ("goal", "reached", "failed"),
    [
        (JobGoal.RUNNING, {"Running", "Finished"}, {"Paused", "Stopped", "Canceled", "Failed"}),
        (JobGoal.STOPPED, {"Stopped", "Finished"}, {"Paused", "Canceled", "Failed"}),
        (JobGoal.CANCELED, {"Canceled"}, {"Paused", "Stopped", "Finished", "Failed"}),
    ],
)
def test_what_a_wait_ends_with(goal, reached, failed):
    verdicts = {state.value: judge(job(state), goal).verdict for state in JobState}
    assert {name for name, verdict in verdicts.items() if verdict is Verdict.DONE} == reached
    assert {name for name, verdict in verdicts.items() if verdict is Verdict.FAILED} == failed


def test_a_savepoint_that_could_not_be_made_is_a_failure_although_the_job_runs():
    asked = JobRequest(JobAction.SAVEPOINT, 2)
    saved = dataclasses.replace(job(JobState.RUNNING, taken=2, number=2), request=asked, message="savepoint /c/7")
    assert judge(saved, JobGoal.RUNNING).verdict is Verdict.DONE
    failed = dataclasses.replace(saved, message="no savepoint: no checkpoint was complete within 600 s")
    assert judge(failed, JobGoal.RUNNING).verdict is Verdict.FAILED


class PendingGroup:
    """A client of a control plane that has one job, whose group does not fit anywhere."""

    async def watch_job(self, _job_id, *, patience, since_request):
        assert patience > 0
        assert since_request == 1  # a copy without the request is no answer
        yield dataclasses.replace(job(JobState.PENDING), message="node-1: 0 of 2 slots are free")
        await asyncio.Event().wait()

    async def list_workloads(self):
        return ()


async def test_a_group_that_does_not_fit_is_3_with_the_reason(capsys):
    """Nothing of such a group is stored, so its reasons are in the message of the job."""
    waited = await wait_for(
        PendingGroup(), job(JobState.PENDING), JobGoal.RUNNING, clock=LoopClock(START), timeout=60.0
    )
    explain(waited)
    assert waited.exit_code == 3
    assert "there is no room for it: node-1: 0 of 2 slots are free" in capsys.readouterr().err
