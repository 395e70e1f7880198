"""Carries out one transition of a job as a durable workflow: a few short steps, each at least once, in a fixed order.

A workflow begins with a `Change`, a document that says everything about one transition, and its steps (`STEPS`) are run
by the control plane (`Steps`). A process that is killed between two of them, or within one, leaves the workflow behind;
the next leader finishes it. No workflow waits for the job to run, so there are at most a few rows for each job.

`DbosWorkflows` is on DBOS, which is loaded when the first job needs it. `shoal.testing.workflows` has one in memory;
both pass `shoal.testing.suites.workflows`. Called by `shoal.control.jobs`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from shoal.core.errors import (
    DeadlineError,
    InternalError,
    NotLeaderError,
    PreconditionError,
    ShoalError,
    UnavailableError,
)

if TYPE_CHECKING:
    from dbos import DBOS, DBOSConfig

log = logging.getLogger(__name__)

FORMAT = 1
"""The number of the present order of steps. DBOS resumes only workflows of the same number."""

STEPS: Mapping[int, tuple[str, ...]] = {1: ("plan", "apply", "remove", "settle")}
"""The steps of a transition by format. A published order never changes: another order gets another number."""

WAIT_SECONDS = 30.0
"""How long the caller of `run` waits for the end of a workflow before it looks again."""
OUTCOME_SECONDS = 0.05
OUTCOME_LOOKS = 100
"""How often, and after which pause, to look whether DBOS has recorded the outcome of a workflow that ended."""
KEPT = 2
"""How many finished workflows of a job are kept."""

_EXECUTOR = "shoal"
_NAME = "shoal.transition"

Document = Mapping[str, Any]
"""A JSON object."""
Change = Document
"""What a transition is to do. Has at least `job` and `number`."""


class Steps(Protocol):
    """Carries out the steps. Implemented by the control plane."""

    async def run(self, name: str, change: Change, done: Mapping[str, Document]) -> Document:
        """Carry out one step, with the results of those before it. It may have been carried out already.

        Raises `NotLeaderError` when this process no longer leads: the workflow is left for the next leader.
        """
        ...


class Workflows(Protocol):
    """Where transitions are made durable."""

    async def open(self, steps: Steps) -> None:
        """Begin, and resume what an earlier leader left unfinished."""
        ...

    async def run(self, change: Change) -> None:
        """Carry out a transition, or finish the one that has its number already. Returns when it has ended.

        Raises `DeadlineError` when it has not ended after a while, and `InternalError` when a step failed. In both
        cases the caller looks at what is stored and decides again.
        """
        ...

    async def forget(self, job_id: str) -> None:
        """Drop what is kept of the transitions of a job that is gone."""
        ...

    async def close(self) -> None:
        """End at once. What is unfinished stays for the next leader. Safe to call twice."""
        ...


def workflow_id(job_id: str, number: int | str) -> str:
    """The name of a workflow; without a number, what the names of a job's workflows begin with."""
    return f"{job_id}/{number}"


async def run_steps(steps: Steps, change: Change, *, done: dict[str, Document] | None = None) -> None:
    """The workflow as plain code: what a workflow without durability does."""
    done = {} if done is None else done
    for name in STEPS[FORMAT]:
        if name not in done:
            done[name] = await steps.run(name, change, dict(done))


class _AbandonedError(BaseException):
    """Ends a workflow in this process without an outcome. DBOS records only an `Exception`."""


