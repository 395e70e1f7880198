"""How a compose command is called: what it is given, and what is made of its end. The command here is a script."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import DeadlineError, UnavailableError
from shoal.runtimes.compose.command import ComposeCommand, ComposeError, candidates, find_command, is_new_enough, locked

PROJECT = {"services": {"web": {"image": "a", "environment": {"PASSWORD": "hunter2"}}}}


def command(tmp_path: Path, script: str) -> ComposeCommand:
    path = tmp_path / "compose"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return ComposeCommand((str(path),))


async def run(made: ComposeCommand, folder: Path, *, seconds: float = 30.0, lock: int = -1) -> None:
    await made.run("p", PROJECT, ("up", "-d"), folder=folder, engine="unix:///e.sock", seconds=seconds, lock=lock)


async def test_the_project_goes_through_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_SECRET", "hidden")
    made = command(tmp_path, 'echo "$@" > words; cat > given; env > environment; pwd > place')
    await run(made, tmp_path)
    option, variables, *words = (tmp_path / "words").read_text().split()
    assert (option, words) == ("--env-file", ["-p", "p", "-f", "-", "up", "-d"])
    # Not /dev/null: docker-compose 1.29 takes files only.
    assert Path(variables).is_file()
    assert Path(variables).read_bytes() == b""
    assert json.loads((tmp_path / "given").read_text()) == PROJECT
    assert (tmp_path / "place").read_text().strip() == str(tmp_path)
    environment = (tmp_path / "environment").read_text().splitlines()
    assert {"DOCKER_HOST=unix:///e.sock", "CONTAINER_HOST=unix:///e.sock"} <= set(environment)
    assert not any("AGENT_SECRET" in line for line in environment)


async def test_the_end_of_what_it_said_is_the_error(tmp_path: Path) -> None:
    made = command(tmp_path, "head -c 3000000 /dev/zero | tr '\\000' x; echo; echo port is taken >&2; exit 3")
    with pytest.raises(ComposeError) as raised:
        await run(made, tmp_path)
    assert raised.value.message.endswith("port is taken")
    assert len(raised.value.message) <= 2000


async def test_where_it_failed_in_its_own_code_is_not_part_of_the_error(tmp_path: Path) -> None:
    script = """import sys
try:
    raise ValueError("the first")
except ValueError:
    print("before")
    sys.stdout.flush()
    raise RuntimeError("network create failed")
"""
    (tmp_path / "fails.py").write_text(script)
    with pytest.raises(ComposeError) as raised:
        await run(command(tmp_path, f"exec {sys.executable} fails.py"), tmp_path)
    said = raised.value.message.splitlines()
    assert (said[0], said[-1]) == ("before", "RuntimeError: network create failed")
    assert "ValueError: the first" in said
    assert not any("fails.py" in line or "Traceback" in line for line in said)


async def test_one_that_does_not_read_its_input_is_no_error(tmp_path: Path) -> None:
    await run(command(tmp_path, "exec <&-; exit 0"), tmp_path)


async def test_one_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match="compose takes longer"):
        await run(command(tmp_path, "echo $$ > pid; exec sleep 1000"), tmp_path, seconds=0.5)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


async def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be run"):
        await run(ComposeCommand(("/nowhere/compose",)), tmp_path)


async def test_the_lock_is_held_by_what_the_command_started(tmp_path: Path) -> None:
    """An agent that was killed left a command behind: the next one waits until that has ended."""
    lock, clock = tmp_path / "lock", SystemClock()
    made = command(tmp_path, "mkfifo gate; (read line < gate) >/dev/null 2>&1 & exit 0")
    async with locked(lock, clock) as held:
        await run(made, tmp_path, lock=held)
    entered = asyncio.Event()

    async def enter() -> None:
        async with locked(lock, clock):
            entered.set()

    waiting = asyncio.ensure_future(enter())
    gate = await asyncio.to_thread(os.open, tmp_path / "gate", os.O_WRONLY)
    assert not entered.is_set()
    os.close(gate)
    async with asyncio.timeout(30):
        await waiting
    assert entered.is_set()


@pytest.mark.parametrize(
    ("docker", "others", "found"),
    [
        ("exit 0", ["docker-compose"], ("docker", "compose")),
        ("exit 1", ["docker-compose", "podman-compose"], ("docker-compose",)),
    ],
    ids=["with its plug-in", "without it"],
)
async def test_which_command_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: str, others: list[str], found: tuple[str, ...]
) -> None:
    for name, script in [("docker", docker), *((other, "exit 1") for other in others)]:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = await find_command()
    assert made is not None
    assert made.arguments == found


async def test_values_of_variables_are_in_no_error(tmp_path: Path) -> None:
    with pytest.raises(ComposeError) as raised:
        await run(command(tmp_path, "echo podman run -e PASSWORD=hunter2 a; exit 1"), tmp_path)
    assert raised.value.message == "podman run -e PASSWORD=*** a"


@pytest.mark.parametrize(
    ("output", "fits"),
    [
        ("podman-compose version 1.6.0\npodman version 4.3.1", True),
        ("podman-compose version 1.3.0", True),
        ("podman-compose version: 1.0.6\n['podman', '--version', '']", False),
        ("podman version 4.3.1", False),
        ("", False),
    ],
)
def test_an_old_podman_compose_is_left_out(output: str, fits: bool) -> None:
    assert is_new_enough(output) is fits


def test_the_podman_compose_of_this_program_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("path", "own"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "podman-compose").write_text("#!/bin/sh\n")
        (tmp_path / folder / "podman-compose").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "own" / "python"))
    assert [each[0] for each in candidates()] == [str(tmp_path / "own" / "podman-compose")]
