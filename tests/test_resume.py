"""Interrupted, killed, damaged: a resumed run is the run that was never interrupted, to the bit, and nothing is lost."""

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import support
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support import (
    STEPS,
    At,
    blobs,
    child,
    contents,
    crash,
    crashed,
    differences,
    features,
    finish,
    left_behind,
    run_cli,
    run_cli_with_small_disk,
    run_cli_without_privileges,
    train_arguments,
    write_npz,
)

from selfens import load_run, resume, train
from selfens.errors import RunError, SelfensError
from selfens.methods import METHODS
from selfens.runs.directory import FORMAT, RunDirectory
from selfens.runs.info import RunInfo
from selfens.training import loop
from selfens.training.progress import Progress

FIRST_EDITION = Path(__file__).parent / "data" / "first-edition" / "temporal"
"""A run of digits trained for two epochs by selfens 0.1.0."""


def config(method="temporal", *overrides, **more):
    """Return the config with a checkpoint after each epoch, however short."""
    return support.config(method, "training.checkpoint_every=1", *overrides, **more)


@pytest.fixture(scope="module")
def same_bits(tmp_path_factory):
    """Resume a run, and check that it ends like a run that was never interrupted."""
    known = {}

    def check(run):
        settings = load_run(run).config
        given = {"dataset": features()} if settings.source.name == "memory" else {}
        ended, key = resume(run, **given), settings.to_json()
        if key not in known:
            known[key] = left_behind(train(settings, tmp_path_factory.mktemp("whole") / "run", **given).path)
        assert differences(left_behind(run), known[key]) == []
        return ended

    return check


def crash_at(epoch, step, settings, run):
    with crashed():
        train(settings, run, dataset=features(), progress=At(epoch, step, crash))
    return run


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    return train(config(), tmp_path_factory.mktemp("finished") / "run", dataset=features()).path


@pytest.fixture
def finished(tmp_path, finished_once):
    return shutil.copytree(finished_once, tmp_path / "run")


@pytest.fixture(scope="module")
def half_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("half")
    npz = write_npz(folder / "data.npz")
    with crashed():
        train(config(name=str(npz), epochs=4), folder / "run", progress=At(2, 2, crash))
    return folder


@pytest.fixture
def half(tmp_path, half_once):
    """A run of an .npz file that crashed in its third epoch of four; the words to type are the same for any run."""
    return shutil.copytree(half_once / "run", tmp_path / "run")


def stop():
    signal.raise_signal(signal.SIGINT)


# Killed


def wait_for_epochs(run, epochs, process):
    """Wait until the history has this many lines, or the process has ended."""
    while process.is_alive() and (not run.exists() or len(RunDirectory(run).history()) < epochs):
        time.sleep(0.001)


OPTIONS = {
    "temporal": ("training.labeled_per_batch=2", "training.batch_size=12"),
    "mean-teacher": ("schedule.name=cosine", "schedule.warmup_epochs=0.5", "optimizer.name=adamw"),
    "fixmatch": (
        "training.labeled_per_batch=4",
        "training.batch_size=14",
        "schedule.name=cosine",
        "optimizer.name=sgd",
        "method.alignment=labels",
    ),
    "committee": ("training.labeled_per_batch=3", "training.batch_size=13"),
    "vat": ("training.labeled_per_batch=2", "training.batch_size=12"),
    "temporal-teacher": ("training.labeled_per_batch=4", "training.batch_size=14", "method.memory=0.6"),
}
"""With what a method is trained here besides the defaults, so that every part is resumed."""


def of(method, **more):
    return config(method, *OPTIONS.get(method, ()), **more)


