"""The console examples of docs/services.md run as they are written, on a control plane in virtual time."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
from datetime import timedelta
from pathlib import Path

import looptime

from shoal.cli import main
from shoal.cli.connection.session import Surroundings
from shoal.jobs.engine import Engines
from shoal.services import ServiceEngine
from shoal.testing.control import CONTROL_ADDRESS, ControlKit

PAGE = Path(__file__).resolve().parents[3] / "docs" / "services.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples():
    """Each command with its exit code and the lines that are shown below it."""
    for block in CONSOLE.findall(PAGE.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.strip().splitlines()
            command, _, remark = command.partition("  # exits with ")
            yield command, int(remark or 0), shown


async def start(folder: Path) -> ControlKit:
    engines = Engines({"service": ServiceEngine()})
    kit = ControlKit(folder, lease=timedelta(seconds=30), engines=engines, streams=True)
    await kit.__aenter__()
    for number in (1, 2, 3):
        kit.node(f"node-{number}")
        await kit.wait_node(f"node-{number}", "Ready")
    return kit


async def break_misspelled(kit: ControlKit) -> None:
    """Stands for the processes of hollow nodes: those with the misspelled module fail."""
    while True:
        for node in kit.agents.nodes.values():
            for name in list(node.runs):
                record = kit.plane.leadership.fleet.workloads.get(name)
                if record is not None and "http.servre" in str(record.spec.process.command):
                    node.fail(name)
        await asyncio.sleep(0.5)


def test_every_example_does_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("web.yaml").write_text(YAML.findall(PAGE.read_text(encoding="utf-8"))[0], encoding="utf-8")
    with asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(start=1000.0, idle_timeout=10.0)) as runner:
        kit = runner.run(start(tmp_path / "data"))
        breaking = runner.get_loop().create_task(break_misspelled(kit))
        around = Surroundings(
            make_transport=lambda _access: kit.network.transport("client"), make_clock=lambda: kit.clock, run=runner.run
        )
        seen = 0
        for command, code, shown in examples():
            if not command.startswith("shoal "):
                subprocess.run(command, shell=True, check=True)
                continue
            arguments = [*shlex.split(command)[1:], "--insecure", "--control", CONTROL_ADDRESS]
            assert main.run(arguments, around=around) == code, (command, capsys.readouterr())
            captured = capsys.readouterr()
            printed = [" ".join(line.split()) for line in (captured.out + captured.err).splitlines()]
            for line in shown:
                words = " ".join(line.split()).removesuffix("…")
                assert any(each.startswith(words) for each in printed), (command, line, printed)
            seen += 1
        assert seen >= 10
        breaking.cancel()
        runner.run(kit.__aexit__())
