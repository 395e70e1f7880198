"""The areas that can be measured. A new one is a module here with an `AREA`, and its name in `AREAS`.

Called by `bench.__main__` and `bench.report`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.figures import Figure
from bench.peers import Peer

AREAS = ("control", "fleet", "runtimes", "dataflow", "discovery", "exchange", "jobs", "tables")

#: Told what a number cannot say, in a sentence; it stands below the figures.
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Area:
    """A part of Shoal with its figures."""

    name: str
    title: str
    #: What it is measured on, in a few sentences; stands above its table.
    about: str
    figures: tuple[Figure, ...]
    #: Measures everything once, given the number of the run from 0: name of the figure → value.
    measure: Callable[[int, Note], Mapping[str, float]]
    #: Packages whose versions may matter to the figures.
    packages: tuple[str, ...] = ()
    peers: tuple[Peer, ...] = ()
    #: Groups of figures that can be measured alone, by name: as `measure`, and their values take the place of others.
    parts: Mapping[str, Callable[[int, Note], Mapping[str, float]]] = field(default_factory=dict)


def load(name: str) -> Area:
    """An area by its name. Imported only now, so that a later area's heavy packages are not needed for another."""
    area: Area = importlib.import_module(f"bench.{name}").AREA
    return area
