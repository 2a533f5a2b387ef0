"""The report: its measures against loops, its pages for every kind of run, and what it says when something is missing."""

import re
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from PIL import Image
from support import SMALL_IMAGES, Crash, blobs, config, crashed, features, images, selfens, sets, write_npz
from torch import nn

from selfens import load_run, presets, resume, train, write_report
from selfens.cli import main
from selfens.data.dataset import Dataset
from selfens.errors import RunError, SelfensError
from selfens.report import figures, measures
from selfens.report.gallery import LARGEST_SIDE, SHOWN_FIRST, Entry, gallery, pictures
from selfens.report.page import PICTURE_BYTES, write_audit_page, write_suggestions_page
from selfens.runs.directory import RunDirectory
from selfens.tools import audit

CHARTS = ["Error per epoch", "Losses per epoch", "w(t) and learning rate", "Variance of the ensemble"]
TEST_CHARTS = ["Confusion matrix", "Error per class", "Calibration"]
GALLERIES = ["Most uncertain", "Most confident mistakes", "Labels that look wrong"]
AWKWARD = ("<b>bold</b>", 'R&D "quoted"', "größe 日本 $x_1$ \N{CAT FACE}")


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
def tabular(tmp_path_factory):
    dataset = features()
    return train(config(epochs=2), tmp_path_factory.mktemp("report") / "table", dataset=dataset), dataset


# Measures, against loops


@given(some.integers(0, 10**6), some.integers(2, 6))
def test_confusion_and_calibration_against_loops(seed, classes):
    random = np.random.default_rng(seed)
    labels, probabilities = random.integers(0, classes, 50), random.dirichlet(np.full(classes, 0.4), 50)
    best = [int(np.argmax(row)) for row in probabilities]
    matrix = measures.confusion(labels, np.array(best), classes)
    for true in range(classes):
        for predicted in range(classes):
            expected = sum(a == true and b == predicted for a, b in zip(labels, best, strict=True))
            assert matrix[true, predicted] == expected
    measured, gap = measures.calibration(labels, probabilities), 0.0
    for number in range(10):
        members = [row for row in range(50) if number / 10 < probabilities[row].max() <= (number + 1) / 10]
        assert measured.counts[number] == len(members)
        if members:
            confidence = sum(probabilities[row].max() for row in members) / len(members)
            accuracy = sum(labels[row] == best[row] for row in members) / len(members)
            assert (measured.confidence[number], measured.accuracy[number]) == pytest.approx((confidence, accuracy))
            gap += len(members) / 50 * abs(confidence - accuracy)
    assert measured.error == pytest.approx(gap)


def test_a_network_that_is_always_sure_and_half_the_time_right_is_off_by_a_half():
    sure = np.tile([1.0, 0.0], (10, 1))
    assert measures.calibration(np.arange(10) % 2, sure).error == pytest.approx(0.5)
    assert measures.calibration(np.zeros(10, int), sure).error == 0


# The page of one run


def test_labels_that_look_wrong_are_shown_with_how_much_their_predictions_varied(tmp_path, data):
    run = train(config(epochs=2), tmp_path / "run", dataset=data)
    made = run.predict_training_rows(data, run.labels.rows)
    disputed = np.flatnonzero(made.predicted != run.labels.labels)
    assert len(disputed)
    text = Page(write_report(run, tmp_path / "page.html", dataset=data)).text
    for place in disputed[:3]:
        assert f"± {100 * made.deviation[place]:.0f} %" in text


def test_the_page_of_a_run_says_its_result_and_shows_everything(trained, page):
    error = f"{trained.test_error:.2f} % of 20 test rows"
    assert f"Temporal ensembling, trained on arrays with 12 of 60 rows labelled, puts {error}" in page.text
    labels = [found["aria-label"] for found in page.all("div", role="img")]
    assert labels == CHARTS + TEST_CHARTS
    assert len(page.all("svg")) == 7
    for title in GALLERIES:
        assert title in page.text
    assert "Expected calibration error" in page.text


def test_the_page_needs_nothing_but_itself(page):
    references = [found[key] for _, found in page.elements for key in ("src", "href", "xlink:href") if key in found]
    assert references
    assert all(reference.startswith(("data:", "#")) for reference in references)
    assert "@import" not in page.source
    assert "url(http" not in page.source


