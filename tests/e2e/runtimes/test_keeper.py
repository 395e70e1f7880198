"""The keeper as a process: light, alone, deaf to signals, gone when nobody needs it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, PreconditionError, UnavailableError
from shoal.core.host import boot_id
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import FailureReason, ProcessSpec
from shoal.runtimes import cgroups
from shoal.runtimes.base import RunError, RunPhase, RunRequest
from shoal.runtimes.keeper import procfs, protocol
from shoal.runtimes.keeper.files import KeeperFiles, connect, socket_address
from shoal.runtimes.keeper.launcher import launch_keeper
from shoal.runtimes.keeper.lives.children import ChildDefaults, Launch, fork_gated, read_report
from shoal.runtimes.process import ProcessRuntime, read_keeper_pid, read_run_records
from shoal.testing.machines import kill_machine, machine_pids
from shoal.testing.suites.runtime import wait_ended, wait_output
from tests.e2e.runtimes.conftest import OpenRuntime, StartAgent
from tests.e2e.runtimes.processes import is_alive, keeper_of, wait_until

pytestmark = pytest.mark.e2e

HEAVY = ("grpc", "sqlalchemy", "google", "psutil", "asyncio", "ssl", "hashlib", "logging", "typer", "rich", "yaml")


def request(script: str, *, run_id: str = "web-1", **options: object) -> RunRequest:
    workload_id = WorkloadId(run_id.rpartition("-")[0])
    deadline = options.pop("deadline", None)
    spec = ProcessSpec(command=("/bin/sh", "-c", script), **options)
    ends_at = None if deadline is None else SystemClock().monotonic() + deadline
    return RunRequest(run_id=run_id, workload_id=workload_id, spec=spec, deadline=ends_at)


async def test_the_keeper_is_light(open_runtime: OpenRuntime, data_dir: Path) -> None:
    await open_runtime()
    status = (Path("/proc") / str(keeper_of(data_dir)) / "status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident < 20 * 1024, f"{resident} kB"
    mapped = (Path("/proc") / str(keeper_of(data_dir)) / "maps").read_text()
    assert "cygrpc" not in mapped
    assert "libssl" not in mapped


def test_importing_the_keeper_loads_nothing_heavy() -> None:
    source = str(Path(protocol.__file__).parents[3])
    program = f"import sys; import shoal.runtimes.keeper.server; print([m for m in {HEAVY!r} if m in sys.modules])"
    command = [os.path.realpath("/proc/self/exe"), "-S", "-c", program]
    done = subprocess.run(command, env={"PYTHONPATH": source}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_second_keeper_is_impossible(open_runtime: OpenRuntime, data_dir: Path) -> None:
    runtime = await open_runtime()
    first = keeper_of(data_dir)
    await launch_keeper(KeeperFiles(data_dir))
    assert keeper_of(data_dir) == first
    assert await runtime.health() == "healthy"


async def test_many_agents_at_once_start_one_keeper(data_dir: Path) -> None:
    runtimes = [ProcessRuntime(data_dir, clock=SystemClock(), node_id=NodeId("n1")) for _ in range(4)]
    await asyncio.gather(*(runtime.open() for runtime in runtimes))
    assert {runtime._link.hello["pid"] for runtime in runtimes} == {keeper_of(data_dir)}
    for runtime in runtimes:
        await runtime.close()


async def test_signals_do_not_end_the_keeper(open_runtime: OpenRuntime, data_dir: Path) -> None:
    runtime = await open_runtime()
    await runtime.start(request("exec sleep 1000"))
    keeper = keeper_of(data_dir)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        os.kill(keeper, number)
    assert await runtime.health() == "healthy"
    with pytest.raises(PreconditionError):
        await runtime._link.call("shutdown")
    info = await runtime.inspect("web-1")
    assert info is not None
    assert info.phase is RunPhase.RUNNING
    assert keeper_of(data_dir) == keeper


async def test_closing_without_runs_ends_the_keeper_and_with_runs_does_not(
    open_runtime: OpenRuntime, data_dir: Path
) -> None:
    runtime = await open_runtime()
    await runtime.start(request("exit 2"))
    ended = await wait_ended(runtime, "web-1")
    await runtime.close()
    assert read_keeper_pid(data_dir) is None
    assert [record.run_id for record in read_run_records(data_dir)] == ["web-1"]
    runtime = await open_runtime()
    assert await runtime.list_runs() == (ended,)
    await runtime.start(request("exec sleep 1000", run_id="web-2"))
    await runtime.close()
    assert is_alive(keeper_of(data_dir))


async def test_a_keeper_that_nobody_needs_goes_by_itself(data_dir: Path, open_runtime: OpenRuntime) -> None:
    files = KeeperFiles(data_dir)
    files.make()
    await launch_keeper(files, idle=0.3)
    assert read_keeper_pid(data_dir) is not None
    await wait_until(lambda: read_keeper_pid(data_dir) is None)
    assert not files.socket.exists()
    runtime = await open_runtime()
    assert await runtime.health() == "healthy"


async def test_a_keeper_whose_directory_was_deleted_goes(data_dir: Path) -> None:
    files = KeeperFiles(data_dir)
    files.make()
    await launch_keeper(files)
    keeper = keeper_of(data_dir)
    files.lock.unlink()
    await wait_until(lambda: not is_alive(keeper))


async def test_a_data_directory_may_be_deeper_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100) / "agent"
    runtime = ProcessRuntime(deep, clock=SystemClock(), node_id=NodeId("n1"))
    await runtime.open()
    try:
        await runtime.start(request("exit 3"))
        ended = await wait_ended(runtime, "web-1")
        assert ended.exit is not None
        assert ended.exit.code == 3
        assert stat.S_IMODE(KeeperFiles(deep).socket.stat().st_mode) == 0o600
    finally:
        await runtime.close()
        kill_machine(deep)


async def test_a_keeper_that_cannot_start_is_said_so(tmp_path: Path) -> None:
    in_the_way = tmp_path / "agent"
    in_the_way.mkdir()
    (in_the_way / "keeper").write_text("a file, not a directory")
    runtime = ProcessRuntime(in_the_way, clock=SystemClock(), node_id=NodeId("n1"))
    with pytest.raises(UnavailableError):
        await runtime.open()
    assert (await runtime.health()).startswith("unhealthy: ")
    await runtime.close()


async def test_nonsense_on_the_socket_harms_nobody(open_runtime: OpenRuntime, data_dir: Path) -> None:
    runtime = await open_runtime()
    await runtime.start(request("exec sleep 1000"))
    lines = [
        b"this is not JSON\n",
        b"[1, 2]\n",
        b'{"id": 1}\n',
        b'{"id": 2, "op": "no such operation"}\n',
        b'{"id": 3, "op": "start"}\n',
        b'{"id": 4, "op": "start", "run": {"run_id": "../../etc"}}\n',
        b'{"id": 5, "op": "stop", "run_id": ["a", "list"]}\n',
        b'{"id": 6, "op": "extend", "run_ids": 7, "seconds": "soon"}\n',
        b'{"id": 7, "op": "probe", "run_id": "web-1"}\n',
    ]
    for line in lines:
        link = connect(KeeperFiles(data_dir).socket)
        link.setblocking(True)
        with link, link.makefile("rwb") as stream:
            assert b"hello" in stream.readline()
            stream.write(line)
            stream.flush()
            answer = stream.readline()
            assert not answer or "error" in json.loads(answer), line
    assert await runtime.health() == "healthy"
    assert len(await runtime.list_runs()) == 1


async def test_a_child_whose_gate_never_opens_runs_nothing(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    null = os.open(os.devnull, os.O_WRONLY)
    launch = Launch(argv=("/bin/touch", str(ran)), env={}, working_dir="/", stdout=null, stderr=null)
    defaults = ChildDefaults(open_files=(1024, 4096), oom_score="0")
    first = fork_gated(launch, defaults)
    assert read_report(first) is None
    first.close_gate()
    assert os.waitstatus_to_exitcode(os.waitpid(first.pid, 0)[1]) == 127
    first.close_report()
    assert not ran.exists()
    second = fork_gated(launch, defaults)
    second.open_gate()
    assert os.waitstatus_to_exitcode(os.waitpid(second.pid, 0)[1]) == 0
    assert read_report(second) == {}
    second.close_report()
    assert ran.exists()
    os.close(null)


async def test_a_process_gets_a_clean_start(open_runtime: OpenRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_FAULTS", "")
    runtime = await open_runtime()
    script = (
        "cat /proc/self/status | grep -E '^Sig(Blk|Ign|Cgt)'; ls -l /proc/self/fd | grep -c -v total;"
        "umask; cut -d' ' -f5,6 /proc/$$/stat; echo pid $$; env | grep FAULTS; cat; pwd; ulimit -n"
    )
    await runtime.start(request(script))
    ended = await wait_ended(runtime, "web-1")
    lines = ended.last_output.splitlines()
    assert lines[0] == "SigBlk:\t0000000000000000"
    # Signals 32 and 33 belong to the C library: nobody can set them, so they may come ignored.
    ignored = int(lines[1].removeprefix("SigIgn:\t"), 16)
    assert ignored & ~(0b11 << 31) == 0, lines[1]
    assert lines[2] == "SigCgt:\t0000000000000000"
    assert lines[3] == "4"  # three, and the directory that ls itself reads
    assert lines[4] == "0022"
    pid = lines[6].removeprefix("pid ")
    assert lines[5] == f"{pid} {pid}"
    assert lines[7].endswith("/workloads/web/work")
    assert lines[8] == str(os.sysconf("SC_OPEN_MAX")) or lines[8] == "unlimited"


@pytest.mark.parametrize(
    ("options", "seen"),
    [({}, "[] [] [Mars/Olympus]"), ({"clear_env": True}, "[] [] []"), ({"env": {"OF_THE_AGENT": "mine"}}, "[mine]")],
    ids=["plain", "cleared", "named in the spec"],
)
async def test_the_agents_environment_does_not_reach_workloads(
    open_runtime: OpenRuntime, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], seen: str
) -> None:
    monkeypatch.setenv("OF_THE_AGENT", "seen")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "seen")
    monkeypatch.setenv("TZ", "Mars/Olympus")
    runtime = await open_runtime()
    script = "echo [$OF_THE_AGENT] [$AWS_SECRET_ACCESS_KEY] [$TZ]"
    await runtime.start(request(script, run_id="a-1", **options))
    assert (await wait_ended(runtime, "a-1")).last_output.startswith(seen)


async def test_variables_that_are_passed_by_name_reach_workloads(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_AGENT", "seen")
    monkeypatch.setenv("OTHER", "unseen")
    runtime = ProcessRuntime(data_dir, clock=SystemClock(), node_id=NodeId("n1"), pass_env=("OF_THE_AGENT", "MISSING"))
    await runtime.open()
    await runtime.start(request("echo [$OF_THE_AGENT] [$OTHER]", run_id="a-1"))
    assert (await wait_ended(runtime, "a-1")).last_output == "[seen] []\n"
    await runtime.close()


async def test_a_default_user_runs_what_names_no_user(data_dir: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run processes as another user")
    runtime = ProcessRuntime(data_dir, clock=SystemClock(), node_id=NodeId("n1"), default_user="nobody")
    await runtime.open()
    await runtime.start(request("id -un; touch mine; echo $HOME", run_id="a-1"))
    await runtime.start(request("id -un; echo $HOME", run_id="b-1", user="root"))
    assert (await wait_ended(runtime, "a-1")).last_output == "nobody\n/nonexistent\n"
    assert (await wait_ended(runtime, "b-1")).last_output == "root\n/root\n"
    await runtime.close()


async def test_a_default_user_that_does_not_exist_is_refused(data_dir: Path) -> None:
    runtime = ProcessRuntime(data_dir, clock=SystemClock(), node_id=NodeId("n1"), default_user="no-such-user")
    with pytest.raises(InvalidError, match="default_user"):
        await runtime.open()


async def test_a_process_can_run_as_another_user(open_runtime: OpenRuntime, data_dir: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run processes as another user")
    runtime = await open_runtime()
    script = "id -un; id -Gn; touch mine && stat -c %U mine; echo again > /dev/stdout; echo $HOME $USER"
    await runtime.start(request(script, run_id="a-1", user="nobody"))
    lines = (await wait_ended(runtime, "a-1")).last_output.splitlines()
    assert lines == ["nobody", "nogroup", "nobody", "again", "/nonexistent nobody"]
    # Nobody but root can get at the data directory by its path; run and probe are inside it all the same.
    data_dir.chmod(0o700)
    await runtime.start(request("touch here; echo up; exec sleep 1000", run_id="c-1", user="nobody"))
    await wait_output(runtime, b"up\n", workload_id="c")
    assert await runtime.run_probe("c-1", ("sh", "-c", "test -O here"), timeout=10.0)
    await runtime.start(request("id -u; id -g", run_id="b-1", user="54321"))
    assert (await wait_ended(runtime, "b-1")).last_output.split() == ["54321", "54321"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"user": "no-such-user"}, "no such user"),
        ({"working_dir": "/nowhere"}, "/nowhere"),
        ({"working_dir": "/etc/passwd"}, "/etc/passwd"),
        ({"env": {"NUL": "a\0b"}}, "null byte"),
    ],
)
async def test_what_the_spec_got_wrong_is_told_at_once(
    open_runtime: OpenRuntime, options: dict[str, object], words: str
) -> None:
    runtime = await open_runtime()
    with pytest.raises(RunError) as raised:
        await runtime.start(request("exit 0", **options))
    assert raised.value.failure is FailureReason.INVALID_SPEC
    assert not raised.value.transient
    assert words in raised.value.message
    assert read_run_records(runtime._files.data_dir) == ()


async def test_an_agent_without_rights_runs_without_limits_and_says_so(
    data_dir: Path, start_agent: StartAgent, without_rights: tuple[str, ...]
) -> None:
    agent = start_agent({"run_id": "web-1", "script": "exit 6"}, prefix=without_rights)
    assert "none: " in agent.first_line
    assert "Read-only file system" in agent.first_line
    await wait_until(lambda: any(record.exit for record in read_run_records(data_dir)))
    (record,) = read_run_records(data_dir)
    assert record.exit is not None
    assert record.exit.code == 6
    runs = json.dumps([{"run_id": "web-2", "script": "exit 0", "user": "daemon"}])
    refused = subprocess.run([*agent.args[:-1], runs], capture_output=True, text=True, check=False)
    assert "user 'daemon': Operation not permitted" in refused.stderr


async def test_everything_that_a_machine_runs_can_be_found(
    open_runtime: OpenRuntime, data_dir: Path, start_agent: StartAgent
) -> None:
    agent = start_agent({"run_id": "web-1", "script": "setsid sleep 1000 & echo other=$!; exec sleep 1000"})
    runtime = await open_runtime()
    await wait_output(runtime, b"other=")
    await runtime.close()
    agent.kill()
    agent.wait()
    pids = machine_pids(data_dir)
    assert pids[0] == keeper_of(data_dir)
    assert len(pids) == 3
    kill_machine(data_dir)
    await wait_until(lambda: not any(is_alive(pid) for pid in pids))


async def test_an_older_keeper_is_wound_down_and_replaced(data_dir: Path) -> None:
    """A keeper of version 0 that still has a run: it can be listed and stopped, and nothing new is started on it."""
    files = KeeperFiles(data_dir)
    files.make()
    stat_of_us = procfs.read_stat(os.getpid())
    assert stat_of_us is not None
    run = {
        "run_id": "old-1",
        "workload_id": "old",
        "boot_id": boot_id(),
        "pid": os.getpid(),
        "start_time": stat_of_us.start_time,
        "started_at_ms": 1,
        "grace": 1.0,
        "a_field_of_that_time": True,
    }
    ended = {**run, "exit": {"code": 4, "of_that_time": 1}, "ended_by": "stop"}
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal run
        writer.write(protocol.encode({"hello": {"version": 0, "since": 0, "pid": 1}}))
        while line := await reader.readline():
            message = protocol.decode(line)
            asked.append(message["op"])
            if message["op"] == "shutdown":
                server.close()
                files.socket.unlink()
                writer.write(protocol.encode({"id": message["id"], "ok": {}}))
                break
            if message["op"] == "stop":
                run = ended
                writer.write(protocol.encode({"event": {"ended": run}}))
                writer.write(protocol.encode({"id": message["id"], "ok": {"run": run}}))
            elif message["op"] == "list":
                writer.write(protocol.encode({"id": message["id"], "ok": {"runs": [run], "more": False}}))
            else:
                refusal = protocol.Refusal("unsupported", "not of that time")
                writer.write(protocol.encode({"id": message["id"], "error": refusal.to_json()}))
        writer.close()

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket_address(files.socket) as address:
        listener.bind(address)
    server = await asyncio.start_unix_server(serve, sock=listener)
    runtime = ProcessRuntime(data_dir, clock=SystemClock(), node_id=NodeId("n1"))
    await runtime.open()
    try:
        assert [info.run_id for info in await runtime.list_runs()] == ["old-1"]
        with pytest.raises(RunError) as raised:
            await runtime.start(request("exit 0", run_id="new-1"))
        assert raised.value.transient
        stopped = await runtime.stop("old-1")
        assert stopped is not None
        assert stopped.exit is not None
        assert stopped.exit.code == 4
        # Nothing runs on it any more, so a keeper of today takes its place.
        await wait_until(lambda: runtime._link.hello.get("version") == protocol.VERSION)
        assert "shutdown" in asked
        await runtime.start(request("exec sleep 1000", run_id="new-1"))
        assert await runtime.health() == "healthy"
    finally:
        await runtime.close()


async def test_a_run_is_in_its_groups_with_its_limits_and_they_go_with_it(
    open_runtime: OpenRuntime, data_dir: Path
) -> None:
    runtime = await open_runtime()
    if not runtime.limits().startswith("cgroup v1"):
        pytest.skip(f"looks at cgroups of version 1; here: {runtime.limits()}")
    asked = request("sleep 1000 & exec sleep 1000")
    info = await runtime.start(dataclasses.replace(asked, limits=Resources(cpu_millicores=500, memory_mb=32)))
    (record,) = read_run_records(data_dir)
    await wait_until(lambda: len(cgroups.members(record.cgroups)) == 2)
    assert info.pid in cgroups.members(record.cgroups)
    assert keeper_of(data_dir) not in cgroups.members(record.cgroups)
    (memory,) = (path for group in record.cgroups for path in Path(group).glob("memory.limit_in_bytes"))
    assert memory.read_text() == f"{32 * 1024 * 1024}\n"
    (quota,) = (path for group in record.cgroups for path in Path(group).glob("cpu.cfs_quota_us"))
    assert quota.read_text() == "50000\n"
    await runtime.stop("web-1")
    await wait_until(lambda: not any(Path(group).exists() for group in record.cgroups))


async def test_a_group_of_version_2_is_emptied_before_it_has_children_with_limits() -> None:
    """On the real hierarchy, with whatever controller it has: the kernel refuses as long as processes are in it."""
    place = next((each for each in cgroups.read_memberships() if each.version == 2 and each.controllers), None)
    if os.geteuid() != 0 or place is None:
        pytest.skip("takes root and a cgroup hierarchy of version 2 with a controller")
    parent = place.top / f"shoal-test-{os.getpid()}"
    name = min(place.controllers)
    controllers = frozenset({name})
    switch = place.top / "cgroup.subtree_control"
    was_on = name in switch.read_text().split()
    if not was_on:
        switch.write_text(f"+{name}")
    parent.mkdir()
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        (parent / "cgroup.procs").write_text(str(sleeper.pid))
        with pytest.raises(OSError, match="busy"):
            cgroups._hand_down(parent, controllers, frozenset({os.getpid()}))
        assert cgroups._direct_members(parent) == {sleeper.pid}
        cgroups._hand_down(parent, controllers, frozenset({sleeper.pid}))
        assert cgroups._direct_members(parent) == frozenset()
        assert cgroups._direct_members(parent / "shoal-agent") == {sleeper.pid}
        assert set((parent / "cgroup.subtree_control").read_text().split()) == controllers
        cgroups._hand_down(parent, controllers, frozenset())
    finally:
        sleeper.kill()
        sleeper.wait()
        await wait_until(lambda: cgroups.remove([str(parent)]) == ())
        if not was_on:
            switch.write_text(f"-{name}")
