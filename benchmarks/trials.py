"""Short runs by which the settings of cifar10-modern were chosen: never on test rows.

    python benchmarks/trials.py --data-dir D [--jobs 4] [--epochs 50] [--output results/modern-trials.jsonl] [NAME ...]

5,000 training rows, 500 of each class, are held out with their labels and tested on; the other 45,000 are trained on, with
labels drawn by seed 100 and on. A name of `TRIALS` is a number of labels and what is changed of the preset. One line of JSON
per trial. Several at a time share one GPU, so their seconds say little; start NVIDIA's multi-process service first. The
records of commit d858313 were made with memory 0.6 as the default, and with options that are gone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from selfens import presets
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.training.loop import train

HELD_OUT = 500  # of each class
TRIALS: dict[str, tuple[int, tuple[str, ...]]] = {
    "4000": (4000, ()),
    "4000-memory-0.6": (4000, ("method.memory=0.6",)),
    "4000-temperature-0.3": (4000, ("method.temperature=0.3",)),
    "4000-3-operations": (4000, ("augment.operations=3",)),
    "4000-decay-1e-3": (4000, ("optimizer.weight_decay=0.001",)),
    "4000-mean-only": (
        4000,
        (
            "network.normalization=mean",
            "optimizer.name=adam",
            "optimizer.learning_rate=0.003",
            "optimizer.weight_decay=0",
        ),
    ),
    "4000-wrn": (4000, ("network.name=wrn-28-2",)),
    "250": (250, ()),
    "250-memory-0.6": (250, ("method.memory=0.6",)),
    "250-memory-0.9": (250, ("method.memory=0.9",)),
    "250-threshold": (250, ("method.threshold=0.95",)),
}


def held_out(data: Dataset, seed: int = 100) -> Dataset:
    """The training rows only, some of them as test rows."""
    random = np.random.default_rng(seed)
    classes = [random.permutation(np.flatnonzero(data.labels == number)) for number in range(data.num_classes)]
    test = np.sort(np.concatenate([rows[:HELD_OUT] for rows in classes]))
    rest = np.setdiff1d(np.arange(data.num_rows), test)
    inputs, labels = np.asarray(data.inputs), data.labels
    return Dataset.from_arrays(
        inputs[rest], labels[rest], inputs[test], labels[test], classes=data.classes, name=f"{data.name} held out"
    )


def run(name: str, options: argparse.Namespace) -> dict:
    labels, overrides = TRIALS[name]
    given = [f"data.labels={labels}", f"schedule.epochs={options.epochs}", f"seed.base={options.seed}"]
    config = presets.get("cifar10-modern").with_overrides([*given, "training.evaluate_every=10", *overrides])
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        trained = train(
            config, Path(folder) / "run", dataset=held_out(sources.load("cifar10", data_dir=options.data_dir))
        )
        history, device = trained.history, trained.about["environment"]
    errors = {record["epoch"] + 1: record["test_error"] for record in history if record.get("test_error") is not None}
    seconds = [record["seconds"] for record in history]
    return {
        "trial": name,
        "labels": labels,
        "overrides": list(overrides),
        "epochs": options.epochs,
        "seed": options.seed,
        "error": history[-1]["test_error"],
        "errors": errors,
        "kept": history[-1]["kept"],
        "seconds": round(sum(seconds), 1),
        "seconds_per_epoch": round(float(np.median(seconds)), 3),
        "images_per_second": round(history[-1]["images_per_second"]),
        "from_start": round(time.time() - began, 1),
        "at_a_time": options.jobs,
        "commit": os.environ.get("SELFENS_COMMIT", ""),
        "environment": device,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("results/modern-trials.jsonl"))
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(TRIALS))
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(run, name, options) for name in options.names]):
            line = json.dumps(done.result())
            print(line, flush=True)
            with options.output.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
