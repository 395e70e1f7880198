"""A compose project through a whole fleet: applied, entered, changed in place and deleted, on a real Podman."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.client import ExecCommand, ExecEnd
from shoal.core.clock import SystemClock
from shoal.model.documents import WorkloadDocument
from shoal.model.workloads import ComposeSpec, WorkloadSpec, WorkloadType
from shoal.runtimes.container.engine.finding import PodmanService
from tests.e2e.fleet.drill import until_dead
from tests.services.engine import IMAGE, private_engine

pytestmark = pytest.mark.e2e

PATIENCE = 90.0
SLEEP = {"image": IMAGE, "command": ["sleep", "1000"], "init": True}


#: Its data is in a volume.
DB = {**SLEEP, "volumes": ["data:/data"]}


def document(services, revision, *, name="shop", policy="Delete"):
    text = json.dumps({"services": services, "volumes": {"data": None}})
    spec = ComposeSpec(inline_yaml=text, retain_policy=policy)
    return WorkloadDocument(name, WorkloadSpec(WorkloadType.COMPOSE, compose=spec), revision=revision)


async def test_the_life_of_a_project(tmp_path):
    with private_engine() as engine:
        service = PodmanService(engine.folder / "service", clock=SystemClock(), arguments=engine.arguments)
        await (await service.open()).close()
        fleet = LocalFleet(
            tmp_path,
            agents=1,
            lease=timedelta(seconds=20),
            stop_workloads_on_exit=False,
            heartbeat_interval=timedelta(seconds=1),
            extra_env={"DOCKER_HOST": f"unix://{engine.folder}/service/podman.sock"},
        )
        try:
            async with fleet, fleet.client() as control:
                await _live(control, engine)
                await _go(fleet, control, engine)
        finally:
            await service.close()


async def _live(control, engine):
    def has(services):
        return lambda view: (
            view is not None
            and view.status == "Running"
            and view.run is not None
            and dict(view.run.services) == dict.fromkeys(services, "running")
        )

    await control.apply(document({"db": DB, "web": SLEEP}, "v1"))
    await control.wait_for("shop", has(["db", "web"]), timeout=PATIENCE)
    before = engine.podman("ps", "--format", "{{.Names}} {{.ID}}").split("\n")
    command = ExecCommand(("sh", "-c", "echo $SHOAL_WORKLOAD_ID; exit 5"), service="web")
    answers = [each async for each in control.exec("shop", command)]
    assert b"".join(each.data for each in answers[:-1]) == b"shop\n"
    assert answers[-1] == ExecEnd(code=5)
    changed = {"db": DB, "web": {**SLEEP, "command": ["sleep", "2000"]}, "cache": SLEEP}
    await control.apply(document(changed, "v2"))
    await control.wait_for("shop", has(["db", "web", "cache"]), timeout=PATIENCE)
    after = engine.podman("ps", "--format", "{{.Names}} {{.ID}}").split("\n")
    kept = {line for line in before if "_db_" in line}
    assert kept < set(after)


async def _go(fleet, control, engine):
    """Deleted by an agent that is killed meanwhile: the volumes go by the policies."""
    await control.apply(document({"db": DB}, "v1", name="kept", policy="Retain"))
    await control.wait_for("kept", lambda view: view is not None and view.status == "Running", timeout=PATIENCE)
    (node,) = fleet.names
    await fleet.kill_agent(node)
    await fleet.start_agent(node, env={"SHOAL_FAULTS": "compose.delete.volumes=kill"})
    await control.delete("kept")
    await control.wait_for("kept", lambda view: view is None, timeout=PATIENCE)
    await control.delete("shop")
    await until_dead(fleet, node)
    assert engine.containers() == []
    volumes = engine.podman("volume", "ls", "--format", "{{.Name}}").split()
    assert sorted(name.rpartition("-")[2] for name in volumes) == ["kept_data", "shop_data"]
    await fleet.start_agent(node)
    await control.wait_for("shop", lambda view: view is None, timeout=PATIENCE)
    volumes = engine.podman("volume", "ls", "--format", "{{.Name}}").split()
    assert [name.rpartition("-")[2] for name in volumes] == ["kept_data"]
