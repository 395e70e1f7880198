"""Codecs by the names that users call them by. Called by the engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.core.errors import InvalidError, problem
from shoal.topics.codecs.arrow import ArrowCodec
from shoal.topics.codecs.base import Codec
from shoal.topics.codecs.objects import JsonCodec
from shoal.topics.codecs.raw import RawCodec


def codec(name: str, **options: Any) -> Codec:
    """The codec that users call by this name."""
    made = _CODECS.get(name)
    if made is None:
        raise InvalidError([problem("codec", name, f"must be one of {', '.join(_CODECS)}")])
    return made(**options)


def _protobuf(**options: Any) -> Codec:
    from shoal.topics.codecs.protobuf import ProtobufCodec

    return ProtobufCodec(**options)


_CODECS: dict[str, Callable[..., Codec]] = {
    "arrow": ArrowCodec,
    "bytes": RawCodec,
    "json": JsonCodec,
    "protobuf": _protobuf,
    "raw": RawCodec,
    "string": RawCodec,
}
