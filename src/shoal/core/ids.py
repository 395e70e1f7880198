"""Identifiers as types, and the one rule on how they are written.

Every id that reaches a path, a label, a metric or a database key goes through `IDENTIFIER` first, so no id can
climb out of a directory or break a log line.
"""

from __future__ import annotations

import re
from typing import NewType

NodeId = NewType("NodeId", str)
WorkloadId = NewType("WorkloadId", str)
GroupId = NewType("GroupId", str)
#: A set of workloads that one engine owns.
JobId = NewType("JobId", str)
#: One run of a workload on its node.
RunId = NewType("RunId", str)
#: One registration of an agent; a newer one sorts after it. Empty for agents that know no sessions.
SessionId = NewType("SessionId", str)
NO_SESSION = SessionId("")
#: A join token, without its secret.
TokenId = NewType("TokenId", str)

#: No generation is higher. Far above what a workload can live to see, and exact in every language's numbers.
MAX_GENERATION = 2**53

IDENTIFIER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
IDENTIFIER_RULE = (
    "must be 1 to 128 letters, digits, dots, dashes or underscores, and begin and end with a letter or digit"
)


def is_identifier(text: str) -> bool:
    """Whether `text` may be used as an id."""
    return IDENTIFIER.fullmatch(text) is not None and ".." not in text
