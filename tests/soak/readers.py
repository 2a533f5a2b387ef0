"""Every reader of selfens with good files to damage, and what counts as harmless if a damaged one is read.

A damaged file passes if it is refused in one sentence, or if it is read and that is harmless:

- always: it takes bounded time and memory, runs no code that the file names, opens no connection, writes nothing elsewhere;
- formats with a checksum (.npz, compressed .mat): what was read is what was there before the damage;
- a folder of images: those that were not damaged are the same;
- formats without a checksum (.npy, pickles, plain .mat, CSV, JSON, safetensors): anything that makes sense;
- a run that is refused is left as it was.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import traceback
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from support import At, config, contents, crash, crashed, write_npz

import selfens
from selfens.cli import main
from selfens.data.sources import load, options_for
from selfens.errors import SelfensError
from tests.data.conftest import Official
from tests.soak.damage import damage
from tests.soak.watch import watched

TESTS = Path(__file__).parents[1]


def complaint(code: int | None, said: str) -> str | None:
    """What is wrong with the end of a command, if anything: it must succeed, or say one sentence and exit with 1."""
    errors = [line for line in said.split("\n") if line.startswith("error: ")]
    is_refusal = code == 1 and len(errors) == 1 and said.rstrip("\n").endswith(errors[0])
    if "Traceback" in said or not (is_refusal or (code == 0 and not errors)):
        return f"exit code {code}, and it said: {said[-600:]!r}"
    is_printable = all(unicodedata.category(letter) != "Cc" for letter in "".join(errors))
    return None if is_printable else f"control characters in the sentence {errors[0][:300]!r}"


def command(*words: Any) -> None:
    """Type a command here; a refusal is raised."""
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
    if wrong := complaint(code, said.getvalue()):
        raise AssertionError(wrong)
    if code:
        raise SelfensError(said.getvalue().rstrip("\n").split("\n")[-1])


# Readers of a folder in which the file at a path was damaged


def trained(folder: Path, source: str, *words: Any) -> str:
    """Train an epoch on the data; returns their fingerprint."""
    measured = [] if "--baselines" in words else ["--no-baselines"]
    options = ("--epochs", 1, "--device", "cpu", "--no-report", "--quiet", *measured, *words)
    command("train", folder / source, "--run", folder / "new", *options)
    run = selfens.load_run(folder / "new", device="cpu")
    assert np.isfinite(run.model.predict_inputs(run.data().inputs)).all(), "probabilities that are not finite"
    return run.info.fingerprint


def npz(folder: Path, path: Path, random: Random) -> Any:
    command("predict", folder / "run", folder / "inputs.npz", "-o", folder / "out.csv")
    return trained(folder, "data.npz"), (folder / "out.csv").read_text()


def packed_npz(folder: Path, path: Path, random: Random) -> Any:
    """The array was damaged before it is packed, so that every checksum is right."""
    with zipfile.ZipFile(
        folder / "data.npz", "w", random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    ) as archive:
        for part in sorted(each for each in (folder / "arrays").iterdir() if each.is_file() and not each.is_symlink()):
            archive.write(part, part.name)
    return trained(folder, "data.npz")


def images(folder: Path, path: Path, random: Random) -> dict[str, bytes]:
    """The pixels of each image by name, but for the damaged one."""
    data = load(options_for(folder / "photos", size=8))
    names = [Path(file).name for file in data.ids]
    return {name: row.tobytes() for name, row in zip(names, np.asarray(data.raw), strict=True) if name != path.name}


def official(folder: Path, path: Path, random: Random) -> Any:
    name = next(name for name in ("svhn", "cifar100", "cifar10") if name in path.parent.name.replace("-", ""))
    data = load(options_for(name, folder=str(folder)))
    assert 0 <= data.labels.min() <= data.labels.max() < data.num_classes
    return data.classes, np.asarray(data.raw).tobytes(), data.labels.tobytes()


def labels(folder: Path, path: Path, random: Random) -> None:
    """A labels file, an audit and suggestions: to train with, or about to be replaced by the command that wrote them (unless
    there is a pipe or device now, which is written to)."""
    if path.stem in ("audit", "suggest") and random.random() < 0.3 and (path.is_file() or not path.exists()):
        command(path.stem, folder / "run", "-o", path)
    trained(folder, "data.npz", random.choice(["--labels-file", "--add-labels"]), path)


def run(folder: Path, path: Path, random: Random) -> None:
    """A run that crashed in its third epoch; refused, it is as it was."""
    before, inputs, out = contents(folder / "run"), next(folder.glob("inputs.*")), folder / "out.csv"
    resume = ["resume", "--no-report", "--quiet"]
    others = [["evaluate"], ["report", "-o", folder / "out.html"], ["audit", "-o", out], ["predict", inputs, "-o", out]]
    name, *words = random.choice([*[resume] * 3, *others, ["predict", "--training-rows", "-o", out]])
    try:
        command(name, folder / "run", *words)
    except SelfensError as refusal:
        is_changed = contents(folder / "run") | {"lock": b""} != before | {"lock": b""}
        if is_changed and "stopped being finite" not in str(refusal):
            raise AssertionError(f"refused, but files were changed: {refusal}") from None
        raise


def measured(folder: Path, path: Path, random: Random) -> None:
    """A complete run whose errors were measured; refused, it is as it was."""
    before, inputs, out = contents(folder / "run"), folder / "inputs.npz", folder / "out.csv"
    sure, every = ["predict", inputs, "-o", out, "--max-error", 5], ["predict", inputs, "-o", out, "--all-classes"]
    others = [["suggest", "-n", 3, "-o", out], ["report", "-o", folder / "out.html"], ["resume", "--no-report"]]
    name, *words = random.choice([sure, every, *others, ["evaluate", "--folds", 2], ["audit", "-o", out], ["evaluate"]])
    try:
        command(name, folder / "run", *words)
    except SelfensError as refusal:
        if contents(folder / "run") | {"lock": b""} != before | {"lock": b""}:
            raise AssertionError(f"refused, but files were changed: {refusal}") from None
        raise


def journal(folder: Path, path: Path, random: Random) -> None:
    """A journal beside the data: lines that were not damaged count, and more are added, or it is said that they cannot be."""
    found = load(options_for(folder / "data.npz"))
    marked = 0 if found.suggested is None else int(found.suggested.sum())
    assert marked <= 3, f"{marked} rows are marked"
    command("suggest", folder / "run", "-n", 2, "-o", folder / "out.csv")
    trained(folder, "data.npz")


# Good files


def make_arrays(folder: Path) -> None:
    write_npz(folder / "data.npz")
    (folder / "arrays").mkdir()
    for name, array in np.load(folder / "data.npz").items():
        np.save(folder / "arrays" / f"{name}.npy", array)


def make_photos(folder: Path) -> None:
    random, lines = np.random.default_rng(0), ["file,label"]
    for place, ending in enumerate(
        ["png", "jpg", "gif", "bmp", "tif", "ppm", "webp", "png", "tif", "jpg", "png", "tif"]
    ):
        path = folder / "photos" / "ab"[place % 2] / f"{place}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (9, 9, 4 if place == 10 else 3), dtype=np.uint8)
        pixels = pixels[..., 0].astype(np.uint16) * 257 if place == 8 else pixels
        Image.fromarray(pixels).save(path, **({"compression": "tiff_lzw"} if place == 4 else {}))
        lines.append(f"{path.relative_to(folder)},{path.parent.name}")
    (folder / "table.csv").write_text("\n".join(lines))


def make_table(folder: Path) -> None:
    random, lines = np.random.default_rng(0), ["id,size,color,day,split,kind"]
    for row in range(72):
        color, day, split = ("red", "blue", "")[row % 5 % 3], 1 + row % 28, "test" if row < 12 else "train"
        kind = "abc"[row % 3] if row % 4 else ""
        lines.append(f"x{row},{random.normal():.3f},{color},2026-01-{day:02},{split},{kind or 'a' * (row < 12)}")
    for name in ("data", "inputs"):
        (folder / f"{name}.csv").write_text("\n".join(lines))


def make_run(folder: Path, *overrides: str, data: str = "data.npz") -> None:
    write_npz(folder / "data.npz")
    if data == "data.npz":
        np.savez_compressed(folder / "inputs.npz", x=np.load(folder / data)["x_test"])
    settings = config("temporal", "training.checkpoint_every=1", *overrides, name=str(folder / data))
    with crashed():
        selfens.train(settings, folder / "run", progress=At(2, 2, crash))


def make_measured(folder: Path) -> None:
    write_npz(folder / "data.npz")
    np.savez_compressed(folder / "inputs.npz", x=np.load(folder / "data.npz")["x_test"])
    trained(folder, "data.npz", "--baselines")
    (folder / "new").rename(folder / "run")
    command("evaluate", folder / "run", "--folds", 2, "--quiet")
    made = {path.name for path in (folder / "run").iterdir()}
    assert made >= {"evidence.safetensors", "novelty.safetensors", "inspection.json"}, made


def make_journal(folder: Path) -> None:
    make_measured(folder)
    command("suggest", folder / "run", "-n", 3, "-o", folder / "first.csv")


def make_table_run(folder: Path) -> None:
    make_table(folder)
    make_run(folder, "source.label=kind", "encoder.name=columns", "preprocess.kind=none", data="data.csv")


def make_labels(folder: Path) -> None:
    make_run(folder)
    (folder / "tables").mkdir()
    (folder / "tables/labels.csv").write_text("row,label\n" + "".join(f"{row},{row % 3}\n" for row in range(0, 30, 2)))
    for name in ("audit", "suggest"):
        path = folder / f"tables/{name}.csv"
        command(name, folder / "run", "-o", path)
        path.with_suffix(".html").unlink()
        path.write_text(path.read_text().replace(",,", ",1,"))  # the suggestions filled in


def make_records(folder: Path) -> None:
    for path in sorted((TESTS.parent / "results/runs").glob("*/*/seed000.json"))[::4]:
        new = folder / path.relative_to(TESTS.parent)
        new.parent.mkdir(parents=True)
        shutil.copy(path, new)


class Reader(NamedTuple):
    make: Callable[[Path], Any]
    damaged: str
    """The files of which one is damaged, as a pattern."""
    read: Callable[[Path, Path, Random], Any]
    is_checked: bool = False
    """What is read must be what was read before the damage."""


READERS = {
    "npz": Reader(make_run, "*.npz", npz, True),
    "npz-inside": Reader(make_arrays, "arrays/*", packed_npz),
    "npy": Reader(make_arrays, "arrays/*", lambda folder, *_: trained(folder, "arrays")),
    "images": Reader(make_photos, "photos/*/*", images, True),
    "image-table": Reader(make_photos, "table.csv", lambda folder, *_: trained(folder, "table.csv", "--size", 8)),
    "mat": Reader(lambda folder: Official().svhn(folder / "svhn"), "svhn/*", official, True),
    "mat-plain": Reader(lambda folder: Official().svhn(folder / "svhn", compressed=False), "svhn/*", official),
    "cifar10": Reader(lambda folder: Official().cifar(folder, "cifar10", "python2"), "cifar*/*", official),
    "cifar100": Reader(lambda folder: Official().cifar(folder, "cifar100", "protocol2"), "cifar*/*", official),
    "labels": Reader(make_labels, "tables/*", labels),
    "table": Reader(make_table, "data.csv", lambda folder, *_: trained(folder, "data.csv", "--label", "kind")),
    "config": Reader(make_run, "run/config.json", run),
    "checkpoint": Reader(make_run, "run/checkpoint.safetensors", run),
    "run": Reader(make_run, "run/*", run),
    "encoder": Reader(make_table_run, "run/run.json", run),
    "evidence": Reader(make_measured, "run/evidence.safetensors", measured),
    "novelty": Reader(make_measured, "run/novelty.safetensors", measured),
    "inspection": Reader(make_measured, "run/inspection.json", measured),
    "journal": Reader(make_journal, ".data.npz.selfens.jsonl", journal),
    "record": Reader(make_records, "results/*/*/*/*", lambda f, *_: command("reproduce", "--results", f / "results")),
}


def made(name: str, make: Callable[[Path], Any], scratch: Path) -> None:
    """Good files for the empty scratch folder: made there the first time, because runs remember where their data is."""
    kept = scratch.parent / "made" / name
    if not kept.exists():
        make(scratch)
        shutil.copytree(scratch, kept)
    shutil.copytree(kept, scratch, dirs_exist_ok=True)


def damaged_file(words: list[str], random: Random, scratch: Path) -> dict[str, Any]:
    """Damage one of a reader's files and read it."""
    reader = READERS[words[0]]
    made(words[0], reader.make, scratch)
    path = random.choice(sorted(each for each in scratch.glob(reader.damaged) if each.is_file()))
    before = reader.read(scratch, path, Random(0)) if reader.is_checked else None
    shutil.rmtree(scratch / "new", ignore_errors=True)
    how = f"{path.relative_to(scratch)}: {damage(path, random)}"
    (scratch.parent / "damage").write_text(how)  # in case that it crashes or hangs
    try:
        with watched(scratch.parent):
            is_same = reader.read(scratch, path, random) == before
        outcome = "harmless" if is_same or not reader.is_checked else "finding: read, but not what was there"
    except SelfensError as error:
        outcome = "refused" if "\n" not in str(error) else f"finding: not one sentence: {str(error)!r}"
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/selfens/" in frame.filename]
        place = f" at {frames[-1].filename.split('/selfens/')[-1]}:{frames[-1].lineno}" if frames else ""
        outcome = f"finding: {type(error).__name__}: {str(error)[:700]}{place}"
    return {"outcome": outcome, "damage": how}
