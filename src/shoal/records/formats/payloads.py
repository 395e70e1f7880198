"""Records as they come out of a file: one buffer, and where in it each record lies. No object for each record.

Made by the readers of frames and TFRecords, taken by the parsers. A few records that are already bytes become one by
`Payloads.of`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Payloads:
    """Some records of one file."""

    #: Of the file, for errors.
    path: str
    data: NDArray[np.uint8]
    #: Where each record begins and ends in `data`.
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    #: Where each record's frame begins in the file, after inflation.
    offsets: NDArray[np.int64]
    #: The source of each record, where the header of a frame has it; else zeros.
    source_keys: NDArray[np.uint32]

    def __post_init__(self) -> None:
        # Kernels are compiled for arrays that nobody writes: another kind would be compiled while records are parsed.
        if self.data.flags.writeable:
            data = self.data.view()
            data.flags.writeable = False
            object.__setattr__(self, "data", data)

    @classmethod
    def of(cls, records: Sequence[bytes], *, path: str = "<memory>") -> Payloads:
        """Records that are already in memory. The offset of each is its number."""
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        ends = np.cumsum(sizes)
        data = np.frombuffer(b"".join(records), np.uint8)
        numbers = np.arange(len(records), dtype=np.int64)
        return cls(path, data, ends - sizes, ends, numbers, np.zeros(len(records), np.uint32))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        """The bytes of one record."""
        return self.data[self.starts[index] : self.ends[index]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        data = memoryview(self.data.data)
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield bytes(data[start:end])

    def slice(self, start: int, stop: int) -> Payloads:
        """Some of them, from one number to another."""
        return self._chosen(np.s_[start:stop])

    def take(self, wanted: NDArray[np.bool_]) -> Payloads:
        """Those that are wanted."""
        return self if wanted.all() else self._chosen(wanted)

    def _chosen(self, part: Any) -> Payloads:
        return Payloads(
            self.path, self.data, self.starts[part], self.ends[part], self.offsets[part], self.source_keys[part]
        )

    def rewritten(self, anew: Mapping[int, bytes]) -> Payloads:
        """The same with other bytes for some records, by number."""
        if not anew:
            return self
        starts, ends = self.starts.copy(), self.ends.copy()
        at = len(self.data)
        for index, content in anew.items():
            starts[index], ends[index] = at, at + len(content)
            at += len(content)
        more = np.frombuffer(b"".join(anew.values()), np.uint8)
        return replace(self, data=np.concatenate((self.data, more)), starts=starts, ends=ends)
