"""`shoal exec` on real processes: through a port of the agent, and through the stream that an agent opens."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from shoal.cli.local.fleet import LocalFleet
from shoal.client import ExecCommand, ExecEnd, WindowSize
from shoal.core.errors import NotFoundError, PreconditionError
from shoal.model.documents import WorkloadDocument
from shoal.model.workloads import DesiredState, ProcessSpec, WorkloadSpec, WorkloadType

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

PATIENCE = 60.0


@pytest.fixture(scope="module", params=["port", "stream"], ids=["by its port", "by its stream"])
def agent_args(request):
    return ["--no-listen"] if request.param == "stream" else []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory, agent_args):
    fleet = LocalFleet(
        tmp_path_factory.mktemp("exec"),
        agents=1,
        slots=2,
        cpu="1",
        memory="512MB",
        lease=timedelta(seconds=20),
        heartbeat_interval=timedelta(seconds=1),
        agent_args=agent_args,
    )
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control(fleet):
    async with fleet.client() as client:
        process = ProcessSpec(("sleep", "1000"), env={"COLOR": "green"})
        await client.apply(WorkloadDocument("web", WorkloadSpec(WorkloadType.PROCESS, process=process)))
        await client.wait_for("web", lambda view: view is not None and view.status == "Running", timeout=PATIENCE)
        yield client


async def run(control, *words, given=None, **options):
    """What a command printed on both streams, and how it ended."""
    printed, end = {"stdout": b"", "stderr": b""}, None
    async with asyncio.timeout(PATIENCE):
        async for each in control.exec("web", ExecCommand(words, **options), given):
            if isinstance(each, ExecEnd):
                end = each
            else:
                printed[each.stream] += each.data
    return printed["stdout"], printed["stderr"], end


async def pieces(*given):
    for each in given:
        yield each


async def test_a_command_has_the_surroundings_of_its_workload(control):
    view = await control.get_workload("web")
    script = 'echo "$COLOR $SHOAL_WORKLOAD_ID"; pwd; id -u; cat /proc/self/cgroup; echo oops >&2; exit 7'
    stdout, stderr, end = await run(control, "sh", "-c", script)
    words, directory, user, *groups = stdout.decode().splitlines()
    assert (words, stderr, end) == ("green web", b"oops\n", ExecEnd(code=7))
    assert directory == str(Path(f"/proc/{view.run.pid}/cwd").readlink())
    assert user == str(os.geteuid())
    assert groups == Path(f"/proc/{view.run.pid}/cgroup").read_text().splitlines()


async def test_input_is_passed_on_to_its_end(control):
    data = b"".join(b"%d\n" % number for number in range(200_000))
    stdout, _, end = await run(control, "cat", given=pieces(data), interactive=True)
    assert (stdout == data, end) == (True, ExecEnd())


async def test_a_command_without_input_finds_its_end(control):
    assert await run(control, "cat") == (b"", b"", ExecEnd())


async def test_a_signal_is_reported(control):
    _, _, end = await run(control, "sh", "-c", "kill -KILL $$")
    assert end == ExecEnd(signal=9)
    assert end.status == 137


async def test_a_terminal_has_a_size(control):
    is_ready = asyncio.Event()

    async def given():
        yield b"stty size; echo terminal=$TERM; echo rea''dy\n"
        await is_ready.wait()
        yield WindowSize(rows=50, columns=120)
        yield b"until test \"$(stty size)\" = '50 120'; do sleep 0.05; done; exit 3\n"

    command = ExecCommand(("sh",), interactive=True, terminal=True, window=WindowSize(30, 90), term="vt100")
    printed = b""
    async with asyncio.timeout(PATIENCE):
        async for each in control.exec("web", command, given()):
            if isinstance(each, ExecEnd):
                assert each == ExecEnd(code=3)
                break
            assert each.stream == "stdout"
            printed += each.data
            if b"ready\r\n" in printed:
                is_ready.set()
    assert b"30 90\r\n" in printed
    assert b"terminal=vt100\r\n" in printed


async def test_a_slow_reader_does_not_fill_memory(control):
    """Only what fits into the buffers is printed while nobody reads, and everything once somebody does."""
    printed = 0
    async with asyncio.timeout(PATIENCE):
        async for each in control.exec("web", ExecCommand(("sh", "-c", "head -c 20000000 /dev/zero"))):
            if not isinstance(each, ExecEnd):
                printed += len(each.data)
    assert printed == 20_000_000


@pytest.mark.parametrize("options", [{}, {"terminal": True}], ids=["pipes", "terminal"])
async def test_a_command_is_killed_when_its_caller_goes_away(control, options):
    command = ExecCommand(("sh", "-c", "sleep 1001 & echo $$ $!; wait"), **options)
    async with asyncio.timeout(PATIENCE):
        async with contextlib.aclosing(control.exec("web", command)) as answers:
            printed = b""
            while b"\n" not in printed:
                printed += (await anext(answers)).data
        pids = [int(word) for word in printed.split()]
        assert len(pids) == 2
        while any(is_alive(pid) for pid in pids):
            await asyncio.sleep(0.05)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_errors_are_typed(control):
    with pytest.raises(PreconditionError, match="no-such-program"):
        await run(control, "/nowhere/no-such-program")
    with pytest.raises(NotFoundError):
        async for _ in control.exec("nobody", ExecCommand(("true",))):
            pass
    await control.apply(
        WorkloadDocument("off", WorkloadSpec(WorkloadType.PROCESS, process=ProcessSpec(("sleep", "9"))))
    )
    await control.set_desired_state("off", DesiredState.STOPPED)
    await control.wait_for("off", lambda view: view is not None and view.status == "Stopped", timeout=PATIENCE)
    with pytest.raises(PreconditionError, match="does not run"):
        async for _ in control.exec("off", ExecCommand(("true",))):
            pass


async def test_who_runs_what_is_in_the_events_and_the_input_is_not(control):
    await run(control, "sh", "-c", "read line", given=pieces(b"hunter2\n"), interactive=True)
    page = await control.list_events(subject_id="web")
    found = [each for each in page.events if each.kind == "WorkloadExec"]
    assert found[-1].message.endswith("runs: sh -c 'read line'")
    assert found[-1].cause.startswith("Exec by operator")
    assert not any("hunter2" in each.message for each in page.events)


def in_terminal(fleet, *words):
    """The command line in a terminal of 40 by 100; the process and the terminal's other end."""
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", "exec", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, **fleet.client_variables, "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(slave)
    return process, master


