"""Own images: `selfens train images.npz` beside five usual alternatives, on the same rows and labels.

    python benchmarks/images.py /usr/share/datasets/fashion-mnist --output results/images-cpu.json
    python benchmarks/images.py /usr/share/datasets/fashion-mnist --device cuda --output results/images-gpu.json

The folder holds the four files of Fashion-MNIST as published (Debian: the package dataset-fashion-mnist). A draw is 10,000
training rows, 100 of them labeled, the same number per class; all 10,000 test rows. Seconds are those of the command, from
its start to its end, without report and baselines. The alternatives are measured on a CPU only: the draws are the same.
Settings were chosen on draws 100 and 101, on a CPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC

from selfens import load_run

FILES = {"x_train": "train-images-idx3", "y_train": "train-labels-idx1", "x_test": "t10k-images-idx3"}
FILES |= {"y_test": "t10k-labels-idx1"}


def read(folder: Path) -> dict[str, np.ndarray]:
    arrays = {}
    for name, file in FILES.items():
        content = gzip.decompress((folder / f"{file}-ubyte.gz").read_bytes())
        header = 16 if name.startswith("x") else 8
        pixels = np.frombuffer(content, np.uint8, offset=header)
        arrays[name] = pixels.reshape(-1, 28, 28) if name.startswith("x") else pixels.astype(np.int64)
    return arrays


def draw(arrays: dict[str, np.ndarray], seed: int, rows: int, labels: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(arrays["y_train"]))[:rows]
    truth = arrays["y_train"][chosen]
    known = np.full(rows, -1)
    for number in np.unique(truth):
        members = random.permutation(np.flatnonzero(truth == number))[: labels // len(np.unique(truth))]
        known[members] = number
    return arrays | {"x_train": arrays["x_train"][chosen], "y_train": known}


def alternatives(drawn: dict[str, np.ndarray]) -> dict[str, float]:
    """The error in percent of each; the last two of the list see the unlabeled rows too."""
    flat = {name: drawn[name].reshape(len(drawn[name]), -1).astype(np.float32) for name in ("x_train", "x_test")}
    scaler, known = StandardScaler().fit(flat["x_train"]), drawn["y_train"] >= 0
    train, test = (scaler.transform(flat[name]) for name in ("x_train", "x_test"))
    models = {
        "logistic regression": LogisticRegression(max_iter=1000),
        "SVC, C 10": SVC(C=10),
        "random forest": RandomForestClassifier(300, random_state=0),
        "self-training": SelfTrainingClassifier(LogisticRegression(max_iter=1000)),
        "label spreading": LabelSpreading(kernel="knn", n_neighbors=15, max_iter=100),
    }
    errors = {}
    for name, model in models.items():
        rows = slice(None) if name in ("self-training", "label spreading") else known
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = model.fit(train[rows], drawn["y_train"][rows]).predict(test)
        errors[name] = 100 * float(np.mean(predicted != drawn["y_test"]))
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, help="written after each draw")
    options = parser.parse_args()
    if options.output and not options.output.parent.is_dir():
        parser.error(f"--output is {options.output}, and there is no folder {options.output.parent}; make it first.")
    arrays, records = read(options.folder), []
    for seed in range(options.seeds):
        drawn = draw(arrays, seed, options.rows, options.labels)
        with tempfile.TemporaryDirectory() as folder:
            np.savez(Path(folder) / "images.npz", **drawn)
            words = [sys.executable, "-m", "selfens", "train", "images.npz", "--run", "run", "--no-report"]
            words += ["--no-baselines", "--seed", str(seed), "--device", options.device]
            began = time.perf_counter()
            subprocess.run(words, cwd=folder, check=True, capture_output=True)
            seconds, run = time.perf_counter() - began, load_run(Path(folder) / "run")
            error, about = run.test_error, {"note": run.info.note, **run.info.environment}
        others = alternatives(drawn) if options.device == "cpu" else {}
        records.append({"seed": seed, "seconds": round(seconds, 1), "ours": error, **others})
        print(json.dumps(records[-1]), flush=True)
        if options.output:
            options.output.write_text(json.dumps({"about": about, "records": records}, indent=2) + "\n")
    print(f"{'':<22}mean  deviation, n = {options.seeds}")
    for name in records[0]:
        values = [record[name] for record in records]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        if name != "seed":
            print(f"{name:<22}{statistics.mean(values):6.2f} {spread:5.2f}")


if __name__ == "__main__":
    main()
