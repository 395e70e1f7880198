"""Records as one column of bytes or text. Called through `shoal.topics.codecs`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from shoal.topics.codecs.base import Decoded, Encoded, numbers, poison, require, unfit, without


class RawCodec:
    """One column, `value` as a rule: the bytes as they are, or as text where the schema asks for text."""

    name = "raw"

    def decode(self, batch: Any, schema: Any) -> Decoded:
        """The values, without copying."""
        require(len(schema) == 1, schema, "must have exactly one column, of bytes or text")
        kind = schema.field(0).type
        values = batch.column(batch.schema.get_field_index("value"))
        try:
            column = values if values.type == kind else values.cast(kind)
            return Decoded(pa.RecordBatch.from_arrays([column], schema=schema), numbers(len(values)), poison(batch, {}))
        except pa.ArrowInvalid:
            pass
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise unfit(schema, "must be a column of bytes or text") from error
        bad = {at: reason for at, value in enumerate(values.to_pylist()) if (reason := _text_problem(value))}
        good = without(len(values), bad)
        column = values.take(good).cast(kind)
        return Decoded(pa.RecordBatch.from_arrays([column], schema=schema), good, poison(batch, bad))

    def encode(self, rows: Any) -> Encoded:
        """The one column as it is."""
        require(rows.num_columns == 1, rows.schema, "must have exactly one column, of bytes or text")
        try:
            return Encoded(rows.column(0).cast(pa.binary()), numbers(rows.num_rows))
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid) as error:
            raise unfit(rows.schema, "must be a column of bytes or text") from error


def _text_problem(value: bytes | None) -> str:
    try:
        (value or b"").decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    return ""
