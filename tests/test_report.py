"""The report: its measures against loops, its pages for every kind of run, and what it says when something is missing."""

import base64
import io
import json
import math
import re
import shutil
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from matplotlib.figure import Figure
from PIL import Image
from scipy.special import softmax
from scipy.stats import binomtest
from support import SMALL_IMAGES, At, blobs, config, crash, crashed, encoded, features, images, sets, write_npz
from torch import nn

from selfens import load_run, presets, train, write_report
from selfens.data.dataset import Dataset
from selfens.errors import RunError, SelfensError
from selfens.report import comparison, figures
from selfens.report.comparison import compare
from selfens.report.gallery import MAX_ENTRIES, MAX_SIDE, pictures
from selfens.report.page import write_audit_page, write_report_or_warn, write_suggestions_page
from selfens.runs.directory import RunDirectory
from selfens.tools import audit, selection
from selfens.tools.comparison import comparison_of

CHARTS = [
    "Error, %",
    "Losses",
    "Unsupervised loss",
    "Learning rate",
    "Weight of the unsupervised loss",
    "Ensemble variance",
]
SUPERVISED = ["Error, %", "Losses", "Learning rate"]
TEST_CHARTS = ["Confusion matrix", "Calibration", "Answering only what is certain"]
GALLERIES = ["Rows to label next", "Most uncertain rows", "Most confident mistakes", "Most suspicious labels"]
AWKWARD = ("<b>bold</b>", 'R&D "quoted"', "größe 日本 $x_1$ \N{CAT FACE} caf\udce9")


class Page(HTMLParser):
    """What a reader finds on a page: its words, and its elements with their attributes."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.texts, self.open = [], [], []
        self.source = Path(path).read_text()
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.texts.append(" ")
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open[-1:]):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())

    @property
    def charts(self):
        return [found["aria-label"] for found in self.all("div", role="img")]

    @property
    def ids(self):
        return [found["id"] for _, found in self.elements if "id" in found]

    def all(self, tag, **wanted):
        names = {key.rstrip("_"): value for key, value in wanted.items()}
        return [found for name, found in self.elements if name == tag and names.items() <= found.items()]


@pytest.fixture(scope="module")
def data():
    return images()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data):
    return train(config("temporal", *SMALL_IMAGES), tmp_path_factory.mktemp("report") / "run", dataset=data)


@pytest.fixture(scope="module")
def page(trained, data):
    return Page(write_report(trained, trained.path.parent / "page.html", dataset=data))


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Two runs each of three methods on the same vectors, by method and seed."""
    folder, dataset = tmp_path_factory.mktemp("several"), features()
    return {
        f"{method}-{seed}": train(
            config(method, f"seed.base={seed}", epochs=2), folder / f"{method}-{seed}", dataset=dataset
        )
        for method in ("temporal", "supervised", "pi")
        for seed in (0, 1)
    }, dataset


@pytest.fixture
def undrawn(monkeypatch):
    """Charts without content, for tests of everything else on a page: drawing takes nearly all of its time."""
    monkeypatch.setattr(figures, "svg", lambda draw, title, size=None: "<svg></svg>")


@pytest.fixture
def written(tmp_path, undrawn):
    """The page of runs, without the content of charts."""
    return lambda runs, **options: Page(write_report(runs, tmp_path / "page.html", **options))


def copied(run, path, **changes):
    """A copy of a run in which fields of the training section are others."""
    copy = shutil.copytree(run.path, path)
    (copy / "config.json").write_text(run.config.with_values("training", **changes).to_json())
    return load_run(copy)


# Measures