@pytest.mark.parametrize("method", METHODS)
def test_killed_at_random_moments_and_resumed_until_done_the_bits_are_the_same(tmp_path, same_bits, method):
    settings = of(method, name=str(write_npz(tmp_path / "data.npz")), epochs=8)
    chance, kills, run, reached = random.Random(method), 0, tmp_path / "run", 0
    while True:
        process = child(tmp_path / "out", train_or_resume, settings, run)
        wait_for_epochs(run, reached + chance.randint(1, 3), process)
        time.sleep(chance.uniform(0, 0.02))
        process.kill()
        code = finish(process)
        if code == 0:  # it came to its end before the kill
            break
        assert code == -signal.SIGKILL, (tmp_path / "out").read_text()
        kills += 1
        reached = len(RunDirectory(run).history()) if run.exists() else 0
    assert kills >= 2
    same_bits(run)


class Slow(Progress):
    """Makes an epoch last long enough that a kill hits in the middle, however fast the machine."""

    def step(self, epoch, step):
        time.sleep(0.005)


def train_or_resume(settings, run):
    resume(run, progress=Slow()) if run.exists() else train(settings, run, progress=Slow())


def dying_at(operation, number, before, arguments):
    """Run the trainer in a process that is killed before or after the given file operation."""
    owner, name = {"history": (RunDirectory, "append_history")}.get(operation, (os, operation))
    genuine, seen = getattr(owner, name), []

    def watched(*args, **kwargs):
        seen.append(name)
        if len(seen) == number and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = genuine(*args, **kwargs)
        if len(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, watched)
    train(*arguments)


@pytest.mark.parametrize("every", ["1", "none"])
def test_killed_before_and_after_every_file_operation_the_bits_are_the_same(tmp_path, same_bits, every):
    npz, killed = write_npz(tmp_path / "data.npz"), 0
    settings = config("temporal", f"training.checkpoint_every={every}", name=str(npz), epochs=2)
    for operation, before in [("replace", True), ("replace", False), ("rename", True), ("history", False)]:
        for number in range(1, 20):
            run = tmp_path / f"{operation}-{before}-{number}"
            code = finish(child(tmp_path / "out", dying_at, operation, number, before, (settings, run)))
            if code == 0:
                break  # there are no more of these operations
            assert code == -signal.SIGKILL, (tmp_path / "out").read_text()
            assert operation != "history" or not load_run(run).finished  # even after the last line of the history
            same_bits(run if run.exists() else train(settings, run).path)
            assert list(run.rglob("*.tmp")) == []
            killed += 1
    assert killed >= 12


@pytest.mark.parametrize(("seconds", "reached"), [(0.0, 2), (1e6, 0)])
def test_without_a_number_of_epochs_checkpoints_are_some_seconds_apart(
    tmp_path, monkeypatch, same_bits, seconds, reached
):
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    left = load_run(crash_at(2, 1, config("temporal", "training.checkpoint_every=none"), tmp_path / "run"))
    assert (left.directory.position(), len(left.history)) == ((reached, 0), 2)
    assert left.test_error == (left.history[1]["test_error"] if reached else None)
    same_bits(left.path)


def test_how_often_a_run_is_evaluated_changes_only_which_errors_are_known(tmp_path, same_bits):
    settings = config("temporal", "training.evaluate_every=3", "labels.validation=0.25", epochs=5)
    run = same_bits(crash_at(3, 2, settings, tmp_path / "cut"))
    always = train(settings.with_values("training", evaluate_every=1), tmp_path / "always", dataset=features()).history
    for record, other in zip(run.history, always, strict=True):
        is_due = record["epoch"] in (2, 4)
        for name in ("test_error", "validation_error"):
            assert record[name] == (other[name] if is_due else None)
        assert record["total"] == other["total"]
    assert run.test_error == always[-1]["test_error"]


def test_how_often_checkpoints_are_written_does_not_change_the_result(tmp_path):
    for every in ("1", "2", "none"):
        train(config("temporal", f"training.checkpoint_every={every}"), tmp_path / every, dataset=features())
    one, *others = (left_behind(tmp_path / every) for every in ("1", "2", "none"))
    assert [differences(one, other) for other in others] == [[], []]


# Stopped on request


