"""Every optimizer against its rule written out for one number, over several steps, alone and beside other slices."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from shoal.core.errors import InvalidError
from shoal.tables.settings.initializers import Constant, Zeros
from shoal.tables.settings.optimizers import (
    OPTIMIZERS,
    Adadelta,
    Adagrad,
    Adam,
    Amsgrad,
    BatchSoftmax,
    DynamicWdAdagrad,
    Ftrl,
    GroupAdagrad,
    GroupFtrl,
    Momentum,
    MovingAverage,
    Rmsprop,
    RmspropV2,
    Sgd,
    state_arrays,
)
from shoal.tables.settings.rates import ExponentialRate, PolynomialRate
from shoal.tables.settings.table import SliceSettings, TableSettings
from shoal.tables.table import EmbeddingTable
from tests.unit.tables.scalar_rules import RULES, first_state

CASES = [
    Sgd(0.1),
    Momentum(0.1),
    Momentum(0.1, momentum=0.5, weight_decay=0.01, nesterov=True),
    Adagrad(0.1, initial_accumulator=1.0),
    Adagrad(0.1, initial_accumulator=0.0, weight_decay=0.05),
    DynamicWdAdagrad(0.1, weight_decay=0.1),
    DynamicWdAdagrad(0.1, weight_decay=0.1, decoupled=True),
    DynamicWdAdagrad(0.1, weight_decay=0.1, dynamic=True, temperature=3.0),
    DynamicWdAdagrad(0.1, weight_decay=0.1, dynamic=True, temperature=3.0, flip=True, decoupled=True),
    Adam(0.05),
    Adam(0.05, beta2=0.999, epsilon=1e-6, weight_decay=0.01, nesterov=True),
    Amsgrad(0.05),
    Amsgrad(0.05, weight_decay=0.01, nesterov=True),
    Adadelta(0.5),
    Adadelta(0.5, weight_decay=0.1),
    Rmsprop(0.1),
    Rmsprop(0.1, momentum=0.5, weight_decay=0.1),
    RmspropV2(0.1),
    RmspropV2(0.1, momentum=0.5, weight_decay=0.1),
    Ftrl(0.1),
    Ftrl(0.1, beta=1.0, l1=0.2, l2=0.1),
    Ftrl(0.1, l1=3.0),
    GroupFtrl(0.1),
    GroupFtrl(0.1, l1=0.5, l2=0.1),
    GroupFtrl(0.1, l1=50.0),
    GroupAdagrad(0.1),
    GroupAdagrad(0.1, beta=1.0, l2=0.5, weight_decay=0.1),
    GroupAdagrad(0.1, l2=1e4),
    MovingAverage(0.7),
    BatchSoftmax(0.3),
]
STEPS = 7


def test_every_optimizer_has_a_case_and_a_rule() -> None:
    assert {type(each) for each in CASES} == set(OPTIMIZERS)
    assert set(RULES) == {each.kind for each in OPTIMIZERS}


def states_of(table: EmbeddingTable, number: int) -> list[dict[str, list[float]]]:
    """The state of one slice, a line per id in the order of ids."""
    entries = next(table.entries())
    at = sum(sum(n for _, n in state_arrays(s.optimizer, s.dim)) for s in table.settings.slices[:number])
    found = []
    for line in entries.states[np.argsort(entries.ids)]:
        start, by_name = at, {}
        for (name, size), (_, kind) in zip(
            state_arrays(table.settings.slices[number].optimizer, table.settings.slices[number].dim),
            table.settings.slices[number].optimizer.state,
            strict=True,
        ):
            part = line[start : start + size]
            by_name[name] = [float(part.view(np.int64)[0])] if kind == 2 else [float(each) for each in part]
            start += size
        found.append(by_name)
    return found


def run(
    optimizer,
    dim: int,
    slices: tuple[SliceSettings, ...],
    number: int,
    begin: float,
    *,
    steps: tuple[int, ...] = tuple(range(2, 2 * STEPS + 2, 2)),
) -> None:
    generator = np.random.default_rng(7)
    table = EmbeddingTable(TableSettings(slices, shards=1))
    width = table.settings.dim
    start = sum(each.dim for each in slices[:number])
    weights, state = [begin] * dim, first_state(optimizer, dim)
    for time, step in enumerate(steps):
        gradient = generator.normal(size=width).astype(np.float32)
        if time == 2:
            gradient[:] = 0
        table.apply([42], gradient[None], step=step)
        own = [float(each) for each in gradient[start : start + dim]]
        rate = slices[number].rate_at(step)
        weights, state = RULES[optimizer.kind](optimizer, weights, state, own, rate, step)
        np.testing.assert_allclose(table.lookup([42])[0, start : start + dim], weights, rtol=2e-5, atol=2e-6)
        found = states_of(table, number)[0]
        assert found.keys() == state.keys()
        for name, values in state.items():
            np.testing.assert_allclose(found[name], values, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", CASES, ids=repr)
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_equals_the_scalar_rule(optimizer, dim: int) -> None:
    if isinstance(optimizer, BatchSoftmax):
        dim = 1
    run(optimizer, dim, (SliceSettings(dim, initializer=Constant(0.25), optimizer=optimizer),), 0, 0.25)


@pytest.mark.parametrize("optimizer", CASES, ids=repr)
def test_equals_the_scalar_rule_between_other_slices(optimizer) -> None:
    dim = 1 if isinstance(optimizer, BatchSoftmax) else 3
    slices = (
        SliceSettings(2, optimizer=Adam()),
        SliceSettings(dim, initializer=Zeros(), optimizer=optimizer),
        SliceSettings(1, optimizer=Ftrl()),
    )
    run(optimizer, dim, slices, 1, 0.0)


@pytest.mark.parametrize("optimizer", CASES, ids=repr)
def test_equals_the_scalar_rule_with_a_schedule(optimizer) -> None:
    """Also those that Monolith leaves at their first rate, such as RMSprop."""
    dim = 1 if isinstance(optimizer, BatchSoftmax) else 2
    falling = ExponentialRate(0.2, 0.5, 4)
    run(optimizer, dim, (SliceSettings(dim, initializer=Zeros(), optimizer=optimizer, learning_rate=falling),), 0, 0.0)


@pytest.mark.parametrize("optimizer", CASES, ids=repr)
def test_equals_the_scalar_rule_with_late_updates(optimizer) -> None:
    """Workers push at their own pace, so that an update may be of an earlier step than the one before it."""
    slices = (SliceSettings(1, initializer=Constant(0.25), optimizer=optimizer),)
    run(optimizer, 1, slices, 0, 0.25, steps=(1000, 400, 1001, 0, 1001, 2000))


@pytest.mark.parametrize("optimizer", CASES, ids=repr)
@pytest.mark.parametrize("dim", [1, 32])
def test_the_largest_gradients_keep_the_weights_finite(optimizer, dim: int) -> None:
    dim = 1 if isinstance(optimizer, BatchSoftmax) else dim
    table = EmbeddingTable(TableSettings((SliceSettings(dim, optimizer=optimizer),)))
    for step, size in enumerate((1e15, -1e15, 1.0, 1e15, 0.0, -1.0)):
        table.apply([1], np.full((1, dim), size), step=step)
        assert np.isfinite(table.lookup([1])).all()
    assert len(table) == 1


def test_a_gradient_of_zero_on_an_empty_accumulator_changes_nothing() -> None:
    for optimizer in (Adagrad(initial_accumulator=0.0), GroupAdagrad(initial_accumulator=0.0), GroupFtrl(beta=0.0)):
        table = EmbeddingTable(TableSettings((SliceSettings(2, initializer=Zeros(), optimizer=optimizer),)))
        table.apply([1], [[0.0, 0.0]])
        assert table.lookup([1]).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("optimizer", [Ftrl(), GroupFtrl(), GroupAdagrad(), Adagrad(), Adam(), Sgd()], ids=repr)
def test_a_rate_of_zero_keeps_the_weights_finite(optimizer) -> None:
    slices = (SliceSettings(2, optimizer=optimizer, learning_rate=PolynomialRate(0.0, 0.1, 10)),)
    table = EmbeddingTable(TableSettings(slices))
    table.apply([1], [[1.0, -1.0]], step=0)
    before = table.lookup([1])
    assert np.isfinite(before).all()
    table.apply([1], [[1.0, -1.0]], step=5)
    assert np.isfinite(table.lookup([1])).all()
    assert not np.array_equal(table.lookup([1]), before)


def test_l1_shrinks_both_signs_alike() -> None:
    table = EmbeddingTable(TableSettings((SliceSettings(2, initializer=Zeros(), optimizer=Ftrl(0.1, l1=0.3)),)))
    table.apply([1], [[1.0, -1.0]])
    first, second = table.lookup([1])[0]
    assert first == -second != 0


def test_gradients_of_one_id_are_added_up_before_the_update() -> None:
    settings = TableSettings((SliceSettings(2, initializer=Zeros(), optimizer=Adagrad(0.1, initial_accumulator=1.0)),))
    once, twice = EmbeddingTable(settings), EmbeddingTable(settings)
    assert once.apply([9], [[1.0, 2.0]]) == 1
    assert twice.apply([9, 9], [[0.25, 0.5], [0.75, 1.5]]) == 1
    np.testing.assert_allclose(once.lookup([9])[0], [-0.07071067, -0.08944272], rtol=1e-6)
    assert np.array_equal(once.lookup([9]), twice.lookup([9]))


def test_schedules_are_asked_with_the_step() -> None:
    warm = PolynomialRate(0.0, 0.1, 10)
    assert [warm.at(0), warm.at(5), warm.at(10), warm.at(99)] == pytest.approx([0.0, 0.05, 0.1, 0.1])
    falling = ExponentialRate(1.0, 0.5, 10, staircase=True)
    assert [falling.at(9), falling.at(10), falling.at(25)] == pytest.approx([1.0, 0.5, 0.25])
    smooth = ExponentialRate(1.0, 0.5, 10)
    assert smooth.at(5) == pytest.approx(math.sqrt(0.5))
    table = EmbeddingTable(
        TableSettings((SliceSettings(1, initializer=Zeros(), optimizer=Sgd(9.0), learning_rate=warm),))
    )
    table.apply([1], [[1.0]], step=5)
    assert table.lookup([1])[0, 0] == pytest.approx(-0.05)


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.kind)
def test_parameters_out_of_range_are_named(kind) -> None:
    for field in dataclasses.fields(kind):
        if field.type == "bool":
            continue
        broken = kind(**{field.name: -1.0})
        with pytest.raises(InvalidError, match=field.name):
            TableSettings((SliceSettings(1, optimizer=broken),)).check()
