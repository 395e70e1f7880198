"""A fleet as an operator would run it: control planes on one PostgreSQL, certificates everywhere, agents of each kind.

Certificates and the join token are made by the commands that a person would give. Everything that runs is a process
that was started here and is ended by its pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import urllib.request

from shoal.cli.local.children import free_port
from shoal.client import ControlPlane
from shoal.core.errors import NotFoundError
from shoal.model.identity import CONTROL_PLANE, Peer, Role
from shoal.testing.machines import kill_machine
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.trust.security import MutualTls
from tests.e2e.fleet.drill import insist, until, until_gone, until_status
from tests.e2e.ha.planes import Planes

PLANES = ("one", "two")
#: Two that are dialled, one that has joined by a token, and one that listens nowhere.
DIALLED, OTHER, JOINED, SILENT = AGENTS = ("dialled", "other", "joined", "silent")

#: A lease that a busy machine keeps, and still short enough to wait for.
TIMES = ("--lease", "6s", "--heartbeat-interval", "1s")

OPERATOR = "operator-alice"
#: What a foreign scheduler would be given, to order an agent about by itself.
SCHEDULER = "control-scheduler"


class GuardedPlanes(Planes):
    """The same with certificates, and with a way to be whole again."""

    def __init__(self, folder, database):
        super().__init__(folder, database)
        self.certs = folder / "certs"
        self.data = folder / "data"
        self.data.mkdir()
        self.join_ports = {name: free_port() for name in PLANES}
        self.token = ""
        self._transports = {}

    async def start(self):
        await self.shoal("certs", "init", "--dir", str(self.certs))
        issue = ("certs", "issue", "--dir", str(self.certs), "--role")
        await asyncio.gather(
            *(self.shoal(*issue, "control", "--name", name, "--host", "127.0.0.1") for name in (*PLANES, "scheduler")),
            *(self.shoal(*issue, "agent", "--node-id", name) for name in (DIALLED, OTHER, SILENT)),
            self.shoal(*issue, "operator", "--name", "alice"),
        )
        await self.start_plane(PLANES[0])  # it makes the schema
        await self.start_plane(PLANES[1])
        await self.leader()
        await self.make_token()
        await asyncio.gather(*(self.start_agent(name) for name in AGENTS))

    # -----------------------------------------------------------------------------------------------------
    # Who proves what

    def files(self, holder):
        """The flags of a holder of these certificates."""
        folder = self.certs / holder
        return ("--ca", str(folder / "ca.pem"), "--cert", str(folder / "cert.pem"), "--key", str(folder / "key.pem"))

    def transport(self, holder):
        if holder not in self._transports:
            ca, cert, key = (self.certs / holder / name for name in ("ca.pem", "cert.pem", "key.pem"))
            self._transports[holder] = GrpcTransport(security=MutualTls(ca, cert, key))
        return self._transports[holder]

    def client(self, *names, holder=OPERATOR):
        chosen = [self.addresses[name] for name in names] or list(self.addresses.values())
        return ControlPlane(chosen, self.transport(holder))

    @contextlib.asynccontextmanager
    async def channel_to_plane(self, name, *, holder):
        """One control plane and no other: nobody follows the leader from here."""
        channel = self.transport(holder).connect(self.addresses[name], peer=CONTROL_PLANE)
        try:
            yield channel
        finally:
            await channel.close()

    @contextlib.asynccontextmanager
    async def channel_to_agent(self, control, name):
        """An agent's own service, as a foreign scheduler sees it."""
        endpoint = (await control.get_node(name)).grpc_endpoint
        channel = self.transport(SCHEDULER).connect(endpoint, peer=Peer(Role.AGENT, name))
        try:
            yield channel
        finally:
            await channel.close()

    async def shoal(self, *arguments):
        """What a command printed; it must go well."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SHOAL_")}
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        said, complained = await child.communicate()
        assert child.returncode == 0, f"shoal {' '.join(arguments)}: {complained.decode()}"
        return said.decode()

    async def operate(self, *arguments):
        """The same as the operator of this fleet."""
        return await self.shoal(*arguments, "--control", self.control_address, *self.files(OPERATOR))

    async def make_token(self):
        """The next start of the agent that joins uses a new token."""
        made = await self.operate("token", "create", "--node-id", JOINED, "--json")
        self.token = json.loads(made)["token"]

    # -----------------------------------------------------------------------------------------------------
    # Processes

    def data_of(self, name):
        return self.data / name

    async def start_plane(self, name, *, env=None):
        self.addresses.setdefault(name, f"127.0.0.1:{free_port()}")
        self.http.setdefault(name, f"127.0.0.1:{free_port()}")
        port, http_port = (each[name].rpartition(":")[2] for each in (self.addresses, self.http))
        await self._start(
            name,
            *("control", "--data-dir", str(self.data_of(name)), "--database", self.database, *TIMES),
            *("--grpc-host", "127.0.0.1", "--grpc-port", port, "--http-port", http_port),
            *(*self.files(f"control-{name}"), "--ca-key", str(self.certs / "ca-key.pem")),
            *("--join-port", str(self.join_ports[name])),
            env={"SHOAL_FAILOVER_RATE": "1", **(env or {})},
        )

    async def start_agent(self, name, *, env=None):
        proof = self.files(f"agent-{name}")
        if name == JOINED:
            joins = ",".join(f"127.0.0.1:{port}" for port in self.join_ports.values())
            proof = ("--join", self.token, "--join-address", joins)
        listens = ("--no-listen",) if name == SILENT else ("--grpc-host", "127.0.0.1", "--grpc-port", "0")
        await self._start(
            name,
            *("agent", "--control", self.control_address, "--node-id", name, "--data-dir", str(self.data_of(name))),
            *("--cpu", "4", "--memory", "4096MB", "--http-port", "0", *proof, *listens),
            env=env,
        )

    async def metrics(self, name):
        """What an agent counts, by series."""
        served = json.loads((self.folder / f"{name}.json").read_text())["http"]

        def read():
            with urllib.request.urlopen(f"http://{served}/metrics", timeout=10) as answer:
                return answer.read().decode()

        lines = (await asyncio.to_thread(read)).splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    async def kill_machine(self, name):
        """Kill an agent, its keeper and everything that it runs."""
        await self.kill(name)
        await asyncio.to_thread(kill_machine, self.data_of(name))

    async def close(self):
        for name in list(self.processes):
            await self.kill(name)
        for name in AGENTS:
            await asyncio.to_thread(kill_machine, self.data_of(name))

    # -----------------------------------------------------------------------------------------------------
    # Between two tests

    async def make_whole(self, control):
        """Everything runs and takes work, and nothing is left of an earlier test, however that one ended."""
        for process in self.processes.values():
            if process.returncode is None:
                os.kill(process.pid, signal.SIGCONT)
        for names, start in ((PLANES, self.start_plane), (AGENTS, self.start_agent)):
            for name in names:
                if name not in self.processes or self.processes[name].returncode is not None:
                    self.processes.pop(name, None)
                    await start(name)
        await self.leader()
        for name in AGENTS:
            await until(lambda name=name: is_ready(control, name, desired=True), what=f"{name} is heard of")
            if (await control.get_node(name)).desired:
                await insist(lambda name=name: control.uncordon_node(name))
            await until(lambda name=name: is_ready(control, name), what=f"{name} takes work")
        left = [view.workload_id for view in await insist(control.list_workloads)]
        for name in left:
            with contextlib.suppress(NotFoundError):
                await insist(lambda name=name: control.delete(name))
        for name in left:
            await until_gone(control, name)

    async def run_on(self, control, node, *documents):
        """Have work run on one node that may run anywhere: the others are closed while it is placed."""
        others = [name for name in AGENTS if name != node]
        for name in others:
            await insist(lambda name=name: control.cordon_node(name))
        for document in documents:
            await insist(lambda document=document: control.apply(document))
        for document in documents:
            view = await until_status(control, document.id, "Running")
            assert view.assigned_node_id == node
        for name in others:
            await insist(lambda name=name: control.uncordon_node(name))


async def is_ready(control, name, *, desired=False):
    view = await control.get_node(name)
    return view.status == "Ready" or (desired and bool(view.desired) and view.status not in ("Suspect", "NotReady"))


async def has_status(control, node, *statuses):
    return (await control.get_node(node)).status in statuses


async def is_on(control, workload, node):
    view = await control.get_workload(workload)
    return (view.status, view.assigned_node_id) == ("Running", node)


async def has_moved(control, workload, first):
    view = await control.get_workload(workload)
    return view.status == "Running" and view.assigned_node_id not in ("", first)


async def cursor_of(control):
    """After everything that was told so far."""
    return (await insist(lambda: control.list_events(newest=True, limit=1))).next


async def kinds_of(control, subject, *, after):
    """What was told of a node, a workload or the fleet, in order."""
    page = await insist(lambda: control.list_events(after=after, limit=1000))
    return [event.kind for event in page.events if event.subject_id == subject]
