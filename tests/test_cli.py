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
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import softmax
from scipy.stats import binomtest
from support import ROWS, blobs, contents, environment, images, selfens, sets, write_npz

from selfens import __version__, load_run, presets
from selfens.cli.main import app
from selfens.config import Config
from selfens.methods import METHODS
from selfens.runs.directory import RunDirectory
from selfens.settings import field_types
from selfens.tools.audit import audit_evidence
from selfens.tools.folds import evidence_by_folds

RESULT = r"error \d+\.\d\d % \(90 % interval \S+ to \S+\), on 30 test rows; trained 2 epochs in \d+ s; run"
TINY = ["--epochs", "2", "--no-report", *sets(["network.width=4", "training.threads=1"])]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SELFENS_DATA", raising=False)
    monkeypatch.setenv("SELFENS_OFFLINE", "1")
    return tmp_path


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
    expected = ["schedule.epochs=2", "network.width=4", "training.threads=1"]
    assert run.config == presets.get("digits-temporal").with_overrides(expected)
    assert f"test error {run.test_error:.2f} % after 2 epochs" in out


def test_an_npz_file_is_trained_and_a_second_run_gets_another_name(typed, npz):
    for _ in range(3):
        code, out, err = typed("train", "blobs.npz", "--quiet", *TINY)
        assert (code, err) == (0, "")
        assert re.fullmatch(rf"{RESULT} in runs/blobs-\S+\n", out)
    assert sorted(os.listdir("runs")) == [f"blobs-committee-seed0{end}" for end in ("", "-2", "-3")]
    run = load_run("runs/blobs-committee-seed0")
    assert (run.config.network.name, run.finished, run.info.labeled) == ("committee", True, 20)


def test_every_option_ends_up_in_the_config_and_set_is_stronger(typed, npz):
    words = ["--labels", "6", "--method", "pi", "--seed", "7", "--epochs", "2", "--device", "cpu", "--run", "there/run"]
    own = sets(["network.width=4", "optimizer.beta2=0.99", "training.evaluate_every=2", "seed.base=8"])
    code, out, err = typed("train", "blobs.npz", *words, *own, "--quiet")
    assert (code, err) == (0, "")
    config = load_run("there/run").config
    assert (config.source.name, config.source.path) == ("arrays", str(npz))
    assert (config.labels.count, config.method.name, config.seed.base) == (6, "pi", 8)
    assert (config.schedule.epochs, config.training.device, config.training.evaluate_every) == (2, "cpu", 2)
    assert (config.network.width, config.optimizer.beta2) == (4, 0.99)
    out = typed("train", npz, "--quiet", "--method", "pi", "--seed", "5", *TINY)[1]
    assert out.endswith("run in runs/blobs-pi-seed5\n")


def test_paths_are_kept_absolute_however_they_were_set(typed, here, npz):
    (here / "rows.txt").write_text("\n".join(map(str, range(20))))
    words = sets(["labels.choice=file", "labels.file=rows.txt"])
    refused(typed("train", npz, "--run", "run", *words, "--set", "source.extra=digits"), "digits")
    refused(typed("train", npz, "--run", "run", "--set", "source.extra="), "source.extra is empty; give a path")
    np.save("more.npy", blobs()[0])
    typed("train", "blobs.npz", "--run", "run", *TINY, *words, "--set", "source.extra=more.npy")
    config = load_run("run").config
    found = (*config.labels.file, config.source.extra, config.source.path)
    assert found == tuple(str(here / name) for name in ("rows.txt", "more.npy", "blobs.npz"))


def test_a_preset_takes_all_labels_and_the_rates_of_another_method(typed, here):
    words = ["--labels", "all", "--method", "supervised", "--run", "run", "--quiet", *TINY]
    assert typed("train", "digits", *words)[0] == 0
    assert load_run("run").info.labeled == 1297
    assert load_run("run").config.optimizer.learning_rate == 0.01
    complains(typed("evaluate", "run", "--data", "."), "digits is not read from a folder, so it cannot have been moved")


def test_without_a_terminal_there_is_a_line_per_epoch_and_no_escape_code(npz):
    done = selfens("train", npz, "--run", "run", *TINY, cwd=npz.parent)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 15
    assert lines.pop(2).startswith("chosen: method committee; ")
    assert lines.pop(0).startswith(f"{npz}: 60 rows, 20 labeled, 30 to test on; run in run")
    assert lines[0].startswith("committee, committee (")
    assert re.fullmatch(r"epoch 1/2  loss \S+ \+ 0 x \S+  test error \S+ %  \S+ rows/s  \d+ s left", lines[1])
    assert lines[2].startswith("epoch 2/2  ")
    assert re.fullmatch(f"{RESULT} in run", lines[3])
    names = ["boosted", "chance", "error", "logistic", "random", "self-training", "this"]
    assert sorted(line.split()[0] for line in lines[4:11]) == names
    assert re.search(r"^This model misclassifies .*; logistic regression on the same .*30 rows are too few", lines[11])
    assert lines[12] == "to predict: selfens predict run INPUT -o out.csv"
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
    assert any("test error" in line for line in text.splitlines()[-14:])


