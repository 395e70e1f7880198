"""`shoal serving-client` against the fake model server."""

from __future__ import annotations

import asyncio
import json

import pytest

from shoal.cli import main
from shoal.cli.connection.session import Surroundings
from shoal.testing.model_server import FakeModelServer
from shoal.wire.local import LocalNetwork

CONFIG = """
model_config_list {
  config { name: "m:entry" base_path: "/none/entry" model_platform: "tensorflow"
           model_version_policy { latest { num_versions: 2 } } version_labels { key: "stable" value: 1 } }
  config { name: "m:ps_0" base_path: "/none/ps_0" model_platform: "tensorflow" }
}
"""


@pytest.fixture
def shoal(capsys):
    """Runs a command line; returns its exit code, what it printed, and its errors."""

    def run(*words: str, broken: str = "") -> tuple[int, str, str]:
        network = LocalNetwork()

        def in_loop(work):
            async def everything():
                server = FakeModelServer()
                if broken:
                    server.models.break_model(broken, "damaged")
                await server.start(network.transport("server"), "127.0.0.1:8500")
                server.models.apply(FakeModelServer(CONFIG).models.applied[0])
                try:
                    return await work
                finally:
                    await server.stop()

            return asyncio.run(everything())

        around = Surroundings(make_transport=lambda _access: network.transport("cli"), run=in_loop)
        code = main.run(["serving-client", *words], around=around)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_states(shoal):
    code, out, _ = shoal("status", "m:ps_0", "m:entry")
    assert code == 0
    assert out.splitlines() == [
        "MODEL    VERSION  STATE      CODE  MESSAGE",
        "m:entry        1  AVAILABLE     0  -",
        "m:entry        2  AVAILABLE     0  -",
        "m:ps_0         1  AVAILABLE     0  -",
    ]


def test_states_as_json_of_what_is_broken_or_missing(shoal):
    code, out, _ = shoal("status", "m:ps_0", "x", "--json", broken="m:ps_0")
    assert code == 1
    assert json.loads(out) == [
        {"model": "m:ps_0", "version": 1, "state": "END", "error_code": 2, "error_message": "damaged"},
        {
            "model": "x",
            "version": -1,
            "state": "UNKNOWN",
            "error_code": 5,
            "error_message": "any version of model 'x' not found",
        },
    ]


@pytest.mark.parametrize(("version", "found"), [("2", 2), ("stable", 1)])
def test_one_version(shoal, version, found):
    _, out, _ = shoal("status", "m:entry", "--version", version, "--json")
    assert [row["version"] for row in json.loads(out)] == [found]


def test_metadata(shoal):
    code, out, _ = shoal("metadata", "m:entry", "--field", "signature_def", "--field", "base_path")
    assert code == 0
    answer = json.loads(out)
    assert (answer["model"], answer["version"]) == ("m:entry", 2)
    assert answer["metadata"]["base_path"] == "'/none/entry'"
    assert list(answer["metadata"]["signature_def"]["signature_def"]) == ["serving_default"]


def test_predictions(shoal, tmp_path):
    (tmp_path / "row").write_bytes(b"one")
    code, out, _ = shoal("predict", "m:entry", "--row", "one", "--row", "two", "--row", f"@{tmp_path}/row")
    assert code == 0
    scores = json.loads(out)["outputs"]["scores"]["float_val"]
    assert scores[0] == scores[2] != scores[1]
    request = 'inputs { key: "instances" value { dtype: DT_STRING string_val: "two" } }'
    (tmp_path / "request.pbtxt").write_text(request)
    _, out, _ = shoal("predict", "m:entry", "--request", str(tmp_path / "request.pbtxt"))
    assert json.loads(out)["outputs"]["scores"]["float_val"] == [scores[1]]


def test_another_configuration(shoal, tmp_path):
    (tmp_path / "models.pbtxt").write_text('model_config_list { config { name: "n" base_path: "/none" } }')
    code, _, err = shoal("reload", str(tmp_path / "models.pbtxt"))
    assert (code, err) == (0, "loaded: n\n")
    code, _, err = shoal("reload", str(tmp_path / "models.pbtxt"), broken="n")
    assert code == 1
    assert "n due to error: damaged" in err


def test_a_profile(shoal):
    words = ("profile", "m:entry", "--row", "one", "--duration", "50ms", "--parallel", "3")
    code, out, _ = shoal(*words, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["calls"] >= 3, "each of those that call side by side has called"
    assert found["errors"] == 0
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    code, out, _ = shoal(*words)
    assert out.startswith("calls")


def test_a_profile_of_several_model_servers_calls_them_in_turn(shoal):
    several = ("--target", "127.0.0.1:8500, 127.0.0.1:1")
    code, out, _ = shoal("profile", "m:entry", "--row", "one", "--duration", "50ms", *several, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["calls"] > 0
    assert found["errors"] > 0
    assert "127.0.0.1:1" in found["first_error"]
    # Other commands call the first.
    assert shoal("predict", "m:entry", "--row", "one", *several)[0] == 0


def test_a_profile_of_a_model_that_is_not_there(shoal):
    code, out, _ = shoal("profile", "x", "--row", "one", "--duration", "50ms")
    assert code == 1
    assert "not found" in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("predict", "m:entry"), 2, "give rows, --data, --random, or a whole request"),
        (("predict", "x", "--row", "a"), 1, "not found"),
        (("metadata", "x"), 1, "not found"),
        (("reload", "/no/such/file"), 1, "not found"),
        (("status", "m:entry", "--version", "²"), 1, ""),
        (("predict", "m:entry", "--row", "a", "--version", "9" * 19), 2, "version: must be from 0 to"),
        (("predict", "m:entry", "--row", "a", "--version", "9" * 5000), 2, "--version: must have at most 19 digits"),
        (("predict", "\udcff", "--row", "a"), 2, "model: must be text that UTF-8 can write"),
        (("predict", "m:entry", "--row", "a", "--signature", "\udcff"), 2, "signature: must be text"),
        (("predict", "m:entry", "--row", "a", "--input", "\udcff"), 2, "--input: must be text"),
        (("metadata", "m:entry", "--field", "\udcff"), 2, "--field: must be text"),
        (("status", "m:entry", "--target", "nonsense"), 2, "--target: must be host:port"),
        (("status", "m:entry", "--target", "127.0.0.1:8500,"), 2, "--target: must be host:port"),
        (("metadata", "m:entry", "--target", "127.0.0.1:1"), 1, "127.0.0.1:1"),
    ],
)
def test_mistakes(shoal, words, code, said):
    found, _, err = shoal(*words)
    assert found == code
    assert said in err
