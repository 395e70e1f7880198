"""State as process functions use it: value, list, map, reducing and aggregating state of the current key.

`FunctionState` keeps what a batch touches as Python objects and writes it to the backend when the batch is done, so a
key that comes often in a batch costs one read and one write. Values are pickled. A time to live counts from the last
write, in processing time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.dataflow.state.base import StateBackend, StateKey
from shoal.dataflow.state.keycodec import decode_key, encode_key

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_ABSENT: Any = object()


class FunctionState:
    """The state of one operator: its namespaces, and the key that is current."""

    def __init__(self, backend: StateBackend) -> None:
        self._backend = backend
        self._lives: dict[str, int] = {}
        self._whole: set[str] = set()
        self._cache: dict[str, dict[StateKey, Any]] = {}
        self._dirty: dict[str, set[StateKey]] = {}
        self.now = 0
        self.key: StateKey | None = None

    def declare(self, name: str, *, ttl: int, is_whole: bool = True) -> None:
        """Have a namespace. `is_whole` when a key has one value in it, which can be read ahead."""
        if not name or name in self._lives:
            raise InvalidError([problem("state", name, "must have a name that no other state of the function has")])
        if ttl < 0:
            raise InvalidError([problem("ttl", ttl, "must not be below 0")])
        self._lives[name] = ttl
        self._cache[name], self._dirty[name] = {}, set()
        if is_whole:
            self._whole.add(name)

    def read_ahead(self, keys: list[StateKey]) -> None:
        """Get the values of keys that are about to be current."""
        for name in self._whole:
            cache = self._cache[name]
            missing = [key for key in keys if key not in cache]
            for key, content in zip(missing, self._backend.get_many(name, missing, now=self.now), strict=True):
                cache[key] = _ABSENT if content is None else _load(content)

    def read(self, name: str, more: bytes = b"") -> Any:
        """The current key's value, or `_ABSENT`."""
        key = self._place(name, more)
        cache = self._cache[name]
        if key not in cache:
            content = self._backend.get_many(name, [key], now=self.now)[0]
            cache[key] = _ABSENT if content is None else _load(content)
        return cache[key]

    def write(self, name: str, value: Any, more: bytes = b"") -> None:
        """Set the current key's value; `_ABSENT` to forget it."""
        key = self._place(name, more)
        self._cache[name][key] = value
        self._dirty[name].add(key)

    def scan(self, name: str) -> Iterator[tuple[bytes, Any]]:
        """What follows the current key in the namespace, with its values, in order."""
        self._flush(name)
        group, prefix = self._place(name, b"")
        for key, content in list(self._backend.scan(name, group, prefix, now=self.now)):
            yield key[len(prefix) :], _load(content)

    def flush(self) -> None:
        """Write everything to the backend, and forget what was read."""
        for name in self._lives:
            self._flush(name)
            self._cache[name].clear()

    def _flush(self, name: str) -> None:
        dirty, cache = self._dirty[name], self._cache[name]
        if not dirty:
            return
        ttl = self._lives[name]
        present = [(key, _dump(cache[key])) for key in dirty if cache[key] is not _ABSENT]
        if present:
            self._backend.put_many(name, present, expires_at=self.now + ttl if ttl else 0)
        absent = [key for key in dirty if cache[key] is _ABSENT]
        if absent:
            self._backend.delete_many(name, absent)
        dirty.clear()

    def _place(self, name: str, more: bytes) -> StateKey:
        if self.key is None:
            raise PreconditionError("there is no current key here", hint="use state in process and on_timer only")
        if name in self._whole:
            return self.key
        # With its length in front no key is the beginning of another one's entries.
        group, key = self.key
        return group, len(key).to_bytes(4, "big") + key + more


class _Handle:
    """One state of a function."""

    def __init__(self, state: FunctionState, name: str, *, ttl: int, is_whole: bool = True) -> None:
        state.declare(name, ttl=ttl, is_whole=is_whole)
        self._state = state
        self._name = name

    def clear(self) -> None:
        """Forget it for the current key."""
        self._state.write(self._name, _ABSENT)