def test_the_same_run_gives_the_same_page(trained, page, data, tmp_path):
    assert write_report(trained.path, tmp_path / "again.html", dataset=data).read_text() == page.source


def test_ids_are_unique_and_text_takes_the_colour_of_the_page(page):
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    texts = page.all("text")
    assert len(texts) > 50
    assert all(re.search(r"fill: (currentColor|#ffffff)", found["style"]) for found in texts)
    assert figures.INK not in page.source


@pytest.mark.parametrize("method", ["supervised", "pi"])
def test_a_run_without_an_ensemble(tmp_path, data, method):
    run = train(config(method, *SMALL_IMAGES), tmp_path / "run", dataset=data)
    page = Page(write_report(run, tmp_path / "page.html", dataset=data))
    assert len(page.all("svg")) == 6
    assert all(title in page.text for title in GALLERIES)


def test_feature_vectors_get_tables_of_rows(tabular, tmp_path):
    run, dataset = tabular
    page = Page(write_report(run, tmp_path / "page.html", dataset=dataset))
    assert page.all("img") == []
    assert len([found for found in page.all("tr") if "data-class" in found]) >= 30
    assert "row true predicted probability" in page.text


def test_names_are_escaped_whatever_they_hold(tmp_path):
    x, y = blobs()
    dataset = Dataset.from_arrays(x, np.array(AWKWARD)[y], x[:9], np.array(AWKWARD)[y[:9]], name="/d/<i>data</i>")
    run = train(config(), tmp_path / "<u>run", dataset=dataset)
    page = Page(write_report(run, tmp_path / "page.html", dataset=dataset))
    for name in (*AWKWARD, "<i>data</i>"):
        assert " ".join(name.split()).rpartition("/")[2][:12] in page.text
    assert not any(tag in ("u", "i") for tag, _ in page.elements)
    assert "bold" in page.text
    assert page.all("b") == []  # tables have none, and no name made one


def test_a_name_that_is_no_text_does_not_break_the_page(tmp_path):
    x, y = blobs()
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    names = np.array([name, "b", "c"], dtype=object)
    dataset = Dataset.from_arrays(x, names[y].tolist(), x[:9], names[y[:9]].tolist())
    run = train(config(), tmp_path / "run", dataset=dataset)
    assert "caf?" in Page(write_report(run, tmp_path / "page.html", dataset=dataset)).text


def test_validation_rows_speak_where_there_are_no_test_rows(tmp_path):
    dataset = features(test_rows=0)
    with pytest.warns(match="no test rows"):
        run = train(config("temporal", "data.validation=0.25"), tmp_path / "run", dataset=dataset)
    page = Page(write_report(run, tmp_path / "page.html", dataset=dataset))
    assert "% of 3 validation rows into the wrong class" in page.text
    assert "There are no test rows, so there is no confusion matrix and no calibration." in page.text
    assert "Unlabeled training rows whose probabilities" in page.text
    assert [found["aria-label"] for found in page.all("div", role="img")] == CHARTS


def test_without_test_and_validation_rows_the_loss_speaks(tmp_path):
    dataset = features(test_rows=0)
    with pytest.warns(match="no test rows"):
        run = train(config(), tmp_path / "run", dataset=dataset)
    page = Page(write_report(run, tmp_path / "page.html", dataset=dataset))
    assert "has come to a supervised loss of" in page.text
    assert [found["aria-label"] for found in page.all("div", role="img")] == CHARTS[1:]


def test_every_row_labelled_leaves_no_unlabeled_ones_to_show(tmp_path):
    dataset = features(test_rows=0)
    with pytest.warns():
        run = train(config("temporal", "data.labels=none"), tmp_path / "run", dataset=dataset)
    page = Page(write_report(run, tmp_path / "page.html", dataset=dataset))
    assert "Most uncertain" not in page.text
    assert "Labels that look wrong" in page.text


# Many classes, large images


def many_classes(count, side=32):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (4 * count, 3, side, side), dtype=np.uint8)
    labels = np.arange(4 * count) % count
    names = [f"a class with number {number:03d}" for number in range(count)]
    return Dataset.from_arrays(pixels, labels, pixels[: 2 * count], labels[: 2 * count], classes=names, layout="NCHW")


