"""Fine-tuning a backbone beside its frozen features: each figure of docs/finetuning.md, by name, on a machine with a GPU.

    python benchmarks/finetune.py figures                                            # the names, and what each must reach
    python benchmarks/finetune.py run cifar10-40 --data D --backbone lite0:make [--size 128] [--device cuda]
    python benchmarks/finetune.py run cifar10-40 --data D --set schedule.epochs=10   # other settings, kept with the record
    python benchmarks/finetune.py run pets-5 --data D --supervised                   # the same network from the labels alone
    python benchmarks/finetune.py speed --data D                                     # images/s beside a plain loop
    python benchmarks/finetune.py run cifar10-40 --quick --device cpu                # made images, seconds: does it work

D is a folder with NAME.npz for each data set (cifar10, cifar100, plantvillage, pets, fruits): images x_train, y_train, x_test,
y_test; or packed JPEGs: blob (bytes), off (where each begins, and the end), y, ntr (the number of training rows, which come
first), all scaled to one size. Weights come from installed packages (lite0:make in this folder) or with --weights.

A draw is a seed of the labels and of the training. Labels are equally many of each class; with `typical`, they are the rows
nearest to the middle of as many clusters of the frozen features, whatever their class. Each draw is a line of --output, so a
battery that was stopped goes on from there. Settings are chosen on CHOSEN_ON only; the others are run once, at the end.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from selfens import auto, encoders
from selfens.core.device import environment, resolve_device, resolve_precision
from selfens.core.views import Views
from selfens.data.dataset import UNLABELED, Dataset
from selfens.encoders import ENCODERS
from selfens.networks.finetuned import FineTuned
from selfens.runs.history import total_seconds
from selfens.tools.baselines import LOGISTIC
from selfens.tools.frozen import COMMITTEE
from selfens.tools.measure import evidence_on_test_rows
from selfens.training.loop import train

CHOSEN_ON = ("cifar10", "plantvillage")


class Figure(NamedTuple):
    data: str
    labels: int
    """In all; of each class if `per_class`."""
    draws: int
    must: str
    """The error in percent that it must reach, and the one that is hoped for."""
    per_class: bool = False
    typical: bool = False


FIGURES = {
    "cifar10-40": Figure("cifar10", 40, 3, "11, hope 7; 300 s"),
    "cifar10-40-typical": Figure("cifar10", 40, 2, "8.5, hope 5.5; 300 s", typical=True),
    "cifar10-250": Figure("cifar10", 250, 2, "8, hope 5.5; 300 s"),
    "cifar10-4000": Figure("cifar10", 4000, 1, "5, hope 3.5; 300 s"),
    "cifar100-400": Figure("cifar100", 400, 2, "reported, hope 25; 400 s"),
    "plantvillage-5": Figure("plantvillage", 5, 3, "13 and 6 points below --supervised, hope 8", per_class=True),
    "pets-5": Figure("pets", 5, 3, "2 points below the frozen committee, hope 6", per_class=True),
    "fruits-5": Figure("fruits", 5, 3, "at most 1 point above the frozen committee", per_class=True),
}


# Data


def made() -> tuple[np.ndarray, ...]:
    """Images of three colors, for --quick."""
    random, labels = np.random.default_rng(0), np.arange(150) % 3
    images = random.integers(0, 90, (150, 16, 16, 3), dtype=np.uint8)
    images[np.arange(150), :, :, labels] += 60
    return images[:120], labels[:120], images[120:], labels[120:]


def unpacked(arrays) -> tuple[np.ndarray, ...]:
    from PIL import Image

    blob, offsets, rows, labels = arrays["blob"], arrays["off"], int(arrays["ntr"]), arrays["y"].astype(int)

    def decoded(number: int) -> np.ndarray:
        file = io.BytesIO(blob[offsets[number] : offsets[number + 1]].tobytes())
        return np.asarray(Image.open(file).convert("RGB"))

    with ThreadPoolExecutor(8) as pool:
        images = np.stack([*pool.map(decoded, range(len(offsets) - 1))])
    return images[:rows], labels[:rows], images[rows:], labels[rows:]


def loaded(arguments: argparse.Namespace, name: str) -> Dataset:
    if arguments.quick:
        parts = made()
    else:
        with np.load(Path(arguments.data) / f"{name}.npz") as arrays:
            names = ("x_train", "y_train", "x_test", "y_test")
            parts = unpacked(arrays) if "blob" in arrays else tuple(arrays[key] for key in names)
    return Dataset.from_arrays(*parts, name=name)


def typical(features: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The row of each cluster whose 20 nearest in it are nearest."""
    from sklearn.cluster import MiniBatchKMeans

    scaled = (features - features.mean(0)) / (features.std(0) + 1e-6)
    scaled /= np.linalg.norm(scaled, axis=1, keepdims=True)
    clusters = MiniBatchKMeans(count, n_init=3, random_state=seed, batch_size=4096).fit(scaled).labels_
    random, chosen = np.random.default_rng(seed), []
    for number in range(count):
        rows = random.permutation(np.flatnonzero(clusters == number))[:3000]
        likeness = np.sort(scaled[rows] @ scaled[rows].T, axis=1)[:, -20:].mean(axis=1)
        chosen.append(rows[likeness.argmax()])
    return np.array(chosen)