@pytest.mark.parametrize("method", METHODS)
def test_stopped_at_every_step_of_an_epoch_in_turn_the_bits_are_the_same(tmp_path, same_bits, method):
    run = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt, match=rf"stopped in epoch 2; {run} can be resumed\."):
        train(of(method), run, dataset=features(), progress=At(1, 0, stop))
    step = 1
    while load_run(run).directory.position() == (1, step):
        with pytest.raises(KeyboardInterrupt):
            resume(run, dataset=features(), progress=At(0, 0, lambda: signal.raise_signal(signal.SIGTERM)))
        step += 1
    assert step >= 4
    same_bits(run)


def test_the_seconds_of_an_epoch_count_those_before_a_stop(tmp_path):
    def stop_later():
        time.sleep(0.5)
        stop()

    with pytest.raises(KeyboardInterrupt):
        train(config(), tmp_path / "cut", dataset=features(), progress=At(1, 2, stop_later))
    run = resume(tmp_path / "cut", dataset=features())
    first, stopped, last = (epoch["seconds"] for epoch in run.history)
    assert stopped > 0.5
    assert max(first, last) < stopped


def test_a_stop_in_the_very_last_step_still_finishes(tmp_path, same_bits):
    run = train(config(), tmp_path / "cut", dataset=features(), progress=At(2, STEPS - 1, stop))
    assert run.finished
    same_bits(run.path)


def test_the_command_stopped_by_a_signal_says_how_to_go_on(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    settings = config("temporal", "training.batch_size=2", name=str(npz), epochs=1000)
    run = tmp_path / "cut"
    process = child(tmp_path / "out", run_cli, [*train_arguments(npz, run, settings), "--quiet"])
    wait_for_epochs(run, 2, process)
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process) == 130
    said = (tmp_path / "out").read_text()
    assert f"resume {run}" in said
    assert len(said.strip().splitlines()) == 1
    assert not load_run(run).finished


def test_a_second_ctrl_c_stops_at_once_and_leaves_a_run_that_resumes(tmp_path, same_bits):
    def twice():
        stop()
        stop()

    with pytest.raises(KeyboardInterrupt):
        train(config(), tmp_path / "cut", dataset=features(), progress=At(1, 3, twice))
    assert load_run(tmp_path / "cut").directory.position() == (1, 0)
    same_bits(tmp_path / "cut")


# What a resume does


def rewrite_info(run, **changes):
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | changes))


def test_a_resume_takes_the_recorded_thread_count_and_warns_that_digits_may_differ(tmp_path, monkeypatch):
    run = train(config("temporal", "training.threads=none"), tmp_path / "run", dataset=features())
    rewrite_info(run.path, environment=run.info.environment | {"threads": 3, "torch": "2.0.0"})
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    with pytest.warns(UserWarning, match=r"torch 2\.0\.0 -> .*threads 3 -> "):  # as the spy keeps it from taking effect
        resume(run.path, dataset=features())
    assert set_to[0] == 3


def test_resuming_a_finished_run_changes_nothing(finished):
    before = contents(finished)
    assert resume(finished, dataset=features()).finished
    assert contents(finished) == before


@pytest.mark.parametrize("tail", ['{"epoch": 2, "supervised": 0.1', '{"epoch": 2}', "\0\0\0", "3\n"])
def test_a_partial_last_history_line_is_dropped(half, same_bits, tail):
    with open(half / "history.jsonl", "a") as file:
        file.write(tail)
    assert len(load_run(half).history) == 2
    same_bits(half)


# One process per run


def test_a_second_process_is_kept_out_and_let_in_when_the_first_is_gone(tmp_path, capsys):
    npz = write_npz(tmp_path / "data.npz")
    run = tmp_path / "run"
    process = child(tmp_path / "out", run_cli, train_arguments(npz, run, config(name=str(npz), epochs=100_000)))
    try:
        wait_for_epochs(run, 3, process)
        with pytest.raises(SystemExit) as end:
            run_cli(["resume", str(run)])
        assert end.value.code == 1
        assert capsys.readouterr().err == (
            f"error: {run} is being trained by another process; wait for it or stop it.\n"
        )
        with pytest.raises(RunError, match="already holds a run"):
            train(config(name=str(npz)), run)
        assert load_run(run).evaluate()["rows"] == 30  # reading is allowed
    finally:
        process.kill()
        finish(process)
    with RunDirectory(run).locked():
        pass


