"""Optimizers over one flat tensor.

All trainable parameters become views into a single tensor, so a step is a handful of operations however many layers there
are. The numbers that change with time (`rates`) are zero-dimensional tensors that are filled in place: a compiled or
captured step sees their new values. A learning-rate multiplier and the weight decay of each parameter are vectors.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from selfens.errors import ConfigError

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
    """Update the parameters of a network that require a gradient.

    Parameters
    ----------
    also
        A module whose parameters are trained with the network's, under names that begin with "method".
    weight_decay
        For weights with two or more dimensions; not for biases, gains and the like.
    multipliers
        Learning rates relative to the others', by the prefix of the parameters' names.
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
        named = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self.parameters = [parameter for _, parameter in named]
        self.flat = flatten(self.parameters)
        self.rates: dict[str, Tensor] = {"learning_rate": self.flat.new_zeros(())}
        self.decay = self._vector([weight_decay if p.ndim >= 2 else 0.0 for p in self.parameters], neutral=0.0)
        self.multiplier = self._vector(_multipliers([name for name, _ in named], multipliers or {}), neutral=1.0)
        self.state: dict[str, Tensor] = {}
        """What a resumed run needs besides the parameters and the rates."""

    def _vector(self, values: Sequence[float], neutral: float) -> Tensor | None:
        """Return one value per parameter as a vector over the flat tensor; None if all are neutral."""
        if set(values) == {neutral}:
            return None
        sizes = torch.tensor([parameter.numel() for parameter in self.parameters])
        return torch.tensor(values).repeat_interleave(sizes).to(self.flat)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Update the parameters; a parameter that took no part has gradient None."""
        pairs = zip(gradients, self.parameters, strict=True)
        gradient = torch.cat([(p.new_zeros(p.shape) if g is None else g).reshape(-1) for g, p in pairs])
        rate = self.rates["learning_rate"]
        self.flat.sub_(self._update(gradient, rate if self.multiplier is None else rate * self.multiplier))

    @abstractmethod
    def _update(self, gradient: Tensor, rate: Tensor) -> Tensor:
        """Return what is subtracted from the parameters; `rate` is a 0-d learning rate, or one for each number."""

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
        """Update the averages; return what undoes their start at zero, 1 - beta1^t and 1 - beta2^t."""
        beta1 = self.rates["beta1"]
        self.steps += 1
        self.first.lerp_(gradient, 1 - beta1)
        self.second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        # -expm1(t log beta) keeps its digits in float32; 1 - beta^t would lose half of them.
        log_beta2 = math.log(self.beta2) if self.beta2 else -math.inf
        return -torch.expm1(self.steps * beta1.log()), -torch.expm1(self.steps * log_beta2)

    def _update(self, gradient: Tensor, rate: Tensor) -> Tensor:
        first_weight, second_weight = self._average(self._decayed(gradient))
        size = rate * second_weight.sqrt() / first_weight
        return size * self.first / (self.second.sqrt() + self.epsilon)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter), as torch.optim.AdamW."""

    def _update(self, gradient: Tensor, rate: Tensor) -> Tensor:
        first_weight, second_weight = self._average(gradient)
        root = (self.second / second_weight).sqrt() + self.epsilon
        return rate * self._decayed(self.first / first_weight / root)


class Sgd(Optimizer):
    """Stochastic gradient descent with Nesterov momentum, as torch.optim.SGD(nesterov=True)."""

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
            some = ", ".join(names[:6])
            raise ConfigError(f"optimizer.multipliers names '{prefix}', but no parameter begins so, as in {some}.")
    by_length = sorted(wanted, key=len, reverse=True)
    return [next((wanted[prefix] for prefix in by_length if name.startswith(prefix)), 1.0) for name in names]
