"""Why a compose command failed, where it does not say so. Called by `shoal.runtimes.compose.runtime`.

`podman-compose` shows which `podman` command failed for a network or a volume, and not what the engine said. The engine
is then asked to make another one, and what it refuses that with is the reason. One that can be made is removed again.
It carries the labels of the project, with which it goes if the agent is killed before.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

from shoal.core.errors import ShoalError
from shoal.runtimes.base import RunError
from shoal.runtimes.compose.command import ComposeError
from shoal.runtimes.container import failures
from shoal.runtimes.container.api import EngineApi, EngineError

_SILENT = re.compile(r"Command 'podman (network|volume) create ")
_WHAT = "cannot start the project"


async def start_error(error: ComposeError, api: EngineApi, *, project: str, labels: Mapping[str, str]) -> RunError:
    """The error of a project that could not be started. `labels` are those of its networks and volumes."""
    silent = _SILENT.search(error.message)
    said = await _refusal(api, silent[1], f"{project}_trial", labels) if silent else None
    if said is None:
        said = EngineError(error.message, status=500)
    return failures.run_error(said, failures.judge_start(said), what=_WHAT)


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
