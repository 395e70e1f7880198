"""Plans for people: `explain()` as text, `visualize()` as a Graphviz graph. Nothing is run, opened or asked.

Called by streams, outputs and dataflows. The physical half comes from `shoal.dataflow.plan.physical`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import InvalidError, UnavailableError, problem
from shoal.dataflow.language.expressions.trees import Expression, Named, describe
from shoal.dataflow.language.lengths import show_micros
from shoal.dataflow.language.logical import (
    Aggregate,
    AssignTime,
    Custom,
    Distinct,
    EventTime,
    Filter,
    FunctionRef,
    Join,
    JoinMode,
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
from shoal.dataflow.language.windows import CountWindow, SessionWindow, Window
from shoal.dataflow.plan.facts import Facts
from shoal.dataflow.plan.prepare import Prepared, sketch
from shoal.dataflow.plan.resolve import kind_of

_MAX_COLUMNS = 8


class Explanation(str):
    """What `explain()` printed, for those who want it as text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<plan, {self.count(chr(10))} lines>"  # a console would else print all of it a second time


class Picture(str):
    """Graphviz text."""

    __slots__ = ()


def explain(sinks: Sequence[Node], *, parallelism: int = 1) -> Explanation:
    """Print a plan, and return the text."""
    text = Explanation(plan_text(sinks, parallelism=parallelism))
    sys.stdout.write(text)
    return text


def plan_text(sinks: Sequence[Node], *, parallelism: int = 1) -> str:
    """The logical plan as written, what the rules made of it, and the physical plan."""
    from shoal.dataflow.plan.physical import describe as describe_physically

    written, better = sketch(sinks, rules=False), sketch(sinks)
    blocks = ["logical plan", *_lines(written)]
    if better.rules:
        blocks += ["", f"optimised ({', '.join(better.rules)})", *_lines(better)]
    blocks += ["", f"physical plan (parallelism {parallelism})"]
    blocks += [f"  {line}" for line in describe_physically(better, parallelism).splitlines()]
    return "\n".join(blocks) + "\n"


def _lines(prepared: Prepared) -> list[str]:
    """One line for each node: its number, what it does, whom it reads, its columns, its line."""
    nodes = list(walk(*prepared.sinks))
    numbers = {node: number for number, node in enumerate(nodes, start=1)}
    rows = [
        (
            f"{numbers[node]:>3} {label(node)}",
            f"<- {', '.join(str(numbers[each]) for each in node.inputs)}" if node.inputs else "",
            str(node.at or ""),
            "" if isinstance(node, Sink) else columns_text(prepared.facts[node]),
        )
        for node in nodes
    ]
    widths = [min(max(len(row[place]) for row in rows), 72) for place in range(3)] + [0]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def columns_text(facts: Facts) -> str:
    """The columns, or that they are known at run."""
    if facts.schema is None:
        return "columns known at run"
    shown = [f"{each.name}: {each.type}" for each in list(facts.schema)[:_MAX_COLUMNS]]
    more = len(facts.schema) - len(shown)
    return f"({', '.join(shown)}{f', … {more} more' if more else ''})"


# ---------------------------------------------------------------------------------------------------------
# Nodes


def label(node: Node) -> str:
    """What a node does, on one line."""
    text = f"{kind_of(node)} {_detail(node)}".rstrip()
    extra = [f"x{node.parallelism}"] if node.parallelism else []
    extra += [f"memory {_size(node.memory)}"] if node.memory else []
    extra += [f"cpu {node.cpu:g}"] if node.cpu else []
    return " ".join([text, *extra])


def _size(count: int) -> str:
    """Bytes as people write them, exactly: 512MB, 1GiB, 1000001B."""
    for power in (4, 3, 2, 1):
        for base, unit in ((1000, "B"), (1024, "iB")):
            if count % base**power == 0:
                return f"{count // base**power}{'KMGT'[power - 1]}{unit}"
    return f"{count}B"


def _detail(node: Node) -> str:
    match node:
        case Source():
            return _source(node)
        case Sink():
            return str(node.connector.label)
        case Project():
            return ("+ " if node.keep_others else "") + ", ".join(_named(each) for each in node.columns)
        case Filter(predicate=Expression() as predicate):
            return describe(predicate)
        case Aggregate() | Reduce() | Distinct() | Process() | Custom() | KeyBy():
            return _keyed(node)
        case Join():
            return _join(node)
        case _:
            return _other(node)


def _other(node: Node) -> str:
    match node:
        case Filter(predicate=FunctionRef() as function) | MapBatches(function=function):
            return function.label
        case MapRecords():
            return f"{node.kind} {node.function.label}"
        case AssignTime(time=time):
            return _time(time)
        case Merge(by=by):
            return f"by {by}"
        case SideOutput(tag=tag):
            return tag
        case Union():
            return ""
        case _:
            return ""


