"""Folders of images as found in the wild: odd names, odd modes, broken files."""

import base64
import csv
import hashlib
import html
import io
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile
from support import SMALL_IMAGES, child, config, finish, run_cli_without_privileges

from selfens import load_run
from selfens.data import images
from selfens.data.images import decode
from selfens.data.sources import SOURCES, load
from selfens.errors import DataError, SelfensWarning
from selfens.report.page import write_report
from selfens.runs.evidence import Evidence
from selfens.tools.predict import predict_file
from selfens.training.loop import train

QUICKLY = ["--size", 8, "--epochs", 1, "--set", "network.width=4", "--quiet"]
COLORS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def folder(path, seed=0, size=8):
    return load(SOURCES.options("images", path=str(path), size=size), seed=seed)


def picture(path, color=(10, 20, 30), size=(20, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def photos(root, each=6):
    """Three classes that differ in color, some unlabeled ones, and one beside the folders."""
    random = np.random.default_rng(0)
    for name, color in COLORS.items():
        for number in range(each):
            grainy(root / name / f"{number} größe.png", random, color)
            grainy(root / "unlabeled" / f"{name}{number}.jpg", random, color)
    grainy(root / "beside.bmp", random)
    return root


def grainy(path, random, color=(128, 128, 128), size=(20, 16)):
    """A picture of about one color, unlike others of that color."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.array(color) + random.integers(-100, 100, (*size[::-1], 3))
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return path


# Which files, and of which class


def test_folders_are_classes_and_the_rest_is_unlabeled(tmp_path):
    data = folder(photos(tmp_path / "my photos"))
    assert (data.classes, data.raw.shape) == (("blue", "green", "red"), (37, 3, 8, 8))
    assert (data.train_labels == -1).sum() == 19
    assert len(data.test_labels) == 0  # too few labels to hold out a fifth
    assert np.bincount(data.train_labels[data.train_labels >= 0]).tolist() == [6, 6, 6]
    for row in np.flatnonzero(data.labels >= 0):
        name = data.classes[data.labels[row]]
        assert f"/{name}/" in data.ids[row]
        assert np.argmax(data.raw[row].mean(axis=(1, 2))) == ["red", "green", "blue"].index(name)


LAYOUTS = {
    "test beside classes": ("cat/1 dog/1 test/cat/1 test/dog/1", (2, 0, 2)),
    "train, test and val": ("train/cat/1 train/dog/1 test/cat/1 test/dog/1 val/cat/1 val/dog/1", (2, 0, 2)),
    "train and val": ("train/cat/1 train/dog/1 val/cat/1 val/dog/1", (2, 0, 2)),
    "upper case": ("Train/cat/1 Train/dog/1 TEST/cat/1 Test/dog/1", (2, 0, 2)),
    "train without test": ("train/cat/1 train/cat/2 train/cat/3 train/dog/1 unlabeled/1 Unlabelled/2", (4, 2, 0)),
    "images beside train": ("train/cat/1 train/dog/1 train/2 test/cat/1 test/dog/1 loose", (2, 2, 2)),
    "one image of a class": ("cat/1 cat/2 cat/3 cat/4 cat/5 dog/1", (6, 0, 0)),
}


@pytest.mark.parametrize(("files", "counts"), LAYOUTS.values(), ids=LAYOUTS)
def test_names_of_folders_say_what_is_tested_and_what_is_unlabeled(tmp_path, files, counts):
    for name in files.split():
        picture(tmp_path / "p" / f"{name}.png")
    data = folder(tmp_path / "p")
    assert data.classes == ("cat", "dog")
    assert ((data.train_labels >= 0).sum(), (data.train_labels == -1).sum(), len(data.test_labels)) == counts
    assert set(data.train_labels) >= {0, 1}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ("train/cat/1 dog/1", "holds train/ and beside it 'dog'; .* so move the others there"),
        ("cat/1 dog/1 test/1", "test/1.png is a test image whose class has no training images"),
        ("test/cat/1 test/dog/1", "holds no images to train on"),
        ("cat/1 dog/1 test/bird/1", "test/bird/1.png is a test image whose class has no training images"),
    ],
)
def test_folders_that_contradict_each_other_are_refused(tmp_path, files, sentence):
    for name in files.split():
        picture(tmp_path / "p" / f"{name}.png")
    with pytest.raises(DataError, match=sentence):
        folder(tmp_path / "p")


def test_other_files_and_empty_folders_are_passed_over(tmp_path):
    root = photos(tmp_path / "p")
    (root / "bird").mkdir()
    (root / "fish").mkdir()
    (root / "fish" / "broken.png").write_text("no")
    for name in ("notes.txt", "film.mov", "Thumbs.db", ".hidden"):
        (root / name).write_text("no")
    data = folder(root)
    assert (data.classes, len(data.skipped)) == (("blue", "green", "red"), 1)
    assert "broken.png" in data.skipped[0]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Two classes of 290 images, tiny bitmaps of noise; one that looks like another, but larger; and a class of one image."""
    root, random = tmp_path_factory.mktemp("many") / "p", np.random.default_rng(0)
    for number in range(580):
        grainy(root / "ab"[number % 2] / f"{number}.bmp", random, size=(8, 8))
    Image.open(root / "b" / "1.bmp").resize((16, 16), Image.Resampling.NEAREST).save(root / "b" / "large 1.bmp")
    grainy(root / "c" / "only.bmp", random, size=(8, 8))
    return root


def held_out(root):
    """The contents of the test images."""
    return {Path(name).read_bytes() for name in folder(root).row_ids(test=True)}


def test_of_many_labels_a_fifth_is_held_out_by_a_hash_of_the_file(many):
    data = folder(many)
    original = sha256((many / "b" / "large 1.bmp").read_bytes())  # the larger of the two
    expected = set()
    for path in many.rglob("*.bmp"):
        number = sha256(path.read_bytes()) if path.name != "1.bmp" else original
        if int(number[:8], 16) < 0.2 * 2**32 and path.name != "only.bmp":
            expected.add(str(path))
    assert set(data.row_ids(test=True)) == expected
    assert 100 <= len(expected) < 140
    assert data.classes == ("a", "b", "c")
    sides = {data.is_test[data.ids.index(str(many / "b" / name))] for name in ("1.bmp", "large 1.bmp")}
    assert len(sides) == 1
    assert data.row_numbers(test=True).tolist() == np.flatnonzero(data.is_test).tolist()
    assert sorted([*data.row_numbers(), *data.row_numbers(test=True)]) == list(range(len(data.labels)))
    options = SOURCES.options("images", path=str(many), size=8, hold_out=False)
    assert len(load(options).test_labels) == 0
    np.testing.assert_array_equal(load(options, seed=3).labels, data.labels)


def test_what_is_held_out_does_not_move_with_seeds_names_places_or_new_images(many, tmp_path):
    before = held_out(many)
    assert set(folder(many, seed=1).row_ids(test=True)) == set(folder(many).row_ids(test=True))
    root = shutil.copytree(many, tmp_path / "moved")
    assert held_out(root) == before
    for number, path in enumerate(sorted((root / "a").iterdir())):
        path.rename(path.with_name(f"{-number % 7} renamed {number}.bmp"))
    assert held_out(root) == before
    random = np.random.default_rng(1)
    new = {grainy(root / name / f"0 new {number}.bmp", random).read_bytes() for number in range(40) for name in "ab"}
    after = held_out(root)
    assert after - new == before
    assert 0 < len(after & new) < 40
    for number in range(30):  # an image that loses or gets a label moves no other
        path = root / "a" / sorted(os.listdir(root / "a"))[0]
        path.rename(picture(root / "unlabeled" / f"{number}.bmp"))
    assert held_out(root) == after & {path.read_bytes() for name in "ab" for path in (root / name).iterdir()}


def test_what_a_model_suggested_is_never_held_out_whatever_becomes_of_its_name(many, tmp_path):
    root = shutil.copytree(many, tmp_path / "p")
    before = folder(root)
    chosen = [Path(name) for name in before.row_ids(test=True)[:5]]
    content = {path.read_bytes() for path in chosen}
    lines = [json.dumps({"row": sha256(each), "chosen": "by a model"}) for each in content]
    (root / ".selfens.jsonl").write_text("\n".join(["no json", '{"row": 3}', *lines, lines[0][:20]]))
    chosen[0].rename(chosen[0].with_name("elsewhere.bmp"))
    data = folder(root)
    assert held_out(root) == held_out(many) - content
    assert {Path(data.ids[row]).read_bytes() for row in np.flatnonzero(data.suggested)} == content
    assert len(data.train_labels) == len(before.train_labels) + 5


def test_fewer_than_a_hundred_test_images_are_not_held_out(many, tmp_path):
    root = shutil.copytree(many, tmp_path / "p")
    while len(names := folder(root).row_ids(test=True)) > 100:
        Path(names[0]).unlink()
    assert len(names) == 100
    Path(names[0]).unlink()
    assert len(folder(root).test_labels) == 0


# Decoding


def test_the_usual_kinds_of_images_are_read_and_others_passed_over(tmp_path):
    for number, extension in enumerate(("jfif", "jpe", "tif", "pbm", "pgm", "JPG", "webp", "gif")):
        image = Image.new("L" if extension in ("pbm", "pgm") else "RGB", (20, 20))
        (tmp_path / "p" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "p" / "ab"[number % 2] / f"{number}.{extension}")
    (tmp_path / "p" / "a" / "figure.eps").write_text("%!PS")
    data = folder(tmp_path / "p")
    assert (len(data.raw), data.skipped) == (8, ())


def test_what_pillow_would_read_by_another_program_is_unreadable_under_any_name(tmp_path):
    Image.new("RGB", (20, 20)).save(tmp_path / "figure.eps")
    (tmp_path / "figure.eps").rename(tmp_path / "figure.png")
    with pytest.raises(OSError, match="cannot identify"):
        decode(tmp_path / "figure.png", 8)


MODES = {
    "gray": (Image.new("L", (9, 9), 77), 77),
    "16 bits": (Image.fromarray(np.full((9, 9), 77 * 257, dtype=np.uint16)), 77),
    "few of 16 bits": (Image.fromarray(np.full((9, 9), 260, dtype=np.uint16)), 1),
    "transparent": (Image.new("RGBA", (9, 9), (0, 0, 0, 0)), 255),
    "one bit": (Image.new("1", (9, 9), 1), 255),
}


@pytest.mark.parametrize(("image", "value"), MODES.values(), ids=MODES)
def test_every_mode_becomes_rgb(tmp_path, image, value):
    for extension in ("png", "tif"):
        image.save(tmp_path / f"image.{extension}")
        assert (decode(tmp_path / f"image.{extension}", 8) == value).all()


def test_palettes_and_the_maximum_of_a_pgm_are_applied(tmp_path):
    Image.new("RGB", (9, 9), (200, 0, 0)).convert("P").save(tmp_path / "palette.gif")
    assert decode(tmp_path / "palette.gif", 8)[:, 0, 0].tolist() == pytest.approx([200, 0, 0], abs=6)
    (tmp_path / "12 bits.pgm").write_bytes(b"P5 8 8 4095\n" + np.full(64, 4095, dtype=">u2").tobytes())
    assert (decode(tmp_path / "12 bits.pgm", 8) == 255).all()


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_images_of_32_bits_have_no_known_scale_and_are_unreadable(tmp_path, kind):
    root = photos(tmp_path / "p")
    Image.fromarray(np.ones((8, 8), dtype=kind)).save(root / "red" / "deep.tif")
    (failure,) = folder(root).skipped
    assert "deep.tif: ValueError: 32 bits a pixel; expected 8 or 16" in failure


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(tmp_path, monkeypatch):
    ramp = np.linspace(0, 255, 1000).astype(np.uint8)
    Image.fromarray(np.broadcast_to(ramp[:, None], (1000, 1000)).copy()).save(tmp_path / "large.jpg")
    drafted = decode(tmp_path / "large.jpg", 8)
    monkeypatch.setattr(images, "DRAFT", 1000)
    assert np.abs(drafted.astype(int) - decode(tmp_path / "large.jpg", 8)).max() <= 2
    sizes = []
    monkeypatch.setattr(images, "DRAFT", 2)
    whole = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: sizes.append(image.size) or whole(image))
    decode(tmp_path / "large.jpg", 8)
    assert max(sizes) < (200, 200)


def test_a_camera_held_upside_down_is_undone(tmp_path):
    image = Image.new("RGB", (20, 20), "black")
    image.paste("white", (0, 0, 20, 10))  # the upper half
    exif = image.getexif()
    exif[0x0112] = 3
    image.save(tmp_path / "turned.jpg", exif=exif)
    pixels = decode(tmp_path / "turned.jpg", 8)
    assert pixels[:, 0].mean() < 30
    assert pixels[:, -1].mean() > 220


# Files that cannot be read


def test_damaged_files_and_what_is_not_a_file_are_named_and_left_out(tmp_path):
    root = photos(tmp_path / "p")
    ids = folder(root).ids
    (root / "red" / "böse datei.png").write_text("not an image")
    whole = picture(root / "blue" / "cut.png", size=(60, 60)).read_bytes()
    (root / "blue" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "red" / "zz.png").symlink_to(tmp_path / "nowhere.png")
    (root / "red" / "zzz.png").symlink_to("zzz.png")
    for number in range(40):  # there may be any number of them
        os.mkfifo(root / "red" / f"pipe{number}.png")
        (root / "blue" / f"zero{number}.png").symlink_to("/dev/zero")
    data = folder(root, size=images.suggested_size([root / "red" / "pipe0.png", *root.glob("green/*")]))
    assert data.ids == ids
    assert len(data.skipped) == len({line.partition(":")[0] for line in data.skipped}) == 84
    assert any("böse datei.png" in line for line in data.skipped)
    settings = config("pi", *SMALL_IMAGES, "source.size=8", name=str(root), epochs=1)
    with pytest.warns(SelfensWarning, match=r"left out 84 files that could not be read, the first .*cut.png"):
        run = train(settings, tmp_path / "run")
    assert run.info.skipped == data.skipped
    with pytest.raises(DataError, match=r"1 of 1 images in .* cannot be read .*it is not a regular file"):
        predict_file(run, root / "red" / "pipe0.png", tmp_path / "out.csv")


def test_a_folder_of_which_most_is_unreadable_is_refused(tmp_path):
    picture(tmp_path / "p" / "a" / "1.png")
    for number in range(3):
        (tmp_path / "p" / "a" / f"bad{number}.png").write_text("no")
    with pytest.raises(DataError, match=r"3 of 4 images .* cannot be read .*are they images\?"):
        folder(tmp_path / "p")


def test_unreadable_files_are_named_on_the_screen_and_the_page(tmp_path, typed):
    (photos(tmp_path / "p") / "red" / "böse datei.png").write_text("not an image")
    code, _, err = typed("train", "./p", "--run", "run", *QUICKLY)
    assert code == 0
    assert "left out 1 file that could not be read, the first" in err
    assert "böse datei.png" in err
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "1 unreadable file left out (run.json lists them)" in page


@pytest.mark.parametrize("target", [".", "..", "../blue"])
def test_a_link_that_leads_back_is_refused(tmp_path, target):
    root = photos(tmp_path / "p")
    (root / "red" / "again").symlink_to(target)
    (root / "blue" / "again").symlink_to("../red")
    with pytest.raises(DataError, match="is a link that leads back to"):
        folder(root)


@pytest.mark.parametrize("place", ["around", "around/p", "around/p/red"])
def test_what_may_not_be_read_gets_one_sentence(tmp_path, place):
    source = photos(tmp_path / "around" / "p")
    (tmp_path / place).chmod(0)
    words = ["train", str(source), "--epochs", "1", "--run", str(tmp_path / "run"), "--quiet"]
    code = finish(child(tmp_path / "out", run_cli_without_privileges, words))
    (tmp_path / place).chmod(0o755)
    said = (tmp_path / "out").read_text()
    assert (code, len(said.splitlines())) == (1, 1)
    assert ("there is no data at" if place == "around" else "cannot be read (Permission denied)") in said


def test_what_is_missing_is_said_to_be_missing(tmp_path, typed):
    expected = "expected an .npz file, a folder, or a table; check the path."
    assert typed("train", "./nothere") == (1, "", f"error: there is no data at ./nothere; {expected}\n")
    photos(tmp_path / "p")
    typed("train", "./p", "--run", "run", *QUICKLY)
    said = "error: there is no file or folder nothere; check the path.\n"
    assert typed("predict", "run", "nothere", "-o", "out.csv") == (1, "", said)
    (tmp_path / "notes.md").write_text("x")
    for words in (("train", "notes.md"), ("predict", "run", "notes.md", "-o", "out.csv")):
        code, _, err = typed(*words)
        assert code == 1
        assert "notes.md cannot be read; expected an .npz file, a folder" in err
    (tmp_path / "notes.txt").write_text("x")
    assert (
        "notes.txt has a label; label at least one row per class" in typed("train", "notes.txt")[2]
    )  # a text per line
    assert "are a table, but run was trained on arrays" in typed("predict", "run", "notes.txt", "-o", "out.csv")[2]


# CSV files


def test_a_csv_names_files_and_labels(tmp_path):
    for number in range(8):
        picture(tmp_path / "d" / f"{number}.png")
    lines = [f"{n}.png,{['cat', 'dog', '', ' '][n % 4]}" for n in range(8)]
    (tmp_path / "d" / "list.csv").write_text("\ufefffile,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    data = folder(tmp_path / "d" / "list.csv")
    assert (data.classes, data.labels.tolist()) == (("cat", "dog"), [0, 1, -1, -1] * 2)
    (tmp_path / "d" / "TWICE.CSV").write_text("file,label\n" + "\n".join(lines + lines) + "\n")
    assert folder(tmp_path / "d" / "TWICE.CSV").ids == data.ids


def test_a_csv_may_name_files_with_backslashes_or_in_another_case(tmp_path):
    for name in ("Sub/A.png", "Sub/b.PNG", "twice/x.png", "twice/X.png"):
        picture(tmp_path / name)
    (tmp_path / "l.csv").write_text("file,label\nsub\\a.PNG,cat\nSUB/B.png,dog\n")
    assert [Path(name).name for name in folder(tmp_path / "l.csv").ids] == ["A.png", "b.PNG"]
    (tmp_path / "l.csv").write_text("file,label\nsub\\a.PNG,cat\nTwice/x.PNG,dog\n")
    with pytest.raises(DataError, match="1 files that do not exist, the first .*Twice/x.PNG"):
        folder(tmp_path / "l.csv")


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_csv_may_come_from_a_spreadsheet_that_separates_otherwise(tmp_path, mark):
    for name in ("a, b.png", "c.png"):
        picture(tmp_path / name)
    (tmp_path / "l.csv").write_text(f"file{mark}label\na, b.png{mark}cat\nc.png{mark}dog\n")
    data = folder(tmp_path / "l.csv")
    assert (data.classes, data.labels.tolist()) == (("cat", "dog"), [0, 1])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("file,label\nnot-there.png,cat\n", "1 files that do not exist, the first .*not-there.png"),
        ("path,class\nx.png,cat\n", "has the columns path, class; expected file and label"),
        ("", "has the columns none"),
        ("file,label\n", "names no files"),
        ("file,label\nl.png,cat\nl.png,dog\n", "names .*l.png twice, with the labels 'cat' and 'dog'; keep one"),
        ("file,label\nl.png,käse\n", "holds the label .*, which is not UTF-8"),
        (None, "l.csv cannot be read as a CSV"),
    ],
)
def test_a_bad_csv_gets_one_sentence(tmp_path, content, sentence):
    if content is None:
        os.mkfifo(tmp_path / "l.csv")  # which must not be waited for
    else:
        (tmp_path / "l.csv").write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=sentence):
        folder(tmp_path / "l.csv")


