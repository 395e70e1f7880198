"""Repositories of compose projects: the sentences by which a real git's refusals are judged, what stays of commits."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.core.ids import RunId, WorkloadId
from shoal.model.workloads import ComposeSpec, FailureReason
from shoal.runtimes.base import RunError, RunRequest
from shoal.runtimes.compose.commits import remove_superfluous
from shoal.runtimes.compose.project import Project
from shoal.runtimes.compose.source import (
    FORBIDDEN,
    GIT_SENTENCES,
    LOGIN_MISSING,
    LOGIN_REFUSED,
    PROJECTS,
    Sources,
    fetch,
)
from tests.services.disks import fill, small_disk

INVALID, NETWORK = (FailureReason.INVALID_SPEC, False), (FailureReason.NETWORK_ERROR, True)
FULL = (FailureReason.STORAGE_ERROR, True)
BUSY = r"The requested URL returned error: (?:429|5\d\d)"
#: Of a server that lets nobody else in; the user bob may do nothing there.
PASSWORD, WRONG_PASSWORD = "correct-horse", "wrong-battery"
#: Too long for a name: no resolver asks the network for it.
NOBODY = f"{'a' * 64}.invalid"

#: By what is wrong: the repository, the ref, what that is, and the sentence that says so.
WRONG = {
    "ref": ("{repository}", "missing", INVALID, "couldn't find remote ref"),
    "commit": ("{repository}", "0" * 40, INVALID, "not our ref"),
    "path": ("/nowhere/at/all", "", INVALID, "does not appear to be a git repository"),
    "transport": ("ext::true", "", INVALID, "transport '[^']*' not allowed"),
    "host": (f"http://{NOBODY}/a.git", "", NETWORK, "Could not resolve host"),
    "nobody listens": ("http://127.0.0.1:1/a.git", "", NETWORK, "Failed to connect to"),
    "nobody listens to git": ("git://127.0.0.1:1/a.git", "", NETWORK, "unable to connect to"),
    "not there": ("http://127.0.0.1:{404}/a.git", "", INVALID, "repository '[^']*' not found"),
    "broken": ("http://127.0.0.1:{503}/a.git", "", NETWORK, BUSY),
    "busy": ("http://127.0.0.1:{429}/a.git", "", NETWORK, BUSY),
    "hung up": ("http://127.0.0.1:{0}/a.git", "", NETWORK, "Empty reply from server"),
    "nobody listens to ssh": ("ssh://git@127.0.0.1:1/a.git", "", NETWORK, "ssh: connect to host .* Connection refused"),
    "no login": ("http://127.0.0.1:{git}/repository", "", INVALID, LOGIN_MISSING),
    "no password": ("http://ann@127.0.0.1:{git}/repository", "", INVALID, LOGIN_MISSING),
    "wrong login": (f"http://ann:{WRONG_PASSWORD}@127.0.0.1:{{git}}/repository", "", INVALID, LOGIN_REFUSED),
    "not allowed": (f"http://bob:{PASSWORD}@127.0.0.1:{{git}}/repository", "", INVALID, FORBIDDEN),
    "not there for a login": (
        f"http://ann:{PASSWORD}@127.0.0.1:{{git}}/nowhere",
        "",
        INVALID,
        "repository '[^']*' not found",
    ),
    "ref for a login": (
        f"http://ann:{PASSWORD}@127.0.0.1:{{git}}/repository",
        "missing",
        INVALID,
        "couldn't find remote ref",
    ),
}
COMPOSE = "services: {web: {image: a}}\n"
FULL_DISK = "No space left on device"


class Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def answering(status: int) -> contextlib.AbstractContextManager[int]:
    class Handler(Quiet):
        def do_GET(self) -> None:
            if status:
                self.send_error(status)
            self.close_connection = True

    return served(Handler)


def serving_git(root: Path) -> contextlib.AbstractContextManager[int]:
    """git's own server for HTTP, behind a login."""

    class Handler(Quiet):
        def do_POST(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            login = base64.b64decode((self.headers["Authorization"] or "").removeprefix("Basic ")).decode()
            if login not in {f"ann:{PASSWORD}", f"bob:{PASSWORD}"}:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif login.startswith("bob"):
                self.send_error(403)
            else:
                self.pass_on()

        def pass_on(self) -> None:
            path, _, query = self.path.partition("?")
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": self.headers["Git-Protocol"] or "",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers["Content-Type"] or "",
                "CONTENT_LENGTH": self.headers["Content-Length"] or "0",
                "HTTP_CONTENT_ENCODING": self.headers["Content-Encoding"] or "",
            }
            given = self.rfile.read(int(environment["CONTENT_LENGTH"]))
            done = subprocess.run(
                ["git", "http-backend"], input=given, capture_output=True, env=environment, check=True
            )
            head, _, body = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return served(Handler)