def with_labels(data: Dataset, figure: Figure, seed: int, features) -> Dataset:
    """The data with the labels of a draw only."""
    truth, random = data.train_labels, np.random.default_rng(1000 + seed)
    each = figure.labels if figure.per_class else figure.labels // data.num_classes
    if figure.typical:
        rows = typical(features(), figure.labels, seed)
        if missing := {*range(data.num_classes)} - {*truth[rows].tolist()}:
            print(f"  typical rows lack {len(missing)} classes", flush=True)
    else:
        own = [random.permutation(np.flatnonzero(truth == number))[:each] for number in range(data.num_classes)]
        rows = np.concatenate(own)
    labels = data.labels.copy()
    labels[data.train_rows] = UNLABELED
    labels[data.train_rows[rows]] = truth[rows]
    return replace(data, labels=labels)


# Runs


def settings(arguments: argparse.Namespace, data: Dataset, seed: int):
    names = {"model": arguments.backbone, "weights": arguments.weights, "size": arguments.size}
    encoder, device = ENCODERS.options("backbone", **names), arguments.device
    config = auto.config_for_dataset(data, device=device, encoder=encoder, finetune=True)
    # Arrays say nothing about flips; these are photos.
    config = config.with_values("training", device=device).with_values("views", flip=True)
    config = config.with_values("seed", base=seed)
    quick = ["schedule.epochs=2", "training.min_steps_per_epoch=3", "training.batch_size=20"] if arguments.quick else []
    supervised = ["method.weight_max=0"] if arguments.supervised else []
    return config.with_overrides([*quick, *supervised, *(arguments.set or [])])


def draw(arguments: argparse.Namespace, data: Dataset, seed: int, folder: Path) -> dict:
    """The errors of a draw in percent, and seconds."""
    began, config = time.perf_counter(), settings(arguments, data, seed)
    run = train(config, folder / "run", dataset=data)
    seconds = time.perf_counter() - began
    evidence = evidence_on_test_rows(run)
    errors = {name: 100 * float((found != evidence.labels).mean()) for name, found in evidence.others.items()}
    assert run.frozen is not None
    return {
        "fine-tuned": 100 * float(evidence.wrong.mean()),
        LOGISTIC: errors[LOGISTIC],
        COMMITTEE: errors[COMMITTEE],
        "seconds": round(seconds, 1),
        "seconds of the second stage": round(total_seconds(run.history), 1),
        "images per second": run.history[-1]["images_per_second"],
        "note": run.info.note,
        "config": run.config.to_dict(),
    }


def run_figure(arguments: argparse.Namespace) -> None:
    figure, device = FIGURES[arguments.figure], resolve_device(arguments.device)
    if arguments.quick:
        figure = figure._replace(labels=6, draws=1, per_class=False)
    data = loaded(arguments, figure.data)
    output = Path(arguments.output)
    kind = {"figure": arguments.figure, "supervised": arguments.supervised, "set": arguments.set or []}
    kind |= {"backbone": arguments.backbone, "size": arguments.size, "quick": arguments.quick}
    lines = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    done = [line for line in lines if all(line.get(key) == value for key, value in kind.items())]

    def features() -> np.ndarray:
        options = {"model": arguments.backbone, "weights": arguments.weights, "size": arguments.size}
        encoder = encoders.build(ENCODERS.options("backbone", **options), device)
        return encoder.transform(data.raw).inputs[data.train_rows]

    for seed in range(arguments.first_draw, arguments.first_draw + figure.draws):
        if any(line["draw"] == seed for line in done):
            continue
        with tempfile.TemporaryDirectory() as folder:
            labeled = with_labels(data, figure, seed, features)
            found = kind | {"draw": seed} | draw(arguments, labeled, seed, Path(folder))
        found["environment"] = environment(device, resolve_precision("auto", device))
        with output.open("a") as file:
            file.write(json.dumps(found) + "\n")
        done.append(found)
        print(
            ", ".join(f"{key} {found[key]:.2f}" for key in (LOGISTIC, COMMITTEE, "fine-tuned", "seconds")), flush=True
        )
    errors = np.array([[line[name] for name in (LOGISTIC, COMMITTEE, "fine-tuned")] for line in done])
    means = ", ".join(f"{mean:.2f}" for mean in errors.mean(axis=0))
    print(
        f"{arguments.figure}, mean of {len(done)}: {LOGISTIC}, committee, fine-tuned {means}; must reach {figure.must}"
    )


