"""Making records, and what goes wrong with topics."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from shoal.core.errors import ExhaustedError, InvalidError, PreconditionError, ShoalError
from shoal.topics.base import RECORDS, check_records, records
from shoal.topics.errors import FencedError, LogFullError, OffsetOutOfRangeError, RebalancedError


def test_records_from_lists_and_arrays() -> None:
    batch = records(
        pa.array(["a", "b"]),
        keys=pa.chunked_array([pa.array([b"k"]), pa.array([None], pa.binary())]),
        timestamps=[1, None],
        headers=[[("h", b"1")], None],
    )
    assert batch.schema == RECORDS
    assert batch.to_pylist() == [
        {"key": b"k", "value": b"a", "timestamp": 1, "headers": [("h", b"1")]},
        {"key": None, "value": b"b", "timestamp": None, "headers": None},
    ]
    assert records([]).num_rows == 0


def test_columns_of_unlike_length_are_all_named() -> None:
    with pytest.raises(InvalidError) as raised:
        records([b"1", b"2"], keys=[b"k"], timestamps=[1, 2, 3])
    assert [each.field for each in raised.value.problems] == ["key", "timestamp"]


def test_metadata_does_not_matter() -> None:
    batch = records([b"1"])
    tagged = batch.replace_schema_metadata({"made": "elsewhere"})
    assert check_records(tagged).schema.equals(RECORDS)
    strict = pa.schema([field.with_nullable(False) if field.name == "value" else field for field in RECORDS])
    assert check_records(pa.RecordBatch.from_arrays(batch.columns, schema=strict)).schema.equals(RECORDS)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FencedError("w", epoch=3, reason="somebody else"), PreconditionError),
        (RebalancedError("g", offered=1, current=2), PreconditionError),
        (OffsetOutOfRangeError("t", 1, offset=9, first=2, following=5), PreconditionError),
        (LogFullError("no room", hint="make some"), ExhaustedError),
    ],
)
def test_errors_carry_facts_and_survive_pickling(error: ShoalError, kind: type[ShoalError]) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, kind)
    assert (type(again), str(again), again.facts, again.hint) == (type(error), str(error), error.facts, error.hint)
    assert error.hint
