"""The part of the registry for records: what lies in files was written by anybody, and may be cut off or damaged."""

from __future__ import annotations

import gzip
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from hypothesis import strategies as st

from shoal.core.errors import InvalidError, UnsupportedError
from shoal.core.tfrecords import frame as frame_record
from shoal.core.tfrecords import read_records
from shoal.model.artifacts import FEATURE_FILE, SIGNATURE_FILE, ExportedFile, ExportManifest
from shoal.records.bad_records import BadRecords
from shoal.records.exports import ExportedVersion, read_manifest, read_state
from shoal.records.feature_list import load_feature_list, parse_feature_list
from shoal.records.formats.compression import Compression, Sink, Source
from shoal.records.formats.documents import DocumentFormat, load_message, parse_message
from shoal.records.formats.dumps import parse_dump
from shoal.records.formats.frames import FrameFormat, frame, read_frames
from shoal.records.formats.reading import RecordFormat, read_messages, read_payloads, tfrecord
from shoal.records.formats.tfrecords import read_tfrecords
from shoal.records.operators.labels import parse_tasks
from shoal.records.operators.transforms import load_transform
from shoal.records.parsing.engines import Engine, read_columns
from shoal.records.parsing.schema import LINE_ID_TYPES, RowSchema, floats, ids, ints, texts
from shoal.records.parsing.tables import read_csv, read_parquet
from shoal.testing.fuzz import JSON_VALUES, ParserCase, changed_bytes, changed_text, changed_values
from shoal.testing.messages import changed
from shoal.wire.pb.idl.matrix.proto.example_pb2 import Example, ExampleBatch, Feature
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance
from shoal.wire.pb.monolith.native_training.data.transform.transform_config_pb2 import TransformConfig
from tests.fuzz import inputs
from tests.fuzz.inputs import blobs, file_named, flipped_bytes, with_folder

INSTANCE = Instance(fid=[1, 2], label=[1.0])
INSTANCE.feature.add(name="fc_a", fid=[3])
BYTES = INSTANCE.SerializeToString()
FLAGS = tuple(FrameFormat(*each) for each in itertools.product((False, True), repeat=4))
TFRECORDS = frame_record(b"a record") + frame_record(BYTES)
CONF = "column_name: a, b\nfeed_name=f shared=true\nfeature_name=fc_a slot=1 depend=a, b args=3 feature_id=9\n"
DUMP = 'feature:\n0:\n"fid":\n0: "1"\nname: x\nlabel:\n0: 1.5\nline_id:\nactions:\n0: 3\n'

TRANSFORM = TransformConfig()
_label = TRANSFORM.configs.add().basic_config.add_label
_label.task_label_configs.add(pos_actions=[1], neg_actions=[2], sample_rate=0.5)
_either = TRANSFORM.configs.add().logical_or_config
_either.x.filter_by_fid.has_fids.append(1)
_either.y.filter_by_value.field_name, _either.y.filter_by_value.op = "req_time", "gt"
_either.y.filter_by_value.int_operand.append(5)


def around(good: bytes) -> st.SearchStrategy[bytes]:
    """The same, changed, flipped, and anything else."""
    return blobs | changed_bytes(good) | flipped_bytes(good)


def framed_with(form: FrameFormat) -> bytes:
    return frame(b"a record", form) + frame(BYTES, form)


def compressed(compression: Compression) -> bytes:
    file = io.BytesIO()
    sink = Sink(file, compression)
    sink.write(framed_with(FrameFormat()))
    sink.finish()
    return file.getvalue()


def _source(data: bytes) -> Source:
    return Source("f", iter([data]))


def _of_a_path(read: Callable[[str], Any], name: str = "f") -> Callable[[Any], object]:
    def run(folder: Path) -> object:
        return [list(each) if not isinstance(each, bytes) else each for each in read(str(folder / name))]

    return with_folder(file_named(name), run)


def _messages(folder: Path) -> object:
    return list(read_messages(str(folder / "f"), Instance, RecordFormat(FrameFormat(), Compression.NONE)))


