"""EmaTeacher: a second network whose weights are an exponential average of the trained one's."""

import copy

import torch
from torch import Tensor, nn

from selfens.core.optim import flatten
from selfens.errors import ConfigError


class EmaTeacher:
    """An exponential moving average of the weights of a network. Call `update` after each optimizer step.

    Buffers, such as running statistics, are copied.

    Parameters
    ----------
    network
        The network to follow. The teacher is a copy of it.
    decay
        Momentum of the average. In step t it is at most 1 - 1/(t + 1), so that the initial weights are forgotten
        (Tarvainen & Valpola).

    Examples
    --------
    >>> student = nn.Linear(2, 2)
    >>> teacher = EmaTeacher(student, decay=0.99)
    >>> teacher.update()
    >>> torch.equal(teacher.network.weight, student.weight)
    True
    """

    def __init__(self, network: nn.Module, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"the teacher's decay is {decay}; expected at least 0 and below 1.")
        try:
            self.network = copy.deepcopy(network)
        except Exception as error:
            raise ConfigError(f"the network cannot be copied to make a teacher ({error}).") from None
        self._parameters = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self._followed = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._flat, self._student = flatten(self._parameters), flatten(self._followed)
        self._buffers, self._followed_buffers = list(self.network.buffers()), list(network.buffers())
        self.network.requires_grad_(False)
        self.decay = decay
        self.steps = torch.zeros((), device=self._flat.device)

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages toward the current weights of the network."""
        # With a weight of 1, lerp computes end - (end - start) * 0: an exact copy.
        weight = torch.clamp_min(1 / (self.steps + 1), 1 - self.decay)
        if not torch.compiler.is_compiling():  # `network.to(...)` replaces the parameters' tensors
            self._flat, self._student = flatten(self._parameters), flatten(self._followed)
        self._flat.lerp_(self._student, weight)
        self.steps += 1
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._followed_buffers)

    @torch.no_grad()
    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return [rows, classes] the teacher's predictions, in its current mode (training by default, like the student)."""
        return self.network(inputs).float().softmax(dim=1)  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Tensor]:
        return {"steps": self.steps} | {f"network.{key}": value for key, value in self.network.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.steps.copy_(state["steps"])
        self.network.load_state_dict({key.removeprefix("network."): state[key] for key in {*state} - {"steps"}})