@given(some.integers(0, 10**6), some.integers(2, 6))
def test_calibration_against_loops(seed, classes):
    random = np.random.default_rng(seed)
    labels, probabilities = random.integers(0, classes, 50), random.dirichlet(np.full(classes, 0.4), 50)
    best = [int(np.argmax(row)) for row in probabilities]
    (*measured, error), gap, points = figures.calibration(labels, probabilities), 0.0, []
    for number in range(10):
        members = [row for row in range(50) if number / 10 < probabilities[row].max() <= (number + 1) / 10]
        if members:
            confidence = sum(probabilities[row].max() for row in members) / len(members)
            accuracy = sum(labels[row] == best[row] for row in members) / len(members)
            points.append((confidence, accuracy))
            gap += len(members) / 50 * abs(confidence - accuracy)
    np.testing.assert_allclose(np.transpose(measured), points)
    assert error == pytest.approx(gap)


# The page of one run


def test_the_page_of_a_run_says_its_result_and_shows_everything(trained, page):
    wrong = round(20 * trained.test_error / 100)
    low, high = (100 * end for end in binomtest(wrong, 20).proportion_ci(0.9, "wilson"))
    error = f"{trained.test_error:.2f} % of 20 test rows misclassified (90 % interval {low:.1f} to {high:.1f})"
    assert f"arrays, 12 of 60 rows labeled, temporal: {error} after 3 of 3 epochs." in page.text
    found = f"{trained.test_error:.1f} % of rows that it has not seen are misclassified: {low:.0f} to {high:.0f} % with 90 %"
    assert f"{found} certainty, measured on 20 test rows." in page.text.replace("\u00a0", " ")
    assert comparison_of(trained).is_worse
    assert f"Next, {comparison_of(trained).advice}." in page.text
    order = [
        "certainty, measured",
        "this model",
        "Rows to look at",
        *GALLERIES,
        "How far to trust it",
        *TEST_CHARTS,
        CHARTS[0],
    ]
    places = [page.source.index(words) for words in order]
    assert places == sorted(places)
    assert len(page.all("h1", class_="headline")) == 1
    assert page.source.rindex("<details>", 0, places[-1]) > places[-2]  # the curves are folded away
    assert page.charts == TEST_CHARTS + CHARTS
    assert len(page.all("svg")) == len(TEST_CHARTS + CHARTS)
    assert len(page.all("img")) >= 24
    for words in (*GALLERIES, "Expected calibration error", "stand for the most rows that are not labeled yet."):
        assert words in page.text


def test_the_page_needs_nothing_but_itself(page):
    references = [found[key] for _, found in page.elements for key in ("src", "href", "xlink:href") if key in found]
    assert references
    assert all(reference.startswith(("data:", "#")) for reference in references)
    assert "@import" not in page.source
    assert "url(http" not in page.source


def test_ids_are_unique_and_text_takes_the_color_of_the_page(page):
    assert len(page.ids) == len(set(page.ids))
    texts = page.all("text")
    assert len(texts) > 50
    assert all(re.search(r"fill: (currentColor|#ffffff)", found["style"]) for found in texts)
    assert figures.INK not in page.source


def test_the_same_run_gives_the_same_page_in_little_time(trained, page, data, tmp_path):
    began = time.process_time()
    assert write_report(trained.path, tmp_path / "again.html", dataset=data).read_text() == page.source
    assert time.process_time() - began < 1.5


def test_feature_vectors_get_tables_of_rows_and_a_run_without_an_ensemble_no_chart_of_one(several, written):
    runs, dataset = several
    page = written(runs["supervised-0"], dataset=dataset)
    assert page.charts == TEST_CHARTS + SUPERVISED
    assert all(title in page.text for title in GALLERIES)
    assert page.all("img") == []
    assert len(page.all("tr")) >= 26
    assert "true predicted probability" in page.text


def test_names_are_escaped_whatever_they_hold(tmp_path):
    x, y = blobs()
    names = np.array(AWKWARD, dtype=object)
    dataset = Dataset.from_arrays(x, names[y].tolist(), x[:9], names[y[:9]].tolist(), name="/d/<i>data</i>")
    run = train(config(), tmp_path / "<u>run", dataset=dataset)
    page = Page(write_report(run, tmp_path / "page.html", dataset=dataset))
    for name in ("<b>bold</b>", 'R&D "quoted"', "größe 日本 $x_1$", "caf?", "<i>data</i>".rpartition("/")[2]):
        assert name in page.text
    assert not any(tag in ("u", "i", "b") for tag, _ in page.elements)


