"""Where the time of a training step goes on a GPU: the time of its kernels, by what they do.

    python benchmarks/kernel_times.py [--method temporal] [--data-dir D] [--output results/benchmarks/kernel-times.json]

Profiles 20 replayed steps of conv13, with and without our own kernels, on CIFAR-10 if its files are given, else on random
images.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from selfens.bench import (
    build,
    conditions,
    config_for,
    endless_rows,
    random_images,
    settings,
    synchronize,
    time_steps,
    with_mode,
    write_json,
)
from selfens.core.device import resolve_device
from selfens.data import sources
from selfens.data.dataset import Dataset

PROFILED = ("compiled+captured", "compiled+captured+kernels")
STEPS = 20
WARM_UP = 20
NAMED = 60
KINDS = {
    "convolutions, forward": "fprop",
    "convolutions, input gradient": "dgrad",
    "convolutions, weight gradient": "wgrad",
    "clearing memory": "memset|fillfunctor",
    "our kernels, backward": "^(_add_up_gradient|_write_(input_)?gradient)",
    "our kernels, forward": "^(_add_up|_shift_and_activate|_scale_)",
    "matrix products": "gemm|nvjet|splitk|cublas",
    "kernels of the compiler": "^triton_",
}
"""Patterns of the names that libraries and compilers give their kernels; the first that matches decides."""
OTHER = "everything else"


def kind_of(kernel: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE)), OTHER)


def time_kernels(method: str, mode: str, data: Dataset, device: torch.device) -> dict:
    """Microseconds per step of each kind of kernel, and by name the kernels that take longest."""
    config = with_mode(config_for(method, data, device), mode)
    with settings(config, device):
        parts = build(config, data, device, [])
        rows = endless_rows(parts)
        time_steps(parts, rows, WARM_UP)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(STEPS):
                parts.step(next(rows))
            synchronize(device)
    times = {event.key: event.self_device_time_total / STEPS for event in profiler.key_averages()}
    kinds = dict.fromkeys([*KINDS, OTHER], 0.0)
    for kernel, microseconds in times.items():
        kinds[kind_of(kernel)] += microseconds
    longest = sorted(times.items(), key=lambda item: -item[1])[:NAMED]
    return {"method": method, "mode": mode, "total": sum(times.values()), "kinds": kinds, "kernels": dict(longest)}


def markdown(profiles: list[dict]) -> str:
    lines = ["| µs per step | " + " | ".join(p["mode"] for p in profiles) + " |", "|---|" + "---:|" * len(profiles)]
    for kind in profiles[0]["kinds"]:
        lines.append(f"| {kind} | " + " | ".join(f"{p['kinds'][kind]:,.0f}" for p in profiles) + " |")
    return "\n".join([*lines, "| sum | " + " | ".join(f"{p['total']:,.0f}" for p in profiles) + " |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="temporal")
    parser.add_argument("--data-dir", help="CIFAR-10's files")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/kernel-times.json"))
    options = parser.parse_args()
    device = resolve_device("cuda")
    cifar = sources.options_for("cifar10", folder=options.data_dir)
    data = sources.load(cifar) if options.data_dir else random_images(50_000)
    profiles = [time_kernels(options.method, mode, data, device) for mode in PROFILED]
    print(markdown(profiles))
    about = conditions(config_for(options.method, data, device), device)
    write_json(options.output, {"environment": about, "data": data.name, "kernel_times": profiles})


if __name__ == "__main__":
    main()
