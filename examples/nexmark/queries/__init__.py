"""The nine queries, by name. Each is a function from events to a result, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable

from events import Events, Result

from queries import q0, q1, q2, q3, q4, q5, q6, q7, q8

Query = Callable[[Events], Result]

QUERIES: dict[str, Query] = {
    module.__name__.rpartition(".")[2]: module.query for module in (q0, q1, q2, q3, q4, q5, q6, q7, q8)
}
