"""Repositories of compose projects that cannot be had, and each sentence by which a real git's refusal is judged."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.model.workloads import ComposeSpec, FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.compose.source import GIT_SENTENCES, fetch
from tests.services.disks import fill, small_disk

INVALID, NETWORK = (FailureReason.INVALID_SPEC, False), (FailureReason.NETWORK_ERROR, True)
FULL, UNKNOWN = (FailureReason.STORAGE_ERROR, True), (FailureReason.RUNTIME_ERROR, True)
#: Too long for a name: no resolver asks the network for it.
NOBODY = f"{'a' * 64}.invalid"

#: By what is wrong: the repository, the ref, what that is, and the sentence that says so.
WRONG = {
    "ref": ("{repository}", "missing", INVALID, "couldn't find remote ref"),
    "commit": ("{repository}", "0" * 40, UNKNOWN, ""),
    "path": ("/nowhere/at/all", "", INVALID, "does not appear to be a git repository"),
    "transport": ("ext::true", "", INVALID, "transport '[^']*' not allowed"),
    "host": (f"http://{NOBODY}/a.git", "", NETWORK, "Could not resolve host"),
    "nobody listens": ("http://127.0.0.1:1/a.git", "", NETWORK, "Failed to connect to"),
    "nobody listens to git": ("git://127.0.0.1:1/a.git", "", NETWORK, "unable to connect to"),
    "not there": ("http://127.0.0.1:{404}/a.git", "", INVALID, "repository '[^']*' not found"),
    "broken": ("http://127.0.0.1:{503}/a.git", "", NETWORK, r"The requested URL returned error: 5\d\d"),
    "hung up": ("http://127.0.0.1:{0}/a.git", "", NETWORK, "Empty reply from server"),
}
FULL_DISK = "No space left on device"


@contextlib.contextmanager
def answering(status: int) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if status:
                self.send_error(status)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "compose.yaml").write_text("services: {web: {image: a}}\n")
    (folder / "large").write_bytes(os.urandom(3 << 20))
    author = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        subprocess.run(["git", *words], cwd=folder, check=True, env={**os.environ, **author})
    return folder


@pytest.fixture(scope="module")
def places(repository: Path) -> Iterator[dict[str, str]]:
    """What the names in braces stand for."""
    with contextlib.ExitStack() as stack:
        servers = {str(each): stack.enter_context(answering(each)) for each in (404, 503, 0)}
        yield {"repository": str(repository), **{name: str(port) for name, port in servers.items()}}


async def failed(spec: ComposeSpec, folder: Path, says: str) -> tuple[FailureReason, bool]:
    with pytest.raises(RunError) as raised:
        await fetch(spec, folder)
    assert re.search(says, raised.value.message), raised.value.message
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
        assert (await fetch(spec, disk / "web")).path.read_text() == "services: {web: {image: a}}\n"


def test_no_sentence_is_from_memory() -> None:
    known = {pattern for pattern, *_ in GIT_SENTENCES}
    assert known == {FULL_DISK, *(says for *_, says in WRONG.values() if says)}
