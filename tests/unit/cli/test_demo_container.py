"""The container of the demo where none can run: one line says why, and nothing else changes."""

from __future__ import annotations

import io
import tarfile

import pytest

from shoal.cli.local.demo_container import container_on_show
from shoal.cli.local.demo_image import PROGRAM, image_archive
from shoal.cli.local.demo_stage import Report
from shoal.client import ControlPlane
from shoal.core.clock import SystemClock
from shoal.wire.local import LocalNetwork
from shoal.wire.methods import AgentControl, methods_of
from shoal.wire.transport import Service
from tests.unit.cli.scripted import ADDRESS, ScriptedControl, node


async def start_on(scripted, folder, report):
    """The first act of the container, with these nodes."""
    transport = LocalNetwork().transport("demo")
    server = await transport.serve(ADDRESS, [Service(methods_of(AgentControl), scripted)])
    async with container_on_show(folder, SystemClock()) as container:
        async with ControlPlane([ADDRESS], transport) as control:
            await container.act_start(control, report, away_from="node-2")
            await container.act_check(control, report)
        await container.act_gone(report)
    await server.stop()


async def test_without_an_engine_one_line_says_so(tmp_path):
    report = Report()
    control = ScriptedControl(nodes={"node-1": node("node-1", supported_workload_types=("process",))})
    await start_on(control, tmp_path, report)
    ((kept, line),) = report.lines
    assert kept is None
    assert line.startswith("no container engine was found")
    assert "ApplyWorkload" not in control.calls
    assert report.acts == 0


async def test_an_engine_that_is_away_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    report = Report()
    control = ScriptedControl(nodes={"node-1": node("node-1", supported_workload_types=("process", "container"))})
    await start_on(control, tmp_path, report)
    ((kept, line),) = report.lines
    assert kept is None
    assert line.startswith("no container was run: no container engine answers")
    assert "ApplyWorkload" not in control.calls


def test_an_unknown_architecture_has_no_image():
    assert image_archive("s390x") is None


@pytest.mark.parametrize(("architecture", "machine"), [("amd64", 62), ("arm64", 183)])
def test_the_image_is_one_static_program(architecture, machine):
    with tarfile.open(fileobj=io.BytesIO(image_archive(architecture))) as tar:
        (member,) = tar.getmembers()
        program = tar.extractfile(member).read()
    assert f"/{member.name}" == PROGRAM
    assert member.mode == 0o755
    assert program.startswith(b"\x7fELF")
    assert program[18] == machine
