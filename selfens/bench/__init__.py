"""selfens bench: how fast a training step is on this machine, in each way it can be carried out.

steps         images/s, start-up, memory of each method and mode; the table everybody wants
kernel_times  where the time of a step goes on a GPU
growth        seconds per epoch against the number of rows and classes
plain_loop    our step against a loop written by hand, on a CPU
output        tables and JSON
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from selfens.bench.growth import made_up, time_epochs
from selfens.bench.kernel_times import time_kernels
from selfens.bench.plain_loop import against_plain_loop
from selfens.bench.steps import BATCH, CPU_MODES, GPU_MODES, MODES, conditions, matrix_rate, measure
from selfens.core.device import resolve_device, resolve_precision
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.errors import ConfigError

__all__ = ["MODES", "bench"]

GPU_STEPS, CPU_STEPS = 500, 60
PROFILED = ("compiled+captured", "compiled+captured+kernels")


def bench(
    device_name: str = "auto",
    *,
    methods: tuple[str, ...] = ("temporal", "pi", "supervised"),
    modes: tuple[str, ...] | None = None,
    data_dir: str | None = None,
    steps: int | None = None,
    precision: str = "auto",
    with_kernel_times: bool = False,
    with_growth: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """All measurements, as plain data. With `data_dir`, conv13 runs on the CIFAR-10 files there, else on made-up images."""
    if steps is not None and steps < 1:
        raise ConfigError(f"bench was asked to time {steps} steps; expected at least 1.")
    device = resolve_device(device_name)
    on_gpu = device.type == "cuda"
    if with_kernel_times and not on_gpu:
        raise ConfigError("the time of single kernels was asked for (--kernels), but is measured on a GPU only.")
    if data_dir is not None and not on_gpu:
        raise ConfigError(
            f"CIFAR-10's files were given ({data_dir}), but a CPU is measured on digits; leave --data-dir out."
        )
    resolve_precision(precision, device)  # to refuse one that the device has not
    steps = steps or (GPU_STEPS if on_gpu else CPU_STEPS)
    rate = matrix_rate(device)
    began = time.perf_counter()
    data = _gpu_data(data_dir) if on_gpu else sources.load("digits")
    loaded = time.perf_counter() - began
    results = []
    for method in methods:
        for mode in modes or (GPU_MODES if on_gpu else CPU_MODES):
            say(f"measuring {method}, {mode}")
            results.append(measure(method, mode, data, device, rate, steps, precision))
    if not on_gpu:
        say("measuring a plain loop against ours")
    return {
        "environment": conditions(data, device, precision),
        "network": "conv13" if on_gpu else "small",
        "data": data.name,
        "load_seconds": loaded,
        "batch_size": BATCH,
        "matrix_teraflops": rate,
        "measurements": [asdict(result) for result in results],
        "kernel_times": [time_kernels("temporal", mode, data, device) for mode in PROFILED]
        if with_kernel_times
        else [],
        "growth": time_epochs(device) if with_growth else [],
        "against_a_plain_loop": None if on_gpu else against_plain_loop(data, steps),
    }


def _gpu_data(data_dir: str | None) -> Dataset:
    return made_up(50_000, 10, on_gpu=True) if data_dir is None else sources.load("cifar10", data_dir=data_dir)
