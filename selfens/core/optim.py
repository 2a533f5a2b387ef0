"""Optimizers over one flat tensor.

All trainable parameters become views into a single tensor, so a step takes a handful of operations however many layers
there are. Values that change during training (`rates`) are 0-d tensors filled in place, so a compiled or captured step sees
the new ones. Learning-rate multipliers and weight decay are vectors over the flat tensor.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from selfens.errors import ConfigError, listed

_FLAT: Any = WeakTensorKeyDictionary()
"""Maps each parameter to the tensor it is a view of. (An attribute would be pickled with the parameter.)"""


def flatten(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Flatten `parameters` into one tensor and make each a view of it. Return the existing tensor if they share one."""
    if not parameters:
        raise ConfigError("the network has no trainable parameters; nothing could be learned.")
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
    if kinds != {(torch.float32, parameters[0].device)}:
        raise ConfigError(f"the network's parameters are of {kinds}; expected float32, all on one device.")
    sizes = [parameter.numel() for parameter in parameters]
    known = _FLAT.get(parameters[0])
    if known is not None and known.numel() == sum(sizes):
        pairs = zip(parameters, torch.split(known, sizes), strict=True)
        if all(parameter.data_ptr() == piece.data_ptr() for parameter, piece in pairs):
            return known  # type: ignore[no-any-return]
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, piece in zip(parameters, torch.split(flat, sizes), strict=True):
        parameter.data = piece.view(parameter.shape)
        _FLAT[parameter] = flat
    return flat


class Optimizer(ABC):
    """Base class of optimizers. Updates the parameters of `network` that require a gradient.

    Parameters
    ----------
    also
        A module whose parameters are trained with the network's, under names that begin with "method".
    weight_decay
        Applied to weights with two or more dimensions, not to biases and gains.
    multipliers
        Factors of the learning rate, by the prefix of parameter names. Other parameters have 1.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        also: nn.Module | None = None,
        weight_decay: float = 0.0,
        multipliers: Mapping[str, float] | None = None,
    ) -> None:
        named = [*network.named_parameters(), *(also.named_parameters(prefix="method") if also is not None else ())]
        trainable = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self.parameters = [parameter for _, parameter in trainable]
        self.flat = flatten(self.parameters)
        self.rates: dict[str, Tensor] = {"learning_rate": self.flat.new_zeros(())}
        self.decay = self._vector([weight_decay if p.ndim >= 2 else 0.0 for p in self.parameters], neutral=0.0)
        self.multiplier = self._vector(_multipliers([name for name, _ in trainable], multipliers or {}), neutral=1.0)
        self.state: dict[str, Tensor] = {}
        """What a checkpoint needs besides the parameters and the rates."""

    def _vector(self, values: Sequence[float], neutral: float) -> Tensor | None:
        """Return one value per parameter as a vector over the flat tensor; None if all are neutral."""
        if set(values) == {neutral}:
            return None
        sizes = torch.tensor([parameter.numel() for parameter in self.parameters])
        return torch.tensor(values).repeat_interleave(sizes).to(self.flat)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Update the parameters. The gradient of an unused parameter is None."""
        pairs = zip(gradients, self.parameters, strict=True)
        gradient = torch.cat([(p.new_zeros(p.shape) if g is None else g).reshape(-1) for g, p in pairs])
        rate = self.rates["learning_rate"]
        self.flat.sub_(self._update(gradient, rate if self.multiplier is None else rate * self.multiplier))

    @abstractmethod
    def _update(self, gradient: Tensor, rate: Tensor) -> Tensor:
        """Return the update to subtract. `rate` is a 0-d learning rate, or a vector with one for each element."""

    def _decayed(self, gradient: Tensor) -> Tensor:
        """Add the weight decay to a gradient."""
        return gradient if self.decay is None else gradient + self.decay * self.flat

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state.items():
            tensor.copy_(state[name])


class Adam(Optimizer):
    """The authors' Adam: step size lr sqrt(1 - beta2^t) / (1 - beta1^t) with the current beta1, which the schedule lowers,
    and epsilon added to the uncorrected root. Unlike theirs, NaNs are not replaced by zeros; the trainer stops instead.
    """

    def __init__(self, network: nn.Module, *, beta2: float = 0.999, epsilon: float = 1e-8, **common: Any) -> None:
        super().__init__(network, **common)
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)  # m, v
        self.steps = self.flat.new_zeros(())  # t
        self.state = {"first": self.first, "second": self.second, "steps": self.steps}
        self.rates["beta1"] = self.flat.new_full((), 0.9)
        self.beta2, self.epsilon = beta2, epsilon

    def _average(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Update the moments; return their bias corrections, 1 - beta1^t and 1 - beta2^t."""
        beta1 = self.rates["beta1"]
        self.steps += 1
        self.first.lerp_(gradient, 1 - beta1)
        self.second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        # -expm1(t log beta) is accurate in float32; 1 - beta^t would lose half of its digits.
        log_beta2 = math.log(self.beta2) if self.beta2 else -math.inf
        return -torch.expm1(self.steps * beta1.log()), -torch.expm1(self.steps * log_beta2)

    def _update(self, gradient: Tensor, rate: Tensor) -> Tensor:
        first_correction, second_correction = self._average(self._decayed(gradient))
        size = rate * second_correction.sqrt() / first_correction
        return size * self.first / (self.second.sqrt() + self.epsilon)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter), like torch.optim.AdamW."""

    def _update(self, gradient: Tensor, rate: Tensor) -> Tensor:
        first_correction, second_correction = self._average(gradient)
        root = (self.second / second_correction).sqrt() + self.epsilon
        return rate * self._decayed(self.first / first_correction / root)


class Sgd(Optimizer):
    """Stochastic gradient descent with Nesterov momentum, like torch.optim.SGD(nesterov=True)."""

    def __init__(self, network: nn.Module, *, momentum: float = 0.9, **common: Any) -> None:
        super().__init__(network, **common)
        self.momentum, self.velocity = momentum, torch.zeros_like(self.flat)
        self.state = {"velocity": self.velocity}

    def _update(self, gradient: Tensor, rate: Tensor) -> Tensor:
        gradient = self._decayed(gradient)
        self.velocity.mul_(self.momentum).add_(gradient)
        return rate * (gradient + self.momentum * self.velocity)


def _multipliers(names: Sequence[str], wanted: Mapping[str, float]) -> list[float]:
    """Return the multiplier of each parameter: that of the longest prefix of its name, else 1."""
    for prefix in wanted:
        if not any(name.startswith(prefix) for name in names):
            some = listed(names, 6)
            raise ConfigError(f"optimizer.multipliers names '{prefix}'; expected the prefix of a parameter: {some}.")
    by_length = sorted(wanted, key=len, reverse=True)
    return [next((wanted[prefix] for prefix in by_length if name.startswith(prefix)), 1.0) for name in names]
