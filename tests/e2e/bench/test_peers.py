"""Peers in environments of their own, and the scripts that run there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers import SCRIPTS, Peer
from shoal.core.errors import UnavailableError

pytestmark = pytest.mark.e2e


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def test_a_peer_sees_nothing_of_ours(tmp_path) -> None:
    # Found by name, because importing what must not be there could only fail.
    look = (
        "import importlib.util, json, sys\n"
        "names = ('shoal', 'grpc', 'bench')\n"
        "print(json.dumps({'found': [n for n in names if importlib.util.find_spec(n)], 'given': sys.argv[1:]}))\n"
    )
    peer = Peer("nothing", (), script(tmp_path, look))
    assert peer.run(["a", "b"], within=60, home=tmp_path) == {"found": [], "given": ["a", "b"]}


def test_an_environment_is_made_once_and_anew_when_its_packages_change(tmp_path) -> None:
    peer = Peer("nothing", (), script(tmp_path, "print(1)"))
    mark = peer.prepare(home=tmp_path).parent / "mark"
    mark.touch()
    peer.prepare(home=tmp_path)
    assert mark.exists()
    (tmp_path / "nothing" / "installed.txt").write_text("grpcio==0.1")
    peer.prepare(home=tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "within", "complaint"),
    [
        ("raise SystemExit('no luck')", 60, "no luck"),
        ("print(1); print(2)", 60, "2 lines"),
        ("import time; time.sleep(600)", 0.5, "longer than"),
    ],
)
def test_a_peer_that_fails_is_told_of(tmp_path, text, within, complaint) -> None:
    peer = Peer("nothing", (), script(tmp_path, text))
    peer.prepare(home=tmp_path)
    with pytest.raises(UnavailableError, match=complaint):
        peer.run(within=within, home=tmp_path)


def test_the_echo_answers_every_call() -> None:
    command = [sys.executable, str(SCRIPTS / "grpc_echo.py"), "100", "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    seconds = json.loads(done.stdout)["seconds"]
    assert len(seconds) == 20
    assert all(each > 0 for each in seconds)