# As a user types it


def lines_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_train_evaluate_and_predict(tmp_path, typed):
    photos(tmp_path / "digits")  # a preset has this name too, so the folder is written as a path
    words = ("--size", 8, "--epochs", 60, "--run", "run", "--set", "network.width=8")
    code, out, err = typed("train", "./digits", *words)
    assert (code, err) == (0, "")
    for expected in ("temporal-teacher, small (", "60 epochs, w_max 1", "inputs (3, 8, 8)"):
        assert expected in out
    run = load_run("run")
    assert run.config.source.size == 8
    assert (run.test_error, run.evidence.folds, len(run.evidence.rows)) == (None, 5, 18)
    assert run.evidence.error < 50
    assert f"error {run.evidence.error:.2f} % (90 % interval " in out
    assert typed("evaluate", "run")[0] == 0
    code, out, _ = typed("predict", "run", "digits/unlabeled", "-o", "out.csv")
    assert (code, out) == (0, "predictions of 18 rows written to out.csv\n")
    lines = lines_of("out.csv")
    assert list(lines[0]) == ["file", "class", "probability", "runner_up", "novelty"]
    assert sum(line["class"] in line["file"] for line in lines) > 9
    (tmp_path / "LIST.CSV").write_text("file\ndigits/unlabeled/red0.jpg\ndigits/beside.bmp\n")
    for source, count in (("digits/unlabeled/red0.jpg", "1 row"), ("LIST.CSV", "2 rows"), ("digits", "37 rows")):
        code, out, _ = typed("predict", "run", source, "-o", f"{count}.csv")
        assert (code, out) == (0, f"predictions of {count} written to {count}.csv\n")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ("", "holds no images"),
        ("only/1.png", "all labels are of one class ('only')"),
        ("unlabeled/1.png", "has a label; label at least one row per class"),
    ],
)
def test_a_folder_that_cannot_be_trained_on_gets_one_sentence(tmp_path, typed, files, words):
    (tmp_path / "p").mkdir()
    for name in files.split():
        picture(tmp_path / "p" / name)
    code, _, err = typed("train", "./p", "--run", "run", "--quiet")
    assert (code, words in err, err.count("\n")) == (1, True, 1)
    assert not (tmp_path / "run").exists()