class DbosWorkflows:
    """Workflows on DBOS.

    Args:
        url: of the database, as SQLAlchemy writes it.
        schema: the schema in it, where the database has schemas.
    """

    def __init__(self, url: str, *, schema: str = "shoal_jobs") -> None:
        self._url = url
        self._schema = schema
        self._steps: Steps | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The workflows that run in this process.
        self._running: set[str] = set()
        #: The workflow of each job that ended here last. DBOS records its outcome a moment later.
        self._last: dict[str, str] = {}
        self._calls: set[concurrent.futures.Future[Document]] = set()
        self._ended: dict[str, asyncio.Future[str]] = {}
        self._closing = False
        self._pause = threading.Event()

    async def open(self, steps: Steps) -> None:
        """Load DBOS, and resume what an earlier leader left unfinished."""
        self._steps, self._loop = steps, asyncio.get_running_loop()
        await asyncio.to_thread(_guarded, _launch, self, self._config())

    async def run(self, change: Change) -> None:
        """Carry out a transition."""
        if self._closing:
            raise NotLeaderError("")
        name = workflow_id(change["job"], change["number"])
        loop = asyncio.get_running_loop()
        ended = self._ended.setdefault(name, loop.create_future())
        try:
            await asyncio.to_thread(_guarded, self._start, name, dict(change))
            async with asyncio.timeout(WAIT_SECONDS):
                failure = await asyncio.shield(ended)
        except TimeoutError:
            raise DeadlineError(f"workflow {name} has not ended within {WAIT_SECONDS:g} s", workflow=name) from None
        finally:
            self._ended.pop(name, None)
            ended.cancel()
        if failure:
            raise InternalError(f"workflow {name} failed: {failure}", workflow=name)

    async def forget(self, job_id: str) -> None:
        """Drop what is kept of a job."""
        await asyncio.to_thread(_guarded, self._forget, workflow_id(job_id, ""))

    def _forget(self, prefix: str) -> None:
        dbos = _dbos()
        self._last.pop(prefix.removesuffix("/"), None)
        found = dbos.list_workflows(workflow_id_prefix=prefix, load_input=False, load_output=False)
        dbos.delete_workflows([each.workflow_id for each in found])

    async def close(self) -> None:
        """Leave everything that is unfinished to the next leader."""
        if self._closing or self._loop is None:
            return
        self._closing = True
        self._pause.set()
        for call in list(self._calls):
            call.cancel()
        await asyncio.to_thread(_destroy, self)

    def _config(self) -> DBOSConfig:
        return {
            "name": "shoal",
            "system_database_url": self._url,
            "dbos_system_schema": self._schema,
            "application_version": str(FORMAT),
            "executor_id": _EXECUTOR,
            "serializer": _json_serializer(),
            "log_level": "WARNING",
            "max_executor_threads": 16,
            "enable_otlp": False,
            # No workflow waits for a message, so no connection of PostgreSQL has to listen for one. It is part of the
            # schema that DBOS makes, and stays as it is.
            "use_listen_notify": False,
        }

    def _start(self, name: str, change: dict[str, Any]) -> None:
        """Start a workflow. One that was left behind is resumed, and one that ended without effect begins again."""
        dbos = _dbos()
        from dbos import SetWorkflowID

        found = dbos.get_workflow_status(name)
        for _ in range(OUTCOME_LOOKS):
            if found is None or found.status != "PENDING" or self._last.get(change["job"]) != name:
                break
            self._pause.wait(OUTCOME_SECONDS)
            found = dbos.get_workflow_status(name)
        if found is not None and found.status == "PENDING" and name not in self._running:
            dbos.resume_workflow(name)  # begun by an earlier leader after this one had looked for such
            return
        if found is not None and found.status not in ("PENDING", "ENQUEUED", "DELAYED"):
            # The row says that this transition was not made: the row is older, as after a restore, or a step failed.
            dbos.delete_workflow(name)
            found = None
        if found is None:
            with SetWorkflowID(name):
                dbos.start_workflow(_registered(), change)
        old = change["number"] - KEPT
        if old > 0:
            dbos.delete_workflow(workflow_id(change["job"], old))

    def _carry_out(self, change: dict[str, Any]) -> None:
        """The body of the workflow, in a thread of DBOS."""
        name = workflow_id(change["job"], change["number"])
        failure = ""
        self._running.add(name)
        try:
            done: dict[str, Document] = {}
            for step in STEPS[FORMAT]:
                done[step] = _dbos().run_step({"name": step}, self._step, step, change, dict(done))
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._running.discard(name)
            self._last[change["job"]] = name
            self._tell(name, failure)

    def _step(self, step: str, change: Change, done: Mapping[str, Document]) -> dict[str, Any]:
        """One step: run by the event loop of the control plane, waited for here."""
        if self._closing or self._steps is None or self._loop is None:
            raise _AbandonedError
        try:
            call = asyncio.run_coroutine_threadsafe(self._run_step(step, change, done), self._loop)
        except RuntimeError:  # the event loop has ended
            raise _AbandonedError from None
        self._calls.add(call)
        try:
            return dict(call.result())
        except (concurrent.futures.CancelledError, NotLeaderError):
            raise _AbandonedError from None
        finally:
            self._calls.discard(call)

    async def _run_step(self, step: str, change: Change, done: Mapping[str, Document]) -> Document:
        if self._steps is None:
            raise NotLeaderError("")
        return await self._steps.run(step, change, done)

    def _tell(self, name: str, failure: str) -> None:
        def tell() -> None:
            ended = self._ended.get(name)
            if ended is not None and not ended.done():
                ended.set_result(failure)

        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(tell)


