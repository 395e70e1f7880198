"""Times, durations, sizes and ids as people read them. Pure; called by every command that shows them."""

from __future__ import annotations

from datetime import datetime

SHORT = 12
"""Characters of a revision that lists show. `get` and `--json` show all of it."""


def short(revision: str) -> str:
    """A revision in lists: the start of a long one. Revisions that people chose are rarely longer."""
    return revision[:SHORT]


def ago(moment: datetime | None, now: datetime) -> str:
    """The time since a moment, in its largest unit; empty for None."""
    if moment is None:
        return ""
    return span((now - moment).total_seconds())


def ago_words(moment: datetime | None, now: datetime) -> str:
    """The same as `3s ago`."""
    return f"{ago(moment, now)} ago" if moment is not None else ""


def in_words(moment: datetime | None, now: datetime) -> str:
    """The time until a moment as `in 3s`; `3s ago` when it has passed."""
    if moment is None:
        return ""
    return f"in {span((moment - now).total_seconds())}" if moment > now else ago_words(moment, now)


def local_time(moment: datetime) -> str:
    """A moment in the reader's time zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """A duration in one unit."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    if whole < 172_800:
        return f"{whole // 3600}h"
    return f"{whole // 86_400}d"


def cores(millicores: int) -> str:
    """A number of cores without trailing zeros."""
    return f"{millicores / 1000:.2f}".rstrip("0").rstrip(".")


def megabytes(value: int) -> str:
    """An amount of memory in M or G."""
    if value >= 10 * 1024:
        return f"{value / 1024:.0f}G"
    return f"{value / 1024:.1f}G" if value >= 1024 else f"{value}M"


def size(count: int) -> str:
    """A number of bytes in K, M or G."""
    return megabytes(count // 2**20) if count >= 2**20 else f"{count // 1024}K"
