"""State that a user's operator keeps by key group, as bytes of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shoal.core.errors import InvalidError, problem


class KeyedState(Mapping[int, bytes]):
    """State by key: bytes for each key group. What `snapshot` returns so that other tasks can take over some groups.

    Only this type is cut by key group. Any other value, a dict with whole numbers as keys too, is kept as it is.
    """

    __slots__ = ("_groups",)

    def __init__(self, groups: Mapping[int, bytes]) -> None:
        wrong = [
            problem("key group", group, "must be a whole number from 0 on") for group in groups if not _is_group(group)
        ]
        wrong += [
            problem(f"state of key group {group}", type(content).__name__, "must be bytes")
            for group, content in groups.items()
            if not isinstance(content, bytes)
        ]
        if wrong:
            hint = "any other value that can be pickled is kept whole: return it as it is, without KeyedState"
            raise InvalidError(wrong, what="keyed state", hint=hint)
        self._groups = dict(groups)

    def __getitem__(self, group: int) -> bytes:
        return self._groups[group]

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def __repr__(self) -> str:
        return f"KeyedState({self._groups!r})"


def _is_group(group: object) -> bool:
    return isinstance(group, int) and not isinstance(group, bool) and group >= 0
