"""What is found in photos by selfens and by cleanlab's Datalab: planted near-duplicates, wrong labels, and outliers.

    pip install --no-deps --target /tmp/cleanlab cleanlab datasets dill multiprocess xxhash    (or cleanlab[datalab])
    PYTHONPATH=/tmp/cleanlab python benchmarks/datalab.py --cifar10 cifar10.npz --svhn train_32x32.mat

1,000 photos of CIFAR-10; 200 more that are copies of 50 of them (the same, resized to 20 and to 64 pixels, compressed as JPEG)
and 5 house numbers of SVHN. Features are those of EfficientNet-lite0. A tenth of the 1,000 labels is exchanged. Both tools get
the same images or features, and the same probabilities from folds. Three draws; the thresholds of both are their defaults.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy
sys.path.insert(0, str(Path(__file__).parent))

import honest
import numpy as np
import own_data
import torch
from scipy.io import loadmat
from sklearn.metrics import roc_auc_score

from selfens.core.device import environment
from selfens.data.dataset import Dataset
from selfens.data.inspection import inspect
from selfens.estimator import SelfEnsemblingClassifier
from selfens.runs.novelty import Novelty
from selfens.tools.audit import audit_evidence

ROOT = Path(__file__).parents[1]
PHOTOS, COPIED, STRANGE, DRAWS = 1000, 50, 5, 3


def photos(cifar10: str, svhn: str, draw: int):
    """Pixels, labels of the photos, the original of each copy, and which rows are house numbers."""
    random = np.random.default_rng([draw, 50])
    with np.load(cifar10) as arrays:
        rows = random.choice(40_000, PHOTOS, replace=False)
        originals, labels = arrays["x_train"][rows], arrays["y_train"][rows].astype(int)
    copied = random.choice(PHOTOS, COPIED, replace=False)
    planted = [copy for row in copied for copy in honest.copies(originals[row]).values()]
    numbers = loadmat(svhn)["X"].transpose(3, 0, 1, 2)
    strange = numbers[random.choice(len(numbers), STRANGE, replace=False)]
    pixels = np.concatenate([originals, np.stack(planted), strange])
    kinds = len(planted) // COPIED
    return pixels, labels, np.repeat(copied, kinds), np.arange(len(pixels)) >= PHOTOS + len(planted)


def features(pixels) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        images, made = f"{folder}/images.npz", f"{folder}/features.npz"
        none = np.zeros(len(pixels), int)
        np.savez(images, x_train=pixels, y_train=none, x_test=pixels[:1], y_test=none[:1])
        own_data.make_features(images, made)
        with np.load(made) as arrays:
            return arrays["x_train"].astype(np.float32)


def pairs_of(groups) -> set[tuple[int, int]]:
    return {(one, other) for group in groups for one in group for other in group if one < other}


def one(options, draw: int) -> dict:
    from cleanlab import Datalab

    pixels, truth, source, is_strange = photos(options.cifar10, options.svhn, draw)
    inputs, random = features(pixels), np.random.default_rng([draw, 51])
    planted = [(int(row), PHOTOS + number) for number, row in enumerate(source)]
    families = {row: {row, *(copy for original, copy in planted if original == row)} for row in set(source.tolist())}
    expected = {tuple(sorted((a, b))) for family in families.values() for a in family for b in family if a != b}

    def judged(found: set[tuple[int, int]]) -> dict:
        return {"found": len(found & set(planted)) / len(planted), "others": len(found - expected)}

    inspection = inspect(Dataset.unlabeled(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))))
    ours = {"near_duplicates": judged(pairs_of((*inspection.alike, *inspection.copies)))}
    ours["outliers"] = float(roc_auc_score(is_strange, Novelty.fit(inputs).score(inputs)))

    labels, x = truth.copy(), inputs[:PHOTOS]
    wrong = random.choice(PHOTOS, PHOTOS // 10, replace=False)
    labels[wrong] = (labels[wrong] + random.integers(1, 10, len(wrong))) % 10
    evidence = (
        SelfEnsemblingClassifier(random_state=draw, device="cpu", measure=True).fit(x, labels).comparison_.evidence
    )
    ours["wrong_labels"] = float(np.isin(audit_evidence(evidence).rows[: len(wrong)], wrong).mean())

    probabilities = np.full((PHOTOS, 10), 0.1)
    probabilities[evidence.rows] = evidence.probabilities
    lab = Datalab(data={"label": labels}, label_name="label", verbosity=0)
    lab.find_issues(pred_probs=probabilities / probabilities.sum(axis=1, keepdims=True), issue_types={"label": {}})
    first = np.argsort(lab.get_issues("label")["label_score"].to_numpy(), kind="stable")[: len(wrong)]
    whole = Datalab(data={"label": np.zeros(len(pixels), int)}, label_name="label", verbosity=0)
    whole.find_issues(features=inputs, issue_types={"near_duplicate": {}, "outlier": {}})
    near = whole.get_issues("near_duplicate")
    sets = [(row, *map(int, others)) for row, others in enumerate(near["near_duplicate_sets"]) if len(others)]
    theirs = {
        "near_duplicates": judged({tuple(sorted((row, other))) for row, *others in sets for other in others}),
        "outliers": float(roc_auc_score(is_strange, -whole.get_issues("outlier")["outlier_score"].to_numpy())),
        "wrong_labels": float(np.isin(first, wrong).mean()),
    }
    return {"draw": draw, "selfens": ours, "datalab": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", default="cifar10.npz")
    parser.add_argument("--svhn", default="train_32x32.mat")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "benchmarks" / "datalab.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    records = [one(options, draw) for draw in range(DRAWS)]

    def mean(tool: str, *path: str) -> float:
        values = [record[tool] for record in records]
        for key in path:
            values = [value[key] for value in values]
        return statistics.mean(values)

    figures = (("near_duplicates", "found"), ("near_duplicates", "others"), ("wrong_labels",), ("outliers",))
    summary = {" ".join(path): {tool: mean(tool, *path) for tool in ("selfens", "datalab")} for path in figures}
    about = environment(torch.device("cpu"), "fp32") | {"cleanlab": importlib.metadata.version("cleanlab")}
    result = {"environment": about, "summary": summary, "records": records}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
