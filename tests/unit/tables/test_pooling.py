"""Pooling and the fused layout: forward against plain sums, gradients against finite differences and the plain path."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.tables.fused import Combine, Feature, FusedLayout, FusedOutput, Ragged, Slice
from shoal.tables.pooling import Pooling, pool, pool_gradient

LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=6)


def plain(rows: np.ndarray, pooling: Pooling, length: int) -> np.ndarray:
    """One example, written out."""
    if pooling is Pooling.FIRST_N:
        padded = np.zeros((length, rows.shape[1]), np.float32)
        padded[: min(length, len(rows))] = rows[:length]
        return padded
    total = np.zeros(rows.shape[1], np.float32)
    for row in rows:
        total = total + row
    return total / len(rows) if pooling is Pooling.MEAN and len(rows) else total


@pytest.mark.parametrize("pooling", Pooling)
@given(lengths=LENGTHS)
def test_pooling_equals_the_plain_sums(pooling: Pooling, lengths: list[int]) -> None:
    splits = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.random.default_rng(3).normal(size=(splits[-1], 3)).astype(np.float32)
    length = 2 if pooling is Pooling.FIRST_N else 0
    found = pool(rows, splits, pooling, length=length)
    expected = [plain(rows[a:b], pooling, length) for a, b in itertools.pairwise(splits)]
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-6)


@pytest.mark.parametrize("pooling", Pooling)
@given(lengths=LENGTHS)
def test_the_gradient_is_exact(pooling: Pooling, lengths: list[int]) -> None:
    splits = np.concatenate([[0], np.cumsum(lengths)])
    generator = np.random.default_rng(4)
    rows = generator.normal(size=(splits[-1], 2)).astype(np.float32)
    length = 3 if pooling is Pooling.FIRST_N else 0
    out = pool(rows, splits, pooling, length=length)
    weights = generator.normal(size=out.shape).astype(np.float32)
    found = pool_gradient(weights, splits, pooling, length=length)
    assert found.shape == rows.shape
    # Pooling is linear: <weights, pool(rows)> = <pool_gradient(weights), rows>, for every direction of rows.
    for row in range(rows.shape[0]):
        for column in range(2):
            direction = np.zeros_like(rows)
            direction[row, column] = 1.0
            expected = float((weights * pool(direction, splits, pooling, length=length)).sum())
            assert found[row, column] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pool([[1.0]], [0, 2], Pooling.SUM), "splits: must begin at 0"),
        (lambda: pool([[1.0]], [1, 1], Pooling.SUM), "splits: must begin at 0"),
        (lambda: pool([[1.0]], [0, 1, 0], Pooling.SUM), "splits: must begin at 0"),
        (lambda: pool([[1.0]], [], Pooling.SUM), "splits: must be an array"),
        (lambda: pool([1.0], [0, 1], Pooling.SUM), "rows: must have two dimensions"),
        (lambda: pool([[1.0]], [0, 1], Pooling.FIRST_N), "length: must be between"),
        (lambda: pool_gradient([[1.0]], [0, 1], Pooling.FIRST_N, length=1), "gradient: must have 3 dimensions"),
        (lambda: pool_gradient([[1.0]], [0, 1, 1], Pooling.SUM), "gradient: must have 2 lines"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        call()


# ---------------------------------------------------------------------------------------------------------
# The fused layout

FEATURES = {
    "user": Feature("users", (1, 2, 4)),
    "item": Feature("items", (2, 2), Pooling.MEAN),
    "tags": Feature("items", (1, 3), Pooling.MEAN),
    "ad": Feature("users", (3, 4)),
    "seen": Feature("items", (4,), Pooling.FIRST_N, 3),
    "kept": Feature("users", (7,), Pooling.FIRST_N, 3),
}
POOLED = (Slice("user", 1, 3), Slice("item", 0, 2), Slice("item", 2, 4), Slice("ad", 5, 7), Slice("tags", 0, 2))
SEQUENCES = (Slice("seen", 0, 2), Slice("kept", 5, 7), Slice("seen", 1, 3))
OUTPUTS = {
    **{f"pooled_{each.name.lower()}": FusedOutput(POOLED, each) for each in Combine},
    **{f"sequence_{each.name.lower()}": FusedOutput(SEQUENCES, each) for each in Combine},
    "wide": FusedOutput((Slice("user", 0, 7), Slice("tags", 1, 4), Slice("ad", 0, 1)), Combine.CONCAT),
    "mixed": FusedOutput((Slice("user", 0, 1), Slice("seen", 0, 4), Slice("item", 0, 4)), Combine.NONE),
    "alone": FusedOutput((Slice("kept", 2, 3),), Combine.CONCAT),
}


def batch_of(generator: np.random.Generator, examples: int, shared: frozenset[str]) -> dict[str, Ragged]:
    found = {}
    for name in FEATURES:
        lengths = generator.integers(0, 5, 1 if name in shared else examples)
        ids = generator.integers(-20, 20, lengths.sum())
        found[name] = Ragged(ids, np.concatenate([[0], np.cumsum(lengths)]), name in shared)
    return found


def plain_outputs(batch: dict[str, Ragged], tables: dict[str, dict[int, np.ndarray]], examples: int) -> dict:
    """Look up, pool, cut and put together, one feature after the other."""
    pooled = {}
    for name, feature in FEATURES.items():
        rows = [tables[feature.table][int(each)] for each in batch[name].ids]
        rows = np.array(rows, np.float32).reshape(len(rows), sum(feature.slice_dims))
        each = pool(rows, batch[name].splits, feature.pooling, length=feature.length)
        pooled[name] = np.repeat(each, examples, axis=0) if batch[name].shared else each
    found = {}
    for name, output in OUTPUTS.items():
        parts = [pooled[each.feature][..., each.start : each.end] for each in output.slices]
        match output.combine:
            case Combine.NONE:
                found[name] = tuple(parts)
            case Combine.CONCAT:
                found[name] = (np.concatenate(parts, axis=-1),)
            case Combine.STACK:
                found[name] = (np.stack(parts, axis=1),)
            case Combine.ADD_N:
                found[name] = (sum(parts),)
    return found


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
@pytest.mark.parametrize("shared", [frozenset(), frozenset({"user", "seen"}), frozenset(FEATURES)], ids=len)
def test_the_fused_layout_equals_the_plain_path(servers: int, shared: frozenset[str]) -> None:
    generator = np.random.default_rng(servers)
    examples = 6
    batch = batch_of(generator, examples, shared)
    layout = FusedLayout(FEATURES, OUTPUTS, servers=servers)
    widths = {"users": 7, "items": 4}
    tables = {
        name: {each: generator.normal(size=width).astype(np.float32) for each in range(-20, 20)}
        for name, width in widths.items()
    }
    plan = layout.plan(batch, examples=examples)
    for table, parts in plan.ids.items():
        assert len(parts) == servers
        asked = {int(each) for name in batch if FEATURES[name].table == table for each in batch[name].ids}
        assert sorted(int(each) for part in parts for each in part) == sorted(asked)
        for server, part in enumerate(parts):
            assert all(each % servers == server for each in part.tolist())
    rows = {
        name: tuple(
            np.array([tables[name][int(each)] for each in part], np.float32).reshape(-1, widths[name]) for part in parts
        )
        for name, parts in plan.ids.items()
    }
    found, expected = layout.forward(plan, rows), plain_outputs(batch, tables, examples)
    assert found.keys() == expected.keys()
    for name in expected:
        assert len(found[name]) == len(expected[name])
        for mine, theirs in zip(found[name], expected[name], strict=True):
            assert mine.shape == theirs.shape, name
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=name)

    # Every output is linear in the rows, so that its gradient is known from what each id alone contributes.
    gradients = {
        name: tuple(generator.normal(size=each.shape).astype(np.float32) for each in parts)
        for name, parts in found.items()
    }
    sums = layout.backward(plan, gradients)
    for table, parts in plan.ids.items():
        for server, part in enumerate(parts):
            assert sums[table][server].shape == (part.size, widths[table])
            for line, each in enumerate(part[:3].tolist()):
                for column in (0, widths[table] - 1):
                    direction = {name: {key: np.zeros(widths[name]) for key in tables[name]} for name in tables}
                    direction[table][each][column] = 1.0
                    alone = plain_outputs(batch, direction, examples)
                    expected_sum = sum(
                        float((weights * values).sum())
                        for name in alone
                        for weights, values in zip(gradients[name], alone[name], strict=True)
                    )
                    assert sums[table][server][line, column] == pytest.approx(expected_sum, rel=1e-4, abs=1e-5)


def test_every_way_to_combine_meets_every_pooling() -> None:
    met = {(output.combine, FEATURES[each.feature].pooling) for output in OUTPUTS.values() for each in output.slices}
    assert met == set(itertools.product(Combine, Pooling))


def test_bad_layouts_and_batches() -> None:
    with pytest.raises(InvalidError) as caught:
        FusedLayout(
            {"a": Feature("t", (2,)), "b": Feature("t", (3,)), "c": Feature("u", (), Pooling.FIRST_N)},
            {
                "x": FusedOutput((Slice("a", 0, 3), Slice("no", 0, 1))),
                "y": FusedOutput((Slice("a", 0, 1), Slice("a", 0, 2)), Combine.STACK),
                "z": FusedOutput(()),
            },
            servers=0,
        )
    assert {each.field for each in caught.value.problems} == {
        "b.slice_dims",
        "c.slice_dims",
        "c.length",
        "x.slices[0]",
        "x.slices[1].feature",
        "y.slices",
        "z.slices",
        "servers",
    }
    layout = FusedLayout({"a": Feature("t", (2,)), "b": Feature("t", (2,))}, {"x": FusedOutput((Slice("a", 0, 2),))})
    one, shared = (Ragged(np.array([1]), np.array([0, 1]), shared=shared) for shared in (False, True))
    with pytest.raises(InvalidError, match="b: is missing from the batch"):
        layout.plan({"a": one})
    with pytest.raises(InvalidError, match="as many examples"):
        layout.plan({"a": one, "b": Ragged(np.array([1]), np.array([0, 1, 1]))})
    with pytest.raises(InvalidError, match="splits: must be of one example"):
        layout.plan({"a": one, "b": Ragged(np.array([1]), np.array([0, 1, 1]), shared=True)})
    with pytest.raises(InvalidError, match="as many examples in every feature, which are 2"):
        layout.plan({"a": one, "b": one}, examples=2)
    with pytest.raises(InvalidError, match="examples: must be given, because every feature is shared"):
        layout.plan({"a": shared, "b": shared})
    with pytest.raises(InvalidError, match="which are -1"):
        layout.plan({"a": shared, "b": shared}, examples=-1)
    plan = layout.plan({"a": one, "b": one})
    with pytest.raises(InvalidError, match=r"rows.t: must have the shapes \[\(1, 2\)\]"):
        layout.forward(plan, {"t": (np.zeros((2, 2)),)})
    with pytest.raises(InvalidError, match=r"gradients.x: must have the shapes"):
        layout.backward(plan, {"x": (np.zeros((1, 3)),)})
    with pytest.raises(InvalidError, match=r"gradients.q: is not an output"):
        layout.backward(plan, {"q": ()})


@pytest.mark.parametrize("examples", [0, 1, 3])
def test_a_batch_of_shared_features_has_as_many_examples_as_it_is_told(examples: int) -> None:
    layout = FusedLayout({"a": Feature("t", (2,))}, {"x": FusedOutput((Slice("a", 0, 2),))})
    plan = layout.plan({"a": Ragged(np.array([1]), np.array([0, 1]), shared=True)}, examples=examples)
    (found,) = layout.forward(plan, {"t": (np.array([[1.0, 2.0]]),)})["x"]
    assert found.tolist() == [[1.0, 2.0]] * examples
    (gradient,) = layout.backward(plan, {"x": (np.ones((examples, 2)),)})["t"]
    assert gradient.tolist() == [[examples, examples]]
