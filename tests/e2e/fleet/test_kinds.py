"""What every kind of workload can do, through a control plane and the stream of one agent, on real engines.

One fleet serves all: processes, containers and compose projects on a Podman, and VMs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import aclosing
from datetime import timedelta
from types import SimpleNamespace

import pytest
import pytest_asyncio

from shoal.cli.local.fleet import LocalFleet
from shoal.client import ExecCommand, ExecEnd, WindowSize
from shoal.core.clock import SystemClock
from shoal.core.errors import UnsupportedError
from shoal.model.documents import read_document
from shoal.model.workloads import DesiredState
from shoal.runtimes.container.engine.finding import PodmanService
from tests.e2e.fleet.drill import until, until_gone, until_status
from tests.services.engine import IMAGE, private_engine
from tests.services.guests import KERNEL_ARGS, find_guests

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

PATIENCE = 120.0
WITH_FILES = ("process", "container", "compose")
KINDS = (*WITH_FILES, "vm")
#: Says that it is up, and what is in its file whenever that changes.
SCRIPT = """echo up; while :; do now=$(cat {path} 2>/dev/null); test "$now" = "$last" || echo "has $now"; last=$now
sleep 0.1; done"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(tmp_path_factory):
    """A fleet of one agent without a port, its engine, and a client."""
    find_guests()
    with private_engine() as engine:
        service = PodmanService(engine.folder / "service", clock=SystemClock(), arguments=engine.arguments)
        await (await service.open()).close()
        fleet = LocalFleet(
            tmp_path_factory.mktemp("kinds"),
            agents=1,
            cpu="4",
            memory="2048MB",
            lease=timedelta(seconds=30),
            heartbeat_interval=timedelta(milliseconds=500),
            extra_env={"DOCKER_HOST": f"unix://{engine.folder}/service/podman.sock"},
            agent_args=["--no-listen", "--storage-pool", f"fast={tmp_path_factory.mktemp('pool')}:7"],
        )
        try:
            async with fleet, fleet.client() as control:
                yield SimpleNamespace(control=control, engine=engine, service=service)
                for name in [view.workload_id for view in await control.list_workloads()]:
                    await control.delete(name)
                    await until_gone(control, name, patience=PATIENCE)
        finally:
            await service.close()


def document(kind, *, secret=""):
    """A workload of a kind that runs the script; its name is the kind."""
    path = {"process": "conf/word", "container": "/conf/word", "compose": "conf/word"}.get(kind, "/nowhere")
    files = {"files": [{"path": path, "secret": secret}]} if secret else {}
    script = SCRIPT.format(path=path if kind == "process" else "/conf/word")
    bodies = {
        "process": lambda: {"command": ["sh", "-c", script], **files},
        "container": lambda: {"image": IMAGE, "command": ["sh", "-c", script], "init": True, **files},
        "compose": lambda: {"inline_yaml": json.dumps({"services": {"main": service_of(script)}}), **files},
        "vm": lambda: {
            "memory_mb": 128,
            "kernel": find_guests().kernel,
            "initrd": find_guests().initrd,
            "kernel_args": KERNEL_ARGS,
            "acceleration": "tcg",
            "stop": {"grace": "1s"},
            "cloud_init": {"user_data": "#!/bin/sh\necho up; exec sleep 1000\n"},
        },
    }
    resources = {"cpu_millicores": 200, "memory_mb": 192 if kind == "vm" else 32}
    return read_document({"id": kind, "type": kind, "resources": resources, kind: bodies[kind]()})


def service_of(script):
    escaped = script.replace("$", "$$")
    return {"image": IMAGE, "command": ["sh", "-c", escaped], "init": True, "volumes": ["./conf:/conf:ro"]}


async def running(control, kind, **fields):
    """Apply a workload and return its view once this revision of it runs."""
    await control.apply(document(kind, **fields))
    views = []

    async def holds():
        views[:] = [await control.get_workload(kind)]
        return views[0].status == "Running" and views[0].observed_revision_id == views[0].revision_id

    await until(holds, what=f"{kind} runs", patience=PATIENCE)
    return views[0]


async def until_printed(control, kind, text, times=1):
    """Follow the output until a text was seen so many times."""
    seen = b""
    async with asyncio.timeout(PATIENCE), aclosing(control.logs(kind, follow=True)) as pieces:
        async for piece in pieces:
            seen += piece.data
            if seen.count(text) >= times:
                return


async def until_offered(control, *expected):
    async def holds():
        (node,) = await control.list_nodes()
        return set(node.supported_workload_types) == set(expected)

    await until(holds, what=f"the node offers {', '.join(expected)}", patience=PATIENCE)


async def test_the_agent_offers_every_kind(ground):
    await until_offered(ground.control, *KINDS)


