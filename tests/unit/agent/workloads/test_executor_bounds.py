"""Workloads on a fake machine, in virtual time: admission, readiness, contact, faults, logs and what is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import replace

import pytest

from shoal.agent.store.action_log import ActionQuery
from shoal.agent.workloads.contact import Ownership
from shoal.core import faults
from shoal.core.errors import (
    ExhaustedError,
    NotFoundError,
    PreconditionError,
    StaleGenerationError,
    UnavailableError,
    UnsupportedError,
)
from shoal.core.ids import WorkloadId
from shoal.model.logs import LogQuery
from shoal.model.resources import Resources
from shoal.model.workloads import (
    ContainerSpec,
    DesiredState,
    FailureReason,
    NamedPort,
    RestartPolicy,
    RunState,
    WorkloadSpec,
    WorkloadType,
)
from shoal.testing.runtimes import FakeRuntime, FakeScript
from shoal.wire.convert import agent_spec_from_control
from tests.unit.agent.kit import Kit, opened
from tests.unit.agent.making import process

pytestmark = pytest.mark.looptime

ONCE = RestartPolicy(policy="no")


async def actions(kit: Kit, workload_id: str = "w"):
    return await kit.executor.list_actions(ActionQuery(workload_id=workload_id))


# ---------------------------------------------------------------------------------------------------------
# Admission


async def test_what_does_not_fit_is_refused_with_need_and_have_and_nothing_is_kept(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply("one", request=Resources(memory_mb=3000))
        with pytest.raises(ExhaustedError, match="memory need 2000 MB have 1096 MB") as caught:
            await kit.apply("two", request=Resources(memory_mb=2000))
        assert caught.value.facts["failure"] == "INSUFFICIENT_RESOURCES"
        assert (caught.value.facts["need"], caught.value.facts["have"]) == ("memory=2000", "memory=1096")
        assert not kit.knows("two")
        assert not await actions(kit, "two")


async def test_a_claim_is_freed_by_the_end_and_not_by_the_command_to_end(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.scripts["one"] = FakeScript(stop_takes=5)
        kit.machine.scripts["job"] = FakeScript(run_for=1)
        await kit.apply("one", request=Resources(slots=2))
        await kit.apply("job", process(restart=ONCE), request=Resources(slots=2))
        await kit.settle(0.1)
        await kit.apply("one", desired=DesiredState.STOPPED, request=Resources(slots=2))
        with pytest.raises(ExhaustedError):
            await kit.apply("two", request=Resources(slots=1))
        await kit.settle(2)
        await kit.apply("two", request=Resources(slots=2))  # the job has completed
        with pytest.raises(ExhaustedError):
            await kit.apply("three", request=Resources(slots=2))
        await kit.settle(5)
        await kit.apply("three", request=Resources(slots=2))


async def test_many_commands_at_once_never_take_more_than_there_is(tmp_path):
    async with opened(tmp_path) as kit:
        commands = [kit.apply(f"w{number}", request=Resources(cpu_millicores=900)) for number in range(10)]
        results = await asyncio.gather(*commands, return_exceptions=True)
        assert sum(isinstance(result, ExhaustedError) for result in results) == 6
        assert kit.executor.roster.reserved().cpu_millicores == 3600


async def test_what_was_accepted_stays_accepted_on_a_smaller_node(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply(request=Resources(memory_mb=4000))
        await kit.settle()
        await kit.kill()
        kit.capacity = Resources(cpu_millicores=1000, memory_mb=1000)
        await kit.open()
        await kit.settle(1)
        assert kit.status().state is RunState.RUNNING
        with pytest.raises(ExhaustedError, match="have 0 MB"):
            await kit.apply("two", request=Resources(memory_mb=1))


async def test_a_draining_node_takes_no_new_work_and_keeps_what_it_has(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply("old")
        kit.executor.roster.set_draining(True)
        with pytest.raises(PreconditionError, match="being drained") as caught:
            await kit.apply("new")
        assert caught.value.facts["reason"] == "draining"
        await kit.apply("old", process("other"))
        await kit.apply("old", process("other"), desired=DesiredState.STOPPED)
        await kit.delete("old")
        kit.executor.roster.set_draining(False)
        await kit.apply("new")


async def test_a_kind_without_a_runtime_is_refused(tmp_path):
    async with opened(tmp_path, types=(WorkloadType.CONTAINER,)) as kit:
        with pytest.raises(UnsupportedError, match="runtime not available"):
            await kit.apply()


async def test_a_runtime_that_appears_later_is_taken_in(tmp_path):
    """Also when it cannot be opened at once."""
    tries = []

    class Late(FakeRuntime):
        async def open(self):
            tries.append(self)
            if len(tries) == 1:
                raise UnavailableError("its records cannot be read")

    async def find(machine):
        return {} if tries else {WorkloadType.CONTAINER: Late(machine, type=WorkloadType.CONTAINER)}

    async with opened(tmp_path, find_more=find) as kit:
        assert kit.executor.types == (WorkloadType.PROCESS,)
        await kit.settle(6)
        assert (kit.executor.types, len(tries)) == ((WorkloadType.PROCESS,), 1)
        await kit.settle(5)
        assert kit.executor.types == (WorkloadType.PROCESS, WorkloadType.CONTAINER)
        assert await kit.executor.health() == {"process": "healthy", "container": "healthy"}
        kit.types = (WorkloadType.CONTAINER,)
        spec = WorkloadSpec(WorkloadType.CONTAINER, container=ContainerSpec(image="a"))
        await kit.apply(spec=agent_spec_from_control(spec, "w"))
        await kit.settle(1)
        assert kit.status().state is RunState.RUNNING
        (run,) = kit.machine.runs.values()
        kit.machine.kill(run.info.run_id)
        await kit.settle(0.1)
        assert kit.status().state is not RunState.RUNNING  # its ends are watched


# ---------------------------------------------------------------------------------------------------------
# Ports and identity


async def test_named_ports_are_chosen_handed_over_kept_and_never_given_twice(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(run_for=5, exit_code=1)
        spec = process(ports=(NamedPort("http"), NamedPort("admin", 9000)))
        await kit.apply("a", spec)
        await kit.apply("b", process(ports=(NamedPort("http"),)))
        await kit.settle(1)
        chosen = dict(kit.status("a").ports)
        assert chosen["admin"] == 9000
        assert chosen["http"] != kit.status("b").ports["http"]
        (alive,) = kit.machine.alive("a")
        assert kit.machine.started_with[alive.run_id].ports == chosen
        with pytest.raises(ExhaustedError, match="port 9000/tcp is promised to workload 'a'"):
            await kit.apply("c", process(ports=(NamedPort("x", 9000),)))
        await kit.settle(6)
        assert kit.status("a").restarts == 1
        assert kit.status("a").ports == chosen
        await kit.kill()
        await asyncio.sleep(60)
        kit.busy_ports.add(chosen["http"])
        await kit.open()
        await kit.settle(1)
        assert kit.status("a").ports["http"] != chosen["http"]


async def test_a_fixed_port_that_is_busy_is_waited_for(tmp_path):
    async with opened(tmp_path) as kit:
        kit.busy_ports.add(9000)
        await kit.apply(spec=process(ports=(NamedPort("http", 9000),)))
        await kit.settle(3)
        assert (kit.status().state, kit.status().failure) == (RunState.PENDING, FailureReason.NETWORK_ERROR)
        assert "port 'http' 9000 is in use on this machine" in kit.status().message
        kit.busy_ports.clear()
        await kit.settle(20)
        assert kit.status().state is RunState.RUNNING


async def test_a_run_is_told_who_it_is(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply(revision="r7", generation=3, request=Resources(memory_mb=500, slots=2))
        await kit.settle()
        (alive,) = kit.machine.alive("w")
        request = kit.machine.started_with[alive.run_id]
        assert request.limits == Resources(memory_mb=500, slots=2)
        assert request.identity == {
            "SHOAL_NODE_ID": "n1",
            "SHOAL_HOST_ID": "",
            "SHOAL_NODE_ADDRESS": "",
            "SHOAL_PYTHON": sys.executable,
            "SHOAL_CONTROL": "127.0.0.1:8085",
            "SHOAL_WORKLOAD_ID": "w",
            "SHOAL_RUN_ID": alive.run_id,
            "SHOAL_REVISION_ID": "r7",
            "SHOAL_GENERATION": "3",
            "SHOAL_SLOTS": "2",
            "SHOAL_WORKERS": "4",
            "SHOAL_MEMORY_MB": "2048",
        }


# ---------------------------------------------------------------------------------------------------------
# At most one


def owned_by(kit: Kit, node_id: str, generation: int = 1, *, wanted: bool = True) -> None:
    async def answer(_workload_id):
        return Ownership(node_id, generation, wanted)

    kit.ownership = answer


async def test_without_contact_it_is_not_started(tmp_path):
    async with opened(tmp_path) as kit:
        owned_by(kit, "n1")
        await kit.apply(at_most_one=True)
        await kit.settle(100)
        assert (kit.status().state, kit.machine.history) == (RunState.PENDING, [])
        kit.contact.renew(sent_at=kit.clock.monotonic() - 4, lease=30)
        await kit.settle()
        (alive,) = kit.machine.alive("w")
        assert kit.machine.started_with[alive.run_id].deadline == pytest.approx(kit.contact.ends_at())


async def test_with_contact_but_owned_elsewhere_it_is_not_started(tmp_path):
    async with opened(tmp_path) as kit:
        owned_by(kit, "n2", 2)
        await kit.apply(at_most_one=True)
        kit.contact.renew(sent_at=kit.clock.monotonic(), lease=300)
        await kit.settle(20)
        assert kit.status().message == "held: the control plane says generation 2 is node n2's"
        owned_by(kit, "n1", 1, wanted=False)
        await kit.settle(20)
        assert not kit.machine.history
        owned_by(kit, "n1", 1)
        await kit.settle(20)
        assert kit.status().state is RunState.RUNNING


async def test_its_deadline_is_moved_on_and_ends_it_when_it_is_not(tmp_path):
    async with opened(tmp_path) as kit:
        owned_by(kit, "n1")
        await kit.apply("w", at_most_one=True)
        await kit.apply("free")
        for _ in range(5):
            kit.contact.renew(sent_at=kit.clock.monotonic(), lease=10)
            await kit.executor.extend_deadlines(0.0)
            await kit.settle(5)
        assert kit.machine.count("started", "w") == 1
        await kit.settle(20)
        assert (kit.status("w").state, kit.status("free").state) == (RunState.PENDING, RunState.RUNNING)
        assert kit.status("w").message == "stopped: no contact with the control plane"
        assert kit.machine.history[-2].ended_by == "deadline"
        kit.contact.renew(sent_at=kit.clock.monotonic(), lease=10)
        await kit.settle(1)
        assert kit.status("w").state is RunState.RUNNING


async def test_the_agent_stops_it_when_it_counts_the_lease_as_over(tmp_path):
    async with opened(tmp_path) as kit:
        owned_by(kit, "n1")
        await kit.apply("w", at_most_one=True)
        await kit.apply("free")
        kit.contact.renew(sent_at=kit.clock.monotonic(), lease=10)
        await kit.settle()
        kit.executor.lose_contact(kit.contact.allowance())
        owned_by(kit, "n2", 2)
        await kit.settle(1)
        assert not kit.machine.alive("w")
        assert kit.machine.alive("free")


async def test_one_that_may_go_on_alone_for_a_while_is_stopped_after_that(tmp_path):
    async with opened(tmp_path) as kit:
        kit.contact.renew(sent_at=kit.clock.monotonic(), lease=10)
        await kit.apply("w", stop_after=100)
        await kit.settle()
        (alive,) = kit.machine.alive("w")
        assert kit.machine.started_with[alive.run_id].deadline == kit.contact.ends_at(100)
        await kit.settle(50)
        # The lease is over, and that is no reason to stop it, nor not to start it again when it ends by itself.
        kit.executor.lose_contact(kit.contact.silence())
        kit.machine.kill(alive.run_id)
        await kit.settle(5)
        (again,) = kit.machine.alive("w")
        assert kit.machine.started_with[again.run_id].deadline == kit.contact.ends_at(100)
        await kit.settle(34)
        assert kit.machine.alive("w")
        await kit.settle(2)
        assert not kit.machine.alive("w")
        assert kit.machine.history[-2].ended_by == "deadline"
        # Now it may be another's.
        owned_by(kit, "n2", 2)
        kit.contact.renew(sent_at=kit.clock.monotonic(), lease=10)
        await kit.settle(5)
        assert not kit.machine.alive("w")
        owned_by(kit, "n1", 1)
        kit.contact.renew(sent_at=kit.clock.monotonic(), lease=10)
        await kit.settle(8)
        assert kit.machine.alive("w")


async def test_each_run_gets_its_own_time_when_there_is_contact_again(tmp_path):
    async with opened(tmp_path) as kit:
        owned_by(kit, "n1")
        kit.contact.renew(sent_at=kit.clock.monotonic(), lease=10)
        await kit.apply("once", at_most_one=True)
        await kit.apply("brief", stop_after=1)
        await kit.apply("long", stop_after=100)
        await kit.settle(50)
        assert [name for name in ("once", "brief", "long") if kit.machine.alive(name)] == ["long"]
        silence = kit.contact.silence()
        kit.executor.lose_contact(silence)
        kit.contact.renew(sent_at=kit.clock.monotonic(), lease=10)
        await kit.executor.extend_deadlines(silence)
        await kit.settle(85)
        assert kit.machine.alive("long")
        assert kit.machine.count("started", "long") == 1
        await kit.settle(10)
        assert not kit.machine.alive("long")


async def test_after_a_restart_it_is_adopted_but_never_started_from_memory(tmp_path):
    async with opened(tmp_path) as kit:
        owned_by(kit, "n1")
        await kit.apply("w", at_most_one=True)
        kit.contact.renew(sent_at=kit.clock.monotonic(), lease=100)
        await kit.settle(1)
        await kit.restart()
        await kit.settle(1)
        assert kit.status().state is RunState.RUNNING
        await kit.kill()
        await asyncio.sleep(1000)
        assert not kit.machine.alive("w")
        await kit.open()
        await kit.settle(100)
        assert (kit.status().state, kit.machine.alive("w")) == (RunState.PENDING, [])


# ---------------------------------------------------------------------------------------------------------
# Reports


async def test_changes_are_signalled_and_unknown_workloads_are_not_found(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply()
        await kit.settle()
        assert kit.changes > 0
        before = kit.changes
        await kit.settle(1000)
        assert kit.changes == before
        with pytest.raises(NotFoundError, match="not found"):
            kit.status("nobody")
        with pytest.raises(NotFoundError, match="not found"):
            kit.executor.read_logs(WorkloadId("nobody"), LogQuery())


async def test_usage_is_measured_for_what_runs(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply("runs")
        await kit.apply("rests", desired=DesiredState.STOPPED)
        await kit.settle()
        assert set(await kit.executor.usages()) == {"runs"}


async def test_logs_can_be_read(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(output="one\ntwo\n")
        await kit.apply()
        await kit.settle()
        pieces = [piece async for piece in kit.executor.read_logs(WorkloadId("w"), LogQuery(tail_lines=1))]
        assert b"".join(piece.data for piece in pieces) == b"two\n"


async def test_a_caller_who_gives_up_does_not_leave_half_an_order(tmp_path):
    async with opened(tmp_path) as kit:
        call = asyncio.ensure_future(kit.apply(generation=3))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await kit.settle(1)
        assert kit.status().state is RunState.RUNNING
        assert (await kit.apply(generation=3)).skipped


async def test_a_spec_that_cannot_be_read_any_more_fails_alone(tmp_path, caplog):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(run_for=1, exit_code=1)
        await kit.apply("bad")
        await kit.apply("good")
        await kit.kill()
        await kit.database.open()
        await kit.database.write(
            lambda connection: connection.execute("UPDATE intents SET spec = x'ff' WHERE workload_id = 'bad'")
        )
        await kit.database.close()
        await kit.open()
        await kit.settle(30)
        assert (kit.status("bad").state, kit.status("bad").failure) == (RunState.FAILED, FailureReason.INVALID_SPEC)
        assert kit.status("good").restarts > 1
        assert "its stored spec cannot be read" in caplog.text


def test_the_script_may_stand_in_the_spec():
    env = {"SHOAL_FAKE_RUN_FOR": "2.5", "SHOAL_FAKE_EXIT_CODE": "4", "SHOAL_FAKE_NEVER_READY": "true", "PATH": "/bin"}
    assert FakeScript.from_env(env, FakeScript()) == replace(FakeScript(), run_for=2.5, exit_code=4, never_ready=True)
    assert FakeScript.from_env({"PATH": "/bin"}, FakeScript(exit_code=9)).exit_code == 9


# ---------------------------------------------------------------------------------------------------------
# A disk that takes nothing


async def limit_disk(kit: Kit, extra_pages: int | None) -> None:
    """Let the database grow by so many pages only, without those that it keeps free; None: as it likes."""
    await kit.database.read(lambda connection: connection.execute("VACUUM").fetchone())
    pages = await kit.database.read(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    most = 1_000_000 if extra_pages is None else pages + extra_pages
    await kit.database.read(lambda connection: connection.execute(f"PRAGMA max_page_count={most}").fetchone())


async def test_on_a_full_disk_commands_are_refused_and_what_runs_goes_on(tmp_path):
    async with opened(tmp_path) as kit:
        await kit.apply("runs")
        await kit.settle()
        await limit_disk(kit, 0)
        big = process(env={"BIG": "x" * 60_000})
        with pytest.raises(ExhaustedError, match="no room left"):
            await kit.apply("new", big)
        assert not kit.knows("new")
        assert kit.status("runs").state is RunState.RUNNING
        await limit_disk(kit, None)
        await kit.apply("new", big)
        await kit.settle(1)
        assert kit.status("new").state is RunState.RUNNING


async def test_what_cannot_be_recorded_is_not_done_until_it_can(tmp_path, monkeypatch):
    async with opened(tmp_path) as kit:
        await kit.apply()
        await kit.settle()
        real, broken = kit.database.write, True

        async def write(change):
            if broken:
                raise ExhaustedError("no room left")
            return await real(change)

        monkeypatch.setattr(kit.database, "write", write)
        (alive,) = kit.machine.alive("w")
        kit.machine.kill(alive.run_id)
        await kit.settle(60)
        assert kit.machine.count("started", "w") == 1
        assert kit.status().message.endswith("; no room left")
        assert alive.run_id in kit.machine.runs, "an end was forgotten before it was recorded"
        broken = False
        await kit.settle(60)
        assert (kit.status().state, kit.machine.count("started", "w")) == (RunState.RUNNING, 2)
        assert "no room" not in kit.status().message


# ---------------------------------------------------------------------------------------------------------
# Killed at every named point


@pytest.fixture
def armed():
    yield faults.arm
    faults.disarm_all()


@pytest.mark.parametrize(
    "point",
    [
        "agent.intent.before",
        "agent.intent.after",
        "agent.start.before",
        "agent.start.after",
        "agent.stop.before",
        "agent.forget.before",
    ],
)
async def test_killed_at_any_point_the_next_agent_goes_on_from_there(tmp_path, armed, point):
    """The agent hangs where it would be killed; then it is, and another one starts on the same disk."""
    async with opened(tmp_path) as kit:
        reached = asyncio.Event()

        def hang(_name):
            faults.disarm_all()
            reached.set()
            raise asyncio.CancelledError

        armed(point, hang)
        commands = [("apply", 1, "one"), ("apply", 2, "two"), ("delete", 3, ""), ("apply", 4, "three")]
        done = 0
        for verb, generation, program in commands:
            command = (
                kit.apply(spec=process(program), generation=generation)
                if verb == "apply"
                else kit.delete(generation=generation)
            )
            with contextlib.suppress(UnavailableError, asyncio.CancelledError):
                await command
            await kit.settle(1)
            done += 1
            if reached.is_set():
                break
        assert reached.is_set()
        await kit.restart()
        await kit.settle(5)
        for verb, generation, program in commands[done - 1 :]:  # the control plane repeats what got no answer
            with contextlib.suppress(StaleGenerationError):
                if verb == "apply":
                    await kit.apply(spec=process(program), generation=generation)
                else:
                    await kit.delete(generation=generation)
            await kit.settle(5)
        (run,) = kit.machine.alive("w")
        assert kit.machine.started_with[run.run_id].spec.command == ("three",)
        assert (kit.status().state, kit.status().generation) == (RunState.RUNNING, 4)
        assert kit.machine.most_at_once("w") == 1
