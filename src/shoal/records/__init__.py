"""Training data: Monolith's messages and files, TFRecords, compression, patterns of files, feature ids.

    from shoal.records import Instance, RowSchema, find_files, framed, ids, read_columns

    schema = RowSchema((ids("fc_user"),), line_id=("req_time",))
    for batch in read_columns(find_files("data/*.snappy"), framed(has_sort_id=True), Instance, schema): …

What users need is named here and looked up when it is asked for. `__init__.pyi` beside it tells type checkers the same;
a test freezes it. The data path is columns: `formats` finds where records lie in a file, `parsing` turns them into
Arrow columns, `operators` filter and label those.
"""

from __future__ import annotations

#: Where each public name lives.
_HOMES: dict[str, str] = {
    "BadRecord": "shoal.records.bad_records",
    "BadRecords": "shoal.records.bad_records",
    "CloseHook": "shoal.records.writing",
    "Column": "shoal.records.parsing.schema",
    "Compression": "shoal.records.formats.compression",
    "CsvFormat": "shoal.records.parsing.tables",
    "DocumentFormat": "shoal.records.formats.documents",
    "Engine": "shoal.records.parsing.engines",
    "Example": "shoal.wire.pb.idl.matrix.proto.example_pb2",
    "ExampleBatch": "shoal.wire.pb.idl.matrix.proto.example_pb2",
    "FeatureList": "shoal.records.feature_list",
    "FrameFormat": "shoal.records.formats.frames",
    "Instance": "shoal.wire.pb.idl.matrix.proto.proto_parser_pb2",
    "LineId": "shoal.wire.pb.idl.matrix.proto.line_id_pb2",
    "OnBad": "shoal.records.bad_records",
    "PayloadType": "shoal.records.formats.frames",
    "Payloads": "shoal.records.formats.payloads",
    "RecordFormat": "shoal.records.formats.reading",
    "RowSchema": "shoal.records.parsing.schema",
    "Shard": "shoal.records.patterns",
    "WritableFile": "shoal.records.writing",
    "dated_patterns": "shoal.records.patterns",
    "find_files": "shoal.records.patterns",
    "floats": "shoal.records.parsing.schema",
    "framed": "shoal.records.formats.reading",
    "ids": "shoal.records.parsing.schema",
    "ints": "shoal.records.parsing.schema",
    "list_versions": "shoal.records.exports",
    "load_feature_list": "shoal.records.feature_list",
    "load_message": "shoal.records.formats.documents",
    "make_parser": "shoal.records.parsing.engines",
    "open_export": "shoal.records.exports",
    "read_columns": "shoal.records.parsing.engines",
    "read_csv": "shoal.records.parsing.tables",
    "read_messages": "shoal.records.formats.reading",
    "read_parquet": "shoal.records.parsing.tables",
    "read_payloads": "shoal.records.formats.reading",
    "texts": "shoal.records.parsing.schema",
    "tfrecord": "shoal.records.formats.reading",
    "write_export": "shoal.records.exports",
    "write_frames": "shoal.records.formats.frames",
    "write_message": "shoal.records.formats.documents",
    "write_tfrecords": "shoal.records.formats.tfrecords",
}

__all__ = [*_HOMES]  # noqa: PLE0604  the names are in the table above


def __getattr__(name: str) -> object:
    if name in _HOMES:
        import importlib

        globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
