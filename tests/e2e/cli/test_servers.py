"""`shoal control` and `shoal agent` as processes: settings, addresses, signals."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.e2e

PATIENCE = 60.0


def shoal(*arguments: str, env: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**clean_environment(), **(env or {})},
        **options,
    )


def clean_environment() -> dict[str, str]:
    names = ("GRPC_PORT", "METRICS_PORT", "NO_COLOR", "COLUMNS")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SHOAL_", "PERSYS_")) and name not in names
    }


@dataclasses.dataclass
class Started:
    """A server as a process."""

    process: subprocess.Popen[bytes]
    log: Path
    ready: dict[str, Any]


@pytest.fixture
def start(tmp_path):
    """Starts servers, and ends what is left of them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> Started:
        log, ready = (tmp_path / f"{name}-{len(started)}" for name in ("log", "ready"))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "shoal", *arguments, "--ready-file", str(ready)],
                stdout=output,
                stderr=output,
                env={**clean_environment(), **(env or {})},
            )
        started.append(process)
        deadline = time.monotonic() + PATIENCE
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "it is not ready"
            time.sleep(0.05)
        return Started(process, log, json.loads(ready.read_text()))

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_it_serves_says_where_and_ends_on_sigterm(start, tmp_path):
    plane = start(
        "control", "--insecure", "--data-dir", str(tmp_path / "data"), env={"GRPC_PORT": "0", "SHOAL_HTTP_PORT": "0"}
    )
    ready = plane.ready
    assert ready["role"] == "control"
    assert ready["pid"] == plane.process.pid
    answer = json.loads(urllib.request.urlopen(f"http://{ready['http']}/health", timeout=PATIENCE).read())
    assert answer["status"] == "ok"
    outcome = shoal("status", "--json", env={"SHOAL_CONTROL": ready["grpc"], "SHOAL_INSECURE": "1"})
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["summary"]["total_nodes"] == 0
    plane.process.send_signal(signal.SIGTERM)
    assert plane.process.wait(PATIENCE) == 0
    assert f"control plane ready: grpc {ready['grpc']}, http {ready['http']}\n" in plane.log.read_text()


def test_what_is_stored_is_there_after_kill_9(start, tmp_path):
    arguments = ("control", "--insecure", "--data-dir", str(tmp_path / "data"), "--grpc-port", "0", "--http-port", "0")
    plane = start(*arguments)
    spec = tmp_path / "web.yaml"
    spec.write_text("id: web\ntype: process\nprocess: {command: [sleep, '60']}\n")
    outcome = shoal("apply", "-f", str(spec), "--control", plane.ready["grpc"], "--insecure")
    assert outcome.returncode == 3, outcome.stderr
    plane.process.kill()
    plane.process.wait()
    outcome = shoal("workload", "get", "web", "--control", start(*arguments).ready["grpc"], "--insecure")
    assert outcome.returncode == 0, outcome.stderr
    # Until the new process has tried to place it, it is Pending.
    assert re.search(r"^state +(Pending|Unplaceable)$", outcome.stdout, re.MULTILINE), outcome.stdout


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    config = tmp_path / "control.toml"
    config.write_text('strategy = "chaos"\nleese = "3s"\n')
    outcome = shoal(
        "control", "--config", str(config), "--grpc-port", "many", "--log-level", "loud", env={"METRICS_PORT": "-4"}
    )
    assert outcome.returncode == 2
    said = outcome.stderr
    for name in ("--data-dir", "--grpc-port", "METRICS_PORT", "strategy", "leese", "--log-level"):
        assert name in said, said


def test_security_has_to_be_declined(tmp_path):
    outcome = shoal("control", "--data-dir", str(tmp_path))
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("error: --ca: is required, with cert and key: make them with `shoal certs init`")
    outcome = shoal("control", "--data-dir", str(tmp_path), "--cert", "c.pem", env={"SHOAL_INSECURE": "1"})
    assert outcome.returncode == 2
    assert "one or the other" in outcome.stderr


