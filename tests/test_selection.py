"""Selection: which rows to label next, from nothing and with a model, in Python and by the command."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import blobs

from selfens import SelfEnsemblingClassifier
from selfens.cli import main
from selfens.data import journal
from selfens.errors import ConfigError, DataError
from selfens.tools import selection


def clusters(sizes, seed=0, features=3, spread=0.1):
    random = np.random.default_rng(seed)
    centers = 10 * random.normal(size=(len(sizes), features))
    number = np.repeat(np.arange(len(sizes)), sizes)
    return (centers[number] + spread * random.normal(size=(len(number), features))).astype(np.float32), number


def covered_by(x, taken, width):
    """The naive twin: how much of the data some rows cover."""
    likeness = np.exp(-((x[:, None] - x[None, taken]) ** 2).sum(axis=2) / width)
    return likeness.max(axis=1).sum()


def test_from_nothing_there_is_one_typical_row_of_each_cluster_the_largest_first():
    x, number = clusters([60, 120, 90, 30])
    rows = selection.suggest(x, 4).rows
    assert number[rows].tolist() == [1, 2, 0, 3]
    for row in rows:  # typical: near the middle of its cluster
        members = x[number == number[row]]
        distances = np.linalg.norm(members - members.mean(axis=0), axis=1)
        assert np.linalg.norm(x[row] - members.mean(axis=0)) <= np.quantile(distances, 0.3)


def test_each_row_is_the_one_that_covers_the_most_beside_those_before_it():
    x = np.random.default_rng(3).normal(size=(60, 4)).astype(np.float32)
    pool = selection.Pool(rows=x, known=np.zeros(60, bool), usable=np.ones(60, bool))
    taken = selection.cover(pool, 6).tolist()
    squares = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    np.fill_diagonal(squares, np.inf)
    width = np.median(np.sort(squares, axis=1)[:, selection.NEIGHBOR - 1])
    for place in range(6):
        best = max(range(60), key=lambda row: covered_by(x, [*taken[:place], row], width))
        assert covered_by(x, taken[: place + 1], width) == pytest.approx(covered_by(x, [*taken[:place], best], width))


def test_with_labels_and_a_model_rows_are_uncertain_and_unlike_those_that_are_labeled():
    x, number = clusters([50, 50, 50, 50])
    labels = np.full(200, -1)
    labels[[0, 50]] = [0, 1]
    probabilities = np.where((number == 3)[:, None], [0.5, 0.5], [0.99, 0.01])
    assert number[selection.suggest(x, 1, labels, probabilities).rows] == 3
    assert {*number[selection.suggest(x, 2, labels).rows].tolist()} == {2, 3}  # without a model, what is not covered


def test_at_most_one_of_a_group_of_near_duplicates_and_none_of_a_labeled_row():
    x = np.random.default_rng(0).normal(size=(100, 5)).astype(np.float32)
    x = np.concatenate([x, x[:30] + 1e-3, x[:30]])
    labels = np.full(len(x), -1)
    labels[:10] = 0
    rows = selection.suggest(x, len(x), labels).rows
    originals = rows % 100 % 130
    groups = [row if row < 100 else (row - 100) % 30 for row in rows]
    assert len(groups) == len(set(groups)) == 90, originals
    assert min(groups) >= 10


def test_what_is_far_from_everything_and_what_is_not_usable_is_not_suggested():
    x, _ = clusters([100, 100], spread=1.0)
    far = np.random.default_rng(1).normal(size=(10, 3)).astype(np.float32) * 500
    usable = np.ones(210, dtype=bool)
    usable[:50] = False
    rows = selection.suggest(np.concatenate([x, far]), 20, usable=usable).rows
    assert rows.min() >= 50
    assert rows.max() < 200
    assert len(selection.suggest(x, 5, usable=np.zeros(200, bool)).rows) == 5  # if all seem to be junk, they are not


def test_more_rows_than_are_compared_and_more_features_than_are_kept(monkeypatch):
    monkeypatch.setattr(selection, "LARGEST", 80)
    x, number = clusters([100, 60, 40], features=100)
    assert {*number[selection.suggest(x, 3).rows].tolist()} == {0, 1, 2}


@pytest.mark.parametrize("way", selection.WAYS)
def test_every_way_gives_unlabeled_rows_once(way):
    x, y = blobs(40)
    labels = np.where(np.arange(40) < 10, y, -1)
    shares = np.random.default_rng(0).dirichlet(np.ones(3), 40)
    for probabilities in (None, shares):
        got = selection.suggest(x, 12, labels, probabilities, way=way)
        assert len({*got.rows.tolist()}) == 12
        assert got.rows.min() >= 10
        assert (got.predicted == (-1 if probabilities is None else shares[got.rows].argmax(axis=1))).all()
    assert len(selection.suggest(x, 500, labels, shares, way="random").rows) == 30


def test_random_rows_are_others_once_more_are_labeled():
    x, y = blobs(40)
    first, again = (selection.suggest(x, 5, way="random").rows.tolist() for _ in range(2))
    labels = np.where(np.arange(40) < 3, y, -1)
    assert first == again != selection.suggest(x, 5, labels, way="random").rows.tolist()


@pytest.mark.parametrize("x", [np.zeros((1, 2)), np.zeros((5, 2)), np.ones((30, 70))])
def test_rows_that_are_all_alike_give_one(x):
    assert len(selection.suggest(x.astype(np.float32), 3).rows) == 1


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"count": 0}, DataError, "0 rows were asked for; expected at least 1"),
        ({"count": 2.5}, ConfigError, r"2.5 \(float\); expected a whole number"),
        ({"way": "covers"}, ConfigError, "there is no way to choose rows 'covers'; did you mean 'cover'"),
        ({"labels": np.zeros(3, int)}, DataError, "60 rows, 3 labels; expected a label and a prediction for each"),
    ],
)
def test_what_does_not_fit_is_refused(change, error, sentence):
    with pytest.raises(error, match=sentence):
        selection.suggest(**({"inputs": blobs()[0], "count": 3} | change))


# The estimator


def test_a_classifier_suggests_before_and_after_it_is_fitted():
    x, y = blobs(90)
    model = SelfEnsemblingClassifier("supervised", epochs=3, random_state=0, device="cpu")
    rows = model.suggest(x, 6)
    assert {*y[rows].tolist()} == {0, 1, 2}
    known = np.full(90, -1)
    known[rows] = y[rows]
    more = model.fit(x, known).suggest(x, 6, known)
    assert not {*rows.tolist()} & {*more.tolist()}
    with pytest.raises(DataError, match="X has 90 rows and y 3"):
        model.suggest(x, 6, known[:3])


def test_a_classifier_suggests_texts_and_rows_of_a_table():
    pandas = pytest.importorskip("pandas")
    texts = [f"{word} {number} again and again" for word in ("apples are", "buses were") for number in range(20)]
    assert {row // 20 for row in SelfEnsemblingClassifier().suggest(texts, 2).tolist()} == {0, 1}
    frame = pandas.DataFrame({"size": [1.0, 1.1, 9.0, 9.1] * 5, "kind": ["a", "a", "b", "b"] * 5})
    assert {row % 4 // 2 for row in SelfEnsemblingClassifier().suggest(frame, 2).tolist()} == {0, 1}


# The command


@pytest.fixture
def typed(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def typed(*words):
        with pytest.raises(SystemExit) as done:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return done.value.code, said.out, said.err

    return typed


def lines_of(path="suggestions.csv"):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def photos(folder: Path) -> Path:
    """Forty photos of two kinds, a copy, a blank one, a damaged one."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(40):
        pixels = random.integers(0, 60, (12, 12, 3)) + np.array([[150, 0, 0], [0, 0, 150]])[number % 2]
        pixels[:6, : 3 + number % 2 * 6] += 40
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:02}.png")
    (folder / "copy.png").write_bytes((folder / "00.png").read_bytes())
    Image.new("RGB", (12, 12), "white").save(folder / "white.png")
    (folder / "broken.png").write_bytes(b"not an image")
    return folder


