"""A fleet of real processes: started, killed in parts, started again, and gone without a trace."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.core.errors import PreconditionError, UnavailableError
from shoal.model.documents import WorkloadDocument
from shoal.model.workloads import ProcessSpec, WorkloadSpec, WorkloadType

pytestmark = pytest.mark.e2e

PATIENCE = 60.0


def document(name: str = "ticker") -> WorkloadDocument:
    return WorkloadDocument(name, WorkloadSpec(WorkloadType.PROCESS, process=ProcessSpec(("sleep", "1000"))))


def is_running(view) -> bool:
    return view is not None and view.status == "Running"


def processes_of(directory: Path) -> list[int]:
    """Everything alive that names the directory on its command line or in its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(directory) in word for word in words):
                found.append(process.pid)
    return found


def is_alive(pid: int) -> bool:
    """Whether it runs; what has ended and was not yet reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def small(directory: Path, **options) -> LocalFleet:
    return LocalFleet(
        directory,
        cpu=1,
        memory="512MB",
        slots=2,
        heartbeat_interval=timedelta(milliseconds=500),
        **{"agents": 1, "lease": timedelta(seconds=3), **options},
    )


async def test_a_fleet_in_parts(tmp_path):
    # An agent that is killed here comes back within its lease, also on a busy machine.
    async with small(tmp_path, agents=2, lease=timedelta(seconds=12)) as fleet, fleet.client() as control:
        await control.apply(document())
        view = await control.wait_for("ticker", is_running, timeout=PATIENCE)
        owner, pid = view.assigned_node_id, view.run.pid

        await fleet.kill_agent(owner)
        assert not fleet.is_running(owner)
        assert is_alive(pid)
        with pytest.raises(PreconditionError):
            fleet.pid_of(owner)
        await fleet.start_agent(owner)
        await fleet.wait_ready()
        with pytest.raises(PreconditionError):
            await fleet.start_agent(owner)

        address = fleet.control_address
        await fleet.kill_control()
        with pytest.raises(UnavailableError):
            await control.summary()
        await fleet.start_control()
        assert fleet.control_address == address
        await fleet.wait_ready()
        view = await control.wait_for("ticker", is_running, timeout=PATIENCE)
        assert view.run.pid == pid

        await fleet.kill_machine(owner)
        assert not is_alive(pid)
        view = await control.wait_for(
            "ticker", lambda view: is_running(view) and view.assigned_node_id != owner, timeout=PATIENCE
        )
        assert view.run.pid != pid
    assert processes_of(tmp_path) == [], [psutil.Process(pid).cmdline() for pid in processes_of(tmp_path)]


async def test_an_agent_from_elsewhere_joins_with_a_token(tmp_path):
    async with small(tmp_path / "fleet") as fleet, fleet.client() as control:
        made = subprocess.run(
            [sys.executable, "-m", "shoal", "token", "create", "--node-id", "guest", "--json"],
            env={**os.environ, **fleet.client_variables},
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
        answer = json.loads(made.stdout)
        assert answer["join_address"] == fleet.join_address
        folder = tmp_path / "guest"
        command = [
            *(sys.executable, "-m", "shoal", "agent", "--control", fleet.control_address, "--data-dir", str(folder)),
            *("--node-id", "guest", "--join", answer["token"], "--join-address", answer["join_address"]),
            *("--grpc-host", "127.0.0.1", "--grpc-port", "0", "--cpu", "1", "--memory", "512MB"),
        ]
        with (tmp_path / "guest.log").open("ab") as log:
            guest = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            first = await until_ready(control, "guest")
            guest.kill()
            guest.wait()
            # Again, with the token still on its command line, and used up.
            with (tmp_path / "guest.log").open("ab") as log:
                guest = subprocess.Popen(command, stdout=log, stderr=log)
            await until_ready(control, "guest", after=first)
        finally:
            guest.kill()
            guest.wait()
        said = (tmp_path / "guest.log").read_text()
        assert "joined cluster default as agent guest" in said
        assert "this node has joined already" in said
        assert answer["token"] not in said + fleet.log_of("control").read_text()
        stored = b"".join(path.read_bytes() for path in (fleet.directory_of("control") / "data").glob("control.db*"))
        assert answer["token"].split(".")[2].encode() not in stored


async def test_a_secret_reaches_the_workload_and_lies_readable_nowhere(tmp_path):
    value = "correct-horse-battery-staple-7719"
    told = tmp_path / "told"
    folder = tmp_path / "fleet"
    spec = tmp_path / "spec.yaml"
    code = (
        "import hashlib, os, pathlib, time; "
        f"pathlib.Path({str(told)!r}).write_text(hashlib.sha256(os.environ['PASSWORD'].encode()).hexdigest()); "
        "print('started', flush=True); time.sleep(1000)"
    )
    spec.write_text(
        json.dumps(
            {
                "id": "keeper-of-it",
                "type": "process",
                "process": {
                    "command": [sys.executable, "-c", code],
                    "env": {"PLAIN": "text", "PASSWORD": {"secret": "db-password"}},
                },
            }
        )
    )
    async with small(folder) as fleet, fleet.client() as control:

        def shoal(*arguments, given=b""):
            return subprocess.run(
                [sys.executable, "-m", "shoal", *arguments],
                env={**os.environ, **fleet.client_variables},
                input=given,
                capture_output=True,
                timeout=PATIENCE,
                check=False,
            )

        said = [shoal("secret", "set", "db-password", given=f"{value}\n".encode())]
        said += [shoal("apply", "-f", str(spec)), shoal("secret", "list", "--json")]
        await control.wait_for("keeper-of-it", is_running, timeout=PATIENCE)
        # Once more, from what the node has kept.
        await fleet.kill_machine("node-1")
        await until_told(told, value)
        told.unlink()
        await fleet.start_agent("node-1")
        await until_told(told, value)
        said += [
            shoal("workload", "get", "keeper-of-it", "--json"),
            shoal("events", "--json"),
            shoal("logs", "keeper-of-it"),
            shoal("secret", "delete", "db-password"),
        ]
    assert [outcome.returncode for outcome in said] == [0] * (len(said) - 1) + [1], said
    for outcome in said:
        assert value.encode() not in outcome.stdout + outcome.stderr
    forms = [value.encode(), base64.b64encode(value.encode()), value.encode().hex().encode()]
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(form in content for form in forms), path


async def until_told(path, value):
    wanted = hashlib.sha256(value.encode()).hexdigest()
    deadline = time.monotonic() + PATIENCE
    while not path.exists() or path.read_text() != wanted:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def until_ready(control, node_id, *, after=""):
    """The session in which a node is Ready, another than the one that is given."""
    deadline = time.monotonic() + PATIENCE
    while True:
        nodes = {node.node_id: (node.status, node.session) for node in await control.list_nodes()}
        status, session = nodes.get(node_id, ("", ""))
        if status == "Ready" and session != after:
            return session
        assert time.monotonic() < deadline, nodes
        await asyncio.sleep(0.1)


async def test_a_child_that_dies_is_noticed(tmp_path):
    async with small(tmp_path) as fleet:
        os.kill(fleet.pid_of("node-1"), signal.SIGKILL)
        ended = await asyncio.wait_for(fleet.wait_exit(), PATIENCE)
        assert (ended.name, ended.code) == ("node-1", -signal.SIGKILL)
        assert "ready" in ended.tail
    assert processes_of(tmp_path) == [], [psutil.Process(pid).cmdline() for pid in processes_of(tmp_path)]


async def test_a_child_that_cannot_start_is_told_with_its_last_words(tmp_path):
    with pytest.raises(UnavailableError, match="control exited with code 2") as caught:
        async with small(tmp_path, control_args=("--strategy", "chaos")):
            pass
    assert str(tmp_path / "control" / "log") in caught.value.hint
    assert processes_of(tmp_path) == [], [psutil.Process(pid).cmdline() for pid in processes_of(tmp_path)]


async def test_a_stopped_fleet_without_stopping_workloads_leaves_nothing_either(tmp_path):
    async with small(tmp_path, stop_workloads_on_exit=False) as fleet, fleet.client() as control:
        await control.apply(document())
        view = await control.wait_for("ticker", is_running, timeout=PATIENCE)
        await fleet.stop_agent("node-1")
        assert is_alive(view.run.pid)
    assert not is_alive(view.run.pid)
    assert processes_of(tmp_path) == [], [psutil.Process(pid).cmdline() for pid in processes_of(tmp_path)]


async def test_the_folder_of_another_fleet_is_left_alone(tmp_path):
    async with small(tmp_path) as fleet, fleet.client() as control:
        await control.apply(document())
        view = await control.wait_for("ticker", is_running, timeout=PATIENCE)
        with pytest.raises(PreconditionError, match="in use by process"):
            async with small(tmp_path):
                pass
        assert is_alive(view.run.pid)
        assert fleet.is_running("node-1")


# ---------------------------------------------------------------------------------------------------------
# shoal up


@dataclasses.dataclass
class Up:
    process: subprocess.Popen[bytes]
    log: Path

    def wait_for_words(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while words not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def start_up(tmp_path):
    started: list[subprocess.Popen[bytes]] = []

    def start_up(*arguments: str) -> Up:
        log = tmp_path / f"up-{len(started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "shoal", "up", "--agents", "1", "--grpc-port", "0", *arguments],
                cwd=tmp_path,
                stdout=output,
                stderr=output,
            )
        started.append(process)
        return Up(process, log)

    yield start_up
    for process in started:
        process.kill()
        process.wait()
    for pid in processes_of(tmp_path / ".shoal"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def shoal(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A client command in the folder of `shoal up`, told nothing else."""
    return subprocess.run(
        [sys.executable, "-m", "shoal", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=directory,
        env={name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")},
    )


def pid_of_workload(directory: Path) -> int:
    outcome = shoal(directory, "workload", "get", "sleeper", "--json")
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)["workload"]["run"]["pid"]


def test_up_goes_on_where_it_was_and_leaves_nothing_behind(start_up, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("id: sleeper\ntype: process\nprocess: {command: [sleep, '1000']}\n")

    first = start_up()
    first.wait_for_words("Ctrl-C stops everything")
    outcome = shoal(tmp_path, "apply", "-f", str(spec))
    assert outcome.returncode == 0, outcome.stderr
    pid = pid_of_workload(tmp_path)
    first.wait_for_words("WorkloadRunning")
    refused = start_up()
    assert refused.process.wait(PATIENCE) == 1
    assert "is in use by process" in refused.log.read_text()
    assert "Traceback" not in refused.log.read_text()

    first.process.kill()  # nobody is left to stop the children
    first.process.wait()
    second = start_up()
    second.wait_for_words("Ctrl-C stops everything")
    outcome = shoal(tmp_path, "workload", "wait", "sleeper")
    assert outcome.returncode == 0, outcome.stderr
    assert pid_of_workload(tmp_path) == pid

    second.process.send_signal(signal.SIGINT)
    assert second.process.wait(PATIENCE) == 0
    assert not is_alive(pid)
    assert processes_of(tmp_path / ".shoal") == []


async def test_a_member_is_tried_again_by_the_command_and_its_group_is_as_before(tmp_path):
    spec, done = tmp_path / "gang.yaml", tmp_path / "failed-once"
    command = f"test -e {done} || {{ touch {done}; exit 3; }}; exec sleep 1000"
    fragile = {"command": ["sh", "-c", command], "restart": {"policy": "no"}}
    steady = {"command": ["sleep", "1000"]}
    members = [{"id": "a", "type": "process", "process": fragile}, {"id": "b", "type": "process", "process": steady}]
    spec.write_text(json.dumps({"kind": "group", "id": "gang", "members": members}))
    async with small(tmp_path / "fleet") as fleet, fleet.client() as control:
        environment = {**os.environ, **fleet.client_variables}

        def shoal(*arguments):
            command = [sys.executable, "-m", "shoal", *arguments]
            return subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
            )

        applied = shoal("apply", "-f", str(spec), "--detach")
        assert applied.returncode == 0, applied.stderr
        await control.wait_for("a", lambda view: view is not None and view.status == "Failed", timeout=PATIENCE)
        other = await control.wait_for("b", is_running, timeout=PATIENCE)
        before = await control.get_group("gang")
        outcome = shoal("workload", "retry", "a")
        assert outcome.returncode == 0, outcome.stderr
        assert is_running(await control.get_workload("a"))
        after = await control.get_group("gang")
        assert (after.generation, after.status) == (before.generation, "Running")
        again = await control.get_workload("b")
        assert (again.generation, again.run.pid) == (other.generation, other.run.pid)


def test_up_starts_again_what_dies(start_up, tmp_path):
    up = start_up()
    up.wait_for_words("Ctrl-C stops everything")
    for name in ("control", "node-1"):
        os.kill(pid_of_child(tmp_path, name), signal.SIGKILL)
        up.wait_for_words(f"{name} was killed by signal 9; it is started again")
        up.wait_for_words(f"{name} is back")
    outcome = shoal(tmp_path, "node", "list")
    assert outcome.returncode == 0, outcome.stderr
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(PATIENCE) == 0
    assert processes_of(tmp_path / ".shoal") == []


def test_up_gives_up_on_what_dies_again_and_again(start_up, tmp_path):
    up = start_up()
    up.wait_for_words("Ctrl-C stops everything")
    killed = set()
    deadline = time.monotonic() + PATIENCE
    while up.process.poll() is None:
        assert time.monotonic() < deadline, up.log.read_text()
        pid = pid_of_child(tmp_path, "node-1")
        if pid is not None and pid not in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.02)
    assert up.process.returncode == 1
    assert "5 deaths in a row, so everything is stopped" in up.log.read_text()
    assert processes_of(tmp_path / ".shoal") == []