EXPORT = {
    "model_name": "m",
    "sub_graph": "entry",
    "version": 7,
    "files": [{"path": "a/b", "size": 3, "sha256": "0" * 64}],
    "tables": [{"name": "t", "path": "a/b", "format": "dump"}],
    "versions": {"shoal": "1"},
}
SIGNATURES = {"serving": {"inputs": {"x": {"dtype": "float32", "shape": [-1, 4]}}, "outputs": {}}}
FEATURES = 'feature_configs {\n  key: "fc_a"\n  value {\n    table: "t"\n    slice_dims: 4\n  }\n}\n'
STATE = 'entries {\n  export_dir: "/m/entry/7"\n  global_step: 50\n}\n'


def _version(folder: Path) -> ExportedVersion:
    named = tuple(ExportedFile(name, 0, "0" * 64) for name in (SIGNATURE_FILE, FEATURE_FILE))
    return ExportedVersion(str(folder), ExportManifest("m", "entry", 7, files=named))


SCHEMA = RowSchema(
    (ids("fc_a"), ids("fc_slot_0"), floats("f", size=2), ints("i"), texts("t")), line_id=tuple(LINE_ID_TYPES)
)
EXAMPLE = Example(label=[1.0])
EXAMPLE.named_feature.add(name="fc_a").feature.fid_v2_list.value.extend([1, 2])
EXAMPLE.named_feature.add(name="t").feature.bytes_list.value.append(b"x")
EXAMPLE.line_id.actions.extend([1, 2])
BATCH = ExampleBatch(batch_size=2)
for each in ("fc_a", "f"):
    BATCH.named_feature_list.add(name=each).feature.extend([Feature(), Feature()])


ROWS = pa.schema([("a", pa.list_(pa.int64())), ("b", pa.float32())])
CSV = b"a,b\n1|2,0.5\n,1\n"


def _parquet() -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"a": [[1, 2], []], "b": [0.5, 1.0]}), file)
    return file.getvalue()


PARQUET = _parquet()


def _columns(message: type[Any], engine: Engine) -> Callable[[bytes], object]:
    """Reads a file of one record, by one of the engines."""

    def run(folder: Path) -> object:
        form = RecordFormat(FrameFormat(), Compression.NONE)
        return [
            each.validate(full=True) for each in read_columns(str(folder / "f"), form, message, SCHEMA, engine=engine)
        ]

    return with_folder(lambda folder, data: file_named("f")(folder, frame(data, FrameFormat())), run)