@pytest.mark.parametrize(
    ("setting", "sentence", "charts"),
    [
        ("labels.validation=0.25", "% of 3 validation rows misclassified after 3 of 3 epochs.", CHARTS),
        ("labels.count=12", "no test rows after 3 of 3 epochs.", CHARTS[1:]),
        ("labels.count=all", "no test rows after 3 of 3 epochs.", CHARTS[1:]),
    ],
)
def test_without_test_rows_the_page_says_what_else_is_known(tmp_path, written, setting, sentence, charts):
    dataset = features(test_rows=0)
    run = train(config("temporal", setting), tmp_path / "run", dataset=dataset)
    page = written(run, dataset=dataset)
    assert sentence in page.text
    assert ("Rows to label next" in page.text) == (setting != "labels.count=all")
    assert "Most suspicious labels" in page.text
    assert page.charts == charts


def test_whatever_the_history_holds_is_drawn(trained, tmp_path, written):
    run = shutil.copytree(trained.path, tmp_path / "run")
    new = {"beta1": None, "weight": None, "ensemble_variance": None, "momentum": 0.9, "constant": 1}
    lines = []
    for record in trained.history:
        epoch = record["epoch"]
        changing = {"kept_rows": -0.5 * epoch, "momentum": epoch, "lost": math.nan if epoch else 1}
        lines.append(json.dumps(record | new | changing))
    (run / "history.jsonl").write_text("\n".join(lines))
    own = ["Momentum", "Kept rows", "Lost"]
    assert written(run).charts == ["Error, %", "Losses", "Unsupervised loss", "Learning rate", *own]


def test_after_one_epoch_only_the_losses_are_drawn(tmp_path, written):
    dataset = features(test_rows=0)
    run = train(config("supervised", epochs=1), tmp_path / "run", dataset=dataset)
    assert written(run, dataset=dataset).charts == ["Losses"]


def test_large_numbers_have_commas_in_charts_and_galleries(tmp_path):
    chart = figures.epochs_chart("Losses", {"total": [np.linspace(9000, 1500, 2400).tolist()]})
    numbers = re.findall(r">([\d,.]{4,})</text>", chart.svg)
    assert {"1,000", "2,000", "8,000"} <= set(numbers)
    assert all("," in number for number in numbers)
    chart = figures.results_chart("Last loss", {"one": [1500.0, 2000.0], "other": [10.0]}, "loss")
    assert "1,000" in re.findall(r">([\d,.]{4,})</text>", chart.svg)
    chart = figures.epochs_chart("Error, %", {"test": [[None] * 11 + [40.0]]})
    assert chart.svg.count(">12</text>") == 1  # no numbers between whole epochs
    suggestions = selection.Suggestions(np.array([1234]), np.array([0]), np.array([0.5]))
    page = Page(write_suggestions_page(tmp_path / "page.html", suggestions, encoded(features(rows=1500))))
    assert "predicted uncertainty row 1,234 0 0.50" in page.text


def test_galleries_name_files_from_the_folder_of_the_data(data, tmp_path):
    files = tuple(f"/data/photos/cat/2026/{row:04d}.png" for row in range(80))
    named = replace(data, name="/data/photos", ids=files, folder="/data/photos")
    ranked = audit.rank(np.array([0, 1, 2]), [[0.9, 0.1, 0], [0.8, 0.2, 0], [0.3, 0.3, 0.4]])
    page = Page(write_audit_page(tmp_path / "page.html", ranked, encoded(named)))
    assert "score 0.20 cat/2026/0001.png" in page.text
    assert "Files are in /data/photos." in page.text
    assert page.all("img")[0]["alt"] == "0001.png"
    elsewhere = encoded(replace(named, folder=""))
    assert (
        "score 0.20 /data/photos/cat/2026/0001.png"
        in Page(write_audit_page(tmp_path / "page.html", ranked, elsewhere)).text
    )


