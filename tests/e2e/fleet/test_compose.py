"""A compose project through a whole fleet: applied, entered, changed in place and deleted, on a real Podman."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.client import ExecCommand, ExecEnd
from shoal.core.clock import SystemClock
from shoal.model.documents import WorkloadDocument
from shoal.model.workloads import ComposeSpec, WorkloadSpec, WorkloadType
from shoal.runtimes.container.finding import PodmanService
from tests.services.engine import IMAGE, private_engine

pytestmark = pytest.mark.e2e

PATIENCE = 90.0
SLEEP = {"image": IMAGE, "command": ["sleep", "1000"], "init": True}


def document(services, revision):
    spec = ComposeSpec(inline_yaml=json.dumps({"services": services}), retain_policy="Delete")
    return WorkloadDocument("shop", WorkloadSpec(WorkloadType.COMPOSE, compose=spec), revision=revision)


async def test_the_life_of_a_project(tmp_path):
    with private_engine() as engine:
        service = PodmanService(engine.folder / "service", clock=SystemClock(), arguments=engine.arguments)
        await (await service.open()).close()
        fleet = LocalFleet(
            tmp_path,
            agents=1,
            lease=timedelta(seconds=20),
            heartbeat_interval=timedelta(seconds=1),
            extra_env={"DOCKER_HOST": f"unix://{engine.folder}/service/podman.sock"},
        )
        try:
            async with fleet, fleet.client() as control:
                await _live(control, engine)
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

    await control.apply(document({"db": SLEEP, "web": SLEEP}, "v1"))
    await control.wait_for("shop", has(["db", "web"]), timeout=PATIENCE)
    before = engine.podman("ps", "--format", "{{.Names}} {{.ID}}").split("\n")
    command = ExecCommand(("sh", "-c", "echo $SHOAL_WORKLOAD_ID; exit 5"), service="web")
    answers = [each async for each in control.exec("shop", command)]
    assert b"".join(each.data for each in answers[:-1]) == b"shop\n"
    assert answers[-1] == ExecEnd(code=5)
    changed = {"db": SLEEP, "web": {**SLEEP, "command": ["sleep", "2000"]}, "cache": SLEEP}
    await control.apply(document(changed, "v2"))
    await control.wait_for("shop", has(["db", "web", "cache"]), timeout=PATIENCE)
    after = engine.podman("ps", "--format", "{{.Names}} {{.ID}}").split("\n")
    kept = {line for line in before if "_db_" in line}
    assert kept < set(after)
    await control.delete("shop")
    await control.wait_for("shop", lambda view: view is None, timeout=PATIENCE)
    async with asyncio.timeout(PATIENCE):
        while engine.containers():
            await asyncio.sleep(0.1)
