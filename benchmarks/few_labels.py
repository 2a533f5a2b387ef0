"""CIFAR-10 with 40 labels: the temporal teacher after pretraining without labels (docs/modern.md, "Forty labels").

    python benchmarks/few_labels.py --data-dir D --seed 0 >> results/runs/modern/few-labels.jsonl
    python benchmarks/few_labels.py --data-dir D --seed 100 --held-out --epochs 80 --width 64

A custom method and a network with a second head, in one file, trained by `selfens.train`. While pretraining, the network
learns which two crops are of the same image (contrast, as in SimCLR and MoCo); the labels train only the last layer, and do not
change its features. Then it is the temporal teacher. Settings are those of cifar10-modern but for the learning rate, the
epochs and the teacher's decay while pretraining. Prints a line of JSON. With --held-out, the error is that of 5,000 training
rows held out with their labels, as in trials.py; seeds below 100 are for final runs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from trials import held_out

from selfens import networks, presets
from selfens.config import Config
from selfens.core import losses as terms
from selfens.core.alignment import Alignment
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.core.teacher import EmaTeacher
from selfens.core.views import COLORS, MAX_CHANGE, VIEWS, View, Views, gray, warp
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.errors import SelfensError
from selfens.experiments.worker import current_commit
from selfens.methods import Losses, Method
from selfens.methods.base import TrainingRows, UnscaledOptions
from selfens.settings import setting
from selfens.training.loop import train

EPOCHS, PRETRAINING, LEARNING_RATE = 160, 0.4, 0.05  # pretraining is a part of the epochs
KEY_SIZE, TEMPERATURE = 128, 0.2  # of contrast
SMALLEST_CROP, MAX_STRETCH, MAX_JITTER, MAX_HUE = 0.2, 4 / 3, 0.4, math.pi / 5
JITTERED, GRAYED = 0.64, 0.2  # fractions of the crops whose colors are changed, or removed


def crop_view(views: Views, images: Tensor) -> Tensor:
    """The view `crop`: a part of the image at full size, its colors changed or removed if the images are pixels."""
    uniform, fill = torch.rand(10, len(images), device=images.device), 0.5 if views.pixels else 0.0
    cropped = crop(images, uniform[:4], uniform[4] < (0.5 if views.options.flip else 0.0), fill)
    if not views.pixels:
        return cropped
    jittered, chosen = change_colors(cropped, uniform[5:9]), uniform[9].view(-1, 1, 1, 1)
    return torch.where(chosen < GRAYED, gray(cropped), torch.where(chosen < GRAYED + JITTERED, jittered, cropped))


def crop(images: Tensor, uniform: Tensor, flips: Tensor, fill: float) -> Tensor:
    """Enlarge a rectangle of each image to the size of the image, mirrored if flips[i].

    Area, shape and position follow from four numbers between 0 and 1 for each image.
    """
    area = SMALLEST_CROP + (1 - SMALLEST_CROP) * uniform[0]
    stretch = MAX_STRETCH ** (2 * uniform[1] - 1)
    width, height = (area * stretch).sqrt().clamp(max=1), (area / stretch).sqrt().clamp(max=1)
    right, down = (2 * uniform[2] - 1) * (1 - width), (2 * uniform[3] - 1) * (1 - height)
    zero = torch.zeros_like(width)
    top = torch.stack([torch.where(flips, -width, width), zero, right], dim=1)
    return warp(images, torch.stack([top, torch.stack([zero, height, down], dim=1)], dim=1), fill)


def change_colors(images: Tensor, uniform: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and, of RGB images, hue, from four numbers between 0 and 1 for each image."""
    strengths = (2 * uniform - 1).view(4, -1, 1, 1, 1)
    for name, strength in zip(("brightness", "contrast", "saturation"), strengths[:3], strict=True):
        images = COLORS[name](images, strength * MAX_JITTER / MAX_CHANGE).clamp(0, 1)
    return turn_hue(images, strengths[3] * MAX_HUE).clamp(0, 1) if images.shape[1] == 3 else images


def turn_hue(images: Tensor, angle: Tensor) -> Tensor:
    """Rotate colors about the gray axis, by an angle for each image."""
    red, green, blue = (images[:, channel : channel + 1] for channel in range(3))
    same, other = (1 + 2 * angle.cos()) / 3, (1 - angle.cos()) / 3
    less, more = other - angle.sin() / math.sqrt(3), other + angle.sin() / math.sqrt(3)
    turned = (same * red + less * green + more * blue, more * red + same * green + less * blue)
    return torch.cat([*turned, less * red + more * green + same * blue], dim=1)


VIEWS["crop"] = View(crop_view, has_colors=True, dimensions=(3,))