def test_a_line_leads_over_epochs_that_were_not_evaluated(monkeypatch):
    axes = Figure().subplots()
    monkeypatch.setattr(figures, "svg", lambda draw, title, size=None: draw(axes))
    figures.epochs_chart("Error, %", {"test": [[None, 30.0, None, 20.0, 10.0]]})
    line = axes.lines[0]
    assert line.get_xydata().tolist() == [[2, 30], [4, 20], [5, 10]]


@pytest.mark.parametrize(
    ("epoch", "words"),
    [(3, ") after 2 of 5 epochs; 3 are done."), (1, ", not evaluated yet after 1 of 5 epochs.")],
)
def test_a_run_that_was_stopped_tells_its_last_error_and_when_it_was_measured(tmp_path, data, written, epoch, words):
    every = ("training.evaluate_every=2", "training.checkpoint_every=1")
    with crashed():
        settings = config("temporal", *every, *SMALL_IMAGES, epochs=5)
        train(settings, tmp_path / "run", dataset=data, progress=At(epoch, 0, crash))
    text = written(tmp_path / "run", dataset=data).text
    assert words in text
    if epoch == 3:
        assert re.search(r"% of 20 test rows misclassified \(90 % interval [\d.]+ to [\d.]+\) after", text)
    assert not (tmp_path / "run" / "evidence.safetensors").exists()  # it is not what the finished run will be


def test_uncertain_rows_and_mistakes_have_calibrated_probabilities_and_true_classes(several, written):
    runs, dataset = several
    page, run = written(runs["pi-1"], dataset=dataset), runs["pi-1"]
    assert run.evidence.temperature != 1
    calibrated = softmax(np.log(run.test_probabilities.astype(float)) / run.evidence.temperature, axis=1)
    predicted, confidence, truth = calibrated.argmax(axis=1), calibrated.max(axis=1), run.data().test_labels
    wrong = np.flatnonzero(predicted != truth)
    orders = {GALLERIES[1]: np.argsort(confidence), GALLERIES[2]: wrong[np.argsort(-confidence[wrong])]}
    for (title, order), following in zip(orders.items(), GALLERIES[2:], strict=True):
        part = page.source.partition(title)[2].partition(following)[0]
        found = re.findall(r"<tr><td>test row (\d+)</td><td>(\d)</td><td>(\d)</td><td>([\d.]+)</td>", part)
        assert len(order) > 0
        assert found == [(f"{n}", f"{truth[n]}", f"{predicted[n]}", f"{confidence[n]:.2f}") for n in order]


# Many classes, large images


@pytest.mark.parametrize(("count", "side"), [(100, 32), (20, 96)])
def test_many_classes_and_large_images_stay_small(tmp_path, count, side):
    pixels = np.random.default_rng(0).integers(0, 256, (4 * count, 3, side, side), dtype=np.uint8)
    labels, tested = np.arange(4 * count) % count, slice(2 * count)
    names = [f"a class with number {number:03d}" for number in range(count)]
    dataset = Dataset.from_arrays(pixels, labels, pixels[tested], labels[tested], classes=names, layout="NCHW")
    settings = config("supervised", "network.width=4", f"labels.count={2 * count}", "training.batch_size=20", epochs=1)
    run = train(settings, tmp_path / "run", dataset=dataset)
    path = write_report(run, tmp_path / "page.html", dataset=dataset)
    assert path.stat().st_size < 3_000_000  # pictures of noise cannot be compressed
    page = Page(path)
    assert f"{count} classes, numbered in the order of their names" in page.text
    assert 0 < len(page.all("figure", class_="tile")) <= 4 * MAX_ENTRIES


def test_numbers_in_the_confusion_matrix_only_where_they_can_be_read():
    few, many = (
        figures.confusion_chart(*np.indices((count, count, 7)).reshape(3, -1)[:2], [str(n) for n in range(count)])
        for count in (figures.NUMBERED_CLASSES, figures.NUMBERED_CLASSES + 1)
    )
    assert few.svg.count(">7</text>") >= figures.NUMBERED_CLASSES**2
    assert many.svg.count("</text>") < 40
    assert len(many.svg) < 60_000