def test_a_size_beyond_reason_is_refused(tmp_path, typed):
    photos(tmp_path / "p")
    code, _, err = typed("train", "./p", "--size", 999_999, "--quiet")
    assert (code, "source.size is 999999" in err) == (1, True)


@pytest.mark.parametrize("shape", [(3,), (8, 8)], ids=["features", "gray images"])
def test_a_run_on_other_inputs_refuses_a_folder_even_if_it_is_called_like_a_public_data_set(tmp_path, typed, shape):
    x = np.random.default_rng(0).integers(0, 256, size=(20, *shape)).astype(np.uint8)
    np.savez("f.npz", x_train=x, y_train=np.arange(20) % 2)
    typed("train", "f.npz", "--epochs", 1, "--run", "run", "--quiet")
    picture(tmp_path / "digits" / "1.png")
    code, _, err = typed("predict", "run", "digits", "-o", "out.csv")
    assert (code, "digits have shape (3, " in err, "trained on" in err) == (1, True, True)


def test_labels_of_an_audit_follow_their_files_when_images_are_added(tmp_path, typed):
    root = photos(tmp_path / "p" / "train")
    for name, color in COLORS.items():
        picture(tmp_path / "p" / "test" / name / "t.png", color)
    assert typed("train", "./p", "--run", "first", *QUICKLY)[0] == 0
    typed("audit", "first", "-o", "issues.csv")
    picture(root / "blue" / "0 added.png", COLORS["blue"])  # sorts before the others and shifts their rows
    assert typed("train", "./p", "--run", "second", "--labels-file", "issues.csv", *QUICKLY)[0] == 0
    run = load_run("second")
    files = run.data().dataset.row_ids()
    for row, label in zip(run.labels.rows, run.labels.labels, strict=True):
        assert f"/{run.classes[label]}/" in files[row]


