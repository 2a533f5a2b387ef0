"""Adam over one flat tensor.

All trainable parameters become views into a single tensor, so a step is a handful of operations however many layers there
are, and the optimizer's state is two tensors. Learning rate and beta1 are zero-dimensional tensors that are filled in place:
they change every epoch without a compiled or captured step noticing.

The formula is the authors': step size lr sqrt(1 - beta2^t) / (1 - beta1^t) with the present beta1, and epsilon added to the
uncorrected root. Unlike theirs, NaNs are not replaced by zeros; the trainer stops instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from selfens.errors import ConfigError


class Adam:
    def __init__(self, parameters: Iterable[nn.Parameter], beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise ConfigError("the network has no trainable parameters; nothing could be learnt.")
        kinds = {(p.dtype, p.device) for p in self.parameters}
        if kinds != {(torch.float32, self.parameters[0].device)}:
            raise ConfigError(f"the network's parameters are of {kinds}; expected float32, all on one device.")
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        for parameter, values in zip(self.parameters, self._views(self.flat), strict=True):
            parameter.data = values
        self.first = torch.zeros_like(self.flat)  # m
        self.second = torch.zeros_like(self.flat)  # v
        self.steps = self.flat.new_zeros(())  # t
        self.learning_rate = self.flat.new_zeros(())
        self.beta1 = self.flat.new_full((), 0.9)
        self.beta2, self.epsilon = beta2, epsilon
        self.log_beta2 = math.log(beta2) if beta2 else -math.inf

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = torch.split(flat, [p.numel() for p in self.parameters])
        return [piece.view(p.shape) for piece, p in zip(pieces, self.parameters, strict=True)]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """One update; a parameter that took no part has gradient None."""
        pairs = zip(gradients, self.parameters, strict=True)
        gradient = torch.cat([(p.new_zeros(p.shape) if g is None else g).reshape(-1) for g, p in pairs])
        self.steps += 1
        self.first.lerp_(gradient, 1 - self.beta1)
        self.second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        # 1 - beta^t as -expm1(t log beta), which keeps its digits in float32 where the power would lose half of them.
        first_weight = -torch.expm1(self.steps * self.beta1.log())
        second_weight = -torch.expm1(self.steps * self.log_beta2)
        rate = self.learning_rate * second_weight.sqrt() / first_weight
        self.flat.sub_(rate * self.first / (self.second.sqrt() + self.epsilon))

    def state(self) -> dict[str, Tensor]:
        return {"first": self.first, "second": self.second, "steps": self.steps}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
