"""Which engine an agent has chosen, written down: an agent with runs in one engine must not go to another.

Owned by `shoal.runtimes.container.engine.finding`. Calls block.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.core.disk.durable import replace_file
from shoal.core.errors import UnavailableError

log = logging.getLogger(__name__)

#: In an agent's data directory.
CHOICE_FILE = "engine.json"


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """An engine: where it listened last, and what tells it from others."""

    address: str
    identity: str

    @property
    def is_podman(self) -> bool:
        """Whether a Podman service over the same storage is the same engine."""
        return self.identity.startswith("podman ")


class EngineChoice:
    """The stored choice of one agent."""

    def __init__(self, path: Path, *, is_binding: Callable[[], bool]) -> None:
        """`is_binding` says whether the agent has runs, and so must keep to what it chose."""
        self.path = path
        self.is_binding = is_binding

    def read(self) -> ChosenEngine | None:
        """What was chosen; None when nothing was, or nobody can read it."""
        try:
            fields = json.loads(self.path.read_bytes())
            return ChosenEngine(str(fields["address"]), str(fields["identity"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("%s cannot be read, and the first engine that answers is used: %s", self.path, error)
            return None

    def write(self, chosen: ChosenEngine) -> None:
        """Store a choice. Raises `UnavailableError`: without it, a later agent could choose another engine."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(asdict(chosen)).encode())
        except OSError as error:
            raise UnavailableError(f"the choice of the container engine cannot be stored: {error}") from error