class TwoHeads(nn.Module):
    """A sequential network whose last layer gives logits, and a second head that gives unit vectors."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.body, self.dense = network[:-1], network[-1]
        features = self.dense.in_features
        self.head = nn.Sequential(nn.Linear(features, 2 * KEY_SIZE), nn.ReLU(), nn.Linear(2 * KEY_SIZE, KEY_SIZE))

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.body(x))

    def project(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            return functional.normalize(self.head(features.float()), dim=1)


class Pretrained(Method):
    """While pretraining, the teacher sees a crop of each unlabeled row and the network another one, whose vector must be
    nearer to the teacher's than to the vectors of the batch's other rows. Then they see the weak and the strong view, and it
    is the temporal teacher. Both parts are computed in every step, so that it can be captured, and one is chosen."""

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "pretrained"
        pretraining_epochs: int = setting(0, "Epochs of pretraining.", at_least=0)
        pretraining_decay: float = setting(0.99, "Momentum of the teacher's weights in these.", at_least=0, below=1)
        decay: float = setting(0.999, "Momentum of the teacher's weights afterward.", at_least=0, below=1)
        temperature: float = setting(0.5, "Targets are raised to the power 1/temperature.", above=0, at_most=1)

    views = ("weak", "strong", "crop", "crop")
    parts = ("supervised", "unsupervised", "contrast")
    labeled_share = 0.2

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.teacher = EmaTeacher(network, self.options.decay)
        self.teacher.network.eval()
        self.alignment = Alignment("labels", rows.class_counts)
        self.epoch = torch.zeros((), dtype=torch.int64, device=rows.device)
        self.decay = self.teacher.decay = torch.zeros((), device=rows.device)
        self.set_decay()

    def set_decay(self) -> None:
        pretraining = int(self.epoch) < self.options.pretraining_epochs
        self.decay.fill_(self.options.pretraining_decay if pretraining else self.options.decay)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        weak, strong, teachers_crop, students_crop = batch.views
        u, first, half = batch.unlabeled, batch.num_labeled, batch.num_labeled // 2
        pretrained = self.epoch >= self.options.pretraining_epochs
        seen = torch.where(pretrained, strong[u], students_crop[u])
        features = network.body(torch.cat([weak[:half], strong[half:first], seen]))
        labeled = torch.where(pretrained, features[:first], features[:first].detach())
        logits = network.dense(torch.cat([labeled, features[first:]]))
        with torch.no_grad():
            teacher = self.teacher.network
            taught_features = teacher.body(torch.where(pretrained, weak[u], teachers_crop[u]))
            taught = teacher.dense(taught_features).float().softmax(dim=1)
            keys = teacher.project(taught_features)
            sharp = terms.sharpen(self.alignment.align(taught), self.options.temperature)
        supervised = terms.supervised(logits, batch)
        unsupervised = terms.soft_cross_entropy(logits[u], sharp, torch.ones_like(sharp[:, 0], dtype=torch.bool))
        contrast = info_nce(network.project(features[first:]), keys)
        parts = {"supervised": supervised, "unsupervised": unsupervised, "contrast": contrast}
        total = supervised + torch.where(pretrained, weight * unsupervised, contrast)
        return Losses(total, parts, torch.cat([logits[:first].detach().float().softmax(dim=1), taught]))

    def after_step(self, network: nn.Module, rows: Tensor, predictions: Tensor) -> None:
        self.alignment.follow(predictions)
        self.teacher.update()

    def end_epoch(self) -> None:
        self.epoch += 1
        self.set_decay()


def info_nce(queries: Tensor, keys: Tensor) -> Tensor:
    """Cross-entropy of each query's own key among all keys. (In bf16, the product is rounded to that.)"""
    scores = queries @ keys.T / TEMPERATURE
    return (scores.logsumexp(dim=1) - scores.diagonal()).mean()


def run(config: Config, data: Dataset, pretraining: float) -> dict:
    torch.manual_seed(config.seed.base)
    network = TwoHeads(networks.build(config.network, data.raw.shape[1:], data.num_classes))
    epochs = round(pretraining * config.schedule.epochs)
    method = Pretrained(Pretrained.Options(pretraining_epochs=epochs))
    with tempfile.TemporaryDirectory() as folder:
        trained = train(config, Path(folder) / "run", dataset=data, network=network, method=method)
        history, environment = trained.history, trained.info.environment
    seconds = [record["seconds"] for record in history]
    median = statistics.median(seconds)
    return {
        "labels": config.labels.count,
        "epochs": len(history),
        "pretraining_epochs": epochs,
        "seed": config.seed.base,
        "error": history[-1]["test_error"],
        "errors": {each["epoch"] + 1: each["test_error"] for each in history if each.get("test_error") is not None},
        "contrast": [round(each["contrast"], 3) for each in history[:epochs]],
        "seconds": round(sum(seconds), 1),
        "seconds_per_epoch": round(median, 3),
        "overhead": round(sum(seconds) - len(seconds) * median, 1),
        "commit": current_commit(),
        "environment": environment,
        "config": config.to_dict(),
        "method": repr(method.options),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="test on held-out training rows, not on test rows")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--pretraining", type=float, default=PRETRAINING, help="part of the epochs")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--width", type=int, default=128, help="channels of the first layers")
    options = parser.parse_args()
    if options.held_out != (options.seed >= 100):
        parser.error(f"--seed is {options.seed}; seeds from 100 on are for --held-out, those below for final runs.")
    if not 0 <= options.pretraining < 1:
        parser.error(f"--pretraining is {options.pretraining}; expected a part of the epochs, from 0 to below 1.")
    try:
        config = presets.get("cifar10-modern").with_values("training", evaluate_every=10)
        config = config.with_values("labels", count=options.labels).with_values("seed", base=options.seed)
        config = config.with_values("schedule", epochs=options.epochs).with_values("network", width=options.width)
        config = config.with_values("optimizer", learning_rate=options.learning_rate)
        data = sources.load(sources.options_for("cifar10", folder=options.data_dir))
        result = run(config, held_out(data) if options.held_out else data, options.pretraining)
    except SelfensError as error:
        sys.exit(str(error))
    print(json.dumps(result | {"held_out": options.held_out}), flush=True)


if __name__ == "__main__":
    main()
