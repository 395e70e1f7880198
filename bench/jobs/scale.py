"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes. A test of the measuring itself takes less of everything."""

    #: Rows of the windowed sum, and how often fleet and `shoal run` take turns in a run.
    rows: int = 80_000_000
    turns: int = 1
    #: Rows of the same in bare Arrow, and in Flink.
    bare_rows: int = 10_000_000
    bare_rounds: int = 3
    flink_rows: int = 5_000_000
    #: How many agents the same job is spread over, with fewer rows.
    agent_rows: int = 40_000_000
    agents: tuple[int, ...] = (1, 2, 4, 8)
    #: Rows a second of the steady load, and for how long.
    rate: float = 50_000
    seconds: float = 8.0
    #: Rows a second while something is killed.
    trickle: float = 1000
    starts: int = 3
    #: Keys of 200 bytes in the state of the job that is rescaled: 240 bytes each, so 1 GB.
    keys: int = 4_400_000
    #: Messages of the job of single records.
    messages: int = 400_000
    #: Batches of 20,000 rows that go between two processes by Flight.
    batches: int = 3000


FULL = Scale()