@pytest.mark.parametrize(("count", "side"), [(100, 32), (20, 96)])
def test_many_classes_and_large_images_stay_small(tmp_path, count, side):
    dataset = many_classes(count, side)
    settings = config("supervised", "network.width=4", f"data.labels={2 * count}", "training.batch_size=20", epochs=1)
    run = train(settings, tmp_path / "run", dataset=dataset)
    path = write_report(run, tmp_path / "page.html", dataset=dataset)
    assert path.stat().st_size < PICTURE_BYTES + 500_000 < 3_000_000
    page = Page(path)
    assert ("The 20 worst of 100 classes." in page.text) == (count == 100)
    assert ("100 classes, by number" in page.text) == (count == 100)
    assert len([found for found in page.all("figure", class_="tile") if "hidden" not in found]) <= 3 * SHOWN_FIRST


def test_numbers_in_the_confusion_matrix_only_where_they_can_be_read():
    few, many = (
        figures.confusion_chart(np.full((count, count), 7), [str(n) for n in range(count)], "x")
        for count in (figures.NUMBERED_CLASSES, figures.NUMBERED_CLASSES + 1)
    )
    assert few.svg.count(">7</text>") >= figures.NUMBERED_CLASSES**2
    assert many.svg.count("</text>") < 40
    assert len(many.svg) < 60_000


def test_a_class_without_test_rows_has_no_error():
    chart = figures.class_error_chart(np.array([[3, 1], [0, 0]]), ["seen", "unseen"], "x")
    assert ">seen</text>" in chart.svg
    assert "unseen" not in chart.svg


# Galleries


def opened(address):
    import base64
    import io

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
    image = opened(pictures(inputs)(0))
    assert image.mode == mode
    assert image.size == inputs.shape[2:][::-1]
    if expected is not None:
        assert (np.asarray(image) == expected).all()


def test_floats_are_scaled_alike_for_all_rows():
    inputs = np.stack([np.full((1, 2, 2), value, np.float32) for value in (-1.0, 0.0, 1.0)])
    assert [int(np.asarray(opened(pictures(inputs)(row)))[0, 0]) for row in range(3)] == [0, 128, 255]


def test_large_images_are_reduced_in_proportion():
    image = opened(pictures(np.zeros((1, 3, 100, 400), np.uint8))(0))
    assert image.size == (LARGEST_SIDE, LARGEST_SIDE // 4)


def make_gallery(groups, budget=10**9, inputs=None):
    inputs = np.zeros((len(groups), 1, 4, 4), np.uint8) if inputs is None else inputs
    return gallery(
        np.asarray(groups),
        lambda place: Entry(row=place, predicted="p", measure="m"),
        inputs,
        budget,
        title="t",
        given_word="",
        measure_word="m",
        classes=tuple("abc"),
    )


def test_a_gallery_shows_the_first_and_keeps_some_of_each_class_behind_the_filter():
    found = make_gallery([0] * 300 + [1] * 5 + [2])
    assert [entry.row for entry in found.entries if entry.first] == list(range(SHOWN_FIRST))
    rows = [entry.row for entry in found.entries]
    assert rows == sorted(rows)
    kept = [entry.group for entry in found.entries]
    assert (kept.count(1), kept.count(2)) == (5, 1)
    assert len(kept) < 200
    assert found.groups == [(0, "a", 300), (1, "b", 5), (2, "c", 1)]


def test_a_suggestion_is_shown_whole(trained, data, tmp_path):
    suggestions = audit.suggest_run(trained, 30, data)
    assert len(suggestions.rows) == 30 > SHOWN_FIRST
    page = Page(write_suggestions_page(tmp_path / "page.html", suggestions, data))
    assert sum("data-first" in tile for tile in page.all("figure")) == 30
    assert "30 of 30 shown" in page.text


def test_a_report_says_how_many_rows_are_behind_a_gallery(trained, data, tmp_path):
    page = Page(write_report(trained, tmp_path / "page.html", dataset=data))
    assert f"{len(data.test_labels)} of {len(data.test_labels)} shown" in page.text
    assert make_gallery([0] * 300 + [1] * 5).shown_first == SHOWN_FIRST


def test_a_gallery_keeps_within_its_budget():
    one = len(make_gallery([0]).entries[0].picture)
    assert len(make_gallery([0] * 50, budget=10 * one).entries) == 10


# Runs that lack something


def test_a_run_stopped_half_way_says_how_far_it_is(tmp_path, data, monkeypatch):
    def crash(self, record):
        genuine(self, record)
        if record["epoch"] == 1:
            raise Crash

    genuine = RunDirectory.append_history
    monkeypatch.setattr(RunDirectory, "append_history", crash)
    with crashed():
        train(config("temporal", *SMALL_IMAGES), tmp_path / "run", dataset=data)
    page = Page(write_report(tmp_path / "run", tmp_path / "page.html", dataset=data))
    assert f"This run has done 2 of 3 epochs; 'selfens resume {tmp_path / 'run'}' completes it." in page.text
    assert "that of the last checkpoint, after epoch 1" in page.text
    assert len(page.all("svg")) == 7


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(b"garbage"), "cannot be read"),
        (Path.unlink, "no checkpoint.safetensors to go on"),
    ],
    ids=["damaged", "lost"],
)
def test_without_its_checkpoint_a_run_has_its_curves_and_the_reason(trained, data, tmp_path, damage, reason):
    run = shutil.copytree(trained.path, tmp_path / "run")
    damage(run / "checkpoint.safetensors")
    page = Page(write_report(run, tmp_path / "page.html", dataset=data))
    assert len(page.all("svg")) == len(CHARTS)
    assert "Confusion matrix, calibration and galleries are missing" in page.text
    assert reason in page.text
    assert "completes it" not in page.text


