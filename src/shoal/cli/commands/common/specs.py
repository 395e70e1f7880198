"""Reads spec files: YAML or JSON with one or several documents. Every problem has its file and line.

    shoal apply -f web.yaml -f folder -f s3://bucket/jobs.yaml -f -

Called by `apply`, `delete` and the commands of services; calls `shoal.model.documents` for the rules and
`shoal.core.files` to open paths.
"""

from __future__ import annotations

import dataclasses
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from shoal.core.errors import InvalidError, NotFoundError, Problem, ShoalError, UnsupportedError, problem
from shoal.core.files import read_bytes
from shoal.model.documents import Document, GroupDocument, WorkloadDocument, read_document
from shoal.model.views import WorkloadView
from shoal.model.workloads import WorkloadType

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 16 * 1024 * 1024
MAX_ENTRIES = 200_000
"""A file with anchors can unfold to far more than its size; this bounds what is read from one."""

_SCHEMA_OF = "`shoal schema {}` prints every field and its rule"
_SCHEMA = _SCHEMA_OF.format("process")
_SUFFIXES = (".yaml", ".yml", ".json")
_PART = re.compile(r"[^.\[\]]+|\[[0-9]+\]")


class Identified(Protocol):
    """A document with an id."""

    @property
    def id(self) -> str:
        """Its id."""
        ...


D = TypeVar("D", bound=Identified)


@dataclass(frozen=True, slots=True)
class LocatedDocument(Generic[D]):
    """A document and where it was written."""

    document: D
    source: str
    line: int

    @property
    def place(self) -> str:
        """file:line, for messages."""
        return f"{self.source}:{self.line}"

    def located(self, error: InvalidError) -> InvalidError:
        """The same error of the control plane, with the place of this document in front of each field."""
        problems = [dataclasses.replace(each, field=f"{self.place}: {each.field}") for each in error.problems]
        return InvalidError(problems, hint=error.hint)


@overload
def read_specs(paths: Sequence[str], *, recursive: bool = False) -> list[LocatedDocument[Document]]: ...


@overload
def read_specs(
    paths: Sequence[str], *, recursive: bool = False, read: Callable[[object], D]
) -> list[LocatedDocument[D]]: ...


def read_specs(
    paths: Sequence[str], *, recursive: bool = False, read: Callable[[object], Any] = read_document
) -> list[LocatedDocument[Any]]:
    """Read every document of every file or folder, `-` being stdin. Raises `InvalidError` with every problem of all.

    Of a folder, its *.yaml, *.yml and *.json files are read in order of their names; those below it if `recursive`.
    `read` makes a document of parsed YAML.
    """
    found: list[LocatedDocument[Any]] = []
    problems: list[Problem] = []
    hint = ""
    if list(paths).count("-") > 1:
        problems.append(problem("-f", "-", "stdin can be read only once"))
    else:
        for path in _expand(paths, problems, recursive=recursive):
            try:
                text = _read(path)
            except InvalidError as error:
                problems.extend(error.problems)
                hint = hint or "give a file of YAML or JSON that can be read; - is stdin"
                continue
            try:
                found.extend(parse_specs(text, source="<stdin>" if path == "-" else path, read=read))
            except InvalidError as error:
                problems.extend(error.problems)
                hint = (error.hint or _SCHEMA) if read is read_document else ""
    repeated = list(_repeated(found))
    if repeated:
        problems.extend(repeated)
        hint = hint or "give each an id of its own"
    if not problems and not found:
        problems.append(problem("-f", ", ".join(paths), "must hold at least one document"))
        hint = _SCHEMA
    if problems:
        raise InvalidError(problems, hint=hint)
    return found


def _expand(paths: Sequence[str], problems: list[Problem], *, recursive: bool) -> Iterator[str]:
    """The files themselves, in place of the folders they are in."""
    for path in paths:
        if path == "-" or not Path(path).is_dir():
            yield path
            continue
        inside = Path(path).rglob("*") if recursive else Path(path).iterdir()
        files = sorted(str(each) for each in inside if each.suffix in _SUFFIXES and each.is_file())
        if not files:
            problems.append(problem(path, None, f"must hold a file that ends in {', '.join(_SUFFIXES)}"))
        yield from files


def parse_specs(text: str, *, source: str, read: Callable[[object], Any] = read_document) -> list[LocatedDocument[Any]]:
    """Read the documents of one file's text."""
    import yaml

    found: list[LocatedDocument[Any]] = []
    problems: list[Problem] = []
    schemas: set[str] = set()
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is None or _is_empty(node):
                continue
            content: object = None
            try:
                problems.extend(_repeated_keys(node, source))
                content = loader.construct_document(node)
                found.append(LocatedDocument(read(content), source, node.start_mark.line + 1))
            except InvalidError as error:
                problems.extend(_with_line(each, node, source) for each in error.problems)
                schemas.add(_schema_of(content, error.problems))
            except ValueError as error:  # such as the thirteenth month of a date, or a number of ten thousand digits
                problems.append(Problem(f"{source}:{node.start_mark.line + 1}", "", f"cannot be read: {error}"))
    except yaml.YAMLError as error:
        problems.append(_syntax_problem(error, source))
    except RecursionError:
        problems.append(Problem(source, "", "is nested too deeply"))
    if problems:
        raise InvalidError(problems, hint=_SCHEMA_OF.format(schemas.pop()) if len(schemas) == 1 else "")
    return found


