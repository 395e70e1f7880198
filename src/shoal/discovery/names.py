"""The rules on names in the tree: a node is one part of a path, and may itself have parts, such as `ps:0`."""

from __future__ import annotations

from shoal.core.errors import InvalidError, problem
from shoal.discovery.store import check_path

NODE_RULE = "must be a name without '/' and control characters, and not '.' or '..'"
PART_RULE = "must be a name without ':', '/' and control characters, and not '.' or '..'"


def is_node_name(text: str) -> bool:
    """Whether `text` may be one part of a path."""
    try:
        check_path(f"/{text}")
    except InvalidError:
        return False
    return bool(text) and "/" not in text


def check_node_name(text: str, *, field: str) -> str:
    """Return one part of a path. Raises `InvalidError` on `field`."""
    if not is_node_name(text):
        raise InvalidError([problem(field, text, NODE_RULE)])
    return text


def is_part(text: str) -> bool:
    """Whether `text` may be one part of a name whose parts are joined by colons."""
    return ":" not in text and is_node_name(text)


def check_part(text: str, *, field: str) -> str:
    """Return one part of a name whose parts are joined by colons. Raises `InvalidError` on `field`."""
    if not is_part(text):
        raise InvalidError([problem(field, text, PART_RULE)])
    return text
