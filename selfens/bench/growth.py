"""How the time of an epoch grows with the number of rows and of classes, and that it does not grow from epoch to epoch."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch

from selfens.bench.steps import build_session, config_for, wait
from selfens.core.device import torch_settings
from selfens.data.dataset import Dataset
from selfens.training.setup import Session

EPOCHS = 6
GPU_SIZES = ((12_500, 10), (25_000, 10), (50_000, 10), (100_000, 10), (50_000, 100), (50_000, 1000))
CPU_SIZES = ((500, 10), (1000, 10), (2000, 10), (1000, 100))


def time_epochs(device: torch.device) -> list[dict[str, Any]]:
    """Seconds per epoch of temporal ensembling on made-up images, for each number of rows and classes."""
    on_gpu = device.type == "cuda"
    return [_measure(made_up(rows, classes, on_gpu), device) for rows, classes in (GPU_SIZES if on_gpu else CPU_SIZES)]


def made_up(rows: int, classes: int, on_gpu: bool) -> Dataset:
    """Random images of CIFAR-10's shape for a GPU and of digits' shape for a CPU; every class has labels."""
    shape = (3, 32, 32) if on_gpu else (1, 8, 8)
    images = np.random.default_rng(0).integers(0, 256, (rows, *shape), dtype=np.uint8)
    labels = np.arange(rows) % classes
    names = tuple(map(str, range(classes)))
    return Dataset(
        inputs=images, labels=labels, test_inputs=images[:0], test_labels=labels[:0], classes=names, name="made-up"
    )


def _measure(data: Dataset, device: torch.device) -> dict[str, Any]:
    config = config_for("temporal", data, device).with_values("data", labels=None)
    with torch_settings(config.training, device, 0):
        session = build_session(config, data, device, [])
        seconds = [_time_epoch(session, epoch) for epoch in range(EPOCHS + 1)][1:]  # the first compiles
    return {
        "rows": data.num_rows,
        "classes": data.num_classes,
        "seconds_per_epoch": statistics.median(seconds),
        "microseconds_per_row": 1e6 * statistics.median(seconds) / data.num_rows,
        "last_epoch_over_first": seconds[-1] / seconds[0],
        "epochs": EPOCHS,
    }


def _time_epoch(session: Session, epoch: int) -> float:
    """All steps and the update of the ensemble; evaluation does not depend on the training rows and is left out."""
    wait(session.device)
    began = time.perf_counter()
    for rows in session.visit(epoch):
        session.step(rows)
    session.method.end_epoch()
    wait(session.device)
    return time.perf_counter() - began
