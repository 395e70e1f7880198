"""The options that say what a model is called with: rows, files of Monolith's messages, random data, a whole request.

Called by `client`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.connection import session
from shoal.core.errors import InvalidError, problem

if TYPE_CHECKING:
    from shoal.serving.models.inputs import InputFile, InputType
    from shoal.wire.pb.tensorflow.framework_pb2 import TensorProto

MAX_ROW_BYTES = 16 * 1024 * 1024
MAX_REQUEST_BYTES = 64 * 1024 * 1024
PANEL = "Inputs"

INPUT_TYPES = "instance, example, example_batch, example_batch_to_instance or example_batch_to_example"
FILE_TYPES = "pb, json, pbtxt, dump, framed or tfrecord"

Rows = Annotated[
    list[str] | None,
    typer.Option(
        "--row",
        metavar="TEXT",
        help="One row of the input, as text or @FILE with its bytes; repeatable",
        rich_help_panel=PANEL,
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="A file with the rows of one call; repeatable: profile makes calls with each in turn",
        rich_help_panel=PANEL,
    ),
]
Random = Annotated[
    bool,
    typer.Option(
        "--random",
        metavar="",
        help="Make rows up; types other than instance need a feature list",
        rich_help_panel=PANEL,
    ),
]
InputTypeName = Annotated[
    str, typer.Option("--input-type", metavar="TYPE", help=f"The rows of --data: {INPUT_TYPES}", rich_help_panel=PANEL)
]
FileTypeName = Annotated[
    str,
    typer.Option(
        "--file-type",
        metavar="TYPE",
        help=f"How --data is written: {FILE_TYPES} [by the end of its name; framed with one of the headers]",
        rich_help_panel=PANEL,
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(
        "--batch-size",
        min=1,
        max=100_000,
        metavar="N",
        help="How many records of a framed file or tfrecord, or random rows, one call has",
        rich_help_panel=PANEL,
    ),
]
HasSortId = Annotated[
    bool, typer.Option("--has-sort-id", metavar="", help="Frames have a sort id", rich_help_panel=PANEL)
]
KafkaDump = Annotated[
    bool, typer.Option("--kafka-dump", metavar="", help="Frames have the header of a Kafka dump", rich_help_panel=PANEL)
]
KafkaDumpPrefix = Annotated[
    bool,
    typer.Option("--kafka-dump-prefix", metavar="", help="Frames have the prefix of a dump", rich_help_panel=PANEL),
]
LagrangexHeader = Annotated[
    bool, typer.Option("--lagrangex-header", metavar="", help="Frames have a lagrangex header", rich_help_panel=PANEL)
]
FeatureListFile = Annotated[
    str,
    typer.Option(
        "--feature-list", metavar="FILE", help="The feature_list.conf for random batches", rich_help_panel=PANEL
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of random rows", rich_help_panel=PANEL)]
InputName = Annotated[str, typer.Option("--input", metavar="NAME", help="The name of the input", rich_help_panel=PANEL)]
Request = Annotated[
    str | None,
    typer.Option(
        "--request", metavar="FILE", help="A whole PredictRequest in text form instead", rich_help_panel=PANEL
    ),
]


@dataclass(frozen=True, slots=True)
class GivenInputs:
    """The options as they were given."""

    name: str
    rows: Sequence[str] | None
    data: Sequence[str] | None
    random: bool
    request: str | None
    input_type: str
    file_type: str
    batch_size: int
    has_sort_id: bool
    kafka_dump: bool
    kafka_dump_prefix: bool
    lagrangex_header: bool
    feature_list: str
    seed: int

    def calls(self) -> list[dict[str, TensorProto]]:
        """The inputs of each call, at least one. Raises `InvalidError`, or what a file cannot be read for."""
        from shoal.serving.models.client import string_tensor

        if sum(map(bool, (self.rows, self.data, self.random, self.request))) != 1:
            raise InvalidError([problem("--row", None, "give rows, --data, --random, or a whole request: --request")])
        checked_text(self.name, option="--input")
        if self.request:
            return [_read_request(self.request)]
        if self.rows:
            return [{self.name: string_tensor([_row(each) for each in self.rows])}]
        if self.random:
            return [{self.name: string_tensor(self._random())}]
        source = self._file()
        return [{self.name: string_tensor(source.read(path, rows=self.batch_size))} for path in self.data or ()]

    def _file(self) -> InputFile:
        from shoal.records.formats.frames import FrameFormat
        from shoal.serving.models.inputs import FileType, InputFile

        headers = FrameFormat(self.has_sort_id, self.kafka_dump, self.kafka_dump_prefix, self.lagrangex_header)
        file_type = None
        if self.file_type:
            if self.file_type not in set(FileType):
                raise InvalidError([problem("--file-type", self.file_type, f"must be {FILE_TYPES}")])
            file_type = FileType(self.file_type)
        if headers != FrameFormat() and file_type not in {None, FileType.FRAMED}:
            raise InvalidError([problem("--file-type", self.file_type, "must be framed with headers of frames")])
        return InputFile(self._kind(), file_type, headers)

    def _kind(self) -> InputType:
        from shoal.serving.models.inputs import InputType

        if self.input_type not in set(InputType):
            raise InvalidError([problem("--input-type", self.input_type, f"must be {INPUT_TYPES}")])
        return InputType(self.input_type)

    def _random(self) -> list[bytes]:
        import numpy as np

        from shoal.records.feature_list import load_feature_list
        from shoal.serving.models.inputs import random_rows

        features = load_feature_list(self.feature_list) if self.feature_list else None
        now = int(session.clock().wall().timestamp())
        rng = np.random.default_rng(self.seed)
        return random_rows(self._kind(), rng, rows=self.batch_size, now=now, features=features)


def checked_text(text: str, *, option: str) -> str:
    """Return what a message can carry as text. Raises `InvalidError`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidError([problem(option, text, "must be text that UTF-8 can write")]) from None
    return text


def _row(text: str) -> bytes:
    from shoal.core import files

    if text.startswith("@"):
        return files.read_bytes(text[1:], limit=MAX_ROW_BYTES)
    return text.encode(errors="surrogateescape")  # the bytes that the shell gave


def _read_request(path: str) -> dict[str, TensorProto]:
    """The inputs of a request in a file. Raises `InvalidError`."""
    from google.protobuf import text_format

    from shoal.core import files
    from shoal.wire.pb.tensorflow import serving_pb2 as pb

    text = files.read_bytes(path, limit=MAX_REQUEST_BYTES).decode(errors="replace")
    try:
        parsed = text_format.Parse(text, pb.PredictRequest())
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise InvalidError([problem(path, None, f"must be a PredictRequest in text form: {error}")]) from None
    return dict(parsed.inputs)