@contextlib.contextmanager
def served(handler: type[Quiet]) -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It has the tags 1 to 8, one for each commit."""
    folder = tmp_path_factory.mktemp("repositories") / "repository"
    folder.mkdir()
    (folder / "compose.yaml").write_text(COMPOSE)
    (folder / "large").write_bytes(os.urandom(3 << 20))
    git(folder, "init", "-q")
    for number in range(1, 9):
        (folder / "number").write_text(f"{number}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", str(number))
        git(folder, "tag", str(number))
    return folder


def git(folder: Path, *words: str) -> None:
    author = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    subprocess.run(["git", *words], cwd=folder, check=True, env={**os.environ, **author})


@pytest.fixture(scope="module")
def places(repository: Path) -> Iterator[dict[str, str]]:
    """What the names in braces stand for."""
    with contextlib.ExitStack() as stack:
        servers = {str(each): stack.enter_context(answering(each)) for each in (404, 429, 503, 0)}
        servers["git"] = stack.enter_context(serving_git(repository.parent))
        yield {"repository": str(repository), **{name: str(port) for name, port in servers.items()}}


async def failed(spec: ComposeSpec, folder: Path, says: str) -> tuple[FailureReason, bool]:
    with pytest.raises(RunError) as raised:
        await fetch(spec, folder)
    assert re.search(says, raised.value.message), raised.value.message
    assert PASSWORD not in str(raised.value)
    assert WRONG_PASSWORD not in str(raised.value)
    assert not (folder / ".fetch").exists()
    return raised.value.failure, raised.value.transient


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_repository_that_cannot_be_had_has_its_reason(
    places: dict[str, str], tmp_path: Path, wrong: str
) -> None:
    place, ref, expected, says = WRONG[wrong]
    for name, value in places.items():
        place = place.replace(f"{{{name}}}", value)
    assert await failed(ComposeSpec(source_type="git", git_repo=place, git_ref=ref), tmp_path, says) == expected


@pytest.mark.parametrize("has_room", [False, True], ids=["full", "almost full"])
async def test_a_full_disk_is_a_storage_error_and_passes(repository: Path, tmp_path: Path, has_room: bool) -> None:
    spec = ComposeSpec(source_type="git", git_repo=str(repository))
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        filling = disk / "filling"
        fill(filling)
        if has_room:
            os.truncate(filling, filling.stat().st_size - (1 << 20))
        assert await failed(spec, disk / "web", f"(?i){FULL_DISK}") == FULL
        filling.unlink()
        assert (await fetch(spec, disk / "web")).path.read_text() == COMPOSE


def test_no_sentence_is_from_memory() -> None:
    known = {pattern for pattern, *_ in GIT_SENTENCES}
    assert known == {FULL_DISK, *(says for *_, says in WRONG.values())}


@pytest.mark.parametrize("where", ["in the address", "in .netrc"])
async def test_a_repository_behind_a_login_can_be_had_with_it(
    places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    login = f"ann:{PASSWORD}@" if where == "in the address" else ""
    netrc = tmp_path / ".netrc"
    netrc.write_text("" if login else f"machine 127.0.0.1 login ann password {PASSWORD}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = ComposeSpec(source_type="git", git_repo=f"http://{login}127.0.0.1:{places['git']}/repository")
    assert (await fetch(spec, tmp_path / "web")).path.read_text() == COMPOSE


# ---------------------------------------------------------------------------------------------------------
# What is kept of commits

#: Fetches a ref below a directory, or removes what is superfluous there.
PROGRAM = """
import asyncio, sys
from pathlib import Path
from shoal.core import faults
from shoal.model.workloads import ComposeSpec
from shoal.runtimes.compose.commits import remove_superfluous
from shoal.runtimes.compose.project import Project
from shoal.runtimes.compose.source import fetch
faults.arm_from_environment()
base, repository, ref = Path(sys.argv[1]), *sys.argv[2:]
if ref:
    asyncio.run(fetch(ComposeSpec(source_type="git", git_repo=repository, git_ref=ref), base))
else:
    remove_superfluous(base, ())
