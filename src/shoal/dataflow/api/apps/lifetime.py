"""How long dataflows live: started together, run until they end, fail or are asked to stop, stopped in order.

Dataflows themselves run in threads; what is here is the small asynchronous shell around them. Called by
`shoal.dataflow.api.apps.app` (`app.run()`, and what was started and never stopped) and through it by `shoal run`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import gc
import logging
import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from shoal.core.clock import SystemClock
from shoal.core.errors import ShoalError
from shoal.dataflow.api.left_out import LeftOut, begun, find_left_out
from shoal.dataflow.errors import FunctionError, RemoteError

T = TypeVar("T")

log = logging.getLogger(__name__)

_OURS = "shoal.dataflow."
#: Seconds that a program which is about to end gives to what it started and never stopped.
_LAST_SECONDS = 10.0
#: Signals that come within so many seconds are one request.
_ONCE_SECONDS = 0.2
#: Seconds between two looks whether rows are left out.
_LOOK_SECONDS = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Startable(Protocol):
    """A dataflow, as far as its life goes."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""

    @property
    def is_started(self) -> bool:
        """Whether it was started and nobody stopped it since."""

    async def prepare(self) -> None:
        """Check what can be checked before it runs."""

    async def start(self, parallelism: int) -> None:
        """Start it, and come back when it runs."""

    async def stop(self) -> Any:
        """Stop it in good order."""

    async def wait(self) -> Any:
        """Until it has ended. Raises what stopped it."""


class Told:
    """What happens on the way, for callers that show it. Does nothing by itself."""

    def started(self, flow: Startable) -> None:
        """It runs."""

    def left_out(self, flow: Startable, begun: Sequence[LeftOut]) -> None:
        """It has begun to leave rows out: late ones, or bad ones. Reported once for each step and kind."""

    def looked(self, flows: Sequence[Startable]) -> None:
        """These run, or have just come to their end. Called once a second, and when one ends."""

    def ended(self, flow: Startable, report: Any) -> None:
        """It came to its end, or was stopped."""

    def failed(self, flow: Startable) -> None:
        """It ended with an error."""

    def asked(self) -> None:
        """A signal or a caller asks everything to stop."""


async def run_all(flows: Sequence[Startable], *, parallelism: int, told: Told | None = None) -> None:
    """Run dataflows until all have ended, or one fails, or a signal asks. Raises what stopped the first that failed.

    A signal lets what is under way come through and makes the last checkpoint; a second one ends the process at once.
    """
    listener = told or Told()
    asked = asyncio.Event()

    def ask() -> None:
        if not asked.is_set():
            asked.set()
            listener.asked()

    with stopping_on_signals(ask):
        await start_all(flows, parallelism=parallelism, told=listener, asked=asked)
        # What is there now stays: to look through it again and again would hold up every row for some 20 ms.
        gc.freeze()
        try:
            await _watch([flow for flow in flows if flow.is_started], asked, listener)
            await stop_all(flows, listener)
        except BaseException:
            # What is raised is the reason; that others could not be stopped in good order behind it is not.
            with contextlib.suppress(Exception):
                await stop_all(flows, listener)
            raise


async def start_all(
    flows: Sequence[Startable], *, parallelism: int, told: Told | None = None, asked: asyncio.Event | None = None
) -> None:
    """Check all, then start all. If one cannot start, those that did are stopped again; `asked` ends it early."""
    for flow in flows:
        await flow.prepare()
    try:
        for flow in flows:
            if asked is not None and asked.is_set():
                return
            await flow.start(parallelism)
            if told is not None:
                told.started(flow)
    except BaseException:
        with contextlib.suppress(Exception):
            await stop_all(flows)
        raise


