"""The command line as a user types it."""

import csv
import errno
import json
import os
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from support import ROWS, SMALL_IMAGES, blobs, contents, environment, images, selfens, sets, write_npz

from selfens import load_run, presets
from selfens.cli import app, main
from selfens.config import Config
from selfens.runs.directory import RunDirectory

TINY = ["--epochs", "2", "--no-report", *sets(["network.width=4", "training.threads=1"])]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to type in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SELFENS_DATA", raising=False)
    monkeypatch.setenv("SELFENS_OFFLINE", "1")
    return tmp_path


@pytest.fixture
def typed(capsys, here):
    """Types a command: exit code, what it printed, what it complained of."""

    def run(*words):
        capsys.readouterr()
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as end:
            code = 0 if end.code is None else end.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def npz(here):
    return write_npz(here / "blobs.npz")


@pytest.fixture
def trained(typed, npz):
    assert typed("train", npz, "--run", "run", "--quiet", *TINY)[0] == 0
    return load_run("run")


# train


def test_a_preset_is_trained_by_its_name(typed, here):
    code, out, err = typed("train", "digits", *TINY)
    assert (code, err) == (0, "")
    run = load_run("runs/digits-temporal-seed0")
    assert run.config == presets.get("digits-temporal").with_overrides(
        ["schedule.epochs=2", "network.width=4", "training.threads=1"]
    )
    assert f"test error {run.test_error:.2f} % after 2 epochs" in out


def test_an_npz_file_is_trained(typed, npz):
    code, _, err = typed("train", "blobs.npz", *TINY)
    assert (code, err) == (0, "")
    run = load_run("runs/blobs-committee-seed0")
    assert (run.config.network.name, run.finished, run.about["labeled"]) == ("committee", True, 20)


def test_an_npz_file_of_images_is_trained(typed, here):
    data = images()
    labels = np.where(np.arange(ROWS) < 20, data.labels, -1)
    np.savez(here / "images.npz", x_train=data.inputs.transpose(0, 2, 3, 1), y_train=labels)
    assert typed("train", "images.npz", *TINY)[0] == 0
    assert load_run("runs/images-temporal-teacher-seed0").config.network.name == "small"


def test_every_option_ends_up_in_the_config(typed, npz):
    options = ["--labels", "6", "--method", "pi", "--seed", "7", "--epochs", "2", "--device", "cpu"]
    options += ["--data-dir", "official", "--run", "there/run", "--set", "network.width=4"]
    code, _, err = typed("train", "blobs.npz", *options, "--set", "optimizer.beta2=0.99", "--quiet")
    assert (code, err) == (0, "")
    settings = load_run("there/run").config
    assert (settings.data.labels, settings.method.name, settings.seed.base) == (6, "pi", 7)
    assert (settings.schedule.epochs, settings.training.device, settings.data.folder) == (
        2,
        "cpu",
        str(Path("official").absolute()),
    )
    assert (settings.network.width, settings.optimizer.beta2) == (4, 0.99)


def test_paths_are_kept_absolute_however_they_were_set(typed, here, npz):
    (here / "rows.txt").write_text("\n".join(map(str, range(20))))
    words = sets(["data.label_choice=file", "data.labels_file=rows.txt", "data.extra=digits", "data.folder=~/official"])
    refused(typed("train", npz, "--run", "run", *words), "digits")
    refused(typed("train", npz, "--run", "run", "--set", "data.extra="), "data.extra is empty; give a path")
    typed("train", npz, "--run", "run", *TINY, *words[:4], *words[6:])
    data = load_run("run").config.data
    assert (data.labels_file, data.folder) == (str(here / "rows.txt"), str(Path("~/official").expanduser()))


def test_set_is_stronger_than_the_other_options(typed, npz):
    typed("train", npz, "--run", "run", *TINY, "--seed", "1", "--set", "seed.base=2")
    assert load_run("run").config.seed.base == 2


def test_labels_all_uses_every_label_of_a_preset(typed, here):
    code, _, _ = typed("train", "digits", "--labels", "all", "--quiet", "--epochs", "1", *sets(["network.width=2"]))
    assert code == 0
    assert load_run("runs/digits-temporal-seed0").about["labeled"] == 1297


def test_the_method_of_a_preset_brings_its_rates(typed, here):
    typed("train", "digits", "--method", "supervised", "--run", "run", *TINY)
    assert load_run("run").config.method.name == "supervised"
    assert load_run("run").config.optimizer.learning_rate == 0.01


def test_quiet_prints_the_result_line_alone(typed, npz):
    code, out, err = typed("train", npz, "--quiet", "--run", "run", *TINY)
    assert (code, err) == (0, "")
    assert re.fullmatch(r"test error \d+\.\d\d % after 2 epochs in \d+ s; run in run\n", out)


def test_without_a_terminal_there_is_a_line_per_epoch_and_no_escape_code(npz):
    done = selfens("train", npz, "--run", "run", *TINY, cwd=npz.parent)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 14
    assert lines.pop(2).startswith("chosen: method committee; ")
    assert lines.pop(0).startswith(f"{npz}: 60 rows, 20 labeled, 30 to test on; run in run")
    assert lines[0].startswith("committee, committee (")
    assert re.fullmatch(r"epoch 1/2  loss \S+ \+ 0 x \S+  test error \S+ %  \S+ rows/s  \d+ s left", lines[1])
    assert lines[2].startswith("epoch 2/2  ")
    assert lines[3].startswith("test error ")
    assert lines[4] == "with only 30 test rows the error is accurate to about ±18 points"
    assert sorted(line.split()[0] for line in lines[5:10]) == ["chance", "error", "logistic", "self-training", "this"]
    assert lines[10].startswith("This model misclassifies ")
    assert lines[11] == "to predict: selfens predict run INPUT -o out.csv"
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout


