"""The logical plan: frozen nodes, one for each step that a user wrote. Making one runs and connects nothing.

`shoal.dataflow.api.streams.stream` makes nodes, `shoal.dataflow.plan.optimizer` rewrites them,
`shoal.dataflow.plan.physical` turns them into stages, and `shoal.dataflow.plan.documents` writes them down. A node's
inputs are other nodes; a plan is its sinks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.dataflow.errors import Location
from shoal.dataflow.language.elements import Schema
from shoal.dataflow.language.expressions.trees import Expression, Named
from shoal.dataflow.language.windows import Firing, Window


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A user's function. `shoal.dataflow.language.functions` makes it and gives the callable; rules never load it."""

    #: The name of its blob, once the plan was written down; empty before.
    name: str
    #: What it is called in explain(): the function's own name, or `lambda` and its line.
    label: str
    #: A column that is known to be the only one it reads; empty when that is not known.
    reads: str = ""
    #: The function itself, while the plan has not left its process. Ask `functions.callable_of`, not this.
    target: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where event time comes from, and how far rows may come out of order."""

    #: The column; empty for the record's own timestamp.
    column: str = ""
    #: The watermark stays this many microseconds behind the greatest time seen.
    disorder: int = 0
    #: What a column of whole numbers counts since 1970: s, ms, us or ns. Empty for columns that are timestamps.
    unit: str = ""
    #: A split that was at its end for so many microseconds does not hold the watermark back; 0 for never.
    idle_after: int = 5_000_000


class OnError(enum.Enum):
    """What happens to a row that a function or a codec cannot take."""

    FAIL = "fail"
    SKIP = "skip"
    SIDE = "side"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """What all nodes have. A node is equal to itself alone: two sources that look alike are two sources."""

    inputs: tuple[Node, ...] = ()
    #: The stable identity of its state across changes of the program; made from its place when not given.
    uid: str = ""
    at: Location | None = None
    parallelism: int | None = None
    #: The line that asked for that many tasks; it may be another one than that of the step.
    parallelism_at: Location | None = None
    #: Bytes and cores that one task of it wants; 0 where the user did not say.
    memory: int = 0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source(Node):
    """Rows from outside. The connector is a frozen description; only a running task opens it."""

    connector: Any
    schema: Schema | None = None
    time: EventTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssignTime(Node):
    """Event time named, or named anew, in the middle of a stream."""

    time: EventTime


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Project(Node):
    """Named expressions: `select`, `with_columns` (which keeps the other columns) and renaming."""

    columns: tuple[Named, ...]
    keep_others: bool = False
    on_error: OnError = OnError.FAIL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filter(Node):
    """Rows for which it is true. A function gets the batch and returns a boolean array, or one truth for all rows."""

    predicate: Expression | FunctionRef
    on_error: OnError = OnError.FAIL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapBatches(Node):
    """An opaque function over whole batches: as many rows out as in, or with `flat` any number of batches."""

    function: FunctionRef
    schema: Schema | None = None
    flat: bool = False
    on_error: OnError = OnError.FAIL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapRecords(Node):
    """An opaque function over single records: `map`, `filter` or `flat_map`."""

    function: FunctionRef
    kind: str = "map"
    schema: Schema | None = None
    on_error: OnError = OnError.FAIL
    #: Whether it may be called with an invented record before a run, to see what it gives.
    probe: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Union(Node):
    """All rows of all inputs, which have one schema."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Merge(Node):
    """All rows of the inputs, in the order of a column that each of them is sorted by.

    They may have unlike columns: a row has all of them, and null where its own input has none of that name.
    """

    by: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyBy(Node):
    """Rows with equal keys meet in one task from here on."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One output column: a function over a column, `count` over `*`."""

    name: str
    column: str
    function: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregate(Node):
    """Aggregates by key, by window, or by both. Without a window it gives changes on endless input."""

    keys: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]
    window: Window | None = None
    firing: Firing = Firing()
    #: Parts can be aggregated before rows are exchanged, and merged behind; set by a rule.
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reduce(Node):
    """A user's function over two records of a key (and window), applied again and again."""

    keys: tuple[str, ...]
    function: FunctionRef
    window: Window | None = None
    firing: Firing = Firing()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Distinct(Node):
    """The first row of each combination of values."""

    columns: tuple[str, ...]
    window: Window | None = None
    #: Rows go out as they come, so only the allowed lateness of it says anything.
    firing: Firing = Firing()
    #: Forget a combination after so many microseconds; 0 for never.
    ttl: int = 0


