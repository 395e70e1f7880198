"""Where the files of a compose project come from: inline text, raw or base64, or a git repository and ref.

A repository is fetched into a folder of its own for each commit, so an update that fails leaves the old files alone.
Folders that nothing uses are removed before the next fetch. Called by `shoal.runtimes.compose.runtime`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import dataclasses
import json
import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from shoal.core import faults
from shoal.core.disk.durable import replace_file
from shoal.core.disk.private_files import make_private_directory
from shoal.core.errors import InvalidError, ShoalError, problem
from shoal.core.tasks import to_the_end
from shoal.model.workloads import ComposeSpec, FailureReason
from shoal.runtimes.base import RunError, RunRequest
from shoal.runtimes.compose.commits import has_several, list_files, listing_of, note_use, remove_superfluous
from shoal.runtimes.compose.files import with_kept_data
from shoal.runtimes.compose.project import Project, parse_project
from shoal.runtimes.compose.reading import MAX_BYTES
from shoal.runtimes.compose.rules import Place
from shoal.runtimes.host_paths import own_paths

log = logging.getLogger(__name__)

#: Looked for in a repository, in this order.
FILE_NAMES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
#: The directory of the projects in an agent's data directory.
PROJECTS = "projects"
_GIT_SECONDS = 120.0
#: Beside the directories of the commits: which one was fetched last, and for what.
_FETCHED = "fetched.json"

PathsInUse = Callable[[], Awaitable[Collection[str]]]

#: What git says of a server that wants a login, or another one.
LOGIN_MISSING = "could not read (?:Username|Password) for"
LOGIN_REFUSED = "Authentication failed for"
FORBIDDEN = "The requested URL returned error: 403"

#: What git says, and what it means. Each is provoked on a real git; anything else is RUNTIME_ERROR, and tried again.
GIT_SENTENCES: tuple[tuple[str, FailureReason, bool], ...] = (
    ("No space left on device", FailureReason.STORAGE_ERROR, True),
    ("couldn't find remote ref", FailureReason.INVALID_SPEC, False),
    ("does not appear to be a git repository", FailureReason.INVALID_SPEC, False),
    ("repository '[^']*' not found", FailureReason.INVALID_SPEC, False),
    ("transport '[^']*' not allowed", FailureReason.INVALID_SPEC, False),
    ("not our ref", FailureReason.INVALID_SPEC, False),
    (LOGIN_MISSING, FailureReason.INVALID_SPEC, False),
    (LOGIN_REFUSED, FailureReason.INVALID_SPEC, False),
    (FORBIDDEN, FailureReason.INVALID_SPEC, False),
    ("Could not resolve host", FailureReason.NETWORK_ERROR, True),
    ("Failed to connect to", FailureReason.NETWORK_ERROR, True),
    ("unable to connect to", FailureReason.NETWORK_ERROR, True),
    (r"The requested URL returned error: (?:429|5\d\d)", FailureReason.NETWORK_ERROR, True),
    ("ssh: connect to host .* Connection refused", FailureReason.NETWORK_ERROR, True),
    ("Empty reply from server", FailureReason.NETWORK_ERROR, True),
)


def inline_text(spec: ComposeSpec) -> str:
    """The text of an inline project. Base64 is what foreign schedulers send."""
    text = spec.inline_yaml
    if "\n" in text.strip() or ":" in text:
        return text
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise InvalidError([problem("compose.inline_yaml", text, "must be YAML, or YAML in base64")]) from error


class Sources:
    """The project directories of an agent: `<workload>/inline`, or `<workload>/<commit>`."""

    def __init__(self, data_dir: Path, *, allow_privileged: bool) -> None:
        self._data_dir = data_dir
        self._allow_privileged = allow_privileged

    async def load(
        self, request: RunRequest, spec: ComposeSpec, *, engine: str, paths_in_use: PathsInUse
    ) -> tuple[Project, Path]:
        """The checked project of a request, and the directory with its files. Raises `RunError`.

        `engine` is the address of the engine; `paths_in_use` finds what the workload still needs of its directories.
        """
        base = self._data_dir / PROJECTS / request.workload_id
        try:
            if await asyncio.to_thread(has_several, base):
                in_use = await paths_in_use()
                await to_the_end(asyncio.to_thread(remove_superfluous, base, in_use))
        except (ShoalError, OSError, RecursionError) as error:
            log.warning("workload %s: its old commits cannot be removed: %s", request.workload_id, error)
        try:
            fetched = None
            if spec.source_type == "git":
                fetched = await _fetch_or_find(request, spec, base)
                folder, text = fetched.path.parent, await asyncio.to_thread(_read_text, fetched.path)
            else:
                folder, text = base / "inline", inline_text(spec)
                await asyncio.to_thread(make_private_directory, folder)
            project = await asyncio.to_thread(
                parse_project,
                text,
                at="compose",
                variables={**spec.env, **request.secrets},
                allow_privileged=self._allow_privileged,
                place=Place(str(folder), own_paths(self._data_dir, engine)),
            )
        except InvalidError as error:
            raise RunError(f"the project is not valid: {error.message}", failure=FailureReason.INVALID_SPEC) from error
        if fetched is not None:
            project = dataclasses.replace(project, commit=folder.name, tracked=fetched.tracked)
            files = [file for file, _ in request.files]
            project = await asyncio.to_thread(with_kept_data, project, folder, files)
        return project, folder


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    return text.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Fetched:
    """The compose file of a commit, in the directory of that commit."""

    path: Path
    #: The files and directories that the repository has.
    tracked: frozenset[str] = frozenset()


async def _fetch_or_find(request: RunRequest, spec: ComposeSpec, base: Path) -> Fetched:
    """Fetch a repository. With its server away, a revision that was fetched before starts from the same commit."""
    fetched_for = [request.revision, spec.git_repo, spec.git_ref]
    try:
        fetched = await fetch(spec, base)
    except RunError as error:
        found = await asyncio.to_thread(_find_fetched, base, fetched_for)
        if error.failure is not FailureReason.NETWORK_ERROR or found is None:
            raise
        log.warning("workload %s starts from commit %s: %s", request.workload_id, found.path.parent.name, error)
        return found
    content = {"for": fetched_for, "path": str(fetched.path.relative_to(base)), "tracked": sorted(fetched.tracked)}
    try:
        await asyncio.to_thread(replace_file, base / _FETCHED, json.dumps(content).encode())
    except OSError as error:
        raise RunError(
            f"the commit cannot be written down: {error}", failure=FailureReason.STORAGE_ERROR, transient=True
        ) from error
    return fetched


def _find_fetched(base: Path, fetched_for: list[str]) -> Fetched | None:
    """What was fetched last, if that was for the same and is still there."""
    try:
        content = json.loads((base / _FETCHED).read_bytes())
        found = Fetched(base / content["path"], frozenset(content["tracked"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if content["for"] == fetched_for and found.path.is_file() else None


async def fetch(spec: ComposeSpec, folder: Path) -> Fetched:
    """Fetch a repository at its ref below `folder`. Raises `RunError`."""
    try:
        target, tracked = await _fetch(spec, folder)
    except OSError as error:
        raise RunError(
            f"the repository cannot be stored: {error}", failure=FailureReason.STORAGE_ERROR, transient=True
        ) from error
    for name in FILE_NAMES:
        if await asyncio.to_thread((target / name).is_file):
            return Fetched(target / name, tracked)
    raise RunError(
        f"{spec.git_repo} has no compose file at {spec.git_ref or 'HEAD'}",
        failure=FailureReason.INVALID_SPEC,
        hint=f"its name must be one of {', '.join(FILE_NAMES)}",
    )


async def _fetch(spec: ComposeSpec, folder: Path) -> tuple[Path, frozenset[str]]:
    staging = folder / ".fetch"
    await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
    await asyncio.to_thread(staging.mkdir, mode=0o700, parents=True)
    try:
        await _git(staging, "init", "--quiet")
        await _git(staging, "fetch", "--quiet", "--depth", "1", "--", spec.git_repo, spec.git_ref or "HEAD")
        commit = (await _git(staging, "rev-parse", "FETCH_HEAD")).strip()
        # Asked here: git must not run where a service can write, which could tell it to run a command.
        listed = await _git(staging, "ls-tree", "-r", "-t", "-z", "--name-only", "FETCH_HEAD")
        target = folder / commit
        if await asyncio.to_thread(target.exists):
            await asyncio.to_thread(note_use, target)
        else:
            await _git(staging, "checkout", "--quiet", "FETCH_HEAD")
            await asyncio.to_thread(list_files, staging, listing_of(target))
            faults.reach("compose.commit.listed")
            await asyncio.to_thread(staging.rename, target)
    finally:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
    return target, frozenset(name for name in listed.split("\0") if name)


async def _git(folder: Path, *words: str) -> str:
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": os.environ.get("HOME", "/"),
        "GIT_TERMINAL_PROMPT": "0",
        # A repository may name no helper and no transport that runs commands.
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_CONFIG_NOSYSTEM": "1",
        # A link could lead out of the project.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.symlinks",
        "GIT_CONFIG_VALUE_0": "false",
    }
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            *words,
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise RunError(f"git cannot be run: {error}", failure=FailureReason.RUNTIME_ERROR, transient=True) from error
    try:
        async with asyncio.timeout(_GIT_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise RunError(f"git {words[0]} takes too long", failure=FailureReason.NETWORK_ERROR, transient=True) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise git_error(words[0], errors.decode(errors="replace").strip())
    return output.decode(errors="replace")


def git_error(word: str, said: str) -> RunError:
    """What a git command has failed with. Pure."""
    known = ((failure, transient) for pattern, failure, transient in GIT_SENTENCES if re.search(pattern, said))
    failure, transient = next(known, (FailureReason.RUNTIME_ERROR, True))
    is_login = any(re.search(pattern, said) for pattern in (LOGIN_MISSING, LOGIN_REFUSED, FORBIDDEN))
    hint = "put a login for it into ~/.netrc of the user that the agent runs as" if is_login else ""
    return RunError(f"git {word}: {said[-500:]}", failure=failure, transient=transient, hint=hint)
