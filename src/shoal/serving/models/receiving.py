"""Keeps the newest version of a model received: the loop around `ModelFiles`.

The first version is waited for before any model server starts; later ones are looked for every half minute, and old
ones are removed. A failure is logged, counted and tried again. Called by `shoal.serving.server`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.core.clock import Clock
from shoal.core.errors import DeadlineError, ShoalError
from shoal.serving.models.files import ModelFiles, ReceivedVersion

log = logging.getLogger(__name__)

LOOP_SECONDS = 30.0
FIRST_LOOK_SECONDS = 1.0
WAIT_SECONDS = 1200.0


class ModelReceiver:
    """Receives one model.

    Args:
        files: its files.
        clock: how time passes.
        received: called with each version that was received.
        missed: called after each look that failed.
    """

    def __init__(
        self,
        files: ModelFiles,
        *,
        clock: Clock,
        received: Callable[[ReceivedVersion], None] | None = None,
        missed: Callable[[], None] | None = None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._received = received or (lambda _version: None)
        self._missed = missed or (lambda: None)
        self._told = ""

    async def wait_first(self, *, keep: bool = False, timeout: float = WAIT_SECONDS) -> None:
        """Remove what was there, and wait until a version was received. Raises `DeadlineError`.

        Args:
            keep: model servers of an earlier agent still serve what was there, so it stays.
            timeout: how long to wait, in seconds.
        """
        present = await asyncio.to_thread(self._files.present) if keep else []
        if present:
            return
        await asyncio.to_thread(self._files.clear)
        deadline = self._clock.monotonic() + timeout
        while not await self._look():
            if self._clock.monotonic() >= deadline:
                raise DeadlineError(
                    f"no version of model {self._files.model} was received in {timeout:g} s",
                    hint="check rough_sort_model_p2p_path, and that a .write.done file is there",
                )
            await self._clock.sleep(FIRST_LOOK_SECONDS)

    async def run(self) -> None:
        """Receive versions for ever."""
        while True:
            await self._clock.sleep(LOOP_SECONDS)
            await self._look()
            await asyncio.to_thread(self._files.remove_old)

    async def _look(self) -> bool:
        """Whether a version was received now."""
        try:
            version = await asyncio.to_thread(self._files.copy_newest)
        except ShoalError as error:
            if str(error) != self._told:
                log.warning("model %s was not received: %s", self._files.model, error)
            self._told = str(error)
            self._missed()
            return False
        if version is None:
            return False
        self._told = ""
        log.info("received version %d of model %s", version.version, self._files.model)
        self._received(version)
        return True
