"""The words that fields of specs may have, as enums.

A field itself is a text, so that a wrong word gets an error that names the right ones; code compares it with these.
Used by the specs; `shoal.model.workloads` exports the public names.
"""

from __future__ import annotations

import enum


class Restart(enum.StrEnum):
    """When an agent starts a run again by itself."""

    UNSET = ""
    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NO = "no"
    UNLESS_STOPPED = "unless-stopped"


class PullPolicy(enum.StrEnum):
    """When the image of a container is pulled."""

    MISSING = "missing"
    ALWAYS = "always"
    NEVER = "never"


class ComposeSource(enum.StrEnum):
    """Where a compose project comes from."""

    GIT = "git"
    INLINE = "inline"


class ConstraintOperator(enum.StrEnum):
    """How a label of a node is compared."""

    IN = "in"
    NOT_IN = "not_in"
    EXISTS = "exists"
    NOT_EXISTS = "not_exists"


class AffinityDirection(enum.StrEnum):
    """Whether workloads are to be together."""

    NEAR = "near"
    APART = "apart"


class FailoverPolicy(enum.StrEnum):
    """What becomes of a workload whose node is lost."""

    REPLACE = "replace"  # started elsewhere, `after` its node was lost
    KEEP = "keep"  # left alone until the node is back, removed or declared dead
    STOP = "stop"  # its agent stops it by itself `after` that long without contact; then it is replaced


class MoveKind(enum.StrEnum):
    """In which order a workload leaves one node and begins on another."""

    BEFORE = "before"  # it runs on the new node before the copy on the old one is removed
    AFTER = "after"  # the copy on the old node is removed first
