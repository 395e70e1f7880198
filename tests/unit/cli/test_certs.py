"""`shoal certs`: what is made, what is refused, what is shown."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from shoal.cli import main
from shoal.cli.connection.session import Surroundings
from shoal.core.clock import SystemClock
from shoal.model.identity import Identity, Role
from shoal.wire.trust.certificates import describe, read_certificates
from shoal.wire.trust.credentials import CredentialPaths, load_authority, read_credentials

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class StillClock(SystemClock):
    """It is always noon."""

    def wall(self):
        return START


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch, tmp_path):
    for name in ("COLUMNS", "NO_COLOR", "SHOAL_CERTS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shoal(capsys):
    def run(*arguments, code=0):
        found = main.run(["certs", *arguments], around=Surroundings(make_clock=StillClock))
        outcome = Outcome(found, *capsys.readouterr())
        assert outcome.code == code, outcome
        return outcome

    return run


def facts_of(path):
    return describe(read_certificates(path.read_bytes())[0])


def modes(directory):
    return {stat.S_IMODE(path.lstat().st_mode) for path in directory.rglob("*") if path.is_file()}


def test_an_authority_and_what_it_issues(shoal, tmp_path):
    shoal("init", "--cluster", "blue")
    authority, _ = load_authority(tmp_path / "certs")
    assert authority.cluster == "blue"
    assert authority.certificate.not_valid_after_utc == START + timedelta(days=3650)

    done = shoal("issue", "--role", "agent", "--node-id", "n1", "--host", "n1.example", "--host", "10.0.0.5")
    directory = tmp_path / "certs" / "agent-n1"
    assert "--cert certs/agent-n1/cert.pem --key certs/agent-n1/key.pem" in done.err
    facts = facts_of(directory / "cert.pem")
    assert facts.identity == Identity(Role.AGENT, "blue", "n1")
    assert facts.hosts == ("localhost", "n1.example", "127.0.0.1", "::1", "10.0.0.5")
    assert facts.not_after == START + timedelta(days=365)
    found = read_credentials(CredentialPaths.within(directory), now=START)
    assert found.ca == authority.pem
    assert modes(tmp_path) == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "certs", directory)} == {0o700}


@pytest.mark.parametrize(
    ("arguments", "name", "hosts"),
    [
        (("--role", "control"), "control", ("localhost", "127.0.0.1", "::1")),
        (("--role", "control", "--name", "c2"), "c2", ("localhost", "127.0.0.1", "::1")),
        (("--role", "operator", "--name", "ada"), "ada", ()),
        (("--role", "operator"), "operator", ()),
    ],
)
def test_names_and_hosts_have_defaults(shoal, tmp_path, arguments, name, hosts):
    shoal("init")
    shoal("issue", *arguments, "--out", "files", "--days", "7")
    facts = facts_of(tmp_path / "files" / "cert.pem")
    assert facts.identity is not None
    assert (facts.identity.name, facts.identity.cluster, facts.hosts) == (name, "default", hosts)
    assert facts.not_after == START + timedelta(days=7)


def test_an_authority_is_not_made_twice(shoal, tmp_path):
    shoal("init")
    before = (tmp_path / "certs" / "ca.pem").read_bytes()
    assert "is not replaced" in shoal("init", code=1).err
    assert (tmp_path / "certs" / "ca.pem").read_bytes() == before
    shoal("init", "--dir", "other")


def test_without_an_authority_nothing_is_issued(shoal):
    assert "shoal certs init" in shoal("issue", "--role", "operator", code=1).err


def test_issuing_again_replaces_the_files_of_the_same_holder_only(shoal, tmp_path):
    shoal("init")
    shoal("issue", "--role", "agent", "--node-id", "n1", "--out", "files")
    first = (tmp_path / "files" / "cert.pem").read_bytes()
    shoal("issue", "--role", "agent", "--node-id", "n1", "--out", "files")
    second = (tmp_path / "files" / "cert.pem").read_bytes()
    assert first != second
    refused = shoal("issue", "--role", "agent", "--node-id", "n2", "--out", "files", code=2)
    assert "there are those of agent n1" in refused.err
    assert (tmp_path / "files" / "cert.pem").read_bytes() == second


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--role", "agent"), "--node-id: is required"),
        (("--role", "agent", "--name", "x"), "--name: is not for agents"),
        (("--role", "operator", "--node-id", "n1"), "--node-id: is for agents"),
        (("--role", "agent", "--node-id", "../n1"), "name: must be 1 to 128"),
        (("--role", "control", "--host", "*.example"), "host: must be a host name"),
        (("--role", "control", "--host", "control.default.shoal"), "must not end with .shoal"),
        (("--role", "workload", "--name", "x"), "workload"),
        (("--role", "operator", "--days", "0"), "--days"),
        ((), "--role"),
    ],
)
def test_mistakes_are_named(shoal, tmp_path, arguments, words):
    shoal("init")
    assert words in shoal("issue", *arguments, code=2).err
    assert sorted(path.name for path in (tmp_path / "certs").iterdir()) == ["ca-key.pem", "ca.pem"]


def test_what_there_is_is_shown(shoal):
    shoal("init", "--cluster", "blue")
    shoal("issue", "--role", "agent", "--node-id", "n1")
    shoal("issue", "--role", "operator", "--name", "ada", "--days", "1")
    lines = shoal("show").out.splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["FILE", "ROLE", "NAME", "CLUSTER"],
        ["agent-n1/cert.pem", "agent", "n1", "blue"],
        ["ca.pem", "authority", "-", "blue"],
        ["operator-ada/cert.pem", "operator", "ada", "blue"],
    ]


def test_what_there_is_is_shown_as_json(shoal):
    shoal("init", "--cluster", "blue")
    shoal("issue", "--role", "agent", "--node-id", "n1")
    agent, authority = json.loads(shoal("show", "--json").out)["certificates"]
    assert agent["identity"] == "shoal://blue/agent/n1"
    assert agent["hosts"] == ["localhost", "127.0.0.1", "::1"]
    assert agent["expired"] is False
    assert (authority["role"], authority["cluster"], authority["identity"]) == ("authority", "blue", "")
    assert agent["issuer"] == authority["subject"]
    (one,) = json.loads(shoal("show", "certs/agent-n1/cert.pem", "--json").out)["certificates"]
    assert one["sha256"] == agent["sha256"]
    assert "PRIVATE" not in json.dumps([agent, authority])


def test_what_is_no_certificate_is_said(shoal, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no certificate in empty" in shoal("show", "empty").err
    (tmp_path / "x.pem").write_text("what?")
    assert "must be a certificate" in shoal("show", "x.pem", code=2).err
    assert "not found" in shoal("show", "nowhere", code=1).err