def read_until(master, wanted):
    seen = b""
    while wanted not in seen:
        seen += os.read(master, 65536)
    return seen


async def test_the_command_line_in_a_terminal(fleet, control):
    def play():
        process, master = in_terminal(fleet, "web", "-it", "--", "env", "PS1=# ", "sh")
        try:
            before = termios.tcgetattr(master)
            read_until(master, b"# ")
            os.write(master, b"stty size; echo rea''dy\n")
            assert b"40 100\r\n" in read_until(master, b"ready\r\n")
            # Typed keys reach the command one by one: Ctrl-C ends what runs there, not the session.
            os.write(master, b"sleep 1002\n")
            os.write(master, b"\x03")
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 101, 0, 0))
            os.kill(process.pid, signal.SIGWINCH)
            os.write(master, b"\nuntil test \"$(stty size)\" = '41 101'; do sleep 0.1; done; echo re''sized\n")
            read_until(master, b"resized\r\n")
            os.write(master, b"exit 9\n")
            assert process.wait(timeout=PATIENCE) == 9
            assert termios.tcgetattr(master) == before
        finally:
            process.kill()
            process.wait()
            os.close(master)

    await asyncio.to_thread(play)


async def test_the_command_line_in_a_pipe(fleet, control):
    def call(*words, given=b""):
        done = subprocess.run(
            [sys.executable, "-m", "shoal", "exec", *words],
            input=given,
            capture_output=True,
            env={**os.environ, **fleet.client_variables},
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    code, stdout, stderr = await asyncio.to_thread(
        call, "web", "-i", "--", "sh", "-c", "cat; echo oops >&2; exit 4", given=b"typed\n"
    )
    assert (code, stdout, stderr) == (4, b"typed\n", b"oops\n")
