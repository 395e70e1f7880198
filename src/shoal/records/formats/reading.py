"""Reads files of records in any form, a bounded number at a time. The one way into files for parsers and tools.

    for payloads in read_payloads("data/part-*.snappy", framed(has_sort_id=True)):
        …

`read_messages` gives whole messages instead, for tools and tests. Called by `shoal.records.parsing.read` and by
`shoal serving-client predict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from shoal.core.errors import CorruptError
from shoal.core.tfrecords import MAX_RECORD
from shoal.records.bad_records import BadRecords
from shoal.records.formats.compression import Compression, compression_of, open_source
from shoal.records.formats.documents import AnyMessage
from shoal.records.formats.frames import FrameFormat, read_frames
from shoal.records.formats.payloads import Payloads
from shoal.records.formats.tfrecords import read_tfrecords, tfrecord_compression


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How records lie in a file. Made by `framed` and `tfrecord`."""

    #: The headers of frames; None for TFRecords.
    frames: FrameFormat | None
    #: None: what the end of each path says.
    compression: Compression | None = None
    #: The longest record that is taken, in bytes.
    limit: int = MAX_RECORD

    def compression_of(self, path: str) -> Compression:
        """That of one file."""
        if self.frames is None:
            return tfrecord_compression(path, self.compression)
        return compression_of(path) if self.compression is None else self.compression


def framed(
    *,
    has_sort_id: bool = False,
    kafka_dump: bool = False,
    kafka_dump_prefix: bool = False,
    lagrangex_header: bool = False,
    compression: Compression | None = None,
    limit: int = MAX_RECORD,
) -> RecordFormat:
    """Monolith's framed files, with their headers."""
    return RecordFormat(FrameFormat(has_sort_id, kafka_dump, kafka_dump_prefix, lagrangex_header), compression, limit)


def tfrecord(*, compression: Compression | None = None, limit: int = MAX_RECORD) -> RecordFormat:
    """TensorFlow's files."""
    return RecordFormat(None, compression, limit)


def read_payloads(paths: str | Iterable[str], form: RecordFormat, bad: BadRecords | None = None) -> Iterator[Payloads]:
    """The records of some files, one file after the other, many records at a time.

    Args:
        paths: one file or several; `""` is standard input. `shoal.records.patterns.find_files` finds them.
        form: how records lie in them.
        bad: what follows a record that cannot be read; by default the read ends with a `CorruptError`.
    """
    bad = bad or BadRecords()
    for path in [paths] if isinstance(paths, str) else paths:
        try:
            with open_source(path, form.compression_of(path)) as source:
                if form.frames is None:
                    yield from read_tfrecords(source, bad, limit=form.limit)
                else:
                    yield from read_frames(source, form.frames, bad, limit=form.limit)
        except CorruptError as error:
            bad.meet(error)  # inflation failed: the rest of the file is lost


def read_messages(
    paths: str | Iterable[str], message: type[AnyMessage], form: RecordFormat, bad: BadRecords | None = None
) -> Iterator[AnyMessage]:
    """Every record as a message of one type. What is no such message goes to `bad`, too."""
    bad = bad or BadRecords()
    for payloads in read_payloads(paths, form, bad):
        for index, payload in enumerate(payloads):
            result = message()
            try:
                result.ParseFromString(payload)
            except DecodeError as error:
                rule = f"must be a {message.DESCRIPTOR.full_name}: {error}"
                bad.meet(CorruptError(payloads.path, int(payloads.offsets[index]), rule), payload)
                continue
            yield result
