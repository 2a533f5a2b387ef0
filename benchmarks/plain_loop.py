"""Our step on a CPU against a plain PyTorch loop of the same network, alternating because a machine's speed drifts.

    python benchmarks/plain_loop.py [--steps 60] [--alternations 5] [--output results/benchmarks/plain-loop.json]

Temporal ensembling on digits, network `small`, batch 100. The median of the ratios counts.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from selfens.bench import (
    build,
    conditions,
    config_for,
    endless_rows,
    seconds_per_call,
    settings,
    time_steps,
    write_json,
)
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.networks import update_running_means
from selfens.training.components import Components

CPU = torch.device("cpu")


class PlainLoop:
    """Temporal ensembling as one would write it in an afternoon: the same network, torch's Adam, Z as two tensors."""

    def __init__(self, parts: Components) -> None:
        self.network = copy.deepcopy(parts.network)
        self.inputs, self.labels = parts.loader.inputs, parts.loader.labels
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4)
        self.targets = torch.zeros(len(self.labels), 10)
        self.predictions = torch.zeros(len(self.labels), 10)
        self.weight = parts.weight_max

    def step(self, rows: Tensor) -> None:
        x, y = self.inputs[rows], self.labels[rows]
        logits = self.network(x)
        z = logits.softmax(dim=1)
        labeled = y >= 0
        supervised = functional.cross_entropy(logits[labeled], y[labeled], reduction="sum") / len(rows)
        loss = supervised + self.weight * functional.mse_loss(z, self.targets[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        update_running_means(self.network)
        self.predictions[rows] = z.detach()

    def time_steps(self, rows: Iterator[Tensor], steps: int) -> float:
        return seconds_per_call(lambda: self.step(next(rows)), steps, CPU)


def compare(data: Dataset, steps: int, alternations: int) -> dict:
    config = config_for("temporal", data, CPU).with_values("method", unseen_rows="zero")  # as the plain loop has it
    with settings(config, CPU):
        parts = build(config, data, CPU, [])
        loop = PlainLoop(parts)
        rows, same_rows = endless_rows(parts), endless_rows(parts)
        ratios = []
        for _ in range(alternations + 1):
            ours = time_steps(parts, rows, steps)
            ratios.append(ours / loop.time_steps(same_rows, steps))
    kept = ratios[1:]  # the first turn warms both up
    return {
        "environment": conditions(config, CPU),
        "median_ratio": statistics.median(kept),
        "ratios": kept,
        "steps_per_turn": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="of a turn")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/plain-loop.json"))
    options = parser.parse_args()
    result = compare(sources.load(sources.options_for("digits")), options.steps, options.alternations)
    print(
        f"time of our step over that of the plain loop: {result['median_ratio']:.3f} "
        f"(median of {len(result['ratios'])} alternations)"
    )
    write_json(options.output, result)


if __name__ == "__main__":
    main()