def test_epochs_without_a_checkpoint_still_have_curves(tmp_path, data, monkeypatch):
    def crash(self, record):
        genuine(self, record)
        raise Crash

    genuine = RunDirectory.append_history
    monkeypatch.setattr(RunDirectory, "append_history", crash)
    with crashed():
        train(config("temporal", *SMALL_IMAGES), tmp_path / "run", dataset=data)
    page = Page(write_report(tmp_path / "run", tmp_path / "page.html", dataset=data))
    assert "galleries are missing" in page.text
    assert "has no checkpoint yet" in page.text
    assert len(page.all("svg")) == 4


def test_a_run_killed_before_its_first_epoch_is_one_sentence(tmp_path, data, monkeypatch):
    def crash(self, record):
        raise Crash

    monkeypatch.setattr(RunDirectory, "append_history", crash)
    with crashed():
        train(config("temporal", *SMALL_IMAGES), tmp_path / "run", dataset=data)
    with pytest.raises(RunError, match="has not finished an epoch yet, so there is nothing to report"):
        write_report(tmp_path / "run", tmp_path / "page.html", dataset=data)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("damage", ["{", '{"epoch": 3}\n', "7\n", "\0"])
def test_a_damaged_last_line_of_the_history_is_left_out(trained, data, tmp_path, damage):
    shutil.copytree(trained.path, tmp_path / "run")
    with open(tmp_path / "run" / "history.jsonl", "a") as file:
        file.write(damage)
    assert "after 3 epochs" in Page(write_report(tmp_path / "run", tmp_path / "page.html", dataset=data)).text


def test_a_run_on_arrays_of_ones_own_says_what_it_lacks(trained, tmp_path):
    page = Page(write_report(trained.path, tmp_path / "page.html"))
    assert "galleries are missing" in page.text
    assert "was trained on arrays passed in Python; pass the dataset again." in page.text
    assert len(page.all("svg")) == 4


def test_other_data_than_the_runs_is_not_shown_as_its_own(trained, tmp_path):
    assert "not what" in Page(write_report(trained, tmp_path / "page.html", dataset=images(rows=66))).text


