"""The integration guide's checklist for an agent, line by line: a real agent process against a scripted control plane.

The control plane here is a script: it answers what the test tells it to and keeps what it was sent. So a line of the
checklist is seen from the outside, as a foreign scheduler would see it.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time

import pytest

from shoal.core.errors import NotFoundError, SessionSupersededError, UnavailableError
from shoal.runtimes.process import read_keeper_pid
from shoal.wire.methods import AgentControl, AgentService, methods_of
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Service
from tests.e2e.fleet.drill import until

pytestmark = pytest.mark.e2e

PATIENCE = 30.0


class ScriptedControl:
    """Answers registrations and heartbeats as told."""

    def __init__(self):
        self.registrations = []
        self.heartbeats = []
        self.refuse = None
        self.accept = True
        self.interval = 0.3
        self.lease = 3.0
        self.sessions = 0

    async def register_node(self, request, _call):
        self.registrations.append(request)
        if not self.accept:
            return control.RegisterNodeResponse(accepted=False, reason="not today")
        self.sessions += 1
        return control.RegisterNodeResponse(
            accepted=True,
            heartbeat_interval_seconds=1,
            heartbeat_interval_ms=round(self.interval * 1000),
            lease_ms=round(self.lease * 1000),
            session=f"session-{self.sessions}",
        )

    async def heartbeat(self, request, _call):
        self.heartbeats.append((time.monotonic(), request))
        if self.refuse is not None:
            raise self.refuse
        return control.HeartbeatResponse(acknowledged=True, lease_ms=round(self.lease * 1000))

    async def get_workload(self, request, _call):
        raise NotFoundError("workload", request.workload_id)

    def status(self, name):
        """What the newest heartbeat says of a workload."""
        for status in self.heartbeats[-1][1].workload_statuses if self.heartbeats else ():
            if status.workload_id == name:
                return status
        return None


class Rig:
    """A scripted control plane and one real agent."""

    def __init__(self, folder):
        self.folder = folder
        self.transport = GrpcTransport()
        self.script = ScriptedControl()
        self.address = "127.0.0.1:0"
        self.server = None
        self.process = None
        self.channel = None

    async def serve(self):
        self.server = await self.transport.serve(self.address, [Service(methods_of(AgentControl), self.script)])
        self.address = self.server.address

    async def start_agent(self):
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shoal", "agent", "--insecure", "--control", self.address, "--node-id", "n1"),
                *("--data-dir", str(self.folder / "data"), "--grpc-port", "0", "--cpu", "2", "--memory", "1024MB"),
                *("--slots", "2", "--label", "zone=a", "--ready-file", str(ready)),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
            )
        await self.until(lambda: self.script.heartbeats, "the first heartbeat")
        self.channel = self.transport.connect(self.script.registrations[-1].grpc_endpoint)

    async def until(self, holds, what):
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, (
                f"waited in vain for {what}: {(self.folder / 'log').read_text()[-3000:]}"
            )
            await asyncio.sleep(0.02)

    async def apply(self, name, *, command=("sleep", "1000"), **fields):
        request = agent.ApplyWorkloadRequest(
            id=name, type=agent.WORKLOAD_TYPE_PROCESS, desired_state=agent.DESIRED_STATE_RUNNING, **fields
        )
        request.spec.process.command.extend(command)
        request.spec.reservation.memory_mb = 64
        request.spec.reservation.slots = 1
        return await self.channel.call(AgentService.APPLY_WORKLOAD, request)

    async def close(self):
        if self.channel is not None:
            await self.channel.close()
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            await self.process.wait()
        keeper = read_keeper_pid(self.folder / "data")
        if keeper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)
        if self.server is not None:
            await self.server.stop(0.0)


@pytest.fixture
async def rig(tmp_path):
    rig = Rig(tmp_path)
    try:
        await rig.serve()
        await rig.start_agent()
        yield rig
    finally:
        await rig.close()
        _kill_leftovers(tmp_path)


def _kill_leftovers(folder):
    from shoal.runtimes.process import find_run_pids

    for pid in find_run_pids(folder / "data"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_registration_carries_everything_the_guide_asks_for(rig):
    request = rig.script.registrations[0]
    assert request.node_id == "n1"
    assert request.capabilities.cpu_total_millicores == 2000
    assert request.capabilities.memory_total_mb == 1024
    assert list(request.capabilities.supported_workload_types) == ["process"]
    assert request.grpc_endpoint.startswith("127.0.0.1:")
    assert request.HasField("timestamp")
    assert request.labels["zone"] == "a"
    assert request.slots == 2
    assert request.host_id


async def test_heartbeats_come_at_the_interval_the_server_gave_and_carry_usage_and_statuses(rig):
    await rig.apply("web")
    await rig.until(lambda: (found := rig.script.status("web")) and found.state == "Running", "a Running status")
    await rig.until(lambda: len(rig.script.heartbeats) >= 6, "some heartbeats")
    heartbeat = rig.script.heartbeats[-1][1]
    assert heartbeat.node_id == "n1"
    assert heartbeat.usage.memory_allocated_mb == 64
    assert heartbeat.usage.disk_used_gb > 0
    assert heartbeat.usage.slots_used == 1
    assert heartbeat.HasField("timestamp")
    sequences = [request.sequence for _at, request in rig.script.heartbeats]
    assert sequences == sorted(set(sequences))
    assert {request.session for _at, request in rig.script.heartbeats} == {"session-1"}


async def test_state_names_are_the_deterministic_ones_and_failures_have_a_reason(rig):
    await rig.apply("broken", command=("/no/such/program",))
    await rig.until(lambda: (found := rig.script.status("broken")) and found.state == "Failed", "a Failed status")
    assert rig.script.status("broken").failure_reason == control.INVALID_SPEC
    request = agent.ApplyWorkloadRequest(id="once", type=agent.WORKLOAD_TYPE_PROCESS)
    request.spec.process.command.extend(("sh", "-c", "exit 3"))
    request.spec.process.restart.policy = "no"
    await rig.channel.call(AgentService.APPLY_WORKLOAD, request)
    await rig.until(lambda: (found := rig.script.status("once")) and found.state == "Failed", "a Failed status")
    status = rig.script.status("once")
    assert status.failure_reason == control.RUNTIME_ERROR
    assert status.run.exit.code == 3


async def test_it_serves_the_whole_agent_service_for_a_foreign_scheduler(rig):
    with pytest.raises(NotFoundError, match="not found"):
        await rig.channel.call(AgentService.GET_WORKLOAD_STATUS, agent.GetWorkloadStatusRequest(id="web"))
    first = await rig.apply("web", revision_id="r1")
    assert first.applied
    assert first.status.actual_state == agent.ACTUAL_STATE_PENDING
    await rig.until(lambda: (found := rig.script.status("web")) and found.state == "Running", "a Running status")
    again = await rig.apply("web", revision_id="r1")
    assert again.skipped
    listed = await rig.channel.call(AgentService.LIST_WORKLOADS, agent.ListWorkloadsRequest())
    assert [each.id for each in listed.workloads] == ["web"]
    health = await rig.channel.call(AgentService.HEALTH_CHECK, agent.HealthCheckRequest())
    assert health.healthy
    assert health.runtime_status["process"] == "healthy"
    deleted = await rig.channel.call(AgentService.DELETE_WORKLOAD, agent.DeleteWorkloadRequest(id="web"))
    assert deleted.success
    done = agent.ListActionsRequest(workload_id="web", action_type="delete_workload", newest_first=True)

    async def completed():
        answer = await rig.channel.call(AgentService.LIST_ACTIONS, done)
        return [action.status for action in answer.actions] == ["completed"]

    await until(completed, what="the delete is completed")
    await rig.until(lambda: rig.script.status("web") is None, "a heartbeat without it")


async def test_an_unaccepted_registration_is_tried_again(rig):
    rig.script.accept = False
    rig.script.refuse = NotFoundError("node", "n1")
    await rig.until(lambda: len(rig.script.registrations) >= 3, "more registrations")
    rig.script.accept, rig.script.refuse = True, None
    heartbeats = len(rig.script.heartbeats)
    await rig.until(lambda: len(rig.script.heartbeats) > heartbeats + 2, "heartbeats again")


async def test_it_reconnects_and_what_runs_goes_on(rig):
    await rig.apply("web")
    await rig.until(lambda: (found := rig.script.status("web")) and found.state == "Running", "a Running status")
    pid = rig.script.status("web").run.pid
    await rig.server.stop(0.0)
    await rig.until(lambda: "no contact with the control plane" in (rig.folder / "log").read_text(), "the outage")
    await rig.serve()
    heartbeats = len(rig.script.heartbeats)
    await rig.until(lambda: len(rig.script.heartbeats) > heartbeats, "heartbeats after the outage")
    assert rig.script.status("web").run.pid == pid


async def test_lost_heartbeats_do_not_matter(rig):
    rig.script.refuse = UnavailableError("lost on the way")
    heartbeats = len(rig.script.heartbeats)
    await rig.until(lambda: len(rig.script.heartbeats) > heartbeats + 1, "tries")
    rig.script.refuse = None
    heartbeats = len(rig.script.heartbeats)
    await rig.until(lambda: len(rig.script.heartbeats) > heartbeats + 2, "heartbeats again")
    assert rig.process.returncode is None


async def test_a_lease_that_ran_out_leads_to_a_new_registration(rig):
    before = len(rig.script.registrations)
    rig.script.refuse = UnavailableError("no contact")
    await rig.until(lambda: len(rig.script.registrations) > before, "a registration after the lease ran out")
    rig.script.refuse = None
    await rig.until(lambda: rig.script.heartbeats[-1][1].session == f"session-{rig.script.sessions}", "a new session")


async def test_a_superseded_session_ends(rig):
    rig.script.refuse = SessionSupersededError("n1")
    await rig.until(lambda: "superseded" in (rig.folder / "log").read_text(), "the loser says so")
    rig.script.refuse = None
    before = len(rig.script.heartbeats), len(rig.script.registrations)
    # A change is sent at once, and an agent that is told to stop says how everything stands: this one does neither.
    await rig.apply("web")
    request = agent.GetWorkloadStatusRequest(id="web")

    async def runs():
        answer = await rig.channel.call(AgentService.GET_WORKLOAD_STATUS, request)
        return answer.status.actual_state == agent.ACTUAL_STATE_RUNNING

    await until(runs, what="it still works for its node")
    assert rig.process.returncode is None
    rig.process.terminate()
    await rig.process.wait()
    assert (len(rig.script.heartbeats), len(rig.script.registrations)) == before