# Galleries


def opened(address):
    return Image.open(io.BytesIO(base64.b64decode(address.removeprefix("data:image/png;base64,"))))


@pytest.mark.parametrize(
    ("inputs", "mode", "expected"),
    [
        (np.full((1, 1, 4, 4), 255, np.uint8), "L", 255),
        (np.linspace(0, 1, 16, dtype=np.float32).reshape(1, 1, 4, 4), "L", None),
        (np.full((1, 3, 4, 6), 7, np.uint8), "RGB", None),
        (np.full((1, 4, 4, 4), 9, np.uint8), "RGBA", None),
        (np.full((1, 2, 4, 4), 9, np.uint8), "L", None),
        (np.linspace(-3, 3, 48, dtype=np.float32).reshape(1, 3, 4, 4), "RGB", None),
        (np.zeros((1, 1, 4, 4), np.float32), "L", 0),
    ],
)
def test_every_kind_of_image_becomes_a_picture(inputs, mode, expected):
    image = opened(pictures(inputs)[0])
    assert image.mode == mode
    assert image.size == inputs.shape[2:][::-1]
    if expected is not None:
        assert (np.asarray(image) == expected).all()


def test_floats_are_scaled_alike_for_all_rows_and_large_images_reduced_in_proportion():
    inputs = np.stack([np.full((1, 2, 2), value, np.float32) for value in (-1.0, 0.0, 1.0)])
    assert [int(np.asarray(opened(picture))[0, 0]) for picture in pictures(inputs)] == [0, 128, 255]
    assert opened(pictures(np.zeros((1, 3, 100, 400), np.uint8))[0]).size == (MAX_SIDE, MAX_SIDE // 4)


def test_rows_of_a_table_are_shown_by_their_ids_and_cells(tmp_path, typed):
    lines = [f"k{n},{n / 7:.2f},{'red' if n % 3 else '<i>'},{'' if n > 20 else 'yn'[n % 2]}" for n in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["id,size,hue,y", *lines]))
    words = ("--label", "y", "--id", "id", "--run", "run", "--epochs", 1, *sets(["training.threads=1"]))
    assert typed("train", "t.csv", *words)[0] == 0
    text = Page(tmp_path / "run/report.html").text
    assert re.search(r"Rows to label next .* id predicted uncertainty size hue k\d+ ", text)
    assert "<i>" in text
    assert "inputs: 1 number (size), 1 category (hue)" in text


def test_the_page_of_an_audit_shows_the_most_suspicious_labels_first(tmp_path, data):
    ranked = audit.rank(np.array([0, 1, 2]), [[0.9, 0.1, 0], [0.8, 0.2, 0], [0.3, 0.3, 0.4]])
    page = Page(write_audit_page(tmp_path / "page.html", ranked, encoded(data), "Somehow."))
    assert "1 of 3 labels of arrays are disputed." in page.text
    assert "Somehow." in page.text
    assert "given 1 suggested 0 score 0.20 row 1" in page.text
    assert [image["alt"] for image in page.all("img")] == ["row 1", "row 2", "row 0"]
    undisputed = audit.rank(np.array([0]), [[0.9, 0.1, 0]])
    sure = write_audit_page(tmp_path / "sure.html", undisputed, encoded(data))
    assert "No label is disputed; these are the least certain ones." in Page(sure).text
    sure = write_audit_page(tmp_path / "sure.html", undisputed, encoded(data), is_in_sample=True)
    words = "The network agrees with every label that it was trained on, which says little about them; these are"
    assert words in Page(sure).text
    assert "No label is disputed" not in Page(sure).text


# Runs that lack something


def killed(path, data, epoch, *, after_writing=True):
    """A run that ends between the history's line for an epoch, counted from 0, and its checkpoint."""
    genuine = RunDirectory.append_history

    def append(self, record):
        if after_writing:
            genuine(self, record)
        if record["epoch"] == epoch:
            crash()

    with pytest.MonkeyPatch.context() as patched, crashed():
        patched.setattr(RunDirectory, "append_history", append)
        train(config("temporal", "training.checkpoint_every=1", *SMALL_IMAGES), path, dataset=data)
    return path