def _read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end was closed
        return b""


def test_a_presets_name_wins_over_a_folder_of_that_name(typed, here):
    (here / "digits").mkdir()
    (here / "digits" / "thesis.txt").write_text("years of work")
    assert typed("train", "digits", "--quiet", *TINY)[0] == 0
    assert load_run("runs/digits-temporal-seed0").config.source.name == "digits"
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


def test_methods_lists_every_method_and_every_option_of_one(typed):
    code, out, err = typed("methods")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(METHODS)
    for method in METHODS:
        options = [f"method.{name}" for name in field_types(METHODS.find(method).Options)]
        assert re.findall(r"^  (method\.\w+) = ", typed("methods", method)[1], re.MULTILINE) == options


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
    low, high = (100 * end for end in binomtest(wrong, 30).proportion_ci(0.9, "wilson"))
    counts = f"{wrong} of 30 rows; 90 % interval {low:.1f} to {high:.1f}"
    assert first == f"test error {trained.test_error:.2f} % ({counts})"
    assert [line.split()[0] for line in classes] == ["0", "1", "2"]
    balanced = np.mean([float(line.split()[1]) for line in classes])
    assert last == f"balanced error {balanced:.2f} %, the mean of the classes"


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("names", [(), ("x", "other"), ("whatever",)])
def test_predict_writes_class_and_probability_of_every_row(typed, trained, names):
    """From an .npy file, or an .npz file with the array x or with one array."""
    x, _ = blobs(17, seed=5)
    name = "new.npz" if names else "new.npy"
    np.savez(name, **dict(zip(names, (x, x[:2]), strict=False))) if names else np.save(name, x)
    code, out, err = typed("predict", "run", name, "-o", "out.csv")
    assert (code, out, err) == (0, "predictions of 17 rows written to out.csv\n", "")
    rows = read_csv("out.csv")
    expected = trained.predict_proba(x)
    assert [int(row["row"]) for row in rows] == list(range(17))
    assert [row["class"] for row in rows] == [trained.classes[i] for i in expected.argmax(axis=1)]
    assert np.allclose([float(row["probability"]) for row in rows], expected.max(axis=1), atol=1e-6)
    assert [row["runner_up"] for row in rows] == [trained.classes[i] for i in expected.argsort(axis=1)[:, 1]]
    assert np.allclose([float(row["novelty"]) for row in rows], trained.novelty.score(x), atol=1e-6)
    assert list(rows[0]) == ["row", "class", "probability", "runner_up", "novelty"]


def test_probabilities_are_those_of_the_logits_divided_by_the_temperature(typed, trained):
    x, _ = blobs(17, seed=5)
    np.save("new.npy", x)
    assert typed("predict", "run", "new.npy", "-o", "out.csv", "--all-classes")[0] == 0
    rows, names = read_csv("out.csv"), [f"probability of {name}" for name in trained.classes]
    assert list(rows[0]) == ["row", "class", "probability", "runner_up", "novelty", *names]
    logits = np.log(trained.model.predict_inputs(x).astype(float))
    assert trained.temperature != 1
    expected = softmax(logits / trained.temperature, axis=1)
    assert np.allclose([[float(row[name]) for name in names] for row in rows], expected, atol=1e-5)