class JoinKind(enum.Enum):
    """Which rows without a partner come out all the same."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    OUTER = "outer"


class JoinMode(enum.Enum):
    """How long a row waits for a partner."""

    REGULAR = "regular"  # for ever, or for `ttl`
    WINDOW = "window"  # within one window
    INTERVAL = "interval"  # within `lower` to `upper` of its own time
    ASOF = "asof"  # the nearest in time, no further than `tolerance`
    TABLE = "table"  # the second input is a table: its newest row for the key
    BROADCAST = "broadcast"  # the second input is small: every task has all of it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Join(Node):
    """Rows of two inputs with equal keys."""

    kind: JoinKind
    mode: JoinMode
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    window: Window | None = None
    lower: int = 0
    upper: int = 0
    tolerance: int = 0
    #: backward, forward or nearest; of an as-of join.
    direction: str = "backward"
    ttl: int = 0
    #: What a column of the second input gets behind its name when the first has one of that name.
    suffix: str = "_right"
    #: Whether the second input has at most one row for each key; of a regular join.
    right_is_unique: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Process(Node):
    """A user's process function: keyed state, timers and side outputs."""

    keys: tuple[str, ...]
    function: FunctionRef
    schema: Schema | None = None
    on_error: OnError = OnError.FAIL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Custom(Node):
    """A user's own operator, made anew by its factory in each task."""

    factory: FunctionRef
    keys: tuple[str, ...] = ()
    schema: Schema | None = None


#: Rows that came too late; of a join those of its left side.
LATE = "late"
#: Rows of the right side of a join that came too late.
LATE_RIGHT = "late_right"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideOutput(Node):
    """What its input put out on the side: `late`, `late_right` of a join, `errors`, or a name of the user's."""

    tag: str
    #: The columns, where the user named them; else what is known of `late` and `errors`, or the first batch decides.
    schema: Schema | None = None

    @property
    def port(self) -> int:
        """Which input of the node that puts rows aside they come from."""
        return 1 if self.tag == LATE_RIGHT and isinstance(self.inputs[0], Join) else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sink(Node):
    """Rows to outside. The connector is a frozen description; it says whether it can hold changes."""

    connector: Any


def walk(*sinks: Node) -> Iterator[Node]:
    """Every node of a plan once, inputs before those who read them."""
    done: set[Node] = set()
    for sink in sinks:
        waiting = [sink]  # by hand: a plan of a thousand steps is deeper than Python likes to call
        while waiting:
            node = waiting[-1]
            missing = [each for each in node.inputs if each not in done]
            if missing and node not in done:
                # Of one batch the rows that others wait for go first, so that fewer have to wait.
                waiting.extend(missing if isinstance(node, Join) and node.right_is_unique else reversed(missing))
                continue
            waiting.pop()
            if node not in done:
                done.add(node)
                yield node


def rewrite(sinks: Sequence[Node], change: Callable[[Node], Node]) -> tuple[Node, ...]:
    """A plan with each node changed, inputs first. What two nodes read stays one node; what did not change, itself."""
    done: dict[Node, Node] = {}
    for node in walk(*sinks):
        inputs = tuple(done[each] for each in node.inputs)
        moved = any(new is not old for new, old in zip(inputs, node.inputs, strict=True))
        done[node] = change(replace(node, inputs=inputs) if moved else node)
    return tuple(done[each] for each in sinks)


def exchange_node(sinks: Sequence[Node], old: Node, new: Node) -> tuple[Node, ...]:
    """A plan with one node in the place of another, for all who read it. What is before it stays as it is."""
    done: dict[Node, Node] = {}
    for node in walk(*sinks):
        inputs = tuple(done[each] for each in node.inputs)
        moved = any(after is not before for after, before in zip(inputs, node.inputs, strict=True))
        done[node] = new if node is old else (replace(node, inputs=inputs) if moved else node)
    return tuple(done[each] for each in sinks)


def readers(sinks: Sequence[Node]) -> dict[Node, list[Node]]:
    """Who reads each node, side outputs too."""
    found: dict[Node, list[Node]] = {node: [] for node in walk(*sinks)}
    for node in list(found):
        for each in node.inputs:
            found[each].append(node)
    return found
