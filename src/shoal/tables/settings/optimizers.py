"""Optimizers of slices. Defaults are those of Monolith's configuration.

`parameters` has what a kernel needs, in its order. `state` names the arrays that an optimizer keeps for each id and how
long each is; `dim` stands for the size of the slice, and `STEP` for a whole number that takes the room of two floats.
`shoal.tables.kernels.optimizers` has the rules, docs/tables.md the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from shoal.core.shape import Range

Rate = Annotated[float, Range(0.0, 1e6)]
Share = Annotated[float, Range(0.0, 1.0)]
Amount = Annotated[float, Range(0.0, 1e30)]
Positive = Annotated[float, Range(1e-30, 1e30)]
STEP = 2

#: Name and length of an array of state; a length of "dim" is the size of the slice.
State = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class Sgd:
    """Weight - rate × gradient."""

    kind: ClassVar[str] = "sgd"
    state: ClassVar[State] = ()
    learning_rate: Rate = 0.01

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return ()


@dataclass(frozen=True, slots=True)
class Momentum:
    """SGD with a velocity, optionally looking ahead (Nesterov)."""

    kind: ClassVar[str] = "momentum"
    state: ClassVar[State] = (("n", "dim"),)
    learning_rate: Rate = 0.01
    momentum: Share = 0.9
    weight_decay: Amount = 0.0
    nesterov: bool = False

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return self.momentum, self.weight_decay, float(self.nesterov)


@dataclass(frozen=True, slots=True)
class Adagrad:
    """Each weight has a rate that falls with the squares of its gradients."""

    kind: ClassVar[str] = "adagrad"
    state: ClassVar[State] = (("norm", "dim"),)
    learning_rate: Rate = 0.001
    initial_accumulator: Amount = 0.1
    weight_decay: Amount = 0.0

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return self.initial_accumulator, self.weight_decay


@dataclass(frozen=True, slots=True)
class DynamicWdAdagrad:
    """Adagrad whose weight decay may be decoupled, and may depend on the steps since the id was last seen.

    With `dynamic`, the decay is multiplied by 1 - exp(-steps/`temperature`): little for an id that is seen often, all
    of it for a rare one. `flip` exchanges the two.
    """

    kind: ClassVar[str] = "dynamic_wd_adagrad"
    state: ClassVar[State] = (("norm", "dim"), ("last_update_step", STEP))
    learning_rate: Rate = 0.001
    initial_accumulator: Amount = 0.1
    weight_decay: Amount = 0.0
    decoupled: bool = False
    dynamic: bool = False
    temperature: Positive = 1.0
    flip: bool = False

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        flags = (float(self.decoupled), float(self.dynamic), self.temperature, float(self.flip))
        return (self.initial_accumulator, self.weight_decay, *flags)


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam with bias correction for each id, counted in its own updates."""

    kind: ClassVar[str] = "adam"
    state: ClassVar[State] = (("m", "dim"), ("v", "dim"), ("beta1_power", 1), ("beta2_power", 1))
    learning_rate: Rate = 0.01
    beta1: Annotated[float, Range(0.0, 0.999999)] = 0.9
    beta2: Annotated[float, Range(0.0, 0.999999)] = 0.99
    epsilon: Positive = 0.01
    weight_decay: Amount = 0.0
    nesterov: bool = False

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return self.beta1, self.beta2, self.epsilon, self.weight_decay, float(self.nesterov)


@dataclass(frozen=True, slots=True)
class Amsgrad:
    """Adam that divides by the largest second moment so far."""

    kind: ClassVar[str] = "amsgrad"
    state: ClassVar[State] = (("m", "dim"), ("v", "dim"), ("vhat", "dim"), ("beta1_power", 1), ("beta2_power", 1))
    learning_rate: Rate = 0.01
    beta1: Annotated[float, Range(0.0, 0.999999)] = 0.9
    beta2: Annotated[float, Range(0.0, 0.999999)] = 0.99
    epsilon: Positive = 0.01
    weight_decay: Amount = 0.0
    nesterov: bool = False

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return self.beta1, self.beta2, self.epsilon, self.weight_decay, float(self.nesterov)


@dataclass(frozen=True, slots=True)
class Adadelta:
    """Steps in the unit of the weights: the ratio of two moving averages."""

    kind: ClassVar[str] = "adadelta"
    state: ClassVar[State] = (("accum", "dim"), ("accum_update", "dim"))
    learning_rate: Rate = 0.01
    averaging_ratio: Share = 0.9
    epsilon: Positive = 0.01
    weight_decay: Amount = 0.0

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return self.averaging_ratio, self.epsilon, self.weight_decay


