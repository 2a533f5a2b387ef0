"""Short runs by which the settings of the modern presets were chosen, and the ablation: never on test rows.

    python benchmarks/trials.py --data-dir D [--jobs 4] [--epochs 50] [--output results/modern-trials.jsonl] [NAME ...]

5,000 training rows, as many of each class, are held out with their labels and tested on; the others are trained on, with
labels drawn by seed 100 and on. A name of `TRIALS` says which preset, how many labels and what is changed. One line of JSON
per trial. Several at a time share one GPU, so their seconds say little; start NVIDIA's multi-process service first. The
records of commit d858313 were made with memory 0.6 as the default, and with options that are gone; those of commit dad9dd8
with full batch normalization and SGD in cifar10-fast.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from selfens import presets
from selfens.core import losses as terms
from selfens.core.alignment import Alignment
from selfens.core.batch import Batch
from selfens.core.targets import EnsembleTargets, Targets
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.data.rows import take
from selfens.experiments.worker import current_commit
from selfens.methods import Losses, Method
from selfens.methods.base import TrainingRows
from selfens.methods.temporal_teacher import TemporalTeacher
from selfens.training.loop import train

HELD_OUT = 5000  # rows
PARTS: dict[str, tuple[str, ...]] = {  # of the method, each removed or changed once
    "": (),
    "-memory-0.6": ("method.memory=0.6",),
    "-memory-0.9": ("method.memory=0.9",),
    "-single-pass": ("method.memory=0.6",),
    "-unsharpened": ("method.temperature=1",),
    "-unaligned": ("method.alignment=none",),
    "-weak-view": ("views.operations=0", "views.cutout=0"),
}
FULL_SGD = (
    *("network.normalization=full", "optimizer.name=sgd"),
    *("optimizer.learning_rate=0.06", "optimizer.weight_decay=0.0005"),
)
TRIALS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    **{f"{labels}{name}": ("cifar10-modern", labels, part) for labels in (4000, 250) for name, part in PARTS.items()},
    **{
        f"{labels}-rate-{rate}": ("cifar10-modern", labels, (f"optimizer.learning_rate={rate}",))
        for labels in (4000, 250)
        for rate in (0.03, 0.06, 0.2)
    },
    "4000-temperature-0.3": ("cifar10-modern", 4000, ("method.temperature=0.3",)),
    "4000-3-operations": ("cifar10-modern", 4000, ("views.operations=3",)),
    "4000-decay-1e-3": ("cifar10-modern", 4000, ("optimizer.weight_decay=0.001",)),
    "4000-wrn": ("cifar10-modern", 4000, ("network.name=wrn-28-2",)),
    "250-teacher-0.995": ("cifar10-modern", 250, ("method.decay=0.995",)),
    "250-threshold": ("cifar10-modern", 250, ("method.threshold=0.95",)),
    "fast": ("cifar10-fast", 4000, ()),
    "fast-full-adam": ("cifar10-fast", 4000, ("network.normalization=full",)),
    "fast-full-sgd": ("cifar10-fast", 4000, FULL_SGD),
    "40": ("cifar10-modern", 40, ()),
    "svhn": ("svhn-modern", 1000, ()),
    "cifar100": ("cifar100-modern", 10_000, ()),
    "cifar100-decay-1e-3": ("cifar100-modern", 10_000, ("optimizer.weight_decay=0.001",)),
}


class SinglePass(Method):
    """The temporal teacher without teacher: targets are the network's own predictions of the strong view, averaged over the
    epochs before."""

    Options = TemporalTeacher.Options
    views, parts, labeled_share = TemporalTeacher.views, TemporalTeacher.parts, TemporalTeacher.labeled_share

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.ensemble = EnsembleTargets(rows.num_rows, rows.num_classes, self.options.memory, rows.device)
        self.alignment = Alignment("labels", rows.class_counts)

    def targets(self, rows: Tensor) -> Targets:
        return self.ensemble.get(rows)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets, weight: Tensor) -> Losses:
        (weak, strong), u, half = batch.views, batch.unlabeled, batch.num_labeled // 2
        logits = network(torch.cat([weak[:half], strong[half:]]))
        sharp = terms.sharpen(self.alignment.align(targets.probabilities), self.options.temperature)
        supervised = terms.supervised(logits, batch)
        unsupervised = terms.soft_cross_entropy(logits[u], sharp, targets.known)
        parts = {"supervised": supervised, "unsupervised": unsupervised, "kept": targets.known.float().mean()}
        return Losses(supervised + weight * unsupervised, parts, logits.detach().float().softmax(dim=1))

    def after_step(self, network: nn.Module, rows: Tensor, predictions: Tensor) -> None:
        self.alignment.follow(predictions)
        self.ensemble.write(rows, predictions)

    def end_epoch(self) -> None:
        self.ensemble.commit()


def held_out(data: Dataset, seed: int = 100) -> Dataset:
    """The training rows only, some of them as test rows."""
    random = np.random.default_rng(seed)
    inputs, labels = np.asarray(take(data.raw, data.train_rows)), data.train_labels
    classes = [random.permutation(np.flatnonzero(labels == number)) for number in range(data.num_classes)]
    test = np.sort(np.concatenate([rows[: HELD_OUT // data.num_classes] for rows in classes]))
    rest = np.setdiff1d(np.arange(data.num_train), test)
    return Dataset.from_arrays(
        inputs[rest], labels[rest], inputs[test], labels[test], classes=data.classes, name=f"{data.name} held out"
    )


def run(name: str, options: argparse.Namespace) -> dict:
    preset, labels, overrides = TRIALS[name]
    given = [f"labels.count={labels}", f"schedule.epochs={options.epochs}", f"seed.base={options.seed}"]
    config = presets.get(preset).with_overrides([*given, "training.evaluate_every=10", *overrides])
    data = held_out(sources.load(sources.options_for(config.source.title, folder=options.data_dir)))
    method = SinglePass(config.method) if name.endswith("single-pass") else None
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        trained = train(config, Path(folder) / "run", dataset=data, method=method)
        history, device = trained.history, trained.info.environment
    errors = {record["epoch"] + 1: record["test_error"] for record in history if record.get("test_error") is not None}
    seconds = [record["seconds"] for record in history]
    return {
        "trial": name,
        "preset": preset,
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
        "commit": current_commit(),
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
    options, failed = parser.parse_args(), []
    if unknown := [name for name in options.names if name not in TRIALS]:
        parser.error(f"there is no trial '{unknown[0]}'; expected some of {', '.join(TRIALS)}.")
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; expected at least 1.")
    if options.seed < 100:
        parser.error(f"--seed is {options.seed}; expected 100 or more: those below are for final runs.")
    if not options.output.parent.is_dir():
        parser.error(f"--output is {options.output}, and there is no folder {options.output.parent}; make it first.")
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {pool.submit(run, name, options): name for name in options.names}
        for done in as_completed(running):
            if error := done.exception():  # which must not lose the results of the others
                failed.append(f"{running[done]}: {error}")
                continue
            line = json.dumps(done.result())
            print(line, flush=True)
            with options.output.open("a") as file:
                file.write(line + "\n")
    if failed:
        sys.exit("failed: " + "\n".join(failed))


if __name__ == "__main__":
    main()