@pytest.mark.parametrize(
    "words",
    [
        "",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("control: Starting", "control: Ready")),
        "waiting until its node is Ready",
    ],
)
def test_ctrl_c_while_up_starts_leaves_nothing_behind(start_up, tmp_path, words):
    up = start_up("--agents", "2")
    up.wait_for_words(words)
    up.process.send_signal(signal.SIGINT)
    # Before anything was started, it is a plain interruption.
    assert up.process.wait(PATIENCE) in ((0,) if words else (0, 130, -signal.SIGINT)), up.log.read_text()
    assert "a bug" not in up.log.read_text()
    assert processes_of(tmp_path / ".shoal") == []


def test_a_second_ctrl_c_does_not_wait_for_workloads(start_up, tmp_path):
    spec = tmp_path / "spec.yaml"
    command = "trap '' TERM; echo ready; while true; do sleep 1; done"
    stubborn = {"command": ["sh", "-c", command], "stop": {"grace": "30m"}}
    spec.write_text(json.dumps({"id": "sleeper", "type": "process", "process": stubborn}))
    up = start_up()
    up.wait_for_words("Ctrl-C stops everything")
    outcome = shoal(tmp_path, "apply", "-f", str(spec))
    assert outcome.returncode == 0, outcome.stderr
    pid = pid_of_workload(tmp_path)
    up.process.send_signal(signal.SIGINT)
    up.wait_for_words("stopping; Ctrl-C again does not wait")
    up.process.send_signal(signal.SIGINT)
    # Far less than the workload was given.
    assert up.process.wait(PATIENCE) == 0, up.log.read_text()
    assert not is_alive(pid)
    assert processes_of(tmp_path / ".shoal") == []