def test_in_a_terminal_there_is_a_bar(npz):
    """A pseudo-terminal; the bar redraws its line, so there are escape codes, and the result comes last."""
    import pty

    master, slave = pty.openpty()
    words = [sys.executable, "-m", "selfens", "train", str(npz), "--run", "run", *TINY]
    with subprocess.Popen(
        words, cwd=npz.parent, stdout=slave, stderr=slave, env=environment(TERM="xterm", COLUMNS="160")
    ) as process:
        os.close(slave)
        shown = b""
        while chunk := _read(master):
            shown += chunk
    os.close(master)
    text = shown.decode()
    assert process.returncode == 0
    assert "2/2" in text
    assert "rows/s" in text
    assert any("test error" in line for line in text.splitlines()[-10:])


def _read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end was closed
        return b""


def test_a_second_run_gets_another_name(typed, npz):
    for _ in range(3):
        assert typed("train", npz, "--quiet", *TINY)[0] == 0
    assert sorted(os.listdir("runs")) == [f"blobs-committee-seed0{end}" for end in ("", "-2", "-3")]


def test_the_default_name_says_data_method_and_seed(typed, npz):
    out = typed("train", npz, "--quiet", "--method", "pi", "--seed", "5", *TINY)[1]
    assert out.rstrip().endswith("run in runs/blobs-pi-seed5")


def test_a_presets_name_wins_over_a_folder_of_that_name(typed, here):
    (here / "digits").mkdir()
    (here / "digits" / "thesis.txt").write_text("years of work")
    assert typed("train", "digits", "--quiet", *TINY)[0] == 0
    assert load_run("runs/digits-temporal-seed0").config.data.name == "digits"
    assert contents(here / "digits") == {"thesis.txt": b"years of work"}


def test_a_run_may_go_into_the_present_empty_folder(typed, here, monkeypatch, tmp_path_factory):
    data = write_npz(tmp_path_factory.mktemp("data") / "blobs.npz")
    code, _, err = typed("train", data, "--run", ".", "--quiet", *TINY)
    assert (code, err) == (0, "")
    assert load_run(here).finished


# presets


def test_presets_lists_every_preset_with_a_line_about_it(typed):
    code, out, err = typed("presets")
    assert (code, err) == (0, "")
    *lines, last = out.splitlines()
    assert [line.split()[0] for line in lines] == list(presets.PRESETS)
    assert all(len(line.split(None, 1)[1]) > 10 for line in lines)
    assert last == "To train one: selfens train NAME"


@pytest.mark.parametrize("name", [*presets.PRESETS, "digits", "cifar10"])
def test_a_preset_is_printed_as_a_config_that_reads_back(typed, name):
    code, out, err = typed("presets", name)
    assert (code, err) == (0, "")
    assert Config.from_dict(json.loads(out)) == presets.get(name)


# evaluate, predict, resume


def test_evaluate_gives_the_error_the_run_reported(typed, trained):
    code, out, err = typed("evaluate", "run")
    assert (code, err) == (0, "")
    first, *classes, last = out.splitlines()
    wrong = round(trained.test_error * 30 / 100)
    assert first == f"test error {trained.test_error:.2f} % ({wrong} of 30 rows)"
    assert [line.split()[0] for line in classes] == ["0", "1", "2"]
    balanced = np.mean([float(line.split()[1]) for line in classes])
    assert last == f"balanced error {balanced:.2f} %, the mean of the classes"


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["npz", "npy", "npz of one array"])
def test_predict_writes_class_and_probability_of_every_row(typed, trained, kind):
    x, _ = blobs(17, seed=5)
    name = "new.npy" if kind == "npy" else "new.npz"
    if kind == "npy":
        np.save(name, x)
    else:
        np.savez(name, **({"x": x, "other": x[:2]} if kind == "npz" else {"whatever": x}))
    code, out, err = typed("predict", "run", name, "-o", "out.csv")
    assert (code, out, err) == (0, "predictions of 17 rows written to out.csv\n", "")
    rows = read_csv("out.csv")
    expected = trained.predict_proba(x)
    assert [int(row["row"]) for row in rows] == list(range(17))
    assert [row["class"] for row in rows] == [trained.classes[i] for i in expected.argmax(axis=1)]
    assert np.allclose([float(row["probability"]) for row in rows], expected.max(axis=1), atol=1e-6)
    assert list(rows[0]) == ["row", "class", "probability"]


def test_predict_on_the_training_rows_asks_the_ensemble(typed, trained):
    code, out, err = typed("predict", "run", "--training-rows", "-o", "out.csv")
    assert (code, out, err) == (0, "predictions of 60 rows written to out.csv\n", "")
    rows = read_csv("out.csv")
    assert list(rows[0]) == ["row", "class", "probability"]
    expected = trained.ensemble.all().probabilities.numpy()
    assert [row["class"] for row in rows] == [trained.classes[i] for i in expected.argmax(axis=1)]
    assert np.allclose([float(row["probability"]) for row in rows], expected.max(axis=1), atol=1e-6)


@pytest.mark.parametrize("words", [[], ["new.npz", "--training-rows"]])
def test_predict_wants_one_thing_to_predict(typed, trained, words):
    code, _, err = typed("predict", "run", *words, "-o", "out.csv")
    assert (code, "either an INPUT or --training-rows" in err, len(err.splitlines())) == (1, True, 1)
    assert not Path("out.csv").exists()


