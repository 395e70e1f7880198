# ruff: noqa: PLR0917  a rule has as many arguments as its formula
"""Every update rule once more, written out for one number in float64, or for a slice where a rule needs all of it.

`RULES[kind](optimizer, weights, state, gradients, rate, step)` returns the new weights and the new state, which is a
dictionary by the names of `optimizer.state`. `first_state` is what an id begins with.
"""

from __future__ import annotations

import math


def first_state(optimizer, dim: int) -> dict[str, list[float]]:
    begins = {
        "norm": getattr(optimizer, "initial_accumulator", 0.0),
        "grad_square_sum": getattr(optimizer, "initial_accumulator", 0.0),
        "beta1_power": getattr(optimizer, "beta1", 0.0),
        "beta2_power": getattr(optimizer, "beta2", 0.0),
    }
    sizes = {"dim": dim, 1: 1, 2: 1}
    return {name: [begins.get(name, 0.0)] * sizes[size] for name, size in optimizer.state}


def each(rule):
    """A rule for one weight: (optimizer, w, {name: value}, g, rate, step) -> (w, {name: value})."""

    def whole(optimizer, weights, state, gradients, rate, step):
        found = []
        for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
            own = {name: values[i if len(values) > 1 or len(weights) == 1 else 0] for name, values in state.items()}
            found.append(rule(optimizer, w, own, g, rate, step))
        after = {}
        for name, values in state.items():
            shared = dict(optimizer.state)[name] != "dim"
            after[name] = [found[0][1][name]] if shared else [found[i][1][name] for i in range(len(values))]
        return [w for w, _ in found], after

    return whole


def sgd(o, w, s, g, rate, step):
    return w - rate * g, s


def momentum(o, w, s, g, rate, step):
    n = o.momentum * s["n"] - rate * (g + o.weight_decay * w)
    moved = -o.momentum * s["n"] + (1 + o.momentum) * n if o.nesterov else n
    return w + moved, {"n": n}


def adagrad(o, w, s, g, rate, step):
    g = g + o.weight_decay * w
    n = s["norm"] + g * g
    return (w - rate * g / math.sqrt(n) if n > 0 else w), {"norm": n}


def dynamic_wd_adagrad(o, w, s, g, rate, step):
    decay = o.weight_decay
    if o.dynamic:
        share = math.exp(-max(0, step - s["last_update_step"]) / o.temperature)
        decay *= share if o.flip else 1 - share
    used = g if o.decoupled else g + decay * w
    n = s["norm"] + used * used
    moved = rate * used / math.sqrt(n) if n > 0 else 0.0
    if o.decoupled:
        moved += rate * decay * w
    return w - moved, {"norm": n, "last_update_step": max(step, s["last_update_step"])}


def adam(o, w, s, g, rate, step):
    g = g + o.weight_decay * w
    m = o.beta1 * s["m"] + (1 - o.beta1) * g
    v = o.beta2 * s["v"] + (1 - o.beta2) * g * g
    largest = max(v, s["vhat"]) if "vhat" in s else v
    corrected = rate * math.sqrt(1 - s["beta2_power"]) / (1 - s["beta1_power"])
    ahead = o.beta1 * m + (1 - o.beta1) * g if o.nesterov else m
    after = {"m": m, "v": v, "beta1_power": s["beta1_power"] * o.beta1, "beta2_power": s["beta2_power"] * o.beta2}
    if "vhat" in s:
        after["vhat"] = largest
    return w - corrected * ahead / (math.sqrt(largest) + o.epsilon), after


def adadelta(o, w, s, g, rate, step):
    g = g + o.weight_decay * w
    accum = o.averaging_ratio * s["accum"] + (1 - o.averaging_ratio) * g * g
    change = math.sqrt(s["accum_update"] + o.epsilon) / math.sqrt(accum + o.epsilon) * g
    update = o.averaging_ratio * s["accum_update"] + (1 - o.averaging_ratio) * change * change
    return w - rate * change, {"accum": accum, "accum_update": update}


def rmsprop(o, w, s, g, rate, step):
    g = g + o.weight_decay * w
    n = o.momentum * s["n"] + (1 - o.momentum) * g * g
    return w - rate * g / (math.sqrt(n) + 1), {"n": n}


def rmspropv2(o, w, s, g, rate, step):
    g = g + o.weight_decay * w
    n = o.momentum * s["n"] + g * g
    return w - rate * g / (math.sqrt(n) + 1), {"n": n}


def ftrl(o, w, s, g, rate, step):
    n = s["norm"] + g * g
    z = s["zero"] + g - (math.sqrt(n) - math.sqrt(s["norm"])) / rate * w
    if abs(z) <= o.l1:
        return 0.0, {"norm": n, "zero": z}
    below = (o.beta + math.sqrt(n)) / rate + o.l2
    return -(z - math.copysign(o.l1, z)) / below, {"norm": n, "zero": z}


def group_ftrl(o, weights, state, gradients, rate, step):
    norm = [n + g * g for n, g in zip(state["norm"], gradients, strict=True)]
    sigma = [(math.sqrt(a) - math.sqrt(b)) / rate for a, b in zip(norm, state["norm"], strict=True)]
    zero = [z + g - s * w for z, g, s, w in zip(state["zero"], gradients, sigma, weights, strict=True)]
    length = math.sqrt(sum(z * z for z in zero))
    after = {"norm": norm, "zero": zero}
    if length <= o.l1:
        return [0.0] * len(weights), after
    shrink = 1 - o.l1 / length
    return [-shrink * z / ((o.beta + math.sqrt(n)) / rate + o.l2) for z, n in zip(zero, norm, strict=True)], after


def group_adagrad(o, weights, state, gradients, rate, step):
    gradients = [g + o.weight_decay * w for g, w in zip(gradients, weights, strict=True)]
    total = state["grad_square_sum"][0] + max(g * g for g in gradients)
    after = {"grad_square_sum": [total]}
    own = rate / (o.beta + math.sqrt(total))
    z = [g - w / own for g, w in zip(gradients, weights, strict=True)]
    length = math.sqrt(sum(each * each for each in z))
    if length <= o.l2:
        return [0.0] * len(weights), after
    return [-own * (length - o.l2) / length * each for each in z], after


def moving_average(o, w, s, g, rate, step):
    return o.momentum * w + (1 - o.momentum) * g, s


def batch_softmax(o, w, s, g, rate, step):
    last = s["global_step"]
    return (1 - rate) * w + rate * max(0, step - last), {"global_step": max(step, last)}


RULES = {
    "sgd": each(sgd),
    "momentum": each(momentum),
    "adagrad": each(adagrad),
    "dynamic_wd_adagrad": each(dynamic_wd_adagrad),
    "adam": each(adam),
    "amsgrad": each(adam),
    "adadelta": each(adadelta),
    "rmsprop": each(rmsprop),
    "rmspropv2": each(rmspropv2),
    "ftrl": each(ftrl),
    "group_ftrl": group_ftrl,
    "group_adagrad": group_adagrad,
    "moving_average": each(moving_average),
    "batch_softmax": each(batch_softmax),
}
