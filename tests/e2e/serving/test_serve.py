"""`shoal serve` as a process, with the fake model server as its program, on a real ZooKeeper and alone."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from shoal.core.entropy import SystemEntropy
from shoal.discovery.models.catalog import Catalog
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.remote import RemoteStore
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore
from shoal.serving.config.deployment import free_ports
from shoal.serving.models.client import ModelServerClient, string_tensor
from shoal.wire.sockets.channel import GrpcTransport
from tests.peers.monolith import ENTRY, PS, HeartbeatClient

pytestmark = pytest.mark.e2e


@pytest.fixture
async def store(zookeeper):
    made = ZookeeperStore(ZookeeperSettings(zookeeper))
    await made.open()
    yield made
    await made.close()


async def test_an_agent_by_layouts_from_start_to_end(serve, store, zookeeper, tmp_path):
    bzid = f"b{SystemEntropy().token(8)}"
    catalog = Catalog(store, ModelPaths(bzid))
    exports = {}
    for name in ("entry", "ps_0", "ps_1"):
        exports[name] = str(tmp_path / "exports" / name)
        (Path(exports[name]) / "3").mkdir(parents=True)
    await catalog.declare("m", exports)
    conf = (
        f"deploy_type unified # one server\nagent_version 3\nbzid {bzid}\nzk_servers {zookeeper}\nlayout_pattern prod\n"
    )
    broken = tmp_path / "broken"
    served = serve(
        "pod-1",
        f"{conf}layout_filters entry\nlayout_filters ps_{{i}}; i % 2 == 1\n",
        SHOAL_FAKE_BROKEN_MODELS=str(broken),
    )
    ready = await served.start("--drain", "3s")
    address = f"127.0.0.1:{ready['servers']['unified']}"
    await catalog.publish("m:*", "prod")
    await served.answers({"m:entry": [address], "m:ps_0": [], "m:ps_1": [address]})

    # Another program asks the model server itself.
    command = [
        sys.executable,
        "-m",
        "shoal",
        "serving-client",
        "status",
        "--target",
        address,
        "--json",
        "m:ps_1",
        "m:entry",
    ]
    asked = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
    assert [(row["model"], row["version"], row["state"]) for row in json.loads(asked.stdout)] == [
        ("m:entry", 3, "AVAILABLE"),
        ("m:ps_1", 3, "AVAILABLE"),
    ]

    # What Monolith's client inside the model server asks the agent, at `localhost:$PORT2`.
    (environment,) = [each.environ() for each in served.model_servers()]
    beside = HeartbeatClient(f"localhost:{environment['PORT2']}")
    await beside.beat()
    assert beside.api_version == 1
    assert [beside.peers("m", name) for name in ("entry", "ps_0", "ps_1")] == [[address], [], [address]]
    assert await beside.get_replicas(ENTRY, 0, "m") == [address]

    # The model server is killed, and one of its models is damaged meanwhile: it serves the other.
    broken.write_text("m:ps_1\n")
    (server,) = served.model_servers()
    server.kill()
    await asyncio.to_thread(psutil.wait_procs, [server])
    async with asyncio.timeout(60):
        while not served.model_servers():
            await asyncio.sleep(0.05)
    await served.answers({"m:entry": [address], "m:ps_0": [], "m:ps_1": []})
    async with asyncio.timeout(60):
        while "model m:ps_1 cannot be loaded: the export is damaged" not in served.log():
            await asyncio.sleep(0.05)
    await catalog.unpublish("m:ps_1", "prod")

    # SIGTERM: every address is withdrawn, calls are answered while peers notice, then everything ends.
    stopping = asyncio.ensure_future(served.stop())
    async with asyncio.timeout(60):
        while await store.children(f"/{bzid}/container_service") or await store.children(f"/{bzid}/binding/m"):
            await asyncio.sleep(0.02)
    client = ModelServerClient(GrpcTransport().connect(address))
    scored = await client.predict("m:entry", {"instances": string_tensor([b"row"])})
    assert scored.model_spec.version.value == 3
    assert (await beside.heart_beat(PS)).keys() == {"m:entry", "m:ps_0", "m:ps_1"}
    await client.close()
    assert await stopping == 0, served.log()
    assert served.model_servers() == []


async def test_a_control_plane_has_the_tree_of_a_fleet_without_zookeeper(serve, tmp_path):
    control_ready = tmp_path / "control.json"
    command = [sys.executable, "-m", "shoal", "control", "--insecure", "--data-dir", str(tmp_path / "control")]
    with (tmp_path / "control.log").open("wb") as log:
        control = subprocess.Popen(
            [*command, "--grpc-port", "0", "--http-port", "0", "--ready-file", str(control_ready)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        async with asyncio.timeout(60):
            while not control_ready.exists():
                assert control.poll() is None, (tmp_path / "control.log").read_text()
                await asyncio.sleep(0.05)
        address = json.loads(control_ready.read_text())["grpc"]
        store = RemoteStore(GrpcTransport(), (address,))
        await store.open()
        catalog = Catalog(store, ModelPaths("gip"))
        (tmp_path / "entry" / "3").mkdir(parents=True)
        await catalog.declare("m", {"entry": str(tmp_path / "entry")})
        served = serve("pod-8", "deploy_type unified\nagent_version 3\nbzid gip\nlayout_pattern prod\n")
        ready = await served.start("--control", address, "--insecure")
        await catalog.publish("m:entry", "prod")
        await served.answers({"m:entry": [f"127.0.0.1:{ready['servers']['unified']}"]})
        assert await served.stop() == 0, served.log()
        assert await store.children("/gip/binding/m") == ()
        await store.close()
    finally:
        control.terminate()
        await asyncio.to_thread(control.wait, 60)


async def test_a_machine_that_serves_everything_needs_no_zookeeper(serve, tmp_path):
    base = tmp_path / "exports"
    for name in ("entry", "ps_0", "ps_1"):
        (base / name / "1").mkdir(parents=True)
    conf = f"stand_alone_serving true\nbzid gip\nbase_name m\nbase_path {base}\nnum_ps 2\nnum_shard 1\n"
    served = serve("pod-2", conf)
    (port,) = free_ports(1)
    ready = await served.start("--http-port", str(port))
    ps, entry = (f"127.0.0.1:{ready['servers'][name]}" for name in ("ps", "entry"))
    await served.answers({"ps:0": [ps], "ps:1": [ps]})
    await served.answers({"entry:0": [entry]}, ServerType.ENTRY)
    async with httpx.AsyncClient() as http:
        shown = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
        latest = [line for line in shown.splitlines() if line.startswith("shoal_serving_model_latest_version")]
        assert any('base_name="m"' in line and 'model_name="entry"' in line for line in latest)
        assert (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        # A model server that is killed takes its series with it, until it serves again.
        victim = next(each for each in served.model_servers() if "ps_model_config" in " ".join(each.cmdline()))
        before = await _times(port, http)
        assert before.keys() == {"entry", "ps_0", "ps_1"}
        victim.kill()
        async with asyncio.timeout(60):
            while (after := await _times(port, http)).get("ps_0", before["ps_0"]) == before["ps_0"]:
                assert after["entry"] == before["entry"]
                await asyncio.sleep(0.05)
    environments = [each.environ() for each in served.model_servers()]
    assert {each["PORT2"] for each in environments} == {ready["agent"].rpartition(":")[2]}
    await served.answers({"ps:0": [ps], "ps:1": [ps]})
    beside = HeartbeatClient(f"localhost:{environments[0]['PORT2']}")
    await beside.beat()
    assert beside.api_version == 0
    assert beside.peers("m", "ps_1") == [ps]
    assert await served.stop() == 0, served.log()
    assert served.model_servers() == []


async def _times(port: int, http: httpx.AsyncClient) -> dict[str, float]:
    """When the version of each model became available, as metrics say."""
    found = {}
    for line in (await http.get(f"http://127.0.0.1:{port}/metrics")).text.splitlines():
        if line.startswith("shoal_serving_model_update_ts_seconds{"):
            found[line.partition('model_name="')[2].partition('"')[0]] = float(line.rpartition(" ")[2])
    return found


async def test_a_rough_sort_model_is_received_before_anything_starts(serve, tmp_path):
    base, p2p = tmp_path / "exports", tmp_path / "p2p"
    for name in ("entry", "ps_0"):
        (base / name / "1").mkdir(parents=True)
    for version in ("9", "10"):
        (p2p / f"rank@{version}" / "rank" / "entry_item_embedding_0" / version).mkdir(parents=True)
        (p2p / f"rank@{version}.write.done").touch()
    conf = (
        f"stand_alone_serving true\nbzid gip\nbase_name m\nbase_path {base}\nrough_sort_model_name rank\n"
        f"rough_sort_model_p2p_path {p2p}\nrough_sort_model_local_path {tmp_path / 'received'}\n"
    )
    served = serve("pod-7", conf)
    ready = await served.start()
    assert [path.name for path in (tmp_path / "received/rank/entry_item_embedding_0").iterdir()] == ["10"]
    client = ModelServerClient(GrpcTransport().connect(f"127.0.0.1:{ready['servers']['entry']}"))
    found = await client.statuses(["entry", "entry_item_embedding_0"])
    await client.close()
    assert {name: (status.version, status.is_available) for name, status in found.items()} == {
        "entry": (1, True),
        "entry_item_embedding_0": (10, True),
    }


async def test_the_next_agent_adopts_what_a_killed_one_left(serve, tmp_path):
    base = tmp_path / "exports"
    for name in ("entry", "ps_0"):
        (base / name / "1").mkdir(parents=True)
    conf = f"stand_alone_serving true\nbzid gip\nbase_name m\nbase_path {base}\nversion_policy latest_once\n"
    served = serve("pod-6", conf)
    first = await served.start()
    left = served.model_servers()
    assert len(left) == 2
    ps = f"127.0.0.1:{first['servers']['ps']}"
    await served.killed()
    assert served.model_servers() == left
    for name in ("entry", "ps_0"):
        (base / name / "2").mkdir()  # what was chosen stays
    # The same again: the processes and their ports stay, and models are not loaded anew.
    assert await served.start() | {"pid": 0} == first | {"pid": 0}
    assert served.model_servers() == left
    await served.answers({"ps:0": [ps]})
    # One that was adopted is watched like any other.
    victim = served.model_servers()[0]
    victim.kill()
    async with asyncio.timeout(60):
        while len(served.model_servers()) < 2 or victim in served.model_servers():
            await asyncio.sleep(0.05)
    await served.answers({"ps:0": [ps]})
    # A setting has changed: all of them are replaced, where they were.
    await served.killed()
    served.conf.write_text(f"{conf}num_load_threads 2\n")
    before = {each.pid for each in served.model_servers()}
    assert (await served.start())["servers"] == first["servers"]
    assert not before & {each.pid for each in served.model_servers()}
    await served.answers({"ps:0": [ps]})
    assert await _versions(ps, "ps_0") == [1]
    assert await served.stop() == 0, served.log()
    assert served.model_servers() == []
    # Until it is told otherwise.
    served.ready_file.unlink()
    ps = f"127.0.0.1:{(await served.start('--choose-versions'))['servers']['ps']}"
    assert await _versions(ps, "ps_0") == [2]
    assert await served.stop() == 0, served.log()


async def _versions(address: str, model: str) -> list[int]:
    client = ModelServerClient(GrpcTransport().connect(address))
    try:
        return [each.version for each in await client.versions(model) if each.is_available]
    finally:
        await client.close()


async def test_an_adopted_model_server_gets_the_layout_of_now(serve, store, zookeeper, tmp_path):
    bzid = f"b{SystemEntropy().token(8)}"
    catalog = Catalog(store, ModelPaths(bzid))
    exports = {name: str(tmp_path / "exports" / name) for name in ("entry", "ps_0", "ps_1")}
    for path in exports.values():
        (Path(path) / "3").mkdir(parents=True)
    await catalog.declare("m", exports)
    await catalog.publish("m:entry", "prod")
    await catalog.publish("m:ps_0", "prod")
    conf = f"deploy_type unified\nagent_version 3\nbzid {bzid}\nzk_servers {zookeeper}\nlayout_pattern prod\n"
    served = serve("pod-9", conf)
    quick = ("--session-timeout", "2s")  # what a killed agent has registered goes soon
    ready = await served.start(*quick)
    here = [f"127.0.0.1:{ready['servers']['unified']}"]
    await served.answers({"m:entry": here, "m:ps_0": here, "m:ps_1": []})
    left = served.model_servers()
    await served.killed()
    await catalog.unpublish("m:ps_0", "prod")
    await catalog.publish("m:ps_1", "prod")
    assert (await served.start(*quick))["servers"] == ready["servers"]
    await served.answers({"m:entry": here, "m:ps_0": [], "m:ps_1": here})
    assert served.model_servers() == left
    # Everything is unpublished while it is dead.
    await served.killed()
    await catalog.unpublish("m:*", "prod")
    await served.start(*quick)
    await served.answers({})
    client = ModelServerClient(GrpcTransport().connect(here[0]))
    async with asyncio.timeout(60):
        while any(each.is_available for each in (await client.statuses(["m:entry", "m:ps_1"])).values()):
            await asyncio.sleep(0.05)
    await client.close()
    assert served.model_servers() == left
    assert await served.stop() == 0, served.log()


async def test_stop_all_ends_the_agent_with_an_error(serve, tmp_path):
    base = tmp_path / "exports"
    for name in ("entry", "ps_0"):
        (base / name / "1").mkdir(parents=True)
    served = serve("pod-3", f"stand_alone_serving true\nbzid gip\nbase_name m\nbase_path {base}\n")
    await served.start("--on-exit", "stop-all", "--print-output")
    async with asyncio.timeout(60):
        while served.log().count("Running gRPC ModelServer") < 2:
            await asyncio.sleep(0.05)
    victim = served.model_servers()[0]
    victim.kill()
    assert await asyncio.to_thread(served.process.wait, 60) == 1
    assert "ended: signal 9" in served.log()
    assert served.model_servers() == []


STAND_IN = """#!{python}
# tensorflow_model_server as one private build has it: its names are archon_rpc_psm and PredictionServiceGrpc.
import os, sys
needed = {{"archon_port", "archon_rpc_psm", "archon_rpc_cluster", "metrics_namespace_prefix", "log_conf", "conf_file"}}
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:])
if needed - flags.keys() or flags["archon_rpc_psm"] != "p.s.m" or not os.environ.get("PORT2"):
    sys.exit(f"bad flags: {{flags}}")
