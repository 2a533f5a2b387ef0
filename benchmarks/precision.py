"""Whether a run ends at the same error in bf16 and in TF32: the paper's CIFAR-10 protocol, shortened, on a GPU.

    python benchmarks/precision.py --data-dir D [--epochs 30] [--seeds 3] [--output results/benchmarks/precision.json]

Ramps keep their proportion. Both precisions see the same labels, order and initial weights for a seed, so errors are paired.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch

from selfens import presets
from selfens.core.device import environment
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.training.loop import train

PRECISIONS = ("bf16", "tf32")


def run(precision: str, seed: int, dataset: Dataset, options: argparse.Namespace) -> dict:
    config = presets.get("cifar10-temporal").with_overrides(
        [f"training.precision={precision}", f"seed.base={seed}", f"schedule.epochs={options.epochs}"]
    )
    with tempfile.TemporaryDirectory() as folder:
        history = train(config, Path(folder) / "run", dataset=dataset).history
    last = history[-1]
    result = {"precision": precision, "seed": seed, "test_error": last["test_error"]}
    result |= {"seconds": sum(r["seconds"] for r in history), "images_per_second": last["images_per_second"]}
    print(json.dumps(result), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/precision.json"))
    options = parser.parse_args()
    dataset = sources.load(sources.options_for("cifar10", folder=options.data_dir))
    runs = [run(precision, seed, dataset, options) for seed in range(options.seeds) for precision in PRECISIONS]
    errors = {kind: [r["test_error"] for r in runs if r["precision"] == kind] for kind in PRECISIONS}
    differences = [bf16 - tf32 for bf16, tf32 in zip(*errors.values(), strict=True)]
    result = {
        "environment": environment(torch.device("cuda"), "bf16 and tf32"),
        "epochs": options.epochs,
        "runs": runs,
        "mean_error": {kind: statistics.mean(values) for kind, values in errors.items()},
        "mean_difference": statistics.mean(differences),
        "deviation_of_difference": statistics.stdev(differences) if len(differences) > 1 else None,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({key: result[key] for key in ("mean_error", "mean_difference", "deviation_of_difference")}))


if __name__ == "__main__":
    main()