def test_insecure_is_warned_about_and_stays_on_this_machine(start, tmp_path):
    plane = start("control", "--insecure", "--data-dir", str(tmp_path / "a"), "--grpc-port", "0", "--http-port", "0")
    assert "WARNING" in plane.log.read_text()
    assert "--insecure: nothing is encrypted" in plane.log.read_text()
    assert f"anyone who can connect to {plane.ready['grpc']} may" in plane.log.read_text()
    assert plane.ready["grpc"].startswith("127.0.0.1:")
    port = int(plane.ready["grpc"].rpartition(":")[2])
    connections = psutil.Process(plane.process.pid).net_connections("tcp")
    served_at = {each.laddr.ip.removeprefix("::ffff:") for each in connections if each.laddr.port == port}
    assert served_at == {"127.0.0.1"}


@pytest.mark.parametrize("role", ["control", "agent"])
@pytest.mark.parametrize("host", ["0.0.0.0", pytest.param("::", marks=pytest.mark.long)])
def test_the_warning_says_that_every_interface_is_open(start, tmp_path, role, host):
    """What the ready file says is how this machine dials it; what people read is who else can."""
    flags = ["--insecure", "--data-dir", str(tmp_path / "a"), "--grpc-host", host, "--grpc-port", "0"]
    server = start(role, *flags, "--http-port", "0", *(["--standalone"] if role == "agent" else []))
    port = server.ready["grpc"].rpartition(":")[2]
    assert server.ready["grpc"] in (f"127.0.0.1:{port}", f"[::1]:{port}")
    bound = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    said = server.log.read_text()
    assert f"anyone who can connect to {bound} (every interface, port {port}) may do everything" in said
    assert f"ready: grpc {bound}, http {server.ready['http']}\n" in said


def issue(folder, role, name):
    flag = "--node-id" if role == "agent" else "--name"
    outcome = shoal("certs", "issue", "--dir", str(folder), "--role", role, flag, name)
    assert outcome.returncode == 0, outcome.stderr
    files = folder / f"{role}-{name}"
    return ("--ca", str(files / "ca.pem"), "--cert", str(files / "cert.pem"), "--key", str(files / "key.pem"))


def test_a_fleet_with_certificates_that_were_made_by_hand(start, tmp_path):
    folder = tmp_path / "certs"
    assert shoal("certs", "init", "--dir", str(folder), "--cluster", "lab").returncode == 0
    control, agent, operator = (
        issue(folder, role, name) for role, name in (("control", "c"), ("agent", "n1"), ("operator", "me"))
    )
    plane = start("control", *control, "--data-dir", str(tmp_path / "c"), "--grpc-port", "0", "--http-port", "0")
    assert "WARNING" not in plane.log.read_text()
    node = start(
        *("agent", *agent, "--data-dir", str(tmp_path / "a"), "--control", plane.ready["grpc"], "--grpc-port", "0")
    )
    assert node.ready["node_id"] == "n1"  # as the certificate says
    seen = wait_for_node(plane.ready["grpc"], "n1", proof=operator)
    assert seen["cluster_id"] == "lab"

    refused = shoal("node", "list", "--control", plane.ready["grpc"], *agent)
    assert refused.returncode == 1
    assert "ListNodes needs the role operator; the caller is agent n1" in refused.stderr
    refused = shoal("node", "list", "--control", plane.ready["grpc"], "--insecure")
    assert refused.returncode == 1
    assert "it speaks TLS, and we do not (--insecure)" in refused.stderr
    assert "give --ca, --cert and --key" in refused.stderr
    refused = shoal("control", *agent, "--data-dir", str(tmp_path / "d"), "--grpc-port", "0", "--http-port", "0")
    assert refused.returncode == 2
    assert "--cert: must be of role control" in refused.stderr


def test_a_port_that_is_taken_is_one_line(start, tmp_path):
    plane = start("control", "--insecure", "--data-dir", str(tmp_path / "a"), "--grpc-port", "0", "--http-port", "0")
    port = plane.ready["grpc"].rpartition(":")[2]
    outcome = shoal("control", "--insecure", "--data-dir", str(tmp_path / "b"), "--grpc-port", port, "--http-port", "0")
    assert outcome.returncode == 1
    last = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]
    assert len(last) == 1
    assert port in last[0]
    assert "Traceback" not in outcome.stderr


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwrite(path: Path) -> None:
    path.write_bytes(b"the quick brown fox jumps over the lazy dog" * 1000)


