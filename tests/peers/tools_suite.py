"""`shoal model` and `shoal replicas` on every tree, with the same output. A test module makes a subclass for each."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import main
from shoal.cli.connection.session import Surroundings
from shoal.core.entropy import SystemEntropy
from shoal.discovery.mirror.records import AgentResource
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.service_map import ServiceMap
from shoal.discovery.replicas.watcher import ReplicaWatcher
from shoal.discovery.service import ServingAgentHandlers
from shoal.discovery.views import ModelAddresses, ReplicaAddresses
from shoal.wire.trust.access import Access
from tests.peers.monolith import ForeignAgent

GOLDEN = Path(__file__).parents[1] / "golden" / "discovery"
POD = "p.s.m;lf;default:pod-1"


def check_golden(name: str, text: str) -> None:
    """Compare with what is written down; SHOAL_WRITE_GOLDEN=1 writes it down."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("SHOAL_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def saved_model(name: str, *, op: bytes = b"TfServingRemotePredict") -> bytes:
    """A saved model whose graph has one node, in the bytes that TensorFlow writes."""

    def part(number: int, data: bytes) -> bytes:
        size = len(data)
        length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
        return bytes([number << 3 | 2]) + length + data

    attribute = part(5, part(1, b"model_name") + part(2, part(2, name.encode())))
    task = part(5, part(1, b"task") + part(2, b"\x18\x03"))
    node = part(1, b"call") + part(2, op) + task + attribute
    other = part(1, b"x") + part(2, b"Placeholder") + part(5, part(1, b"model_name") + part(2, part(2, b"wrong")))
    graph = part(1, other) + part(1, node)
    return b"\x08\x01" + part(2, part(1, b"") + part(2, graph))


@dataclass
class Ended:
    code: int
    out: str
    err: str


