"""How the time of an epoch grows with the number of rows and classes, and that it does not grow from epoch to epoch.

    python benchmarks/growth.py [--device auto] [--epochs 6] [--output results/benchmarks/growth.json]

Temporal ensembling on random images: conv13 and 32x32 on a GPU, the small network and 8x8 on a CPU. All steps and the update
of the ensemble are timed. Evaluation is not: it does not depend on the training rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from selfens.bench import build, conditions, config_for, random_images, settings, synchronize, write_json
from selfens.core.device import resolve_device
from selfens.data.dataset import Dataset
from selfens.training.components import Components

GPU_SIZES = ((12_500, 10), (25_000, 10), (50_000, 10), (100_000, 10), (50_000, 100), (50_000, 1000))
CPU_SIZES = ((500, 10), (1000, 10), (2000, 10), (1000, 100))


def measure(data: Dataset, device: torch.device, epochs: int) -> dict:
    config = config_for("temporal", data, device).with_values("labels", count=None)
    with settings(config, device):
        parts = build(config, data, device, [])
        seconds = [time_epoch(parts, epoch) for epoch in range(epochs + 1)][1:]  # the first compiles
    return {
        "rows": data.num_train,
        "classes": data.num_classes,
        "seconds_per_epoch": statistics.median(seconds),
        "microseconds_per_row": 1e6 * statistics.median(seconds) / data.num_train,
        "last_epoch_over_first": seconds[-1] / seconds[0],
        "epochs": epochs,
    }


def time_epoch(parts: Components, epoch: int) -> float:
    synchronize(parts.prepared.device)
    began = time.perf_counter()
    for rows in parts.visit(epoch):
        parts.step(rows)
    parts.method.end_epoch()
    synchronize(parts.prepared.device)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--epochs", type=int, default=6, help="timed, after one that is not")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/growth.json"))
    options = parser.parse_args()
    device = resolve_device(options.device)
    on_gpu = device.type == "cuda"
    shape = (3, 32, 32) if on_gpu else (1, 8, 8)
    print("| rows | classes | s per epoch | µs per row | last epoch / first |\n|---:|---:|---:|---:|---:|")
    results = []
    for rows, classes in GPU_SIZES if on_gpu else CPU_SIZES:
        data = random_images(rows, classes, shape)
        results.append(result := measure(data, device, options.epochs))
        print(
            f"| {rows:,} | {classes:,} | {result['seconds_per_epoch']:.3f} | {result['microseconds_per_row']:.2f} | "
            f"{result['last_epoch_over_first']:.3f} |",
            flush=True,
        )
    about = conditions(config_for("temporal", data, device), device)
    write_json(options.output, {"environment": about, "growth": results})


if __name__ == "__main__":
    main()