def test_rows_that_would_be_answered_wrongly_too_often_are_not_sure(typed, trained):
    x, _ = blobs(40, seed=5)
    np.save("new.npy", x)
    assert typed("predict", "run", "new.npy", "-o", "all.csv")[0] == 0
    shares = []
    for most in (2, 20, 99):
        code, _, err = typed("predict", "run", "new.npy", "-o", "out.csv", "--max-error", most)
        every, rows = read_csv("all.csv"), read_csv("out.csv")
        sure = trained.evidence.is_sure(trained.model.predict_inputs(x), most)
        assert [row["class"] for row in rows] == [
            row["class"] if answered else "not sure" for row, answered in zip(every, sure, strict=True)
        ]
        assert [row | {"class": ""} for row in rows] == [row | {"class": ""} for row in every]
        certain = [float(row["probability"]) for row, answered in zip(rows, sure, strict=True) if answered]
        estimate = f", about {100 * (1 - np.mean(certain)):.1f} % of these wrongly" if certain else ""
        said = f"{100 * sure.mean():.0f} % of the rows are answered{estimate}; --max-error allows {most} %.\n"
        assert (code, err) == (0, said)
        shares.append(sure.mean())
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_not_sure_needs_a_percentage_and_errors_that_were_measured(typed, here, npz):
    assert typed("train", npz, "--run", "plain", "--quiet", "--no-baselines", *TINY)[0] == 0
    np.save("new.npy", blobs()[0])
    words = ("predict", "plain", "new.npy", "-o", "out.csv", "--max-error")
    refused(typed(*words, "5"), "the errors of plain were not measured; run selfens evaluate plain --folds 5 first.")
    for most in ("0", "100", "-3", "nan"):
        refused(typed(*words, most), f"--max-error is {most}; expected percent of the answers, above 0 and below 100.")
    words = ("predict", "plain", "--training-rows", "-o", "out.csv")
    for option in (["--max-error", "5"], ["--all-classes"]):
        refused(typed(*words, *option), "--max-error and --all-classes are for an INPUT; leave out --training-rows.")
    assert typed("evaluate", "plain", "--folds", "5", "--quiet")[0] == 0
    assert typed("predict", "plain", "new.npy", "-o", "out.csv", "--max-error", "5")[0] == 0
    assert list(read_csv("out.csv")[0]) == ["row", "class", "probability", "runner_up", "novelty"]


def test_training_rows_have_the_class_of_the_ensemble_or_of_the_network_if_it_has_not_seen_them(typed, npz):
    assert typed("train", npz, "--run", "run", *TINY, "--set", "labels.validation=0.5")[0] == 0
    code, out, err = typed("predict", "run", "--training-rows", "-o", "out.csv")
    assert (code, out, err) == (0, "predictions of 60 rows written to out.csv\n", "")
    rows, run = read_csv("out.csv"), load_run("run")
    expected, held_out = run.ensemble.all().probabilities.numpy(), run.labels.validation
    assert len(held_out) > 0
    expected[held_out] = run.model.predict_inputs(blobs()[0][held_out])  # not calibrated
    assert list(rows[0]) == ["row", "class", "probability"]
    assert [row["class"] for row in rows] == [run.classes[best] for best in expected.argmax(axis=1)]
    assert np.allclose([float(row["probability"]) for row in rows], expected.max(axis=1), atol=1e-6)


def test_images_are_trained_on_and_predicted_in_either_layout_and_as_bytes_or_floats(typed):
    data, results = images(), {}
    pixels = np.asarray(data.raw)[data.train_rows].transpose(0, 2, 3, 1)
    np.savez("images.npz", x_train=pixels, y_train=np.where(np.arange(ROWS) < 20, data.train_labels, -1))
    assert typed("train", "images.npz", "--quiet", *TINY)[0] == 0
    run = load_run("runs/images-temporal-teacher-seed0")
    assert run.config.network.name == "small"
    floats = (pixels / 255).astype(np.float32)
    for name, array in {"nhwc": pixels, "nchw": pixels.transpose(0, 3, 1, 2), "float": floats}.items():
        np.savez(f"{name}.npz", x=array)
        assert typed("predict", run.path, f"{name}.npz", "-o", f"{name}.csv")[0] == 0
        results[name] = read_csv(f"{name}.csv")
    assert len(results["nhwc"]) == ROWS
    for name in ("nchw", "float"):
        assert [row["class"] for row in results[name]] == [row["class"] for row in results["nhwc"]]
        found, expected = ([float(row["probability"]) for row in results[key]] for key in (name, "nhwc"))
        assert np.allclose(found, expected, atol=1e-5)


def test_resuming_a_finished_run_says_so_and_changes_nothing(typed, here, trained):
    before = contents(here / "run")
    code, out, err = typed("resume", "run", "--no-report", "--no-baselines")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "run is complete; there is nothing to resume."
    assert re.fullmatch(f"{RESULT} in run", out.splitlines()[1])
    assert out.splitlines()[1].startswith(f"error {trained.test_error:.2f} %")
    assert len(typed("resume", "run", "--quiet", "--no-report")[1].splitlines()) == 1
    assert contents(here / "run") == before


def test_resuming_quietly_prints_the_result_line_alone(typed, here, trained):
    (here / "run" / "checkpoint.safetensors").unlink()
    (here / "run" / "history.jsonl").write_text("")
    code, out, err = typed("resume", "run", "--quiet")
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"{RESULT} in run\n", out)
    assert load_run("run").test_error == trained.test_error


def test_version_is_printed(typed):
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


