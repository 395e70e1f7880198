"""Commit markers: which checkpoint a sink has committed, as plain values.

Committers (`connectors.base.SinkCommitter`) return them; `shoal.dataflow.checkpoint.restore` compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The key of a marker that stands for all tasks of a sink.
ALL_TASKS = -1


@dataclass(frozen=True, slots=True)
class Marker:
    """What a sink's own system has noted down of a job."""

    incarnation: int
    #: The last checkpoint whose output is visible. A checkpoint without output leaves no marker.
    checkpoint: int
