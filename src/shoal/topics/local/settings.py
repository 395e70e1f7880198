"""How a process uses the local log. Others may use the same directory with other settings.

Made by the caller of `shoal.topics.local.topics.LocalTopics`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from shoal.core.shape import Range


class Fsync(enum.Enum):
    """What a power cut may take. The death of processes takes nothing, whichever is chosen."""

    ALWAYS = "always"
    """Nothing that was acknowledged: records, then the entry that makes them visible, are on disk before the call
    returns. Costs two waits for the disk with every append."""

    INTERVAL = "interval"
    """What was acknowledged within the last interval (`fsync_interval`, and as long as the disk takes). Records whose
    entry survived and whose bytes did not are noticed by their checksum and skipped: their offsets are a hole."""

    NEVER = "never"
    """Whatever the operating system had not written yet: half a minute's worth, as a rule."""


@dataclass(frozen=True, slots=True)
class LocalLogSettings:
    """Settings of one process."""

    fsync: Fsync = Fsync.INTERVAL

    fsync_interval: timedelta = timedelta(seconds=1)

    segment_bytes: Annotated[int, Range(4096, 2**40)] = 64 * 1024 * 1024
    """A writer begins a new file when one has this many bytes. Files are removed as a whole, so this is also how much
    more than asked for retention may keep, for each writer and topic."""

    segment_age: timedelta = timedelta(minutes=10)
    """A writer begins a new file when one is older than this, so that retention can remove slow writers' files."""

    journal_bytes: Annotated[int, Range(4096, 2**30)] = 4 * 1024 * 1024
    """A journal of this size ends, and the next begins with what it came to. Opening a log takes as long as reading
    so much, about 0.2 s."""

    lease: timedelta = timedelta(milliseconds=3500)
    """Without a sign of life for this long a process counts as dead. With `check_interval` on top it stays below the
    5 seconds in which a member's partitions must have moved. A process that was killed is noticed sooner: its lock on
    its lease is gone."""

    check_interval: timedelta = timedelta(milliseconds=500)
    """How often a process renews its lease and looks at those of the others."""

    upkeep_interval: timedelta = timedelta(seconds=5)
    """How often retention is looked at and garbage collected."""

    poll_limit: timedelta = timedelta(minutes=5)
    """A member that does not poll for this long is taken for hung, and loses its partitions."""