RECORD_PARSERS: dict[str, ParserCase] = {
    "shoal.core.tfrecords.read_records": ParserCase(
        lambda data: list(read_records(io.BytesIO(data), name="f")), around(TFRECORDS), good=(TFRECORDS, b"")
    ),
    "shoal.records.formats.tfrecords.read_tfrecords": ParserCase(
        lambda data: list(read_tfrecords(_source(data), BadRecords())), around(TFRECORDS), good=(TFRECORDS, b"")
    ),
    "shoal.records.formats.reading.read_messages": ParserCase(
        with_folder(file_named("f"), _messages),
        around(frame(BYTES, FrameFormat())),
        good=(frame(BYTES, FrameFormat()),),
    ),
    "shoal.records.formats.reading.read_payloads of tfrecords with gzip": ParserCase(
        _of_a_path(lambda path: read_payloads(path, tfrecord(compression=Compression.GZIP))),
        around(gzip.compress(TFRECORDS)),
        good=(gzip.compress(TFRECORDS),),
    ),
    "shoal.records.formats.documents.parse_message": ParserCase(
        lambda data: parse_message(data, Instance, DocumentFormat.BYTES, path="f"), around(BYTES), good=(BYTES,)
    ),
    "shoal.records.formats.documents.parse_message of text": ParserCase(
        lambda text: parse_message(text.encode("utf-8", "replace"), Instance, DocumentFormat.TEXT, path="f"),
        inputs.texts | changed_text("fid: 1 feature { name: 'a' fid: 3 }"),
        good=("fid: 1 feature { name: 'a' fid: 3 }",),
    ),
    "shoal.records.formats.documents.parse_message of JSON": ParserCase(
        lambda text: parse_message(text.encode("utf-8", "replace"), Instance, DocumentFormat.JSON, path="f"),
        inputs.texts | changed_text('{"fid": [1], "feature": [{"name": "a"}]}'),
        good=('{"fid": [1], "feature": [{"name": "a"}]}',),
    ),
    "shoal.records.formats.documents.load_message": ParserCase(
        with_folder(file_named("f.dump"), lambda folder: load_message(str(folder / "f.dump"), Instance)),
        blobs | changed_text(DUMP).map(lambda text: text.encode("utf-8", "replace")),
        good=(DUMP.encode(),),
    ),
    "shoal.records.formats.dumps.parse_dump": ParserCase(
        lambda text: parse_dump(text, Instance.DESCRIPTOR, path="f"), inputs.texts | changed_text(DUMP), good=(DUMP, "")
    ),
    "shoal.records.feature_list.parse_feature_list": ParserCase(
        parse_feature_list, inputs.texts | changed_text(CONF), good=(CONF,)
    ),
    "shoal.records.feature_list.load_feature_list": ParserCase(
        with_folder(file_named("f.conf"), lambda folder: load_feature_list(str(folder / "f.conf"))),
        blobs | changed_text(CONF).map(lambda text: text.encode("utf-8", "replace")),
        good=(CONF.encode(),),
    ),
    "shoal.records.operators.transforms.load_transform": ParserCase(
        with_folder(file_named("f"), lambda folder: load_transform(str(folder / "f"), ("a",))),
        around(TRANSFORM.SerializeToString()) | changed(TRANSFORM).map(lambda each: each.SerializePartialToString()),
        good=(TRANSFORM.SerializeToString(),),
    ),
    **{
        f"shoal.records.formats.frames.read_frames of {form}": ParserCase(
            lambda data, form=form: list(read_frames(_source(data), form, BadRecords())),
            around(framed_with(form)),
            good=(framed_with(form), b""),
        )
        for form in FLAGS
    },
    **{
        f"shoal.records.formats.reading.read_payloads of {compression}": ParserCase(
            _of_a_path(lambda path, kind=compression: read_payloads(path, RecordFormat(FrameFormat(), kind))),
            around(compressed(compression)),
            good=(compressed(compression), b""),
        )
        for compression in Compression
    },
    "shoal.records.operators.labels.parse_tasks": ParserCase(
        parse_tasks, inputs.texts | changed_text("1,2:3:1.0;4::0.5"), good=("1,2:3:1.0;4::0.5",)
    ),
    "shoal.records.parsing.tables.read_csv": ParserCase(
        with_folder(file_named("f"), lambda folder: list(read_csv(str(folder / "f"), ROWS))),
        around(CSV),
        good=(CSV, b""),
    ),
    "shoal.records.parsing.tables.read_parquet": ParserCase(
        with_folder(file_named("f"), lambda folder: list(read_parquet(str(folder / "f"), ROWS))),
        around(PARQUET),
        good=(PARQUET,),
    ),
    "shoal.records.exports.read_manifest": ParserCase(
        with_folder(file_named("entry/7/export.json"), lambda folder: read_manifest(str(folder / "entry" / "7"))),
        blobs | (JSON_VALUES | changed_values(EXPORT)).map(lambda each: json.dumps(each).encode()),
        (InvalidError, UnsupportedError),
        (json.dumps(EXPORT).encode(),),
    ),
    "shoal.records.exports.ExportedVersion.signatures": ParserCase(
        with_folder(file_named(SIGNATURE_FILE), lambda folder: _version(folder).signatures()),
        blobs | (JSON_VALUES | changed_values(SIGNATURES)).map(lambda each: json.dumps(each).encode()),
        good=(json.dumps(SIGNATURES).encode(),),
    ),
    "shoal.records.exports.ExportedVersion.features": ParserCase(
        with_folder(file_named(FEATURE_FILE), lambda folder: _version(folder).features()),
        blobs | changed_text(FEATURES).map(lambda text: text.encode("utf-8", "replace")),
        good=(FEATURES.encode(), b""),
    ),
    "shoal.records.exports.read_state": ParserCase(
        with_folder(file_named("entry/ExportSaverListenerState"), lambda folder: read_state(str(folder), "entry")),
        blobs | changed_text(STATE).map(lambda text: text.encode("utf-8", "replace")),
        good=(STATE.encode(), b""),
    ),
    **{
        f"shoal.records.parsing.engines.read_columns of {message.__name__}, {engine.value}": ParserCase(
            _columns(message, engine),
            around(good.SerializeToString()) | changed(good).map(lambda each: each.SerializeToString()),
            good=(good.SerializeToString(), b""),
        )
        for message, good in ((Instance, INSTANCE), (Example, EXAMPLE), (ExampleBatch, BATCH))
        for engine in (Engine.COMPILED, Engine.PLAIN)
    },
}