def _source(node: Source) -> str:
    text = str(node.connector.label)
    if not node.connector.is_bounded:
        text += ", endless"
    return f"{text}, {_time(node.time)}" if node.time is not None else text


def _time(time: EventTime) -> str:
    text = f"event time {time.column or 'of the record'}"
    return f"{text} - {show_micros(time.disorder)}" if time.disorder else text


def _named(named: Named) -> str:
    text = describe(named.expression)
    return text if text == named.name else f"{named.name} = {text}"


def _keyed(node: Any) -> str:
    keys = node.columns if isinstance(node, Distinct) else node.keys
    parts = [f"by {', '.join(keys)}"] if keys else []
    window = getattr(node, "window", None)
    if window is not None:
        parts.append(window_text(window))
    if isinstance(node, Aggregate):
        parts.append(", ".join(f"{each.name} = {each.function}({each.column})" for each in node.aggregations))
        parts += ["before exchange"] if node.partial else []
    elif isinstance(node, Reduce | Process):
        parts.append(node.function.label)
    elif isinstance(node, Custom):
        parts.append(node.factory.label)
    return " ".join(parts)


def window_text(window: Window) -> str:
    """A window as a person says it."""
    if isinstance(window, SessionWindow):
        return f"session {show_micros(window.gap)}"
    if isinstance(window, CountWindow):
        return f"every {window.slide} of {window.size} rows" if window.slide != window.size else f"{window.size} rows"
    if window.size == window.slide:
        return f"tumbling {show_micros(window.size)}"
    return f"sliding {show_micros(window.size)} every {show_micros(window.slide)}"


def _join(node: Join) -> str:
    pairs = zip(node.left_keys, node.right_keys, strict=False)
    keys = ", ".join(mine if mine == theirs else f"{mine} = {theirs}" for mine, theirs in pairs)
    mode = {
        JoinMode.WINDOW: window_text(node.window) if node.window else "",
        JoinMode.INTERVAL: f"within {show_micros(node.lower)} to {show_micros(node.upper)}",
        JoinMode.ASOF: f"as of {node.direction}" + (f", {show_micros(node.tolerance)} away" if node.tolerance else ""),
        JoinMode.TABLE: "table",
        JoinMode.BROADCAST: "broadcast",
        JoinMode.REGULAR: f"ttl {show_micros(node.ttl)}" if node.ttl else "one on the right" * node.right_is_unique,
    }[node.mode]
    return " ".join(each for each in (node.kind.value, f"on {keys}" if keys else "", mode) if each)


# ---------------------------------------------------------------------------------------------------------
# Pictures


_TEXT = (".dot", ".gv")
_DRAWN = (".svg", ".png", ".pdf")


def visualize(sinks: Sequence[Node], path: str | None = None) -> Picture:
    """The plan as Graphviz text; a path that ends in .dot gets the text, one in .svg, .png or .pdf the drawing."""
    text = Picture(dot_text(sinks))
    if path is None:
        return text
    target = Path(path)
    if target.suffix in _DRAWN:
        _draw(text, target)
    elif target.suffix in _TEXT:
        target.write_text(text, encoding="utf-8")
    else:
        endings = ", ".join((*_TEXT, *_DRAWN))
        raise InvalidError([problem("path", str(path), f"must end in one of {endings}")], what="visualize")
    return text


def dot_text(sinks: Sequence[Node]) -> str:
    """A plan in the language of Graphviz."""
    prepared = sketch(sinks, rules=False)
    nodes = list(walk(*prepared.sinks))
    numbers = {node: number for number, node in enumerate(nodes)}
    lines = ["digraph plan {", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif", fontsize=10];']
    for node in nodes:
        shape = ", shape=cylinder" if isinstance(node, Source | Sink) else ""
        lines.append(
            f"  n{numbers[node]} [label={_quoted(f'{label(node)}{chr(10)}{node.at or str()}'.strip())}{shape}];"
        )
    lines += [f"  n{numbers[each]} -> n{numbers[node]};" for node in nodes for each in node.inputs]
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _draw(text: str, target: Path) -> None:
    program = shutil.which("dot")
    if program is None:
        raise UnavailableError(
            "Graphviz is not installed, so nothing can draw the plan",
            hint="install graphviz, or give a path that ends in .dot and draw it elsewhere",
        )
    drawn = subprocess.run([program, f"-T{target.suffix[1:]}"], input=text.encode(), capture_output=True, check=True)
    target.write_bytes(drawn.stdout)
