"""What can go wrong with topics, beyond what `shoal.core.errors` names.

    PreconditionError
    ├── FencedError              a newer writer took over, or this one was declared dead
    ├── RebalancedError          the call belongs to an older generation of the group
    └── OffsetOutOfRangeError    retention removed it, or it was never written
    ExhaustedError
    └── LogFullError             no room on the disk, or a limit on its use

Raised by every backend of `shoal.topics.base`; each survives pickling.
"""

from __future__ import annotations

from shoal.core.errors import ExhaustedError, PreconditionError


class FencedError(PreconditionError):
    """This writer may write no more, and what it was writing is not and never will be visible.

    Final for the writer: open another one. Nothing of the refused append or transaction can be read, so
    it may be written again in full.
    """

    def __init__(self, writer: str, *, epoch: int, reason: str) -> None:
        super().__init__(
            f"writer {writer!r} (epoch {epoch}) is fenced: {reason}",
            hint="open a new writer, and write what was refused again",
            writer=writer,
            epoch=epoch,
        )


class RebalancedError(PreconditionError):
    """A commit under a generation of the group that is over. Nothing was committed: `poll` to learn the new one."""

    def __init__(self, group: str, *, offered: int, current: int) -> None:
        super().__init__(
            f"group {group!r}: generation {offered} is over, {current} is current",
            hint="poll the member for its new assignment, and go on from the committed offsets",
            group=group,
            offered=offered,
            current=current,
        )


class OffsetOutOfRangeError(PreconditionError):
    """Asked for an offset that is not there: retention removed it, or it was never written."""

    def __init__(self, topic: str, partition: int, *, offset: int, first: int, following: int) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}: offset {offset} is outside {first}…{following}",
            hint="read from the first offset that is left, or open the reader with reset=Reset.EARLIEST",
            topic=topic,
            partition=partition,
            offset=offset,
            first=first,
            following=following,
        )


class LogFullError(ExhaustedError):
    """There is no room. Nothing became visible; the same call works again when there is."""
