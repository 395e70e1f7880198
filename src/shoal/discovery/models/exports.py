"""Reads an exported model: its sub-graphs, and the name that its entry graph calls its peers by.

An export is a directory with one directory for each sub-graph (`entry`, `ps_0`, …), which has one for each version, a
number. The name is in `export.json` of our own exports, and in the graph (`saved_model.pb`) of TensorFlow's. Called by
`shoal model declare`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.core import files
from shoal.core.errors import InvalidError, NotFoundError, problem
from shoal.discovery.models.records import ENTRY
from shoal.discovery.names import is_part
from shoal.model.artifacts import EXPORT_FILE, MAX_EXPORT_BYTES

GRAPH_FILE = "saved_model.pb"
#: A graph holds no weights, so it is small.
MAX_GRAPH_BYTES = 256 * 1024 * 1024

#: The op by which an entry graph calls its peers.
REMOTE_OP = b"TfServingRemotePredict"
MODEL_NAME = b"model_name"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Export:
    """An exported model."""

    #: The directory of each sub-graph, by name.
    sub_graphs: dict[str, str]
    #: The name in its entry graph; empty when there is none.
    model_name: str = ""


def load_export(base: str) -> Export:
    """Read an export. Raises `NotFoundError` for a directory without an entry, and `InvalidError` for a bad graph."""
    # The paths are read elsewhere, so they are absolute.
    base = base if files.is_absolute(base) else str(Path(base).resolve())
    found = {files.name(each.path): each.path for each in files.list_files(base) if each.is_directory}
    sub_graphs = {name: path for name, path in found.items() if is_part(name) and not name.startswith(".")}
    if ENTRY not in sub_graphs:
        raise NotFoundError("directory", files.join(base, ENTRY), hint="an export has one directory for each sub-graph")
    return Export(sub_graphs, _name_in(sub_graphs[ENTRY]))


def _name_in(entry: str) -> str:
    """The name in the newest version of an entry that has a graph."""
    versions = [files.name(each.path) for each in files.list_files(entry) if each.is_directory]
    for version in sorted((each for each in versions if each.isdecimal()), key=int, reverse=True):
        folder = files.join(entry, version)
        document, graph = files.join(folder, EXPORT_FILE), files.join(folder, GRAPH_FILE)
        if files.exists(document):
            return name_of_document(files.read_bytes(document, limit=MAX_EXPORT_BYTES), at=document)
        if files.exists(graph):
            return name_of_graph(files.read_bytes(graph, limit=MAX_GRAPH_BYTES), at=graph)
    return ""


def name_of_document(data: bytes, *, at: str) -> str:
    """The name in an `export.json`; empty without one. Raises `InvalidError`."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidError([problem(at, None, "must be a JSON object")])
    name = document.get(MODEL_NAME.decode(), "")
    if not isinstance(name, str):
        raise InvalidError([problem(f"{at}.model_name", name, "must be text")])
    return name


def name_of_graph(data: bytes, *, at: str) -> str:
    """The name in a `saved_model.pb`; empty when its graph calls no peers. Raises `InvalidError`."""
    try:
        for node in _nodes(memoryview(data)):
            name = _remote_model(node)
            if name:
                return name.partition(":")[0]
    except ValueError:
        raise InvalidError([problem(at, None, "must be a saved model of TensorFlow")]) from None
    return ""


# ---------------------------------------------------------------------------------------------------------
# The few fields of TensorFlow's SavedModel that lead to the nodes of its graphs


def _nodes(saved_model: memoryview) -> Iterator[memoryview]:
    for meta_graph in _messages(saved_model, 2):
        for graph in _messages(meta_graph, 2):
            yield from _messages(graph, 1)
            for library in _messages(graph, 2):
                for function in _messages(library, 1):
                    yield from _messages(function, 3)


def _remote_model(node: memoryview) -> str:
    if not any(op == REMOTE_OP for op in _messages(node, 2)):
        return ""
    for attribute in _messages(node, 5):
        if any(key == MODEL_NAME for key in _messages(attribute, 1)):
            for value in _messages(attribute, 2):
                for text in _messages(value, 2):
                    return bytes(text).decode()
    return ""


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    """The values of one field whose wire type has a length. Raises `ValueError` for bytes that are no message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(kind)
        if at + size > len(data):
            raise ValueError(size)
        if number == wanted and kind == _BYTES:
            yield data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError(at)
