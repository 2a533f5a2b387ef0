"""What the files of others can do: a run's directory, names of files and classes, what is printed of them."""

import csv
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from support import (
    FEATURES,
    SMALL_IMAGES,
    At,
    blobs,
    config,
    contents,
    crash,
    crashed,
    images,
    selfens,
    sets,
    write_npz,
)
from torch import nn

from selfens import load_run, resume, train
from selfens.data.sources.images import read_cells
from selfens.errors import UNSEEN, RunError
from selfens.files.tables import as_cell, from_cell, write_csv
from selfens.report.page import write_report
from selfens.runs.novelty import Novelty
from selfens.tools import audit

FACTORY = """
from pathlib import Path
from torch import nn

Path("imported").touch()


def make(input_shape, num_classes):
    return nn.Linear(input_shape[0], num_classes)
"""
NEW = blobs(30, seed=1)[0]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("evilnet", None)


@pytest.fixture
def foreign(here):
    """A run that was trained elsewhere; its code lies in the current directory and has not been imported."""
    (here / "evilnet.py").write_text(FACTORY)
    npz = write_npz(here / "blobs.npz")
    np.save(here / "new.npy", NEW)
    train(config("pi", "network.name=evilnet:make", "labels.count=all", name=str(npz)), here / "run")
    sys.modules.pop("evilnet")
    (here / "imported").unlink()
    return here / "run"


# Code that a run names

USES = {
    "evaluate": ("evaluate", "run"),
    "predict": ("predict", "run", "new.npy", "-o", "out.csv"),
    "predict training rows": ("predict", "run", "--training-rows", "-o", "out.csv"),
    "audit": ("audit", "run"),
    "audit by folds": ("audit", "run", "--folds", "2", "--quiet"),
    "suggest": ("suggest", "run", "-n", "2"),
    "export": ("export", "run", "-o", "net.onnx"),
}


@pytest.mark.parametrize("words", USES.values(), ids=USES)
def test_a_command_imports_what_a_run_names_only_if_it_is_trusted(foreign, here, typed, words):
    code, _, err = typed(*words)
    assert (code, (here / "imported").exists()) == (1, False)
    assert "names code for its network, 'evilnet:make', which is imported only if you trust it" in err
    assert err.count("\n") == 1
    code, _, err = typed(*words, "--trust-code")
    assert (code, (here / "imported").exists()) == (0, True), err


def test_a_report_shows_what_needs_no_code(foreign, here, typed):
    assert typed("report", "run")[0] == 0
    assert not (here / "imported").exists()
    assert "which is imported only if you trust it" in (here / "report.html").read_text()
    assert typed("report", "run", "--trust-code")[0] == 0
    assert "Confusion matrix" in (here / "report.html").read_text()
    assert (here / "imported").exists()


def test_a_resume_imports_what_a_run_names_only_if_it_is_trusted(foreign, here, typed):
    settings = load_run(foreign).config.with_values("training", checkpoint_every=1)
    stopping = here / "stopped"
    with crashed():
        train(settings, stopping, progress=At(1, 0, crash))
    sys.modules.pop("evilnet")
    (here / "imported").unlink()
    code, _, err = typed("resume", "stopped", "--tensorboard")
    assert (code, "imported only if you trust it" in err, (here / "imported").exists()) == (1, True, False)
    with pytest.raises(RunError, match=r"\(trust_code=True, or --trust-code\)"):
        resume(stopping)
    assert typed("resume", "stopped", "--trust-code", "--no-report")[0] == 0
    assert load_run(stopping).finished


def test_in_python_a_run_is_trusted_or_given_its_network(foreign, here):
    run, rows = load_run(foreign), NEW
    assert (len(run.history), run.finished) == (3, True)
    with pytest.raises(RunError, match=r"names code .* only if you trust it \(trust_code=True, or --trust-code\)\."):
        run.predict(rows)
    given = load_run(foreign, network=nn.Linear(*reversed(evil_weights(foreign).shape)))
    expected = given.predict_proba(rows)
    assert not (here / "imported").exists()
    np.testing.assert_array_equal(load_run(foreign, trust_code=True).predict_proba(rows), expected)


def evil_weights(path):
    return load_run(path).directory.load_checkpoint().tensors["network"]["weight"]


def test_a_run_that_claims_a_module_of_ones_own_does_not_import_either(foreign, here):
    about = json.loads((foreign / "run.json").read_text())
    (foreign / "run.json").write_text(json.dumps(about | {"custom_network": True}))
    for trusted, refusal in (
        (False, "names code for its network"),
        (True, "trained with a module of your own; pass it"),
    ):
        with pytest.raises(RunError, match=refusal):
            load_run(foreign, trust_code=trusted).predict(NEW)
    with pytest.raises(RunError, match="started with a network of your own"):
        resume(foreign)
    assert not (here / "imported").exists()