async def stop_all(flows: Sequence[Startable], told: Told | None = None) -> None:
    """Stop those that run, all at once. Raises the first error when all are down."""
    left = [flow for flow in flows if flow.is_running]
    outcomes = await asyncio.gather(*(flow.stop() for flow in left), return_exceptions=True)
    for flow, outcome in zip(left, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            if told is not None:
                told.failed(flow)
            raise outcome
        if told is not None:
            told.ended(flow, outcome)


async def _watch(flows: Sequence[Startable], asked: asyncio.Event, told: Told) -> None:
    """Wait until all have ended, a stop is requested, or one fails: then that is raised."""
    waits = {asyncio.ensure_future(flow.wait()): flow for flow in flows}  # noqa: TID251
    request = asyncio.ensure_future(asked.wait())  # noqa: TID251
    left = set(waits)
    seen: dict[Startable, tuple[LeftOut, ...]] = {}
    try:
        while left and not asked.is_set():
            done, _ = await asyncio.wait({*left, request}, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for flow in (waits[each] for each in left):
                _tell_left_out(flow, seen, told)
            told.looked([flow for each, flow in waits.items() if each in left])
            for each in done & left:
                left.discard(each)
                if each.exception() is not None:
                    told.failed(waits[each])
                told.ended(waits[each], each.result())
    finally:
        for each in (*left, request):
            each.cancel()
        await asyncio.gather(*left, request, return_exceptions=True)


def _tell_left_out(flow: Startable, seen: dict[Startable, tuple[LeftOut, ...]], told: Told) -> None:
    """Tell what has begun since the last look."""
    now = left_out_of(flow)
    new = begun(now, seen.get(flow, ()))
    if new:
        seen[flow] = (*seen.get(flow, ()), *new)
        told.left_out(flow, new)


def left_out_of(flow: Any) -> tuple[LeftOut, ...]:
    """The rows that a dataflow has left out so far."""
    running = getattr(flow, "running", None)
    if running is None:
        return ()
    try:
        return find_left_out(running.metrics().steps)
    except Exception:
        log.debug("the counts of dataflow %s cannot be read now", flow.name, exc_info=True)
        return ()


@contextlib.contextmanager
def stopping_on_signals(ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask` on the loop at the first SIGINT, SIGTERM or SIGHUP. The second ends the process.

    Handlers are the process's own, not the loop's: also a loop that hangs lets itself be ended. Signals that the
    parent process has switched off stay off. Outside of the main thread no signal arrives. A supervisor that signals a
    process and then its whole group has signaled it once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    heard: list[float] = []

    def hear(number: int, _frame: Any) -> None:
        heard.append(clock.monotonic())
        if len(heard) == 1:
            loop.call_soon_threadsafe(ask)
        elif heard[-1] - heard[0] > _ONCE_SECONDS:
            os._exit(128 + number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    mine = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in mine:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])


def warn_user(text: str) -> None:
    """A warning at the line of the user's program that is running, however many calls of ours lie between."""
    level, frame = 1, sys._getframe()  # noqa: SLF001  there is no public name for it
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)


# ---------------------------------------------------------------------------------------------------------
# Errors that end a program

_plain: weakref.WeakSet[ShoalError] = weakref.WeakSet()


def say_plainly(error: ShoalError) -> None:
    """When nobody catches this error, the program says what it says and no more: no line of our own code helps.

    Callers that catch it get it unchanged. Where code of the user's raised, the traceback stays; so it does with
    `SHOAL_DEBUG=1`.
    """
    if os.environ.get("SHOAL_DEBUG") or _is_of_users_code(error):
        return
    _plain.add(error)
    before = sys.excepthook
    if getattr(before, "is_plain", False):
        return

    def hook(kind: Any, value: Any, trace: Any) -> None:
        if not isinstance(value, ShoalError) or value not in _plain:
            before(kind, value, trace)
            return
        lines = [("error", value.message), *value.details, *([("hint", value.hint)] if value.hint else [])]
        sys.stderr.writelines(f"{label}: {text}\n" for label, text in lines)

    hook.is_plain = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _is_of_users_code(error: BaseException) -> bool:
    """Whether a function of the user's raised what led to this. Arrow and the system raise in ours."""
    cause: BaseException | None = error
    while cause is not None:
        is_foreign = not isinstance(cause, ShoalError | pa.ArrowException | OSError)
        if is_foreign or isinstance(cause, FunctionError) or (isinstance(cause, RemoteError) and not cause.is_system):
            return True
        cause = cause.__cause__
    return False


# ---------------------------------------------------------------------------------------------------------
# Threads


async def in_own_thread(function: Callable[[], T], *, unwanted: Callable[[T], Any] | None = None) -> T:
    """Call a function that blocks, in a thread of its own.

    The loop's own pool is small: as many dataflows as it has threads, each waited for, and nobody could stop one.
    `unwanted` gets the result when its caller no longer waits.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            _discard(result, error, unwanted)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def body() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except BaseException as raised:  # noqa: BLE001  it is raised to the waiting caller
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop was closed meanwhile
            _discard(result, error, unwanted)

    threading.Thread(target=body, name="shoal-call", daemon=True).start()
    return await future


def _discard(result: Any, error: BaseException | None, unwanted: Callable[[Any], Any] | None) -> None:
    if error is None and unwanted is not None:
        threading.Thread(target=unwanted, args=(result,), name="shoal-discard", daemon=True).start()


# ---------------------------------------------------------------------------------------------------------
# Programs that end without stopping what they started

_left: weakref.WeakSet[Any] = weakref.WeakSet()


def stop_at_exit(flow: Any) -> None:
    """Stop a running flow in good order when the program ends without having done so."""
    _left.add(flow)


@atexit.register
def _end_what_is_left() -> None:
    for flow in list(_left):
        if flow.is_done:
            continue
        try:
            flow.stop(timeout=_LAST_SECONDS)
        except Exception:  # noqa: BLE001  the program is over, and callers that need the result have waited for it
            flow.abort()
