"""docs/security.md, block by block: an authority, certificates, joining by token, secrets, rotation."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from shoal.cli.local.children import free_port
from tests.e2e.fleet.drill import until
from tests.e2e.pages.blocks import Block, Command
from tests.e2e.pages.terminal import Reader, Stage, Terminal

# One long story of many commands, each of which starts a program: on a busy machine that takes its time.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

#: Blocks that cannot be run here, by language and headings, and why. There are none.
NOT_RUN: dict[tuple[str, ...], str] = {}

#: What the coordinator of the page does around the lines that the page shows.
COORDINATOR = """
import asyncio, pathlib, sys, time
import yaml
from shoal.client import ControlPlane
from shoal.model.documents import read_document

async def main():
    document = read_document(yaml.safe_load(pathlib.Path(__file__).with_name("wanted.yaml").read_text()))
{lines}

asyncio.run(main())
time.sleep(3600)
"""

#: What the workload of the page is, which gets the secret.
SERVER = """#!/bin/sh
printf '%s %s' "$LOG_LEVEL" "$PASSWORD" > "$0.part" && mv "$0.part" "$0.told"
exec sleep 3600
"""


class Cast:
    """Everybody on the page, on one machine: who types where, and what their names and paths are here."""

    def __init__(self, stage: Stage) -> None:
        self.folder = stage.folder
        port, join = free_port(), free_port()
        address = f"127.0.0.1:{port}"
        ports = {"SHOAL_GRPC_PORT": str(port), "SHOAL_HTTP_PORT": "0", "SHOAL_JOIN_PORT": str(join)}
        listening = {"0.0.0.0:8085": f"0.0.0.0:{port}", "127.0.0.1:8084": "127.0.0.1:…"}
        self.author = Terminal(stage, "author", stage.folder)
        self.control = Terminal(
            stage,
            "control",
            stage.folder,
            instead={
                **listening,
                "/var/lib/shoal-control": str(stage.folder / "control"),
                "0.0.0.0:8086": f"0.0.0.0:{join}",
            },
            environment={**ports, "SHOAL_HEARTBEAT_INTERVAL": "1s"},
        )
        self.node = Terminal(
            stage,
            "node-1",
            stage.folder,
            instead={
                "control-1.example:8085": address,
                "/var/lib/shoal-agent": str(stage.folder / "node-1"),
                "0.0.0.0:50051": "0.0.0.0:…",
            },
            environment={"SHOAL_AGENT_GRPC_PORT": "0"},
        )
        # The port for joining is not the usual one here, so it is named wherever the address is.
        self.newcomer = Terminal(
            stage,
            "node-2",
            stage.folder,
            instead={
                "--control control-1.example:8085": f"--control {address} --join-address 127.0.0.1:{join}",
                "/var/lib/shoal-agent": str(stage.folder / "node-2"),
                "0.0.0.0:50051": "0.0.0.0:…",
            },
            environment={"SHOAL_AGENT_GRPC_PORT": "0"},
        )
        self.operator = Terminal(
            stage,
            "operator",
            stage.folder,
            instead={
                "control-1.example:8085": address,
                "--control control-1.example:8085": f"--control {address} --join-address 127.0.0.1:{join}",
            },
        )

    async def call(self, *words: str) -> str:
        """A command of the operator that is on no page; it must go well."""
        return await self.operator.call(Command(" ".join(words), ()), "after the block before")

    async def ask(self, *words: str) -> dict:
        return json.loads(await self.call("shoal", *words, "--json"))

    async def states(self, kind: str) -> dict[str, str]:
        """The status of every node or workload, by id."""
        views = (await self.ask(kind, "list"))[f"{kind}s"]
        return {view[f"{kind}_id"]: view["status"] for view in views}

    def agents_certificate(self) -> int:
        """The serial number of what the agent of node-1 shows to a client that connects now."""
        holder = self.folder / "certs" / "control-control"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(holder / "ca.pem")
        context.load_cert_chain(holder / "cert.pem", holder / "key.pem")
        context.set_alpn_protocols(["h2"])
        port = int(self.node.server.address("grpc").rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain) as secured,
        ):
            return int(secured.getpeercert()["serialNumber"], 16)


async def test_every_block_of_the_page(stage: Stage) -> None:
    page = Reader("security.md", not_run=NOT_RUN)
    cast = Cast(stage)

    await cast.author.run(page.next("Certificates"))
    files = [path for path in (stage.folder / "certs").rglob("*") if path.is_file()]
    assert len(files) == 11
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    await cast.control.run(page.next("Certificates"))
    await cast.node.run(page.next("Certificates"))
    await cast.operator.run(page.next("Certificates"))

    await cast.control.server.end()
    await cast.control.run(page.next("Joining by token"))
    made = page.next("Joining by token")
    cast.operator.instead["q3v8m2k1xd"] = "…"
    token = (await cast.operator.run(made))[0].splitlines()[0]
    cast.newcomer.instead["--join TOKEN"] = f"--join {token}"
    await cast.newcomer.run(page.next("Joining by token"))
    assert (await cast.states("node"))["node-2"] == "Ready"
    cast.operator.instead["q3v8m2k1xd"] = token.split(".")[1]
    await cast.operator.run(page.next("Joining by token"))
    assert (await cast.states("node"))["node-2"] == "Ready"

    await coordinate(
        cast,
        page.next("Workloads with a certificate", language="yaml"),
        page.next("Workloads with a certificate", language="python"),
    )

    (stage.folder / "password.txt").write_text("correct horse\n")
    await cast.operator.run(page.next("Secrets"))
    await tell_the_secret(cast, page.next("Secrets", language="yaml"))

    before = await asyncio.to_thread(cast.agents_certificate)
    await cast.author.run(page.next("Rotation"))

    async def is_replaced() -> bool:
        return await asyncio.to_thread(cast.agents_certificate) != before

    await until(is_replaced, what="the agent shows its new certificate, without a restart")
    assert await cast.states("node") == {"node-1": "Ready", "node-2": "Ready"}

    await change_the_authority(cast, page)
    page.close()
    for each in (cast.control, cast.node, cast.newcomer, cast.operator):
        each.close()


async def change_the_authority(cast: Cast, page: Reader) -> None:
    """Nobody is restarted but the agent that joins again, and in the end the old authority is worth nothing."""
    former = cast.folder / "former"
    shutil.copytree(cast.folder / "certs" / "operator-alice", former)
    (former / "ca.pem").unlink()
    running = await pid_of(cast, "worker-1")

    async def is_refused() -> bool:
        """Whether a certificate of the old authority gets nowhere."""
        files = {"SHOAL_CERT": str(former / "cert.pem"), "SHOAL_KEY": str(former / "key.pem")}
        return await cast.operator.exit_code("shoal node list", **files) != 0

    await cast.author.run(page.next("Rotation"))
    await cast.newcomer.run(page.next("Rotation"))
    await cast.author.run(page.next("Rotation"))
    made = (await cast.operator.run(page.next("Rotation")))[0].splitlines()[0]
    await cast.newcomer.server.end()
    cast.newcomer.instead["--join TOKEN"] = f"--join {made}"
    await cast.newcomer.run(page.next("Rotation"))
    assert not await is_refused()
    await cast.author.run(page.next("Rotation"))
    await cast.newcomer.run(page.next("Rotation"))
    await until(is_refused, what="a certificate of the old authority gets nowhere")

    async def all_beat() -> bool:
        """Whether both nodes were heard of after that."""
        nodes = (await cast.ask("node", "list"))["nodes"]
        seen.update((node["node_id"], node["last_heartbeat"]) for node in nodes)
        return {node["status"] for node in nodes} == {"Ready"} and len(seen) >= 4

    seen: set[tuple[str, str]] = set()
    await until(all_beat, what="both agents go on")
    assert await pid_of(cast, "worker-1") == running


async def pid_of(cast: Cast, workload: str) -> int:
    return int((await cast.ask("workload", "get", workload))["workload"]["run"]["pid"])


async def coordinate(cast: Cast, spec: Block, lines: Block) -> None:
    """The coordinator of the page replaces its own group by the lines of the page, with its own certificate."""
    folder = cast.folder / "coordinator"
    folder.mkdir()
    group = yaml.safe_load(spec.text)
    coordinator, first = group["members"]
    assert coordinator["process"]["command"] == ["python3", "coordinator.py"]
    coordinator["process"]["command"] = [sys.executable, str(folder / "coordinator.py")]
    worker = {**first, "id": "worker-2"}
    (folder / "group.yaml").write_text(yaml.safe_dump(group))
    (folder / "wanted.yaml").write_text(yaml.safe_dump({**group, "members": [*group["members"], worker]}))
    assert lines.text.count("expected_generation=7") == 1
    typed = textwrap.indent(lines.text.replace("expected_generation=7", "expected_generation=1"), "    ")
    (folder / "coordinator.py").write_text(COORDINATOR.format(lines=typed))
    await cast.call("shoal apply --detach -f", str(folder / "group.yaml"))

    async def both_run() -> bool:
        states = await cast.states("workload")
        return [states.get(name) for name in ("coordinator", "worker-1", "worker-2")] == ["Running"] * 3

    await until(both_run, what="the coordinator has added a worker to its group")


async def tell_the_secret(cast: Cast, spec: Block) -> None:
    """The workload of the page has the value in its environment."""
    server = cast.folder / "server"
    server.write_text(SERVER)
    server.chmod(0o755)
    fields = yaml.safe_load(spec.text)
    assert fields["process"]["command"] == ["./server"]
    fields["process"]["command"] = [str(server)]
    document = cast.folder / "server.yaml"
    document.write_text(yaml.safe_dump({"id": "server", "type": "process", **fields}))
    await cast.call("shoal apply -f", str(document))

    async def has_told() -> bool:
        return Path(f"{server}.told").exists()

    await until(has_told, what="the workload has told what it was given")
    assert Path(f"{server}.told").read_text() == "info correct horse"
