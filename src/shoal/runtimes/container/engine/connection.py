"""The connection to a container engine: found, watched, lost and found again.

An engine may restart at any time. While it is away nothing is concluded about runs. Called by the runtimes whose runs
live in an engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError, UnavailableError
from shoal.core.tasks import Signal, TaskScope, running
from shoal.runtimes.base import HEALTHY
from shoal.runtimes.container.engine.api import EngineApi, EngineError

log = logging.getLogger(__name__)

#: How often everything is compared with the engine, whatever its events say.
_COMPARE_SECONDS = 30.0
_RECONNECT_SECONDS = 1.0
#: An engine that refuses to list its containers, because one goes meanwhile, is asked again this soon.
_AGAIN_SECONDS = 0.2
#: How many times an engine that refuses is asked while a runtime opens.
_FIRST_TRIES = 10
_HEALTH_SECONDS = 5.0

Connect = Callable[[], Awaitable[EngineApi]]
#: Returns in how many seconds to compare again; None when that is not urgent.
Compare = Callable[[EngineApi], Awaitable[float | None]]


class EngineConnection:
    """One engine, for one runtime."""

    def __init__(self, connect: Connect, compare: Compare, *, clock: Clock, labels: Mapping[str, str]) -> None:
        """`compare` brings what is known up to date with the engine; called when a container with `labels` ends."""
        self._connect = connect
        self._compare = compare
        self._clock = clock
        self._labels = labels
        self._api: EngineApi | None = None
        self._problem = "the engine was not asked yet"
        self._compare_now = Signal()
        self._has_compared = False

    @property
    def current(self) -> EngineApi | None:
        """The engine, None while it is away."""
        return self._api

    def engine(self) -> EngineApi:
        """The engine. Raises `UnavailableError` while it is away."""
        if self._api is None:
            raise UnavailableError(f"the container engine is away: {self._problem}")
        return self._api

    def check_compared(self) -> None:
        """Check that everything in the engine was seen once, so that what is not known is not there.

        Raises `UnavailableError`. What is started later is known to the one that starts it.
        """
        if not self._has_compared:
            raise UnavailableError(f"the container engine is away since the agent started: {self._problem}")

    def compare_soon(self) -> None:
        """Something may have happened in the engine whose event came before it was of use."""
        self._compare_now.set()

    async def open(self, scope: TaskScope) -> None:
        """Look for the engine, compare with it, and keep looking. One that is down is no error.

        A killed agent may have left a run without a record: the runtime knows it before the agent asks for its runs.
        """
        try:
            api = await self._reach()
            for _ in range(_FIRST_TRIES):
                await self._compare_once(api)
                if self._has_compared:
                    break
                await self._clock.sleep(_AGAIN_SECONDS)
        except ShoalError as error:
            await self._lose(error.message, hint=error.hint)
        scope.start(self._follow(), name="follow")

    async def close(self) -> None:
        """Let go of the engine."""
        self._problem = "the agent has let go of it"
        await self._lose(self._problem)

    async def health(self) -> str:
        """`healthy`, or `unhealthy: ` and why."""
        api = self._api
        if api is None:
            return f"unhealthy: {self._problem}"
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                await api.ping()
        except TimeoutError:
            return "unhealthy: the container engine does not answer"
        except ShoalError as error:
            return f"unhealthy: {error.message}"
        return HEALTHY

    async def _follow(self) -> None:
        """Connect, compare, and compare again at every event; start over when the engine is lost.

        An error of the agent's own disk is met again, until it is gone: without this nobody would look for ends.
        """
        while True:
            try:
                await self._follow_events(await self._reach())
            except ShoalError as error:
                await self._lose(error.message, hint=error.hint)
            except OSError as error:
                await self._lose(str(error))
            await self._clock.sleep(_RECONNECT_SECONDS)

    async def _follow_events(self, api: EngineApi) -> None:
        async with running(self._listen(api), name="engine events") as listener:
            while True:
                again = await self._compare_once(api)
                await self._compare_now.wait(again)
                if listener.done():
                    # It restarts, or another one takes its place: which one that is has to be looked at first.
                    raise UnavailableError("the container engine ended its stream of events")

    async def _compare_once(self, api: EngineApi) -> float:
        """Compare, and say when to do it again. A refusal is no outage: only an engine that does not answer is lost."""
        try:
            again = await self._compare(api)
        except EngineError as error:
            log.info("comparing with the container engine is tried again: %s", error)
            return _AGAIN_SECONDS
        self._has_compared = True
        return _COMPARE_SECONDS if again is None else min(_COMPARE_SECONDS, max(_AGAIN_SECONDS, again))

    async def _listen(self, api: EngineApi) -> None:
        with contextlib.suppress(ShoalError):
            async for _event in api.events(self._labels):
                self._compare_now.set()
        self._compare_now.set()

    async def _reach(self) -> EngineApi:
        if self._api is None:
            try:
                self._api = await self._connect()
            except OSError as error:  # a service that the agent starts writes files
                raise UnavailableError(f"the container engine cannot be started: {error}") from error
            self._problem = ""
        return self._api

    async def _lose(self, why: str, *, hint: str = "") -> None:
        api, self._api = self._api, None
        if why != self._problem:
            log.warning("the container engine is lost: %s%s", why, f" ({hint})" if hint else "")
        self._problem = why
        if api is not None:
            await api.close()
