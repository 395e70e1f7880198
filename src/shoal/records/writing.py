"""Files that a training job appends to while it runs: lines of predictions, and dumps of embeddings.

    file = WritableFile("out/part-0")
    file.append("1,0.5")

A file takes its place when it is closed; closing all of them is the last thing that a job does (`CloseHook`). A job
that fails throws them away. Called by hooks of training.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.core import files
from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.core.tfrecords import frame


class WritableFile:
    """Appends to a new file, from any thread. Nobody sees it before it is closed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = files.open_file(path, "wb")
        self._lock = threading.Lock()

    def append(self, content: str | bytes) -> None:
        """Append text or bytes. Raises `PreconditionError` after `close`."""
        data = content.encode() if isinstance(content, str) else bytes(content)
        with self._lock:
            if self._file.closed:
                raise PreconditionError(f"{self.path} is closed", path=self.path)
            self._file.write(data)

    def append_entry_dumps(self, ids: ArrayLike, biases: ArrayLike, embeddings: ArrayLike) -> None:
        """Append one `EntryDump` for each id, as TFRecords: its numbers are the bias and then the embedding.

        Args:
            ids: n whole numbers.
            biases: n numbers.
            embeddings: n rows of numbers.
        """
        keys = np.asarray(ids)
        rows: NDArray[np.float32] = np.asarray(embeddings, np.float32)
        column: NDArray[np.float32] = np.asarray(biases, np.float32).reshape(-1, 1)
        if keys.ndim != 1 or rows.ndim != 2 or not len(keys) == len(column) == len(rows):
            shapes = f"{keys.shape}, {np.shape(biases)}, {rows.shape}"
            raise InvalidError([problem("ids, biases, embeddings", shapes, "must be n, n and n rows")])
        if keys.dtype.kind not in "iu":
            raise InvalidError([problem("ids", keys.dtype, "must be whole numbers")])
        self.append(b"".join(map(frame, entry_dumps(keys, np.concatenate((column, rows), axis=1)))))

    def close(self) -> None:
        """Let the file take its place. Once is enough."""
        with self._lock:
            self._file.close()

    def discard(self) -> None:
        """Throw it away."""
        with self._lock:
            self._file.discard()


class CloseHook:
    """Ends a job's files: `end` closes all of them, `fail` throws them away."""

    def __init__(self, opened: Iterable[WritableFile]) -> None:
        self._opened = tuple(opened)

    def end(self) -> None:
        """Close every file, also when one of them cannot be closed; the first error is raised afterwards."""
        first: Exception | None = None
        for each in self._opened:
            try:
                each.close()
            except Exception as error:  # noqa: BLE001 - raised below
                first = first or error
        if first is not None:
            raise first

    def fail(self) -> None:
        """Throw every file away that is not closed."""
        for each in self._opened:
            each.discard()


def entry_dumps(ids: NDArray[np.int64], numbers: NDArray[np.float32]) -> list[bytes]:
    """`EntryDump` messages with an id and numbers each, and nothing else. All have the same length."""
    kind = np.dtype([("tag", "u1"), ("value", "<f4")])
    body = np.empty(numbers.shape, kind)
    body["tag"] = 2 << 3 | 5  # `num`, not packed
    body["value"] = numbers
    head = np.empty(len(ids), np.dtype([("tag", "u1"), ("id", "<i8")]))
    head["tag"] = 1 << 3 | 1  # `id`, sfixed64
    head["id"] = ids.astype(np.int64)
    width = kind.itemsize * numbers.shape[1]
    return [
        first.tobytes() + rest.tobytes()
        for first, rest in zip(head, body.view(np.uint8).reshape(len(ids), width), strict=True)
    ]