"""


def killed_at(point: str, *arguments: object) -> None:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    environment = {**os.environ, "SHOAL_FAULTS": f"{point}=kill"}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL


class Fetching:
    """One workload, whose commits are loaded one after another."""

    def __init__(self, data_dir: Path, repository: Path) -> None:
        self.base = data_dir / PROJECTS / "web"
        self.in_use: set[str] = set()
        self._repository = repository
        self._sources = Sources(data_dir, allow_privileged=False)

    async def load(self, number: int) -> Path:
        spec = ComposeSpec(source_type="git", git_repo=str(self._repository), git_ref=str(number))
        request = RunRequest(run_id=RunId("web-1"), workload_id=WorkloadId("web"), spec=spec)
        _, folder = await self._sources.load(request, spec, engine="", paths_in_use=self._paths_in_use)
        assert (folder / "number").read_text() == f"{number}\n"
        return folder

    async def _paths_in_use(self) -> set[str]:
        return self.in_use

    def numbers(self) -> set[int]:
        """The commits that have a directory, each with its listing, and there is nothing else."""
        folders = [each for each in self.base.iterdir() if each.is_dir()]
        assert {each.name for each in self.base.iterdir()} == {
            *(each.name for each in folders),
            *(f"{each.name}.files" for each in folders),
            "fetched.json",
        }
        return {int((each / "number").read_text()) for each in folders}


@pytest.mark.parametrize(("revision", "ref"), [("one", ""), ("two", ""), ("one", "1")])
async def test_with_the_server_away_a_revision_starts_again_from_its_commit(
    repository: Path, tmp_path: Path, revision: str, ref: str
) -> None:
    """And another one does not: it may want what is new."""
    sources = Sources(tmp_path, allow_privileged=False)

    async def load(port: int, revision: str, ref: str) -> tuple[Project, Path]:
        place = f"http://ann:{PASSWORD}@127.0.0.1:{port}/repository"
        spec = ComposeSpec(source_type="git", git_repo=place, git_ref=ref)
        request = RunRequest(run_id=RunId("web-1"), workload_id=WorkloadId("web"), spec=spec, revision=revision)
        return await sources.load(request, spec, engine="", paths_in_use=nothing)

    with serving_git(repository.parent) as port:
        first = await load(port, "one", "")
    if (revision, ref) == ("one", ""):
        assert await load(port, revision, ref) == first
    else:
        with pytest.raises(RunError, match="Failed to connect"):
            await load(port, revision, ref)


async def nothing() -> set[str]:
    return set()


async def test_commits_that_nothing_uses_are_removed(repository: Path, tmp_path: Path) -> None:
    web = Fetching(tmp_path, repository)
    first = await web.load(1)
    web.in_use = {str(first)}
    for number in range(2, 8):
        await web.load(number)
    assert web.numbers() == {1, 6, 7}
    # Back to one that is gone. What a service writes beside it stays.
    (await web.load(3) / "large").write_text("data")
    assert web.numbers() == {1, 3, 7}
    for number in (4, 5, 6):
        await web.load(number)
    assert web.numbers() == {1, 3, 5, 6}
    assert (await web.load(3) / "large").read_text() == "data"


async def test_old_commits_make_room_on_a_full_disk(repository: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=40) as disk:
        web = Fetching(disk, repository)
        for number in range(1, 4):
            await fetch_only(web, repository, number)
        fill(disk / "filling")
        with pytest.raises(RunError, match=f"(?i){FULL_DISK}"):
            await fetch_only(web, repository, 4)
        await web.load(5)
        assert web.numbers() == {3, 5}


async def fetch_only(web: Fetching, repository: Path, number: int) -> None:
    """As the second step of a load."""
    await fetch(ComposeSpec(source_type="git", git_repo=str(repository), git_ref=str(number)), web.base)


async def test_an_agent_that_is_killed_leaves_nothing_behind(repository: Path, tmp_path: Path) -> None:
    web = Fetching(tmp_path, repository)
    killed_at("compose.commit.listed", web.base, repository, 1)
    assert [each.name for each in web.base.iterdir() if each.is_dir()] == [".fetch"]
    await web.load(1)
    assert web.numbers() == {1}
    for number in (2, 3):
        await fetch_only(web, repository, number)
    killed_at("compose.commit.doomed", web.base, repository, "")
    with pytest.raises(AssertionError):
        web.numbers()
    remove_superfluous(web.base, ())
    assert web.numbers() == {3}
