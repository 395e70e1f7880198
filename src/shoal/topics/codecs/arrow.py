"""Many rows in one record, as Arrow has them. Called through `shoal.topics.codecs`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shoal.topics.codecs.base import Decoded, Encoded, one_batch, poison, reason_of

ARROW_MESSAGE_BYTES = 512 * 1024
"""About how large the messages of the Arrow codec become. Brokers refuse more than 1 MB unless told otherwise."""


class ArrowCodec:
    """Many rows in one record, as an Arrow IPC stream with its schema.

    Args:
        message_bytes: about how large a record becomes.
    """

    name = "arrow"

    def __init__(self, *, message_bytes: int = ARROW_MESSAGE_BYTES) -> None:
        self._message_bytes = message_bytes

    def decode(self, batch: Any, schema: Any) -> Decoded:
        """The rows of all records, one after the other; of one large record without copying."""
        values = batch.column(batch.schema.get_field_index("value"))
        tables: list[Any] = []
        counts = np.zeros(len(values), np.int64)
        bad: dict[int, str] = {}
        for at in range(len(values)):
            try:
                table, counts[at] = _read_stream(values[at], schema)
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                bad[at] = reason_of(error)
                continue
            tables.append(table)
        rows = one_batch(tables, schema)
        return Decoded(rows, pa.array(np.repeat(np.arange(len(values)), counts)), poison(batch, bad))

    def encode(self, rows: Any) -> Encoded:
        """As many messages as it takes to keep each to about the bytes that were asked for."""
        each = max(1, int(rows.num_rows * self._message_bytes / max(1, rows.nbytes)))
        starts = np.arange(0, rows.num_rows, each, dtype=np.int64)
        values = [_stream(rows.slice(int(start), each)) for start in starts]
        return Encoded(pa.array(values, pa.binary()), pa.array(starts))


def _read_stream(value: Any, schema: Any) -> tuple[Any, int]:
    """The columns that are asked for, and how many rows there are: a table without columns does not know."""
    if not value.is_valid:
        raise ValueError("no value")
    table = pa.ipc.open_stream(value.as_buffer()).read_all()
    # Any program may have written it: a wrong length inside would be believed, and end the process where it is used.
    table.validate(full=True)
    if table.schema.equals(schema):
        return table, table.num_rows
    missing = [field.name for field in schema if field.name not in table.schema.names]
    if missing:
        raise ValueError(f"without the columns {', '.join(missing)}")
    return table.select(schema.names).cast(schema), table.num_rows


def _stream(rows: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    message: bytes = sink.getvalue().to_pybytes()
    return message