def test_training_rows_that_the_ensemble_has_not_seen_have_the_networks_class(typed, here):
    write_npz(here / "data.npz")
    assert typed("train", "data.npz", "--run", "run", *TINY, "--set", "data.validation=0.5")[0] == 0
    assert typed("predict", "run", "--training-rows", "-o", "out.csv")[0] == 0
    rows, run = read_csv("out.csv"), load_run("run")
    held_out = run.labels.validation
    assert len(rows) == 60
    assert len(held_out) > 0
    expected = run.predict(run.dataset().inputs[held_out])
    assert [rows[row]["class"] for row in held_out] == expected.tolist()


def test_the_ensemble_in_a_file(typed, here, npz):
    temporal = ("--method", "temporal")
    assert typed("train", "blobs.npz", *temporal, "--run", "filed", *TINY, *sets(["method.targets=z"]))[0] == 0
    assert load_run("filed").config.method.targets == str(here / "z")
    assert typed("train", "blobs.npz", *temporal, "--run", "plain", *TINY)[0] == 0
    assert load_run("filed").test_error == load_run("plain").test_error
    assert torch.equal(load_run("filed").ensemble.mean, load_run("plain").ensemble.mean)
    refused(
        typed("train", "blobs.npz", *temporal, "--run", "other", *TINY, *sets(["method.targets=z"])),
        "holds targets that a checkpoint relies on",
    )
    refused(
        typed(
            "train",
            "blobs.npz",
            "--method",
            "temporal",
            "--run",
            "other",
            "--method",
            "pi",
            *TINY,
            *sets(["method.targets=x"]),
        ),
        "no pi option 'targets'",
    )
    assert not (here / "x").exists()


def test_predict_takes_images_in_either_layout_and_bytes_or_floats(typed, here):
    data = images()
    nhwc = data.inputs.transpose(0, 2, 3, 1)
    np.savez("images.npz", x_train=nhwc, y_train=data.labels, x_test=nhwc[:5], y_test=data.labels[:5])
    assert (
        typed("train", "images.npz", "--labels", "12", "--run", "run", "--quiet", *TINY, *sets(SMALL_IMAGES[:1]))[0]
        == 0
    )
    results = {}
    for name, array in {"nhwc": nhwc, "nchw": data.inputs, "float": (nhwc / 255).astype(np.float32)}.items():
        np.savez(f"{name}.npz", x=array)
        assert typed("predict", "run", f"{name}.npz", "-o", f"{name}.csv")[0] == 0
        results[name] = read_csv(f"{name}.csv")
    assert len(results["nhwc"]) == ROWS
    for name in ("nchw", "float"):
        assert [row["class"] for row in results[name]] == [row["class"] for row in results["nhwc"]]
        found, expected = ([float(row["probability"]) for row in results[key]] for key in (name, "nhwc"))
        assert np.allclose(found, expected, atol=1e-5)


def test_predict_writes_the_names_of_string_classes(typed, here):
    x, y = blobs()
    names = np.array(["ant", "bee", "cat, tabby"])[y]
    names[20:] = ""
    write_npz(here / "named.npz", y_train=names, y_test=np.array(["ant", "bee", "cat, tabby"])[blobs(30, 1)[1]])
    assert typed("train", "named.npz", "--run", "run", "--quiet", *TINY)[0] == 0
    np.save("new.npy", x)
    assert typed("predict", "run", "new.npy", "-o", "out.csv")[0] == 0
    assert {row["class"] for row in read_csv("out.csv")} <= {"ant", "bee", "cat, tabby"}


def test_resuming_a_finished_run_says_so_and_changes_nothing(typed, here, trained):
    before = contents(here / "run")
    code, out, err = typed("resume", "run", "--no-report", "--no-baselines")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "run is complete; there is nothing to resume."
    assert out.splitlines()[1].startswith(f"test error {trained.test_error:.2f} %")
    assert contents(here / "run") == before


def test_resuming_quietly_prints_the_result_line_alone(typed, here, trained):
    (here / "run" / "checkpoint.safetensors").unlink()
    (here / "run" / "history.jsonl").write_text("")
    code, out, err = typed("resume", "run", "--quiet")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"test error \d+\.\d\d % after 2 epochs in \d+ s; run in run\n", out)
    assert load_run("run").test_error == trained.test_error


def test_resuming_a_finished_run_quietly_prints_the_result_line_alone(typed, trained):
    assert len(typed("resume", "run", "--quiet")[1].splitlines()) == 1


def test_version_is_printed(typed):
    from selfens import __version__

    assert typed("--version") == (0, f"{__version__}\n", "")


