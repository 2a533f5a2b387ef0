"""Folders of images, as people have them: odd names, odd modes, broken files."""

import csv
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile
from support import SMALL_IMAGES, child, config, finish, run_cli_without_privileges

from selfens import load_run
from selfens.cli import main
from selfens.data import images
from selfens.data.folder import load_folder
from selfens.data.images import decode
from selfens.errors import DataError, SelfensWarning
from selfens.tools.predict import predict_file
from selfens.training.loop import train

QUICKLY = ["--size", 8, "--epochs", 1, "--set", "network.width=4", "--quiet"]
COLORS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def picture(path, color=(10, 20, 30), size=(20, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


def photos(root, each=6):
    """Three classes that differ in color, some unlabeled ones, and one beside the folders."""
    random = np.random.default_rng(0)
    for name, color in COLORS.items():
        for number in range(each):
            noisy = tuple(int(c + random.integers(-20, 20)) for c in color)
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
    for name, color in COLORS.items():
        picture(tmp_path / "p" / "test" / name / "t.png", color)
    data = load_folder(tmp_path / "p", size=8)
    assert (len(data.test_labels), (data.labels >= 0).sum(), (data.labels == -1).sum()) == (3, 18, 19)
    picture(tmp_path / "p" / "test" / "yellow" / "t.png")
    with pytest.raises(DataError, match="yellow/t.png is a test image of no class that is trained on"):
        load_folder(tmp_path / "p", size=8)


LAYOUTS = {
    "test beside classes": ("cat/1 dog/1 test/cat/1 test/dog/1", (2, 0, 2)),
    "train, test and val": ("train/cat/1 train/dog/1 test/cat/1 test/dog/1 val/cat/1 val/dog/1", (2, 0, 2)),
    "train and val": ("train/cat/1 train/dog/1 val/cat/1 val/dog/1", (2, 0, 2)),
    "upper case": ("Train/cat/1 Train/dog/1 TEST/cat/1 Test/dog/1", (2, 0, 2)),
    "train without test": ("train/cat/1 train/cat/2 train/cat/3 train/dog/1 unlabeled/1 Unlabelled/2", (3, 2, 1)),
    "images beside train": ("train/cat/1 train/dog/1 train/2 test/cat/1 test/dog/1 loose", (2, 2, 2)),
}


@pytest.mark.parametrize(("files", "counts"), LAYOUTS.values(), ids=LAYOUTS)
def test_names_of_folders_say_what_is_tested_and_what_is_unlabeled(tmp_path, files, counts):
    for name in files.split():
        picture(tmp_path / "p" / f"{name}.png")
    data = load_folder(tmp_path / "p", size=8)
    assert data.classes == ("cat", "dog")
    assert ((data.labels >= 0).sum(), (data.labels == -1).sum(), len(data.test_labels)) == counts


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ("train/cat/1 dog/1", "holds train/ and beside it 'dog'; .* so move the others there"),
        ("cat/1 dog/1 test/1", "test/1.png is a test image of no class"),
        ("test/cat/1 test/dog/1", "holds no images to train on"),
        ("cat/1 dog/1 test/bird/1", "test/bird/1.png is a test image of no class that is trained on"),
    ],
)
def test_folders_that_contradict_each_other_are_refused(tmp_path, files, sentence):
    for name in files.split():
        picture(tmp_path / "p" / f"{name}.png")
    with pytest.raises(DataError, match=sentence):
        load_folder(tmp_path / "p", size=8)


def test_a_class_of_one_image_keeps_it_for_training(tmp_path):
    picture(tmp_path / "p" / "rare" / "1.png")
    for number in range(5):
        picture(tmp_path / "p" / "common" / f"{number}.png")
    data = load_folder(tmp_path / "p", size=8)
    assert data.classes == ("common", "rare")
    assert 1 in data.labels
    assert data.test_labels.tolist() == [0]


def test_other_files_and_empty_folders_are_passed_over(tmp_path):
    root = photos(tmp_path / "p")
    (root / "bird").mkdir()
    (root / "fish").mkdir()
    (root / "fish" / "broken.png").write_text("no")
    for name in ("notes.txt", "film.mov", "Thumbs.db", ".hidden"):
        (root / name).write_text("no")
    data = load_folder(root, size=8)
    assert data.classes == ("blue", "green", "red")
    assert "broken.png" in data.unreadable[0]


def test_the_held_out_fifth_moves_with_the_seed_and_hardly_with_new_images(tmp_path):
    def tested(root, seed=0):
        return {str(Path(name).relative_to(root)) for name in load_folder(root, size=8, split_seed=seed).test_row_names}

    root = photos(tmp_path / "p", each=20)
    before = tested(root)
    assert tested(root, seed=1) != before == tested(root)
    assert tested(shutil.copytree(root, tmp_path / "moved")) == before
    for number in range(5):
        picture(root / "red" / f"0 new {number}.png")
    after = tested(root)
    assert len(after) == 13
    assert len(before - after) <= 2  # at most those that new images pushed out


