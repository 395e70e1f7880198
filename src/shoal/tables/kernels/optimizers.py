"""The update rules. Each takes the weights, the state and the gradient of one slice of one row.

`OPTIMIZERS` in `shoal.tables.optimizers` describes what the parameters are and how much state a rule has;
`tests/unit/tables/scalar_rules.py` has each of them once more, written out for one number. All arithmetic is float32. A
rule never divides by zero: where an accumulator or a learning rate is 0, the weight stays as it is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shoal.tables.kernels.access import floats_at, ints_at
from shoal.tables.kernels.compiling import helper
from shoal.tables.kernels.hashing import draw, draw_normal
from shoal.tables.kernels.places import (
    F_INITIALIZER,
    F_OPTIMIZER,
    P_DIM,
    P_INITIALIZER,
    P_OPTIMIZER,
    P_STATE,
    P_WEIGHTS,
)

(
    SGD,
    ADAGRAD,
    MOMENTUM,
    DYNAMIC_ADAGRAD,
    ADAM,
    AMSGRAD,
    ADADELTA,
    RMSPROP,
    RMSPROP_V2,
    FTRL,
    GROUP_FTRL,
    GROUP_ADAGRAD,
    MOVING_AVERAGE,
    BATCH_SOFTMAX,
) = range(14)

CONSTANT, UNIFORM, NORMAL, TRUNCATED = range(4)

_0, _1 = np.float32(0), np.float32(1)
_LOW = np.int64(0xFFFFFFFF)


@helper
def _root(value: Any) -> Any:
    return np.float32(math.sqrt(value))


@helper
def _get_step(address: int) -> int:
    """A whole number that takes two floats of the state."""
    parts = ints_at(address, 2)
    return (np.int64(parts[1]) << 32) | (np.int64(parts[0]) & _LOW)


@helper
def _set_step(address: int, step: int) -> None:
    parts = ints_at(address, 2)
    parts[0] = np.int32(step & _LOW)
    parts[1] = np.int32(step >> 32)


@helper
def _pass_step(address: int, step: int) -> int:
    """Note the step of an update. Returns the steps since the last one; 0 for a late update, of an earlier step."""
    last = max(np.int64(0), _get_step(address))  # what a dump says may be anything
    if step <= last:
        return np.int64(0)
    _set_step(address, step)
    return step - last


@helper
def _sgd(w: Any, g: Any, rate: Any) -> None:
    for i in range(w.size):
        w[i] -= rate * g[i]


@helper
def _adagrad(w: Any, s: Any, g: Any, rate: Any, decay: Any) -> None:
    for i in range(w.size):
        grad = g[i] + decay * w[i]
        total = s[i] + grad * grad
        s[i] = total
        w[i] -= rate * grad / _root(total) if total > _0 else _0


@helper
def _momentum(w: Any, s: Any, g: Any, rate: Any, p: Any) -> None:
    keep, decay, nesterov = p[0], p[1], p[2] != _0
    for i in range(w.size):
        before = s[i]
        speed = keep * before - rate * (g[i] + decay * w[i])
        s[i] = speed
        w[i] += (_1 + keep) * speed - keep * before if nesterov else speed


@helper
def _dynamic_adagrad(w: Any, s: Any, g: Any, rate: Any, p: Any, address: int, step: int) -> None:
    decay, decoupled = p[1], p[2] != _0
    last = address + np.int64(w.size) * 4
    passed = _pass_step(last, step)
    if p[3] != _0:
        share = math.exp(-np.float64(passed) / np.float64(p[4]))
        decay *= np.float32(share if p[5] != _0 else 1.0 - share)
    for i in range(w.size):
        weight = w[i]
        grad = g[i] if decoupled else g[i] + decay * weight
        total = s[i] + grad * grad
        s[i] = total
        change = rate * grad / _root(total) if total > _0 else _0
        w[i] = weight - change - (rate * decay * weight if decoupled else _0)


@helper
def _adam(w: Any, s: Any, g: Any, rate: Any, p: Any, largest: bool) -> None:
    beta1, beta2, epsilon, decay, nesterov = p[0], p[1], p[2], p[3], p[4] != _0
    size = w.size
    powers = size * 3 if largest else size * 2
    step = rate * _root(_1 - s[powers + 1]) / (_1 - s[powers])
    for i in range(size):
        grad = g[i] + decay * w[i]
        mean = s[i] + (grad - s[i]) * (_1 - beta1)
        square = s[size + i] + (grad * grad - s[size + i]) * (_1 - beta2)
        s[i] = mean
        s[size + i] = square
        if largest:
            square = max(square, s[2 * size + i])
            s[2 * size + i] = square
        ahead = grad * (_1 - beta1) + beta1 * mean if nesterov else mean
        w[i] -= ahead * step / (_root(square) + epsilon)
    s[powers] *= beta1
    s[powers + 1] *= beta2


@helper
def _adadelta(w: Any, s: Any, g: Any, rate: Any, p: Any) -> None:
    ratio, epsilon, decay = p[0], p[1], p[2]
    size = w.size
    for i in range(size):
        grad = g[i] + decay * w[i]
        square = s[i] * ratio + grad * grad * (_1 - ratio)
        change = _root(s[size + i] + epsilon) / _root(square + epsilon) * grad
        s[i] = square
        s[size + i] = s[size + i] * ratio + change * change * (_1 - ratio)
        w[i] -= rate * change


@helper
def _rmsprop(w: Any, s: Any, g: Any, rate: Any, p: Any, share: Any) -> None:
    keep, decay = p[0], p[1]
    for i in range(w.size):
        grad = g[i] + decay * w[i]
        square = keep * s[i] + share * grad * grad
        s[i] = square
        w[i] -= rate * grad / (_root(square) + _1)


@helper
def _ftrl(w: Any, s: Any, g: Any, rate: Any, p: Any, grouped: bool) -> None:
    beta, l1, l2 = p[1], p[2], p[3]
    size = w.size
    if rate <= _0:
        return
    length = _0
    for i in range(size):
        before = s[i]
        total = before + g[i] * g[i]
        z = s[size + i] + g[i] - (_root(total) - _root(before)) / rate * w[i]
        s[i] = total
        s[size + i] = z
        length += z * z
    length = _root(length)
    for i in range(size):
        z = s[size + i]
        if grouped:
            short = length <= l1
            z *= _0 if short else _1 - l1 / length
        else:
            short = abs(z) <= l1
            z -= l1 if z > _0 else -l1
        below = (_root(s[i]) + beta) / rate + l2
        w[i] = _0 if short or below <= _0 else -z / below


@helper
def _group_adagrad(w: Any, s: Any, g: Any, rate: Any, p: Any) -> None:
    beta, l2, decay = p[1], p[2], p[3]
    largest = _0
    for i in range(w.size):
        grad = g[i] + decay * w[i]
        largest = max(largest, grad * grad)
    s[0] += largest
    below = beta + _root(s[0])
    if rate <= _0 or below <= _0:
        return
    step = rate / below
    length = _0
    for i in range(w.size):
        z = g[i] + decay * w[i] - w[i] / step
        w[i] = z
        length += z * z
    length = _root(length)
    shrink = _0 if length <= l2 or length <= _0 else -step * (_1 - l2 / length)
    for i in range(w.size):
        w[i] *= shrink


@helper
def _moving_average(w: Any, g: Any, p: Any) -> None:
    for i in range(w.size):
        w[i] = p[0] * w[i] + (_1 - p[0]) * g[i]


@helper
def _batch_softmax(w: Any, rate: Any, address: int, step: int) -> None:
    w[0] = (_1 - rate) * w[0] + rate * np.float32(_pass_step(address, step))


@helper
def update_row(row: int, plan: Any, parameters: Any, gradient: int, rates: Any, step: int) -> None:
    """Apply one gradient, which lies at an address, to every slice of a row."""
    for slice_number in range(plan.shape[0]):
        size = plan[slice_number, P_DIM]
        w = floats_at(row + plan[slice_number, P_WEIGHTS] * 4, size)
        g = floats_at(gradient + plan[slice_number, P_WEIGHTS] * 4, size)
        address = row + plan[slice_number, P_STATE] * 4
        s = floats_at(address, size * 3 + 2)
        p = parameters[slice_number, F_OPTIMIZER:F_INITIALIZER]
        rate = rates[slice_number]
        rule = plan[slice_number, P_OPTIMIZER]
        if rule == ADAGRAD:
            _adagrad(w, s, g, rate, p[1])
        elif rule == SGD:
            _sgd(w, g, rate)
        elif rule == ADAM or rule == AMSGRAD:
            _adam(w, s, g, rate, p, rule == AMSGRAD)
        elif rule == FTRL or rule == GROUP_FTRL:
            _ftrl(w, s, g, rate, p, rule == GROUP_FTRL)
        elif rule == MOMENTUM:
            _momentum(w, s, g, rate, p)
        elif rule == DYNAMIC_ADAGRAD:
            _dynamic_adagrad(w, s, g, rate, p, address, step)
        elif rule == ADADELTA:
            _adadelta(w, s, g, rate, p)
        elif rule == RMSPROP:
            _rmsprop(w, s, g, rate, p, _1 - p[0])
        elif rule == RMSPROP_V2:
            _rmsprop(w, s, g, rate, p, _1)
        elif rule == GROUP_ADAGRAD:
            _group_adagrad(w, s, g, rate, p)
        elif rule == MOVING_AVERAGE:
            _moving_average(w, g, p)
        else:
            _batch_softmax(w, rate, address, step)


@helper
def _fill_weights(w: Any, kind: int, p: Any, seed: int, key: int, start: int) -> None:
    for i in range(w.size):
        if kind == CONSTANT:
            w[i] = p[0]
        elif kind == UNIFORM:
            w[i] = p[0] + (p[1] - p[0]) * np.float32(draw(seed, key, start + i))
        else:
            bound = 2.0 if kind == TRUNCATED else 0.0
            w[i] = p[0] + p[1] * np.float32(draw_normal(seed, key, start + i, bound))


@helper
def _fill_state(s: Any, size: int, rule: int, p: Any) -> None:
    accumulates = rule == ADAGRAD or rule == DYNAMIC_ADAGRAD or rule == FTRL or rule == GROUP_FTRL
    for i in range(s.size):
        s[i] = p[0] if (accumulates and i < size) or rule == GROUP_ADAGRAD else _0
    if rule == ADAM or rule == AMSGRAD:
        powers = s.size - 2
        s[powers], s[powers + 1] = p[0], p[1]


@helper
def fill_row(row: int, plan: Any, parameters: Any, state_end: int, seed: int, key: int) -> None:
    """Write the first weights and the first state of an id. They depend on the id, the seed and the settings only."""
    for slice_number in range(plan.shape[0]):
        size, start = plan[slice_number, P_DIM], plan[slice_number, P_WEIGHTS]
        p = parameters[slice_number]
        kind = plan[slice_number, P_INITIALIZER]
        _fill_weights(floats_at(row + start * 4, size), kind, p[F_INITIALIZER:], seed, key, start)
        end = plan[slice_number + 1, P_STATE] if slice_number + 1 < plan.shape[0] else state_end
        state = plan[slice_number, P_STATE]
        _fill_state(floats_at(row + state * 4, end - state), size, plan[slice_number, P_OPTIMIZER], p)
