"""Query 0, pass through: every bid as it is."""

from __future__ import annotations

from events import Events, Result


def query(events: Events) -> Result:
    """All bids."""
    return Result(events.bids())
