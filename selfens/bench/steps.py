"""The speed of a step: steady state, after start-up, with the device synchronized before and after.

Start-up (preprocessing, building, compiling, capturing) is reported separately; it is short if the compiler's cache has what
an earlier measurement compiled. An image counts once per step, whatever the number of views.
"""

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

from selfens import presets
from selfens.config import Config
from selfens.core.device import environment, resolve_precision, torch_settings
from selfens.core.views import VIEWS
from selfens.data.dataset import Dataset
from selfens.methods import METHODS
from selfens.training.components import Components
from selfens.training.distributed import Group
from selfens.training.overrides import Overrides
from selfens.training.prepare import prepare

MODES = ("plain", "compiled", "captured", "compiled+captured", "compiled+captured+kernels")
CPU_MODES = ("plain", "compiled")
BATCH = 100
WARM_UP = 10
TIMINGS = 3  # of which the median counts


def measure(config: Config, mode: str, data: Dataset, device: torch.device, steps: int) -> dict[str, Any]:
    """Return one row of the table."""
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


def config_for(method: str, data: Dataset, device: torch.device, batch: int = BATCH) -> Config:
    """Return the preset of CIFAR-10 on a GPU and of digits on a CPU, with this method."""
    name = "cifar10" if device.type == "cuda" else "digits"
    config = presets.get(name, method).with_values("training", device=device.type, batch_size=batch)
    if data.name == name and not any(VIEWS[view].has_colors for view in METHODS.find(method).views):
        return config
    return config.with_values("preprocess", kind="channel")


def with_mode(config: Config, mode: str) -> Config:
    """Return the config with the switches that the words of a mode turn on."""
    switches = {"compile": "compiled", "capture": "captured", "kernels": "kernels"}
    words = mode.split("+")
    return config.with_values("training", **{name: "on" if word in words else "off" for name, word in switches.items()})


def made_up(rows: int, classes: int = 10, shape: tuple[int, ...] = (3, 32, 32)) -> Dataset:
    """Return random images, by default of CIFAR-10's shape; every class has labels."""
    images = np.random.default_rng(0).integers(0, 256, (rows, *shape), dtype=np.uint8)
    names = [str(number) for number in range(classes)]
    return Dataset.from_arrays(images, np.arange(rows) % classes, classes=names, layout="NCHW", name="made-up")


def build(
    config: Config, data: Dataset, device: torch.device, notes: list[str], group: Group | None = None
) -> Components:
    """Build the components of a run, with the rates of its middle; warnings go to `notes`."""
    parts = Components(prepare(config, device, data), Overrides(), group or Group(), notes.append)
    parts.step.set(**parts.rates(0) | {"learning_rate": 1e-4, "weight": parts.weight_max})
    return parts


def endless_rows(parts: Components) -> Iterator[Tensor]:
    """Yield the rows of one step after another."""
    for epoch in itertools.count():
        yield from parts.visit(epoch)


def settings(config: Config, device: torch.device, seed: int = 0) -> AbstractContextManager[None]:
    """Configure torch as training does."""
    return torch_settings(config.training.precision, config.training.threads, device, seed)


def conditions(config: Config, device: torch.device) -> dict[str, Any]:
    """Return the environment in which steps are timed."""
    with settings(config, device):
        return environment(device, resolve_precision(config.training.precision, device))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_steps(parts: Components, rows: Iterator[Tensor], steps: int) -> float:
    """Return seconds per step."""
    return seconds_per_call(lambda: parts.step(next(rows)), steps, parts.prepared.device)


def seconds_per_call(work: Callable[[], object], times: int, device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - began) / times
