"""Looks for the versions of several models at once, without waiting for a file system that hangs.

Each directory is listed in a thread of its own, at most one per directory: one that hangs keeps neither another
directory nor the threads of the event loop. Called by `shoal.serving.agents.layout`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Mapping

from shoal.core.errors import DeadlineError, InternalError, ShoalError
from shoal.serving.models.configs import versions_in

Found = Mapping[str, "frozenset[int] | ShoalError"]
"""The versions in each directory, or why they are not known."""


class Directories:
    """The directories that are being listed. `find` lists one."""

    def __init__(self, find: Callable[[str], frozenset[int]] = versions_in) -> None:
        self._find = find
        self._under_way: dict[str, asyncio.Future[frozenset[int] | ShoalError]] = {}

    async def look(self, paths: Collection[str], *, within: float) -> Found:
        """List them. A directory that was not listed in time is a `DeadlineError`, until a later look finds it listed.

        Only those that this look begins with are waited for.
        """
        new = [path for path in dict.fromkeys(paths) if path not in self._under_way]
        for path in new:
            self._under_way[path] = self._begin(path)
        if new:
            await asyncio.wait([self._under_way[path] for path in new], timeout=within)
        return {path: self._take(path, within) for path in dict.fromkeys(paths)}

    def _take(self, path: str, within: float) -> frozenset[int] | ShoalError:
        if not self._under_way[path].done():
            return DeadlineError(f"{path}: was not listed within {within:g} s", path=path)
        return self._under_way.pop(path).result()

    def _begin(self, path: str) -> asyncio.Future[frozenset[int] | ShoalError]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[frozenset[int] | ShoalError] = loop.create_future()

        def settle(found: frozenset[int] | ShoalError) -> None:
            if not future.done():
                future.set_result(found)

        def body() -> None:
            found: frozenset[int] | ShoalError
            try:
                found = self._find(path)
            except ShoalError as error:
                found = error
            except Exception as error:  # noqa: BLE001 - what a driver raises is about this directory alone
                found = InternalError(f"{path}: cannot be listed: {error!r}", path=path)
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(settle, found)

        threading.Thread(target=body, name="shoal-versions", daemon=True).start()
        return future