def test_data_that_was_moved_is_named(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    run = train(config(name=str(npz)), tmp_path / "run")
    npz.rename(tmp_path / "elsewhere.npz")
    page = Page(write_report(run.path, tmp_path / "page.html"))
    assert f"{npz}, the data of {run.path}, is not there any more" in page.text


def test_a_folder_that_was_moved_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SELFENS_CACHE", str(tmp_path / "cache"))
    for number in range(20):
        path = tmp_path / "photos" / ("a", "b")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 200 * (number % 2), 0)).save(path)
    settings = config("temporal", *SMALL_IMAGES, "data.labels=none", name=str(tmp_path / "photos"))
    with (
        pytest.warns(match="every training row is labelled"),
        pytest.warns(match=r"every image lies in the folder of a class \(a 8, b 8\); those without"),
    ):
        run = train(settings.with_values("data", image_size=8), tmp_path / "run")
    page = Page(write_report(run.path, tmp_path / "page.html"))
    assert re.search(r"\d+\.png", page.text)  # test rows go by their files
    (tmp_path / "photos").rename(tmp_path / "moved")
    page = Page(write_report(run.path, tmp_path / "page.html"))
    assert f"{tmp_path / 'photos'}, the data of {run.path}, is not there any more" in page.text
    page = Page(write_report(run.path, tmp_path / "page.html", source=tmp_path / "moved"))
    assert "is not there any more" not in page.text


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)


def test_a_network_of_ones_own_is_asked_for_and_then_used(tmp_path):
    dataset = features()
    run = train(config(), tmp_path / "run", dataset=dataset, network=Own())
    page = Page(write_report(run.path, tmp_path / "page.html", dataset=dataset))
    assert "was trained with a module of your own" in page.text
    assert "a module of your own" in page.text
    page = Page(write_report(load_run(run.path, network=Own()), tmp_path / "page.html", dataset=dataset))
    assert len(page.all("svg")) == 7


def test_no_run_and_no_place_for_the_page_are_one_sentence(trained, data, tmp_path):
    with pytest.raises(RunError, match="no run was given"):
        write_report([], tmp_path / "page.html")
    with pytest.raises(SelfensError, match="could not be written"):
        write_report(trained, tmp_path / "no" / "page.html", dataset=data)


# Several runs


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder, dataset = tmp_path_factory.mktemp("several"), features()
    return [
        train(config(method, f"seed.base={seed}", epochs=2), folder / f"{method}-{seed}", dataset=dataset)
        for method in ("temporal", "supervised", "pi")
        for seed in (0, 1)
    ], dataset


def test_a_few_runs_are_compared_and_then_shown_one_by_one(several, tmp_path):
    runs, dataset = several
    page = Page(write_report([run.path for run in runs[:3]], tmp_path / "page.html", dataset=dataset))
    assert page.text.count("Test error per epoch") == 1
    assert len(page.all("svg")) == 1 + 7 + 7 + 6  # two of temporal ensembling, which has a variance, and one supervised
    assert "Test error of 3 runs on arrays, after the last epoch:" in page.text
    mean = np.mean([run.test_error for run in runs[:2]])
    assert f"temporal ensembling (2 runs) {mean:.2f} ±" in page.text
    assert f"supervised-0 {runs[2].test_error:.2f} %" in page.text
    for run in runs[:3]:
        assert f"{run.path.name} " in page.text
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))


def test_runs_that_were_stopped_or_repeat_a_seed_are_not_averaged(several, tmp_path):
    runs, dataset = several
    again = shutil.copytree(runs[0].path, tmp_path / "again")
    stopped = shutil.copytree(runs[1].path, tmp_path / "stopped")
    RunDirectory(stopped).truncate_history(1)
    page = Page(write_report([runs[0], again, stopped], tmp_path / "page.html", dataset=dataset))
    sentence = page.text[page.text.index("Test error of 3 runs") :].partition(" Test error per epoch")[0]
    assert "±" not in sentence
    assert "(2 runs)" not in sentence
    assert f"again {runs[0].test_error:.2f} %" in sentence
    assert f"stopped (1 of 2 epochs) {load_run(stopped).test_error:.2f} %" in sentence


def test_runs_of_several_seeds_go_by_the_first_where_others_have_the_same_method(several, tmp_path):
    runs, dataset = several
    again = shutil.copytree(runs[0].path, tmp_path / "again")
    page = Page(write_report([*runs[:2], again], tmp_path / "page.html", dataset=dataset))
    assert "temporal-0 and 1 other seed " in page.text
    assert "temporal ensembling (2 runs)" not in page.text