def test_suggestions_that_were_filled_in_are_added_to_the_labels_there_are(tmp_path, typed):
    photos(tmp_path / "p")
    assert typed("train", "./p", "--run", "first", *QUICKLY)[0] == 0
    typed("suggest", "first", "-n", 3, "-o", "next.csv")
    lines = lines_of("next.csv")
    with open("filled.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=lines[0])
        writer.writeheader()
        writer.writerows(line | {"label": name} for line, name in zip(lines, COLORS, strict=True))
    for run, flag, count in (("second", "--add-labels", 21), ("third", "--labels-file", 3)):
        code, _, err = typed("train", "./p", "--run", run, flag, "filled.csv", *QUICKLY)
        assert (code, err, len(load_run(run).labels.rows)) == (0, "", count)


# Names that may be a class or not


@pytest.mark.parametrize("name", ["unsorted", "_unlabeled", "Unknown", "to do", "No label", "none"])
def test_a_folder_that_may_be_a_class_or_not_is_asked_about(tmp_path, typed, name):
    root = photos(tmp_path / "photos")
    (root / "unlabeled").rename(root / name)
    code, _, err = typed("train", "photos", "--run", "run", *QUICKLY)
    assert (code, err.count("\n"), (tmp_path / "run").exists()) == (1, 1, False)
    assert f"photos holds a folder '{name}', which may be a class or hold images without a class; add" in err
    without, with_it = (
        f"--set source.unlabeled={shlex.quote({'none': 'none,'}.get(name, name))}",
        "--set source.unlabeled=",
    )
    assert f"{without} if they have none, or {with_it} if it is a class." in err
    for words, classes in ((without, 3), (with_it, 4)):
        assert typed("train", "photos", "--run", f"run{classes}", *QUICKLY, *shlex.split(words))[0] == 0
        assert len(load_run(f"run{classes}").classes) == classes
    code, _, err = typed("predict", "run3", "photos", "-o", "out.csv")
    assert (code, err) == (0, "")


@pytest.mark.parametrize("name", ["other", "background"])
def test_a_folder_that_is_usually_a_class_is_one(tmp_path, name):
    (photos(tmp_path / "photos") / "unlabeled").rename(tmp_path / "photos" / name)
    assert name in folder(tmp_path / "photos").classes


def test_a_class_of_a_list_that_may_mean_no_label_is_counted_with_the_remedy(tmp_path, typed):
    root = photos(tmp_path / "photos")
    files = sorted(path for path in root.glob("*/*"))
    lines = [f"{file.relative_to(tmp_path)},{file.parent.name.replace('unlabeled', 'To do')}" for file in files]
    (tmp_path / "list.csv").write_text("\n".join(["file,label", *lines]))
    remedy = "--set source.unlabeled='To do'"
    code, _, err = typed("train", "list.csv", "--run", "run4", *QUICKLY)
    assert (code, len(load_run("run4").classes)) == (0, 4)
    count = sum(line.endswith("To do") for line in lines)
    assert f"rows {count} of class 'To do': if this means that they have no label, add {remedy}." in err
    code, _, err = typed("train", "list.csv", "--run", "run3", *QUICKLY, *shlex.split(remedy))
    assert (code, len(load_run("run3").classes), "To do" in err) == (0, 3, False)


def test_the_next_step_is_what_the_verdict_says_if_a_simple_method_is_better(tmp_path, typed):
    photos(tmp_path / "my photos")
    assert typed("train", "my photos", "--run", "run", *QUICKLY, "--no-baselines")[0] == 0
    run = load_run("run")
    rows, labels = run.labels.rows, run.labels.labels
    wrong, chosen = np.eye(3, dtype=np.float32)[(labels + 1) % 3], np.zeros(len(rows), bool)
    others = {"logistic regression": labels}
    run.keep_evidence(
        Evidence.of(rows=rows, labels=labels, probabilities=wrong, others=others, suggested=chosen, folds=5)
    )
    assert typed("report", "run", "-o", "page.html")[0] == 0
    page = html.unescape((tmp_path / "page.html").read_text())
    assert "Logistic regression is better by 100.00 points: try features of a pretrained backbone" in page.replace(
        "\xa0", " "
    )
    command = f"selfens train '{tmp_path / 'my photos'}' --backbone timm:tf_efficientnet_lite0"
    assert f"Next, try features of a pretrained network: <code>{command}</code>" in page
    assert "More labels improve it" not in page
    assert (
        f"after calibration, on the 18 rows that the temperature, {run.evidence.temperature:.2f}, was fitted to" in page
    )


# Files that were moved after training


def test_a_file_that_was_moved_is_named_with_the_remedy(tmp_path, typed):
    root = photos(tmp_path / "photos")
    assert typed("train", "photos", "--run", "run", *QUICKLY)[0] == 0
    assert typed("suggest", "run", "-n", "2")[0] == 0
    (root / "unlabeled" / "red0.jpg").rename(root / "unlabeled" / "aaa.jpg")
    said = (
        "1 file missing (unlabeled/red0.jpg) and 1 file new (unlabeled/aaa.jpg); put back what is missing and take what is "
        "new out of the folder, or name a copy of the folder as it was (--data PATH), or train again; predict and export work"
    )
    for words in (["suggest", "run", "-n", "2"], ["audit", "run"], ["evaluate", "run", "--folds", "2"]):
        code, _, err = typed(*words)
        assert (code, err.count("\n"), said in err) == (1, 1, True), err
    assert typed("predict", "run", "photos", "-o", "out.csv")[0] == 0
    (root / "unlabeled" / "aaa.jpg").rename(root / "unlabeled" / "red0.jpg")
    assert typed("suggest", "run", "-n", "2")[0] == 0
    picture(root / "red" / "added.png")
    assert (
        "was trained on: 1 file new (red/added.png); take what is new out of the folder" in typed("suggest", "run")[2]
    )


# Pictures in a report


def test_the_report_shows_whole_photos_that_lead_to_their_files(tmp_path, typed):
    root = photos(tmp_path / "photos")
    random = np.random.default_rng(1)
    wide = grainy(root / "red" / "a wide & odd 'one'.png", random, size=(90, 30))
    shutil.copy(wide, root / "blue" / "copy.png")
    assert typed("train", "photos", "--run", "run", *QUICKLY)[0] == 0
    page = (tmp_path / "run" / "report.html").read_text()
    found = re.search(
        rf'<a href="{re.escape(html.escape(wide.as_uri()))}"><img src="data:image/jpeg;base64,([^"]+)"', page
    )
    assert Image.open(io.BytesIO(base64.b64decode(found[1]))).size == (90, 30)
    surprises = page.partition("Copies and other surprises")[2].partition("<h3>")[0]
    assert surprises.count("different labels</div>") == 2
    assert surprises.count('<figure class="tile">') == 2  # each group once, though these are copies, too
    for name in (wide, root / "blue" / "copy.png"):
        assert html.escape(name.as_uri()) in surprises


def test_a_report_of_photos_that_are_gone_shows_what_the_network_saw(tmp_path, monkeypatch):
    root = photos(tmp_path / "photos")
    run = train(config("temporal", *SMALL_IMAGES, "labels.count=none", name=str(root)), tmp_path / "run")
    monkeypatch.setattr("selfens.report.gallery.thumbnail", lambda *_: 1 / 0)
    write_report(run, tmp_path / "page.html")
    assert "data:image/png;base64," in (tmp_path / "page.html").read_text()
    assert "data:image/jpeg;base64," not in (tmp_path / "page.html").read_text()
