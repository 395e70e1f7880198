"""The tools on embedded trees, in the process and of a control plane, and how they find the name of a model."""

from __future__ import annotations

import json

import pytest

from shoal.cli.connection.session import Surroundings
from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, NotFoundError
from shoal.discovery.embedded import EmbeddedTree
from shoal.discovery.models.exports import load_export, name_of_document, name_of_graph
from shoal.discovery.remote import RemoteStore
from shoal.testing.control import CONTROL_ADDRESS, ControlKit
from tests.peers.tools_suite import ToolsSuite, saved_model


class TestEmbeddedTools(ToolsSuite):
    __test__ = True

    @pytest.fixture
    def make_tree(self, runner):
        async def make() -> EmbeddedTree:
            return EmbeddedTree(SystemClock())

        tree = runner.run(make())
        yield lambda _servers: tree.session()
        runner.run(tree.close())

    def test_a_view_of_an_agent_needs_one_beside_zookeeper(self, shoal):
        ended = shoal("replicas", "heartbeat")
        assert (ended.code, "--agent: is required" in ended.err) == (2, True)


class TestControlPlaneTools(ToolsSuite):
    __test__ = True

    @pytest.fixture
    def kit(self, runner, tmp_path):
        kit = ControlKit(tmp_path / "control")
        runner.run(kit.__aenter__())
        yield kit
        runner.run(kit.__aexit__(None, None, None))

    @pytest.fixture
    def make_tree(self, kit):
        return lambda _servers: RemoteStore(kit.network.transport("peer"), [CONTROL_ADDRESS])

    @pytest.fixture
    def around(self, runner, kit):
        return Surroundings(run=runner.run, make_transport=lambda _access: kit.network.transport("cli"))

    @pytest.fixture
    def environment(self):
        return {"SHOAL_ZK_SERVERS": "", "SHOAL_CONTROL": CONTROL_ADDRESS, "SHOAL_INSECURE": "1"}

    def test_the_control_plane_answers_where_there_is_no_agent(self, runner, peer, shoal):
        assert "namespace" in shoal("replicas", "heartbeat").err
        self.filled(runner, peer)
        shown = "TASK  REPLICAS  ADDRESSES\nps:0         1  10.0.0.1:44059\n"
        at = ("--model-name", "m")
        bound = json.loads(shoal("replicas", "heartbeat", "--json").out)
        assert bound["tasks"].keys() == {"m:entry", "m:ps_0", "m:ps_1"}
        runner.run(peer.store.delete(f"/{peer.bzid}/saved_models", recursive=True))
        runner.run(peer.store.delete(f"/{peer.bzid}/portal", recursive=True))
        assert shoal("replicas", "heartbeat").out == shown
        assert shoal("replicas", "get", *at, "--server-type", "entry").out == "10.0.0.1:44059\n"
        ended = shoal("replicas", "get", "--model-name", "nobody")
        assert (ended.code, "model 'nobody' not found" in ended.err) == (1, True)

    def test_a_namespace_that_no_header_can_carry_is_named(self, shoal):
        ended = shoal("replicas", "heartbeat", "--bzid", "gäp")
        assert (ended.code, "--bzid: must be printable ASCII" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (saved_model("m:ps_0"), "m"),
        (saved_model("m"), "m"),
        (saved_model("m", op=b"Other"), ""),
        (b"", ""),
    ],
)
def test_the_name_in_a_graph(data, name):
    assert name_of_graph(data, at="x") == name


@pytest.mark.parametrize("data", [saved_model("m")[:-1], b"\xff" * 20, b"\x0b", b"\x12\x05\x12"])
def test_what_is_no_graph_is_refused(data):
    with pytest.raises(InvalidError, match=r"saved_model\.pb"):
        name_of_graph(data, at="saved_model.pb")


@pytest.mark.parametrize("data", [b"", b"[]", b'{"model_name": 5}', b"\xff", b"{" * 5000])
def test_a_bad_export_document_is_refused(data):
    with pytest.raises(InvalidError, match=r"export\.json"):
        name_of_document(data, at="export.json")


def test_our_own_exports_name_their_model(tmp_path):
    version = tmp_path / "entry" / "3"
    version.mkdir(parents=True)
    (version / "export.json").write_text('{"model_name": "ours", "more": 1}')
    (version / "saved_model.pb").write_bytes(saved_model("theirs"))
    found = load_export(str(tmp_path))
    assert found.model_name == "ours"
    assert found.sub_graphs == {"entry": str(tmp_path / "entry")}


def test_an_export_without_a_graph_has_no_name(tmp_path):
    (tmp_path / "entry" / "tmp").mkdir(parents=True)
    assert load_export(str(tmp_path)).model_name == ""


def test_a_directory_without_an_entry_is_no_export(tmp_path):
    with pytest.raises(NotFoundError, match="entry"):
        load_export(str(tmp_path))