COMMANDS = [[], *([command.name or command.callback.__name__] for command in app.registered_commands)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help(typed, command, option):
    code, out, err = typed(*command, option)
    assert (code, err) == (0, "")
    assert "Usage" in out
    assert "bool" not in out  # a flag takes no value


# Bad input: one clear sentence


def test_a_sentence_is_one_line_without_control_characters(typed, here):
    (here / "table.csv").write_text("fil\x1b[31m\u202e,label\n")
    code, _, err = typed("train", "table.csv")
    assert code == 1
    assert (
        "add --label and one of fil\\x1b[31m\\u202e, label. (A list of images has the columns file and label.)\n" in err
    )
    code, _, err = typed("train", "a\nb\x7f.npz")
    assert code == 1
    assert err.startswith("error: there is no file a\\nb\\x7f.npz;")
    assert err.count("\n") == 1


def refused(answer, *fragments):
    code, out, err = answer
    assert code != 0, out
    assert "Traceback" not in err + out
    assert len(err.splitlines()) == 1, err
    for fragment in fragments:
        assert fragment in err
    assert err.startswith("error: ")
    assert not os.path.exists("runs")
    assert not os.path.exists("run")


BAD_WORDS = {
    "unknown preset": (
        ["digts"],
        ["'digts' is neither a preset nor an .npz file, a folder or a table", "did you mean 'digits'?"],
    ),
    "unknown preset of a known set": (["cifar10-temporel"], ["did you mean 'cifar10-temporal'?"]),
    "unknown method": (["digits", "--method", "temporl"], ["no method 'temporl'", "did you mean 'temporal'?"]),
    "unknown section": (["digits", "--set", "optimiser.beta2=0.9"], ["no section 'optimiser'", "'optimizer'?"]),
    "unknown field": (
        ["digits", "--set", "optimizer.beta3=0.9"],
        ["no optimizer field 'beta3'", "did you mean 'beta"],
    ),
    "unknown choice": (["digits", "--set", "data.preprocess=zac"], ["data.preprocess", "did you mean 'zca'?"]),
    "unknown network": (["digits", "--set", "network.name=smal"], ["no network 'smal'", "did you mean 'small'?"]),
    "unknown data set": (["digits", "--set", "data.name=digist"], ["no data set 'digist'", "did you mean 'digits'?"]),
    "network that cannot be imported": (
        ["digits", "--set", "network.name=no_such:thing"],
        ["no_such", "package.module"],
    ),
    "not an override": (["digits", "--set", "epochs"], ["'epochs' is not an override; write section.field=value"]),
    "not a number": (["digits", "--set", "optimizer.beta2=high"], ["optimizer.beta2 is 'high'; expected a number"]),
    "not a whole number": (["digits", "--set", "schedule.epochs=1.5"], ["schedule.epochs", "whole number"]),
    "not a truth": (["digits", "--set", "augment.flip=maybe"], ["augment.flip is 'maybe'; expected true or false"]),
    "out of range": (
        ["digits", "--set", "optimizer.beta2=1"],
        ["optimizer.beta2 is 1.0; expected at least 0 and below 1"],
    ),
    "not finite": (["digits", "--set", "optimizer.beta2=nan"], ["optimizer.beta2 is nan; expected a finite number"]),
    "no epochs": (["digits", "--epochs", "0"], ["schedule.epochs is 0; expected at least 1 and at most 1000000000"]),
    "negative seed": (["digits", "--seed", "-1"], ["seed.base is -1"]),
    "labels not a number": (["digits", "--labels", "x"], ["data.labels is 'x'; expected a whole number"]),
    "no labels": (["digits", "--labels", "0"], ["data.labels is 0; expected at least 1"]),
    "fewer labels than classes": (["digits", "--labels", "5"], ["5 labels were asked for and there are 10 classes"]),
    "more labels than there are": (["digits", "--labels", "5000"], ["5000 labels were asked for", "ask for at most"]),
    "no such npz": (["nothing.npz"], ["there is no file nothing.npz"]),
    "images too small": (["digits", "--set", "network.name=conv13"], ["conv13", "12"]),
    "translation too far": (["digits", "--set", "augment.translation=9"], ["translation"]),
    "tf32 on a cpu": (["digits", "--set", "training.precision=tf32", "--device", "cpu"], ["tf32", "use fp32"]),
    "no official files": (
        ["cifar10", "--data-dir", "empty"],
        ["there is no cifar-10-batches-py in", "/empty, and downloading is switched off"],
    ),
    "labels file not given": (["digits", "--set", "data.label_choice=file"], ["data.labels_file is None"]),
    "labels file gone": (
        ["digits", "--set", "data.label_choice=file", "--set", "data.labels_file=gone.json"],
        ["gone.json cannot be read"],
    ),
    "labels file not chosen": (["digits", "--set", "data.labels_file=a.json"], ["label_choice=file"]),
    "labels twice": (
        ["digits", "--labels", "50", "--labels-file", "a.csv"],
        ["--labels and --labels-file", "leave one of them out"],
    ),
    "the method as a field": (["digits", "--set", "method.name=pi"], ["method.name was set; use --method"]),
    "a size for a preset": (["digits", "--size", "16"], ["size was given, but digits is not a folder of images"]),
    "a size for arrays": (["a.npz", "--size", "16"], ["size was given, but a.npz is not a folder of images"]),
    "unknown device": (["digits", "--device", "gpu"], ["gpu", "cuda"]),
    "seed not a number": (["digits", "--seed", "x"], ["x"]),
    "unknown option": (["digits", "--epoch", "3"], ["--epoch"]),
}


@pytest.mark.parametrize("case", BAD_WORDS)
def test_bad_words_get_one_sentence_and_leave_nothing(typed, case):
    words, fragments = BAD_WORDS[case]
    refused(typed("train", *words), *fragments)


def test_a_device_that_is_not_there(typed, npz):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    refused(typed("train", npz, "--device", "cuda"), "device 'cuda' was asked for, but torch sees no GPU here")
    refused(typed("train", "digits", "--device", "cuda"), "choose cpu or auto")


def nan_features():
    x, _ = blobs()
    x[7, 2] = np.nan
    return x


BAD_FILES = {
    "NaN in features": ({"x_train": nan_features()}, [], ["NaN or infinite", "1 row (the first is row 7)"]),
    "NaN in test features": ({"x_test": nan_features()[:30]}, [], ["the test inputs hold NaN"]),
    "infinite features": ({"x_train": nan_features() * np.inf}, [], ["NaN or infinite"]),
    "no labeled rows": (
        {"y_train": np.full(ROWS, -1), "x_test": None, "y_test": None},
        [],
        ["no training row", "has a label"],
    ),
    "no labeled rows, some asked for": (
        {"y_train": np.full(ROWS, -1), "x_test": None, "y_test": None},
        ["--labels", "6"],
        ["no training row", "has a label"],
    ),
    "no labeled rows but a test set": ({"y_train": np.full(ROWS, -1)}, [], ["label"]),
    "a class without labels": ({"classes": np.array(["a", "b", "c", "d"])}, [], ["class 'd' has no labeled row"]),
    "one class": ({"y_train": np.zeros(ROWS, int), "x_test": None, "y_test": None}, [], ["one class only"]),
    "more labels than a class has": ({}, ["--labels", "50"], ["50 labels were asked for", "which has only"]),
    "labels of the wrong length": ({"y_train": np.zeros(ROWS + 1, int)}, [], [f"are {ROWS + 1} for {ROWS} rows"]),
    "labels of the wrong type": ({"y_train": np.linspace(0.1, 0.9, ROWS)}, [], ["expected integers or strings"]),
    "labels of the wrong shape": ({"y_train": np.zeros((ROWS, 2), int)}, [], ["expected one label per row"]),
    "labels below -1": ({"y_train": np.full(ROWS, -2)}, [], ["hold -2"]),
    "labels of Python objects": ({"y_train": np.array([None, "a"] * 30)}, [], ["Python objects"]),
    "inputs of the wrong shape": ({"x_train": np.zeros(ROWS)}, [], ["expected [rows, features]"]),
    "images without a channel count": ({"x_train": np.zeros((ROWS, 7, 8, 9))}, [], ["shape", "channels"]),
    "test inputs of another shape": ({"x_test": np.zeros((30, 5))}, [], ["they must agree"]),
    "test labels without inputs": ({"x_test": None}, [], ["needs both"]),
    "a test label no training row has": (
        {"y_test": np.full(30, 8)},
        [],
        ["30 test rows have the label '8', which no training row has; give each"],
    ),
    "text for inputs": ({"x_train": np.full((ROWS, 2), "a")}, [], ["expected numbers"]),
    "no rows": ({"x_train": np.zeros((0, 6)), "y_train": np.zeros(0, int)}, [], ["empty"]),
    "other names": ({"x_train": None}, [], ["expected x_train and y_train"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_arrays_get_one_sentence_and_leave_nothing(typed, here, case):
    arrays, words, fragments = BAD_FILES[case]
    write_npz(here / "bad.npz", **arrays)
    refused(typed("train", "bad.npz", *words, "--run", "run"), *fragments)
    refused(typed("train", "bad.npz", *words), *fragments)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 no longer", b"\x93NUMPY\x01\x00"])
def test_a_foreign_file_gets_one_sentence(typed, here, content):
    (here / "foreign.npz").write_bytes(content)
    refused(typed("train", "foreign.npz"), "foreign.npz")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_truncated_npz_gets_one_sentence(typed, npz, share):
    npz.write_bytes(npz.read_bytes()[: int(share * npz.stat().st_size)])
    refused(typed("train", npz), "blobs.npz is not a readable .npz file")


def test_a_damaged_npz_gets_one_sentence(typed, npz):
    whole = npz.read_bytes()
    npz.write_bytes(whole[:300] + bytes(len(whole) // 4) + whole[300 + len(whole) // 4 :])
    refused(typed("train", npz), "blobs.npz is not a readable .npz file")


def test_a_folder_written_as_a_path_is_the_folder(typed, here):
    (here / "digits").mkdir()
    refused(typed("train", "./digits"), "digits holds no images")


def test_a_folder_named_like_an_npz_gets_one_sentence(typed, here):
    (here / "folder.npz").mkdir()
    refused(typed("train", "folder.npz"), "there is no file folder.npz")


def test_some_other_file_gets_one_sentence(typed, here):
    (here / "data.csv").write_text("1,2,3")
    refused(typed("train", "data.csv"), "add --label and one of 1, 2, 3.", "images has the columns file and label")


def test_a_run_that_exists_is_refused_and_left_as_it_is(typed, here, npz, trained):
    before = contents(here / "run")
    for words in ([], ["--seed", "3"]):
        code, _, err = typed("train", npz, "--run", "run", *TINY, *words)
        assert (code, err) == (1, "error: run already holds a run; resume it, or choose another directory.\n")
    assert contents(here / "run") == before


BAD_RUN_WORDS = {
    "resume nothing": (["resume", "nothing"], "nothing/run.json cannot be read (it is not there"),
    "resume a folder": (["resume", "."], "run.json cannot be read (it is not there"),
    "evaluate nothing": (["evaluate", "nothing"], "nothing/run.json cannot be read (it is not there"),
    "predict with nothing": (
        ["predict", "nothing", "blobs.npz", "-o", "out.csv"],
        "nothing/run.json cannot be read (it is not there",
    ),
    "report on nothing": (["report", "nothing"], "nothing/run.json cannot be read (it is not there"),
    "report on a folder": (["report", "."], "run.json cannot be read (it is not there"),
    "an audit into no folder": (["audit", "nothing", "-o", "no/x.csv"], "no is not a writable folder"),
    "an audit into a page": (["audit", "nothing", "-o", "x.html"], "give the CSV's name, such as x.csv"),
    "suggestions into a page": (["suggest", "nothing", "-o", "x.html"], "give the CSV's name, such as x.csv"),
    "an unknown preset": (["presets", "digts"], "did you mean 'digits"),
    "one seed for the demo": (["demo", "--seeds", "1"], "at least 2"),
}


@pytest.mark.parametrize("case", BAD_RUN_WORDS)
def test_bad_words_for_the_other_commands_get_one_sentence(typed, npz, case):
    words, fragment = BAD_RUN_WORDS[case]
    refused(typed(*words), fragment)
    assert not os.path.exists("out.csv")


BAD_INPUTS = {
    "other width": ({"x": np.zeros((4, 9))}, "the inputs have shape (9,) per row; run was trained on (6,)"),
    "images": ({"x": np.zeros((4, 8, 8), np.uint8)}, "was trained on (6,)"),
    "NaN": ({"x": np.full((4, 6), np.nan)}, "NaN"),
    "no rows": ({"x": np.zeros((0, 6))}, "empty"),
    "names that do not tell": ({"a": np.zeros((4, 6)), "b": np.zeros((4, 6))}, "name the inputs 'x'"),
    "text": ({"x": np.full((4, 6), "a")}, "expected numbers"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_inputs_that_do_not_fit_get_one_sentence_and_no_csv(typed, trained, case):
    arrays, fragment = BAD_INPUTS[case]
    np.savez("new.npz", **arrays)
    code, _, err = typed("predict", "run", "new.npz", "-o", "out.csv")
    assert (code, len(err.splitlines())) == (1, 1)
    assert fragment in err
    assert not os.path.exists("out.csv")


@pytest.mark.parametrize(
    ("name", "content"),
    [("gone.npz", None), ("gone.npy", None), ("foreign.npz", b"x"), ("foreign.npy", b"x"), ("cut.npy", b"")],
)
def test_input_files_that_cannot_be_read_get_one_sentence(typed, here, trained, name, content):
    if content is not None:
        (here / name).write_bytes(content)
    code, _, err = typed("predict", "run", name, "-o", "out.csv")
    assert (code, len(err.splitlines())) == (1, 1)
    assert name in err


def test_an_output_that_cannot_be_written_gets_one_sentence(typed, trained):
    np.save("new.npy", blobs()[0])
    code, _, err = typed("predict", "run", "new.npy", "-o", "no/such/folder/out.csv")
    assert code == 1
    assert err.startswith("error: no/such/folder/out.csv could not be written (No such file or directory)")
    assert err.count("\n") == 1


def test_predictions_replace_a_file_whole_or_not_at_all(typed, trained, monkeypatch):
    np.save("new.npy", blobs()[0])
    Path("out.csv").write_text("row,class,probability\n")
    Path("link.csv").symlink_to("out.csv")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        code, _, err = typed("predict", "run", "new.npy", "-o", "out.csv")
    assert (code, "the disk is full" in err) == (1, True)
    assert Path("out.csv").read_text() == "row,class,probability\n"
    assert typed("predict", "run", "new.npy", "-o", "link.csv")[0] == 0
    assert Path("link.csv").is_symlink()
    assert len(read_csv("out.csv")) > 0


@pytest.mark.parametrize("content", [b"file,label\na.png,cat\n", b"\x89PNG\r\n\x1a\n\0\0", b"notes"])
def test_predictions_never_replace_anything_else(typed, trained, content):
    np.save("new.npy", blobs()[0])
    Path("mine").write_bytes(content)
    code, _, err = typed("predict", "run", "new.npy", "-o", "mine")
    assert (code, err.count("\n")) == (1, 1)
    assert "mine exists and is not a table that this command writes" in err
    assert Path("mine").read_bytes() == content
    before = Path("new.npy").read_bytes()
    code, _, err = typed("predict", "run", "new.npy", "-o", "new.npy")
    assert (code, "is the file to predict on" in err) == (1, True)
    assert Path("new.npy").read_bytes() == before


def test_labels_that_were_filled_in_are_not_replaced(typed, trained):
    assert typed("suggest", "run", "-n", "3")[0] == 0
    assert typed("suggest", "run", "-n", "4")[0] == 0  # nothing was filled in
    header, first, *rest = Path("suggestions.csv").read_text().splitlines()
    row, _, *others = first.split(",")
    filled = "\n".join([header, ",".join([row, "cat", *others]), *rest])
    Path("suggestions.csv").write_text(filled)
    code, _, err = typed("suggest", "run", "-n", "5")
    assert (code, err) == (
        1,
        "error: suggestions.csv holds labels that are not this run's (1): corrections by hand, or another run's; choose "
        "another file name, or move that file away.\n",
    )
    assert Path("suggestions.csv").read_text() == filled


def test_labels_that_were_corrected_are_not_replaced(typed, trained):
    assert typed("audit", "run")[0] == 0
    assert typed("audit", "run")[0] == 0
    header, first, second, *rest = Path("issues.csv").read_text().splitlines()
    corrected = [",".join([line.split(",")[0], "another", *line.split(",")[2:]]) for line in (first, second)]
    Path("issues.csv").write_text("\n".join([header, *corrected, *rest]))
    code, _, err = typed("audit", "run", "--folds", "2")
    assert (code, "issues.csv holds labels that are not this run's (2)" in err) == (1, True)
    assert "another" in Path("issues.csv").read_text()


def test_a_word_that_is_nothing_gets_the_nearest_preset_or_folder(typed, here):
    Path("photos").mkdir()
    assert (
        "neither a preset nor an .npz file, a folder or a table; did you mean 'photos/'?" in typed("train", "photo")[2]
    )
    assert "did you mean 'digits'?" in typed("train", "digit")[2]


def test_a_report_replaces_reports_only(typed, trained):
    assert typed("report", "run", "-o", "page.html")[0] == 0
    assert typed("report", "run", "-o", "page.html")[0] == 0
    Path("notes.txt").write_text("mine")
    before = Path("run/checkpoint.safetensors").read_bytes()
    for path in ("notes.txt", "run/checkpoint.safetensors"):
        code, _, err = typed("report", "run", "-o", path)
        assert (code, "exists and is not a file that this command writes" in err) == (1, True)
    assert (Path("notes.txt").read_text(), Path("run/checkpoint.safetensors").read_bytes()) == ("mine", before)
    Path("link.html").symlink_to("page.html")
    assert typed("report", "run", "-o", "link.html")[0] == 0
    assert Path("link.html").is_symlink()


def test_predictions_can_go_through_a_pipe(typed, trained):
    np.save("new.npy", blobs()[0])
    os.mkfifo("pipe")
    with ThreadPoolExecutor() as beside:
        read = beside.submit(Path("pipe").read_text)
        assert typed("predict", "run", "new.npy", "-o", "pipe")[0] == 0
        assert read.result(timeout=60).startswith("row,class,probability")


def test_a_run_without_test_rows_cannot_be_evaluated(typed, here):
    write_npz(here / "blobs.npz", x_test=None, y_test=None)
    code, out, err = typed("train", "blobs.npz", "--run", "run", "--quiet", *TINY)
    assert code == 0
    assert re.match(r"trained 2 epochs in \d+ s; no test rows, so no test error; run in ", out)
    assert err == ""
    code, _, err = typed("evaluate", "run")
    advice = "to evaluate by cross-validation: selfens evaluate run --folds 5"
    assert (code, err) == (1, f"error: run has no test rows to evaluate on; {advice}\n")


def test_a_loss_that_diverges_gets_one_sentence(typed, npz):
    code, _, err = typed("train", npz, "--run", "run", "--quiet", *TINY, "--set", "optimizer.learning_rate=1e38")
    assert code == 1
    assert len(err.splitlines()) == 1
    assert "the loss stopped being finite in epoch" in err


def test_bad_input_typed_for_real(npz):
    done = selfens("train", "digts", cwd=npz.parent)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "error: 'digts' is neither a preset nor an .npz file, a folder or a table; did you mean 'digits'?"
    )
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_while_data_is_loaded_is_not_a_traceback(typed, npz, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("selfens.training.loop.train", interrupted)
    code, _, err = typed("train", npz)
    assert code == 130
    assert "Traceback" not in err


def test_a_closed_pipe_is_not_a_traceback(here):
    command = f"{sys.executable} -m selfens presets digits | head -1"
    done = subprocess.run(command, shell=True, cwd=here, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


# Quick


def median_seconds(words, folder, repeats=5):
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(words, cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


@pytest.mark.alone
def test_import_selfens_takes_less_than_half_a_second(tmp_path):
    assert median_seconds([sys.executable, "-c", "import selfens"], tmp_path) < 0.5


@pytest.mark.alone
def test_help_takes_less_than_half_a_second(tmp_path):
    assert median_seconds([sys.executable, "-m", "selfens", "--help"], tmp_path) < 0.5


@pytest.mark.parametrize(
    "code",
    [
        "import selfens",
        "from selfens.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from selfens.cli import main\ntry: main(['presets'])\nexcept SystemExit: pass",
        "from selfens.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_neither_imports_torch(tmp_path, code):
    check = f"{code}\nimport sys\nsys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_demo_trains_four_methods_and_prints_a_table(typed, monkeypatch):
    monkeypatch.setattr("selfens.demo.demo_config", tiny_demo)
    monkeypatch.setattr("selfens.demo.ProcessPoolExecutor", SameProcess)
    for _ in range(2):  # the second time nothing is trained
        code, out, err = typed("demo", "--seeds", "2", "--jobs", "1", "--runs", "demo")
        assert (code, err) == (0, "")
        assert all(name in out for name in ("supervised only", "Π-model", "temporal teacher", "±", "of 2 seeds"))
        assert out.splitlines()[-1] == "all of them compared, to open in a browser: demo/report.html"
    assert len(os.listdir("demo")) == 9
    assert Path("demo/report.html").read_text().count("digits-") >= 8
    labels = {
        tuple(load_run(next(Path("demo").glob(f"digits-{method}-seed1-*"))).labels.rows)
        for method in ("supervised", "pi", "temporal", "modern")
    }
    assert len(labels) == 1


def tiny_demo(preset, seed):
    overrides = [
        f"seed.base={seed}",
        "schedule.epochs=1",
        "network.width=2",
        "training.threads=1",
    ]
    return presets.get(preset).with_overrides(overrides)


class SameProcess:
    """The pool of the demo, without processes."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def submit(self, function, *arguments):
        from concurrent.futures import Future

        future = Future()
        future.set_result(function(*arguments))
        return future


# audit and suggest


def test_audit_fix_and_train_again(typed, here):
    write_npz(here / "data.npz")
    assert typed("train", "data.npz", "--run", "run", *TINY)[0] == 0
    code, out, err = typed("audit", "run", "-o", "issues.csv")
    assert (code, err) == (0, "")
    assert "in-sample" in out
    with open("issues.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert sorted(int(line["row"]) for line in lines) == sorted(load_run("run").labels.rows.tolist())
    lines[0]["label"] = next(name for name in load_run("run").classes if name != lines[0]["label"])
    with open("fixed.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["row", "label"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    assert typed("train", "data.npz", "--labels-file", "fixed.csv", "--run", "again", *TINY)[0] == 0
    before, after = load_run("run").labels, load_run("again").labels
    changed = before.rows[before.labels != after.labels]
    assert changed.tolist() == [int(lines[0]["row"])]


def test_audit_in_folds_says_so(typed, here):
    write_npz(here / "data.npz")
    typed("train", "data.npz", "--run", "trained", *TINY)
    code, out, _ = typed("audit", "trained", "--folds", "2", "--quiet", "-o", "issues.csv")
    assert (code, "2 runs that did not see it" in out) == (0, True)
    refused(typed("audit", "trained", "--folds", "1"), "1 folds were asked for; expected 2 to 20")


def test_nothing_is_trained_for_an_audit_that_could_not_be_written(typed, trained, monkeypatch):
    monkeypatch.setattr("selfens.tools.folds.audit_folds", lambda *args, **kwargs: pytest.fail("trained"))
    code, _, err = typed("audit", "run", "--folds", "2", "-o", "no/x.csv")
    assert (code, err) == (1, "error: no/x.csv cannot be written: no is not a writable folder.\n")


@pytest.mark.parametrize("command", ["audit", "evaluate"])
@pytest.mark.parametrize("own", ["own_network", "own_method"])
def test_folds_never_train_something_else_in_place_of_a_network_or_method_of_ones_own(typed, trained, command, own):
    about = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps(about | {own: True}))
    sentence = "error: run has a network or method of your own, which can be cross-validated only in Python.\n"
    assert typed(command, "run", "--folds", "2") == (1, "", sentence)
    assert not Path("issues.csv").exists()


@pytest.mark.parametrize("command", ["audit", "suggest"])
def test_a_page_of_another_command_is_not_overwritten(typed, here, trained, command):
    (here / "report.html").write_text("a report")
    code, _, err = typed(command, "run", "-o", "report.csv")
    assert (code, "report.html, which already exists" in err) == (1, True)
    assert (here / "report.html").read_text() == "a report"
    assert not (here / "report.csv").exists()
    for _ in range(2):  # its own page may be written anew
        assert typed(command, "run", "-o", "issues.csv")[0] == 0


def test_folds_do_not_repeat_what_the_run_has_said(typed, here):
    """A folder with a broken image: the run warns of it, and so does not each fold, of itself or of missing test rows."""
    from PIL import Image

    for number in range(18):
        path = here / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 100 * (number % 2) + number).save(path)
    (here / "pictures" / "a" / "broken.png").write_bytes(b"no image")
    words = ["--size", "8", "--quiet", *TINY, "--method", "pi", "--set", "training.batch_size=5"]
    assert "could not be read" in typed("train", "./pictures", "--run", "run", *words)[2]
    code, _, err = typed("audit", "run", "--folds", "2", "--quiet")
    assert (code, err) == (0, "")


def test_suggest_with_nothing_unlabeled_is_refused(typed, here):
    write_npz(here / "data.npz", y_train=blobs()[1])
    typed("train", "data.npz", "--run", "trained", *TINY)
    refused(typed("suggest", "trained"), "every training row of trained has a label, so there is none to label next")
    assert not (here / "suggestions.csv").exists()


MOVED = {
    "evaluate": ["evaluate", "run"],
    "audit": ["audit", "run"],
    "suggest": ["suggest", "run", "-n", "3"],
    "report": ["report", "run"],
    "predict": ["predict", "run", "--training-rows", "-o", "out.csv"],
}


@pytest.mark.parametrize("command", MOVED)
def test_data_that_was_moved_is_found_by_its_new_path(typed, here, npz, trained, command):
    npz.rename(here / "moved.npz")
    _, _, err = typed(*MOVED[command])
    said = err or (here / "report.html").read_text()
    assert f"the data of run cannot be loaded: there is no file {npz}" in said
    assert "say where it is now" in said
    code, _, err = typed(*MOVED[command], "--data", "moved.npz")
    assert (code, err) == (0, "")
    if command == "report":
        assert "Confusion matrix" in (here / "report.html").read_text()
    write_npz(here / "other.npz", y_train=blobs()[1])
    code, _, err = typed(*MOVED[command], "--data", "other.npz")
    changed = "is not what run was trained on; its files or its extra rows have changed"
    assert changed in (err or (here / "report.html").read_text())


def test_a_run_whose_data_was_moved_is_resumed(typed, here, npz, trained):
    """A finished run loads nothing; cut back to its first epoch it goes on from the new path to the same end."""
    words = [*TINY, "--set", "training.checkpoint_every=1"]

    def crash(self, record):
        genuine(self, record)
        if record["epoch"] == 1:
            raise KeyboardInterrupt("cut")

    genuine = RunDirectory.append_history
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "append_history", crash)
        assert typed("train", npz, "--run", "cut", *words)[0] == 130
    npz.rename(here / "moved.npz")
    code, _, err = typed("resume", "cut")
    assert (code, "say where it is now (on the command line: --data PATH)." in err) == (1, True)
    assert typed("resume", "cut", "--data", "moved.npz")[0] == 0
    assert load_run("cut").test_error == trained.test_error


def test_suggest_names_unlabeled_rows_alone(typed, here):
    write_npz(here / "data.npz")
    typed("train", "data.npz", "--run", "trained", *TINY)
    code, out, _ = typed("suggest", "trained", "-n", "7", "-o", "next.csv")
    assert (code, out) == (0, "7 rows to label next written to next.csv; next.html shows them\n")
    with open("next.csv", newline="") as file:
        rows = [int(line["row"]) for line in csv.DictReader(file)]
    assert len(rows) == 7
    assert not set(rows) & set(load_run("trained").labels.rows.tolist())
    refused(typed("suggest", "trained", "-n", "0"), "0 rows were asked for")
