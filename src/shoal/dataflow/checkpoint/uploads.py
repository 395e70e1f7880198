"""Uploads: a task writes its own state in the background, and acknowledges a checkpoint by handles.

The task's thread hands over what changed; a thread of its own writes it, so that no row waits for a disk. What could
not be written is kept and goes with the next checkpoint. The files that a step's state is made of are its chain. When a
chain grows long its newest links are merged, in this thread as well, and the next checkpoint names the merged file.
Made by `shoal.dataflow.execution.building`, one for each task.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from shoal.core.errors import ShoalError
from shoal.core.faults import reach
from shoal.core.threads import SYSTEM, Mail, Threads
from shoal.dataflow.checkpoint.handles import Chain, FileHandle, Link, StepState, TaskPart, cut_chain
from shoal.dataflow.checkpoint.messages import Acknowledged, Declined, Report, TaskId
from shoal.dataflow.checkpoint.statefile import StepIndex, UnlikePartsError
from shoal.dataflow.checkpoint.statestore import StateStore, file_name
from shoal.dataflow.language.keys import KeyGroups
from shoal.dataflow.operators.base import OperatorState
from shoal.dataflow.state.tables import merge_tables

#: A chain with more links is merged: a restore reads no more files than this for each step.
_MOST_LINKS = 16
#: Bytes of a chain that are merged at once.
_PART_BYTES = 32 * 1024 * 1024
#: Seconds that a task waits for its last write to come to an end when it closes.
_LAST_WRITE = 5.0
_NO_OUTPUTS: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RestoredState:
    """What a step goes on from, of one task of the checkpoint. Keyed state is read when it is asked for."""

    checkpoint: int
    subtask: int
    shared: bytes
    _read: Callable[[int | None], Iterator[OperatorState]]

    def pieces(self, most_bytes: int | None = None) -> Iterator[OperatorState]:
        """The state: as a whole, or in pieces of some key groups each, with the shared part in every one."""
        return self._read(most_bytes)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    checkpoint: int
    state: Mapping[str, OperatorState]
    outputs: Mapping[str, bytes]
    pause: float


class StateUploads:
    """The state files of one task. All but `submit`, `close` and `restore` happens in a thread of its own."""

    def __init__(
        self,
        *,
        store: StateStore,
        task: TaskId,
        epoch: int,
        key_groups: KeyGroups,
        report: Callable[[Report], None],
        threads: Threads = SYSTEM,
    ) -> None:
        self._store = store
        self._task = task
        self._epoch = epoch
        self._groups = key_groups
        self._report = report
        #: Called with what an upload raised, when that is no failure of a disk. Set by the task.
        self.on_failure: Callable[[BaseException], None] = _ignore
        #: Bytes of the keyed state of each step in the last checkpoint. Read from other threads, too.
        self.state_bytes: Mapping[str, int] = {}
        self._chains: dict[str, Chain] = {}
        self._handles: dict[str, FileHandle] = {}
        #: What could not be written, by step.
        self._unwritten: dict[str, OperatorState] = {}
        self._threads = threads
        self._snapshots: Mail[_Snapshot | None] = threads.mail()
        self._thread: threading.Thread | None = None

    def restore(
        self, states: Mapping[str, Sequence[tuple[int, int, StepState]]], handles: Mapping[str, FileHandle]
    ) -> dict[str, list[RestoredState]]:
        """What each step goes on from; and go on with its chains."""
        found: dict[str, list[RestoredState]] = {}
        for uid, steps in states.items():
            found[uid] = [
                RestoredState(number, subtask, step.shared, partial(self._read_pieces, uid, step, handles))
                for number, subtask, step in steps
            ]
            self._chains[uid] = tuple(link for _number, _subtask, step in steps for link in step.chain)
        self._handles = {link.file: handles[link.file] for chain in self._chains.values() for link in chain}
        return found

    def _read_pieces(
        self, uid: str, step: StepState, handles: Mapping[str, FileHandle], most_bytes: int | None
    ) -> Iterator[OperatorState]:
        for first, end in self._ranges(uid, step.chain, handles, most_bytes):
            keyed = self._store.read_chain(uid, cut_chain(step.chain, first, end), handles)
            yield replace(keyed, shared=step.shared)

    def _ranges(
        self, uid: str, chain: Chain, handles: Mapping[str, FileHandle], most_bytes: int | None
    ) -> Iterator[tuple[int, int]]:
        """Ranges of key groups, all of them together: of so many bytes each, or of one key group."""
        first, end = self._groups.first, self._groups.end
        sizes: collections.Counter[int] = collections.Counter()
        if most_bytes is not None:
            for link in chain:
                index = self._store.index(handles[link.file])[uid]
                for group, size in index.sizes():
                    sizes[group] += size
        total = 0
        for group in range(first, end):
            if most_bytes is not None and total and total + sizes[group] > most_bytes:
                yield first, group
                first, total = group, 0
            total += sizes[group]
        yield first, end

    def submit(
        self,
        checkpoint: int,
        state: Mapping[str, OperatorState],
        *,
        outputs: Mapping[str, bytes] = _NO_OUTPUTS,
        pause: float = 0.0,
    ) -> None:
        """Write the state of a checkpoint, and say so with what sinks have prepared. Returns at once."""
        if self._thread is None:
            self._thread = self._threads.thread(self._run, name=f"state {self._task}")
            self._thread.start()
        self._snapshots.put(_Snapshot(checkpoint, state, outputs, pause))

    def close(self) -> None:
        """Write nothing more. What is being written comes to its end, or is left behind: nobody looks at it."""
        self._snapshots.put(None)
        if self._thread is not None:
            self._thread.join(_LAST_WRITE)

    def _run(self) -> None:
        try:
            while (snapshot := self._snapshots.get()) is not None:
                self._take(snapshot)
        except BaseException as error:  # noqa: BLE001 - it is the task's failure
            self.on_failure(error)

    def _take(self, snapshot: _Snapshot) -> None:
        try:
            reach("dataflow.upload.before")
            part = self._write(snapshot)
            reach("dataflow.upload.after")
        except ShoalError as error:
            self._report(Declined(self._task, snapshot.checkpoint, str(error)))
            return
        self._report(Acknowledged(self._task, snapshot.checkpoint, part))
        with contextlib.suppress(ShoalError):  # nothing depends on it, and it is tried again after the next one
            self._merge_long_chains(snapshot.checkpoint + 1)
            self.state_bytes = {
                uid: sum(self._size(uid, link) for link in chain) for uid, chain in self._chains.items()
            }
        self._forget_files()

    # -- writing ----------------------------------------------------------------------------------------------

    def _write(self, snapshot: _Snapshot) -> TaskPart:
        state = {uid: self._with_unwritten(uid, each) for uid, each in snapshot.state.items()}
        self._unwritten = state
        name = file_name(snapshot.checkpoint, self._epoch, self._task)
        handle = self._store.write(name, state)
        self._unwritten = {}
        self._handles[name] = handle
        self._chains = {uid: chain for uid, each in state.items() if (chain := self._next_chain(uid, each, name))}
        needed = dict.fromkeys([name, *(link.file for chain in self._chains.values() for link in chain)])
        return TaskPart(
            subtask=self._task.subtask,
            file=name,
            files=tuple(self._handles[each] for each in needed),
            chains=dict(self._chains),
            written=handle.size,
            outputs=snapshot.outputs,
            pause=snapshot.pause,
        )

    def _with_unwritten(self, uid: str, state: OperatorState) -> OperatorState:
        before = self._unwritten.get(uid)
        if before is None or state.is_whole:
            return state
        tables = merge_tables([before.tables, state.tables], keep_gone=not before.is_whole)
        return replace(state, tables=tables, is_whole=before.is_whole)

    def _next_chain(self, uid: str, state: OperatorState, name: str) -> Chain:
        added = (Link(name, self._groups.first, self._groups.end),)
        has_changes = bool(state.keyed) or any(table.has_changes for table in state.tables.values())
        if state.is_whole:
            return added if has_changes else ()
        floors = {each: table.floor for each, table in state.tables.items() if table.floor is not None}
        before = self._chains.get(uid, ())
        needed = tuple(link for link in before if not (floors and self._index(uid, link).is_below(floors)))
        # A file that was needed before may have rows below a floor that rose: they must not come back.
        has_risen = bool(needed) and not self._index(uid, before[-1]).has_floors(floors)
        return (*needed, *added) if has_changes or has_risen else needed

    # -- merging ----------------------------------------------------------------------------------------------

    def _merge_long_chains(self, checkpoint: int) -> None:
        """Put the newest links of chains that have grown long together; the next checkpoint needs that file first."""
        starts: dict[str, int] = {}
        for uid, chain in self._chains.items():
            start = first_to_merge([self._size(uid, link) for link in chain])
            if start is not None and not any(self._index(uid, link).whole for link in chain):
                starts[uid] = start
        if not starts:
            return
        name = file_name(checkpoint, self._epoch, self._task, is_merged=True)
        try:
            parts = {uid: self._merged(uid, start, _PART_BYTES) for uid, start in starts.items()}
            self._handles[name] = self._store.write_parts(name, parts)
        except UnlikePartsError:  # as where some rows have columns that others lack
            parts = {uid: self._merged(uid, start, None) for uid, start in starts.items()}
            self._handles[name] = self._store.write_parts(name, parts)
        link = Link(name, self._groups.first, self._groups.end)
        for uid, start in starts.items():
            self._chains[uid] = (*self._chains[uid][:start], link)

    def _merged(self, uid: str, start: int, most_bytes: int | None) -> Iterator[OperatorState]:
        """The newest links of a chain as one, in parts of so many bytes: the state may be larger than memory."""
        links = self._chains[uid][start:]
        for first, end in self._ranges(uid, links, self._handles, most_bytes):
            cut = cut_chain(links, first, end)
            yield OperatorState(tables=self._store.merge_links(uid, cut, self._handles, keep_gone=start > 0))

    def _index(self, uid: str, link: Link) -> StepIndex:
        return self._store.index(self._handles[link.file])[uid]

    def _size(self, uid: str, link: Link) -> int:
        return self._index(uid, link).size_of(link.first, link.end)

    def _forget_files(self) -> None:
        needed = {link.file for chain in self._chains.values() for link in chain}
        self._handles = {name: handle for name, handle in self._handles.items() if name in needed}
        self._store.forget(needed)


def _ignore(_error: BaseException) -> None:
    """Nobody listens yet."""


def first_to_merge(sizes: Sequence[int]) -> int | None:
    """From which link on a chain of such sizes, oldest first, is merged; None when it is short enough.

    Links that are much larger than all behind them stay as they are, so what is written again stays a small multiple of
    what changed.
    """
    if len(sizes) <= _MOST_LINKS:
        return None
    start, total = len(sizes) - 1, sizes[-1]
    while start > 0 and (2 * sizes[start - 1] <= 3 * total or start > _MOST_LINKS // 2):
        start -= 1
        total += sizes[start]
    return start
