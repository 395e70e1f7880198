"""Docker's two compose commands for tests, which scripts/fetch_compose.sh puts into a cache. They are not on the PATH:
the agents of other tests do not find them.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.services.absence import do_without

VERSION = 1
#: How the agent calls each of them.
COMMANDS = {"docker compose": ("docker", "compose"), "docker-compose": ("docker-compose",)}


def environment_with(command: str) -> dict[str, str]:
    """The variables with which one of the commands, and only that one, is found."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / f"compose-{VERSION}"
    if not (cache / "complete").exists():
        do_without(f"there is no {command} in the cache: run scripts/fetch_compose.sh (it needs Debian 12)")
    if command == "docker compose":
        return {"DOCKER_CONFIG": str(cache / "config")}
    return {"PATH": f"{cache / 'bin'}:{os.environ['PATH']}"}