@pytest.mark.parametrize("flag", ["--grpc-port", "--http-port"])
def test_up_on_a_port_that_is_taken_says_so_and_leaves_nothing(start_up, tmp_path, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        up = start_up(flag, port)
        assert up.process.wait(PATIENCE) == 1
    said = [line for line in up.log.read_text().splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert said[0].startswith("error: control exited with code 1: ")
    assert port in said[0]
    assert str(tmp_path / ".shoal" / "control" / "log") in up.log.read_text()
    assert processes_of(tmp_path / ".shoal") == []


def test_an_agent_that_cannot_start_takes_the_others_with_it(start_up, tmp_path):
    (tmp_path / ".shoal" / "node-2").mkdir(parents=True)
    (tmp_path / ".shoal" / "node-2" / "data").write_text("in the way")
    up = start_up("--agents", "3")
    assert up.process.wait(PATIENCE) == 1
    said = [line for line in up.log.read_text().splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert "node-2 exited with code 1" in said[0]
    assert "Traceback" not in up.log.read_text()
    assert processes_of(tmp_path / ".shoal") == []


def test_a_data_directory_that_cannot_be_used_is_one_line(start_up, tmp_path):
    (tmp_path / "file").write_text("in the way")
    up = start_up("--data-dir", "file")
    assert up.process.wait(PATIENCE) == 1
    assert f"error: {tmp_path / 'file'} cannot be used: not a directory" in up.log.read_text()
    assert "a bug" not in up.log.read_text()


def test_up_goes_on_when_nobody_reads_what_it_says(tmp_path):
    reading, writing = os.pipe()
    up = subprocess.Popen(
        [sys.executable, "-m", "shoal", "up", "--agents", "1"], cwd=tmp_path, stdout=writing, stderr=writing
    )
    os.close(writing)
    try:
        assert os.read(reading, 16)
        os.close(reading)
        deadline = time.monotonic() + PATIENCE
        while shoal(tmp_path, "node", "list", "--json").stdout.count('"Ready"') != 1:
            assert up.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENCE) == 0
        assert processes_of(tmp_path / ".shoal") == []
    finally:
        up.kill()
        up.wait()
        for pid in processes_of(tmp_path / ".shoal"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def pid_of_child(directory: Path, name: str) -> int | None:
    try:
        children = json.loads((directory / ".shoal" / "children.json").read_text())
    except (OSError, ValueError):  # it is being written
        return None
    return children[name]["pid"] if name in children else None


def test_certificates_are_made_once_and_private(start_up, tmp_path):
    fingerprints = []
    for _ in range(2):
        up = start_up()
        up.wait_for_words("Ctrl-C stops everything")
        fingerprints.append({path: path.read_bytes() for path in (tmp_path / ".shoal" / "certs").rglob("*.pem")})
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(PATIENCE) == 0
    assert fingerprints[0] == fingerprints[1]
    assert len(fingerprints[0]) == 2 + 3 * 3
    assert all(path.stat().st_mode & 0o077 == 0 for path in fingerprints[0])
    assert (tmp_path / ".shoal" / "client.toml").stat().st_mode & 0o077 == 0