@dataclass(frozen=True, slots=True)
class Rmsprop:
    """Divides by 1 + the root of a moving average of squares."""

    kind: ClassVar[str] = "rmsprop"
    state: ClassVar[State] = (("n", "dim"),)
    learning_rate: Rate = 0.01
    momentum: Share = 0.9
    weight_decay: Amount = 0.0

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return self.momentum, self.weight_decay


@dataclass(frozen=True, slots=True)
class RmspropV2:
    """As RMSprop, but the squares are summed with decay, not averaged."""

    kind: ClassVar[str] = "rmspropv2"
    state: ClassVar[State] = (("n", "dim"),)
    learning_rate: Rate = 0.01
    momentum: Share = 0.9
    weight_decay: Amount = 0.0

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return self.momentum, self.weight_decay


@dataclass(frozen=True, slots=True)
class Ftrl:
    """Follow the regularized leader: weights whose |z| is at most `l1` are 0."""

    kind: ClassVar[str] = "ftrl"
    state: ClassVar[State] = (("norm", "dim"), ("zero", "dim"))
    learning_rate: Rate = 0.01
    initial_accumulator: Amount = 0.1
    beta: Amount = 0.0
    l1: Amount = 0.0
    l2: Amount = 0.0

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return self.initial_accumulator, self.beta, self.l1, self.l2


@dataclass(frozen=True, slots=True)
class GroupFtrl:
    """FTRL in which the whole slice is 0 when the length of z is at most `l1`, and shrinks together otherwise."""

    kind: ClassVar[str] = "group_ftrl"
    state: ClassVar[State] = (("norm", "dim"), ("zero", "dim"))
    learning_rate: Rate = 0.01
    initial_accumulator: Amount = 0.0
    beta: Amount = 1.0
    l1: Amount = 0.0
    l2: Amount = 0.0

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return self.initial_accumulator, self.beta, self.l1, self.l2


@dataclass(frozen=True, slots=True)
class GroupAdagrad:
    """Adagrad with one accumulator for the slice, and a group lasso of `l2` that makes whole slices 0."""

    kind: ClassVar[str] = "group_adagrad"
    state: ClassVar[State] = (("grad_square_sum", 1),)
    learning_rate: Rate = 0.01
    initial_accumulator: Amount = 0.1
    beta: Amount = 0.0
    l2: Amount = 0.0
    weight_decay: Amount = 0.0

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return self.initial_accumulator, self.beta, self.l2, self.weight_decay


@dataclass(frozen=True, slots=True)
class MovingAverage:
    """The "gradient" is a value, and the weight its moving average."""

    kind: ClassVar[str] = "moving_average"
    state: ClassVar[State] = ()
    learning_rate: ClassVar[float] = 0.0
    momentum: Share = 0.9

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return (self.momentum,)


@dataclass(frozen=True, slots=True)
class BatchSoftmax:
    """A moving average of the steps between two updates of an id, for sampling corrections. One weight only."""

    kind: ClassVar[str] = "batch_softmax"
    state: ClassVar[State] = (("global_step", STEP),)
    learning_rate: Annotated[float, Range(0.0, 1.0)] = 0.1

    def parameters(self) -> tuple[float, ...]:
        """For the kernel."""
        return ()


Optimizer = (
    Sgd
    | Adagrad
    | Momentum
    | DynamicWdAdagrad
    | Adam
    | Amsgrad
    | Adadelta
    | Rmsprop
    | RmspropV2
    | Ftrl
    | GroupFtrl
    | GroupAdagrad
    | MovingAverage
    | BatchSoftmax
)
#: In the order of the numbers in `shoal.tables.kernels.optimizers`.
OPTIMIZERS: tuple[type[Optimizer], ...] = (
    Sgd,
    Adagrad,
    Momentum,
    DynamicWdAdagrad,
    Adam,
    Amsgrad,
    Adadelta,
    Rmsprop,
    RmspropV2,
    Ftrl,
    GroupFtrl,
    GroupAdagrad,
    MovingAverage,
    BatchSoftmax,
)


def state_arrays(optimizer: Optimizer, dim: int) -> tuple[tuple[str, int], ...]:
    """Name and length of each array of state for a slice of this size."""
    return tuple((name, dim if isinstance(size, str) else size) for name, size in optimizer.state)


def state_size(optimizer: Optimizer, dim: int) -> int:
    """Floats of state for a slice of this size."""
    return sum(size for _, size in state_arrays(optimizer, dim))