@pytest.mark.parametrize("damage", [pytest.param(cut_off, marks=pytest.mark.long), overwrite])
@pytest.mark.parametrize(
    ("arguments", "name"),
    [(("control",), "control.db"), (("agent", "--control", "127.0.0.1:1"), "agent.db")],
    ids=["control", "agent"],
)
def test_a_damaged_database_is_one_line_and_what_to_do(start, tmp_path, arguments, name, damage):
    data = tmp_path / "data"
    command = (*arguments, "--insecure", "--data-dir", str(data), "--grpc-port", "0", "--http-port", "0")
    server = start(*command)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0
    damage(data / name)
    before = (data / name).read_bytes()
    outcome = shoal(*command)
    assert outcome.returncode == 1, outcome.stderr
    said = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert said[0].startswith(f"error: {data / name} is damaged: ")
    assert "docs/backup-and-restore.md" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert (data / name).read_bytes() == before  # so that somebody can save what is left


def test_an_agent_registers_with_what_it_was_given_and_ends_on_sigterm(start, tmp_path):
    plane = start("control", "--insecure", "--data-dir", str(tmp_path / "c"), "--grpc-port", "0", "--http-port", "0")
    config = tmp_path / "agent.toml"
    config.write_text(f'data_dir = "{tmp_path / "a"}"\nmemory = "1GB"\nslots = 9\ncpu = 2.0\n')
    agent = start(
        *("agent", "--insecure", "--config", str(config), "--slots", "3", "--label", "zone=a", "--label", "disk=ssd"),
        *("--grpc-port", "0", "--http-port", "0"),
        env={"SHOAL_CONTROL": plane.ready["grpc"], "PERSYS_NODE_ID": "n-1", "SHOAL_AGENT_CPU": "1.5"},
    )
    assert agent.ready["role"] == "agent"
    assert agent.ready["node_id"] == "n-1"
    assert urllib.request.urlopen(f"http://{agent.ready['http']}/health", timeout=PATIENCE).status == 200
    node = wait_for_node(plane.ready["grpc"], "n-1")
    assert node["grpc_endpoint"] == agent.ready["grpc"]
    assert node["total"]["slots"] == 3  # the flag, not the file
    assert node["total"]["cpu_millicores"] == 1500  # the environment, not the file
    assert node["total"]["memory_mb"] == 1024  # the file
    assert node["labels"]["zone"] == "a"
    assert node["labels"]["disk"] == "ssd"
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(PATIENCE) == 0
    assert f"agent n-1 ready: grpc {agent.ready['grpc']}, http {agent.ready['http']}\n" in agent.log.read_text()


def wait_for_node(control: str, name: str, *, proof: tuple[str, ...] = ("--insecure",)) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while True:
        outcome = shoal("node", "get", name, "--json", "--control", control, *proof)
        if outcome.returncode == 0:
            return json.loads(outcome.stdout)["node"]
        assert time.monotonic() < deadline, outcome.stderr


def test_everything_that_is_wrong_with_an_agent_is_said_at_once(tmp_path):
    outcome = shoal(
        *(
            "agent",
            "--data-dir",
            str(tmp_path),
            "--control",
            "h:1",
            "--slots",
            "-1",
            "--label",
            "zone",
            "--cpu",
            "lots",
        ),
        env={"PERSYS_METRICS_PORT": "many"},
    )
    assert outcome.returncode == 2
    for name in ("--slots", "--label", "--cpu", "PERSYS_METRICS_PORT"):
        assert f"error: {name}" in outcome.stderr, outcome.stderr