def complains(answer, *fragments):
    """One line that says what was wrong, and exit code 1 (2 for typer's own)."""
    code, out, err = answer
    assert code in (1, 2), out
    assert (err.count("\n"), err.startswith("error: "), "Traceback" in err + out) == (1, True, False), err
    for fragment in fragments:
        assert fragment in err


def refused(answer, *fragments):
    """The same, before anything was made."""
    complains(answer, *fragments)
    assert not {"runs", "run", "out.csv"} & {*os.listdir()}


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ("digts", "'digts' is neither a preset nor an .npz file, a folder or a table; did you mean 'digits'?"),
        ("cifar10-temporel", "did you mean 'cifar10-temporal'?"),
        ("digits --method temporl", "no method 'temporl'; did you mean 'temporal'?"),
        ("digits --set optimiser.beta2=0.9", "no section 'optimiser'; did you mean 'optimizer'?"),
        ("digits --set network.name=smal", "no network 'smal'; did you mean 'small'?"),
        ("digits --set network.name=no_such:thing", "'no_such'); expected package.module:factory"),
        ("digits --set network.name=conv13", "at least 12x12"),
        ("digits --set views.translation=9", "views.translation is 9, but the images are 8x8"),
        ("digits --set source.name=digist", "no source 'digist'; did you mean 'digits'?"),
        ("digits --set source.name=table", "source.path is none; expected the path of a table"),
        ("digits --set source.name=memory", "a dataset passed in Python"),
        ("digits --set epochs", "'epochs' is not an override; write section.field=value"),
        ("digits --epochs 0", "schedule.epochs is 0; expected at least 1"),
        ("digits --epochs 3 --time-limit 5m", "a time limit and a number of epochs were both given"),
        ("digits --seed -1", "seed.base is -1"),
        ("digits --seed x", "--seed"),
        ("digits --epoch 3", "--epoch"),
        ("digits --device gpu", "'gpu' is not one of 'auto', 'cpu', 'cuda'"),
        ("digits --set training.precision=tf32 --device cpu", "use fp32"),
        ("digits --labels x", "labels.count is 'x'; expected a whole number or all"),
        ("digits --labels none", "--labels is 'none'; expected a whole number or 'all'"),
        ("digits --labels 0", "labels.count is 0; expected at least 1"),
        ("digits --labels 5", "labels.count is 5 and there are 10 classes"),
        ("digits --labels 5000", "ask for at most"),
        ("digits --labels-file gone.json", "gone.json cannot be read"),
        ("digits --labels 50 --labels-file a.csv", "--labels and --labels-file were both given; leave one"),
        ("digits --add-labels b --labels-file a", "--labels-file and --add-labels were both given"),
        ("digits --set method.name=pi", "method.name was set; use --method"),
        ("digits --set encoder.name=columns", "encoder.name was set; use --encoder"),
        ("digits --backbone timm:x", "the encoder 'backbone' was named, but digits is a preset"),
        ("digits --encoder columns", "the encoder 'columns' was named, but digits is a preset"),
        ("digits --weights w", "--weights and --no-cache are for a backbone"),
        ("digits --size 16", "source.size was given, but digits is a public data set"),
        ("digits --data-dir x", "source.folder was given, but digits is a public data set"),
        ("a.npz --size 16", "source.size was given, but a.npz is a file of arrays"),
        ("a.npz --label x", "source.label was given, but a.npz is a file of arrays"),
        ("cifar10 --data-dir empty", "/empty, and downloading is switched off"),
        ("nothing.npz", "nothing.npz; expected an array saved by numpy"),
        ("./nothing", "there is no data at ./nothing"),
        ("./digits", "digits holds no images"),  # the folder, not the data set
        ("folder.npz", "folder.npz; expected an array saved by numpy"),
        ("photo", "neither a preset nor an .npz file, a folder or a table; did you mean 'photos/'?"),
    ],
)
def test_bad_words_get_one_sentence_and_leave_nothing(typed, words, fragment):
    for name in ("digits", "folder.npz", "photos"):
        Path(name).mkdir()
    refused(typed("train", *words.split()), fragment)


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (
            "resume nothing",
            "nothing/run.json cannot be read (it does not exist); expected a run made by selfens train.",
        ),
        ("resume .", "error: run.json cannot be read (it does not exist)"),
        ("evaluate nothing", "nothing/run.json cannot be read (it does not exist)"),
        ("predict nothing blobs.npz -o out.csv", "nothing/run.json cannot be read (it does not exist)"),
        ("predict nothing -o out.csv", "predict needs either an INPUT or --training-rows"),
        ("predict nothing blobs.npz --training-rows -o out.csv", "predict needs either an INPUT or --training-rows"),
        ("report nothing", "nothing/run.json cannot be read (it does not exist)"),
        ("report a b --data x", "--data is for one run, and 2 were given"),
        ("audit nothing -o no/x.csv", "no is not a writable folder"),
        ("audit nothing -o x.html", "give the CSV's name, such as x.csv"),
        ("suggest nothing -o x.html", "give the CSV's name, such as x.csv"),
        ("presets digts", "did you mean 'digits"),
        ("methods temporl", "did you mean 'temporal'"),
        ("demo --seeds 1", "at least 2"),
    ],
)
def test_bad_words_for_the_other_commands_get_one_sentence(typed, npz, words, fragment):
    refused(typed(*words.split()), fragment)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there(typed, npz):
    refused(typed("train", npz, "--device", "cuda"), "device 'cuda' was asked for, but torch sees no GPU here")
    refused(typed("train", "digits", "--device", "cuda"), "choose cpu or auto")


