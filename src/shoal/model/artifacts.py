"""What an exported model is: versions of sub-graphs, each a directory with a document that names every file in it.

    exported_models/entry/1600000000/export.json                  this document
                                    /dense.stablehlo              the dense part, compiled by nobody yet
                                    /signatures.json              inputs and outputs, by signature
                                    /features.pbtxt               how features become embeddings (FeatureConfigs)
                                    /assets.extra/tf_serving_warmup_requests
    exported_models/ps_0/1600000000/export.json
                                   /assets/…                      tables, as Arrow files or dumps
    exported_models/entry/ExportSaverListenerState                which versions there are, and of which step

The shape of the directories and the state file are Monolith's. A directory without the document is no version. Read and
written by `shoal.records.exports`; shown by `shoal model`. Frozen values without I/O.
"""

from __future__ import annotations

import enum
import posixpath
import re
from dataclasses import dataclass
from typing import Annotated

from shoal.core.errors import InvalidError, problem
from shoal.core.shape import MaxLength, Pattern, Range

EXPORT_FILE = "export.json"
STATE_FILE = "ExportSaverListenerState"
DENSE_FILE = "dense.stablehlo"
SIGNATURE_FILE = "signatures.json"
FEATURE_FILE = "features.pbtxt"
WARM_UP_FILE = "assets.extra/tf_serving_warmup_requests"

ENTRY = "entry"
#: Of the document. A reader refuses a higher one.
EXPORT_FORMAT = 1
MAX_EXPORT_BYTES = 16 << 20

_NAME = Pattern(r"[^:/\x00-\x1f\x7f]{1,200}", "must be a name without ':', '/' and control characters")
_PLAIN = re.compile(r"[^/\x00]+(/[^/\x00]+)*")

ModelName = Annotated[str, _NAME]
#: A directory of this name holds the versions, so that it is none that is hidden, nor the one above.
SubGraphName = Annotated[str, _NAME, Pattern(r"[^.].*", "must not begin with a dot")]


def shard_sub_graph(shard: int) -> str:
    """The sub-graph of one shard of tables, such as `ps_0`."""
    return f"ps_{shard}"


class TableFormat(enum.Enum):
    """How a table is stored."""

    ARROW = "arrow"
    #: Monolith's `EntryDump` records.
    DUMP = "dump"


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file of a version. `path` is relative to the directory of the version."""

    path: Annotated[str, MaxLength(1000, 1)]
    size: Annotated[int, Range(0, 1 << 62)]
    sha256: Annotated[str, Pattern(r"[0-9a-f]{64}", "must be a SHA-256 in hex")]


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """A table, or a part of one, in a file."""

    name: Annotated[str, MaxLength(1000, 1)]
    path: Annotated[str, MaxLength(1000, 1)]
    format: TableFormat = TableFormat.ARROW


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or an output. A dimension of -1 is as long as the caller wants: the batch."""

    dtype: Annotated[str, MaxLength(40, 1)]
    shape: tuple[Annotated[int, Range(-1, 1 << 40)], ...] = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """A way to call a model."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """The document of a version. Keys that are not known are left out when it is read."""

    model_name: ModelName
    sub_graph: SubGraphName
    version: Annotated[int, Range(0, 1 << 62)]
    format: Annotated[int, Range(1, 1 << 31)] = EXPORT_FORMAT
    #: The step of training that it is of; of the checkpoint that it came from.
    global_step: Annotated[int, Range(0, 1 << 62)] = 0
    #: Over how many shards the tables are spread: an id is in the shard of its remainder.
    serving_shards: Annotated[int, Range(1, 1 << 20)] = 1
    #: Every sub-graph of the model; all have this version.
    sub_graphs: tuple[SubGraphName, ...] = ()
    tables: tuple[ExportedTable, ...] = ()
    #: Of the programs that it was made with, by name.
    versions: dict[str, str] | None = None
    #: Everything in the directory but this document.
    files: tuple[ExportedFile, ...] = ()

    def file(self, path: str) -> ExportedFile | None:
        """A file by its path; None when the version has none."""
        return next((each for each in self.files if each.path == path), None)


def check_file_path(path: str, *, field: str = "path") -> str:
    """Return the path of a file within a version. Raises `InvalidError` for one that leads out of it, or is taken."""
    parts = path.split("/")
    plain = _PLAIN.fullmatch(path) and posixpath.normpath(path) == path and ".." not in parts
    if not plain or path == EXPORT_FILE or any(part.startswith(".") for part in parts):
        rule = f"must be a relative path below the version, without hidden parts, and not {EXPORT_FILE}"
        raise InvalidError([problem(field, path, rule)])
    return path