def test_an_agent_without_certificates_is_told_how_to_get_them(tmp_path):
    outcome = shoal("agent", "--data-dir", str(tmp_path), "--control", "127.0.0.1:1")
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("error: --ca: is required, with cert and key: ")


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("control", "--data-dir: is required", "`shoal control --help`"),
        ("agent", "--data-dir: is required", "`shoal agent --help`"),
        ("control --insecure --data-dir d --lease long", "--lease: must be a duration", "`shoal control --help`"),
        ("control --insecure --data-dir d --config /nope", "/nope: file '/nope' not found", "`shoal control --help`"),
        ("agent --insecure --data-dir d --control foo:bar", "foo:bar", "`shoal agent --help`"),
        ("control --insecure --data-dir /proc/x", "/proc/x cannot be used: no such file or directory", "--data-dir"),
        ("control --insecure --data-dir file", "file cannot be used: not a directory", "--data-dir"),
        ("agent --insecure --data-dir /proc/x --control c:1", "/proc/x cannot be used: no such file", "--data-dir"),
        ("agent --insecure --data-dir file --control c:1", "file cannot be used: not a directory", "--data-dir"),
        (
            "control --insecure --grpc-port 0 --http-port 0 --data-dir d --database postgresql://x@127.0.0.1:1/x",
            "PostgreSQL 127.0.0.1:1/x: connection failed",
            "SHOAL_DATABASE",
        ),
        ("certs init --dir file", "file: ", "choose another path"),
    ],
)
def test_what_keeps_a_server_from_starting_is_one_error_and_one_hint(words, error, hint, tmp_path):
    (tmp_path / "file").touch()
    outcome = shoal(*words.split(), cwd=tmp_path)
    lines = [line for line in outcome.stderr.splitlines() if line.startswith(("error:", "hint:"))]
    assert outcome.returncode in (1, 2), outcome.stderr
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], outcome.stderr
    assert error in lines[0]
    assert hint in lines[1]
    assert "a bug" not in outcome.stderr


def test_the_data_directories_are_for_their_owners_alone(start, tmp_path):
    plane = start("control", "--insecure", "--data-dir", str(tmp_path / "a"), "--grpc-port", "0", "--http-port", "0")
    agent = ("agent", "--insecure", "--node-id", "n1", "--grpc-port", "0", "--control", plane.ready["grpc"])
    start(*agent, "--data-dir", str(tmp_path / "b"))
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "b")] == [0o700, 0o700]


def test_a_real_control_plane_s_refusals_are_one_error_and_one_hint(start, tmp_path):
    plane = start("control", "--insecure", "--data-dir", str(tmp_path / "a"), "--grpc-port", "0", "--http-port", "0")
    member = "{id: m1, type: process, desired_state: Stopped, process: {command: [sleep, '60']}}"
    (tmp_path / "group.yaml").write_text(f"kind: group\nid: g1\nmembers: [{member}]\n")
    connection = ("--control", plane.ready["grpc"], "--insecure")
    assert shoal("apply", "--detach", "-f", str(tmp_path / "group.yaml"), *connection).returncode == 0
    for words, error, hint in (
        ("workload delete m1", "workload 'm1' is a member of group 'g1'", "change the group as a whole"),
        ("token create --ttl 1ms", "'--ttl': must be between 1s and 7d (got '1ms')", "`shoal token create --help`"),
        ("workload list --status Flying", "--status: must be one of Pending, Unplaceable", "--help`"),
        ("node list --status Flying", "--status: must be one of Ready, Suspect", "--help`"),
        ("node get nope", "node 'nope' not found", "`shoal node list`"),
        ("secret delete nope", "secret 'nope' not found", "`shoal secret list`"),
        ("token revoke nope", "not found", "`shoal token list`"),
    ):
        outcome = shoal(*words.split(), *connection)
        lines = [line for line in outcome.stderr.splitlines() if line]
        assert [line.partition(":")[0] for line in lines] == ["error", "hint"], outcome.stderr
        assert error in lines[0]
        assert hint in lines[1]
    assert shoal("events", "--after", "99999999", *connection).stderr == "nothing after 99999999\n"
    shown = shoal("workload", "list", "--status", "stopped", *connection)
    assert "m1" in shown.stdout
