"""Fingerprints and draws that run directories and records hold: the first edition computed these, so they must not change."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import encoded

from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.data.labels import LabelsConfig, choose_labels
from selfens.data.sources import options_for

KNOWN = json.loads(Path(__file__).with_name("unchanged.json").read_text())


def arrays():
    random = np.random.default_rng(11)
    x = random.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    y = np.array(["ant", "bee", "", "cow"])[random.integers(0, 4, 40)]
    return {"x_train": x, "y_train": y, "x_test": x[:9, ::-1], "y_test": np.array(["ant", "bee", "cow"] * 3)}


HELD_OUT = {"folder": (17, 24, 30, 31, 38), "folder seed": (4, 29, 34, 37, 39)}
"""The photos that the first edition held out, which a folder test/ holds now."""


def written(tmp_path, kind):
    """The arrays in a source of this kind."""
    given = arrays()
    if kind == "npz":
        np.savez(tmp_path / "d.npz", **given)
        return tmp_path / "d.npz"
    if kind == "npy":
        for name, array in given.items():
            np.save(tmp_path / f"{name}.npy", array)
        return tmp_path
    for number, (image, label) in enumerate(zip(given["x_train"], given["y_train"], strict=True)):
        part = "test" if number in HELD_OUT.get(kind, ()) else ""
        place = tmp_path / "photos" / part / (str(label) or "unlabeled")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png", "BMP")  # whose size is the same in every version of Pillow
    if kind != "csv":
        return tmp_path / "photos"
    files = sorted((tmp_path / "photos").rglob("*.png"))
    lines = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in files]
    (tmp_path / "list.csv").write_text("file,label\n" + "\n".join(lines))
    return tmp_path / "list.csv"


@pytest.mark.parametrize("kind", [name for name in KNOWN if not name.startswith("labels")])
def test_the_fingerprint_of_a_data_set_does_not_change(tmp_path, official, kind):
    """The first fingerprint is the first edition's, but where the images it held out are trained on now. The
    second one, of the test rows, follows from their content since rows are held out by it."""
    seed, extra = {"digits 5": 5}.get(kind, 0), None
    if kind.startswith("digits"):
        options = options_for("digits")
    elif kind in ("cifar10", "cifar100", "svhn"):
        official.write(tmp_path, kind)
        options = options_for(kind, folder=str(tmp_path))
    else:
        if kind == "extra":
            np.save(extra := tmp_path / "more.npy", arrays()["x_train"][::-1])
        source = {"extra": "folder"}.get(kind, kind)
        options = options_for(written(tmp_path, source), extra=extra and str(extra))
    data = sources.load(options, seed=seed)
    assert [encoded(data).fingerprint, data.test_fingerprint()] == KNOWN[kind]


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_the_fingerprint_of_test_rows_follows_from_their_content_and_labels(tmp_path):
    images, labels = arrays()["x_test"].transpose(0, 3, 1, 2), np.arange(9) % 3
    rows = "".join(sha256(image.tobytes()) for image in images)
    found = sources.load(options_for(written(tmp_path, "npz"))).test_fingerprint()
    assert found == sha256(rows.encode() + labels.tobytes())
    photos = written(tmp_path, "folder")
    files = sorted((photos / "test").rglob("*.png"))
    labels = np.array([["ant", "bee", "cow"].index(file.parent.name) for file in files])
    expected = sha256("".join(sha256(file.read_bytes()) for file in files).encode() + labels.tobytes())
    for size in (8, 5):  # whatever they are decoded to
        assert sources.load(options_for(photos, size=size)).test_fingerprint() == expected
    for file in files:  # whatever they are called
        file.rename(file.with_name(f"0{file.name}"))
    files = sorted((photos / "test").rglob("*.png"))
    rows = "".join(sha256(file.read_bytes()) for file in files)
    assert sources.load(options_for(photos)).test_fingerprint() == sha256(rows.encode() + labels.tobytes())


CHOICES = {
    "balanced": {"count": 23},
    "original": {"count": 40, "choice": "original"},
    "noise and validation": {"count": 60, "noise": 30.0, "validation": 0.25},
    "all": {"validation": 0.1},
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("seed", [0, 1001])
def test_a_seed_draws_the_labels_it_drew_in_the_first_edition(name, seed):
    labels = np.random.default_rng(3).integers(-1, 5, 300)
    data = Dataset.from_arrays(np.zeros((300, 2)), labels).with_extra(np.ones((50, 2)))
    choice = choose_labels(data, LabelsConfig(**CHOICES[name]), label_seed=seed, split_seed=seed + 1)
    assert hashlib.sha256(choice.to_json().encode()).hexdigest() == KNOWN[f"labels {name} {seed}"]