def test_a_sentence_is_one_line_without_control_characters(typed, here):
    (here / "table.csv").write_text("fil\x1b[31m\u202e,kind\n")
    refused(typed("train", "table.csv"), "name one of fil\\x1b[31m\\u202e, kind (source.label; ", "--label")
    refused(typed("train", "a\nb\x7f.npz"), f"error: there is no file {here}/a\\nb\\x7f.npz;")


NO_TEST, UNKNOWN = {"x_test": None, "y_test": None}, np.full(ROWS, -1)


def nan_features():
    x, _ = blobs()
    x[7, 2] = np.nan
    return x


@pytest.mark.parametrize(
    ("arrays", "words", "fragment"),
    [
        ({"x_train": nan_features()}, "", "NaN or infinite values (or beyond 3.4e38) in 1 row (the first is row 7)"),
        ({"x_test": nan_features()[:30]}, "", "the test inputs hold NaN"),
        ({"x_test": None}, "", "needs both"),
        ({"y_train": UNKNOWN} | NO_TEST, "--labels 6", "no training row of"),
        ({"y_train": UNKNOWN}, "", "label"),
        ({"y_train": np.zeros(ROWS, int)} | NO_TEST, "", "all labels are of one class ('0')"),
        ({"y_train": np.zeros(ROWS + 1, int)}, "", f"are {ROWS + 1} for {ROWS} rows"),
        ({"y_train": np.array([None, "a"] * 30)}, "", "Python objects"),
        ({"y_test": np.full(30, 8)}, "", "30 test rows have the label '8', which no training row has; give each"),
        ({"classes": np.array(["a", "b", "c", "d"])}, "", "class 'd' has no labeled row"),
        ({}, "--labels 50", "which has only"),
        ({"x_train": np.zeros((ROWS, 7, 8, 9))}, "", "neither the second nor the last number is a channel count"),
        ({"x_train": np.zeros((0, 6)), "y_train": np.zeros(0, int)}, "", "empty"),
        ({"x_train": None}, "", "expected x_train and y_train"),
    ],
)
def test_bad_arrays_get_one_sentence_and_leave_nothing(typed, here, arrays, words, fragment):
    """`test_dataset` and `test_labels` have more such cases."""
    write_npz(here / "bad.npz", **arrays)
    refused(typed("train", "bad.npz", *words.split()), fragment)


