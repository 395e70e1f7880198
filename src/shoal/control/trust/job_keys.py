"""Keys that the control plane delegates to jobs: one for each workload of a job and each generation of it.

A job's coordinator signs the tokens of its exchange with the key of its own term; task hosts get the same key, by
certificates of their own. A key follows from one that only control planes have, so nothing of it is stored, and the
next leader gives the same. Called by `shoal.control.jobs.service`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from concurrent.futures import Executor
from pathlib import Path

KEY_FILE = "jobs.key"


class JobKeys:
    """The keys of jobs.

    Args:
        key_file: the key that they follow from, made when it is first needed; unused when `given_key` is not empty.
        given_key: that key as text, from the environment.
        shared: other control planes use the same store. Without a key that all of them have, there are no keys.
        threads: where the file is read and written; the loop's own threads unless given.
    """

    def __init__(self, *, key_file: Path, given_key: str, shared: bool, threads: Executor | None = None) -> None:
        self._key_file = key_file
        self._given_key = given_key
        self._shared = shared
        self._threads = threads
        self._root: bytes | None = None

    async def key_of(self, job_id: str, workload_id: str, generation: int) -> bytes:
        """The key of a workload for one generation; empty when none can be given."""
        if self._shared and not self._given_key:
            return b""
        if self._root is None:
            self._root = await asyncio.get_running_loop().run_in_executor(self._threads, self._load)
        about = f"shoal-job-key\0{job_id}\0{workload_id}\0{generation}"
        return hmac.new(self._root, about.encode(), hashlib.sha256).digest()

    def _load(self) -> bytes:
        from shoal.wire.trust.sealing import load_or_make_key, parse_key

        if self._given_key:
            return parse_key(self._given_key, name="SHOAL_SECRET_KEY")
        return load_or_make_key(self._key_file)
