"""The rows that a prediction is asked for: from files of Monolith's messages, or random ones.

A request carries serialized messages, one for each row, or one ExampleBatch for all. Called by `shoal serving-client`.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.core.errors import InvalidError, problem
from shoal.records.formats.documents import DocumentFormat, document_format, load_message
from shoal.records.formats.frames import FrameFormat
from shoal.records.formats.reading import RecordFormat, read_messages
from shoal.records.messages import batch_to_examples, batch_to_instances
from shoal.wire.pb.idl.matrix.proto.example_pb2 import Example, ExampleBatch
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance

if TYPE_CHECKING:
    import numpy as np
    from google.protobuf.message import Message

    from shoal.records.feature_list import FeatureList


class InputType(enum.StrEnum):
    """What the rows of a request are, and what the file has, where that differs."""

    INSTANCE = "instance"
    EXAMPLE = "example"
    EXAMPLE_BATCH = "example_batch"
    BATCH_AS_INSTANCES = "example_batch_to_instance"
    BATCH_AS_EXAMPLES = "example_batch_to_example"

    @property
    def is_batch(self) -> bool:
        """Whether the file has ExampleBatches."""
        return self.startswith("example_batch")


class FileType(enum.StrEnum):
    """How messages lie in a file: one in each, or many records."""

    BYTES = "pb"
    JSON = "json"
    TEXT = "pbtxt"
    DUMP = "dump"
    FRAMED = "framed"
    TFRECORD = "tfrecord"


_MESSAGES: dict[InputType, type[Message]] = {InputType.INSTANCE: Instance, InputType.EXAMPLE: Example}


@dataclass(frozen=True, slots=True)
class InputFile:
    """Files of one kind."""

    kind: InputType
    #: None: by the end of the name; frames, if one of their headers is named.
    file_type: FileType | None = None
    headers: FrameFormat = FrameFormat()

    def read(self, path: str, *, rows: int) -> list[bytes]:
        """The rows of one request: so many of a file of records, all of a file with one message.

        Of a file of batches that are sent as they are, it is the first one. Raises `ShoalError`.
        """
        most = 1 if self.kind is InputType.EXAMPLE_BATCH else rows
        found = list(itertools.islice(self._rows(path), most if self._has_records(path) else None))
        if not found:
            raise InvalidError([problem(path, None, "must have at least one row")])
        return found

    def _rows(self, path: str) -> Iterator[bytes]:
        for message in self._messages(path):
            if isinstance(message, ExampleBatch):
                yield from _rows_of(message, self.kind)
            else:
                yield message.SerializeToString(deterministic=True)

    def _messages(self, path: str) -> Iterator[Message]:
        message = _MESSAGES.get(self.kind, ExampleBatch)
        if self._has_records(path):
            frames = None if self._type(path) is FileType.TFRECORD else self.headers
            yield from read_messages(path, message, RecordFormat(frames))
        else:
            yield load_message(path, message, DocumentFormat(self._type(path).value))

    def _type(self, path: str) -> FileType:
        if self.file_type is not None:
            return self.file_type
        if self.headers != FrameFormat():
            return FileType.FRAMED
        if ".tfrecord" in path.rpartition("/")[2]:
            return FileType.TFRECORD
        return FileType(document_format(path).value)

    def _has_records(self, path: str) -> bool:
        return self._type(path) in {FileType.FRAMED, FileType.TFRECORD}


def random_rows(
    kind: InputType, rng: np.random.Generator, *, rows: int, now: int, features: FeatureList | None = None
) -> list[bytes]:
    """The rows of one request, at random. A batch needs a list of features. Raises `InvalidError`."""
    from shoal.records.random_data import random_example_batch, random_instance

    if kind is InputType.INSTANCE:
        return [random_instance(rng).SerializeToString(deterministic=True) for _ in range(rows)]
    if kind is InputType.EXAMPLE:
        kind = InputType.BATCH_AS_EXAMPLES
    if features is None:
        raise InvalidError([problem("--feature-list", None, f"is required for random rows of type {kind}")])
    return list(_rows_of(random_example_batch(rng, features, rows=rows, now=now), kind))


def _rows_of(batch: ExampleBatch, kind: InputType) -> Iterator[bytes]:
    rows: Sequence[Message] = [batch]
    if kind is InputType.BATCH_AS_INSTANCES:
        rows = batch_to_instances(batch)
    elif kind is InputType.BATCH_AS_EXAMPLES:
        rows = batch_to_examples(batch)
    for row in rows:
        yield row.SerializeToString(deterministic=True)
