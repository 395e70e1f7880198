"""Why a project cannot be started, and why a compose command failed. Called by `shoal.runtimes.compose.runtime`.

Only the lines in which a command passes on an error of the engine are judged: the rest of its output may be anything,
such as what the programs of a build print.

`podman-compose` shows which `podman` command failed for a network or a volume, and not what the engine said. The engine
is then asked to make another one, and what it refuses that with is the reason. One that can be made is removed again.
It carries the labels of the project, with which it goes if the agent is killed before.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.core.errors import ShoalError
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.compose.command import ComposeError
from shoal.runtimes.container import failures
from shoal.runtimes.container.engine.api import EngineApi, EngineError

_SILENT = re.compile(r"Command 'podman (network|volume) create ")
_WHAT = "cannot start the project"
#: How `podman`, `docker compose` and `docker-compose` begin such a line.
_ERROR_LINE = re.compile(r"^ *(?:Error|ERROR)\b.*", re.MULTILINE)


def check_not_taken(name: str, containers: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> None:
    """Raise `RunError` if one of the containers with the name of a project does not carry its agent's labels."""
    for each in containers:
        found = each.get("Labels") or {}
        if any(found.get(key) != value for key, value in labels.items()):
            raise RunError(
                f"the project name {name} is taken by containers that are not this agent's",
                failure=FailureReason.RUNTIME_ERROR,
                transient=True,
                hint=f"remove them: one has the id {str(each.get('Id'))[:12]}",
            )


async def start_error(error: ComposeError, api: EngineApi, *, project: str, labels: Mapping[str, str]) -> RunError:
    """The error of a project that could not be started. `labels` are those of its networks and volumes."""
    silent = _SILENT.search(error.message)
    said = await _refusal(api, silent[1], f"{project}_trial", labels) if silent else None
    if said is not None:
        return failures.run_error(said, failures.judge_start(said), what=_WHAT)
    judged = EngineError(error_lines(error.message), status=500)
    return failures.run_error(error, failures.judge_start(judged), what=_WHAT)


def build_error(error: ComposeError) -> RunError:
    """The error of a build: of the steps that the project names. Nobody knows whether another try can help."""
    is_full = "no space left on device" in error_lines(error.message)
    return RunError(
        f"cannot build the project: {error.message}",
        failure=FailureReason.STORAGE_ERROR if is_full else FailureReason.RUNTIME_ERROR,
        transient=True,
    )


def error_lines(output: str) -> str:
    """What a command passes on of the engine's errors. Pure."""
    return "\n".join(_ERROR_LINE.findall(output))


async def _refusal(api: EngineApi, kind: str, name: str, labels: Mapping[str, str]) -> EngineError | None:
    create, remove = {
        "network": (api.create_network, api.remove_network),
        "volume": (api.create_volume, api.remove_volume),
    }[kind]
    try:
        await create(name, labels)
    except EngineError as refused:
        return EngineError(f"{kind}: {refused.message}", status=refused.status, cause=refused.cause)
    except ShoalError:
        return None  # the engine is away
    with contextlib.suppress(ShoalError):
        await remove(name)
    return None
