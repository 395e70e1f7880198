"""Events: what changed, why, and who said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Event:
    """One change of state. `cursor` is given by the store and grows without gaps in order of commit."""

    time: datetime
    #: node | workload | group | control
    subject_kind: str
    subject_id: str
    #: Past tense, such as WorkloadPlaced.
    kind: str
    message: str
    #: api | agent | lease | reconciler | scheduler | operator
    source: str
    #: What this follows from, such as "lease of node n1 expired".
    cause: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    cursor: int = 0
