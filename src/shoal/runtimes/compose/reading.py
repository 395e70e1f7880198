"""Reads the text of a compose file into plain values, within bounds. Pure; called by `shoal.runtimes.compose.project`.

A few lines of YAML can stand for billions of values (anchors that name anchors). So the size is counted on the graph of
nodes, before any of it is made.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from shoal.core.errors import InvalidError, problem

MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 40

_INT_TAG = "tag:yaml.org,2002:int"
_LEFT_OUT = frozenset({_INT_TAG, "tag:yaml.org,2002:timestamp"})


class _Loader(yaml.SafeLoader):
    """YAML as compose reads it: `22:80` is a port mapping, not a number to the base 60, and a date is text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping whose keys occur once."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} occurs twice", None)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _LEFT_OUT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT_TAG, re.compile(r"^[-+]?(?:0|[1-9][0-9]*|0x[0-9a-fA-F]+)$"), list("-+0123456789"))


def read_yaml(text: str, *, at: str) -> object:
    """The values of a YAML document. Raises `InvalidError` for anything that is not one, or is too large."""
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise InvalidError([problem(at, None, f"must not be larger than {MAX_BYTES:,} bytes")])
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}, 0) > MAX_NODES:
            raise InvalidError([problem(at, None, f"must not stand for more than {MAX_NODES:,} values")])
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, TypeError) as error:
        raise InvalidError([problem(at, None, f"must be YAML: {str(error)[:500]}")]) from error


def _size(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """How many values a node stands for, with every alias counted in full."""
    if depth > MAX_DEPTH:
        raise ValueError(f"values are nested more than {MAX_DEPTH} levels deep, or contain themselves")
    if id(node) in known:
        return known[id(node)]
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = list(node.value)
    else:
        children = []
    size = 1 + sum(_size(child, known, depth + 1) for child in children)
    known[id(node)] = size
    return size
