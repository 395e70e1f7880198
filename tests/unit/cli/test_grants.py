"""`shoal grant`: what it writes, lists and refuses, on the tree of a control plane."""

from __future__ import annotations

import asyncio
import json

import pytest

from shoal.cli import main
from shoal.cli.connection.session import Surroundings
from shoal.discovery.remote import RemoteStore
from shoal.testing.control import CONTROL_ADDRESS, ControlKit


@pytest.fixture
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def kit(runner, tmp_path):
    kit = ControlKit(tmp_path / "control")
    runner.run(kit.__aenter__())
    yield kit
    runner.run(kit.__aexit__(None, None, None))


@pytest.fixture
def shoal(runner, kit, capsys, monkeypatch):
    monkeypatch.setenv("SHOAL_CONTROL", CONTROL_ADDRESS)
    monkeypatch.setenv("SHOAL_INSECURE", "1")
    around = Surroundings(run=runner.run, make_transport=lambda _access: kit.network.transport("cli"))

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main.run(arguments, around=around)
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


def test_grants_are_made_listed_and_revoked(shoal, runner, kit):
    assert shoal("grant", "list") == (0, "", "nothing is granted\n")
    assert shoal("grant", "create", "/gip", "--to", "workload:serving")[0] == 0
    assert shoal("grant", "create", "/agents", "--to", "agent:n1")[0] == 0
    code, _, err = shoal("grant", "create", "/abc", "--to", "workload:serving")
    assert (code, err) == (0, "workload:serving may change /abc and below\n")
    code, _, err = shoal("grant", "create", "/abc", "--to", "workload:serving")
    assert (code, err) == (0, "workload:serving already had a grant for /abc\n")
    listed = [
        {"path": "/abc", "to": "workload:serving"},
        {"path": "/agents", "to": "agent:n1"},
        {"path": "/gip", "to": "workload:serving"},
    ]
    code, out, _ = shoal("grant", "list", "--json")
    assert (code, json.loads(out)) == (0, {"grants": listed})
    code, out, _ = shoal("grant", "list")
    assert out.splitlines() == [
        "PATH     GRANTED TO",
        "/abc     workload:serving",
        "/agents  agent:n1",
        "/gip     workload:serving",
    ]
    assert shoal("grant", "revoke", "/abc", "--to", "workload:serving")[0] == 0
    code, _, err = shoal("grant", "revoke", "/abc", "--to", "workload:serving")
    assert code == 1
    assert "shoal grant list" in err
    assert shoal("grant", "revoke", "/gip", "--to", "workload:serving")[0] == 0
    code, out, _ = shoal("grant", "list", "--json")
    assert json.loads(out) == {"grants": [{"path": "/agents", "to": "agent:n1"}]}

    async def stored() -> tuple[str, ...]:
        store = RemoteStore(kit.network.transport("peer"), [CONTROL_ADDRESS])
        await store.open()
        try:
            return await store.children("/shoal/grants")
        finally:
            await store.close()

    assert runner.run(stored()) == ("agent:n1",)


def test_what_changed_as_json(shoal):
    granted = {"path": "/gip", "to": "workload:serving"}
    for new in (True, False):
        code, out, err = shoal("grant", "create", "/gip", "--to", "workload:serving", "--json")
        assert (code, json.loads(out), err) == (0, granted | {"created": new}, "")
    code, out, err = shoal("grant", "revoke", "/gip", "--to", "workload:serving", "--json")
    assert (code, json.loads(out), err) == (0, granted | {"revoked": True}, "")
    code, out, err = shoal("grant", "revoke", "/gip", "--to", "workload:serving", "--json")
    assert (code, out) == (1, "")
    assert "not found" in err


@pytest.mark.parametrize(
    ("path", "who", "said"),
    [
        ("gip", "agent", "PATH: a path begins with /"),
        ("/gip/", "agent", "PATH: the names in a path are not empty"),
        ("/gip/../shoal", "agent", "PATH: the names in a path"),
        ("/shoal", "agent", "PATH: must not be /shoal or below it"),
        ("/shoal/grants/agent", "workload:a", "PATH: must not be /shoal or below it"),
        ("/gip", "operator", "--to: must be agent, agent:NODE"),
        ("/gip", "agent:", "--to: must be agent, agent:NODE"),
        ("/gip", "agent:a/b", "--to: must be agent, agent:NODE"),
        ("/gip", "", "--to: must be agent, agent:NODE"),
    ],
)
def test_a_bad_grant_is_refused_and_changes_nothing(shoal, path, who, said):
    code, _, err = shoal("grant", "create", path, "--to", who)
    assert code == 2
    assert said in err
    assert shoal("grant", "list", "--json")[1] == '{\n  "grants": []\n}\n'
