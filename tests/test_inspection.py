"""Inspections: planted copies and look-alikes are found, nothing else is, and the user is told."""

import html
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_sample_images, load_wine
from support import blobs, features, write_npz

from selfens import load_run
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.inspection import FILE, Inspection, connected, groups_of, inspect
from selfens.data.sources import load, options_for
from selfens.runs.novelty import Novelty

SIDE = 48
VISIBLE = 5  # of 255; patches of plain sky, with less contrast, look like each other
GRAY = np.array([0.299, 0.587, 0.114])


def patches():
    """Photos of something, each unlike the others: parts of scikit-learn's two sample images."""
    found = []
    for photo in load_sample_images().images:
        height, width = (length // SIDE * SIDE for length in photo.shape[:2])
        cut = photo[:height, :width].reshape(height // SIDE, SIDE, width // SIDE, SIDE, 3).swapaxes(1, 2)
        found += [patch for patch in cut.reshape(-1, SIDE, SIDE, 3) if (patch @ GRAY).std() >= VISIBLE]
    return found


PATCHES = patches()


def write_patches(root, patches=PATCHES):
    root.mkdir(parents=True, exist_ok=True)
    for number, patch in enumerate(patches):
        Image.fromarray(patch).save(root / f"{number:03}.png")
    return root


@pytest.fixture(scope="module")
def many_patches(tmp_path_factory):
    return write_patches(tmp_path_factory.mktemp("inspection") / "photos")


@pytest.fixture
def root(many_patches, tmp_path):
    return shutil.copytree(many_patches, tmp_path / "photos")


def inspected(root, **options):
    data = load(options_for(root, **options))
    return data, inspect(data)


def names(data, groups):
    return [{Path(data.ids[row]).name for row in group} for group in groups]


def vary(path, random, least=0.5, most=2.0):
    """Write the photo again, of another size, as a JPEG of some quality."""
    side = round(SIDE * random.uniform(least, most))
    smaller = Image.open(path).resize((side, side), random.choice([Image.Resampling.BICUBIC, Image.Resampling.LANCZOS]))
    smaller.save(path.with_suffix(".jpg"), quality=int(random.integers(50, 91)))


# Copies and look-alikes


def test_photos_that_differ_are_not_alike(root):
    data, found = inspected(root)
    assert len(PATCHES) > 100
    assert found == Inspection(compared=len(PATCHES), files=found.files)
    assert found.lines(data) == []


def test_patches_of_plain_sky_are_not_taken_for_copies(tmp_path):
    sky = load_sample_images().images[0][:128]
    plain = [sky[top : top + 32, left : left + 32] for top in range(0, 128, 32) for left in range(0, 640, 32)]
    _, found = inspected(write_patches(tmp_path / "photos", [*plain, *PATCHES[:60]]))
    assert (found.copies, found.alike) == ((), ())


def test_all_exact_copies_are_found(root):
    random = np.random.default_rng(0)
    planted = {}
    for number in random.choice(len(PATCHES), 40, replace=False):
        copies = [f"copy {again} of {number:03}.png" for again in range(random.integers(1, 4))]
        planted[f"{number:03}.png"] = copies
        for copy in copies:
            shutil.copy(root / f"{number:03}.png", root / copy)
    data, found = inspected(root)
    expected = sorted(sorted([name, *copies]) for name, copies in planted.items())
    assert sorted(sorted(group) for group in names(data, found.copies)) == expected
    assert found.alike == ()
    assert found.compared == len(PATCHES)
    total = sum(map(len, planted.values()))
    assert found.lines(data)[0].startswith(f"{total} copies of other rows (the first: {data.ids[found.copies[0][0]]}, ")


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_photos_that_were_resized_and_compressed_again_are_found(root, share):
    random = np.random.default_rng(int(10 * share))
    chosen = random.choice(len(PATCHES), round(share * len(PATCHES)), replace=False)
    for number in chosen:
        vary(root / f"{number:03}.png", random)
    data, found = inspected(root)
    expected = [{f"{number:03}.png", f"{number:03}.jpg"} for number in chosen]
    groups = names(data, found.alike)
    assert [group for group in groups if group not in expected] == []
    assert sum(group in expected for group in groups) >= 0.98 * len(chosen)
    assert found.copies == ()
    assert found.compared == len(PATCHES) + len(chosen)


def test_several_versions_are_one_group(root):
    random = np.random.default_rng(0)
    for side in (24, 60, 96):
        version = Image.open(root / "003.png").resize((side, side), Image.Resampling.BICUBIC)
        version.save(root / f"003 {side}.jpg", quality=int(random.integers(50, 91)))
    data, found = inspected(root)
    assert names(data, found.alike) == [{"003.png", "003 24.jpg", "003 60.jpg", "003 96.jpg"}]


def test_two_photos_are_enough_to_compare(tmp_path):
    root = write_patches(tmp_path / "photos", PATCHES[:2])
    assert inspected(root)[1].alike == ()
    (root / "001.png").unlink()
    vary(root / "000.png", np.random.default_rng(0))
    assert inspected(root)[1].alike == ((0, 1),)


def test_float_images_are_compared_like_bytes(root):
    vary(root / "005.png", np.random.default_rng(1))
    data, found = inspected(root)
    floats = replace(data, raw=np.asarray(data.raw).astype(np.float32) / 255, folder="")
    assert replace(inspect(floats), files=found.files) == found
    assert found.alike


def test_small_gray_images_of_many_kinds_are_hardly_ever_alike():
    digits = load_digits()
    data = Dataset.from_arrays((digits.images * 15).astype(np.uint8), digits.target)
    found = inspect(data)
    assert (found.copies, found.blank, found.compared) == ((), (), 1797)
    assert len(found.alike) <= 2


def test_rows_of_tables_and_vectors_are_compared_exactly_only(tmp_path):
    x, y = blobs(30)
    x[20], x[21], y[21] = x[3], x[3] + 1e-6, y[3]
    found = inspect(Dataset.from_arrays(x, y))
    assert (found.copies, found.alike, found.conflicts) == (((3, 20),), (), () if y[3] == y[20] else ((3, 20),))
    (tmp_path / "a.csv").write_text("v,w,kind\n1,x,a\n2,x,b\n1,x,b\n1,y,a\n2,x,\n")
    data, found = inspected(tmp_path / "a.csv", label="kind")
    assert (found.copies, found.alike, found.conflicts) == (((0, 2), (1, 4)), (), ((0, 2),))
    assert found.lines(data) == [
        "1 group of copies or look-alikes with different labels; correct them: row 0 ('a') = row 2 ('b').",
        "2 copies of other rows (the first: row 0, row 2).",
    ]


# One color


def test_images_of_one_color_are_named_and_not_alike(root):
    for number, color in enumerate([(0, 0, 0), (255, 255, 255), (200, 10, 10)]):
        Image.new("RGB", (SIDE, SIDE), color).save(root / f"blank {number}.png")
    data, found = inspected(root)
    assert {Path(data.ids[row]).name for row in found.blank} == {"blank 0.png", "blank 1.png", "blank 2.png"}
    assert (found.alike, found.copies) == ((), ())
    first = Path(data.ids[found.blank[0]])
    assert found.lines(data)[0].startswith(f"3 images of one color (the first: {first}, ")


# Labels and sides


def with_classes(root, classes):
    """Move the photos into folders of classes: `classes` maps a name to its class; others are of class a or b."""
    for number, path in enumerate(sorted(root.iterdir())):
        name = classes.get(path.name, "ab"[number % 2])
        (root.parent / "sorted" / name).mkdir(parents=True, exist_ok=True)
        shutil.move(path, root.parent / "sorted" / name / path.name)
    return root.parent / "sorted"


def test_copies_and_look_alikes_with_different_labels_are_conflicts(root):
    shutil.copy(root / "000.png", root / "copy.png")
    shutil.copy(root / "010.png", root / "other copy.png")
    shutil.copy(root / "014.png", root / "third copy.png")
    vary(root / "020.png", np.random.default_rng(0))
    vary(root / "030.png", np.random.default_rng(1))
    classes = {"000.png": "a", "copy.png": "b", "010.png": "a", "other copy.png": "a", "third copy.png": "unlabeled"}
    classes |= {"020.png": "a", "020.jpg": "b", "030.png": "b", "030.jpg": "b"}
    data, found = inspected(with_classes(root, classes))
    assert sorted(map(sorted, names(data, found.conflicts))) == [["000.png", "copy.png"], ["020.jpg", "020.png"]]
    assert (len(found.copies), len(found.alike), found.across) == (3, 2, ())
    assert found.lines(data)[0].startswith("2 groups of copies or look-alikes with different labels; correct them: ")


def test_the_labels_of_copies_count_among_look_alikes(root):
    """One copy represents the others, and it may be the unlabeled one."""
    shutil.copy(root / "000.png", root / "copy.png")
    vary(root / "000.png", np.random.default_rng(0))
    root = with_classes(root, {"000.png": "unlabeled", "copy.png": "b", "000.jpg": "a"})
    data, found = inspected(root)
    assert names(data, found.conflicts) == [{"000.png", "copy.png", "000.jpg"}]


def test_groups_among_training_and_test_rows_are_found(root):
    shutil.copy(root / "000.png", root / "copy.png")
    vary(root / "010.png", np.random.default_rng(0))
    vary(root / "020.png", np.random.default_rng(1))
    folder = with_classes(root, {"000.png": "a", "010.png": "a", "020.png": "a", "020.jpg": "a"})
    (folder / "test" / "a").mkdir(parents=True)
    for name in ("copy.png", "010.jpg"):
        path = next(folder.glob(f"?/{name}"))
        shutil.move(path, folder / "test" / "a" / name)
    data, found = inspected(folder)
    assert sorted(map(sorted, names(data, found.across))) == [["000.png", "copy.png"], ["010.jpg", "010.png"]]
    said = [line for line in found.lines(data) if "training and test" in line]
    assert len(said) == 1
    assert said[0].startswith("2 groups of copies or look-alikes in both training and test rows, which makes the test ")


def test_groups_are_those_of_a_naive_search():
    random = np.random.default_rng(0)
    for _ in range(20):
        keys = [str(key) for key in random.integers(0, 15, 30)]
        expected = [tuple(n for n, other in enumerate(keys) if other == key) for key in dict.fromkeys(keys)]
        assert groups_of(keys) == [group for group in expected if len(group) > 1]
        pairs = [(int(one), int(other)) for one, other in random.integers(0, 30, (12, 2)) if one != other]
        reach = np.eye(30, dtype=bool)
        for one, other in pairs:
            reach[one, other] = reach[other, one] = True
        for _ in range(5):
            reach = reach @ reach
        groups = {tuple(np.flatnonzero(row).tolist()) for row in reach if row.sum() > 1}
        assert connected(pairs) == sorted(groups)


# Kept in a run


FOUND = Inspection(copies=((0, 2), (1, 4, 5)), alike=((3, 6),), blank=(7,), conflicts=((0, 2),), compared=9)


def test_it_is_kept_and_read_again(tmp_path):
    FOUND.save(tmp_path)
    assert Inspection.load(tmp_path, rows=8) == FOUND
    assert Inspection.load(tmp_path / "elsewhere", rows=8) is None
    assert Inspection.load(tmp_path, rows=7) is None  # of other data


def changed(**values):
    return json.dumps({"copies": [], "alike": [], "conflicts": [], "across": [], "blank": [], "compared": 0} | values)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        "\x00\xff",
        "{}",
        changed(copies=5),
        changed(copies=[5]),
        changed(copies=[[-1, 2]]),
        changed(alike=[[1.5, 2]]),
        changed(alike=[[True, 2]]),
        changed(blank=["1"]),
        changed(blank=[[1]]),
        changed(across=[None]),
        changed(copies=[[0, 100]]),
        changed(blank=[10**30]),
        changed(compared="many"),
        changed(compared=None),
    ],
)
def test_a_damaged_file_counts_as_none(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert Inspection.load(tmp_path, rows=100) is None


def test_what_is_no_file_counts_as_none(tmp_path):
    os.mkfifo(tmp_path / FILE)
    assert Inspection.load(tmp_path, rows=100) is None
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    assert Inspection.load(tmp_path, rows=100) is None


# What the user sees

QUICKLY = ["--epochs", 1, "--set", "network.name=mlp", "--set", "network.width=8", "--no-baselines"]


@pytest.fixture
def flawed(root):
    """A copy under two classes, a resized photo, and one of one color, among 40 photos."""
    for path in sorted(root.iterdir())[40:]:
        path.unlink()
    shutil.copy(root / "000.png", root / "copy.png")
    vary(root / "010.png", np.random.default_rng(0))
    Image.new("RGB", (SIDE, SIDE), "white").save(root / "white.png")
    return with_classes(root, {"000.png": "a", "copy.png": "b", "010.png": "a", "010.jpg": "a", "white.png": "a"})


def test_findings_are_warnings_when_a_run_begins_and_stand_in_its_report(typed, flawed):
    code, _, complained = typed("train", flawed, "--run", "run", *QUICKLY)
    assert code == 0
    copies = f"{flawed}/a/000.png, {flawed}/b/copy.png"
    expected = [
        f"1 group of copies or look-alikes with different labels; correct them: {flawed}/a/000.png ('a') = "
        f"{flawed}/b/copy.png ('b').",
        f"1 copy of other rows (the first: {copies}).",
        f"1 group of images that are nearly the same (the first: {flawed}/a/010.jpg, {flawed}/a/010.png).",
        f"1 image of one color (the first: {flawed}/a/white.png).",
    ]
    warned = [line.removeprefix("warning: ") for line in complained.splitlines() if line.startswith("warning: ")]
    assert warned[:4] == expected
    run = load_run("run")
    assert run.inspection.lines(run.data().dataset) == expected
    page = html.unescape((run.path / "report.html").read_text())
    for line in expected:
        assert f"The data: {line}" in page


def test_the_next_step_is_to_correct_conflicts_whatever_the_model_is_like(typed, flawed):
    typed("train", flawed, "--run", "run", *QUICKLY)
    page = Path("run/report.html").read_text()
    step = "Next, correct 1 group of copies or look-alikes with different labels, and train again."
    assert f'<p class="next">{step}</p>' in page
    shutil.rmtree("run")
    (flawed / "b" / "copy.png").unlink()
    typed("train", flawed, "--run", "run", *QUICKLY)
    assert "Next, correct" not in Path("run/report.html").read_text()


def test_a_report_without_the_findings_is_written_too(typed, flawed):
    assert typed("train", flawed, "--run", "run", "--no-report", *QUICKLY)[0] == 0
    for content in (None, "[]", changed(copies=[[0, 10**6]]), changed(blank=[10**30])):
        Path("run", FILE).unlink(missing_ok=True)
        if content is not None:
            Path("run", FILE).write_text(content)
        code, _, complained = typed("report", "run", "-o", "page.html")
        assert (code, complained) == (0, "")
        assert "The data:" not in Path("page.html").read_text()


def test_flawless_and_public_data_say_nothing(typed, tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    small = ["--epochs", 1, "--no-baselines", "--no-report", "--set", "network.width=8"]
    code, _, complained = typed("train", npz, "--run", "own", *small)
    assert (code, "warning" in complained) == (0, False)
    assert Inspection.load(Path("own"), rows=90) == Inspection()
    assert typed("train", "digits", "--labels", 50, "--run", "digits-run", *small)[0] == 0
    assert load_run("digits-run").inspection is None


def test_photos_in_formats_that_cannot_be_read_are_counted_in_a_note(typed, flawed):
    for name in ("a/1.HEIC", "a/2.heic", "b/3.NEF", "4.dng", "b/movie.mov", "b/notes.txt"):
        (flawed / name).write_bytes(b"x")
    (flawed / "labels.csv").write_text("not in a folder of a class")
    (flawed / "b" / "cut.png").write_bytes(b"x")
    notes = (
        "left out 1 .dng, 2 .heic, 1 .nef files, whose formats cannot be read; convert them to JPEG or PNG.",
        "left out 1 .mov, 1 .txt files, which are not images.",
    )
    assert load(options_for(flawed)).notes == notes
    code, _, complained = typed("train", flawed, "--run", "run", *QUICKLY)
    kept, page = json.loads(Path("run", FILE).read_text()), html.unescape(Path("run", "report.html").read_text())
    assert (code, tuple(kept["notes"]), len(kept["skipped"])) == (0, notes, 1)
    for note in (*notes, "left out 1 file that could not be read, the first "):
        assert f"warning: {note}" in complained
        assert f"The data: {note}" in page


def test_three_conflicts_are_named_and_the_file_that_names_all(typed, root):
    classes = {}
    for number in (0, 10, 20, 30):
        shutil.copy(root / f"{number:03}.png", root / f"{number:03} copy.png")
        classes |= {f"{number:03}.png": "a", f"{number:03} copy.png": "b"}
    flawed = with_classes(root, classes)
    code, _, complained = typed("train", flawed, "--run", "run", "--no-report", *QUICKLY)
    line = complained.partition("\n")[0]
    assert (code, [f"{number:03}" in line for number in (0, 10, 20, 30)]) == (0, [True, True, True, False])
    assert line.endswith("; inspection.json of the run names all.")
    named = json.loads(Path("run", FILE).read_text())["named"]
    assert named[3] == f"{flawed}/a/030.png ('a') = {flawed}/b/030 copy.png ('b')"


def test_texts_that_differ_only_in_case_spaces_and_punctuation_are_look_alikes(tmp_path):
    texts = [f"a text about thing number {number} of many" for number in range(20)]
    texts += ["A TEXT about thing: number 3, of many!", "a text about thing number\u00a0\uff15 of many.", "!!!", "???"]
    lines = [f'"{text}",{row % 2},{"ab"[row % 2]}' for row, text in enumerate(texts)]
    (tmp_path / "t.csv").write_text("\n".join(["text,number,kind", *lines]))
    data, found = inspected(tmp_path / "t.csv", label="kind")
    assert (found.alike, found.copies, found.conflicts, found.compared) == (((5, 21),), (), (), 24)
    (tmp_path / "t.csv").write_text(
        "\n".join(["text,kind", *(line.replace(",0,", ",").replace(",1,", ",") for line in lines)])
    )
    data, found = inspected(tmp_path / "t.csv", label="kind")
    assert (found.alike, found.conflicts) == (((3, 20), (5, 21)), ((3, 20),))
    assert found.lines(data)[0].endswith("; correct them: row 3 ('b') = row 20 ('a').")
    assert found.lines(data)[1] == "2 groups of texts that are nearly the same (the first: row 3, row 20)."


def test_a_row_far_from_all_others_is_named_at_load_and_shown(typed, tmp_path):
    iris = load_iris(as_frame=True)
    table = iris.data.assign(kind=iris.target_names[iris.target])
    table.to_csv("iris.csv", index=False)
    short = ["--epochs", 2, "--label", "kind", "--set", "source.hold_out=false", "--set", "source.id=none"]
    typed("train", "iris.csv", "--run", "plain", *short)
    page = Path("plain", "report.html").read_text()
    assert load_run("plain").inspection.far == ()
    assert "No row is far from all others; these 10 are the farthest." in page
    table.loc[60, "petal length (cm)"] *= 10  # a lost decimal point
    table.to_csv("iris.csv", index=False)
    _, _, complained = typed("train", "iris.csv", "--run", "run", *short)
    assert "warning: 1 row far from all others (the first: row 60)." in complained
    page = Path("run", "report.html").read_text()
    assert "The data: 1 row far from all others (the first: row 60)." in page
    assert "1 training row far from all others: junk, rare kinds, or another subject." in page


def test_no_row_of_ordinary_data_is_far_from_all_others():
    for make in (load_digits, load_iris, load_breast_cancer, load_wine):
        x = make().data.astype(np.float32)
        assert Novelty.fit(x, standardize=True).remoteness(x).max() < 1


def test_rows_without_labels_conflict_with_nothing():
    data = features(12, 0)
    copied = replace(data, raw=np.concatenate([data.raw, data.raw[:3]]), is_test=np.zeros(15, bool))
    labels = np.concatenate([data.labels, [UNLABELED, data.labels[1], (data.labels[2] + 1) % 3]])
    found = inspect(replace(copied, labels=labels))
    assert (found.copies, found.conflicts) == (((0, 12), (1, 13), (2, 14)), ((2, 14),))
