"""docs/high-availability.md, block by block: two control planes on a real PostgreSQL, and the drill of the page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import urllib.request
from pathlib import Path

import pytest

from shoal.cli.local.children import free_port
from tests.e2e.fleet.drill import until
from tests.e2e.pages.blocks import DOCS, Command
from tests.e2e.pages.terminal import Reader, Stage, Terminal

# One long story of many commands, each of which starts a program: on a busy machine that takes its time.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

#: Blocks that cannot be run here, by language and headings, and why. There are none.
NOT_RUN: dict[tuple[str, ...], str] = {}

PLANES = ("control-1", "control-2")


class Cast:
    """Everybody on the page, on one machine: who types where, and what their names and paths are here."""

    def __init__(self, stage: Stage, database: str) -> None:
        self._stage = stage
        self.ports = {name: free_port() for name in PLANES}
        addresses = {f"{name}.example:8085": f"127.0.0.1:{port}" for name, port in self.ports.items()}
        self.planes = {name: self._plane(name, database) for name in PLANES}
        self.node = Terminal(
            stage,
            "node-1",
            self._folder("agent-node-1"),
            instead={
                **addresses,
                "/var/lib/shoal-agent": str(stage.folder / "node-1"),
                "0.0.0.0:50051": "0.0.0.0:…",
            },
            environment={"SHOAL_AGENT_GRPC_PORT": "0"},
        )
        self.person = Terminal(stage, "person", self._folder("operator-alice"), instead=addresses)

    def _folder(self, name: str) -> Path:
        """Where somebody stands: in the folder with their certificate."""
        folder = self._stage.folder / "certs" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _plane(self, name: str, database: str) -> Terminal:
        port = self.ports[name]
        return Terminal(
            self._stage,
            name,
            self._folder(f"control-{name}"),
            instead={
                "/var/lib/shoal-control": str(self._stage.folder / name),
                "postgresql://shoal@db.example/shoal": database,
                "control-1.example:8085": f"127.0.0.1:{port}",
                "0.0.0.0:8085": f"0.0.0.0:{port}",
                "127.0.0.1:8084": "127.0.0.1:…",
                "$(cat secret-key)": f"$(cat {self._stage.folder / 'secret-key'})",
            },
            environment={
                "SHOAL_GRPC_PORT": str(port),
                "SHOAL_HTTP_PORT": "0",
                "SHOAL_HEARTBEAT_INTERVAL": "1s",
            },
        )

    async def make_certificates(self) -> None:
        """What the page takes for granted; docs/security.md is about it."""
        author = Terminal(self._stage, "author", self._stage.folder)
        issue = "shoal certs issue --role"
        for text in (
            "shoal certs init --cluster prod",
            *(f"{issue} control --name {name}" for name in PLANES),
            f"{issue} agent --node-id node-1",
            f"{issue} operator --name alice",
        ):
            await author.call(Command(text, ()), "before the first block")

    async def health(self, name: str) -> dict | None:
        """What a control plane says of itself; None while it says nothing."""

        def ask() -> dict:
            where = self.planes[name].server.address("http")
            with urllib.request.urlopen(f"http://{where}/health", timeout=2) as answer:
                return json.load(answer)

        with contextlib.suppress(OSError):
            return await asyncio.to_thread(ask)
        return None

    async def leader(self) -> str:
        """Wait until one leads and the other follows it. Gives the terminals its process id, and returns its name."""

        async def found() -> str:
            said = {name: await self.health(name) for name in PLANES}
            leading = [name for name, each in said.items() if each is not None and each["role"] == "leader"]
            following = [name for name, each in said.items() if each is not None and each["role"] == "follower"]
            if len(leading) != 1 or len(following) != 1:
                return ""
            agreed = {(each["leader"], each["term"]) for each in said.values() if each is not None}
            return leading[0] if len(agreed) == 1 else ""

        name: str = await until(found, what="one leads and the other one follows")
        self.person.environment["LEADER"] = str(self.planes[name].server.pid)
        return name

    async def pid_of_drill(self) -> int:
        said = await self.person.call(Command("shoal workload get drill --json", ()), "after the block before")
        return int(json.loads(said)["workload"]["run"]["pid"])


async def watch(cast: Cast) -> None:
    """What the page says is seen of leaders: in their health, and in their logs."""
    section = (DOCS / "high-availability.md").read_text(encoding="utf-8").partition("\n## Watching it\n")[2]
    rows = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    fields = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"role", "leader", "term"} < fields
    leader = await cast.leader()
    for name, plane in cast.planes.items():
        said = await cast.health(name)
        assert said is not None
        assert fields <= set(said)
        assert (said["status"], said["mode"], said["secrets"]) == ("ok", "normal", "ok")
        assert said["leader"] == f"127.0.0.1:{cast.ports[leader]}"
        who = "this control plane" if name == leader else said["leader"]
        await plane.server.has_said(f"… term {said['term']}: {who} leads")
        assert await asyncio.to_thread(status_of, f"http://{plane.server.address('http')}/readyz") == 200


def status_of(url: str) -> int:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return int(answer.status)


@pytest.mark.long
async def test_every_block_of_the_page(stage: Stage, postgres_url: str) -> None:
    page = Reader("high-availability.md", not_run=NOT_RUN)
    cast = Cast(stage, postgres_url)
    await cast.make_certificates()

    await Terminal(stage, "author", stage.folder).run(page.next("Setting it up"))
    start = page.next("Setting it up")
    for plane in cast.planes.values():
        await plane.run(start)
    await cast.node.run(page.next("Setting it up"))
    await cast.person.run(page.next("Setting it up"))

    drill = ("What happens when …", "A drill")
    (cast.person.folder / "drill.yaml").write_text(page.next(*drill, language="yaml").text)
    await cast.person.run(page.next(*drill))
    pid = await cast.pid_of_drill()

    killed = await cast.leader()
    before = await cast.health(killed)
    await cast.person.run(page.next(*drill))
    await cast.planes[killed].run(start)
    second = await cast.leader()
    assert second != killed
    await watch(cast)
    after = await cast.health(second)
    assert before is not None
    assert after is not None
    assert after["term"] > before["term"]

    await cast.person.run(page.next(*drill))
    assert await cast.planes[second].server.ended() == 0
    await cast.planes[second].run(start)
    third = await cast.leader()
    assert third == killed

    await cast.person.run(page.next(*drill))
    assert await cast.leader() == second

    assert await cast.pid_of_drill() == pid
    await cast.person.run(page.next(*drill))

    page.close()
    for each in (cast.planes["control-1"], cast.node, cast.person):
        each.close()
