"""What may exist only once stops when its node loses contact, whatever its kind."""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.core.clock import SystemClock
from shoal.model.documents import read_document
from shoal.runtimes.container.engine.finding import PodmanService
from tests.e2e.fleet.drill import until, until_status
from tests.services.engine import IMAGE, private_engine
from tests.services.guests import KERNEL_ARGS, find_guests

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PATIENCE = 90.0
LEASE = timedelta(seconds=8)
#: By kind: what its processes, and no others, have in their command lines.
MARKS = {"process": "710001", "container": "710002", "compose": "710003", "vm": "kernel-of-only-vm"}


def bodies(folder: Path) -> dict[str, dict[str, object]]:
    guests = find_guests()
    kernel = folder / MARKS["vm"]
    kernel.symlink_to(guests.kernel)
    sleeps = {kind: ["sleep", mark] for kind, mark in MARKS.items()}
    service = {"image": IMAGE, "command": sleeps["compose"], "init": True}
    return {
        "process": {"command": sleeps["process"]},
        "container": {"image": IMAGE, "pull_policy": "never", "command": sleeps["container"]},
        "compose": {"inline_yaml": json.dumps({"services": {"main": service}})},
        "vm": {
            "memory_mb": 64,
            "kernel": str(kernel),
            "initrd": guests.initrd,
            "kernel_args": KERNEL_ARGS,
            "cloud_init": {"user_data": "#!/bin/sh\nexec sleep 1000\n"},
            "acceleration": "tcg",
        },
    }


def alive() -> set[str]:
    """The kinds with a process that runs."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        found |= {kind for kind, mark in MARKS.items() if mark.encode() in words}
    return found


@pytest.mark.long
async def test_nothing_of_any_kind_outlives_its_contact(tmp_path: Path) -> None:
    """Without a control plane the agent stops it; without an agent the keeper and the guards do."""
    with private_engine() as engine:
        service = PodmanService(engine.folder / "service", clock=SystemClock(), arguments=engine.arguments)
        await (await service.open()).close()
        fleet = LocalFleet(
            tmp_path / "fleet",
            agents=1,
            cpu="4",
            memory="2048MB",
            lease=LEASE,
            heartbeat_interval=timedelta(milliseconds=500),
            stop_workloads_on_exit=False,
            secure=False,
            extra_env={"DOCKER_HOST": f"unix://{engine.folder}/service/podman.sock"},
        )
        try:
            async with fleet, fleet.client() as control:
                (node,) = fleet.names
                for kind, body in bodies(tmp_path).items():
                    document = {"id": f"only-{kind}", "type": kind, "at_most_one": True, kind: body}
                    await control.apply(read_document(document))

                async def all_run() -> bool:
                    for kind in MARKS:
                        await until_status(control, f"only-{kind}", "Running", patience=PATIENCE)
                    return alive() == set(MARKS)

                async def none_runs() -> bool:
                    return not alive()

                await until(all_run, what="all kinds run", patience=PATIENCE)
                await fleet.kill_control()
                await until(none_runs, what="nothing runs without a control plane", patience=PATIENCE)
                await fleet.start_control()
                await until(all_run, what="all kinds run again", patience=PATIENCE)
                await fleet.kill_agent(node)
                await until(none_runs, what="nothing runs without an agent", patience=PATIENCE)
                for path in fleet.base_dir.glob("**/guard[01]"):  # they would wait a minute for more to guard
                    os.kill(int(path.read_text().split()[0]), signal.SIGKILL)
        finally:
            await service.close()
