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
        place = tmp_path / "photos" / (str(label) or "unlabeled")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png", "BMP")  # whose size is the same in every version of Pillow
    if kind == "folder":
        return tmp_path / "photos"
    files = sorted((tmp_path / "photos").rglob("*.png"))
    lines = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in files]
    (tmp_path / "list.csv").write_text("file,label\n" + "\n".join(lines))
    return tmp_path / "list.csv"


@pytest.mark.parametrize("kind", [name for name in KNOWN if not name.startswith("labels")])
def test_the_fingerprint_of_a_data_set_is_the_first_editions(tmp_path, official, kind):
    seed, extra = {"digits 5": 5, "folder seed": 3}.get(kind, 0), None
    if kind.startswith("digits"):
        options = options_for("digits")
    elif kind in ("cifar10", "cifar100", "svhn"):
        official.write(tmp_path, kind)
        options = options_for(kind, folder=str(tmp_path))
    else:
        if kind == "extra":
            np.save(extra := tmp_path / "more.npy", arrays()["x_train"][::-1])
        source = {"extra": "folder", "folder seed": "folder"}.get(kind, kind)
        options = options_for(written(tmp_path, source), extra=extra and str(extra))
    data = sources.load(options, seed=seed)
    assert [encoded(data).fingerprint, data.test_fingerprint()] == KNOWN[kind]


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
