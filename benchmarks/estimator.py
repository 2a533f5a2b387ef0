"""Test error of SelfEnsemblingClassifier with temporal ensembling beside scikit-learn's semi-supervised classifiers.

    python benchmarks/estimator.py [--seeds 10] [--output results/benchmarks/estimator.json]

Four data sets of scikit-learn, three label counts each. A seed draws the split (a quarter of the rows for testing,
stratified), the labeled rows (equally many per class) and the training. All see standardized features. The defaults
were chosen on seeds from 100 on, at the smallest and largest label counts; the seeds here are 0 to 9.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from selfens.core.device import environment
from selfens.data.labels import balanced_rows
from selfens.estimator import SelfEnsemblingClassifier

DATA = {
    "digits": (load_digits, (20, 50, 100)),
    "wine": (load_wine, (6, 12, 30)),
    "breast cancer": (load_breast_cancer, (6, 20, 60)),
    "iris": (load_iris, (6, 12, 30)),
}
CLASSIFIERS = {
    "temporal ensembling": lambda seed: SelfEnsemblingClassifier("temporal", random_state=seed, device="cpu"),
    "same network, supervised": lambda seed: SelfEnsemblingClassifier("supervised", random_state=seed, device="cpu"),
    "LabelSpreading": lambda seed: LabelSpreading(kernel="knn", n_neighbors=7, max_iter=200),
    "SelfTraining (logistic)": lambda seed: SelfTrainingClassifier(LogisticRegression(max_iter=2000)),
}


def problem(name: str, labels: int, seed: int):
    """Training inputs, training labels with -1 for unlabeled, test inputs, test labels."""
    x, y = DATA[name][0](return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=y)
    rows = balanced_rows(y_train, tuple(map(str, np.unique(y))), labels, seed)
    y_partial = np.full(len(y_train), -1)
    y_partial[rows] = y_train[rows]
    return x_train, y_partial, x_test, y_test


def cell(name: str, labels: int, classifier: str, seeds: int) -> dict:
    errors, seconds = [], []
    for seed in range(seeds):
        x, y, x_test, y_test = problem(name, labels, seed)
        model, began = make_pipeline(StandardScaler(), CLASSIFIERS[classifier](seed)), time.perf_counter()
        errors.append(100 * (1 - model.fit(x, y).score(x_test, y_test)))
        seconds.append(time.perf_counter() - began)
    spread = float(np.std(errors, ddof=1)) if seeds > 1 else 0.0
    return {
        "data": name,
        "labels": labels,
        "classifier": classifier,
        "errors": errors,
        "mean": float(np.mean(errors)),
        "deviation": spread,
        "seconds_per_fit": float(np.mean(seconds)),
    }


def markdown(cells: list[dict]) -> str:
    """One row per data set and label count, the lowest mean in bold."""
    lines = ["| data | labels | " + " | ".join(CLASSIFIERS) + " |", "|---|---:|" + "---:|" * len(CLASSIFIERS)]
    for name, (_, counts) in DATA.items():
        for labels in counts:
            row = [c for c in cells if (c["data"], c["labels"]) == (name, labels)]
            best = min(round(c["mean"], 1) for c in row)
            texts = [f"{c['mean']:.1f} ± {c['deviation']:.1f}" for c in row]
            texts = [f"**{text}**" if round(c["mean"], 1) == best else text for c, text in zip(row, texts, strict=True)]
            lines.append(f"| {name} | {labels} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/estimator.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # scikit-learn's about convergence
    torch.set_num_threads(1)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    versions = {"scikit-learn": sklearn.__version__, "numpy": np.__version__}
    about = environment(torch.device("cpu"), "fp32") | versions | {"seeds": list(range(options.seeds))}
    cells: list[dict] = []
    for name, (_, counts) in DATA.items():
        for labels in counts:
            cells += [cell(name, labels, classifier, options.seeds) for classifier in CLASSIFIERS]
            options.output.write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n")
    print(f"Test error in percent, mean ± deviation over seeds 0 to {options.seeds - 1}.\n\n{markdown(cells)}")


if __name__ == "__main__":
    main()
