"""Operators of users' own, by the public class: one method is enough, and a hint counts unless somebody says more."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
import pytest

from shoal import Operator, PlanError, Stream
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


class Nothing(Operator):
    pass


class Neither:
    pass


class Method(Doubled):
    def parallelism_hint(self) -> int:  # type: ignore[override]
        return 2


class Negative(Doubled):
    parallelism_hint = -1


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (Nothing, "operator Nothing: must have a method process_batch"),
        (Neither, "operator Neither: must have a method process_batch"),
        (Method, r"operator Method: parallelism_hint: must be a whole number from 0 on.*a method"),
        (Negative, r"operator Negative: parallelism_hint: must be a whole number from 0 on.*-1"),
    ],
)
def test_what_can_be_no_operator_is_refused_where_it_is_said(operator: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        ROWS.apply(operator, schema={"n": "int64"})
    assert caught.value.at is not None
    assert caught.value.at.file.endswith("test_own_operator.py")
    assert caught.value.hint


def test_morsels_alone_are_enough() -> None:
    class Morsels(Operator):
        def process_morsel(self, morsel: Any) -> Any:
            return morsel

    assert ROWS.apply(Morsels, schema={"n": "int64"}).count() == 5
    assert ROWS.apply(functools.partial(Doubled), schema={"n": "int64"}).count() == 5


def test_a_hint_counts_unless_somebody_says_more() -> None:
    assert node_of(ROWS.apply(Doubled, schema={"n": "int64"})).parallelism == 3
    assert node_of(ROWS.apply(Doubled, schema={"n": "int64"}).with_parallelism(2)).parallelism == 2
    assert node_of(ROWS.apply(Structural, schema={"n": "int64"})).parallelism is None