@pytest.mark.parametrize("kind", KINDS)
async def test_output_is_followed_over_a_stop_and_a_start(ground, kind):
    control = ground.control
    await running(control, kind)
    await until_printed(control, kind, b"up\n")
    await control.set_desired_state(kind, DesiredState.STOPPED)
    await until_status(control, kind, "Stopped", patience=PATIENCE)
    following = asyncio.ensure_future(until_printed(control, kind, b"up\n", times=2))
    await control.set_desired_state(kind, DesiredState.RUNNING)
    await following
    await until_status(control, kind, "Running", patience=PATIENCE)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_command_runs_in_a_terminal_through_the_stream_of_the_agent(ground, kind):
    control = ground.control
    await running(control, kind)
    command = ExecCommand(("sh",), interactive=True, terminal=True, window=WindowSize(30, 90), term="vt100")

    async def typed():
        yield b"stty size; echo terminal=$TERM; exit 3\n"

    printed, end = b"", None
    if kind == "vm":
        with pytest.raises(UnsupportedError, match="guest agent"):
            async for _ in control.exec(kind, ExecCommand(("true",))):
                pass
        return
    async with asyncio.timeout(PATIENCE):
        async for each in control.exec(kind, command, typed()):
            if isinstance(each, ExecEnd):
                end = each
            else:
                printed += each.data
    assert end == ExecEnd(code=3)
    assert b"30 90\r\n" in printed
    assert b"terminal=vt100\r\n" in printed


@pytest.mark.parametrize("kind", WITH_FILES)
async def test_a_file_of_a_secret_is_replaced_while_the_workload_runs(ground, kind):
    control = ground.control
    await control.set_secret(f"word-{kind}", b"first")
    before = (await running(control, kind, secret=f"word-{kind}")).run.pid
    await until_printed(control, kind, b"has first\n")
    await control.set_secret(f"word-{kind}", b"second")
    await until_printed(control, kind, b"has second\n")
    assert (await control.get_workload(kind)).run.pid == before


async def test_an_engine_that_is_away_is_told_and_loses_nothing(ground):
    control = ground.control
    kinds = ("container", "compose")
    before = {kind: (await running(control, kind)).run.pid for kind in kinds}

    os.kill(ground.service.pid, signal.SIGKILL)
    await until_offered(control, "process", "vm")

    async def is_told():
        (node,) = await control.list_nodes()
        said = {each.type: each.message for each in node.conditions}.get("RuntimeUnavailable", "")
        return all(f"{kind} is unhealthy" in said for kind in kinds)

    await until(is_told, what="the node says which runtimes are away", patience=PATIENCE)
    assert len(ground.engine.podman("ps", "-q").split()) == 2
    await (await ground.service.open()).close()
    await until_offered(control, *KINDS)
    for kind in kinds:
        view = await until_status(control, kind, "Running", patience=PATIENCE)
        assert view.run.pid == before[kind]


async def test_a_container_runs_when_the_healthcheck_of_its_image_passes_unless_the_spec_has_its_own(ground):
    control = ground.control
    checked = f"FROM {IMAGE}\nHEALTHCHECK --interval=1s CMD test -e /tmp/well\n"
    ground.engine.podman("build", "--format", "docker", "-t", "localhost/checked:1", "-", given=checked.encode())

    def with_check(name, **fields):
        body = {"image": "localhost/checked:1", "command": ["sh", "-c", "echo up; exec sleep 1000"], "init": True}
        resources = {"cpu_millicores": 100, "memory_mb": 32}
        return read_document({"id": name, "type": "container", "resources": resources, "container": body | fields})

    await control.apply(with_check("checked"))
    await control.apply(with_check("own", readiness={"command": {"command": ["true"]}}))
    await until_status(control, "own", "Running", patience=PATIENCE)
    await until_printed(control, "checked", b"up\n")
    view = await control.get_workload("checked")
    assert (view.status, view.run.ready) == ("Pending", False)
    printed = [each async for each in control.exec("checked", ExecCommand(("touch", "/tmp/well")))]
    assert printed == [ExecEnd()]
    await until_status(control, "checked", "Running", patience=PATIENCE)


async def test_disks_in_a_pool_are_counted_in_placement(ground):
    control = ground.control

    def with_disk(name, size_gb):
        spec = {
            "memory_mb": 64,
            "disks": [{"pool_name": "fast", "size_gb": size_gb}],
            "acceleration": "tcg",
            "stop": {"grace": "1s"},
        }
        resources = {"cpu_millicores": 100, "memory_mb": 64}
        return read_document({"id": name, "type": "vm", "resources": resources, "vm": spec})

    await control.apply(with_disk("five", 5))
    await until_status(control, "five", "Running", patience=PATIENCE)
    await control.apply(with_disk("more", 3))

    async def is_refused():
        view = await control.get_workload("more")
        return view.state == "Unplaceable" and "needs 3 GB of storage pool 'fast', 2 free" in view.reason.message

    await until(is_refused, what="there is no room in the pool", patience=PATIENCE)
    await control.apply(with_disk("more", 2))
    await until_status(control, "more", "Running", patience=PATIENCE)
