"""How much is measured."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

#: Events of Nexmark, as promised; a variable of the environment says fewer.
EVENTS = 10_000_000
_FEWER = "SHOAL_BENCH_NEXMARK_EVENTS"


def _events() -> int:
    return int(os.environ.get(_FEWER) or EVENTS)


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes. A test of the measuring itself takes less of everything."""

    #: Rows in memory for jobs of kernels, for those over single records and for peers that are slow.
    rows: int = 5_000_000
    few_rows: int = 500_000
    rounds: int = 5
    #: Keys whose state is in checkpoints.
    state_keys: int = 1_000_000
    flink_map_rows: int = 20_000_000
    flink_window_rows: int = 5_000_000
    flink_events: int = 1_000_000
    bytewax_map_rows: int = 500_000
    bytewax_window_rows: int = 60_000
    #: Messages in Kafka, and how many of them slow peers get through.
    messages: int = 5_000_000
    quix_messages: int = 200_000
    bytewax_messages: int = 600_000
    #: Rows in Kafka in our own codec.
    arrow_rows: int = 6_000_000
    #: Messages in the local log.
    log_messages: int = 3_000_000
    #: Rows a second of the steady load, for how long, and then so many one by one.
    rate: float = 50_000
    seconds: float = 8.0
    trickle: int = 5
    starts: int = 3
    events: int = field(default_factory=_events)


FULL = Scale()