def test_a_folder_of_photos_without_a_label(typed):
    photos(Path("photos"))
    code, said, complained = typed("suggest", "photos", "--count", "30")
    assert (code or 0, complained) == (0, "")
    names = [Path(line["file"]).name for line in lines_of()]
    assert not {"white.png", "broken.png"} & {*names}
    assert not {"copy.png", "00.png"} <= {*names}
    assert {int(name[:2]) % 2 for name in names[:2]} == {0, 1}  # one of each kind first
    assert all(line["label"] == line["predicted"] == line["uncertainty"] == "" for line in lines_of())
    assert "rows to label next written to suggestions.csv; suggestions.html shows them" in said
    assert len(journal.suggested(Path("photos/.selfens.jsonl"))) == len(names)
    assert Path("suggestions.html").read_text().count('class="tile"') == len(names)


def test_texts_tables_and_arrays_without_a_label(typed):
    random = np.random.default_rng(0)
    Path("table.csv").write_text(
        "id,size,kind\n" + "".join(f"{n},{n % 2 * 9 + n / 100},{'ab'[n % 2]}\n" for n in range(40))
    )
    Path("lines.txt").write_text(
        "".join(f"{('a bus came late', 'an apple fell down')[n % 2]} {n}\n" for n in range(30))
    )
    np.savez("vectors.npz", x_train=random.normal(size=(30, 4)) + 9 * (np.arange(30) % 2)[:, None])
    for path, more in (("table.csv", []), ("lines.txt", ["--encoder", "tfidf"]), ("vectors.npz", [])):
        code, _, complained = typed("suggest", path, "--count", "4", *more)
        assert (code or 0, complained) == (0, ""), complained
        assert {int(line["row"]) % 2 for line in lines_of()} == {0, 1}, path
        Path("suggestions.csv").unlink()
        Path("suggestions.html").unlink()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits"], "digits holds no data of your own; expected a folder"),
        (["nowhere"], "'nowhere' is neither a public data set nor"),
        (["table.csv", "--label", "topik"], "has no column 'topik'; did you mean 'topic'?"),
        (["table.csv", "--data", "x"], "--data says where the data of a run are now, and table.csv is not a run"),
        (
            ["table.csv", "--backbone", "timm:x"],
            "the encoder 'backbone' does not suit",
        ),
        (["table.csv", "--count", "0"], "0 rows were asked for"),
    ],
)
def test_what_cannot_be_suggested_from_is_one_sentence(typed, words, sentence):
    Path("table.csv").write_text("size,topic\n" + "".join(f"{n % 7},\n" for n in range(30)))
    code, _, complained = typed("suggest", *words)
    assert code == 1
    assert sentence in complained
    assert complained.count("\n") == 1
