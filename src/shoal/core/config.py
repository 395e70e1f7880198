"""Settings of a process: defaults < TOML file < environment < flags, into a frozen dataclass.

The dataclass says what there is, with types and rules as in `shoal.core.shape`:

    @dataclass(frozen=True, slots=True)
    class AgentSettings:
        node_id: Identifier
        lease: Annotated[timedelta, …] = timedelta(seconds=30)

    settings = load_settings(
        AgentSettings,
        flags={"node_id": None, "lease": "15s"},                  what was typed; None where nothing was
        env=os.environ,
        env_names={"node_id": ("SHOAL_NODE_ID", "PERSYS_NODE_ID")},   the first that is set counts
        file="agent.toml",
    )

Every value of every source is read, also one that another source overrides, and everything that is wrong is
reported at once, each problem under the name that the reader has to change: `--lease`, `PERSYS_NODE_ID`,
`agent.toml: heartbeat_interval`. Called by `shoal.cli`; use sites receive the finished value.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from shoal.core import files, telemetry
from shoal.core.errors import InvalidError, Problem, ShoalError, problem
from shoal.core.shape import build, field_kinds, plain_kind, read_value, unknown_field

T = TypeVar("T")

MAX_FILE_BYTES = 1024 * 1024

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def load_settings(
    cls: type[T],
    *,
    flags: Mapping[str, object | None] | None = None,
    env: Mapping[str, str] | None = None,
    env_names: Mapping[str, Sequence[str]] | None = None,
    file: str | None = None,
    flag_names: Mapping[str, str] | None = None,
) -> T:
    """Read the settings of a process from everywhere they may stand. Raises `InvalidError` with every problem.

    Args:
        cls: the settings to make.
        flags: by field. Text is read by the field's type, other values are taken as they are; None is not given.
        env: the environment. A variable that is empty counts as unset.
        env_names: by field, the variables that may set it, the one that counts first.
        file: path of a TOML file whose keys are the fields.
        flag_names: by field, what the flag is called when that is not the field's name with dashes.
    """
    sources = _Sources(cls, flag_names or {}, env_names or {})
    if file is not None:
        sources.read_file(file)
    sources.read_environment(env or {})
    sources.read_flags(flags or {})
    return sources.finish(cls)


@dataclass(frozen=True, slots=True)
class _Found:
    """A value, and where it stands."""

    value: Any
    where: str


class _Sources:
    """Collects values field by field, lowest source first, and everything that is wrong with them."""

    def __init__(self, cls: type, flag_names: Mapping[str, str], env_names: Mapping[str, Sequence[str]]) -> None:
        self._kinds = field_kinds(cls)
        self._flag_names = flag_names
        self._env_names = env_names
        self._found: dict[str, _Found] = {}
        self._broken: set[str] = set()
        self._problems: list[Problem] = []
        strangers = [name for name in (*flag_names, *env_names) if name not in self._kinds]
        if strangers:
            raise TypeError(f"{cls.__name__} has no field {', '.join(strangers)}")

    def read_file(self, path: str) -> None:
        try:
            content = files.read_bytes(path, limit=MAX_FILE_BYTES)
            table = tomllib.loads(content.decode())
        except ShoalError as error:
            self._problems.append(Problem(field=path, value="", rule=error.message))
            return
        except UnicodeDecodeError:
            self._problems.append(Problem(field=path, value="", rule="must be UTF-8 text"))
            return
        except tomllib.TOMLDecodeError as error:
            self._problems.append(Problem(field=path, value="", rule=f"must be TOML: {error}"))
            return
        except RecursionError:
            self._problems.append(Problem(field=path, value="", rule="must be TOML that is not nested so deeply"))
            return
        for key, value in table.items():
            if key in self._kinds:
                self._take(key, value, f"{path}: {key}")
            else:
                found = unknown_field(key, self._kinds)
                self._problems.append(dataclasses.replace(found, field=f"{path}: {found.field}"))

    def read_environment(self, env: Mapping[str, str]) -> None:
        for field, names in self._env_names.items():
            for name in reversed(names):  # all of them are read; the first that is set counts
                if env.get(name):
                    self._take_text(field, env[name], name, bare_seconds=True)

    def read_flags(self, flags: Mapping[str, object | None]) -> None:
        for field, value in flags.items():
            if field not in self._kinds:
                raise TypeError(f"there is no setting {field}")
            flag = self._flag_name(field)
            if isinstance(value, str):
                self._take_text(field, value, flag, bare_seconds=False)
            elif _is_words(value) and typing.get_origin(plain_kind(self._kinds[field])) in (dict, Mapping):
                self._take_pairs(field, typing.cast("Sequence[str]", value), flag)
            elif value is not None:
                self._take(field, value, flag)

    def finish(self, cls: type[T]) -> T:
        """The settings, or everything that is wrong."""
        value: T | None = None
        try:
            # Fields that are known to be wrong would be reported twice; they are left out, and not missed below.
            value = build(cls, {field: found.value for field, found in self._found.items()})
        except InvalidError as error:
            self._problems.extend(self._named(each) for each in error.problems if each.field not in self._broken)
        if self._problems or value is None:
            raise InvalidError(_without_secrets(each) for each in self._problems)
        return value

    def _take(self, field: str, value: Any, where: str) -> None:
        try:
            self._found[field] = _Found(read_value(self._kinds[field], value, at=where), where)
        except InvalidError as error:
            self._problems.extend(error.problems)
            self._broken.add(field)

    def _take_text(self, field: str, text: str, where: str, *, bare_seconds: bool) -> None:
        kind = plain_kind(self._kinds[field])
        try:
            value = _from_text(kind, text, bare_seconds=bare_seconds)
        except ValueError as error:
            self._problems.append(problem(where, text, str(error)))
            self._broken.add(field)
            return
        self._take(field, value, where)

    def _take_pairs(self, field: str, words: Sequence[str], where: str) -> None:
        try:
            self._take(field, _pairs(words), where)
        except ValueError as error:
            self._problems.append(problem(where, list(words), str(error)))
            self._broken.add(field)

    def _named(self, found: Problem) -> Problem:
        """A problem under the name by which its reader knows the setting."""
        field = re.split(r"[.\[]", found.field, maxsplit=1)[0]
        if field in self._found:
            where = f"{self._found[field].where}{found.field[len(field) :]}"
            return Problem(field=where, value=found.value, rule=found.rule)
        ways = [self._flag_name(field), *self._env_names.get(field, ())] if field in self._kinds else []
        rule = f"is required; give it as {' or '.join(ways)}" if found.rule == "is required" else found.rule
        return Problem(field=ways[0] if ways else found.field, value=found.value, rule=rule)

    def _flag_name(self, field: str) -> str:
        return self._flag_names.get(field, f"--{field.replace('_', '-')}")


def _without_secrets(found: Problem) -> Problem:
    return dataclasses.replace(found, value="") if telemetry.is_secret_name(found.field) else found


def _from_text(kind: Any, text: str, *, bare_seconds: bool) -> Any:
    """A text as the plain value that a field of this kind reads. Raises ValueError with the rule."""
    if kind is str:
        return text
    text = text.strip()
    origin = typing.get_origin(kind)
    if origin in (tuple, list, frozenset, set):
        inner = plain_kind(typing.get_args(kind)[0])
        return [_from_text(inner, word, bare_seconds=bare_seconds) for word in _words(text)]
    if origin in (dict, Mapping):
        inner = plain_kind(typing.get_args(kind)[1])
        pairs = _pairs(_words(text))
        return {key: _from_text(inner, value, bare_seconds=bare_seconds) for key, value in pairs.items()}
    if kind is timedelta and bare_seconds and _SECONDS.fullmatch(text):
        return f"{text}s"
    if kind is bool:
        return _to_bool(text)
    if kind is int:
        return _to_number(int, text, "must be a whole number")
    if kind is float:
        return _to_number(float, text, "must be a number")
    return text


def _to_bool(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("must be true or false")
    return word in _TRUE


def _to_number(kind: type[int] | type[float], text: str, rule: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(rule) from None


def _words(text: str) -> list[str]:
    return [word for word in (part.strip() for part in text.split(",")) if word]


def _pairs(words: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not key:
            raise ValueError("must be key=value")
        if key in pairs:
            raise ValueError(f"the key {key} is given twice")
        pairs[key] = value
    return pairs


def _is_words(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
