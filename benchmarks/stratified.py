"""Test error with labelled rows shuffled, spread evenly over the batches, and repeated so that no batch lacks one.

    python benchmarks/stratified.py [--seeds 8] [--output results/benchmarks/stratified.json]

scikit-learn's digits with 10 and with 20 labels, temporal ensembling with the preset's settings, 12 batches an epoch; a seed
draws labels, split and training, the same for all. With 20 labels nothing has to be repeated, so that is left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from selfens import presets
from selfens.core.device import environment
from selfens.training.loop import train

SETTINGS = {10: ("shuffled", "stratified", "repeated"), 20: ("shuffled", "stratified")}


def error(labels: int, batches: str, seed: int) -> float:
    config = presets.get("digits-temporal").with_overrides(
        [
            f"data.labels={labels}",
            f"training.batches={batches}",
            f"seed.base={seed}",
            "training.device=cpu",
            "training.threads=1",
            "training.checkpoint_every=60",
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        found = train(config, Path(folder) / "run").test_error
    assert found is not None
    return found


def cell(labels: int, batches: str, errors: list[float], shuffled: list[float]) -> dict:
    """What one setting gave, and by how much more than shuffling, paired by seed."""
    difference = np.array(errors) - np.array(shuffled)
    count = len(errors)
    return {
        "labels": labels,
        "batches": batches,
        "errors": errors,
        "mean": float(np.mean(errors)),
        "deviation": float(np.std(errors, ddof=1)) if count > 1 else 0.0,
        "difference": float(difference.mean()),
        "difference_error": float(difference.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0,
    }


def markdown(cells: list[dict]) -> str:
    lines = ["| labels | batches | test error % | less shuffled, points |", "|---:|---|---:|---:|"]
    for c in cells:
        paired = "" if c["batches"] == "shuffled" else f"{c['difference']:+.1f} ± {c['difference_error']:.1f}"
        error = f"{c['mean']:.1f} ± {c['deviation']:.1f}"
        lines.append(f"| {c['labels']} | {c['batches']} | {error} | {paired} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/stratified.json"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    about = environment(torch.device("cpu"), "fp32") | {"seeds": list(range(options.seeds)), "threads": 1}
    cells: list[dict] = []
    for labels, settings in SETTINGS.items():
        shuffled: list[float] = []
        for batches in settings:
            errors = [error(labels, batches, seed) for seed in range(options.seeds)]
            shuffled = shuffled or errors
            cells.append(cell(labels, batches, errors, shuffled))
            options.output.write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n")
    print(f"Mean ± deviation over {options.seeds} seeds; differences paired by seed, ± their standard error.\n")
    print(markdown(cells))


if __name__ == "__main__":
    main()
