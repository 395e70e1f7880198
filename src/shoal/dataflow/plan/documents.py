"""Plans written down: versioned JSON documents, with users' functions and data beside them as named blobs.

`write_plan` is called before a plan leaves its process, `read_plan` where it arrives. A document says everything that
checking, optimising and explaining need; functions are names in it, and nothing of them is loaded by reading. What
cannot be read is a `DocumentError` that names every bad field.

    {"format": 1, "nodes": [{"node": "Source", "inputs": [], …}, …], "sinks": [3]}
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.shape import unknown_field
from shoal.dataflow.errors import DocumentError, PlanError
from shoal.dataflow.language.logical import (
    Aggregate,
    AssignTime,
    Custom,
    Distinct,
    Filter,
    Join,
    KeyBy,
    MapBatches,
    MapRecords,
    Merge,
    Node,
    Process,
    Project,
    Reduce,
    SideOutput,
    Sink,
    Source,
    Union,
    walk,
)
from shoal.dataflow.plan.document_values import BadValueError, Blobs, decode, encode, hints_of, matches, words_for

FORMAT = 1
MAX_NODES = 10_000

KINDS: dict[str, type[Node]] = {
    kind.__name__: kind
    for kind in (
        Aggregate,
        AssignTime,
        Custom,
        Distinct,
        Filter,
        Join,
        KeyBy,
        MapBatches,
        MapRecords,
        Merge,
        Process,
        Project,
        Reduce,
        SideOutput,
        Sink,
        Source,
        Union,
    )
}


@dataclass(frozen=True, slots=True)
class PlanDocument:
    """A plan that can be sent or kept."""

    body: Mapping[str, Any]
    #: Pickled functions and Arrow data, by names that are made of their contents.
    blobs: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    #: Of a document that stays in its process: functions, data and connectors as they are.
    live: Mapping[str, Any] | None = field(default=None, repr=False)

    def to_json(self) -> str:
        """The document as text, the same for the same plan."""
        return json.dumps(self.body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_plan(sinks: Sequence[Node]) -> PlanDocument:
    """Write a plan down. Raises `PlanError` for a function or a value that cannot leave its process."""
    blobs = Blobs()
    return PlanDocument({"format": FORMAT, **write_nodes(sinks, blobs)}, blobs.contents)


def write_nodes(sinks: Sequence[Node], blobs: Blobs) -> dict[str, Any]:
    """The nodes of a plan and the numbers of its sinks."""
    nodes = list(walk(*sinks))
    numbers = {node: number for number, node in enumerate(nodes)}
    return {
        "nodes": [_node_to_body(node, numbers, blobs) for node in nodes],
        "sinks": [numbers[sink] for sink in sinks],
    }


def read_plan(
    document: PlanDocument | str | Mapping[str, Any], blobs: Mapping[str, bytes] | None = None
) -> tuple[Node, ...]:
    """Read a plan. Functions stay names until a task calls them; see `functions.add_blobs`."""
    if isinstance(document, PlanDocument):
        body: Any = document.body
        blobs = document.blobs if blobs is None else blobs
    else:
        body = _parse(document) if isinstance(document, str) else document
    problems: list[Problem] = []
    try:
        sinks = _read(body, Blobs(blobs), problems)
    except RecursionError:
        raise DocumentError([problem("document", None, "is nested too deep")]) from None
    if problems:
        raise DocumentError(problems)
    return sinks


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError([problem("document", text, f"is not JSON: {error}")]) from error


# ---------------------------------------------------------------------------------------------------------
# Nodes


def _node_to_body(node: Node, numbers: Mapping[Node, int], blobs: Blobs) -> dict[str, Any]:
    body: dict[str, Any] = {"node": type(node).__name__, "inputs": [numbers[each] for each in node.inputs]}
    for each in dataclasses.fields(node):
        value = getattr(node, each.name)
        if each.name == "inputs" or _is_default(each, value):
            continue
        try:
            body[each.name] = encode(value, blobs, at=node.at)
        except BadValueError as error:
            where = f"{type(node).__name__.lower()}: {each.name}"
            raise PlanError([problem(where, None, str(error))], at=node.at, hint=error.hint) from error
    return body


def _is_default(each: dataclasses.Field[Any], value: Any) -> bool:
    """Defaults are left out, so that a field more does not change the documents of those who do not use it."""
    if each.default is dataclasses.MISSING:
        return False
    return value is each.default or (type(value) is type(each.default) and bool(value == each.default))


def _read(body: Any, blobs: Blobs, problems: list[Problem]) -> tuple[Node, ...]:
    if not isinstance(body, Mapping):
        problems.append(problem("document", body, "must be a mapping"))
        return ()
    if not check_format(body, FORMAT, problems):
        return ()
    problems += [
        unknown_field(key, ("format", "nodes", "sinks")) for key in body if key not in ("format", "nodes", "sinks")
    ]
    return read_nodes(body, blobs, problems)[1]


def check_format(body: Mapping[str, Any], known: int, problems: list[Problem]) -> bool:
    """Whether a document is of the format that is known here; says so when a newer version wrote it."""
    found = body.get("format")
    if found == known and not isinstance(found, bool):
        return True
    is_newer = isinstance(found, int) and not isinstance(found, bool) and found > known
    newer = ": a newer version of Shoal wrote this, and this one cannot run it"
    rule = f"must be {known}{newer if is_newer else ': another version of the engine wrote this'}"
    problems.append(problem("format", found, rule))
    return False


def read_nodes(
    body: Mapping[str, Any], blobs: Blobs, problems: list[Problem]
) -> tuple[Sequence[Node | None], tuple[Node, ...]]:
    """Every node by its number, None where there is a problem; and the sinks."""
    entries = body.get("nodes")
    if not isinstance(entries, list) or len(entries) > MAX_NODES:
        problems.append(problem("nodes", entries, f"must be a list of at most {MAX_NODES:,} nodes"))
        return (), ()
    nodes: list[Node | None] = []
    for number, entry in enumerate(entries):
        nodes.append(_read_node(entry, f"nodes[{number}]", nodes, blobs, problems))
    return nodes, _read_sinks(body.get("sinks"), nodes, problems)


def _read_sinks(given: Any, nodes: Sequence[Node | None], problems: list[Problem]) -> tuple[Node, ...]:
    if not isinstance(given, list) or not given:
        problems.append(problem("sinks", given, "must be a list of numbers of nodes"))
        return ()
    return tuple(node for node in _refer(given, "sinks", nodes, problems) if _is_sink(node, problems))


def _is_sink(node: Node, problems: list[Problem]) -> bool:
    if isinstance(node, Sink):
        return True
    problems.append(problem("sinks", type(node).__name__, "must be numbers of Sink nodes"))
    return False


def _refer(given: Any, at: str, nodes: Sequence[Node | None], problems: list[Problem]) -> Iterator[Node]:
    """The nodes with these numbers. Only earlier ones: so there can be no circle."""
    for place, number in enumerate(given):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(nodes):
            problems.append(problem(f"{at}[{place}]", number, "must be the number of an earlier node"))
            continue
        node = nodes[number]
        if node is not None:  # else its own problem is on the list
            yield node


def _read_node(entry: Any, at: str, nodes: Sequence[Node | None], blobs: Blobs, problems: list[Problem]) -> Node | None:
    kind = KINDS.get(str(entry.get("node"))) if isinstance(entry, Mapping) else None
    if kind is None:
        given = entry.get("node") if isinstance(entry, Mapping) else entry
        problems.append(problem(f"{at}.node", given, f"must be one of {', '.join(KINDS)}"))
        return None
    before = len(problems)
    inputs = entry.get("inputs")
    if not isinstance(inputs, list):
        problems.append(problem(f"{at}.inputs", inputs, "must be a list of numbers of earlier nodes"))
        return None
    values: dict[str, Any] = {"inputs": tuple(_refer(inputs, f"{at}.inputs", nodes, problems))}
    _check_arity(kind, len(inputs), at, problems)
    hints = hints_of(kind)
    for key, given in entry.items():
        if key in ("node", "inputs"):
            continue
        if key not in hints:
            problems.append(unknown_field(key, hints, at=at))
            continue
        values[key] = _read_field(given, hints[key], f"{at}.{key}", blobs, problems)
    problems += [
        Problem(f"{at}.{each.name}", "", "is required")
        for each in dataclasses.fields(kind)
        if each.name not in values and each.default is dataclasses.MISSING
    ]
    opens = {Source: "open_reader", Sink: "open_writer"}.get(kind)
    if opens is not None and "connector" in values and not hasattr(values["connector"], opens):
        problems.append(problem(f"{at}.connector", entry["connector"], f"must be a connector with {opens}"))
    if len(problems) > before or len(values["inputs"]) != len(inputs):
        return None
    return kind(**values)


def _read_field(given: Any, hint: Any, at: str, blobs: Blobs, problems: list[Problem]) -> Any:
    try:
        value = decode(given, blobs, at)
    except BadValueError as error:
        problems.append(problem(error.at or at, error.value, str(error)))
        return None
    except InvalidError as error:  # a value's own rules
        problems += [Problem(f"{at}.{each.field}", each.value, each.rule) for each in error.problems]
        return None
    if not matches(value, hint):
        problems.append(problem(at, given, f"must be {words_for(hint)}"))
    return value


def _check_arity(kind: type[Node], count: int, at: str, problems: list[Problem]) -> None:
    least, most = {
        Source: (0, 0),
        Join: (2, 2),
        Union: (2, MAX_NODES),
        Merge: (2, MAX_NODES),
        Custom: (1, MAX_NODES),
    }.get(kind, (1, 1))
    if not least <= count <= most:
        wanted = str(least) if least == most else f"at least {least}"
        problems.append(problem(f"{at}.inputs", count, f"of a {kind.__name__} must be {wanted}"))
