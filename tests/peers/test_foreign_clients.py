"""Our control plane with clients that know only the published contract: a smoke client and an end-to-end runner."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.peers.contract import CONTROL_RPCS, agent, control
from tests.peers.foreign import Behavior, compose, container, until, vm

pytestmark = pytest.mark.integration

#: What the end-to-end runner reads as "not yet, try again".
RETRY_WORDS = ("no suitable node", "cannot place workload")


async def test_a_smoke_client_can_make_every_call_once(stage):
    """Each call is a line of the smoke client; what it prints is checked here."""
    called = set()

    async def call(name, **fields):
        called.add(name)
        return await stage.client.call(name, **fields)

    await stage.agent("n1")
    capabilities = control.NodeCapabilities(cpu_total_millicores=1000, memory_total_mb=512)
    registered = await call("RegisterNode", node_id="smoke", capabilities=capabilities, grpc_endpoint="127.0.0.1:9")
    assert registered.accepted
    assert (await call("Heartbeat", node_id="smoke", usage=control.NodeUsage())).acknowledged
    spec = container()
    applied = await call("ApplyWorkload", workload_id="w", spec=spec, revision_id="rev-1", desired_state="Running")
    assert (applied.success, applied.error_message, applied.failure_reason) == (True, "", 0)
    nodes = (await call("ListNodes")).nodes
    assert sorted(node.node_id for node in nodes) == ["n1", "smoke"]
    assert [node.node_id for node in (await stage.client.call("ListNodes", status="NotReady")).nodes] == []
    assert (await call("GetNode", node_id="n1")).node.grpc_endpoint
    assert [each.workload_id for each in (await call("ListWorkloads")).workloads] == ["w"]
    view = (await call("GetWorkload", workload_id="w")).workload
    assert (view.workload_id, view.type, view.desired_state, view.revision_id) == ("w", "container", "Running", "rev-1")
    summary = await call("GetClusterSummary")
    assert (summary.total_nodes, summary.total_workloads) == (2, 1)
    assert summary.HasField("generated_at")
    assert (await call("RetryWorkload", workload_id="w")).accepted
    suggestion = control.AutomationSuggestion(
        suggestion_id="s", target_workload="w", action_type=control.SET_DESIRED_STATE, desired_state="Stopped"
    )
    decided = await call("SubmitAutomationSuggestion", suggestion=suggestion)
    assert (decided.accepted, decided.decision) == (True, "accepted")
    scaled = control.AutomationSuggestion(target_workload="w", action_type=control.SCALE_REPLICAS, desired_replicas=3)
    assert not (await call("SubmitAutomationSuggestion", suggestion=scaled)).accepted
    assert (await call("DeleteWorkload", workload_id="w")).success
    assert called == set(CONTROL_RPCS) - {"ControlStream"}


async def test_what_is_wrong_is_told_where_such_clients_look(stage):
    bad = await stage.client.apply("w", control.WorkloadSpec(type="container"))
    assert (bad.success, bad.failure_reason) == (False, control.INVALID_SPEC)
    assert "container" in bad.error_message
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stage.client.call("GetWorkload", workload_id="nobody")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "not found" in caught.value.details()
    missing = await stage.client.delete("nobody")
    assert not missing.success
    assert "not found" in missing.error_message
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stage.client.call("RegisterNode", node_id="")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stage.client.call("RegisterNode", node_id="x", grpc_endpoint="no port")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    refused = await stage.client.call("RegisterNode", node_id="x", grpc_endpoint="127.0.0.1:1")
    assert not refused.accepted
    assert refused.reason


@pytest.mark.parametrize(
    ("desired", "state"), [("Stopped", "Stopped"), ("stopped", "Stopped"), ("Running", "Running"), ("", "Running")]
)
async def test_apply_without_a_spec_changes_the_desired_state_alone(stage, desired, state):
    """This is what `persysctl workload stop`, `start` and `restart` send."""
    foreign = await stage.agent("n1")
    await stage.client.apply("web", container(), revision="r1")
    await stage.client.wait_status("web", "Running")
    answer = await stage.client.call("ApplyWorkload", workload_id="web", desired_state=desired)
    assert (answer.success, answer.error_message, answer.failure_reason) == (True, "", 0)
    view = await stage.client.wait_status("web", state)
    assert (view.desired_state, view.revision_id) == (state, "r1")
    await stage.client.call("ApplyWorkload", workload_id="web", desired_state="Running")
    await stage.client.wait_status("web", "Running")
    assert foreign.runs["web"].request.spec.container.image == "nginx:latest"


async def test_apply_without_a_spec_for_an_unknown_workload_is_refused_in_the_answer(stage):
    answer = await stage.client.call("ApplyWorkload", workload_id="nobody", desired_state="Stopped")
    assert (answer.success, answer.failure_reason) == (False, control.RUNTIME_ERROR)
    assert "not found" in answer.error_message


async def test_retry_of_an_unknown_workload_is_not_accepted(stage):
    assert not (await stage.client.call("RetryWorkload", workload_id="nobody")).accepted
    assert not (await stage.client.call("RetryWorkload", workload_id="no such/name")).accepted


async def test_retry_of_a_stopped_workload_is_not_accepted(stage):
    await stage.client.apply("web", container(), desired="Stopped")
    assert not (await stage.client.call("RetryWorkload", workload_id="web")).accepted


@pytest.mark.parametrize("target", ["", "no such/name", "nobody"])
@pytest.mark.parametrize("action", ["SET_DESIRED_STATE", "RETRY_WORKLOAD", "DELETE_WORKLOAD", "SCALE_REPLICAS"])
async def test_a_suggestion_for_a_target_that_cannot_be_is_rejected_in_the_answer(stage, target, action):
    suggestion = control.AutomationSuggestion(target_workload=target, action_type=getattr(control, action))
    decided = await stage.client.call("SubmitAutomationSuggestion", suggestion=suggestion)
    assert (decided.accepted, decided.decision, decided.applied_action) == (False, "rejected", "")
    assert decided.reason
    assert decided.HasField("decided_at")


def capabilities(**changes):
    return control.NodeCapabilities(**{"cpu_total_millicores": 1000, "memory_total_mb": 512, **changes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cpu_total_millicores": 0}, "cpu_total_millicores"),
        ({"cpu_total_millicores": -1}, "cpu_total_millicores"),
        ({"memory_total_mb": 0}, "memory_total_mb"),
        ({"memory_total_mb": -5}, "memory_total_mb"),
        ({"storage_pools": [control.StoragePool(name="root", total_gb=-1)]}, "storage_pools"),
        ({"supported_workload_types": ["container", "unikernel"]}, "supported_workload_types"),
    ],
)
async def test_a_registration_that_cannot_be_used_is_refused_in_the_answer(stage, changes, field):
    answer = await stage.client.call(
        "RegisterNode", node_id="n1", capabilities=capabilities(**changes), grpc_endpoint="127.0.0.1:9"
    )
    assert not answer.accepted
    assert field in answer.reason
    assert (await stage.client.call("ListNodes")).nodes == []


async def test_other_names_of_workload_types_are_known(stage):
    names = ["docker-container", " Container", "docker-compose", "git-compose", "VM", ""]
    answer = await stage.client.call(
        "RegisterNode",
        node_id="n1",
        capabilities=capabilities(supported_workload_types=names),
        grpc_endpoint="127.0.0.1:9",
    )
    assert answer.accepted, answer.reason
    assert (await stage.client.call("GetNode", node_id="n1")).node.supported_workload_types == [
        "container",
        "compose",
        "vm",
    ]


@pytest.mark.parametrize(
    ("name", "spec"), [("docker-container", container), ("Container", container), ("docker-compose", compose)]
)
async def test_a_spec_may_use_another_name_of_its_type(stage, name, spec):
    await stage.agent("n1")
    message = spec()
    message.type = name
    assert (await stage.client.apply("web", message)).success
    assert (await stage.client.wait_status("web", "Running")).type == spec.__name__


@pytest.mark.parametrize("name", ["ApplyWorkload", "DeleteWorkload", "RetryWorkload", "GetWorkload"])
async def test_a_call_without_a_workload_id_is_an_invalid_argument(stage, name):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stage.client.call(name)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "workload_id" in caught.value.details()


async def test_active_is_another_name_of_ready_when_nodes_are_filtered(stage):
    await stage.agent("n1")
    assert [node.node_id for node in (await stage.client.call("ListNodes", status="Active")).nodes] == ["n1"]


@pytest.mark.parametrize("status", ["Scheduled", "Updating", "RetryPending", "Deleting", "Deleted", "Completed"])
async def test_every_state_that_the_contract_names_can_be_filtered_by(stage, status):
    assert (await stage.client.call("ListWorkloads", status=status)).workloads == []


@pytest.mark.parametrize("spec", [container, compose, vm], ids=["container", "compose", "vm"])
async def test_an_end_to_end_run(stage, spec):
    """Apply before there is a node, poll until it runs, update, delete, and read that it is not found."""
    name = f"e2e-{spec.__name__}"
    answer = await stage.client.apply(name, spec(), revision="rev-1")
    if answer.success:
        assert (await stage.client.view(name)).status.lower() == "pending"
    else:
        assert any(words in answer.error_message for words in RETRY_WORDS)

    async def explained():
        message = (await stage.client.view(name)).reason.message
        return any(words in message for words in RETRY_WORDS)

    await until(explained, "the reason in words that the runner knows")
    foreign = await stage.agent("n1", behavior=Behavior(ghosts=True))
    view = await stage.client.wait_status(name, "Running")
    assert view.assigned_node_id == "n1"
    (command,) = foreign.calls_of("ApplyWorkload", name)
    assert command.spec.WhichOneof("spec" if "spec" in command.spec.DESCRIPTOR.oneofs_by_name else "workload") == (
        spec.__name__
    )
    assert command.type == getattr(agent, f"WORKLOAD_TYPE_{spec.__name__.upper()}")
    listed = await stage.client.call("ListWorkloads", node_id="n1", status="Running")
    assert [each.workload_id for each in listed.workloads] == [name]
    assert (await stage.client.delete(name)).success
    assert "not found" in await stage.client.wait_gone(name)


async def test_a_burst_does_not_land_on_one_node(stage):
    agents = [await stage.agent(f"n{number}") for number in range(3)]
    names = [f"w{number}" for number in range(6)]
    await asyncio.gather(*(stage.client.apply(name, container()) for name in names))
    await asyncio.gather(*(stage.client.wait_status(name, "Running") for name in names))
    assert [len(each.runs) for each in agents] == [2, 2, 2]
