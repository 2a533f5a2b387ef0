"""EmaTeacher: a second network whose weights are an exponential average of the trained one's."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from selfens.core.optim import check_parameters, flat_tensor, flatten
from selfens.errors import ConfigError


class EmaTeacher:
    """A copy of `network` that follows it: call `update` after each optimizer step.

    Trainable parameters are averaged with momentum `decay`; buffers, such as the running statistics of batch normalisation,
    are copied, because they already are averages. The momentum grows to `decay` over the first steps as 1 - 1/(t + 1)
    (Tarvainen & Valpola), so the initial weights are forgotten.

    >>> student = nn.Linear(2, 2)
    >>> teacher = EmaTeacher(student, decay=0.99)
    >>> teacher.update()
    >>> torch.equal(teacher.network.weight, student.weight)
    True
    """

    def __init__(self, network: nn.Module, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"the teacher's decay is {decay}; expected a momentum from 0 to below 1.")
        try:
            self.network = copy.deepcopy(network)
        except Exception as error:
            raise ConfigError(f"the network cannot be copied to make a teacher ({error}).") from None
        own = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        followed = [parameter for parameter in network.parameters() if parameter.requires_grad]
        check_parameters(own)
        self._flat = flatten(own)
        self._student = flat_tensor(followed)
        self._parameters, self._followed = own, followed
        self._buffers, self._followed_buffers = list(self.network.buffers()), list(network.buffers())
        self.network.requires_grad_(False)
        self.decay = decay
        self.steps = torch.zeros((), device=self._flat.device)

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the network as it is now."""
        # A weight of 1 copies the student to the bit: lerp computes end - (end - start) * 0 then.
        weight = torch.clamp_min(1 / (self.steps + 1), 1 - self.decay)
        mine, theirs = self._flat_tensors()
        if mine is not None and theirs is not None:
            mine.lerp_(theirs, weight)
        else:
            for own, followed in zip(self._parameters, self._followed, strict=True):
                own.lerp_(followed, weight)
        self.steps += 1
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._followed_buffers)

    def _flat_tensors(self) -> tuple[Tensor | None, Tensor | None]:
        """The flat tensors of teacher and student, if there are any; `network.to(...)` undoes one."""
        if torch.compiler.is_compiling():
            return self._flat, self._student
        return flat_tensor(self._parameters), flat_tensor(self._followed)

    @torch.no_grad()
    def probabilities(self, inputs: Tensor) -> Tensor:
        """[rows, classes] what the teacher predicts, in the mode it is in: training by default, as the student."""
        predicted: Tensor = self.network(inputs).float().softmax(dim=1)
        return predicted

    def state_dict(self) -> dict[str, Tensor]:
        return {"steps": self.steps} | {f"network.{key}": value for key, value in self.network.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.steps.copy_(state["steps"])
        self.network.load_state_dict(
            {key.removeprefix("network."): value for key, value in state.items() if key.startswith("network.")}
        )
