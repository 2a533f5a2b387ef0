"""selfens bench: time training steps on this machine, in each mode.

Steps are timed after start-up, with the device synchronized before and after. Start-up (preprocessing, building, compiling,
capturing) is reported separately; it is short if the compiler's cache is warm. An image counts once per step, however many
views it has.
"""

import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor

from selfens import presets
from selfens.config import Config
from selfens.core.device import environment, resolve_device, resolve_precision, torch_settings
from selfens.core.views import VIEWS
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.errors import ConfigError, unknown_name
from selfens.files.tables import write_output
from selfens.methods import METHODS
from selfens.training.components import Components
from selfens.training.distributed import Group
from selfens.training.overrides import Overrides
from selfens.training.prepare import prepare

MODES = ("plain", "compiled", "captured", "compiled+captured", "compiled+captured+kernels")
CPU_MODES = ("plain", "compiled")
BATCH = 100
WARM_UP = 10  # untimed steps
TIMINGS = 3  # the median is reported
GPU_STEPS, CPU_STEPS = 500, 60
FIGURES = {  # title and number format
    "images_per_second": ("images/s", ",.0f"),
    "microseconds_per_step": ("µs/step", ",.0f"),
    "peak_memory_gib": ("peak GiB", ".2f"),
    "startup_seconds": ("start-up s", ".1f"),
}


def bench(
    device_name: str,
    *,
    methods: Sequence[str],
    modes: Sequence[str] | None,
    data_dir: str | None,
    steps: int | None,
    batch: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Time conv13 on CIFAR-10 on a GPU, or the small network on digits on a CPU. Return a dict for JSON.

    By default, every mode that the device supports is timed, and a GPU gets random images of CIFAR-10's shape.
    """
    if steps is not None and steps < 1:
        raise ConfigError(f"--steps is {steps}; expected at least 1.")
    for kind, names, known in (("method", methods, METHODS), ("mode", modes or (), MODES)):
        for name in names:
            if name not in known:
                raise ConfigError(unknown_name(kind, name, known))
    device = resolve_device(device_name)
    on_gpu = device.type == "cuda"
    if data_dir is not None and not on_gpu:
        raise ConfigError(f"--data-dir is {data_dir}, but a CPU is measured on digits; leave it out.")
    source = sources.options_for("cifar10", folder=data_dir) if on_gpu else sources.options_for("digits")
    data = random_images(50_000) if on_gpu and data_dir is None else sources.load(source)
    results = []
    for method in methods:
        config = config_for(method, data, device, batch)
        for mode in modes or (MODES if on_gpu else CPU_MODES):
            say(f"measuring {method}, {mode}")
            results.append(measure(config, mode, data, device, steps or (GPU_STEPS if on_gpu else CPU_STEPS)))
    return {
        "environment": conditions(config, device),
        "network": config.network.name,
        "data": data.name,
        "batch_size": results[0]["batch_size"],  # smaller than `batch` if there are fewer rows
        "measurements": results,
    }


def measure(config: Config, mode: str, data: Dataset, device: torch.device, steps: int) -> dict[str, Any]:
    """Time one method in one mode."""
    notes: list[str] = []
    if device.type == "cuda":
        gc.collect()  # free what the previous measurement left on the GPU
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with settings(config, device):
        began = time.perf_counter()
        components = build(with_mode(config, mode), data, device, notes)
        rows = endless_rows(components)
        time_steps(components, rows, WARM_UP)
        startup = time.perf_counter() - began
        seconds = statistics.median(time_steps(components, rows, steps) for _ in range(TIMINGS))
        components.method.end_epoch()
        components.errors()
    return {
        "method": config.method.name,
        "mode": mode,
        "batch_size": components.loader.batch_size,
        "images_per_second": components.loader.batch_size / seconds,
        "microseconds_per_step": seconds * 1e6,
        "peak_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        "startup_seconds": startup,
        "notes": notes,
    }


def config_for(method: str, data: Dataset, device: torch.device, batch: int = BATCH) -> Config:
    """Return the preset of this method for CIFAR-10 (on a GPU) or digits (on a CPU)."""
    name = "cifar10" if device.type == "cuda" else "digits"
    config = presets.get(name, method).with_values("training", device=device.type, batch_size=batch)
    if data.name == name and not any(VIEWS[view].has_colors for view in METHODS.find(method).views):
        return config
    return config.with_values("preprocess", kind="channel")


def with_mode(config: Config, mode: str) -> Config:
    """Return the config with only the switches of this mode turned on."""
    switches = {"compile": "compiled", "capture": "captured", "kernels": "kernels"}
    return config.with_values("training", **{key: "on" if word in mode else "off" for key, word in switches.items()})


def random_images(rows: int, classes: int = 10, shape: tuple[int, ...] = (3, 32, 32)) -> Dataset:
    """Return a dataset of random images, by default of CIFAR-10's shape."""
    images = np.random.default_rng(0).integers(0, 256, (rows, *shape), dtype=np.uint8)
    names = [str(number) for number in range(classes)]
    return Dataset.from_arrays(images, np.arange(rows) % classes, classes=names, layout="NCHW", name="made-up")


def build(
    config: Config, data: Dataset, device: torch.device, notes: list[str], group: Group | None = None
) -> Components:
    """Build the components of a run, with rates as in the middle of training. Warnings go to `notes`."""
    components = Components(prepare(config, device, data), Overrides(), group or Group(), notes.append)
    components.step.set(**components.rates(0) | {"learning_rate": 1e-4, "weight": components.weight_max})
    return components


def endless_rows(components: Components) -> Iterator[Tensor]:
    """Yield the rows of each step, epoch after epoch."""
    for epoch in itertools.count():
        yield from components.visit(epoch)


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


def time_steps(components: Components, rows: Iterator[Tensor], steps: int) -> float:
    return seconds_per_call(lambda: components.step(next(rows)), steps, components.prepared.device)


def seconds_per_call(work: Callable[[], object], times: int, device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - began) / times


def print_table(result: dict[str, Any]) -> None:
    about = result["environment"]
    console = Console(width=max(Console().width, 90))  # a narrow terminal wraps lines, but rich would truncate numbers
    console.print(
        f"{result['network']}, batch {result['batch_size']}, {result['data']}; {about['device']}, "
        f"torch {about['torch']}, {about['precision']}, threads: {about['threads']}",
        highlight=False,
    )
    table = Table("method", "step", *(Column(title, justify="right") for title, _ in FIGURES.values()))
    for row in result["measurements"]:
        figures = ["" if row[name] is None else format(row[name], digits) for name, (_, digits) in FIGURES.items()]
        table.add_row(row["method"], row["mode"], *figures)
    console.print(table)
    for row in result["measurements"]:
        for note in row["notes"]:
            console.print(f"{row['method']}, {row['mode']}: {note}", highlight=False)


def write_json(path: Path, result: dict[str, Any]) -> None:
    write_output(path, (json.dumps(result, indent=2) + "\n").encode(), beginning=b'{\n  "environment"')
