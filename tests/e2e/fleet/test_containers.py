"""Containers on a real Podman, through a real control plane and agent."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.core.clock import SystemClock
from shoal.model.documents import WorkloadDocument
from shoal.model.workloads import ContainerSpec, DesiredState, StopPolicy, WorkloadSpec, WorkloadType
from shoal.runtimes.container.finding import PodmanService
from tests.e2e.fleet.drill import until
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
async def fleet(tmp_path, engine, service):
    fleet = LocalFleet(
        tmp_path,
        agents=1,
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


def document(image=IMAGE, who="one"):
    container = ContainerSpec(
        image=image,
        command=("sh", "-c", SLEEPS),
        env={"WHO": who},
        stop=StopPolicy(grace=timedelta(seconds=5)),
        pull_policy="never",
    )
    return WorkloadDocument(id="web", spec=WorkloadSpec(type=WorkloadType.CONTAINER, container=container))


async def view_when(control, is_so):
    """The view of the workload, once it is so."""
    found = []

    async def look():
        found[:] = [await control.get_workload("web")]
        return is_so(found[0])

    await until(look, what="the workload is as it should be")
    return found[0]


async def until_it_prints(control, text):
    async def holds():
        pieces = [piece.data async for piece in control.logs("web")]
        return text in b"".join(pieces).decode()

    await until(holds, what=f"its output has {text!r}")


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

        async def is_gone():
            return not await control.list_workloads()

        await until(is_gone, what="the workload is gone")
        assert engine.containers() == []