def test_the_usual_kinds_of_images_are_read_and_others_passed_over(tmp_path):
    for number, ending in enumerate(("jfif", "jpe", "tif", "pbm", "pgm", "JPG", "webp", "gif")):
        image = Image.new("L" if ending in ("pbm", "pgm") else "RGB", (20, 20))
        (tmp_path / "p" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "p" / "ab"[number % 2] / f"{number}.{ending}")
    (tmp_path / "p" / "a" / "figure.eps").write_text("%!PS")
    data = load_folder(tmp_path / "p", size=8)
    assert (data.num_rows + len(data.test_labels), data.unreadable) == (8, ())


def test_what_pillow_would_read_by_another_program_is_unreadable_under_any_name(tmp_path):
    Image.new("RGB", (20, 20)).save(tmp_path / "figure.eps")
    (tmp_path / "figure.eps").rename(tmp_path / "figure.png")
    with pytest.raises(OSError, match="cannot identify"):
        decode(tmp_path / "figure.png", 8)


def test_every_mode_becomes_rgb(tmp_path):
    gray = tmp_path / "gray.png"
    Image.new("L", (9, 9), 77).save(gray)
    assert (decode(gray, 8) == 77).all()
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


DEEP = {
    "16 bits": (np.uint16, [0, 255, 260, 65535], [0, 1, 1, 255]),
    "16 bits, few used": (np.uint16, [0, 0, 255, 255], [0, 0, 1, 1]),
}


@pytest.mark.parametrize(("kind", "given", "bytes_"), DEEP.values(), ids=DEEP)
def test_16_bits_are_scaled_alike(tmp_path, kind, given, bytes_):
    Image.fromarray(np.array(given, dtype=kind).repeat(16).reshape(8, 8)).save(tmp_path / "deep.tif")
    assert decode(tmp_path / "deep.tif", 8)[0].reshape(-1)[::16].tolist() == bytes_


def test_a_16_bit_pgm_is_scaled_as_its_maximum_says(tmp_path):
    (tmp_path / "12 bits.pgm").write_bytes(b"P5 8 8 4095\n" + np.full(64, 4095, dtype=">u2").tobytes())
    assert (decode(tmp_path / "12 bits.pgm", 8) == 255).all()


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_images_of_32_bits_have_no_known_scale_and_are_unreadable(tmp_path, kind):
    root = photos(tmp_path / "p")
    Image.fromarray(np.ones((8, 8), dtype=kind)).save(root / "red" / "deep.tif")
    (failure,) = load_folder(root, size=8).unreadable
    assert "deep.tif: ValueError: 32 bits a pixel; expected 8 or 16" in failure


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(tmp_path, monkeypatch):
    ramp = np.linspace(0, 255, 1000).astype(np.uint8)
    Image.fromarray(np.broadcast_to(ramp[:, None], (1000, 1000)).copy()).save(tmp_path / "large.jpg")
    drafted = decode(tmp_path / "large.jpg", 8)
    monkeypatch.setattr(images, "DRAFT", 1000)
    assert np.abs(drafted.astype(int) - decode(tmp_path / "large.jpg", 8)).max() <= 2
    sizes = []
    monkeypatch.setattr(images, "DRAFT", 2)
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: sizes.append(image.size) or load(image))
    decode(tmp_path / "large.jpg", 8)
    assert max(sizes) < (200, 200)


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


def test_unreadable_files_are_named_by_the_run_and_its_page(tmp_path, capsys):
    (photos(tmp_path / "p") / "red" / "böse datei.png").write_text("not an image")
    words = ["--size", 8, "--epochs", 1, "--set", "network.width=4", "--quiet"]
    code, _, err = typed(capsys, "train", "./p", "--run", "run", *words)
    assert (code, "left out 1 file that could not be read, the first" in err, "böse datei.png" in err) == (0, 1, 1)
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "1 unreadable file left out (run.json lists them)" in page


def test_a_link_to_nowhere_is_an_unreadable_file(tmp_path, capsys):
    root = photos(tmp_path / "p")
    (root / "red" / "zz.png").symlink_to(tmp_path / "nowhere.png")
    (root / "red" / "zzz.png").symlink_to("zzz.png")
    assert len(load_folder(root, size=8).unreadable) == 2


