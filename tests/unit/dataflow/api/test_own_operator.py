"""Operators of users' own, by the public class: one method is enough, and a hint counts unless somebody says more."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from shoal import Operator, Stream
from shoal.dataflow.language.logical import Custom

ROWS = Stream.from_dicts([{"n": each} for each in range(5)])


class Doubled(Operator):
    parallelism_hint = 3

    def process_batch(self, batch: Any) -> Any:
        return pa.record_batch({"n": [each * 2 for each in batch["n"].to_pylist()]})


class Structural:
    """No subclass, and only the one method."""

    def process_batch(self, batch: Any) -> Any:
        return batch


def node_of(stream: Stream) -> Custom:
    assert isinstance(stream.node, Custom)
    return stream.node


@pytest.mark.parametrize("parallelism", [1, 2])
def test_one_method_is_enough(parallelism: int) -> None:
    doubled = ROWS.apply(Doubled, schema={"n": "int64"}).with_parallelism(parallelism)
    assert sorted(row["n"] for row in doubled.to_pylist()) == [0, 2, 4, 6, 8]
    assert ROWS.apply(Structural, schema={"n": "int64"}).count() == 5


def test_what_is_not_said_has_a_default() -> None:
    class Silent(Operator):
        pass

    silent = Silent()
    assert (silent.parallelism_hint, silent.snapshot(), silent.finish(), silent.on_watermark(1)) == (
        0,
        None,
        None,
        None,
    )
    with pytest.raises(NotImplementedError):
        silent.process_morsel(None)
    assert isinstance(Doubled(), Operator)
    assert not isinstance(Structural(), Operator)


def test_a_hint_counts_unless_somebody_says_more() -> None:
    assert node_of(ROWS.apply(Doubled, schema={"n": "int64"})).parallelism == 3
    assert node_of(ROWS.apply(Doubled, schema={"n": "int64"}).with_parallelism(2)).parallelism == 2
    assert node_of(ROWS.apply(Structural, schema={"n": "int64"})).parallelism is None
