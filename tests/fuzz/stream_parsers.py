"""The part of the registry for streams: plans, state, checkpoints and the local log."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from shoal.cli.programs.topic_lines import read_lines
from shoal.core.errors import DamagedError, InternalError, InvalidError, PreconditionError, UnsupportedError
from shoal.dataflow.checkpoint.claim import read_record
from shoal.dataflow.checkpoint.handles import FileHandle, Link, TaskPart
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.checkpoint.records import Layout
from shoal.dataflow.checkpoint.statefile import START, FileReader, StepIndex, TableIndex, decode_header, encode
from shoal.dataflow.checkpoint.statestore import file_name
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.connectors.files.commits import Move, decode_moves, encode_moves
from shoal.dataflow.connectors.write_ahead import decode_segments, encode_segments, from_stream, to_stream
from shoal.dataflow.errors import CheckpointError
from shoal.dataflow.execution.remote.delegated import read_key
from shoal.dataflow.language.expressions.datatypes import parse_type
from shoal.dataflow.operators.base import OperatorState
from shoal.dataflow.plan.document_values import BadValueError, Blobs, decode
from shoal.dataflow.plan.documents import PlanDocument, read_nodes, read_plan, write_plan
from shoal.dataflow.plan.physical import plan
from shoal.dataflow.plan.prepare import sketch
from shoal.dataflow.plan.prepared import read_prepared, write_prepared
from shoal.dataflow.state.blobs import pack, unpack
from shoal.dataflow.state.keycodec import decode_key, encode_key
from shoal.dataflow.state.tables import TableState
from shoal.testing.fuzz import JSON_VALUES, ParserCase, changed_bytes, changed_text, changed_values
from shoal.topics.local.history import entries, snapshots
from shoal.topics.local.history.framing import frame
from shoal.topics.local.history.journal import Journal, read_snapshot
from shoal.topics.local.history.replay import replay
from shoal.topics.local.leases import read_lease
from tests.fuzz.inputs import blobs, file_named, flipped_bytes, texts, with_folder
from tests.unit.dataflow.plan.test_documents import every_kind

# ---------------------------------------------------------------------------------------------------------
# What is right


def _changed(*goods: bytes) -> st.SearchStrategy[bytes]:
    """Bytes that are torn, noise, or nearly right."""
    return st.one_of(blobs, *(kind(good) for good in goods for kind in (changed_bytes, flipped_bytes)))


def _is_mapping(given: Any) -> bool:
    return isinstance(given, dict)


def _changed_json(good: Any) -> st.SearchStrategy[bytes]:
    """The same of a document."""
    text = json.dumps(good).encode()
    return (
        blobs | changed_bytes(text) | (JSON_VALUES | changed_values(good)).map(lambda each: json.dumps(each).encode())
    )


BATCH = pa.RecordBatch.from_pydict({"n": [1, None], "text": ["a", "bc"], "many": [[1], []]})
STREAM = to_stream([BATCH, BATCH])
COMMITS = {"format": 1, "job": "job", "incarnation": 5, "term": 2, "through": 3, "token": "a", "base": 1, "highest": 3}
MOVES = encode_moves([Move(3, "out/.pending/a", "out/a"), Move(4, "out/.pending/b", "out/b")])
SEGMENTS = encode_segments([(3, b"abc"), (4, b"")])
ROWS = pa.table({"key": ["a", None], "n": [1, 2]})
TWO = np.array([0, 7])
STEP = OperatorState(shared=b"shared", tables={"cells": TableState(ROWS, TWO, ("key",), ROWS, TWO, ("n", 1))})
HEADER = encode({"sum": STEP, "own": OperatorState({0: b"zero", 7: b"seven"}), "out": OperatorState()})[0][0][START:]
BLOB = pack({"cells": pa.table({"text": ["a", "b"]}), "none": pa.table({"n": pa.array([], pa.int64())})}, watermark=5)
FED = b'{"k": "a", "n": 1}\n\n{"k": null}\n{"k": 5}'
KEY = encode_key((None, True, 12, 1.5, "text", b"bytes"))
PLAN = write_plan(every_kind())
BODY = json.loads(PLAN.to_json())
SKETCH = sketch(every_kind())
PREPARED = write_prepared(SKETCH, plan(SKETCH.sinks, parallelism=2))
PREPARED_BODY = json.loads(PREPARED.to_json())
VALUES = [value for node in BODY["nodes"] for name, value in node.items() if name not in ("node", "inputs")]
#: Values of kinds that the plan has none of.
MORE_VALUES = [
    {"$": "float", "value": "nan"},
    {"$": "bytes", "value": "YQ=="},
    {"$": "decimal", "value": "1.50"},
    {"$": "datetime", "value": "2026-01-01T00:00:00+00:00"},
    {"$": "date", "value": "2026-01-01"},
    {"$": "time", "value": "00:00:01"},
    {"$": "timedelta", "value": 5},
    {"$": "map", "items": [["a", 1]]},
]
COMMIT = ["s", 2, "commit", "s", "w", 1, 5, ["seg"], [[1, 0, 0, 0, 10, 1, 7]], [["g", 1, 0, 5]], ["g", "m", 1]]
ENTRIES = (COMMIT, ["s", 1, "create-topic", "t", 2, None, None], ["s", 3, "join-group", "s", "g", "m", ["t"]])


#: Something of everything.
SNAPSHOT = snapshots.take(
    replay(
        [
            entries.OpenSession("s"),
            entries.CreateTopic("t", 1, None, None),
            entries.OpenWriter("s", "w"),
            entries.JoinGroup("s", "g", "m", ("t",)),
            entries.Commit("s", "w", 1, 5, (entries.ChunkDraft(1, 0, "seg", 0, 10, 1, 7),), (("g", 1, 0, 1),), None),
        ]
    ),
    1,
).document

# ---------------------------------------------------------------------------------------------------------
# How to call what does not take one value


def _decode_value(given: tuple[Any, bytes]) -> object:
    """A value, with the same bytes behind every name of a blob."""
    value, content = given
    found = decode(value, Blobs(dict.fromkeys(PLAN.blobs, content)))
    return found.to_pylist() if isinstance(found, pa.RecordBatch) else found


def _unpack(content: bytes) -> object:
    return [table.to_pylist() for table in unpack(content).tables.values()]


PIECE = bytes(ROWS.to_batches()[0].serialize())


def _read_pieces(content: bytes) -> object:
    """The rows of a table, whose one piece is any bytes."""
    place = (0, len(content), zlib.crc32(content))
    table = TableIndex(ROWS.schema, None, ("key",), None, None, {0: place}, {})
    reader = FileReader("file", 0, lambda offset, size: content[offset : offset + size])
    found = reader.tables(StepIndex((0, 0, 0), {}, {"cells": table}), 0, 8)
    return found["cells"].rows.to_pylist()


LAYOUT = Layout(key_groups=8, kinds={"sum": "aggregate"}, widths={"sum": 1})


def _checkpoint(content_of: str) -> Callable[[Path, bytes], None]:
    """A checkpoint of which one file has another content."""

    def fill(folder: Path, content: bytes) -> None:
        storage = CheckpointStorage(str(folder), "job")
        storage.begin(LAYOUT)
        name = file_name(1, 1, TaskId(1, 0))
        handle = storage.open_store().write(name, {"sum": OperatorState({0: b"x"})})
        storage.complete(1, LAYOUT, [TaskPart(0, name, (handle,), {"sum": (Link(name, 0, 8),)})])
        file_named(f"job/{content_of}")(folder, content)

    return fill


_FILE = "000000000001-000001-1.0.state"
MANIFEST = {"format": 2, "job": "job", "checkpoint": 1, "key_groups": 8, "operators": {"sum": "aggregate"},
            "files": {_FILE: [1, 1]},
            "tasks": [{"file": _FILE, "subtask": 0, "chains": {"sum": [[_FILE, 0, 8]]}}]}  # fmt: skip
JOB = {"format": 1, "job": "job", "key_groups": 8, "widths": {"sum": 1}}


def _read_journal(folder: Path) -> object:
    journal = Journal(1, folder / "journal")
    try:
        return read_snapshot(journal)
    finally:
        journal.close()


JOURNAL = frame(SNAPSHOT) + frame(json.dumps(COMMIT).encode())

# ---------------------------------------------------------------------------------------------------------
# The registry

STREAM_PARSERS: dict[str, ParserCase] = {
    # Plans.
    "shoal.dataflow.language.expressions.datatypes.parse_type": ParserCase(
        parse_type,
        texts
        | changed_text("timestamp[us, tz=UTC]")
        | changed_text("decimal128(10, 2)")
        | changed_text("list<item: list<item: int64>>")
        | st.sampled_from(("list<" * 1200 + "int8" + ">" * 1200, "decimal(9999999999, 0)", f"decimal(1, {2**70})")),
        (ValueError,),
        ("int", "list<item: string>", "decimal(10, 2)", "timestamp[us, tz=UTC]"),
    ),
    "shoal.dataflow.plan.document_values.decode": ParserCase(
        _decode_value,
        st.tuples(
            JSON_VALUES | st.sampled_from([*VALUES, *MORE_VALUES]).flatmap(changed_values),
            _changed(*(content for name, content in PLAN.blobs.items() if name.startswith("batch"))),
        ),
        (BadValueError, InvalidError),
        [(value, b"") for value in MORE_VALUES],
    ),
    "shoal.dataflow.plan.document_values.decode of a batch": ParserCase(
        _decode_value,
        st.tuples(
            st.just({"$": "batch", "blob": next(iter(PLAN.blobs))}), _changed(STREAM, to_stream([BATCH.slice(0, 0)]))
        ),
        (BadValueError,),
        [({"$": "batch", "blob": next(iter(PLAN.blobs))}, STREAM)],
    ),
    "shoal.dataflow.plan.document_values.decode of a schema": ParserCase(
        lambda content: decode({"$": "schema", "ipc": base64.b64encode(content).decode()}, Blobs()).names,
        _changed(BATCH.schema.serialize().to_pybytes()),
        (BadValueError,),
        (BATCH.schema.serialize().to_pybytes(),),
    ),
    "shoal.dataflow.plan.documents.read_nodes": ParserCase(
        lambda given: read_nodes(given, Blobs(PLAN.blobs), []), changed_values(BODY).filter(_is_mapping), (), (BODY,)
    ),
    "shoal.dataflow.plan.prepared.read_prepared": ParserCase(
        lambda given: read_prepared(PlanDocument(given, PREPARED.blobs)),
        JSON_VALUES | changed_values(PREPARED_BODY),
        good=(PREPARED_BODY,),
    ),
    "shoal.dataflow.plan.documents.read_plan": ParserCase(
        lambda given: read_plan(given, PLAN.blobs),
        texts | changed_text(PLAN.to_json()) | JSON_VALUES | changed_values(BODY),
        good=(BODY, PLAN.to_json()),
    ),
    # State and checkpoints.
    "shoal.dataflow.state.blobs.unpack": ParserCase(
        _unpack, _changed(BLOB), (DamagedError, UnsupportedError), (BLOB, pack({}))
    ),
    "shoal.dataflow.state.keycodec.decode_key": ParserCase(
        decode_key,
        _changed(KEY)
        | st.builds(
            lambda kind, content: kind.encode() + struct.pack(">I", len(content)) + content,
            st.sampled_from("ntifsbdDymu"),
            st.binary(max_size=9) | st.sampled_from((b"9" * 40, b"9" * 5000, b"1e400", b"2026-01-01")),
        ),
        (DamagedError, InternalError),
        (KEY, b""),
    ),
    "shoal.dataflow.checkpoint.statefile.decode_header": ParserCase(
        lambda content: decode_header(content, FileHandle("file", 10**6, zlib.crc32(content))),
        _changed(HEADER) | _changed_json(json.loads(HEADER)),
        (CheckpointError,),
        (HEADER,),
    ),
    "shoal.dataflow.checkpoint.statefile.FileReader.tables": ParserCase(
        _read_pieces, _changed(PIECE), (CheckpointError,), (PIECE,)
    ),
    "shoal.dataflow.checkpoint.claim.read_record": ParserCase(
        with_folder(file_named("job/commits.json"), lambda folder: read_record(str(folder), "job")),
        _changed_json(COMMITS),
        (CheckpointError,),
        (json.dumps(COMMITS),),
    ),
    "shoal.dataflow.execution.remote.delegated.read_key": ParserCase(
        with_folder(file_named("job.key"), read_key),
        _changed_json({"term": 3, "key": "00ff"}),
        (),
        (json.dumps({"term": 3, "key": "00ff"}),),
    ),
    "shoal.dataflow.checkpoint.storage.CheckpointStorage.search of a manifest": ParserCase(
        with_folder(
            _checkpoint("000000000001/manifest.json"), lambda folder: CheckpointStorage(str(folder), "job").search()
        ),
        _changed_json(MANIFEST),
        (CheckpointError,),
    ),
    "shoal.dataflow.checkpoint.storage.CheckpointStorage.begin of the notes": ParserCase(
        with_folder(_checkpoint("job.json"), lambda folder: CheckpointStorage(str(folder), "job").begin(LAYOUT)),
        _changed_json(JOB),
        (CheckpointError, PreconditionError),
        (json.dumps(JOB),),
    ),
    "shoal.dataflow.connectors.files.commits.decode_moves": ParserCase(
        decode_moves, _changed(MOVES), (CheckpointError,), (MOVES, b"")
    ),
    "shoal.dataflow.connectors.write_ahead.decode_segments": ParserCase(
        decode_segments, _changed(SEGMENTS), (CheckpointError,), (SEGMENTS, b"")
    ),
    "shoal.dataflow.connectors.write_ahead.from_stream": ParserCase(
        lambda content: [batch.to_pylist() for batch in from_stream(content)],
        _changed(STREAM),
        (CheckpointError,),
        (STREAM,),
    ),
    "shoal.cli.programs.topic_lines.read_lines": ParserCase(
        lambda content: list(read_lines(io.BytesIO(content), key="k")),
        _changed(FED) | _changed_json({"k": "a", "n": 1}) | st.sampled_from((b'{"k": "\\ud800"}', b'{"\\ud800": 1}')),
        good=(FED, b""),
    ),
    # The local log.
    "shoal.topics.local.history.entries.decode": ParserCase(
        entries.decode,
        st.sampled_from(ENTRIES).flatmap(_changed_json),
        (InternalError,),
        [json.dumps(each).encode() for each in ENTRIES],
    ),
    "shoal.topics.local.history.snapshots.load": ParserCase(
        snapshots.load, _changed_json(json.loads(SNAPSHOT)), (InternalError,), (SNAPSHOT,)
    ),
    "shoal.topics.local.history.journal.read_snapshot": ParserCase(
        with_folder(file_named("journal"), _read_journal), _changed(JOURNAL), (InternalError,), (JOURNAL,)
    ),
    "shoal.topics.local.leases.read_lease": ParserCase(
        with_folder(file_named("lease"), lambda folder: read_lease(folder / "lease")), blobs, (), (b"b" * 44,)
    ),
}

#: Read something, and parse nothing that somebody else wrote.
NO_STREAM_PARSERS: dict[str, str] = {
    "shoal.cli.programs.loading.load_program": "runs the module of its caller, and says what that raised",
    "shoal.dataflow.language.keys.from_canonical": "columns that canonical made, in the memory of this process",
    "shoal.topics.kafka.binding.read_bytes": "the client library's own memory, at places that it gave",
    "shoal.topics.kafka.binding.read_messages": "the client library's own memory, at places that it gave",
}
