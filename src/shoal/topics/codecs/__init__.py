"""Codecs: the values of records as rows of columns, and back.

| codec | one record is | schema |
| --- | --- | --- |
| `ArrowCodec` | many rows, as an Arrow IPC stream | in every record; checked against the one that is asked for |
| `JsonCodec` | one row, as a JSON object | asked for; what it does not name is ignored, what is missing is null |
| `ProtobufCodec` | one row, as a message | from the message's descriptor (`shoal.topics.codecs.protobuf`) |
| `RawCodec` | one row with one column: the bytes, or the text | that one column |

`decode` never raises for the content of a record: one that cannot be read is *poison*, and is returned beside the
rows with its offset and the reason. Called by the connectors of the engines; knows no backend.
"""

from __future__ import annotations

from shoal.topics.codecs.arrow import ArrowCodec
from shoal.topics.codecs.base import POISON, Codec, Decoded, Encoded
from shoal.topics.codecs.named import codec
from shoal.topics.codecs.objects import JsonCodec
from shoal.topics.codecs.raw import RawCodec

__all__ = ["POISON", "ArrowCodec", "Codec", "Decoded", "Encoded", "JsonCodec", "RawCodec", "codec"]
