"""A workload with a certificate of its own, on real processes: what it can do with it, and what it cannot."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.core.errors import InvalidError
from shoal.model.documents import read_document
from shoal.model.identity import workload_identity
from shoal.runtimes.process import read_keeper_pid
from shoal.wire.trust.credentials import CredentialPaths, read_credentials
from tests.e2e.fleet.conftest import HEARTBEAT
from tests.e2e.fleet.drill import insist, processes_of, python, until, until_status

pytestmark = pytest.mark.e2e

#: What runs as the first member: it replaces the second one, tries what it may not, and writes down what came of it.
COORDINATOR = """
import asyncio, json, os, sys, time
from shoal.client import ControlPlane
from shoal.core.errors import ShoalError
from shoal.model.documents import read_document
from shoal.model.identity import CONTROL_PLANE
from shoal.wire.trust.access import Access
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb

own, other, target = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]

async def main():
    found = {"environment": {name: value for name, value in os.environ.items() if name.startswith("SHOAL_")}}
    async with ControlPlane.from_environment() as control:
        access = Access(*(os.environ[f"SHOAL_{name}"] for name in ("CA", "CERT", "KEY")))
        raw = GrpcTransport(security=access.security()).connect(control.addresses[0], peer=CONTROL_PLANE)
        tries = {
            "replace": lambda: control.apply_group(read_document(own), expected_generation=1),
            "other group": lambda: control.apply_group(read_document(other), expected_generation=1),
            "apply": lambda: control.apply(read_document(other["members"][0])),
            "delete": lambda: control.delete("bystander"),
            "delete group": lambda: control.delete_group(own["id"]),
            "read": lambda: control.list_workloads(),
            "register": lambda: raw.call(AgentControl.REGISTER_NODE, pb.RegisterNodeRequest(node_id="node-1")),
        }
        for name, attempt in tries.items():
            try:
                answer = await attempt()
                found[name] = {"generation": getattr(answer, "generation", None)}
            except ShoalError as error:
                found[name] = {"error": type(error).__name__, "message": error.message}
        await raw.close()
    with open(target + ".part", "w") as file:
        json.dump(found, file)
    os.replace(target + ".part", target)
    time.sleep(3600)

asyncio.run(main())
"""


def member(name, command, **process):
    return {
        "id": name,
        "type": "process",
        "resources": {"cpu_millicores": 50, "memory_mb": 128},
        "process": {"command": command, "stop": {"grace": "2s"}, **process},
    }


def group(name, *members):
    return {"kind": "group", "id": name, "members": list(members)}


@pytest.fixture
async def fleet(tmp_path):
    sizes = {"agents": 2, "cpu": "4", "memory": "4096MB", "heartbeat_interval": HEARTBEAT}
    fleet = LocalFleet(tmp_path, stop_workloads_on_exit=False, **sizes)
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.kill()


async def test_a_workload_replaces_members_of_its_own_group_and_nothing_else(fleet, tmp_path):
    target = tmp_path / "found.json"
    sleeping = ["sleep", "3600"]
    other = group("views", member("bystander", sleeping))
    # The request names the coordinator's own command, which must not change: so that reads the request from a file.
    script = tmp_path / "coordinator.py"
    script.write_text(COORDINATOR)
    wanted = tmp_path / "wanted.json"
    code = (
        f"import sys; sys.argv[1:] = [open({str(wanted)!r}).read(), {json.dumps(other)!r}, {str(target)!r}]\n"
        f"exec(open({str(script)!r}).read())"
    )
    coordinator = member("coordinator", [sys.executable, "-u", "-c", code], identity=True)
    wanted.write_text(json.dumps(group("clicks", coordinator, member("worker-2", sleeping))))

    async with fleet.client() as control:
        await control.apply_group(read_document(other))
        await control.apply_group(read_document(group("clicks", coordinator, member("worker-1", sleeping))))

        async def has_written():
            return target.exists()

        await until(has_written, what="the coordinator has tried everything")
        found = json.loads(target.read_text())
        assert found["replace"] == {"generation": 2}, found
        for name in ("other group", "apply", "delete", "delete group", "read", "register"):
            assert found[name]["error"] == "DeniedError", (name, found[name])
        assert "its own group only, not 'views'" in found["other group"]["message"]
        assert "needs the role operator" in found["apply"]["message"]
        assert "needs the role agent" in found["register"]["message"]
        await until_status(control, "worker-2", "Running")
        await until_status(control, "bystander", "Running")

        view = await until_status(control, "coordinator", "Running")
        node, environment = view.assigned_node_id, found["environment"]
        data = fleet.directory_of(node) / "data"
        paths = CredentialPaths.within(data / "identities" / "coordinator")
        assert environment["SHOAL_KEY"] == str(paths.key)
        assert environment["SHOAL_CONTROL"] == fleet.control_address
        agents_key = fleet.security(node).key
        assert str(agents_key) not in environment.values(), "the agent's own settings are not handed on"
        mine = read_credentials(paths, now=fleet._clock.wall())
        assert mine.identity == workload_identity("default", job="clicks", node=node)
        assert mine.key != agents_key.read_bytes()
        assert paths.key.parent.stat().st_mode & 0o777 == 0o700
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in paths.key.parent.iterdir())

        logs = b"".join(fleet.log_of(name).read_bytes() for name in (node, "control"))
        assert mine.key.split(b"\n")[1] not in logs

        # The agent dies and comes back: the run goes on, with the certificate it has.
        [pid] = processes_of(fleet, "coordinator")
        await fleet.kill_agent(node)
        await fleet.start_agent(node)
        await until_status(control, "coordinator", "Running")
        assert processes_of(fleet, "coordinator") == [pid]
        assert read_credentials(paths, now=fleet._clock.wall()) == mine

        # A new run has a new key.
        os.kill(pid, signal.SIGKILL)

        async def has_another():
            return paths.key.exists() and paths.key.read_bytes() != mine.key

        await until(has_another, what="the next run has a key of its own")

        await insist(lambda: control.delete_group("clicks"))

        async def is_gone():
            return not paths.key.parent.exists()

        await until(is_gone, what="its files are gone with it")


async def test_an_idle_agent_and_its_keeper_take_at_most_80_mb(fleet):
    """Proportional (PSS): a page that several processes share is divided among them."""
    for name in fleet.names:
        pids = (fleet.pid_of(name), read_keeper_pid(fleet.directory_of(name) / "data"))
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
        kilobytes = sum(int(line.split()[1]) for text in rollups for line in text.splitlines() if line[:4] == "Pss:")
        assert 0 < kilobytes <= 80 * 1024


async def test_without_certificates_nobody_can_have_one(tmp_path):
    fleet = LocalFleet(tmp_path, agents=1, secure=False, cpu="4", memory="4096MB", heartbeat_interval=HEARTBEAT)
    try:
        await fleet.start()
        async with fleet.client() as control:
            asks = read_document(group("clicks", member("a", python("pass"), identity=True)))
            with pytest.raises(InvalidError, match="no signing key"):
                await control.apply_group(asks)
    finally:
        await fleet.kill()
