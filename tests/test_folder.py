"""Folders of images, as people have them: odd names, odd modes, broken files."""

import csv

import numpy as np
import pytest
from PIL import Image

from selfens import load_run
from selfens.cli import main
from selfens.data import folder
from selfens.data.folder import decode, load_folder
from selfens.errors import DataError

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SELFENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def picture(path, colour=(10, 20, 30), size=(20, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def photos(root, each=6):
    """Three classes that differ in colour, some unlabeled ones, and one beside the folders."""
    random = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        for number in range(each):
            noisy = tuple(int(c + random.integers(-20, 20)) for c in colour)
            picture(root / name / f"{number} größe.png", noisy)
            picture(root / "unlabeled" / f"{name}{number}.jpg", noisy)
    picture(root / "beside.bmp")
    return root


def test_sub_folders_are_classes_and_the_rest_is_unlabeled(tmp_path):
    data = load_folder(photos(tmp_path / "my photos"), size=8)
    assert data.classes == ("blue", "green", "red")
    assert data.input_shape == (3, 8, 8)
    assert (data.labels == -1).sum() == 19
    assert len(data.test_labels) == 3  # a fifth of six, rounded, of each class
    assert np.bincount(data.labels[data.labels >= 0]).tolist() == [5, 5, 5]
    assert len(data.row_names) == data.num_rows
    for row in np.flatnonzero(data.labels >= 0):
        assert f"/{data.classes[data.labels[row]]}/" in data.row_names[row]
        assert np.argmax(data.inputs[row].mean(axis=(1, 2))) == ["red", "green", "blue"].index(
            data.classes[data.labels[row]]
        )


def test_a_test_folder_is_the_test_set(tmp_path):
    photos(tmp_path / "p" / "train")
    for name, colour in COLOURS.items():
        picture(tmp_path / "p" / "test" / name / "t.png", colour)
    data = load_folder(tmp_path / "p", size=8)
    assert (len(data.test_labels), (data.labels >= 0).sum(), (data.labels == -1).sum()) == (3, 18, 19)
    picture(tmp_path / "p" / "test" / "yellow" / "t.png")
    with pytest.raises(DataError, match="of no class that .*train has"):
        load_folder(tmp_path / "p", size=8)


def test_a_class_of_one_image_keeps_it_for_training(tmp_path):
    picture(tmp_path / "p" / "rare" / "1.png")
    for number in range(5):
        picture(tmp_path / "p" / "common" / f"{number}.png")
    data = load_folder(tmp_path / "p", size=8)
    assert data.classes == ("common", "rare")
    assert 1 in data.labels
    assert data.test_labels.tolist() == [0]


def test_every_mode_becomes_rgb(tmp_path):
    grey = tmp_path / "grey.png"
    Image.new("L", (9, 9), 77).save(grey)
    assert (decode(grey, 8) == 77).all()
    deep = tmp_path / "deep.png"
    Image.fromarray(np.full((9, 9), 77 * 257, dtype=np.uint16)).save(deep)
    assert (decode(deep, 8) == 77).all()
    clear = tmp_path / "clear.png"
    Image.new("RGBA", (9, 9), (0, 0, 0, 0)).save(clear)
    assert (decode(clear, 8) == 255).all()
    palette = tmp_path / "palette.gif"
    Image.new("RGB", (9, 9), (200, 0, 0)).convert("P").save(palette)
    assert decode(palette, 8)[:, 0, 0].tolist() == pytest.approx([200, 0, 0], abs=6)
    one_bit = tmp_path / "one.png"
    Image.new("1", (9, 9), 1).save(one_bit)
    assert (decode(one_bit, 8) == 255).all()


def test_a_camera_held_sideways_is_undone(tmp_path):
    image = Image.new("RGB", (20, 20), "black")
    image.paste("white", (0, 0, 20, 10))  # the upper half
    exif = image.getexif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "turned.jpg", exif=exif)
    pixels = decode(tmp_path / "turned.jpg", 8)
    assert pixels[:, 0].mean() < 30
    assert pixels[:, -1].mean() > 220


def test_unreadable_files_are_counted_named_and_left_out(tmp_path):
    root = photos(tmp_path / "p")
    (root / "red" / "böse datei.png").write_text("not an image")
    whole = picture(root / "blue" / "cut.png", size=(60, 60)).read_bytes()
    (root / "blue" / "cut.png").write_bytes(whole[: len(whole) // 2])
    data = load_folder(root, size=8)
    assert len(data.unreadable) == 2
    assert any("böse datei.png" in line for line in data.unreadable)
    assert data.num_rows + len(data.test_labels) == 37
    assert len(data.row_names) == data.num_rows


def test_a_folder_of_which_most_is_unreadable_is_refused(tmp_path):
    picture(tmp_path / "p" / "a" / "1.png")
    for number in range(3):
        (tmp_path / "p" / "a" / f"bad{number}.png").write_text("no")
    with pytest.raises(DataError, match=r"3 of 4 images .* cannot be read .*are they images\?"):
        load_folder(tmp_path / "p", size=8)


def test_a_second_load_reads_the_cache_until_a_file_changes(tmp_path, monkeypatch):
    root = photos(tmp_path / "p")
    first = load_folder(root, size=8)
    decoded = []
    original = folder.decode
    monkeypatch.setattr(folder, "decode", lambda path, size: decoded.append(path) or original(path, size))
    assert load_folder(root, size=8).fingerprint() == first.fingerprint()
    assert decoded == []
    picture(root / "red" / "0 größe.png", (1, 2, 3), size=(30, 30))
    load_folder(root, size=8)
    assert decoded


def test_a_csv_names_files_and_labels(tmp_path):
    for number in range(8):
        picture(tmp_path / "d" / f"{number}.png")
    lines = [f"{n}.png,{['cat', 'dog', '', ' '][n % 4]}" for n in range(8)]
    (tmp_path / "d" / "list.csv").write_text("\ufefffile,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    data = load_folder(tmp_path / "d" / "list.csv", size=8)
    assert data.classes == ("cat", "dog")
    assert (data.labels == -1).sum() == 4


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("file,label\nnot-there.png,cat\n", "1 files that are not there, the first .*not-there.png"),
        ("path,class\nx.png,cat\n", "begins with the columns path, class; expected file and label"),
        ("", "begins with the columns none"),
        ("file,label\n", "names no files"),
    ],
)
def test_a_bad_csv_gets_one_sentence(tmp_path, content, sentence):
    (tmp_path / "l.csv").write_text(content)
    with pytest.raises(DataError, match=sentence):
        load_folder(tmp_path / "l.csv", size=8)


def typed(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    return stopped.value.code or 0, out, err


def test_train_evaluate_and_predict_as_a_user_types_it(tmp_path, capsys):
    photos(tmp_path / "digits")  # a preset has this name too, so the folder is written as a path
    code, out, err = typed(
        capsys, "train", "./digits", "--size", 8, "--epochs", 30, "--run", "run", "--set", "network.width=8"
    )
    assert (code, err) == (0, "")
    assert "temporal, small (" in out
    assert "30 epochs, w_max 30" in out
    run = load_run("run")
    assert run.config.data.image_size == 8
    assert run.test_error < 50
    assert typed(capsys, "evaluate", "run")[0] == 0
    code, out, _ = typed(capsys, "predict", "run", "digits/unlabeled", "-o", "out.csv")
    assert (code, out) == (0, "18 predictions written to out.csv\n")
    with open("out.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["file", "class", "probability", "second_class", "second_probability"]
    assert all(float(line["probability"]) >= float(line["second_probability"]) for line in lines)
    assert sum(line["class"] in line["file"] for line in lines) > 9


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root.mkdir(), "holds no images"),
        (lambda root: picture(root / "only" / "1.png"), "one class only"),
        (lambda root: picture(root / "unlabeled" / "1.png"), "no row of .* is labelled"),
    ],
    ids=["empty", "one class", "nothing labelled"],
)
def test_a_folder_that_cannot_be_trained_on_gets_one_sentence(tmp_path, capsys, make, words):
    import re

    make(tmp_path / "p")
    code, _, err = typed(capsys, "train", "./p", "--run", "run", "--quiet")
    assert code == 1
    assert re.search(words, err)
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_run_on_features_cannot_predict_images(tmp_path, capsys):
    np.savez("f.npz", x_train=np.random.default_rng(0).normal(size=(20, 3)), y_train=np.arange(20) % 2)
    typed(capsys, "train", "f.npz", "--epochs", 1, "--run", "run", "--quiet")
    picture(tmp_path / "p" / "1.png")
    code, _, err = typed(capsys, "predict", "run", "p", "-o", "out.csv")
    assert code == 1
    assert "not on square colour images" in err


def test_labels_of_an_audit_follow_their_files_when_images_are_added(tmp_path, capsys):
    root = photos(tmp_path / "p" / "train")
    for name, colour in COLOURS.items():
        picture(tmp_path / "p" / "test" / name / "t.png", colour)
    words = ["--size", 8, "--epochs", 1, "--set", "network.width=4", "--quiet"]
    assert typed(capsys, "train", "./p", "--run", "first", *words)[0] == 0
    typed(capsys, "audit", "first", "-o", "issues.csv")
    picture(root / "blue" / "0 added.png", COLOURS["blue"])  # sorts before the others and shifts their rows
    assert typed(capsys, "train", "./p", "--run", "second", "--labels-file", "issues.csv", *words)[0] == 0
    run = load_run("second")
    names = run.dataset().row_names
    for row, label in zip(run.labels.rows, run.labels.labels, strict=True):
        assert f"/{run.classes[label]}/" in names[row]


def test_a_cache_that_is_no_folder_and_a_size_beyond_reason_are_no_tracebacks(tmp_path, capsys, monkeypatch):
    photos(tmp_path / "p")
    code, _, err = typed(capsys, "train", "./p", "--size", 999_999, "--quiet")
    assert (code, "from 4 to 1024 pixels" in err) == (1, True)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SELFENS_CACHE", str(tmp_path / "file"))
    assert load_folder(tmp_path / "p", size=8).num_rows == 34