class ToolsSuite:
    """The tools on one kind of tree."""

    __test__ = False
    servers = "127.0.0.1:2181"

    @pytest.fixture
    def runner(self):
        with asyncio.Runner() as runner:
            yield runner

    @pytest.fixture
    def make_tree(self, runner):
        """Makes the store for the servers of ZooKeeper."""
        raise NotImplementedError

    @pytest.fixture
    def bzid(self):
        return f"b{SystemEntropy().token(8)}"

    @pytest.fixture
    def peer(self, runner, make_tree, bzid):
        """A foreign agent with a session of its own, whose methods block."""
        store = make_tree(self.servers)
        runner.run(store.open())
        yield ForeignAgent(store, bzid)
        runner.run(store.close())

    @pytest.fixture
    def around(self, runner, make_tree):
        """What commands run on."""
        return Surroundings(run=runner.run, make_tree=make_tree)

    @pytest.fixture
    def environment(self):
        """Tells commands where the tree is."""
        return {"SHOAL_ZK_SERVERS": self.servers}

    @pytest.fixture
    def shoal(self, around, environment, bzid, capsys, monkeypatch):
        for name, value in {**environment, "SHOAL_BZID": bzid}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("COLUMNS", raising=False)

        def run(*arguments: str) -> Ended:
            capsys.readouterr()
            code = main.run(arguments, around=around)
            found = capsys.readouterr()
            return Ended(code, found.out.replace(bzid, "gip"), found.err.replace(bzid, "gip"))

        return run

    @pytest.fixture
    def export(self, tmp_path):
        """An export of two versions; the newer one is called m."""
        for sub_graph in ("entry", "ps_0", "ps_1"):
            for version in ("9", "10"):
                (tmp_path / "exports" / sub_graph / version).mkdir(parents=True)
        entry = tmp_path / "exports" / "entry"
        (entry / "9" / "saved_model.pb").write_bytes(saved_model("old:ps_0"))
        (entry / "10" / "saved_model.pb").write_bytes(saved_model("m:ps_0"))
        (tmp_path / "exports" / ".hidden").mkdir()
        (tmp_path / "exports" / "readme.txt").write_text("not a sub-graph")
        return str(tmp_path / "exports")

    def filled(self, runner, peer) -> None:
        async def fill() -> None:
            for sub_graph, policy in (("entry", "latest"), ("ps_0", "latest_once"), ("ps_1", "latest_once")):
                await peer.declare("m", sub_graph, f"/d/{sub_graph}", policy)
            await peer.publish("prod", "m:entry")
            await peer.publish("prod", "m:ps_0")
            await peer.container(POD, "192.0.2.2:58703")
            await peer.bind("m", "entry", POD)
            await peer.replica("m/lf:default/ps:0/1", "10.0.0.2", stat=20)
            await peer.replica("m/lf:default/ps:0/0", "10.0.0.1")
            await peer.replica("m/lf:default/entry:0/00000000000", "10.0.0.1")
            await peer.write("portal/m", '{"model_name": "m"}')
            await peer.ephemeral("resource/0:0", '{"memory": 5}')
            await peer.write("publish/0:0:m", '{"shard_id": 0, "replica_id": 0, "model_name": "m"}')
            await peer.write("publish/1:0:m", '{"shard_id": 1, "replica_id": 0, "model_name": "m"}')
            await peer.write("locks/m", "scheduler-1")
            for name, who in (("1f", "scheduler-2"), ("e0", "scheduler-1"), ("7c", "scheduler-3")):
                number = 10 if who.endswith("3") else int(who[-1])
                await peer.ephemeral(f"election/{name}__lock__{number:010}", who)

        runner.run(fill())

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("model-list", ["model", "list"]),
            ("model-list-json", ["model", "list", "--json"]),
            ("model-info", ["model", "info"]),
            ("replicas-model", ["replicas", "model/m"]),
            ("replicas-model-json", ["replicas", "model/m", "--json"]),
            ("replicas-portal", ["replicas", "portal"]),
            ("replicas-resources-json", ["replicas", "resources", "--json"]),
            ("replicas-publish", ["replicas", "publish"]),
            ("replicas-locks", ["replicas", "locks"]),
            ("replicas-election", ["replicas", "election"]),
            ("replicas-election-json", ["replicas", "election", "--json"]),
        ],
    )
    def test_screens(self, runner, peer, shoal, name, arguments):
        self.filled(runner, peer)
        ended = shoal(*arguments)
        assert (ended.code, ended.err) == (0, "")
        check_golden(name, ended.out)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["model", "list"], "no model is declared"),
            (["replicas", "portal"], "no model is requested"),
            (["replicas", "publish"], "no model is assigned to an agent"),
            (["replicas", "resources"], "no agent reports what it has free"),
            (["replicas", "locks"], "no lock is held"),
            (["replicas", "election"], "there is no candidate"),
            (["replicas", "service/nobody"], "no workload of this service is ready"),
        ],
    )
    def test_an_empty_namespace_is_told(self, shoal, arguments, words):
        ended = shoal(*arguments)
        assert (ended.code, ended.out) == (0, "")
        assert words in ended.err

    def test_a_model_is_declared_published_and_unpublished(self, shoal, export):
        declared = shoal("model", "declare", export)
        assert (declared.code, declared.out) == (0, "m\n")
        assert shoal("model", "declare", export).code == 1
        assert "declared already" in shoal("model", "declare", export).err
        again = shoal("model", "declare", export, "--overwrite", "--json")
        assert list(json.loads(again.out)["sub_graphs"]) == ["entry", "ps_0", "ps_1"]
        assert shoal("model", "publish", "m:ps_*", "--layout", "prod").out == "m:ps_0\nm:ps_1\n"
        assert shoal("model", "publish", "m:entry", "--layout", "/gip/layouts/x").code == 0
        layouts = {row["sub_graph"]: row["layouts"] for row in self.models(shoal)}
        assert layouts == {"entry": [], "ps_0": ["prod"], "ps_1": ["prod"]}
        assert {row["version_policy"] for row in self.models(shoal)} == {"latest", "latest_once"}
        gone = shoal("model", "unpublish", "m:ps_1", "--layout", "prod", "--json")
        assert json.loads(gone.out) == {"saved_models": ["m:ps_1"]}
        assert [row["sub_graph"] for row in self.models(shoal) if row["layouts"]] == ["ps_0"]

    def models(self, shoal) -> list[dict[str, Any]]:
        return json.loads(shoal("model", "list", "--json").out)["models"]

    def test_a_given_name_counts_and_is_compared(self, shoal, export):
        ended = shoal("model", "declare", export, "--model-name", "other")
        assert (ended.code, ended.out) == (0, "other\n")
        assert "warning: the entry graph calls the model m" in ended.err

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["model", "publish", "nobody:entry", "--layout", "l"], 1, "model 'nobody' not found"),
            (["model", "publish", "m", "--layout", "l"], 2, "must be MODEL:GLOB"),
            (["model", "unpublish", "m:entry", "--layout", "l"], 1, "layout 'l' not found"),
            (["model", "declare", "/nowhere"], 1, "directory '/nowhere/entry' not found"),
            (["model", "list", "--bzid", "a/b"], 2, "bzid"),
            (["replicas", "model/nobody"], 1, "replicas of model 'nobody' not found"),
            (["replicas", "model/.."], 2, "base_name"),
            (["replicas", "nonsense"], 2, "VIEW: must be service/NAME, heartbeat"),
            (["replicas", "service/.."], 2, "VIEW"),
            (["replicas", "resource"], 2, "--agent: is required"),
            (["replicas", "get", "--agent", "127.0.0.1:1", "--server-type", "gpu"], 2, "--server-type"),
            (["replicas", "get", "--agent", "127.0.0.1:1", "--task", str(2**31)], 2, "--task: must be from 0 to"),
            (
                ["replicas", "get", "--agent", "127.0.0.1:1", "--model-name", "\udcff"],
                2,
                "--model-name: must be a name",
            ),
            (["model", "load", "m", "--model-dir", "\udcff"], 2, "model_dir: must be text that UTF-8 can write"),
            (["replicas", "portal", "--zk-servers", "nonsense"], 2, "--zk-servers: must be HOST:PORT"),
        ],
    )
    def test_mistakes_are_named(self, shoal, arguments, code, words):
        ended = shoal(*arguments)
        assert (ended.code, ended.out) == (code, "")
        assert words in ended.err

    def test_a_model_is_requested_and_withdrawn(self, runner, peer, shoal):
        load = ("model", "load", "m", "--model-dir", "/d", "--ckpt", "model.ckpt-100", "--num-shard", "3")
        assert shoal(*load).code == 0
        assert runner.run(peer.store.get(f"/{peer.bzid}/portal/m")).data == (
            b'{"model_name": "m", "model_dir": "/d", "ckpt": "model.ckpt-100", "num_shard": 3, "action": "NONE", '
            b'"spec_replicas": []}'
        )
        assert "requested already" in shoal(*load).err

        async def serve() -> None:
            await peer.write("publish/0:1:m", "{}")
            await peer.write("publish/0:1:xm", "{}")
            await peer.scheduled_replica("m", "ps", 0, 2, "10.0.0.5:8500")
            await peer.ephemeral("service/m/ps:1/0", "broken")

        runner.run(serve())
        assert json.loads(shoal("model", "status", "m", "--json").out) == {
            "portal": True,
            "publish": True,
            "service": {"ps:0:2": "AVAILABLE", "ps:1:0": "UNKNOWN"},
        }
        assert shoal("model", "status", "m").out == (
            "requested  yes\nassigned   yes\nREPLICA  STATE\nps:0:2   AVAILABLE\nps:1:0   UNKNOWN\n"
        )
        assert shoal("model", "clean", "publish", "service").err == "publish: deleted 2\nservice: deleted 1\n"
        assert json.loads(shoal("model", "clean", "publish", "--json").out) == {"deleted": {"publish": 0}}
        assert json.loads(shoal("model", "unload", "m", "--json").out) == {"withdrawn": "m"}
        assert shoal("model", "unload", "m").code == 1
        assert json.loads(shoal(*load, "--json").out) == {"requested": "m"}
        assert shoal("model", "unload", "m").code == 0
        assert shoal("model", "status", "m").err == "no agent serves it\n"
        assert json.loads(shoal("model", "status", "m", "--json").out)["portal"] is False
        assert "BRANCH: must be one of portal" in shoal("model", "clean", "layouts").err

    def test_the_named_ports_of_a_service_are_shown(self, runner, peer, shoal):
        async def announce() -> None:
            for name, port in (("web-1", 8081), ("web-0", 8080)):
                data = f'{{"node": "n1", "ports": {{"http": "10.0.0.5:{port}"}}}}'
                await peer.store.create(f"/service/{peer.bzid}/{name}", data.encode(), makepath=True)

        runner.run(announce())
        assert shoal("replicas", f"service/{peer.bzid}").out == (
            "WORKLOAD  NODE  PORT  ADDRESS\nweb-0     n1    http  10.0.0.5:8080\nweb-1     n1    http  10.0.0.5:8081\n"
        )
        (first, _) = json.loads(shoal("replicas", f"service/{peer.bzid}", "--json").out)["endpoints"]
        assert first == {"workload_id": "web-0", "node_id": "n1", "ports": {"http": "10.0.0.5:8080"}}

    def test_an_agent_is_asked(self, runner, peer, shoal, around):
        self.filled(runner, peer)

        async def serve(resource=None):
            watcher = ReplicaWatcher(peer.store, peer.bzid, "m")
            watcher.start()
            await watcher.wait_loaded()
            handlers = ServingAgentHandlers(ReplicaAddresses(watcher), resource=resource)
            transport = around.make_transport(Access(insecure=True))
            return await transport.serve("127.0.0.1:0", [handlers.service()])

        server = runner.run(serve())
        at = ("--agent", server.address)
        assert shoal("replicas", "heartbeat", *at).out == (
            "TASK  REPLICAS  ADDRESSES\nps:0         1  10.0.0.1:44059\n"
        )
        assert json.loads(shoal("replicas", "heartbeat", *at, "--json").out) == {"tasks": {"ps:0": ["10.0.0.1:44059"]}}
        assert shoal("replicas", "get", *at, "--server-type", "entry").out == "10.0.0.1:44059\n"
        assert "no replica of this task" in shoal("replicas", "get", *at, "--task", "7").err
        assert "does not say what it has free" in shoal("replicas", "resource", *at).err
        runner.run(server.stop())
        resource = AgentResource("10.0.0.5:7080", 2, 3, 2**30, cpu=1.5)
        server = runner.run(serve(lambda: resource))
        at = ("--agent", server.address)
        lines = [line.split() for line in shoal("replicas", "resource", *at).out.splitlines()]
        assert lines[:5] == [
            ["address", "10.0.0.5:7080"],
            ["shard_id", "2"],
            ["replica_id", "3"],
            ["memory", str(2**30)],
            ["cpu", "1.5"],
        ]
        assert json.loads(shoal("replicas", "resource", *at, "--json").out)["resource"]["work_load"] == -1.0
        runner.run(server.stop())

        async def serve_models():
            services = ServiceMap(peer.store, ModelPaths(peer.bzid))
            services.start()
            await services.wait_loaded()
            handlers = ServingAgentHandlers(ModelAddresses(services))
            transport = around.make_transport(Access(insecure=True))
            return await transport.serve("127.0.0.1:0", [handlers.service()])

        server = runner.run(serve_models())
        ended = shoal("replicas", "get", "--agent", server.address)
        assert ended.code == 2
        assert "--model-name: is required" in ended.err
        runner.run(server.stop())