def test_the_page_of_a_killed_run_ends_at_its_checkpoint(tmp_path, data, written):
    page = written(killed(tmp_path / "run", data, epoch=1), dataset=data)
    assert re.search(
        r"% of 20 test rows misclassified \(90 % interval [\d.]+ to [\d.]+\) after 1 of 3 epochs\.", page.text
    )
    assert page.charts == [*TEST_CHARTS, *CHARTS[:2]]  # in one epoch nothing else has changed
    page = written(killed(tmp_path / "without checkpoint", data, epoch=0), dataset=data)
    assert "galleries are missing" in page.text
    assert "has no checkpoint; resume it" in page.text
    assert page.charts == CHARTS[:2]
    run = killed(tmp_path / "without epochs", data, epoch=0, after_writing=False)
    with pytest.raises(RunError, match="has not finished an epoch yet, so there is nothing to report"):
        write_report(run, tmp_path / "no.html", dataset=data)
    assert not (tmp_path / "no.html").exists()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(b"garbage"), "cannot be read"),
        (Path.unlink, "checkpoint.safetensors cannot be read"),
    ],
    ids=["damaged", "lost"],
)
def test_without_its_checkpoint_a_run_has_its_curves_and_the_reason(trained, data, tmp_path, written, damage, reason):
    run = shutil.copytree(trained.path, tmp_path / "run")
    damage(run / "checkpoint.safetensors")
    page = written(run, dataset=data)
    assert page.charts == CHARTS
    assert "Confusion matrix, calibration and galleries are missing" in page.text
    assert reason in page.text


@pytest.mark.parametrize(
    "damage", ["{", '{"epoch": 3}\n', '{"epoch": 3, "supervised": "x", "total": []}\n', "7\n", "\0"]
)
def test_a_damaged_last_line_of_the_history_is_left_out(trained, tmp_path, written, damage):
    run = shutil.copytree(trained.path, tmp_path / "run")
    (run / "checkpoint.safetensors").unlink()  # which would say how many epochs to show
    with open(run / "history.jsonl", "a") as file:
        file.write(damage)
    assert "after 3 of 3 epochs" in written(run).text


def test_a_run_on_arrays_needs_them_again_and_no_others(trained, written):
    page = written(trained.path)
    assert "was trained on a dataset passed in Python; pass it" in page.text
    assert page.charts == CHARTS
    text = written(trained, dataset=images(rows=66)).text
    assert f"galleries are missing: the data of arrays are not what {trained.path} was trained on" in text


def test_a_network_of_ones_own_is_asked_for_and_then_used(tmp_path, written):
    dataset = features()
    run = train(config(), tmp_path / "run", dataset=dataset, network=nn.Linear(6, 3))
    page = written(run.path, dataset=dataset)
    assert "was trained with a module of your own" in page.text
    assert "evaluate" not in page.text.partition("Settings")[0]  # no command can measure it
    assert page.charts == CHARTS
    again = load_run(run.path, network=nn.Linear(6, 3))
    assert written(again, dataset=dataset).charts == TEST_CHARTS + CHARTS


def test_no_run_and_no_place_for_the_page_are_one_sentence(trained, data, tmp_path, undrawn):
    with pytest.raises(RunError, match="no run was given"):
        write_report([], tmp_path / "page.html")
    with pytest.raises(SelfensError, match="could not be written"):
        write_report(trained, tmp_path / "no" / "page.html", dataset=data)


# Several runs


@pytest.fixture
def labels(monkeypatch, undrawn):
    """What the lines of the charts drawn are called, all in one text."""
    drawn, genuine = [], comparison.epochs_chart
    monkeypatch.setattr(
        comparison, "epochs_chart", lambda title, groups, words: drawn.extend(groups) or genuine(title, groups, words)
    )
    return drawn