# Speed


def plain_loop(arguments: argparse.Namespace, data: Dataset, steps: int) -> float:
    """Images per second of a loop of torch's own parts, with our views and network: no compiler, no graph, torch's AdamW."""
    config, device = settings(arguments, data, 0), resolve_device(arguments.device)
    inputs = torch.from_numpy(np.asarray(data.raw[data.train_rows])).to(device)
    shape = tuple(inputs.shape[1:])
    network = FineTuned(shape, data.num_classes, config.network).to(device).train()
    teacher = FineTuned(shape, data.num_classes, config.network).to(device).eval().requires_grad_(False)
    batch = config.training.batch_size
    labeled = batch // 5
    targets = torch.from_numpy(data.train_labels).to(device)
    views = Views(shape, config.views, pixels=True)
    groups = [{"params": network.backbone.parameters(), "lr": 5e-4}, {"params": network.head.parameters(), "lr": 25e-4}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.05)
    precision = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    for step in range(steps + 3):
        if step == 3:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        rows = torch.randint(len(inputs), (batch,), device=device)
        weak, strong = views.make(inputs[rows].float() / 255, ("weak", "strong"))
        with precision:
            with torch.no_grad():
                taught = teacher(weak[labeled:]).float().softmax(dim=1)
                kept = (taught.amax(dim=1) >= 0.8).float()
                taught = taught.square() / taught.square().sum(dim=1, keepdim=True)
            logits = network(torch.cat([weak[: labeled // 2], strong[labeled // 2 :]])).float()
            known = targets[rows[:labeled]].clamp_min(0)
            unsupervised = -(taught * logits[labeled:].log_softmax(dim=1)).sum(dim=1)
            loss = functional.cross_entropy(logits[:labeled], known) + (kept * unsupervised).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_([*teacher.parameters()], [*network.parameters()], 0.002)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return batch * steps / (time.perf_counter() - began)


def speed(arguments: argparse.Namespace) -> None:
    """Both in one process, one after the other, on an otherwise idle machine."""
    figure = FIGURES["cifar10-40"]
    data = with_labels(loaded(arguments, figure.data), figure._replace(labels=30), 0, None)
    steps = 5 if arguments.quick else 300
    plain = plain_loop(arguments, data, steps)
    arguments.set = [*(arguments.set or []), "schedule.epochs=3"]
    with tempfile.TemporaryDirectory() as folder:
        run = train(settings(arguments, data, 0), Path(folder) / "run", dataset=data)
        ours = run.history[-1]["images_per_second"]
    print(f"plain loop {plain:,.0f} images/s, ours {ours:,.0f}: {ours / plain:.2f} times as many; must reach 3, hope 6")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("figures")
    for name in ("run", "speed"):
        command = commands.add_parser(name)
        if name == "run":
            command.add_argument("figure", choices=FIGURES)
        command.add_argument("--data", default=".")
        command.add_argument("--backbone", default="lite0:make")
        command.add_argument("--weights")
        command.add_argument("--size", type=int, default=128)
        command.add_argument("--device", default="auto")
        command.add_argument("--first-draw", type=int, default=0)
        command.add_argument("--supervised", action="store_true", help="Learn from the labels alone.")
        command.add_argument("--set", action="append", metavar="SECTION.FIELD=VALUE")
        command.add_argument("--output", default="finetune.jsonl")
        command.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))  # for lite0:make
    if arguments.command == "figures":
        for name, figure in FIGURES.items():
            print(f"{name:20} {figure.draws} draws, must reach {figure.must}")
    elif arguments.command == "run":
        run_figure(arguments)
    else:
        speed(arguments)


if __name__ == "__main__":
    main()
