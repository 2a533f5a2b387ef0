"""How well wrong labels are found: area under the ROC curve of the scores, on digits with every row labeled.

    python benchmarks/audit.py [--seeds 5] [--output results/benchmarks/audit.json]

uniform 10 %           a tenth of the labels flipped to a class drawn among the nine others
class-dependent 40 %   four tenths of each class flipped to the next one (3 becomes 4, 9 becomes 0)

in-sample      probabilities of the rows trained on: the ensemble, or the supervised network's predictions
folds          out of sample: each fifth of the rows held out in turn
cleanlab       its self-confidence, normalized margin and confident learning over the same probabilities; and its own
               recipe, out-of-sample probabilities of a logistic regression by cross_val_predict

cleanlab is not a dependency of selfens. If it cannot be imported, its rows are left out; to include them:
    pip install --target /tmp/cleanlab cleanlab; PYTHONPATH=/tmp/cleanlab python benchmarks/audit.py
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from selfens.auto import config_for_dataset
from selfens.core.device import environment
from selfens.data.dataset import Dataset
from selfens.tools import audit
from selfens.tools.folds import evidence_by_folds
from selfens.training.loop import train

try:
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    CLEANLAB = importlib.metadata.version("cleanlab")
except ImportError:
    CLEANLAB = None

FOLDS = 5
X, TRUTH = load_digits(return_X_y=True)


def uniform(truth, random):
    rows = random.choice(len(truth), len(truth) // 10, replace=False)
    labels = truth.copy()
    labels[rows] = (truth[rows] + random.integers(1, 10, len(rows))) % 10
    return labels


def class_dependent(truth, random):
    labels = truth.copy()
    for digit in range(10):
        members = random.permutation(np.flatnonzero(truth == digit))
        labels[members[: round(0.4 * len(members))]] = (digit + 1) % 10
    return labels


NOISES = {"uniform 10 %": uniform, "class-dependent 40 %": class_dependent}


def by_scores(labels, probabilities, wrong) -> dict:
    """How well the wrong labels come first, and how many of the rows in dispute are wrong."""
    ranked = audit.rank(labels, probabilities)
    disputed = np.isin(np.arange(len(labels)), ranked.disputed)
    return {"auc": float(roc_auc_score(wrong[ranked.rows], -ranked.scores))} | found(disputed, wrong)


def found(disputed, wrong) -> dict:
    precision = float(wrong[disputed].mean()) if disputed.any() else 0.0
    return {"precision": precision, "recall": float(disputed[wrong].mean())}


def by_cleanlab(labels, probabilities, wrong) -> dict[str, dict]:
    if CLEANLAB is None:
        return {}
    probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
    results = {}
    for score in ("self_confidence", "normalized_margin"):
        quality = get_label_quality_scores(labels, probabilities, method=score)
        results[score] = {"auc": float(roc_auc_score(wrong, -quality))}
    return results | {"confident learning": found(find_label_issues(labels, probabilities, n_jobs=1), wrong)}


def in_sample(method: str, labels, seed: int):
    dataset = Dataset.from_arrays(X, labels)
    config = settings(dataset, method, seed)
    with tempfile.TemporaryDirectory() as folder:
        run = train(config, Path(folder) / "run", dataset=dataset)
        return run.predict_training_rows(dataset).astype(np.float64)


def in_folds(method: str, labels, seed: int):
    dataset = Dataset.from_arrays(X, labels)
    evidence = evidence_by_folds(settings(dataset, method, seed), dataset, FOLDS)
    return evidence.probabilities.astype(np.float64)  # of every row, as every row has a label


def settings(dataset: Dataset, method: str, seed: int):
    return (
        config_for_dataset(dataset, method, device="cpu")
        .with_values("seed", base=seed)
        .with_values("training", device="cpu")
    )


def logistic(labels, seed: int):
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)  # as ours: the rows of digits are sorted by writer
    return cross_val_predict(model, X, labels, cv=folds, method="predict_proba")


SOURCES: dict[str, Callable] = {
    "temporal ensembling, in-sample": lambda labels, seed: in_sample("temporal", labels, seed),
    "supervised, in-sample": lambda labels, seed: in_sample("supervised", labels, seed),
    "temporal ensembling, folds": lambda labels, seed: in_folds("temporal", labels, seed),
    "supervised, folds": lambda labels, seed: in_folds("supervised", labels, seed),
    "logistic regression, folds (cleanlab's recipe)": logistic,
}


def measure(noise: str, source: str, seed: int) -> list[dict]:
    labels = NOISES[noise](TRUTH, np.random.default_rng(seed))
    began = time.perf_counter()
    probabilities = SOURCES[source](labels, seed)
    seconds, wrong = time.perf_counter() - began, labels != TRUTH
    results = {"selfens": by_scores(labels, probabilities, wrong)}
    results |= {f"cleanlab {name}": values for name, values in by_cleanlab(labels, probabilities, wrong).items()}
    about = {"noise": noise, "probabilities": source, "seed": seed, "seconds": seconds}
    return [about | {"scores": name} | values for name, values in results.items()]


def markdown(results: list[dict]) -> str:
    """Means over the seeds: AUC, and precision and recall of the rows named as wrong."""
    lines = ["| noise | probabilities | scores | AUC | precision | recall |", "|---|---|---|---:|---:|---:|"]
    for key in dict.fromkeys((r["noise"], r["probabilities"], r["scores"]) for r in results):
        rows = [r for r in results if (r["noise"], r["probabilities"], r["scores"]) == key]
        means = [f"{np.mean([r[k] for r in rows]):.4f}" if k in rows[0] else "" for k in ("auc", "precision", "recall")]
        lines.append(f"| {' | '.join((*key, *means))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/audit.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = [
        result
        for noise in NOISES
        for source in SOURCES
        for seed in range(options.seeds)
        for result in measure(noise, source, seed)
    ]
    print(f"Digits, {len(TRUTH):,} rows, seeds 0 to {options.seeds - 1}, cleanlab {CLEANLAB}.\n\n{markdown(results)}")
    versions = {"scikit-learn": sklearn.__version__, "numpy": np.__version__, "cleanlab": CLEANLAB}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    about = environment(torch.device("cpu"), "fp32") | versions
    options.output.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