def test_many_runs_are_compared_with_links_to_their_own_pages(several, tmp_path):
    runs, dataset = several
    write_report(runs[0], runs[0].path / "report.html", dataset=dataset)
    page = Page(write_report(runs, tmp_path / "page.html"))
    assert len(page.all("svg")) == 1
    assert len(page.all("tr")) == 1 + len(runs)
    (link,) = page.all("a")
    assert (tmp_path / link["href"]).resolve() == (runs[0].path / "report.html").resolve()


def test_runs_of_the_same_name_go_by_their_paths(trained, data, tmp_path):
    shutil.copytree(trained.path, tmp_path / "other" / trained.path.name)
    copy = load_run(tmp_path / "other" / trained.path.name)
    assert str(copy.path) in Page(write_report([trained, copy], tmp_path / "page.html", dataset=data)).text


def test_runs_without_test_rows_are_compared_by_their_losses(several, tmp_path):
    with pytest.warns(match="no test rows"):
        untested = train(config(epochs=2), tmp_path / "untested", dataset=features(test_rows=0))
    tested = [run.path for run in several[0][:2]]
    page = Page(write_report([tested[0], untested], tmp_path / "page.html"))
    assert "Supervised loss of 2 runs" in page.text
    page = Page(write_report([*tested, untested], tmp_path / "page.html"))
    assert "Test error of 2 runs" in page.text
    assert "Without a test error: untested." in page.text


def test_errors_on_different_test_rows_are_not_passed_off_as_the_same(several, tmp_path):
    runs, _ = several
    caution = "Not all were tested on the same rows"
    assert caution not in Page(write_report([run.path for run in runs[:2]], tmp_path / "page.html")).text
    seeds = [
        train(
            config(method, f"seed.base={seed}", "seed.split=0"),
            tmp_path / f"{method}{seed}",
            dataset=features(test_rows=30 + seed),
        )
        for method in ("pi", "supervised")
        for seed in (0, 1)
    ]
    assert caution not in Page(write_report(seeds, tmp_path / "page.html")).text  # each method on the same rows
    other = train(config("temporal", epochs=2), tmp_path / "other", dataset=features(test_rows=20))
    page = Page(write_report([runs[0].path, other], tmp_path / "page.html"))
    assert caution in page.text
    assert "test rows" in page.text


# At the end of a run


def test_a_report_is_written_when_the_last_epoch_is_done(tmp_path, data, monkeypatch):
    monkeypatch.setattr("selfens.data.sources.load", None)  # the data is in memory already
    run = train(config("temporal", *SMALL_IMAGES, "training.report=true"), tmp_path / "run", dataset=data)
    page = Page(run.path / "report.html")
    assert len(page.all("svg")) == 7
    before = page.source
    resume(run.path, dataset=data)
    assert (run.path / "report.html").read_text() == before


def test_a_stopped_run_gets_its_report_when_it_is_completed(tmp_path, data, monkeypatch):
    def crash(self, record):
        genuine(self, record)
        raise Crash

    settings = config("temporal", *SMALL_IMAGES, "training.report=true")
    with monkeypatch.context() as patched, crashed():
        genuine = RunDirectory.append_history
        patched.setattr(RunDirectory, "append_history", crash)
        train(settings, tmp_path / "run", dataset=data)
    assert not (tmp_path / "run" / "report.html").exists()
    resume(tmp_path / "run", dataset=data)
    assert "after 3 epochs" in Page(tmp_path / "run" / "report.html").text


