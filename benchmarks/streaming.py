"""Training speed with the inputs on the device, streamed from RAM, and streamed from a memory-mapped .npy file.

    python benchmarks/streaming.py [--rows 50000] [--steps 500] [--output results/benchmarks/streaming.json]

Temporal ensembling with the CIFAR-10 preset (conv13, ZCA, batch 100) on a GPU; a small network and fewer rows on a CPU. The
images are made up, as bytes of 3x32x32; what they show does not matter here. The three take turns, and the median counts. The
file has just been written, so it is read from the system's page cache; from a disk, reading 3 KB rows in random order is what
the disk makes of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch

from selfens import Dataset, presets
from selfens.bench import build, conditions, endless_rows, settings, time_steps
from selfens.config import Config
from selfens.core.device import resolve_device

RESIDENCES = ("device", "ram", "file")


def write_images(folder: Path, rows: int) -> Path:
    random = np.random.default_rng(0)
    images = np.lib.format.open_memmap(folder / "x_train.npy", mode="w+", dtype=np.uint8, shape=(rows, 3, 32, 32))
    for start in range(0, rows, 10_000):
        images[start : start + 10_000] = random.integers(0, 256, images[start : start + 10_000].shape, dtype=np.uint8)
    np.save(folder / "y_train.npy", np.arange(rows) % 10)
    return folder


def config_of(on_gpu: bool) -> Config:
    config = presets.get("cifar10-temporal").with_values("training", device="cuda" if on_gpu else "cpu")
    if on_gpu:
        return config
    config = config.with_values("network", name="small").with_values("preprocess", kind="channel")
    return config.with_values("labels", count=100)


def measure(folder: Path, device: torch.device, steps: int, turns: int) -> dict:
    config, data, notes = config_of(device.type == "cuda"), Dataset.from_npy(folder), list[str]()
    with settings(config, device):
        trainings = {
            where: build(config.with_values("training", residence=where), data, device, notes) for where in RESIDENCES
        }
        rows = {where: endless_rows(parts) for where, parts in trainings.items()}
        speeds: dict[str, list[float]] = {where: [] for where in RESIDENCES}
        for turn in range(turns + 1):
            for where, parts in trainings.items():
                speed = parts.loader.batch_size / time_steps(parts, rows[where], steps)
                if turn:  # the first one compiles, captures and warms up
                    speeds[where].append(speed)
    medians = {where: statistics.median(values) for where, values in speeds.items()}
    return {
        "environment": conditions(config, device),
        "network": config.network.name,
        "rows": data.num_train,
        "megabytes": data.raw.nbytes / 1e6,
        "batch_size": config.training.batch_size,
        "steps_per_turn": steps,
        "images_per_second": medians,
        "share_of_resident": {where: medians[where] / medians["device"] for where in RESIDENCES},
        "turns": speeds,
        "notes": notes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, help="50,000 on a GPU, 5,000 on a CPU")
    parser.add_argument("--steps", type=int, help="of a turn; 500 on a GPU, 20 on a CPU")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/streaming.json"))
    options = parser.parse_args()
    device = resolve_device(options.device)
    rows, steps = (50_000, 500) if device.type == "cuda" else (5_000, 20)
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), options.rows or rows)
        result = measure(Path(folder), device, options.steps or steps, options.turns)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print("| inputs | images/s | of resident |\n|---|---:|---:|")
    for where in RESIDENCES:
        share = result["share_of_resident"][where]
        print(f"| {where} | {result['images_per_second'][where]:,.0f} | {share:.0%} |")
    for note in result["notes"]:
        print(note)


if __name__ == "__main__":
    main()
