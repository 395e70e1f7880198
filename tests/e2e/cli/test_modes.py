"""Whose the files are that our programs make, also where the umask keeps nothing from anybody."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.cli.test_servers import PATIENCE, clean_environment, shoal

pytestmark = pytest.mark.e2e

#: No secrets: where a server is, and which id a control plane has in the election.
FOR_EVERYONE = {"ready.json", "name"}
#: What is inside belongs to workloads, which may have users of their own.
OF_WORKLOADS = "workloads"


@pytest.fixture
def start(tmp_path):
    """Starts commands with an umask of 0, and ends what is left of them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> Path:
        log = tmp_path / f"log-{len(started)}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "shoal", *words],
                stdout=output,
                stderr=output,
                cwd=tmp_path,
                umask=0,
                env=clean_environment(),
            )
        started.append(process)
        return log

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
    for process in started:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()


def wait_until(holds, log: Path) -> None:
    deadline = time.monotonic() + 2 * PATIENCE
    while not holds():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def modes(top: Path) -> dict[str, int]:
    """The mode of everything below a folder, and of itself, but for links, which have none."""
    found = [top, *top.rglob("*")]
    return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in found if not path.is_symlink()}


def test_what_a_fleet_keeps_is_for_its_own_user(start, tmp_path):
    log = start("up", "--agents", "1", "--data-dir", "made/fleet")
    top = tmp_path / "made" / "fleet"
    wait_until(lambda: "Ctrl-C stops everything" in log.read_text(), log)
    files = top / "certs" / "operator-operator"
    proof = [f"--{name}={files / name}.pem" for name in ("ca", "cert", "key")]
    address = next(line for line in (top / "client.toml").read_text().splitlines() if line.startswith("control"))
    to = ["--control", json.loads(address.partition("=")[2]), *proof]
    made = shoal("secret", "set", "db", *to, input="hunter2")
    assert made.returncode == 0, made.stderr
    spec = tmp_path / "web.yaml"
    spec.write_text("id: web\ntype: process\nprocess:\n  command: [sleep, '600']\n  env_from_secrets: {PASSWORD: db}\n")
    applied = shoal("apply", "-f", str(spec), "--wait", *to)
    assert applied.returncode == 0, applied.stderr

    found = modes(top)
    assert any(path.endswith(".db") for path in found), sorted(found)
    assert any(path.endswith(".sock") for path in found), sorted(found)
    assert any(path.endswith("key.pem") for path in found), sorted(found)
    assert {path: oct(mode) for path, mode in found.items() if mode & 0o022} == {}
    assert (tmp_path / "made").stat().st_mode & 0o022 == 0
    readable = {
        path: oct(mode)
        for path, mode in found.items()
        if mode & 0o044 and OF_WORKLOADS not in Path(path).parts and Path(path).name not in FOR_EVERYONE
    }
    assert readable == {}
    # Root's agents start workloads as other users, who have to get to what is theirs.
    passable = {
        Path(path).name for path, mode in found.items() if mode & 0o011 and OF_WORKLOADS not in Path(path).parts
    }
    assert passable <= ({"fleet", "control", "node-1"} if os.geteuid() == 0 else set())


def test_certificates_and_the_data_of_a_server_are_for_us_alone(start, tmp_path):
    made = shoal("certs", "init", "--dir", str(tmp_path / "a" / "certs"), umask=0)
    assert made.returncode == 0, made.stderr
    for words in (("--role", "control"), ("--role", "agent", "--node-id", "n1")):
        made = shoal("certs", "issue", *words, "--dir", str(tmp_path / "a" / "certs"), umask=0)
        assert made.returncode == 0, made.stderr
    files = tmp_path / "a" / "certs" / "control-control"
    proof = [word for name in ("ca", "cert", "key") for word in (f"--{name}", str(files / f"{name}.pem"))]
    ready = tmp_path / "ready"
    log = start(
        *("control", *proof, "--data-dir", "b/c/data", "--grpc-port", "0", "--http-port", "0"),
        *("--ready-file", str(ready)),
    )
    wait_until(ready.exists, log)
    found = {**modes(tmp_path / "a" / "certs"), **modes(tmp_path / "b" / "c" / "data")}
    assert len(found) > 8
    wrong = {
        path: oct(mode)
        for path, mode in found.items()
        if mode != (0o700 if Path(path).is_dir() else 0o600) and Path(path).name not in FOR_EVERYONE
    }
    assert wrong == {}
    for above in ("a", "b", "b/c"):
        assert (tmp_path / above).stat().st_mode & 0o022 == 0
    assert all(mode & 0o022 == 0 for mode in (*found.values(), ready.stat().st_mode))
