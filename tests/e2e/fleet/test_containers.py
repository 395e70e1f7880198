"""Containers on a real Podman, through a real control plane and agent."""

from __future__ import annotations

from datetime import timedelta

import pytest
import pytest_asyncio

from shoal.cli.local.fleet import LocalFleet
from shoal.core.clock import SystemClock
from shoal.model.documents import WorkloadDocument
from shoal.model.workloads import (
    ContainerSpec,
    DesiredState,
    ManagedVolume,
    StopPolicy,
    WorkloadSpec,
    WorkloadType,
)
from shoal.runtimes.container.engine.finding import PodmanService
from tests.e2e.fleet.drill import until, until_gone
from tests.services.engine import IMAGE, private_engine

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

SLEEPS = "trap 'exit 0' TERM; echo hello from $WHO; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def engine():
    with private_engine() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory, engine):
    """Two agents on one engine, for all tests of this module."""
    service = PodmanService(engine.folder / "fleet", clock=SystemClock(), arguments=engine.arguments)
    await (await service.open()).close()
    folder = tmp_path_factory.mktemp("containers")
    fleet = LocalFleet(
        folder,
        agents=2,
        lease=timedelta(seconds=20),
        heartbeat_interval=timedelta(milliseconds=500),
        stop_workloads_on_exit=False,
        secure=False,
        extra_env={"DOCKER_HOST": f"unix://{engine.folder}/fleet/podman.sock"},
        agent_args=["--runtimes", "process,container", "--storage-pool", f"fast={folder}:7"],
    )
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.kill()
        await service.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control(fleet):
    async with fleet.client() as client:
        yield client


@pytest.fixture
def notes(fleet):
    """What is in the volumes of workloads with this name, on all nodes."""
    return lambda name: sorted(path.read_text() for path in fleet.base_dir.glob(f"**/{name}/data/note"))


def document(name="web", *, image=IMAGE, who="one", script=SLEEPS, pull_policy="never", volumes=()):
    container = ContainerSpec(
        image=image,
        command=("sh", "-c", script),
        env={"WHO": who},
        stop=StopPolicy(grace=timedelta(seconds=5)),
        pull_policy=pull_policy,
        managed_volumes=volumes,
    )
    return WorkloadDocument(id=name, spec=WorkloadSpec(type=WorkloadType.CONTAINER, container=container))


async def view_when(control, is_so, name="web"):
    """The view of the workload, once it is so."""
    found = []

    async def look():
        found[:] = [await control.get_workload(name)]
        return is_so(found[0])

    try:
        await until(look, what=f"{name} is as it should be")
    except AssertionError as error:
        raise AssertionError(f"{error}; view: {found}") from None
    return found[0]


async def until_it_prints(control, text, name="web"):
    async def holds():
        pieces = [piece.data async for piece in control.logs(name)]
        return text in b"".join(pieces).decode()

    await until(holds, what=f"the output of {name} has {text!r}")


async def test_the_life_of_a_container(fleet, control, engine):
    nodes = await control.list_nodes()
    assert [set(node.supported_workload_types) for node in nodes] == [{"process", "container"}] * 2
    assert [(pool.name, pool.total_gb) for node in nodes for pool in node.storage_pools] == [("fast", 7)] * 2
    await control.apply(document())
    node = (await view_when(control, lambda view: view.status == "Running")).assigned_node_id
    assert engine.containers() == [f"shoal-{node}-web"]
    await until_it_prints(control, "hello from one")

    await control.apply(document(who="three"))
    await view_when(control, lambda view: view.status == "Running" and view.run.ready)
    await until_it_prints(control, "hello from three")

    await control.set_desired_state("web", DesiredState.STOPPED)
    await view_when(control, lambda view: view.status == "Stopped")
    assert engine.containers() == []
    await control.set_desired_state("web", DesiredState.RUNNING)
    await view_when(control, lambda view: view.status == "Running")

    await fleet.kill_agent(node)
    await fleet.start_agent(node)
    await view_when(control, lambda view: view.status == "Running" and view.run is not None)
    assert len(engine.containers()) == 1

    await control.delete("web")
    await until_gone(control, "web")
    assert engine.containers() == []


@pytest.mark.parametrize(
    ("image", "policy", "reason"),
    [("localhost/nothing:1", "never", "IMAGE_NOT_FOUND"), ("127.0.0.1:1/any:1", "", "IMAGE_PULL_FAILED")],
    ids=["missing", "no registry"],
)
async def test_an_image_that_cannot_be_had_is_told_with_its_reason_and_tried_again(
    control, engine, image, policy, reason
):
    await control.apply(document(image=image, pull_policy=policy))
    view = await view_when(control, lambda view: view.reason is not None and view.reason.next_retry_at is not None)
    assert (view.reason.code, view.reason.retryable) == (reason, True)
    assert view.reason.next_retry_at > view.reason.last_transition
    assert image in view.reason.message
    engine.podman("tag", IMAGE, image)
    await view_when(control, lambda view: view.status == "Running")
    await control.delete("web")
    await until_gone(control, "web")


async def test_volumes_survive_updates_and_go_by_their_policy(control, notes):
    policies = {"kept": "Retain", "unsaid": "", "removed": "Delete"}
    script = f"cat /data/note; echo note of $WHO > /data/note; {SLEEPS}"

    def described(name, who):
        volume = ManagedVolume(name="data", mount_path="/data", retain_policy=policies[name])
        return document(name, who=who, script=script, volumes=(volume,))

    for who in ("one", "two"):
        for name in policies:
            await control.apply(described(name, who))
        for name in policies:
            await until_it_prints(control, f"hello from {who}", name)
    for name in policies:
        await until_it_prints(control, "note of one", name)
        await control.delete(name)
    for name in policies:
        await until_gone(control, name)
    kept = ["note of two\n"]
    assert {name: notes(name) for name in policies} == {"kept": kept, "unsaid": kept, "removed": []}


async def test_a_volume_stays_on_its_node_when_its_workload_moves(control, notes):
    volume = ManagedVolume(name="data", mount_path="/data", retain_policy="Delete")
    await control.apply(document("mover", script=f"echo note > /data/note; {SLEEPS}", volumes=(volume,)))
    old = (await view_when(control, lambda view: view.status == "Running", "mover")).assigned_node_id
    await until_it_prints(control, "hello from one", "mover")
    await control.drain_node(old)
    await view_when(
        control,
        lambda view: view.status == "Running" and view.assigned_node_id != old and not view.left_on,
        "mover",
    )
    await until_it_prints(control, "hello from one", "mover")
    assert notes("mover") == ["note\n", "note\n"]
    await control.delete("mover")
    await until_gone(control, "mover")
    assert notes("mover") == ["note\n"], "that of the node it left is nobody's to delete"
    await control.uncordon_node(old)
