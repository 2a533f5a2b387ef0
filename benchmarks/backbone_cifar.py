"""A head on frozen features beside logistic regression on the same features and labels: CIFAR-10 at 160 px through lite0.

    python benchmarks/backbone_cifar.py --data-dir D [--draws 3] [--output results/benchmarks/backbone-cifar.json]
    python benchmarks/backbone_cifar.py --data cifar10.npz --backbone timm:tf_efficientnet_lite0 --weights lite0.pt
    python benchmarks/backbone_cifar.py --data cifar10.npz --packages FOLDER    # of packages that are not installed

The features are computed once, by the command's own path, and kept in the user's cache. The head is trained as `selfens train
--backbone` trains it, with its defaults, on all training rows. A draw is a seed of the labels, equally many per class, and of
the training. Logistic regression (C = 1) sees the same labeled rows, scaled by the mean and deviation of all training rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from selfens import auto, encoders
from selfens.config import Config
from selfens.core.device import environment, resolve_device, resolve_precision
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.data.rows import take
from selfens.encoders import ENCODERS
from selfens.encoders.dataset import EncodedDataset
from selfens.training.loop import train


def config_for(arguments: argparse.Namespace) -> Config:
    """As the command chooses it, for all rows or for the first of them."""
    source = sources.options_for(arguments.data, folder=arguments.data_dir)
    names = {"model": arguments.backbone, "weights": arguments.weights, "size": arguments.size}
    peek, on_gpu = sources.build(source).peek(), resolve_device(arguments.device).type == "cuda"
    peek = replace(peek, rows=min(arguments.rows or peek.rows, peek.rows))
    config = auto.settings_for(source, peek, encoder=ENCODERS.options("backbone", **names), on_gpu=on_gpu)
    return config.with_values("training", device=arguments.device)


def loaded(config: Config, rows: int | None) -> EncodedDataset:
    """The features of the first training rows and of all test rows."""
    encoder = encoders.build(config.encoder, resolve_device(config.training.device))
    data = sources.load(config.source, side=encoder.image_side, progress=True)
    parts = [(take(data.raw, each), data.labels[each]) for each in (data.train_rows[:rows], data.test_rows)]
    (inputs, labels), (test_inputs, test_labels) = parts
    some = Dataset.from_arrays(inputs, labels, test_inputs, test_labels, classes=data.classes, layout="NCHW")
    encoder.fit(some.raw, some.train_rows)
    return EncodedDataset.make(some, encoder, progress=True)


def draw(config: Config, data: EncodedDataset, labels: int, seed: int) -> dict:
    """The errors of one draw, in percent."""
    settings = config.with_values("labels", count=labels).with_values("seed", base=seed)
    settings = settings.with_values("encoder", name="identity")  # it gets the features
    features = Dataset.from_arrays(data.inputs, data.labels, data.test_inputs, data.test_labels, classes=data.classes)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = train(settings, Path(folder) / "run", dataset=features)
        seconds, rows = time.perf_counter() - began, run.labels.rows
        error = run.test_error
    scaler = StandardScaler().fit(data.inputs)
    began = time.perf_counter()
    model = LogisticRegression(C=1.0, max_iter=5000).fit(scaler.transform(data.inputs[rows]), data.labels[rows])
    logistic = 100 * (1 - model.score(scaler.transform(data.test_inputs), data.test_labels))
    logistic_seconds = time.perf_counter() - began
    return {
        "labels": labels,
        "seed": seed,
        "error": error,
        "logistic_error": logistic,
        "points_below": logistic - error,
        "seconds": seconds,
        "logistic_seconds": logistic_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10", help="cifar10, or an .npz file or a folder of images")
    parser.add_argument("--data-dir", help="where CIFAR-10's files are")
    parser.add_argument("--backbone", default="lite0:make")
    parser.add_argument("--weights", help="file of the backbone's weights")
    parser.add_argument("--packages", help="a folder to import from, besides this one")
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--labels", type=int, nargs="+", default=[40, 250])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--rows", type=int, help="only the first of the training rows")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    sys.path[:0] = [str(Path(__file__).parent), *([arguments.packages] if arguments.packages else [])]
    began, config = time.perf_counter(), config_for(arguments)
    data = loaded(config, arguments.rows)
    feature_seconds = time.perf_counter() - began
    rows, test_rows = len(data.labels), len(data.test_labels)
    print(f"{rows:,} + {test_rows:,} rows in {feature_seconds:.0f} s: {data.encoder}", flush=True)
    draws = []
    for labels in arguments.labels:
        for seed in range(arguments.draws):
            draws.append(draw(config, data, labels, seed))
            print(", ".join(f"{key} {value:.4g}" for key, value in draws[-1].items()), flush=True)
        below = [each["points_below"] for each in draws if each["labels"] == labels]
        spread = f" ± {np.std(below, ddof=1):.1f}" if len(below) > 1 else ""
        print(f"{labels} labels: {np.mean(below):.1f}{spread} points below logistic regression", flush=True)
    device = resolve_device(arguments.device)
    result = {
        "data": {"name": arguments.data, "rows": rows, "test_rows": test_rows},
        "backbone": data.encoder.to_dict(),
        "features": {"seconds": feature_seconds, "summary": data.encoder.summary},
        "method": config.method.name,
        "config": config.to_dict(),
        "draws": draws,
        "environment": environment(device, resolve_precision("auto", device)) | {"sklearn": sklearn.__version__},
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