@pytest.mark.parametrize(
    "section",
    [
        {"source": {"name": "evilnet:make"}},
        {"source": {"extra": "evilnet:make"}},
        {"encoder": {"name": "evilnet:make"}},
        {"encoder": {"name": "backbone", "model": "evilnet:make"}},
        {"method": {"name": "evilnet:make"}},
        {"optimizer": {"name": "evilnet:make"}},
        {"preprocess": {"kind": "evilnet:make"}},
    ],
    ids=str,
)
def test_no_other_name_in_a_run_is_imported(foreign, here, section):
    raw = json.loads((foreign / "config.json").read_text())
    raw["network"]["name"] = "mlp"
    ((name, values),) = section.items()
    raw[name] = raw[name] | values if "name" not in values else values
    (foreign / "config.json").write_text(json.dumps(raw))
    for use in (lambda: load_run(foreign).evaluate(), lambda: resume(foreign)):
        with pytest.raises(RunError):
            use()
    assert not (here / "imported").exists()


def test_a_training_that_is_started_again_needs_no_trust(foreign, here, monkeypatch):
    """torchrun repeats the command, which names the code."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(load_run(foreign).config, foreign).finished
    assert write_report(load_run(foreign, trust_code=True), here / "page.html").is_file()


# Names in tables

NAMES = [
    "two\nlines",
    "carriage\rreturn",
    "caf\udce9",
    "=1+1",
    "+plus",
    "-minus",
    "@at",
    " spaces ",
    '"quoted"',
    "a;=b",
]
ORDINARY = ["cat", "größe 日本", "it's", 'in "quotes"', "-0.500000", "12", "a-b", "C:\\cat", "a;b"]


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(['"', "\\", ";", "=", "\udce9"])))
@example('"\\u003b"')
@example('"=a"')
def test_any_name_survives_in_a_cell(name):
    cell = as_cell(name)
    cell.encode()
    assert from_cell(cell.strip()) == name
    assert "\n" not in cell
    assert not re.match(r"\s*[=+@]|\s*-[^0-9.]", cell)


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_name_is_its_own_cell(name):
    assert as_cell(name) == name == from_cell(name)


def test_what_somebody_typed_in_quotes_keeps_them():
    assert [from_cell(typed) for typed in ('"cat"', '"', '"a', "=cat")] == ['"cat"', '"', '"a', "=cat"]


@pytest.fixture
def odd_folder(here):
    """A folder whose classes have names that a CSV or a spreadsheet would change."""
    for number, name in enumerate(NAMES):
        (here / "photos" / name).mkdir(parents=True)
        for picture in range(3):
            pixels = np.full((8, 8, 3), 25 * number, np.uint8)
            Image.fromarray(pixels).save(here / "photos" / name / f"{name}{picture}.png")
    return here / "photos"


def test_an_audit_of_odd_names_is_a_labels_file(odd_folder, here, typed):
    words = ["--epochs", "1", "--no-report", "--quiet", "--set", "network.width=4"]
    assert typed("train", "./photos", "--run", "first", *words)[0] == 0
    for _ in range(2):  # the second writes over the first, which nobody has changed
        assert typed("audit", "first", "-o", "issues.csv")[0] == 0
    text = (here / "issues.csv").read_text(encoding="utf-8")
    cells = [cell for line in csv.reader(text.splitlines()) for cell in line]
    assert not [cell for cell in cells if re.match("[=+@]|-[^0-9.]", cell)]
    assert typed("train", "./photos", "--run", "second", "--labels-file", "issues.csv", *words)[0] == 0
    first, second = load_run("first"), load_run("second")
    assert sorted(first.classes) == sorted(NAMES)
    np.testing.assert_array_equal(audit.run_labels(first), audit.run_labels(second))
    assert typed("predict", "first", "photos", "-o", "out.csv")[0] == 0
    header, *lines = [cells for _, cells in read_cells(here / "out.csv", "file")]
    assert header == ["file", "class", "probability", "runner_up", "novelty"]
    assert {line[3] for line in lines} <= set(NAMES)
    assert {line[0] for line in lines} == {str(file.relative_to(here)) for file in odd_folder.rglob("*.png")}
    assert typed("predict", "first", "out.csv", "-o", "again.csv")[0] == 0
    assert (here / "again.csv").read_bytes() == (here / "out.csv").read_bytes()


@pytest.mark.parametrize("command", ["predict", "audit", "suggest"])
def test_a_link_to_itself_is_no_file_to_write(here, typed, command):
    train(config("pi", "labels.count=all", name=str(write_npz(here / "blobs.npz"))), here / "run")
    (here / "out.csv").symlink_to("out.csv")
    words = ["--training-rows"] if command == "predict" else []
    code, _, err = typed(command, "run", *words, "-o", "out.csv")
    assert (code, err) == (
        1,
        "error: out.csv is a link that leads to itself; remove it, or choose another file name.\n",
    )
    assert (here / "out.csv").is_symlink()


def test_what_a_link_leads_to_is_written(here):
    for name, target in (("new", "there"), ("old", "here")):
        (here / name).symlink_to(target)
    (here / "here").write_text("x\n1\n")
    for name, target in (("new", "there"), ("old", "here")):
        write_csv(here / name, {"x": [2]})
        assert ((here / name).is_symlink(), (here / target).read_text()) == (True, "x\n2\n")


# What is printed and shown of names

TURNED = "cat \u202e12.34\u2066 \x1b[31m\x9b"


def test_an_error_sentence_of_a_foreign_files_content_is_one_harmless_line(here, typed):
    (here / "rows.csv").write_text("row,label\n0,\x1b]0;owned\x07\u202ecat\n")
    code, _, err = typed("train", "digits", "--labels-file", "rows.csv")
    assert code == 1
    assert r"'\x1b]0;owned\x07\u202ecat'" in err
    assert not UNSEEN.search(err.rstrip("\n"))


def test_a_name_in_the_output_is_one_harmless_line(here, typed):
    names = np.array([TURNED, "a\nb", "c"])
    npz = write_npz(here / "odd.npz", y_train=names[blobs()[1]], y_test=names[blobs(30, seed=1)[1]])
    train(config("pi", "labels.count=all", name=str(npz)), here / "run")
    code, out, err = typed("evaluate", "run")
    assert (code, err, out.count("\n")) == (0, "", 5)
    assert r"cat \u202e12.34\u2066 \x1b[31m\x9b" in out
    assert not UNSEEN.search(out.replace("\n", ""))


def test_the_progress_of_a_training_shows_no_raw_name(here, typed):
    folder = here / "a \x1b[31m\nb"
    folder.mkdir()
    code, out, err = typed("train", write_npz(folder / "\u202ex.npz"), "--epochs", "1", "--run", folder / "run")
    assert (code, r"\u202ex.npz" in out, r"\x1b[31m\nb" in out) == (0, True, True)
    assert not UNSEEN.search((out + err).replace("\n", ""))


def test_a_page_isolates_names_so_that_numbers_stay(here):
    data = replace(images(), classes=(TURNED, "שלום", "c"), name="\u202eedata")
    settings = config("pi", *SMALL_IMAGES, epochs=1)
    runs = [train(settings, here / name, dataset=data) for name in ("חתול", "a\u202eb")]
    pages = [write_report(each, here / "page.html", dataset=data).read_text() for each in (runs[0], runs)]
    for page in pages:
        assert "\u2068חתול\u2069" in page
        assert not UNSEEN.search(page.replace("\n", "").replace("\u2068", "").replace("\u2069", ""))
        assert page.count("\u2068") == page.count("\u2069") > 0
        assert not re.search("[א-ת]", re.sub("\u2068[^\u2069]*\u2069", "", page))
    assert r"\u202eedata" in pages[0]


# What a run keeps of its errors


def test_what_was_measured_of_other_rows_counts_as_not_measured(here, typed):
    write_npz(here / "blobs.npz")
    assert typed("train", "blobs.npz", "--epochs", "1", "--run", "run", "--quiet", "--no-report")[0] == 0
    assert typed("evaluate", "run", "--folds", "2", "--quiet")[0] == 0
    np.save("new.npy", blobs()[0])
    run = load_run("run")
    run.keep_evidence(replace(run.evidence, rows=run.evidence.rows + run.info.rows))
    Novelty(torch.zeros(60, FEATURES - 1), torch.zeros(FEATURES - 1), torch.ones(FEATURES - 1)).save(run.path)
    assert (load_run("run").evidence, load_run("run").novelty) == (None, None)
    assert typed("report", "run", "-o", "page.html")[0] == 0
    assert typed("suggest", "run", "-n", "3")[0] == 0
    assert typed("predict", "run", "new.npy", "-o", "out.csv")[0] == 0
    assert read_cells(here / "out.csv", "")[0][1] == ["row", "class", "probability", "runner_up"]
    code, out, _ = typed("audit", "run", "--quiet")
    assert (code, "each judged by one of 5 models" in out) == (0, True)


# Equal files


def test_equal_runs_write_equal_checkpoints(here):
    """In processes of their own, because the order in which safetensors writes strings changes from one to the next."""
    write_npz(here / "blobs.npz")
    for name in ("one", "two"):
        words = ["train", "blobs.npz", "--epochs", "2", "--no-report", "--run", name, *sets(["training.threads=1"])]
        assert selfens(*words, cwd=here).returncode == 0
    one, two = (contents(here / name) for name in ("one", "two"))
    assert {"evidence.safetensors", "novelty.safetensors", "inspection.json"} < set(one)
    assert [name for name in one if one[name] != two[name]] == ["history.jsonl"]  # seconds