def test_runs_are_compared_in_two_charts_and_one_table(several, tmp_path):
    runs = [several[0][name] for name in ("temporal-0", "temporal-1", "supervised-0")]
    page = Page(write_report([run.path for run in runs], tmp_path / "page.html"))
    assert page.charts == ["Test error in % per epoch", "Last test error in %"]
    assert len(page.all("tr")) == 1 + 3
    mean = np.mean([run.test_error for run in runs[:2]])
    best = min((mean, "temporal-0 and 1 other seed"), (runs[2].test_error, "supervised-0"))
    assert f"Lowest test error in %: {best[1]}, {best[0]:.2f}" in page.text
    assert f"temporal-0 and 1 other seed, {mean:.2f} ±" in page.text
    assert f"supervised-0, {runs[2].test_error:.2f}" in page.text
    assert all(f"{run.path.name} " in page.text for run in runs)
    assert len(page.ids) == len(set(page.ids))


def test_runs_that_were_stopped_or_repeat_a_seed_are_not_averaged(several, tmp_path, labels):
    first = several[0]["temporal-0"]
    again, stopped = copied(first, tmp_path / "again"), copied(several[0]["temporal-1"], tmp_path / "stopped")
    stopped.directory.truncate_history(1)
    compare([first, again, stopped])
    error, last = f"{first.test_error:.2f}", f"{stopped.test_error:.2f}"
    assert labels == [f"temporal-0, {error}", f"again, {error}", f"stopped (1 of 2 epochs), {last}"]


def test_seeds_that_choose_other_test_rows_are_seeds_of_one_experiment(tmp_path, undrawn):
    settings = presets.get("digits-supervised").with_overrides(["schedule.epochs=1", "network.width=2"])
    runs = [train(settings.with_values("seed", base=seed), tmp_path / f"seed{seed}") for seed in (0, 1)]
    assert runs[0].info.fingerprint != runs[1].info.fingerprint
    assert "seed0 and 1 other seed" in compare(runs)["sentence"]


def test_only_runs_that_differ_in_nothing_but_the_seed_are_averaged(several, tmp_path, labels):
    first, second = (several[0][f"temporal-{seed}"] for seed in (0, 1))
    elsewhere = copied(second, tmp_path / "elsewhere", threads=2, checkpoint_every=2, precision="fp32")
    assert "temporal-0 and 1 other seed" in compare([first, elsewhere])["sentence"]
    other = copied(second, tmp_path / "other", rows="labeled")
    elsewhere.info = replace(elsewhere.info, custom_network=True)
    labels.clear()
    for run in (other, elsewhere):
        compare([first, run])
    assert len(labels) == 4
    assert "±" not in "".join(labels)


def test_runs_are_compared_by_their_last_errors_however_often_they_were_evaluated(tmp_path, several, undrawn):
    stopped = tmp_path / "stopped"
    with crashed():
        settings = config("temporal", "training.evaluate_every=2", "training.checkpoint_every=1", epochs=5)
        train(settings, stopped, dataset=features(), progress=At(3, 0, crash))
    found = compare([load_run(stopped), several[0]["pi-0"]])
    assert found["headers"][1] == "test error in %"
    assert found["rows"][0][1] == f"{load_run(stopped).history[1]['test_error']:.2f}"


def test_runs_of_the_same_name_go_by_their_paths(several, tmp_path, written):
    first = several[0]["temporal-0"]
    copy = copied(first, tmp_path / "other" / first.path.name)
    assert str(copy.path) in written([first, copy]).text


def test_runs_without_test_rows_are_compared_by_their_losses(several, tmp_path, undrawn):
    untested = train(config(epochs=2), tmp_path / "untested", dataset=features(test_rows=0))
    tested = [several[0][f"temporal-{seed}"] for seed in (0, 1)]
    assert compare([tested[0], untested])["sentence"].startswith("Lowest supervised loss: ")
    found = compare([*tested, untested])
    assert found["sentence"].startswith("Lowest test error in %: temporal-0 and 1 other seed")
    assert [row[0] for row in found["rows"]] == ["temporal-0", "temporal-1", "untested"]