def test_a_report_that_fails_costs_a_warning_and_not_the_run(tmp_path, data, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("selfens.training.loop.write_report", broken)
    with pytest.warns(match=r"the run is complete, but its report could not be written \(division by zero\)\.$"):
        run = train(config("temporal", *SMALL_IMAGES, "training.report=true"), tmp_path / "run", dataset=data)
    assert run.finished
    assert run.evaluate(data)["rows"] == 20


def test_the_users_own_module_is_left_as_training_left_it(tmp_path):
    network = Own()
    train(config("temporal", "training.report=true"), tmp_path / "run", dataset=features(), network=network)
    assert network.training
    assert len(Page(tmp_path / "run" / "report.html").all("svg")) == 7


def test_the_report_changes_no_random_number(tmp_path):
    import torch

    drawn = []
    for report in ("true", "false"):
        torch.manual_seed(0)
        train(config("temporal", f"training.report={report}"), tmp_path / report, dataset=features())
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def test_a_page_of_digits_takes_little_time(tmp_path):
    settings = presets.get("digits").with_overrides(["schedule.epochs=1", "network.width=4", "training.report=false"])
    run = train(settings, tmp_path / "run")
    dataset = run.dataset()
    write_report(run, tmp_path / "page.html", dataset=dataset)
    began = time.process_time()
    write_report(run, tmp_path / "page.html", dataset=dataset)
    assert time.process_time() - began < 1.5


# Commands


def test_train_report_and_suggest_as_typed(tmp_path):
    write_npz(tmp_path / "data.npz")
    tiny = ("--epochs", "2", *sets(["network.width=4", "training.threads=1"]))
    done = selfens("train", "data.npz", "--run", "my run", *tiny, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-2:]
    assert last == ["report in my run/report.html", "to predict: selfens predict 'my run' INPUT -o out.csv"]
    assert len(Page(tmp_path / "my run" / "report.html").all("svg")) == 7
    done = selfens("report", "my run", "my run", "-o", "both.html", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "report written to both.html\n", "")


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Two classes of dark and bright images, most of them unlabeled, and a run on them."""
    monkeypatch.setenv("SELFENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for number in range(40):
        name = ("dark", "bright")[number % 2]
        path = tmp_path / "photos" / (name if number < 20 else "unlabeled") / f"{number} ü.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 100, (12, 12, 3), dtype=np.uint8) + 150 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    train_words = ["train", "./photos", "--run", "run", "--size", "8", "--epochs", "2", "--quiet"]
    assert command([*train_words, *sets(["network.width=4", "training.report=false"])]) == 0


def command(words):
    try:
        main(words)
    except SystemExit as end:
        return end.code or 0
    return 0


def test_suggestions_come_with_a_gallery_beside_them(photos, capsys):
    capsys.readouterr()
    assert command(["suggest", "run", "-n", "7", "-o", "next.csv"]) == 0
    assert capsys.readouterr().out == "7 rows to label next written to next.csv, to look at in next.html\n"
    page = Page("next.html")
    assert len(page.all("figure", class_="tile")) == len(page.all("img")) == 7
    assert "7 rows of" in page.text
    assert " ü.png" in page.text
    assert len(page.all("button")) >= 2


def test_an_audit_comes_with_a_gallery_beside_it(photos, capsys):
    capsys.readouterr()
    assert command(["audit", "run", "-o", "found.csv"]) == 0
    assert capsys.readouterr().out.endswith("written to found.csv, to look at in found.html\n")
    assert "labels of" in Page("found.html").text


def test_the_gallery_of_an_audit_shows_the_disputed_alone(tmp_path, data):
    labels = np.array([0, 1, 2])
    ranked = audit.rank(labels, [[0.9, 0.1, 0], [0.8, 0.2, 0], [0.3, 0.3, 0.4]])
    page = Page(write_audit_page(tmp_path / "page.html", ranked, data, "Somehow."))
    assert "1 of 3 labels of arrays are disputed." in page.text
    (tile,) = page.all("figure", class_="tile")
    assert tile["data-class"] == "1"
    assert "given 1 suggested 0 score -0.60 row 1" in page.text


def test_the_gallery_of_an_audit_without_a_disputed_label_shows_the_least_certain(tmp_path, data):
    ranked = audit.rank(np.array([0, 1, 2]), [[0.9, 0.1, 0], [0.2, 0.8, 0], [0.3, 0.3, 0.4]])
    page = Page(write_audit_page(tmp_path / "page.html", ranked, data))
    assert "0 of 3 labels of arrays are disputed." in page.text
    assert "Labels that are least certain" in page.text
    assert [tile["data-class"] for tile in page.all("figure", class_="tile")] == ["2", "1", "0"]


def test_the_gallery_of_suggestions_for_feature_vectors_is_a_table(tmp_path):
    found = audit.suggest([[0.5, 0.5, 0], [0.1, 0.9, 0]], [False, False], 2)
    page = Page(write_suggestions_page(tmp_path / "page.html", found, features()))
    assert "row predicted uncertainty 0 0 0.63 1 1 0.30" in page.text