@pytest.mark.parametrize("target", [".", "..", "../blue"])
def test_a_link_that_leads_back_is_refused(tmp_path, target):
    root = photos(tmp_path / "p")
    (root / "red" / "again").symlink_to(target)
    (root / "blue" / "again").symlink_to("../red")
    with pytest.raises(DataError, match="is a link that leads back to"):
        load_folder(root, size=8)


@pytest.mark.parametrize("place", ["around", "around/p", "around/p/red"])
def test_what_may_not_be_read_gets_one_sentence(tmp_path, place):
    source = photos(tmp_path / "around" / "p")
    (tmp_path / place).chmod(0)
    words = ["train", str(source), "--epochs", "1", "--run", str(tmp_path / "run"), "--quiet"]
    code = finish(child(tmp_path / "out", run_cli_without_privileges, words))
    (tmp_path / place).chmod(0o755)
    said = (tmp_path / "out").read_text()
    assert (code, len(said.splitlines())) == (1, 1)
    assert (
        "there is no .npz file, folder or table" if place == "around" else "cannot be read (Permission denied)"
    ) in said


def test_what_is_not_there_is_said_to_be_missing(tmp_path, capsys):
    assert (
        typed(capsys, "train", "./nothere")[2]
        == "error: there is no .npz file, folder or table at ./nothere; check its path.\n"
    )
    photos(tmp_path / "p")
    typed(capsys, "train", "./p", "--run", "run", *QUICKLY)
    code, _, err = typed(capsys, "predict", "run", "nothere", "-o", "out.csv")
    assert (code, err) == (1, "error: there is no file or folder nothere; check its path.\n")


def test_a_pipe_is_an_unreadable_file_and_not_waited_for(tmp_path):
    root = photos(tmp_path / "p")
    os.mkfifo(root / "red" / "pipe.png")
    (failure,) = load_folder(root, size=images.suggested_size([root / "red" / "pipe.png"])).unreadable
    assert "pipe.png: OSError" in failure
    os.mkfifo(tmp_path / "l.csv")
    with pytest.raises(DataError, match="l.csv cannot be read as a CSV"):
        load_folder(tmp_path / "l.csv", size=8)


def test_what_is_no_regular_file_is_left_out_however_much_there_is_of_it(tmp_path):
    root = photos(tmp_path / "p")
    names = load_folder(root, size=8).row_names
    for number in range(40):
        os.mkfifo(root / "red" / f"pipe{number}.png")
        (root / "blue" / f"zero{number}.png").symlink_to("/dev/zero")
        (root / f"gone{number}.png").symlink_to(tmp_path / "nowhere")
    found = load_folder(root, size=8)
    assert found.row_names == names
    assert len(found.unreadable) == 120
    settings = config("pi", *SMALL_IMAGES, "data.image_size=8", name=str(root), epochs=1)
    with pytest.warns(SelfensWarning, match=r"left out 120 files that could not be read, the first .*zero0.png"):
        train(settings, tmp_path / "run")
    os.mkfifo(tmp_path / "one.png")
    with pytest.raises(DataError, match=r"1 of 1 images in .* cannot be read .*it is not a regular file"):
        predict_file(load_run(tmp_path / "run"), tmp_path / "one.png", tmp_path / "out.csv")


def test_a_folder_of_which_most_is_unreadable_is_refused(tmp_path):
    picture(tmp_path / "p" / "a" / "1.png")
    for number in range(3):
        (tmp_path / "p" / "a" / f"bad{number}.png").write_text("no")
    with pytest.raises(DataError, match=r"3 of 4 images .* cannot be read .*are they images\?"):
        load_folder(tmp_path / "p", size=8)


