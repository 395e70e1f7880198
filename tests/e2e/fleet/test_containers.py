"""Containers on a real Podman, through a real control plane and agent."""

from __future__ import annotations

from datetime import timedelta

import pytest

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
from shoal.runtimes.container.finding import PodmanService
from tests.e2e.fleet.drill import until, until_gone
from tests.services.engine import IMAGE, private_engine

pytestmark = pytest.mark.e2e

SLEEPS = "trap 'exit 0' TERM; echo hello from $WHO; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def engine():
    with private_engine() as made:
        yield made


@pytest.fixture
async def service(engine):
    service = PodmanService(engine.folder / "fleet", clock=SystemClock(), arguments=engine.arguments)
    api = await service.open()
    await api.close()
    yield service
    await service.close()


@pytest.fixture
def agents():
    """How many agents there are; a test with more of them overrides it."""
    return 1


@pytest.fixture
async def fleet(tmp_path, engine, service, agents):
    fleet = LocalFleet(
        tmp_path,
        agents=agents,
        lease=timedelta(seconds=20),
        heartbeat_interval=timedelta(milliseconds=500),
        stop_workloads_on_exit=False,
        secure=False,
        extra_env={"DOCKER_HOST": f"unix://{engine.folder}/fleet/podman.sock"},
        agent_args=["--runtimes", "process,container", "--storage-pool", f"fast={tmp_path}:7"],
    )
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.kill()


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


async def test_the_life_of_a_container(fleet, engine):
    async with fleet.client() as control:
        (node,) = await control.list_nodes()
        assert set(node.supported_workload_types) == {"process", "container"}
        assert [(pool.name, pool.total_gb) for pool in node.storage_pools] == [("fast", 7)]
        await control.apply(document())
        await view_when(control, lambda view: view.status == "Running")
        assert engine.containers() == [f"shoal-{node.node_id}-web"]
        await until_it_prints(control, "hello from one")

        await control.apply(document(who="three"))
        await view_when(control, lambda view: view.status == "Running" and view.run.ready)
        await until_it_prints(control, "hello from three")

        await control.set_desired_state("web", DesiredState.STOPPED)
        await view_when(control, lambda view: view.status == "Stopped")
        assert engine.containers() == []
        await control.set_desired_state("web", DesiredState.RUNNING)
        await view_when(control, lambda view: view.status == "Running")

        await fleet.kill_agent("node-1")
        await fleet.start_agent("node-1")
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
    fleet, engine, image, policy, reason
):
    async with fleet.client() as control:
        await control.apply(document(image=image, pull_policy=policy))
        view = await view_when(control, lambda view: view.reason is not None and view.reason.next_retry_at is not None)
        assert (view.reason.code, view.reason.retryable) == (reason, True)
        assert view.reason.next_retry_at > view.reason.last_transition
        assert image in view.reason.message
        engine.podman("tag", IMAGE, image)
        await view_when(control, lambda view: view.status == "Running")
        await control.delete("web")
        await until_gone(control, "web")


async def test_volumes_survive_updates_and_go_by_their_policy(fleet, tmp_path):
    policies = {"kept": "Retain", "unsaid": "", "removed": "Delete"}
    script = f"cat /data/note; echo note of $WHO > /data/note; {SLEEPS}"

    def described(name, who):
        volume = ManagedVolume(name="data", mount_path="/data", retain_policy=policies[name])
        return document(name, who=who, script=script, volumes=(volume,))

    async with fleet.client() as control:
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
        notes = {path.parent.parent.name: path.read_text() for path in tmp_path.glob("**/data/note")}
        assert notes == dict.fromkeys(("kept", "unsaid"), "note of two\n")


@pytest.mark.parametrize("agents", [2])
async def test_a_volume_stays_on_its_node_when_its_workload_moves(fleet, tmp_path):
    volume = ManagedVolume(name="data", mount_path="/data", retain_policy="Delete")

    def notes():
        return sorted(path.read_text() for path in tmp_path.glob("**/web/data/note"))

    async with fleet.client() as control:
        await control.apply(document(script=f"echo note > /data/note; {SLEEPS}", volumes=(volume,)))
        old = (await view_when(control, lambda view: view.status == "Running")).assigned_node_id
        await until_it_prints(control, "hello from one")
        await control.drain_node(old)
        await view_when(
            control,
            lambda view: view.status == "Running" and view.assigned_node_id != old and not view.left_on,
        )
        await until_it_prints(control, "hello from one")
        assert notes() == ["note\n", "note\n"]
        await control.delete("web")
        await until_gone(control, "web")
        assert notes() == ["note\n"], "that of the node it left is nobody's to delete"