# Damaged files: one sentence, and nothing is deleted


def refused(run, sentence, start=resume, **given):
    """Check that the error is raised and that no file changes."""
    before = contents(run)
    with pytest.raises(SelfensError, match=sentence) as raised:
        start(run, **given)
    assert "\n" not in str(raised.value)
    assert contents(run) | {"lock": b""} == before | {"lock": b""}


def use(run):
    """Do everything that a run is loaded for."""
    found = load_run(run)
    _ = found.labels, found.ensemble
    found.evaluate()
    found.predict_training_rows()


def rewrite(path, change=None, keep=lambda name: True):
    """The same tensor file with other strings, or with some of its tensors."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if keep(name)}  # noqa: SIM118
        metadata = {name: text for name, text in (file.metadata() | (change or {})).items() if text is not None}
    save_file(tensors, path, metadata)


@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("garbage", [b"", b"garbage" * 1000, b"\x80\x04\x95", b"\xff" * 64])
def test_a_checkpoint_cut_short_or_of_garbage(half, share, garbage):
    path = half / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)] + garbage)
    refused(half, r"checkpoint.safetensors cannot be read .*cut short")


def test_a_checkpoint_of_another_run_or_program(tmp_path, half, half_once):
    path = half / "checkpoint.safetensors"
    save_file({"x": torch.zeros(2)}, path)
    refused(half, "the checkpoint of .* is damaged, or from another run or another version of selfens")
    other = config("temporal", "network.width=9", name=str(half_once / "data.npz"), epochs=1)
    shutil.copy(train(other, tmp_path / "other").path / path.name, path)
    refused(half, "is damaged, or from another run")
    rewrite(path, {"run": load_run(half).info.id})
    refused(half, "does not fit the run .*it is damaged, or from another run")


@pytest.mark.parametrize("lost", ["targets/", "targets/mean", "optimizer/", "network/", "random/", "step/"])
def test_a_checkpoint_without_a_part(half, lost):
    rewrite(half / "checkpoint.safetensors", keep=lambda name: not name.startswith(lost))
    refused(half, "does not fit the run|damaged")
    if lost in ("targets/mean", "network/"):
        refused(half, "damaged", use)


OTHER_STRINGS = [("format", "2"), ("epoch", "x"), ("epoch", None), ("step", "-1"), ("seconds", "long")]


@pytest.mark.parametrize(("name", "text"), OTHER_STRINGS)
def test_a_checkpoint_with_other_strings(half, name, text):
    rewrite(half / "checkpoint.safetensors", {name: text})
    refused(half, "the checkpoint of .* is damaged, or from another run")


def test_a_checkpoint_is_never_unpickled(half, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    torch.save({"network": Evil()}, half / "checkpoint.safetensors")
    refused(half, "cannot be read")
    assert not (tmp_path / "owned").exists()


def choice(**changes):
    """labels.json with two labeled rows, or with something else."""
    sound = {"rows": [1, 2], "labels": [0, 1], "corrupted": [], "validation": [], "validation_labels": []}
    return json.dumps(sound | changes)


DAMAGED_FILES = {
    "labels.json": [
        *("", "not json", "[]", '{"rows": [1]}'),
        *(choice(rows=["a", "b"]), choice(rows=[1, 1]), choice(rows=[1, 9999]), choice(rows=[[1], [2]])),
        *(choice(labels=[0, 1, 2]), choice(labels=[0, 99]), choice(corrupted=[3]), choice(validation=[1])),
    ],
    "run.json": ["", "{", "[]", "null", '"text"', "{}", json.dumps({"format": FORMAT}), "[" * 99_999],
    "config.json": ["", "{", "[]", "null", '{"method": 3}', '{"method": {"nme": "pi"}}', '{"labels": {"count": "x"}}'],
    "preprocess.safetensors": ["", "x" * 40],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in DAMAGED_FILES.items() for text in texts])
def test_a_damaged_file(half, name, text):
    (half / name).write_text(text)
    for start in (resume, use):
        refused(half, f"{name}.* (damaged|cannot be read|expected|Known)|in format None", start)


@pytest.mark.parametrize("name", DAMAGED_FILES)
def test_a_missing_file(half, name):
    (half / name).unlink()
    for start in (resume, use):
        refused(half, f"{name} cannot be read .*(it does not exist|missing)", start)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(RunInfo)])
def test_a_run_json_with_a_value_of_another_kind_or_without_it(half, name):
    info = json.loads((half / "run.json").read_text())
    for other in (info | {name: None}, {key: value for key, value in info.items() if key != name}):
        (half / "run.json").write_text(json.dumps(other))
        refused(half, "run.json is damaged")


ENCODER = {"shape": [6], "type": "float32", "range": None}
DAMAGES = [{"shape": []}, {"shape": [0]}, {"shape": [6.5]}, {"type": None}, {"type": "float7"}, {"range": [0]}]


@pytest.mark.parametrize(
    "learned", [{}, {"columns": [], "names": [], "unused": {}}, *(ENCODER | each for each in DAMAGES)]
)
def test_a_damaged_encoder(half, learned):
    assert load_run(half).info.encoder == ENCODER
    rewrite_info(half, encoder=learned)
    for start in (resume, use):
        refused(half, "run.json holds a damaged encoder 'identity'; put back the file", start)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rows": 99}, "are not what .* was trained on|does not fit the run|damaged"),
        ({"classes": ["0"]}, "run.json is damaged"),
        ({"input_shape": [7]}, "preprocess.safetensors does not fit the inputs of the run"),
        ({"encoder": ENCODER | {"shape": [7]}}, "was trained on .7,.|run.json or config.json is damaged"),
    ],
)
def test_a_run_json_that_contradicts_the_other_files(half, changes, sentence):
    rewrite_info(half, **changes)
    refused(half, sentence, lambda run: use(run) or load_run(run).predict(blobs()[0]))


@pytest.mark.parametrize(
    ("section", "options", "sentence"),
    [
        ("encoder", {"name": "columns"}, "run.json holds a damaged encoder 'columns'"),
        (
            "source",
            {"name": "digits"},
            "the data of digits are not what .* was trained on: rows, labels or extra rows have changed",
        ),
        ("source", {"name": "memory"}, "was trained on a dataset passed in Python; pass it"),
        ("source", {"name": "arrays", "path": None}, "source.path is none; expected the path"),
        ("source", {"name": "table", "path": "x.csv", "label": "kind"}, "'identity' takes arrays, .* of a table"),
        ("network", {"name": "mlp", "width": 9}, "the weights in .* do not fit the network 'mlp' .size mismatch"),
    ],
)
def test_a_config_with_another_part_is_neither_used_nor_continued(
    tmp_path, monkeypatch, half, section, options, sentence
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("size,color,kind\n1,red,a\n2,blue,b\n")
    content = json.loads((half / "config.json").read_text())
    (half / "config.json").write_text(json.dumps(content | {section: options}))
    refused(half, r"config\.json was changed after the run began; undo the change")
    refused(half, sentence, use)


@pytest.mark.parametrize("tensors", [{"x": torch.zeros(2)}, {"mean": torch.zeros(7), "deviation": torch.ones(7)}])
def test_a_preprocessing_of_other_tensors(half, tensors):
    save_file(tensors, half / "preprocess.safetensors", {"kind": "channel"})
    for start in (resume, use):
        refused(half, "preprocess.safetensors does not (hold what .* needs|fit the inputs of the run); it is", start)


# Full disks, and folders that cannot be written or read


def sentence_of(tmp_path, *call):
    """Return the one line that a failing command prints."""
    assert finish(child(tmp_path / "out", *call)) == 1
    said = (tmp_path / "out").read_text()
    assert said.count("\n") == 1
    return said


def test_a_full_disk_costs_only_the_present_epoch(tmp_path, half, same_bits):
    before = contents(half)
    said = sentence_of(tmp_path, run_cli_with_small_disk, 4096, ["resume", str(half), "--quiet"])
    assert "because the disk is full" in said
    assert (half / "checkpoint.safetensors").read_bytes() == before["checkpoint.safetensors"]
    assert list(half.rglob("*.tmp")) == []
    same_bits(half)


def test_a_disk_too_full_for_a_new_run_leaves_nothing_of_it(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    arguments = train_arguments(npz, tmp_path / "here" / "run", config(name=str(npz)))
    said = sentence_of(tmp_path, run_cli_with_small_disk, 500, arguments)
    assert f"{tmp_path / 'here' / 'run'} could not be written because the disk is full" in said
    assert ".tmp" not in said  # a name the user never gave
    assert not any((tmp_path / "here").glob("**/*"))


@pytest.mark.parametrize("number", range(1, 6))
def test_a_disk_that_fills_up_at_any_write_is_one_sentence_and_the_run_goes_on_later(
    tmp_path, same_bits, monkeypatch, number
):
    genuine, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == number + 4:  # after the four files of a new run
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        genuine(descriptor)

    run = tmp_path / "cut"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="the disk is full; free some room") as raised:
            train(config(epochs=4), run, dataset=features())
    assert "\n" not in str(raised.value)
    assert list(run.rglob("*.tmp")) == []
    same_bits(run)


@pytest.fixture
def read_only(half):
    for path in [*half.rglob("*"), half]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield half
    for path in [half, *half.rglob("*")]:
        path.chmod(0o755)


def test_a_read_only_run_can_be_evaluated_but_not_resumed(tmp_path, read_only):
    before, reason = (
        contents(read_only),
        "could not be written (Permission denied); what was saved before is untouched.",
    )
    said = sentence_of(tmp_path, run_cli_without_privileges, ["resume", str(read_only)])
    assert said == f"error: {read_only}/lock {reason}\n"
    assert finish(child(tmp_path / "out", run_cli_without_privileges, ["evaluate", str(read_only)])) == 0
    assert "of 30 rows" in (tmp_path / "out").read_text()
    assert contents(read_only) == before


def test_a_run_in_a_read_only_folder_is_refused(tmp_path):
    npz, folder = write_npz(tmp_path / "data.npz"), tmp_path / "folder"
    folder.mkdir(mode=0o555)
    arguments = train_arguments(npz, folder / "run", config(name=str(npz)))
    said = sentence_of(tmp_path, run_cli_without_privileges, arguments)
    assert said.startswith(f"error: {folder / 'run'} could not be written (Permission denied)")


@pytest.mark.parametrize("name", ["history.jsonl", "checkpoint.safetensors", ".."])
def test_a_part_of_a_run_that_may_not_be_read_is_named(tmp_path, half, name):
    run = shutil.copytree(half, tmp_path / "around" / "run")
    closed = (run / name).resolve()
    closed.chmod(0)
    page = ["report", str(run), "-o", str(tmp_path / "page.html")]
    arguments = ["evaluate", str(run)] if name == "checkpoint.safetensors" else page  # which can do without
    said = sentence_of(tmp_path, run_cli_without_privileges, arguments)
    closed.chmod(0o755)
    assert said.startswith(f"error: {run / 'run.json' if name == '..' else closed} cannot be read (")
    assert "Permission denied" in said


# Folders that are taken, and data that changed


def taken(run, sentence, settings=None):
    before = contents(run) if run.is_dir() else run.read_bytes()
    with pytest.raises(RunError, match=sentence):
        train(settings or config(), run, dataset=features())
    assert (contents(run) if run.is_dir() else run.read_bytes()) == before


def test_a_run_that_exists_is_not_overwritten(finished):
    for settings in (config(), config("temporal", "seed.base=3")):
        taken(finished, "already holds a run; resume it, or choose another directory", settings)


@pytest.mark.parametrize("name", ["folder/thesis.txt", "folder"])
def test_what_is_not_a_run_is_left_alone_and_cannot_be_opened(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("years of work")
    taken(tmp_path / "folder", "exists and is not a run")
    for start in (resume, load_run):
        for path in (tmp_path / "folder", tmp_path / "nothing"):
            with pytest.raises(RunError, match=r"run.json cannot be read .*; expected a run made by selfens train"):
                start(path)
    assert not (tmp_path / "nothing").exists()


def test_neither_an_empty_folder_nor_what_a_killed_process_of_the_same_number_left_is_in_the_way(tmp_path):
    for name in ("run", f".run.{os.getpid()}.tmp"):
        (tmp_path / name).mkdir()
        assert train(config(epochs=1), tmp_path / "run", dataset=features()).finished
        shutil.rmtree(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_data_that_changed_or_is_gone_is_refused(tmp_path):
    npz, run = write_npz(tmp_path / "data.npz"), tmp_path / "run"
    with crashed():
        train(config(name=str(npz)), run, progress=At(1, 2, crash))
    x, _ = blobs()
    x[0, 0] += 1e-3
    write_npz(npz, x_train=x)
    for start in (resume, use):
        refused(run, "are not what .* was trained on: rows, labels or extra rows have changed", start)
    npz.unlink()
    for start in (resume, use):
        refused(run, "cannot be loaded: there is no file .*data.npz.*; put them back, or say where they are now", start)


def test_other_arrays_than_the_run_was_trained_on_are_refused(finished):
    refused(finished, "are not what .* was trained on", dataset=features(rows=61))


def test_a_run_that_was_moved_finds_its_data_again_though_their_path_was_relative(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    settings = config(name=str(write_npz(tmp_path / "one" / "data.npz")))
    with pytest.raises(SystemExit):
        run_cli(train_arguments("data.npz", tmp_path / "run", settings))
    monkeypatch.chdir(tmp_path)
    assert load_run((tmp_path / "run").rename("moved")).evaluate()["rows"] == 30


def test_a_run_without_a_trained_network_can_be_resumed_but_not_used(tmp_path, same_bits):
    run = crash_at(0, 2, config(), tmp_path / "cut")
    with pytest.raises(RunError, match="has no checkpoint; resume it"):
        load_run(run).predict(blobs()[0])
    same_bits(run)


def test_a_history_without_its_checkpoint_is_not_begun_again(finished):
    (finished / "checkpoint.safetensors").unlink()
    refused(finished, "3 epochs in history.jsonl and 0 in checkpoint.safetensors; put back", dataset=features())
    refused(finished, "put back its checkpoint", lambda run: load_run(run).predict(blobs()[0]))


def test_a_run_that_lost_its_ensemble_is_still_evaluated(finished):
    rewrite(finished / "checkpoint.safetensors", keep=lambda name: not name.startswith("targets/"))
    run = load_run(finished)
    assert run.evaluate(features())["test_error"] == pytest.approx(run.test_error)
    assert run.ensemble is None


def test_the_command_line_gives_the_same_bits_as_python(tmp_path, half_once, same_bits):
    npz = half_once / "data.npz"
    arguments = [*train_arguments(npz, tmp_path / "run", config(name=str(npz), epochs=4)), "--quiet"]
    assert finish(child(tmp_path / "out", run_cli, arguments)) == 0, (tmp_path / "out").read_text()
    same_bits(tmp_path / "run")


@pytest.mark.parametrize("start", [load_run, resume])
def test_a_run_of_the_first_edition_is_refused_in_one_sentence(tmp_path, start):
    run = shutil.copytree(FIRST_EDITION, tmp_path / "run")
    refused(run, "was written in format 1; use the version", start)
    taken(run, "already holds a run")