def _schema_of(content: object, problems: Sequence[Problem]) -> str:
    """The name of the schema that tells what is wrong with a document: its kind of workload, or group."""
    if not isinstance(content, dict):
        return WorkloadType.PROCESS.value
    if content.get("kind") == "group":
        members = content.get("members")
        if not isinstance(members, list) or not all(each.field.startswith("members[") for each in problems):
            return "group"
        return _schema_of(members[0], ()) if members else "group"
    kinds = (kind.value for kind in WorkloadType)
    usual = WorkloadType.PROCESS.value
    return next((each for each in kinds if each == content.get("type") or each in content), usual)


def read_file(path: str) -> bytes:
    """The bytes of a file, a URL or stdin (`-`). Raises `InvalidError`."""
    try:
        content = _read_stream(path) if path == "-" or _is_stream(path) else read_bytes(path, limit=MAX_BYTES)
    except NotFoundError:
        raise InvalidError([problem(path, None, "does not exist")]) from None
    except ShoalError as error:
        rule = f"cannot be read: {error.message.removeprefix(f'{path} ').removeprefix(f'{path}: ')}"
        raise InvalidError([problem(path, None, rule)]) from None
    if len(content) > MAX_BYTES:
        raise InvalidError([problem(path, None, f"must have at most {MAX_BYTES:,} bytes")])
    return content


def _read(path: str) -> str:
    content = read_file(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InvalidError([problem(f"{path}:{line}", None, "must be text in UTF-8")]) from None


def _is_stream(path: str) -> bool:
    """Whether it is a pipe, as a shell makes one of `<(command)`, or a device: to be read once, from its beginning."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _read_stream(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with Path(path).open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidError([problem(path, None, f"cannot be read: {error.strerror}")]) from None


def _is_empty(node: yaml.Node) -> bool:
    # `---` at the end of a file, or two in a row, is no document.
    return node.tag == "tag:yaml.org,2002:null"


def _syntax_problem(error: Any, source: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    words = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    context = getattr(error, "context", None)
    place = f"{source}:{mark.line + 1}" if mark is not None else source
    column = f", at column {mark.column + 1}" if mark is not None else ""
    sentence = " ".join(str(words).split())
    return Problem(place, "", f"is not valid YAML: {f'{context}, ' if context else ''}{sentence}{column}")


def _with_line(given: Problem, root: yaml.Node, source: str) -> Problem:
    return dataclasses.replace(given, field=f"{source}:{_line_of(given.field, root)}: {given.field}")


def _line_of(path: str, root: yaml.Node) -> int:
    """The line of a field, or of the nearest thing around it that was written."""
    import yaml

    node, line = root, root.start_mark.line + 1
    for part in _PART.findall(path):
        if part.startswith("["):
            index = int(part[1:-1])
            if not isinstance(node, yaml.SequenceNode) or index >= len(node.value):
                break
            node = node.value[index]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == part), None)
            if pair is None:
                break
            node, line = pair[1], pair[0].start_mark.line + 1
        else:
            break
    return line


def _repeated_keys(root: yaml.Node, source: str) -> Iterator[Problem]:
    """YAML lets the last of two equal keys win in silence; here it is an error, because one of them was lost."""
    import yaml

    stack, seen = [root], 0
    while stack:
        node = stack.pop()
        seen += 1
        if seen > MAX_ENTRIES:
            raise InvalidError([problem("document", None, f"must have at most {MAX_ENTRIES:,} entries")])
        if isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys and key.value != "<<":
                        yield Problem(f"{source}:{key.start_mark.line + 1}: {key.value}", "", "is given twice")
                    keys.add(key.value)
                stack.append(value)


def _repeated(found: Sequence[LocatedDocument[Any]]) -> Iterator[Problem]:
    """The same workload or group in two documents is a mistake, not a sequence of steps."""
    known: dict[tuple[str, str], str] = {}
    for located in found:
        document = located.document
        names = [("workload", document.id)]
        if isinstance(document, GroupDocument):
            names = [("group", document.id), *(("workload", member.id) for member in document.members)]
        for noun, name in names:
            first = known.get((noun, name))
            if first is not None:
                yield Problem(f"{located.place}: id", "", f"the {noun} {name} was given already at {first}")
            known.setdefault((noun, name), located.place)


def document_of(view: WorkloadView) -> WorkloadDocument:
    """The document that applies a workload as it is stored."""
    if view.spec is None:
        raise UnsupportedError(f"the control plane does not show the spec of workload {view.workload_id!r}")
    # A revision that is the hash of the spec would be wrong as soon as the spec is changed.
    is_hash = bool(view.spec_sha256) and view.revision_id == view.spec_sha256.hex()
    revision = "" if is_hash else view.revision_id
    return WorkloadDocument(view.workload_id, view.spec, revision, view.desired_state)
