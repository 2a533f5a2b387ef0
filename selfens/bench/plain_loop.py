"""Our step on a CPU against a plain PyTorch loop of the same network, in turns, because a machine's speed drifts."""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfens.bench.steps import build_session, config_for, endless_rows, time_steps
from selfens.core.device import torch_settings
from selfens.data.dataset import Dataset
from selfens.networks.layers import update_running_means
from selfens.training.setup import Session

ALTERNATIONS = 5


def against_plain_loop(data: Dataset, steps: int) -> dict[str, Any]:
    """Temporal ensembling on digits: our step against a loop written by hand, in turns; the median of the ratios."""
    device = torch.device("cpu")
    config = config_for("temporal", data, device).with_values("method", unseen_rows="zero")  # as the loop has it
    with torch_settings(config.training, device, 0):
        session = build_session(config, data, device, [])
        loop = PlainLoop(session)
        rows, same_rows = endless_rows(session), endless_rows(session)
        ratios = []
        for _ in range(ALTERNATIONS + 1):
            ours = time_steps(session, rows, steps)
            theirs = loop.time_steps(same_rows, steps)
            ratios.append(ours / theirs)
    kept = ratios[1:]  # the first turn warms both up
    return {"median_ratio": statistics.median(kept), "ratios": kept, "steps_per_turn": steps}


class PlainLoop:
    """Temporal ensembling as one would write it in an afternoon: the same network, torch's Adam, Z as two tensors."""

    def __init__(self, session: Session) -> None:
        self.network: nn.Module = copy.deepcopy(session.network)
        self.inputs, self.labels = session.loader.inputs, session.loader.labels
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4)
        self.targets = torch.zeros(len(self.labels), 10)
        self.predictions = torch.zeros(len(self.labels), 10)
        self.weight = session.weight_max

    def step(self, rows: Tensor) -> None:
        x, y = self.inputs[rows], self.labels[rows]
        logits = self.network(x)
        z = logits.softmax(dim=1)
        labelled = y >= 0
        supervised = functional.cross_entropy(logits[labelled], y[labelled], reduction="sum") / len(rows)
        loss = supervised + self.weight * functional.mse_loss(z, self.targets[rows])
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        update_running_means(self.network)
        self.predictions[rows] = z.detach()

    def time_steps(self, rows: Any, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            self.step(next(rows))
        return (time.perf_counter() - began) / steps