FOREIGN = {
    "empty": lambda whole: b"",
    "text": lambda whole: b"not an archive",
    "the beginning of an archive": lambda whole: b"PK\x03\x04 no longer",
    "the beginning of an array": lambda whole: b"\x93NUMPY\x01\x00",
    "a half": lambda whole: whole[: len(whole) // 2],
    "nearly all": lambda whole: whole[: 19 * len(whole) // 20],
    "zeros inside": lambda whole: whole[:300] + bytes(len(whole) // 4) + whole[300 + len(whole) // 4 :],
}


@pytest.mark.parametrize("damage", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_or_damaged_npz_gets_one_sentence(typed, npz, damage):
    npz.write_bytes(damage(npz.read_bytes()))
    refused(typed("train", npz), "blobs.npz is not a readable .npz file")


def test_a_run_that_exists_is_refused_and_left_as_it_is(typed, here, npz, trained):
    before = contents(here / "run")
    for words in ([], ["--seed", "3"]):
        answer = typed("train", npz, "--run", "run", *TINY, *words)
        complains(answer, "error: run already holds a run; resume it, or choose another directory.\n")
    assert contents(here / "run") == before


# What commands read and write


@pytest.mark.parametrize(
    ("name", "content", "fragment"),
    [
        ("new.npz", {"x": np.zeros((4, 9))}, "the inputs of new.npz have shape (9,) per row; run was trained on (6,)"),
        ("new.npz", {"x": np.zeros((4, 8, 8), np.uint8)}, "was trained on (6,)"),
        ("new.npz", {"x": np.full((4, 6), np.nan)}, "NaN"),
        ("new.npz", {"x": np.zeros((0, 6))}, "empty"),
        ("new.npz", {"x": np.full((4, 6), "a")}, "expected numbers"),
        ("new.npz", {"a": np.zeros((4, 6)), "b": np.zeros((4, 6))}, "name the inputs 'x'"),
        ("foreign.npz", b"x", "foreign.npz"),
        ("foreign.npy", b"x", "foreign.npy"),
        ("cut.npy", b"", "cut.npy"),
        ("gone.npz", None, "gone.npz"),
    ],
)
def test_inputs_that_do_not_fit_or_cannot_be_read_get_one_sentence_and_no_csv(typed, trained, name, content, fragment):
    if isinstance(content, dict):
        np.savez(name, **content)
    elif content is not None:
        Path(name).write_bytes(content)
    complains(typed("predict", "run", name, "-o", "out.csv"), fragment)
    assert not os.path.exists("out.csv")


def test_predictions_replace_a_file_whole_or_not_at_all(typed, trained, monkeypatch):
    np.save("new.npy", blobs()[0])
    Path("out.csv").write_text("row,class,probability\n")
    Path("link.csv").symlink_to("out.csv")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        complains(typed("predict", "run", "new.npy", "-o", "out.csv"), "the disk is full")
    assert Path("out.csv").read_text() == "row,class,probability\n"
    assert typed("predict", "run", "new.npy", "-o", "link.csv")[0] == 0
    assert Path("link.csv").is_symlink()
    assert len(read_csv("out.csv")) > 0
    nowhere = typed("predict", "run", "new.npy", "-o", "no/such/folder/out.csv")
    complains(nowhere, "error: no/such/folder/out.csv could not be written (No such file or directory)")


@pytest.mark.parametrize("content", [b"file,label\na.png,cat\n", b"\x89PNG\r\n\x1a\n\0\0", b"notes"])
def test_predictions_never_replace_anything_else(typed, trained, content):
    np.save("new.npy", blobs()[0])
    Path("mine").write_bytes(content)
    before = contents(Path())
    answer = typed("predict", "run", "new.npy", "-o", "mine")
    complains(answer, "mine exists and is not a table that this command writes")
    complains(typed("predict", "run", "new.npy", "-o", "new.npy"), "new.npy is the file to predict on")
    assert contents(Path()) == before


def test_labels_that_were_filled_in_or_corrected_are_not_replaced(typed, trained):
    for words, path in ((["suggest", "run", "-n", "3"], "suggestions.csv"), (["audit", "run"], "issues.csv")):
        for _ in range(2):  # nothing was changed
            assert typed(*words)[0] == 0
        header, first, second, *rest = Path(path).read_text().splitlines()
        changed = [",".join([line.split(",")[0], "another", *line.split(",")[2:]]) for line in (first, second)]
        Path(path).write_text("\n".join([header, *changed, *rest]))
        before = Path(path).read_bytes()
        advice = "has 2 labels that this run did not write; choose another file name.\n"
        complains(typed(*words), f"error: {path} {advice}")
        assert Path(path).read_bytes() == before


def test_a_report_replaces_reports_only(typed, trained):
    assert typed("report", "run", "-o", "page.html")[0] == 0
    assert typed("report", "run", "-o", "page.html")[0] == 0
    Path("notes.txt").write_text("mine")
    before = Path("run/checkpoint.safetensors").read_bytes()
    for path in ("notes.txt", "run/checkpoint.safetensors"):
        complains(typed("report", "run", "-o", path), "exists and is not a file that this command writes")
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


def test_a_run_without_test_rows_is_evaluated_by_folds(typed, here):
    write_npz(here / "blobs.npz", x_test=None, y_test=None)
    code, out, err = typed("train", "blobs.npz", "--run", "run", "--quiet", "--no-baselines", *TINY)
    assert (code, err) == (0, "")
    assert re.fullmatch(r"trained 2 epochs in \d+ s; its error was not measured; run in run\n", out)
    advice = "to measure its error by cross-validation: selfens evaluate run --folds 5"
    complains(typed("evaluate", "run"), f"error: run has no test rows to evaluate on; {advice}\n")
    assert load_run("run").evidence is None
    evaluated = typed("evaluate", "run", "--folds", "5", "--quiet")
    assert evaluated[0] == 0
    assert typed("evaluate", "run") == evaluated  # the evidence was kept
    kept = load_run("run").evidence
    assert (kept.folds, kept.rows.tolist()) == (5, list(range(20)))
    assert typed("evaluate", "run", "--folds", "2", "--quiet") != evaluated
    assert load_run("run").evidence.folds == 2
    code, out, err = typed("train", "blobs.npz", "--run", "measured", "--quiet", *TINY)
    assert (code, err) == (0, "")
    low, high = kept.error_interval  # a run of the same seed is measured by the same folds
    result = f"error {kept.error:.2f} % (90 % interval {low:.1f} to {high:.1f})"
    assert out.startswith(f"{result}, by 5-fold cross-validation on 20 labeled rows; trained ")
    assert typed("evaluate", "measured") == evaluated


def test_a_loss_that_diverges_gets_one_sentence(typed, npz):
    answer = typed("train", npz, "--run", "run", "--quiet", *TINY, "--set", "optimizer.learning_rate=1e38")
    complains(answer, "the loss stopped being finite in epoch")


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
@pytest.mark.parametrize("words", [["-c", "import selfens"], ["-m", "selfens", "--help"]], ids=" ".join)
def test_an_import_and_help_take_less_than_half_a_second(tmp_path, words):
    assert median_seconds([sys.executable, *words], tmp_path) < 0.5


@pytest.mark.parametrize(
    "code",
    [
        "import selfens",
        "from selfens.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from selfens.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_neither_imports_torch(tmp_path, code):
    check = f"{code}\nimport sys\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=tmp_path, env=environment()).returncode == 0


def test_the_demo_trains_four_methods_and_prints_a_table(typed, monkeypatch):
    monkeypatch.setattr("selfens.demo.demo_config", tiny_demo)
    monkeypatch.setattr("selfens.demo.ProcessPoolExecutor", SameProcess)
    for _ in range(2):  # the second time nothing is trained
        code, out, err = typed("demo", "--seeds", "2", "--jobs", "1", "--runs", "demo")
        assert (code, err) == (0, "")
        assert all(name in out for name in ("supervised only", "Π-model", "temporal teacher", "±", "of 2 seeds"))
        assert out.splitlines()[-1] == "comparison of the runs, to open in a browser: demo/report.html"
    assert len(os.listdir("demo")) == 9
    assert Path("demo/report.html").read_text().count("digits-") >= 8
    labels = {
        tuple(load_run(next(Path("demo").glob(f"digits-{method}-seed1-*"))).labels.rows)
        for method in ("supervised", "pi", "temporal", "modern")
    }
    assert len(labels) == 1


def tiny_demo(preset, seed):
    overrides = [f"seed.base={seed}", "schedule.epochs=1", "network.width=2", "training.threads=1"]
    return presets.get(preset).with_overrides(overrides)


class SameProcess:
    """The pool of the demo, without processes."""

    def __init__(self, *args, **kwargs): ...
    def __exit__(self, *exception): ...

    def __enter__(self):
        return self

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


# audit and suggest


def test_audit_fix_and_train_again(typed, npz, trained):
    code, out, err = typed("audit", "run", "--in-sample", "-o", "issues.csv")
    assert (code, err) == (0, "")
    assert "(in-sample: the network was trained on these labels, which hides mistakes)" in out
    lines = read_csv("issues.csv")
    assert sorted(int(line["row"]) for line in lines) == sorted(trained.labels.rows.tolist())
    lines[0]["label"] = next(name for name in trained.classes if name != lines[0]["label"])
    Path("fixed.csv").write_text("row,label\n" + "".join(f"{line['row']},{line['label']}\n" for line in lines))
    assert typed("train", npz, "--labels-file", "fixed.csv", "--run", "again", *TINY)[0] == 0
    before, after = trained.labels, load_run("again").labels
    assert before.rows[before.labels != after.labels].tolist() == [int(lines[0]["row"])]


def test_labels_are_judged_by_models_that_have_not_seen_them_unless_asked_otherwise(typed, here, trained):
    """The folds are those asked for, else those of the run's evidence, else new ones."""
    for words, folds in (([], 5), (["--folds", "2"], 2)):
        code, out, _ = typed("audit", "run", *words, "--quiet", "-o", "issues.csv")
        assert (code, f"(each judged by one of {folds} models that were not trained on it)" in out) == (0, True)
        evidence = evidence_by_folds(trained.config, trained.data().dataset, folds)
        expected, found = audit_evidence(evidence), read_csv("issues.csv")
        assert [int(line["row"]) for line in found] == expected.rows.tolist()
        assert np.allclose([float(line["score"]) for line in found], expected.scores, atol=1e-6)
    complains(typed("audit", "run", "--folds", "1"), "1 folds were asked for; expected 2 to 20")
    complains(
        typed("audit", "run", "--folds", "2", "--in-sample"), "--in-sample and --folds were both given; leave one"
    )
    assert trained.evidence.folds == 0
    assert typed("evaluate", "run", "--folds", "3", "--quiet")[0] == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("selfens.tools.folds.evidence_by_folds", lambda *args, **kwargs: pytest.fail("trained"))
        out = typed("audit", "run")[1]
    assert "(each judged by one of 3 models that were not trained on it)" in out


@pytest.mark.parametrize("words", [[], ["--folds", "2"]])
def test_nothing_is_trained_for_an_audit_that_could_not_be_written(typed, here, trained, monkeypatch, words):
    monkeypatch.setattr("selfens.tools.folds.evidence_by_folds", lambda *args, **kwargs: pytest.fail("trained"))
    answer = typed("audit", "run", *words, "-o", "no/x.csv")
    complains(answer, "error: no/x.csv cannot be written: no is not a writable folder.\n")
    (here / "mine.csv").write_text("notes")
    complains(
        typed("audit", "run", *words, "-o", "mine.csv"), "mine.csv exists and is not a table that this command writes"
    )


@pytest.mark.parametrize("command", ["audit", "evaluate"])
@pytest.mark.parametrize("own", ["custom_network", "custom_method"])
def test_folds_never_train_something_else_in_place_of_a_network_or_method_of_ones_own(typed, trained, command, own):
    about = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps(about | {own: True}))
    sentence = "run has a network or method of your own; cross-validate it in Python."
    complains(typed(command, "run", "--folds", "2"), sentence)
    assert not Path("issues.csv").exists()


@pytest.mark.parametrize("command", ["audit", "suggest"])
def test_a_page_of_another_command_is_not_overwritten(typed, here, trained, command):
    (here / "report.html").write_text("a report")
    complains(typed(command, "run", "-o", "report.csv"), "report.html, which already exists")
    assert (here / "report.html").read_text() == "a report"
    assert not (here / "report.csv").exists()
    for _ in range(2):  # it may replace its own page
        assert typed(command, "run", "-o", "issues.csv")[0] == 0


def test_folds_do_not_repeat_what_the_run_has_said(typed, here):
    """A folder with a broken image and other oddities: the run warns of them once, not in every fold."""
    for number in range(18):
        path = here / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 100 * (number % 2) + number).save(path)
    (here / "pictures" / "a" / "broken.png").write_bytes(b"no image")
    (here / "pictures" / "a" / "phone.heic").write_bytes(b"not read")
    (here / "pictures" / "a" / "copy.png").write_bytes((here / "pictures" / "a" / "0.png").read_bytes())
    words = ["--size", "8", "--quiet", *TINY, "--method", "pi", "--set", "training.batch_size=5"]
    said = typed("train", "./pictures", "--run", "run", *words)[2]
    assert load_run("run").evidence.folds == 5
    for warning in ("could not be read", ".heic", "every image has a class", "of one color", "1 copy of other rows"):
        assert said.count(warning) == 1
    code, _, err = typed("audit", "run", "--folds", "2", "--quiet")
    assert (code, err) == (0, "")
    assert not load_run("run").info.test_rows


def test_suggest_names_unlabeled_rows_alone(typed, here, trained):
    code, out, _ = typed("suggest", "run", "-n", "7", "-o", "next.csv")
    assert (code, out) == (0, "7 rows to label next written to next.csv; next.html shows them\n")
    rows = [int(line["row"]) for line in read_csv("next.csv")]
    assert len(rows) == 7
    assert not set(rows) & set(trained.labels.rows.tolist())
    complains(typed("suggest", "run", "-n", "0"), "0 rows were asked for")
    write_npz(here / "all.npz", y_train=blobs()[1])
    typed("train", "all.npz", "--run", "all", *TINY)
    complains(typed("suggest", "all"), "every training row of all has a label, so there is none to label next")
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
    assert "say where they are now (--data PATH)" in said
    code, _, err = typed(*MOVED[command], "--data", "moved.npz")
    assert (code, err) == (0, "")
    journals = [path.name for path in here.glob(".*.jsonl")]
    assert journals == ([".moved.npz.selfens.jsonl"] if command == "suggest" else [])
    if command == "report":
        assert "Confusion matrix" in (here / "report.html").read_text()
    write_npz(here / "other.npz", y_train=blobs()[1])
    code, _, err = typed(*MOVED[command], "--data", "other.npz")
    changed = "are not what run was trained on: rows, labels or extra rows have changed"
    assert changed in (err or (here / "report.html").read_text())


def test_a_run_whose_data_was_moved_is_resumed(typed, here, npz, trained):
    """A finished run loads no data. Cut back to its first epoch, it continues from the new path to the same result."""
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
    complains(typed("resume", "cut"), "say where they are now (--data PATH).")
    assert typed("resume", "cut", "--data", "moved.npz")[0] == 0
    assert load_run("cut").test_error == trained.test_error