def test_a_csv_names_files_and_labels(tmp_path):
    for number in range(8):
        picture(tmp_path / "d" / f"{number}.png")
    lines = [f"{n}.png,{['cat', 'dog', '', ' '][n % 4]}" for n in range(8)]
    (tmp_path / "d" / "list.csv").write_text("\ufefffile,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    data = load_folder(tmp_path / "d" / "list.csv", size=8)
    assert data.classes == ("cat", "dog")
    assert (data.labels == -1).sum() == 4
    (tmp_path / "d" / "TWICE.CSV").write_text("file,label\n" + "\n".join(lines + lines) + "\n")
    assert load_folder(tmp_path / "d" / "TWICE.CSV", size=8).num_rows == data.num_rows


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_csv_may_come_from_a_spreadsheet_that_separates_otherwise(tmp_path, mark):
    for name in ("a, b.png", "c.png"):
        picture(tmp_path / name)
    (tmp_path / "l.csv").write_text(f"file{mark}label\na, b.png{mark}cat\nc.png{mark}dog\n")
    data = load_folder(tmp_path / "l.csv", size=8)
    assert data.classes == ("cat", "dog")
    assert (data.labels >= 0).all()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("file,label\nnot-there.png,cat\n", "1 files that are not there, the first .*not-there.png"),
        ("path,class\nx.png,cat\n", "begins with the columns path, class; expected file and label"),
        ("", "begins with the columns none"),
        ("file,label\n", "names no files"),
        ("file,label\nl.png,cat\nl.png,dog\n", "names .*l.png twice, with the labels 'cat' and 'dog'; keep one"),
        ("file,label\nl.png,käse\n", "holds the label .*, which is not UTF-8"),
    ],
)
def test_a_bad_csv_gets_one_sentence(tmp_path, content, sentence):
    (tmp_path / "l.csv").write_text(content, encoding="latin-1")
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
        capsys, "train", "./digits", "--size", 8, "--epochs", 60, "--run", "run", "--set", "network.width=8"
    )
    assert (code, err) == (0, "")
    assert "temporal-teacher, small (" in out
    assert "60 epochs, w_max 1" in out
    assert "inputs (3, 8, 8)" in out
    run = load_run("run")
    assert run.config.data.image_size == 8
    assert run.test_error < 50
    assert typed(capsys, "evaluate", "run")[0] == 0
    code, out, _ = typed(capsys, "predict", "run", "digits/unlabeled", "-o", "out.csv")
    assert (code, out) == (0, "predictions of 18 rows written to out.csv\n")
    with open("out.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["file", "class", "probability"]
    assert sum(line["class"] in line["file"] for line in lines) > 9
    code, out, _ = typed(capsys, "predict", "run", "digits/unlabeled/red0.jpg", "-o", "one.csv")
    assert (code, out) == (0, "predictions of 1 row written to one.csv\n")
    (tmp_path / "LIST.CSV").write_text("file\ndigits/unlabeled/red0.jpg\ndigits/beside.bmp\n")
    code, out, _ = typed(capsys, "predict", "run", "LIST.CSV", "-o", "two.csv")
    assert (code, out) == (0, "predictions of 2 rows written to two.csv\n")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root.mkdir(), "holds no images"),
        (lambda root: picture(root / "only" / "1.png"), "one class only"),
        (lambda root: picture(root / "unlabeled" / "1.png"), "no training row of .* has a label"),
    ],
    ids=["empty", "one class", "nothing labeled"],
)
def test_a_folder_that_cannot_be_trained_on_gets_one_sentence(tmp_path, capsys, make, words):
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
    assert "would become square and colored, but the training inputs have shape (" in err


def test_labels_of_an_audit_follow_their_files_when_images_are_added(tmp_path, capsys):
    root = photos(tmp_path / "p" / "train")
    for name, color in COLORS.items():
        picture(tmp_path / "p" / "test" / name / "t.png", color)
    assert typed(capsys, "train", "./p", "--run", "first", *QUICKLY)[0] == 0
    typed(capsys, "audit", "first", "-o", "issues.csv")
    picture(root / "blue" / "0 added.png", COLORS["blue"])  # sorts before the others and shifts their rows
    assert typed(capsys, "train", "./p", "--run", "second", "--labels-file", "issues.csv", *QUICKLY)[0] == 0
    run = load_run("second")
    names = run.dataset().row_names
    for row, label in zip(run.labels.rows, run.labels.labels, strict=True):
        assert f"/{run.classes[label]}/" in names[row]


def test_suggestions_that_were_filled_in_are_added_to_the_labels_there_are(tmp_path, capsys):
    photos(tmp_path / "p")
    assert typed(capsys, "train", "./p", "--run", "first", *QUICKLY)[0] == 0
    typed(capsys, "suggest", "first", "-n", 3, "-o", "next.csv")
    with open("next.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    with open("filled.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=lines[0])
        writer.writeheader()
        writer.writerows(line | {"label": name} for line, name in zip(lines, COLORS, strict=True))
    code, _, err = typed(capsys, "train", "./p", "--run", "second", "--add-labels", "filled.csv", *QUICKLY)
    assert (code, err, len(load_run("second").labels.rows)) == (0, "", 18)
    code, _, _ = typed(capsys, "train", "./p", "--run", "third", "--labels-file", "filled.csv", *QUICKLY)
    assert (code, len(load_run("third").labels.rows)) == (0, 3)
    code, _, err = typed(capsys, "train", "./p", "--labels-file", "filled.csv", "--add-labels", "filled.csv")
    assert (code, "both given" in err) == (1, True)


def test_a_size_beyond_reason_is_no_traceback(tmp_path, capsys):
    photos(tmp_path / "p")
    code, _, err = typed(capsys, "train", "./p", "--size", 999_999, "--quiet")
    assert (code, "data.image_size is 999999" in err) == (1, True)