def test_errors_on_different_test_rows_are_not_passed_off_as_the_same(several, tmp_path, written):
    runs = several[0]
    copies = [copied(runs[name], tmp_path / name) for name in ("supervised-0", "supervised-1", "pi-0", "pi-1")]
    for run in copies:
        run.info = replace(run.info, test_fingerprint=f"rows of seed {run.config.seed.base}")
    assert compare(copies)["tested_alike"]  # each method on the same rows
    assert not compare([runs["temporal-0"], copies[0]])["tested_alike"]
    assert "The runs were not all tested on the same rows" in written([runs["temporal-0"], copies[0]]).text


# At the end of a run


def test_the_page_of_a_finished_run_is_written_beside_it(trained, data, tmp_path, undrawn):
    run = copied(trained, tmp_path / "run")
    drawn = []
    for write in (True, False):
        torch.manual_seed(0)
        if write:
            write_report_or_warn(run, data, pytest.fail)
        drawn.append(torch.rand(3))
    assert Page(run.path / "report.html").charts == TEST_CHARTS + CHARTS
    assert torch.equal(*drawn)


def test_if_a_report_fails_there_is_a_warning_and_the_run_is_unaffected(trained, data, tmp_path, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("division\nby zero")

    warnings = []
    run = copied(trained, tmp_path / "run")
    monkeypatch.setattr(figures, "svg", broken)
    write_report_or_warn(run, data, warnings.append)
    assert warnings == ["the run is complete, but its report could not be written (division by zero)."]
    assert run.evaluate(data)["rows"] == 20


# Commands, and files that are moved


def test_train_and_report_as_typed(tmp_path, typed, undrawn):
    write_npz(tmp_path / "data.npz")
    tiny = ("--epochs", "2", *sets(["network.width=4", "training.threads=1"]))
    code, out, _ = typed("train", "data.npz", "--method", "temporal", "--run", "my run", *tiny)
    assert code == 0
    last = ["report in my run/report.html", "to predict: selfens predict 'my run' INPUT -o out.csv"]
    assert out.splitlines()[-2:] == last
    assert Page("my run/report.html").charts == TEST_CHARTS + CHARTS
    assert typed("report", "my run", "my run", "-o", "both.html") == (0, "report written to both.html\n", "")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder with two classes of dark and bright images, most of them unlabeled, and a run on it."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(40):
        name = ("dark", "bright")[number % 2]
        path = folder / "photos" / (name if number < 20 else "unlabeled") / f"{number} ü.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 100, (12, 12, 3), dtype=np.uint8) + 150 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    settings = config("temporal", *SMALL_IMAGES, "labels.count=all", name=str(folder / "photos"), epochs=2)
    train(settings.with_values("source", size=8), folder / "run")
    return folder


def test_suggestions_and_audits_come_with_galleries_beside_them(photos, typed):
    code, out, _ = typed("suggest", photos / "run", "-n", "7", "-o", "next.csv")
    assert (code, out) == (0, "7 rows to label next written to next.csv; next.html shows them\n")
    page = Page("next.html")
    assert len(page.all("figure", class_="tile")) == len(page.all("img")) == 7
    assert "7 rows of" in page.text
    assert " ü.png" in page.text
    code, out, _ = typed("audit", photos / "run", "-o", "found.csv")
    assert code == 0
    assert out.endswith("written to found.csv; found.html shows them\n")
    assert "labels of" in Page("found.html").text


def test_a_folder_that_was_moved_is_named_and_can_be_found_again(photos, written):
    run, before, after = photos / "run", photos / "photos", photos / "moved"
    assert re.search(r"\d+ ü\.png", written(run).text)  # rows go by their files
    before.rename(after)
    try:
        assert re.search(f"the data of {run} cannot be loaded: .*{before}", written(run).text)
        assert "cannot be loaded" not in written(run, dataset=load_run(run).data(source=after).dataset).text
    finally:
        after.rename(before)
