"""The speed of a step: steady state, after start-up, with the device synchronized before and after.

Start-up (preprocessing, building, compiling, capturing) is reported separately; it is short if the compiler's cache has what
an earlier measurement compiled. An image counts once per step, whatever the number of views.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfens import methods, presets
from selfens.config import Config
from selfens.core.device import environment, resolve_precision, torch_settings
from selfens.data.dataset import Dataset
from selfens.training.distributed import Group
from selfens.training.own import Given
from selfens.training.setup import Parts, prepare

MODES = ("plain", "compiled", "captured", "compiled+captured", "compiled+captured+kernels")
CPU_MODES = ("plain", "compiled")
SWITCHES = {"compile": "compiled", "capture": "captured", "kernels": "kernels"}
"""By field of `config.training`, the word in a mode that turns it on."""
BATCH = 100
WARM_UP = 10
TIMINGS = 3  # of which the median counts


def measure(config: Config, mode: str, data: Dataset, device: torch.device, steps: int) -> dict[str, Any]:
    """One row of the table."""
    notes: list[str] = []
    if device.type == "cuda":
        gc.collect()  # of what an earlier measurement left behind
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with settings(config, device):
        began = time.perf_counter()
        parts = build(with_mode(config, mode), data, device, notes)
        rows = endless_rows(parts)
        time_steps(parts, rows, WARM_UP)
        startup = time.perf_counter() - began
        seconds = statistics.median(time_steps(parts, rows, steps) for _ in range(TIMINGS))
        parts.method.end_epoch()
        parts.errors()
    return {
        "method": config.method.name,
        "mode": mode,
        "batch_size": parts.loader.batch_size,
        "images_per_second": parts.loader.batch_size / seconds,
        "microseconds_per_step": seconds * 1e6,
        "peak_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        "startup_seconds": startup,
        "notes": notes,
    }


# What is measured


def config_for(method: str, data: Dataset, device: torch.device, batch: int = BATCH) -> Config:
    """The preset of CIFAR-10 on a GPU and of digits on a CPU, with this method."""
    name = "cifar10" if device.type == "cuda" else "digits"
    config = presets.get(name, method)
    config = config.with_values("training", device=device.type, batch_size=batch)
    if "strong" in methods.find(method).views:  # its color operations want pixels
        return config.with_values("data", preprocess="channel", preprocess_after_views=True)
    return config if data.name == name else config.with_values("data", preprocess="channel")


def with_mode(config: Config, mode: str) -> Config:
    words = mode.split("+")
    return config.with_values(
        "training", **{field: "on" if word in words else "off" for field, word in SWITCHES.items()}
    )


def made_up(rows: int, classes: int = 10, shape: tuple[int, ...] = (3, 32, 32)) -> Dataset:
    """Random images, by default of CIFAR-10's shape; every class has labels."""
    images = np.random.default_rng(0).integers(0, 256, (rows, *shape), dtype=np.uint8)
    labels = np.arange(rows) % classes
    names = tuple(map(str, range(classes)))
    return Dataset(
        inputs=images, labels=labels, test_inputs=images[:0], test_labels=labels[:0], classes=names, name="made-up"
    )


def build(config: Config, data: Dataset, device: torch.device, notes: list[str], group: Group | None = None) -> Parts:
    """The parts of a training, with the rates of its middle; warnings go to `notes`."""
    group = group or Group()
    parts = Parts(prepare(config, device, data, group), Given(), group, notes.append)
    parts.step.set(**parts.rates(0) | {"learning_rate": 1e-4, "weight": parts.weight_max})
    return parts


def endless_rows(parts: Parts) -> Iterator[Tensor]:
    """The rows of one step after the other."""
    for epoch in itertools.count():
        yield from parts.visit(epoch)


# How


def settings(config: Config, device: torch.device, seed: int = 0) -> AbstractContextManager[None]:
    """torch as a training sets it."""
    return torch_settings(config.training.precision, config.training.threads, device, seed)


def conditions(config: Config, device: torch.device) -> dict[str, Any]:
    """The environment as it is while steps are timed."""
    with settings(config, device):
        return environment(device, resolve_precision(config.training.precision, device))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_steps(parts: Parts, rows: Iterator[Tensor], steps: int) -> float:
    """Seconds per step."""
    return seconds_per_call(lambda: parts.step(next(rows)), steps, parts.prepared.device)


def seconds_per_call(work: Callable[[], object], times: int, device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - began) / times