words = [f"--{{name}}={{value}}" for name, value in flags.items() if name not in needed]
os.execv(sys.executable, [sys.executable, "-m", "shoal.testing.model_server", *words])
"""


async def test_a_build_with_archon_gets_its_flags(serve, store, zookeeper, tmp_path):
    bzid = f"b{SystemEntropy().token(8)}"
    program = tmp_path / "tensorflow_model_server"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    conf = f"deploy_type unified\nagent_version 3\nbzid {bzid}\nzk_servers {zookeeper}\ntfs_binary {program}\n"
    served = serve("pod-5", conf, MONOLITH_TFS_BINARY="", TCE_PSM="p.s.m")
    await served.start("--on-exit", "stop-all")
    async with asyncio.timeout(60):
        while await store.exists(f"/{bzid}/container_service/p.s.m;None;None:pod-5") is None:
            await asyncio.sleep(0.05)
    assert await served.stop() == 0, served.log()


def test_a_mistake_is_told_before_anything_starts(serve):
    conf = "bzid g\ndeploy_type unified\nagent_version 3\nzk_servers here\n"
    served = serve("pod-4", conf, MONOLITH_TFS_BINARY="/no/such/program")
    command = [sys.executable, "-m", "shoal", "serve", "--conf", str(served.conf)]
    command += ["--data-dir", str(served.folder / "data")]
    for check in ([], ["--check"]):
        found = subprocess.run([*command, *check], env=served.env, capture_output=True, text=True, check=False)
        assert found.returncode == 2
        assert "agent.conf:4: zk_servers: must be HOST:PORT" in found.stderr
    assert list(served.folder.iterdir()) == [served.conf]


def test_what_is_checked(serve):
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        servers = f"127.0.0.1:{listening.getsockname()[1]},127.0.0.1:{port}/top"
        served = serve("pod-10", f"bzid g\ndeploy_type unified\nagent_version 3\nzk_servers {servers}\n")
        command = [sys.executable, "-m", "shoal", "serve", "--conf", str(served.conf), "--check"]
        found = subprocess.run(command, env=served.env, capture_output=True, text=True, check=False)
    assert found.stdout.splitlines() == [
        "agent version  3",
        "deploy type    unified",
        "shard          0 of 1",
        "servers        unified",
        "layout         /g/layouts/default",
        f"model server   {served.env['MONOLITH_TFS_BINARY']}",
        f"tree           of ZooKeeper at {servers}",
    ]
    assert found.stderr == f"warning: nothing listens at 127.0.0.1:{port}, or it cannot be reached from here\n"
    assert found.returncode == 0
    assert list(served.folder.iterdir()) == [served.conf]
