"""Talks to the control plane for a process of a job: says how it is, and hears what is asked and what others said.

The client is asynchronous and has an event loop in a thread of its own; callers are plain threads. A control plane that
does not answer is no error of the job: callers try again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.client.control_plane import ControlPlane
from shoal.core.errors import ShoalError, UnavailableError
from shoal.dataflow.execution.remote.delegated import TermKey
from shoal.dataflow.execution.remote.surroundings import Surroundings
from shoal.wire.pb.shoal.v1 import jobs_pb2 as pb

#: Seconds that one call may take.
_TIMEOUT = 3.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the control plane says about the job."""

    desired: str
    #: What a person last asked of the job, and the number of that request.
    action: str
    request: int
    stop: bool
    #: The number of the last request that was taken in.
    taken: int
    #: What others said, by workload.
    reports: Mapping[str, bytes]
    #: The job's key for the present term of its coordinator, where one was asked for.
    key: TermKey = TermKey()


class Board:
    """The connection of one process to the control plane."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="control plane", daemon=True)
        self._thread.start()
        self._client: ControlPlane | None = None

    def report(self, content: bytes, read: Sequence[str] = (), *, key_of: str = "") -> Answer:
        """Say something, or nothing, and hear. Raises `ShoalError`: `PreconditionError` when it was replaced."""
        future = asyncio.run_coroutine_threadsafe(self._report(content, tuple(read), key_of), self._loop)
        try:
            return future.result(_TIMEOUT * 2)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise UnavailableError("the control plane does not answer") from None

    async def _report(self, content: bytes, read: tuple[str, ...], key_of: str) -> Answer:
        around = self._around
        request = pb.ReportJobRequest(
            job_id=around.job_id,
            workload_id=around.workload_id,
            node_id=around.node_id,
            revision_id=around.revision_id,
            report=content,
            read=read,
            key_of=key_of,
        )
        if self._client is None:
            self._client = ControlPlane.from_environment(around.environment)
        try:
            async with asyncio.timeout(_TIMEOUT):
                answer = await self._client.report_job(request)
        except TimeoutError:
            raise UnavailableError("the control plane does not answer") from None
        except OSError as error:
            raise UnavailableError(f"the control plane cannot be reached: {error}") from error
        return Answer(
            desired=answer.desired,
            action=answer.action,
            request=answer.request_number,
            stop=answer.stop,
            taken=answer.taken_request,
            reports=dict(answer.reports),
            key=TermKey(answer.key_generation, answer.job_key),
        )

    def close(self) -> None:
        """End."""
        if self._client is not None:
            with_client = asyncio.run_coroutine_threadsafe(self._client.close(), self._loop)
            try:
                with_client.result(1.0)
            except (concurrent.futures.TimeoutError, ShoalError, OSError):
                with_client.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)
