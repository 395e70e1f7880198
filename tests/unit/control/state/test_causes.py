"""Every event says what it follows from."""

import time
from datetime import timedelta

import pytest

from shoal.control.state.causes import cause_of_call, cause_of_status
from shoal.core.ids import WorkloadId
from shoal.model.identity import Identity, Role
from shoal.model.workloads import Exit, FailureReason, RunState, RunStatus
from shoal.testing.control import START
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import Call

APPLY = "/persys.control.v1.AgentControl/ApplyWorkload"


DIED = Exit(3)
#: What an agent reports while it waits before it starts a run again.
CRASHED = {"exit": DIED, "failure": FailureReason.RUNTIME_ERROR, "next_restart_at": START + timedelta(seconds=5)}


def status(state: RunState = RunState.RUNNING, **fields) -> RunStatus:
    return RunStatus(WorkloadId("web"), state, **{"generation": 3, **fields})


def test_a_call_is_told_with_its_caller():
    alice = Identity(Role.OPERATOR, "default", "alice")
    assert cause_of_call(Call(APPLY, "peer", identity=alice)) == "ApplyWorkload by operator alice"
    assert cause_of_call(Call(APPLY, "peer")) == "ApplyWorkload by insecure caller"


@pytest.mark.parametrize(
    ("now", "before", "words"),
    [
        (status(), None, "command of generation 3"),
        (status(generation=0), None, "command of the control plane"),
        (status(), status(RunState.PENDING, generation=2), "command of generation 3"),
        (status(pid=7), status(RunState.PENDING), "it was started"),
        (status(pid=7), status(RunState.PENDING, pid=7), "its readiness probe passed"),
        (status(RunState.PENDING, pid=7), status(pid=7), "its readiness probe failed"),
        (status(RunState.PENDING, exit=Exit(code=2)), status(pid=7), "exit 2"),
        (status(RunState.STOPPED, exit=Exit(signal=15)), status(pid=7), "ended by SIGTERM"),
        (status(RunState.STOPPED, exit=Exit(signal=99)), status(pid=7), "ended by signal 99"),
        (status(RunState.FAILED, exit=Exit(out_of_memory=True)), status(), "killed: out of memory"),
        (status(RunState.FAILED, exit=Exit(unknown=True)), status(), "it ended, and how is not known"),
        (status(RunState.FAILED, failure=FailureReason.RUNTIME_ERROR), status(), "RUNTIME_ERROR"),
        (status(RunState.PENDING, deleting=True), status(), "it is being deleted"),
        (status(RunState.UNKNOWN), status(), "its agent cannot tell"),
        (status(RunState.STOPPED), status(), "it was Running"),
        (status(RunState.PENDING), status(RunState.PENDING), "it was starting"),
        (status(RunState.PENDING, pid=8, exit=DIED), status(RunState.PENDING, **CRASHED), "it had crashed"),
    ],
)
def test_a_status_is_told_with_what_the_agent_saw(now, before, words):
    assert cause_of_status(now, before) == words


@pytest.mark.looptime(start=time.monotonic)
async def test_no_event_is_without_a_source_and_a_cause(kit):
    await kit.apply("waits")
    await kit.wait(lambda: "waits" in kit.plane.leadership.pending.rejections)
    nodes = {name: kit.node(name) for name in ("n1", "n2", "n3")}
    for name in nodes:
        await kit.wait_node(name, "Ready")
    await kit.apply("web")
    view = await kit.wait_status("web", "Running")
    call = kit.channel.call
    stopped = pb.SetDesiredStateRequest(workload_id="web", desired_state="Stopped")
    await call(AgentControl.SET_DESIRED_STATE, stopped)
    await kit.wait_status("web", "Stopped")
    await call(AgentControl.SET_DESIRED_STATE, pb.SetDesiredStateRequest(workload_id="web", desired_state="Running"))
    await kit.wait_status("web", "Running")
    await call(AgentControl.CORDON_NODE, pb.CordonNodeRequest(node_id="n3"))
    await call(AgentControl.UNCORDON_NODE, pb.UncordonNodeRequest(node_id="n3"))
    await call(AgentControl.DRAIN_NODE, pb.DrainNodeRequest(node_id=view.assigned_node_id))
    await kit.wait_node(view.assigned_node_id, "Drained")
    member = pb.GroupMember(workload_id="m", spec=(await kit.workload("web")).spec)
    await call(AgentControl.APPLY_GROUP, pb.ApplyGroupRequest(group_id="g", members=[member]))
    await kit.wait_status("m", "Running")
    await call(AgentControl.DELETE_GROUP, pb.DeleteGroupRequest(group_id="g"))
    nodes["n3"].silent = True
    await kit.wait_node("n3", "NotReady")
    await call(AgentControl.MARK_NODE_DEAD, pb.MarkNodeDeadRequest(node_id="n3"))
    await call(AgentControl.REMOVE_NODE, pb.RemoveNodeRequest(node_id="n3"))
    await kit.delete("web")
    await kit.wait(lambda: set(kit.plane.leadership.fleet.workloads) == {"waits"}, seconds=120)
    events = (await call(AgentControl.LIST_EVENTS, pb.ListEventsRequest(limit=1000))).events
    assert [each for each in events if not each.cause or not each.source] == []
    causes = {each.kind: each.cause for each in events}
    assert causes["WorkloadCreated"] == "ApplyWorkload by insecure caller"
    assert causes["NodeRemoved"] == "RemoveNode by insecure caller"
    assert {"WorkloadUnplaceable", "NodeDrained", "NodeNotReady", "GroupCreated", "WorkloadDeleted"} <= causes.keys()