class ValueState(_Handle, Generic[T]):
    """One value."""

    def get(self, default: Any = None) -> Any:
        """The value, or a default."""
        value = self._state.read(self._name)
        return default if value is _ABSENT else value

    def set(self, value: T) -> None:
        """Replace it."""
        self._state.write(self._name, value)

    @property
    def value(self) -> Any:
        """The value, or None."""
        return self.get()

    @value.setter
    def value(self, value: T) -> None:
        self.set(value)


class ListState(_Handle, Generic[T]):
    """Values in their order."""

    def get(self) -> list[T]:
        """All of them; a list of one's own."""
        value = self._state.read(self._name)
        return [] if value is _ABSENT else list(value)

    def add(self, value: T) -> None:
        """Append one."""
        self.extend((value,))

    def extend(self, values: Iterable[T]) -> None:
        """Append several."""
        before = self._state.read(self._name)
        if before is _ABSENT:
            before = []
        before.extend(values)  # the list is the cache's own: nobody else has it
        self._state.write(self._name, before)

    def set(self, values: Iterable[T]) -> None:
        """Replace all of them."""
        self._state.write(self._name, list(values))

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class MapState(_Handle, Generic[K, V]):
    """Values by a key of their own; each is read and written alone. Its keys are plain values."""

    def __init__(self, state: FunctionState, name: str, *, ttl: int) -> None:
        super().__init__(state, name, ttl=ttl, is_whole=False)

    def get(self, key: K, default: Any = None) -> Any:
        """The value of a key, or a default."""
        value = self._state.read(self._name, encode_key((key,)))
        return default if value is _ABSENT else value

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self._state.write(self._name, value, encode_key((key,)))

    def remove(self, key: K) -> None:
        """Forget a key."""
        self._state.write(self._name, _ABSENT, encode_key((key,)))

    def items(self) -> Iterator[tuple[K, V]]:
        """All keys with their values."""
        for more, value in self._state.scan(self._name):
            yield decode_key(more)[0], value

    def keys(self) -> Iterator[K]:
        """All keys."""
        return (key for key, _value in self.items())

    def clear(self) -> None:
        """Forget all keys."""
        for more, _value in self._state.scan(self._name):
            self._state.write(self._name, _ABSENT, more)

    def __getitem__(self, key: K) -> V:
        value = self._state.read(self._name, encode_key((key,)))
        if value is _ABSENT:
            raise KeyError(key)
        found: V = value
        return found

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self._state.read(self._name, encode_key((key,))) is not _ABSENT


class ReducingState(_Handle, Generic[T]):
    """One value, made of all that were added by a function of two."""

    def __init__(self, state: FunctionState, name: str, function: Callable[[T, T], T], *, ttl: int) -> None:
        super().__init__(state, name, ttl=ttl)
        self._function = function

    def add(self, value: T) -> None:
        """Put one more in."""
        before = self._state.read(self._name)
        self._state.write(self._name, value if before is _ABSENT else self._function(before, value))

    def get(self, default: Any = None) -> Any:
        """What they made, or a default."""
        value = self._state.read(self._name)
        return default if value is _ABSENT else value


class AggregatingState(_Handle):
    """What an accumulator makes of all values that were added."""

    def __init__(
        self,
        state: FunctionState,
        name: str,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
        ttl: int,
    ) -> None:
        super().__init__(state, name, ttl=ttl)
        self._create, self._add, self._result = create, add, result

    def add(self, value: Any) -> None:
        """Put one more in. The function returns the accumulator, which may be the one that it got."""
        before = self._state.read(self._name)
        self._state.write(self._name, self._add(self._create() if before is _ABSENT else before, value))

    def get(self, default: Any = None) -> Any:
        """The result, or a default when nothing was added."""
        value = self._state.read(self._name)
        return default if value is _ABSENT else self._result(value)


def _dump(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _load(content: bytes) -> Any:
    return pickle.loads(content)  # noqa: S301 - what this operator wrote itself, from its own checkpoint