# ---------------------------------------------------------------------------------------------------------
# DBOS is one for the whole process. These functions are the only ones that know it.

_lock = threading.Lock()
_active: DbosWorkflows | None = None


def _dbos() -> type[DBOS]:
    from dbos import DBOS

    return DBOS


@functools.cache
def _json_serializer() -> Any:
    from dbos import DBOSPortableJSONSerializer

    return DBOSPortableJSONSerializer()


@functools.cache
def _registered() -> Callable[[dict[str, Any]], None]:
    """The workflow, known to DBOS by a name that never changes."""

    @_dbos().workflow(name=_NAME, max_recovery_attempts=None)
    def transition(change: dict[str, Any]) -> None:
        active = _active
        if active is None:
            raise _AbandonedError
        active._carry_out(change)  # noqa: SLF001 of the same module

    return transition


def _guarded(work: Callable[..., None], *arguments: Any) -> None:
    """Call something of DBOS. Its database may be away, as any other."""
    try:
        work(*arguments)
    except ShoalError:
        raise
    except Exception as error:
        raise UnavailableError(f"the database of workflows failed: {type(error).__name__}: {error}") from error


def _launch(workflows: DbosWorkflows, config: DBOSConfig) -> None:
    global _active  # noqa: PLW0603 there is one DBOS in a process
    with _lock:
        if _active is not None:
            raise PreconditionError("another control plane of this process runs jobs already")
        words = logging.getLogger("dbos")
        if not words.handlers:
            words.addHandler(logging.NullHandler())  # else DBOS prints by itself
        _registered()
        dbos = _dbos()
        _active = workflows
        try:
            dbos(config=config)
            dbos.launch()
            _drop_older(dbos)
        except BaseException:
            _active = None
            dbos.destroy()
            raise


def _drop_older(dbos: type[DBOS]) -> None:
    """Drop unfinished workflows of older formats. Their jobs decide anew: every effect may happen twice."""
    unfinished = dbos.list_workflows(status=["PENDING", "ENQUEUED", "DELAYED"], load_input=False, load_output=False)
    older = [each.workflow_id for each in unfinished if _number(each.app_version) < FORMAT]
    if older:
        log.info("%d unfinished workflows of an older format begin again", len(older))
        dbos.delete_workflows(older)


def _number(version: str | None) -> int:
    return int(version) if version is not None and version.isdecimal() else FORMAT


def _destroy(workflows: DbosWorkflows) -> None:
    global _active  # noqa: PLW0603 as above
    with _lock:
        if _active is workflows:
            _dbos().destroy()
            _active = None
