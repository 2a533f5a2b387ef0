"""USB's FixMatch beside ours: on the same labeled rows of CIFAR-10, on the same card, for the same time.

    pip install --no-deps semilearn==0.3.2      # and the torchvision of your torch
    python benchmarks/peer.py --data-dir D --record results/runs/modern/CELL/seed000.json [--output results/peer.jsonl]
    python benchmarks/peer.py --data-dir D [--preset cifar10-modern] [--labels 4000] [--seed 0]     # trains ours first
    python benchmarks/peer.py --data-dir D --record FILE --packages FOLDER      # if semilearn was installed by --target FOLDER

Algorithm, network, optimizer, schedule, training loop, sampler, data set and RandAugment are semilearn's, with the settings
of its fixmatch_cifar10_*.yaml (WRN-28-2, batches of 64 + 448), except what is for speed: one epoch, so that its workers start
once and the test rows are evaluated once, at the end and by its averaged weights; workers for all cores but two; and its
mixed precision (fp16), if that is faster. A probe finds that out, and how many iterations fit into our time: its cosine
ends with them. Seconds are from the first step to the final error, the probes left out. Images per second are those of the
loss, labeled or strongly augmented; the passes that only give targets are in the time. Needs a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import tempfile
import time
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

from selfens import encoders, presets
from selfens.config import Config
from selfens.core.device import environment, resolve_precision
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.data.labels import LabelChoice, choose_labels
from selfens.data.rows import take
from selfens.data.sampler import Sampler
from selfens.encoders.dataset import EncodedDataset
from selfens.errors import ConfigError, MissingPackageError, RunError, SelfensError
from selfens.experiments.records import DAMAGE, Record, one_line
from selfens.methods import METHODS
from selfens.training.loop import train

PROBE = 240  # iterations; the pace is that of the second half, after the batches that workers had prepared at the start
# Its defaults are the rest: WRN-28-2, threshold 0.95, hard labels, Nesterov 0.03, decay 5e-4, average of weights 0.999.
SETTINGS = {"dataset": "none", "batch_size": 64, "uratio": 7, "eval_batch_size": 256, "num_eval_iter": 0}
SETTINGS |= {"gpu": 0, "distributed": False, "num_workers": max(1, len(os.sched_getaffinity(0)) - 2)}
# What semilearn imports for tracking, text, audio and other networks: its FixMatch calls none of it.
UNUSED = ("aim", "wandb", "torch.utils.tensorboard", "ruamel", "ruamel.yaml", "progress.bar", "tqdm", "skimage.util")
UNUSED += ("timm.models.layers", "torchaudio", "transformers")


def labels_of(config: Config, data: Dataset) -> LabelChoice:
    """As a run with this config chooses them."""
    return choose_labels(data, config.labels, label_seed=config.seed.of("labels"), split_seed=config.seed.of("split"))


def iterations_of(config: Config, data: Dataset, labels: LabelChoice) -> int:
    """The steps of a whole run."""
    training, num_labeled = config.training, config.training.labeled_per_batch
    rows = labels.rows if training.rows == "labeled" else np.arange(data.num_train)
    if num_labeled is None:
        share = 0 if training.rows == "labeled" else METHODS.find(config.method.name).labeled_share
        num_labeled = min(round(share * training.batch_size), len(labels.rows))
    known, least = np.isin(rows, labels.rows), training.min_steps_per_epoch
    sampler = Sampler(rows, known, training.batch_size, 0, num_labeled=num_labeled, min_steps=least)
    return config.schedule.epochs * sampler.steps


def fingerprint_of(config: Config, data: Dataset) -> str:
    """As a run with this config has it."""
    encoder = encoders.build(config.encoder)
    encoder.fit(data.raw, data.train_rows)
    return EncodedDataset.make(data, encoder).fingerprint


def recorded(path: Path, data: Dataset) -> tuple[Config, dict]:
    """The config and result of a record, if it is of these rows, this card, and nothing else was running."""
    try:
        record = Record.from_json(path.read_text())
    except DAMAGE as error:
        raise RunError(f"{path} is not a record ({one_line(error)}); expected one of results/runs.") from None
    if record.final_error is None or record.shared_device:
        raise RunError(f"the run of {path} diverged, or shared its device; expected one that measures error and time.")
    theirs, here = record.environment.get("device"), torch.cuda.get_device_name()
    if theirs != here:
        raise RunError(f"{path} was made on {theirs}, and this is {here}; use the same card.")
    same_rows = record.data == fingerprint_of(record.config, data)
    if not same_rows or record.labeled_rows != labels_of(record.config, data).digest():
        raise RunError(f"{path} was made with other images or labels; give the --data-dir that it was made with.")
    return record.config, {"error": record.final_error, "seconds": record.seconds, "commit": record.commit}


def trained(arguments: argparse.Namespace, data: Dataset) -> tuple[Config, dict]:
    """The config of a preset, and its result, from a run on this card."""
    config = presets.get(arguments.preset)
    if config.source.title != data.name:
        raise ConfigError(f"the preset {arguments.preset} is for {config.source.title}; expected one for {data.name}.")
    given = [f"labels.count={arguments.labels}", f"seed.base={arguments.seed}", "training.device=cuda"]
    with tempfile.TemporaryDirectory() as folder:
        run = train(config.with_overrides(given), Path(folder) / "run", dataset=data)
        return run.config, {"error": run.test_error, "seconds": sum(epoch["seconds"] for epoch in run.history)}


def import_semilearn() -> None:
    """With placeholders, while it is imported, for what it does not need here: those packages may be missing, or fail."""
    before = {name: sys.modules.get(name) for name in UNUSED}
    sys.modules.update({name: MagicMock(__spec__=ModuleSpec(name, None)) for name in UNUSED})
    try:
        importlib.import_module("semilearn")
    except (ImportError, OSError, RuntimeError) as error:  # the last two if a package was built for another torch
        advice = "pip install --no-deps semilearn==0.3.2, and the torchvision of your torch"
        raise MissingPackageError(f"semilearn cannot be imported ({one_line(error)}); {advice}.") from None
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def fixmatch(data: Dataset, labels: LabelChoice, seed: int, amp: bool, iterations: int) -> dict:
    """One training by semilearn; the error is that of its last iteration, on the test rows."""
    from semilearn import BasicDataset, get_algorithm, get_config, get_data_loader, get_net_builder
    from semilearn.core.hooks import Hook
    from semilearn.core.utils import send_model_cuda
    from semilearn.datasets.augmentation import RandAugment
    from semilearn.datasets.cv_datasets.cifar import mean, std
    from torchvision import transforms

    began, ended = [], []

    class Clock(Hook):
        def before_train_step(self, algorithm):
            began.append(time.perf_counter())

        def after_train_step(self, algorithm):  # after semilearn's own hooks, of which the last step's evaluates
            ended.append(time.perf_counter())

    def loader(inputs, targets, transform, size, *, strong=None, unlabeled=False, **options):
        rows = np.ascontiguousarray(np.moveaxis(inputs, 1, -1))
        rows = BasicDataset(args.algorithm, rows, targets, args.num_classes, transform, unlabeled, strong)
        return get_data_loader(args, rows, size, pin_memory=True, **options)

    crop, flip = transforms.RandomCrop(32, padding=4, padding_mode="reflect"), transforms.RandomHorizontalFlip()
    plain = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean["cifar10"], std["cifar10"])])
    weak, strong = transforms.Compose([crop, flip, plain]), transforms.Compose([crop, flip, RandAugment(3, 5), plain])
    train_inputs, test_inputs = (np.asarray(take(data.raw, rows)) for rows in (data.train_rows, data.test_rows))
    with tempfile.TemporaryDirectory() as folder:
        given = {"save_dir": folder, "num_train_iter": iterations, "amp": amp, "seed": seed}
        args = get_config(SETTINGS | given | {"num_labels": len(labels.rows)})
        torch.manual_seed(seed)  # from which the seeds of the workers are drawn, too
        algorithm = get_algorithm(args, get_net_builder(args.net, False), None, logging.getLogger("semilearn"))
        algorithm.model = send_model_cuda(args, algorithm.model)
        algorithm.ema_model = send_model_cuda(args, algorithm.ema_model)
        size, many = args.batch_size, {"num_workers": args.num_workers}
        test = {"data_sampler": None, "drop_last": False, **many}
        algorithm.loader_dict = {
            "train_lb": loader(train_inputs[labels.rows], labels.labels, weak, size, num_workers=1),
            "train_ulb": loader(train_inputs, None, weak, size * args.uratio, strong=strong, unlabeled=True, **many),
            "eval": loader(test_inputs, data.test_labels, plain, args.eval_batch_size, **test),
        }
        algorithm.register_hook(Clock(), "Clock", "LOWEST")
        algorithm.train()
    half = len(began) // 2
    return {
        "error": 100 * (1 - algorithm.log_dict["eval/top-1-acc"]),
        "seconds": ended[-1] - began[0],
        "iterations": len(began),
        "batch": size * (1 + args.uratio),
        "seconds_per_iteration": (began[-1] - began[half]) / max(1, len(began) - 1 - half),
        "seconds_of_last": ended[-1] - began[-1],
        "waited_for_data": sum(began[1:]) - sum(ended[:-1]),
        "settings": vars(args),
    }


def compare(arguments: argparse.Namespace) -> None:
    if not torch.cuda.is_available():
        raise RunError("semilearn trains on a GPU only, and torch sees none; expected an NVIDIA GPU.")
    if arguments.output and not arguments.output.parent.is_dir():
        raise RunError(f"{arguments.output.parent} is no folder; make it first, or give another --output.")
    import_semilearn()
    data = sources.load(sources.options_for("cifar10", folder=arguments.data_dir))
    device = torch.device("cuda")
    config, ours = recorded(arguments.record, data) if arguments.record else trained(arguments, data)
    labels, seed = labels_of(config, data), config.seed.base
    ours |= {"iterations": iterations_of(config, data, labels), "batch": config.training.batch_size}
    torch.backends.cudnn.benchmark = True  # as semilearn's own script has it
    paces = {}
    for amp in (False, True):
        probe = fixmatch(data, labels, seed, amp, PROBE)
        paces[amp] = probe["seconds_per_iteration"], probe["seconds_of_last"]
    amp = paces[True] < paces[False]
    pace, last = paces[amp]
    peer = fixmatch(data, labels, seed, amp, max(1, int((ours["seconds"] - last) / pace)))
    about = environment(device, resolve_precision(config.training.precision, device))
    about |= {"semilearn": version("semilearn"), "cores": os.cpu_count()}
    print(f"{len(labels.rows):,} labels, seed {seed}, {about['device']}")
    for name, result in (("ours", ours), ("FixMatch", peer)):
        result["images_per_second"] = round(result["iterations"] * result["batch"] / result["seconds"])
        figures = "{error:6.2f} %  {seconds:6.1f} s  {iterations:7,} iterations  {images_per_second:7,} images/s"
        print(f"{name:8}", figures.format(**result))
    print(
        f"FixMatch with{'' if amp else 'out'} amp; {peer['waited_for_data']:.1f} s of its time it waited for its workers"
    )
    if arguments.output:
        line = {"ours": ours | {"config": config.to_dict()}, "peer": peer, "labeled_rows": labels.digest()}
        with arguments.output.open("a") as file:
            file.write(json.dumps(line | {"environment": about}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="where CIFAR-10's files are")
    parser.add_argument("--record", type=Path, help="of our run; without one, ours is trained first")
    parser.add_argument("--preset", default="cifar10-modern")
    parser.add_argument("--labels", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", help="a folder to import semilearn from")
    parser.add_argument("--output", type=Path, help="add a line of JSON to this file")
    arguments = parser.parse_args()
    sys.path += [arguments.packages] if arguments.packages else []
    try:
        compare(arguments)
    except SelfensError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
