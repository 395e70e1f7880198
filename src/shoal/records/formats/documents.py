"""One message in one file: as bytes, JSON, protobuf's text form, or a dump. By the end of the name, or as told.

Called by `shoal serving-client predict` for its inputs, by tests, and by people who look at data.
"""

from __future__ import annotations

import enum
from typing import TypeVar

from google.protobuf import json_format, text_format
from google.protobuf.message import DecodeError, EncodeError, Message

from shoal.core import files
from shoal.core.errors import CorruptError, InvalidError, UnsupportedError, problem
from shoal.records.formats.dumps import parse_dump

#: A message for people to look at is small; protobuf itself ends at 2 GiB.
MAX_DOCUMENT_BYTES = 256 << 20

AnyMessage = TypeVar("AnyMessage", bound=Message)


class DocumentFormat(enum.Enum):
    """How a message is written."""

    BYTES = "pb"
    JSON = "json"
    TEXT = "pbtxt"
    DUMP = "dump"


_SUFFIXES = {
    ".json": DocumentFormat.JSON,
    ".pbtxt": DocumentFormat.TEXT,
    ".pbtext": DocumentFormat.TEXT,
    ".textproto": DocumentFormat.TEXT,
    ".txt": DocumentFormat.TEXT,
    ".dump": DocumentFormat.DUMP,
}


def document_format(path: str) -> DocumentFormat:
    """What the end of a file's name says; bytes if it says nothing."""
    return next((form for suffix, form in _SUFFIXES.items() if path.endswith(suffix)), DocumentFormat.BYTES)


def load_message(path: str, message: type[AnyMessage], form: DocumentFormat | None = None) -> AnyMessage:
    """Read a message from a file. Raises `InvalidError` for what is no such message.

    Args:
        path: of the file.
        message: its type.
        form: how it is written; by the end of the path, if it is not given.
    """
    data = files.read_bytes(path, limit=MAX_DOCUMENT_BYTES)
    return parse_message(data, message, form or document_format(path), path=path)


def parse_message(data: bytes, message: type[AnyMessage], form: DocumentFormat, *, path: str) -> AnyMessage:
    """Read a message from bytes. Raises `InvalidError`; for bytes of protobuf it is a `CorruptError`."""
    if form is DocumentFormat.BYTES:
        result = message()
        try:
            result.ParseFromString(data)
        except DecodeError as error:
            raise CorruptError(path, 0, f"must be a {message.DESCRIPTOR.full_name}: {error}") from error
        return result
    try:
        text = data.decode()
        if form is DocumentFormat.TEXT:
            return text_format.Parse(text, message())
        if form is DocumentFormat.JSON:
            return json_format.Parse(text, message())
        return json_format.ParseDict(parse_dump(text, message.DESCRIPTOR, path=path), message())
    except InvalidError:
        raise
    except (text_format.ParseError, json_format.Error, ValueError, TypeError, RecursionError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise InvalidError([problem(path, None, f"must be a {message.DESCRIPTOR.full_name}: {first}")]) from error


def write_message(path: str, message: Message, form: DocumentFormat | None = None) -> None:
    """Write a message to a file, which appears whole. Raises `UnsupportedError` for a dump, which is only read."""
    form = form or document_format(path)
    if form is DocumentFormat.DUMP:
        raise UnsupportedError(f"{path}: dumps are read and not written", hint="write .json or .pbtxt", path=path)
    if form is DocumentFormat.BYTES:
        try:
            content = message.SerializeToString()
        except EncodeError as error:
            raise InvalidError([problem("message", None, str(error))]) from error
    elif form is DocumentFormat.TEXT:
        content = text_format.MessageToString(message).encode()
    else:
        content = json_format.MessageToJson(message, preserving_proto_field_name=True).encode()
    files.write_atomic(path, content)
