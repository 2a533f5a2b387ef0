"""Interrupted, killed, damaged: a resumed run is the run that was never interrupted, to the bit, and nothing is lost."""

import copy
import errno
import json
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support import (
    STEPS,
    At,
    Crash,
    blobs,
    child,
    config,
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
from selfens.config import Config
from selfens.errors import RunError
from selfens.methods import METHODS
from selfens.runs.directory import RunDirectory
from selfens.training import loop

FIRST_EDITION = Path(__file__).parent / "data" / "first-edition" / "temporal"
"""Runs of digits trained for two epochs by selfens 0.1.0."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What a run that was never interrupted leaves behind, trained once for each config."""
    known = {}

    def leave(settings, **given):
        key = settings.to_json()
        if key not in known:
            known[key] = left_behind(train(settings, tmp_path_factory.mktemp("whole") / "run", **given).path)
        return known[key]

    return leave


@pytest.fixture
def whole(uninterrupted):
    return lambda settings: uninterrupted(settings, dataset=features())


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    return train(config(), tmp_path_factory.mktemp("finished") / "run", dataset=features()).path


@pytest.fixture
def finished(tmp_path, finished_once):
    shutil.copytree(finished_once, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def half_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("half")
    write_npz(folder / "data.npz")
    with crashed():
        train(npz_config(folder), folder / "run", progress=At(2, 2, crash))
    return folder


@pytest.fixture
def half(tmp_path, half_once):
    """A run of an .npz file that crashed in its third epoch of four; the words to type are the same for any run."""
    shutil.copytree(half_once / "run", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def half_whole(uninterrupted, half_once):
    """What that run would have left behind."""
    return uninterrupted(npz_config(half_once))


def npz_config(tmp_path, *overrides, epochs=4):
    return config("temporal", *overrides, name=str(tmp_path / "data.npz"), epochs=epochs)


# Killed


def wait_for_epochs(run, epochs, process):
    """Until that many lines of history are there, or the process has ended."""
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
        "method.alignment=true",
    ),
    "committee": ("training.labeled_per_batch=3", "training.batch_size=13"),
    "temporal-teacher": ("training.labeled_per_batch=4", "training.batch_size=14", "method.memory=0.6"),
}
"""With what a method is trained here besides the defaults, so that every part is resumed."""


def of(method, **more):
    return config(method, *OPTIONS.get(method, ()), **more)


@pytest.mark.parametrize("method", METHODS)
def test_killed_at_random_moments_and_resumed_until_done_the_bits_are_the_same(tmp_path, method):
    npz = write_npz(tmp_path / "data.npz")
    settings = of(method, name=str(npz), epochs=8)
    expected = left_behind(train(settings, tmp_path / "whole").path)
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
    assert differences(left_behind(run), expected) == []


def train_or_resume(settings, run):
    resume(run) if run.exists() else train(settings, run)


def dying_at(operation, number, before, arguments):
    """Run the trainer in a process that is killed before or after the given file operation."""
    import pathlib

    places = {
        "fsync": (os, "fsync"),
        "replace": (os, "replace"),
        "rename": (os, "rename"),
        "unlink": (pathlib.Path, "unlink"),
        "history": (RunDirectory, "append_history"),
    }
    owner, name = places[operation]
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


def test_killed_before_and_after_every_file_operation_the_bits_are_the_same(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    settings = config(name=str(npz), epochs=2)
    expected = left_behind(train(settings, tmp_path / "whole").path)
    killed = 0
    for operation, before in [
        ("replace", True),
        ("replace", False),
        ("rename", True),
        ("history", False),
    ]:
        for number in range(1, 20):
            run = tmp_path / f"{operation}-{before}-{number}"
            code = finish(child(tmp_path / "out", dying_at, operation, number, before, (settings, run)))
            if code == 0:
                break  # there are no more of these operations
            assert code == -signal.SIGKILL, (tmp_path / "out").read_text()
            train_or_resume(settings, run)
            assert differences(left_behind(run), expected) == [], (operation, before, number)
            assert list(run.rglob("*.tmp")) == []
            killed += 1
    assert killed >= 12


def test_killed_between_the_last_history_line_and_its_checkpoint_the_run_is_not_taken_for_finished(tmp_path, whole):
    genuine, run = RunDirectory.append_history, tmp_path / "run"

    def append(self, record):
        genuine(self, record)
        if record["epoch"] == 2:
            raise Crash

    with pytest.MonkeyPatch.context() as patched, crashed():
        patched.setattr(RunDirectory, "append_history", append)
        train(config(), run, dataset=features())
    assert len(load_run(run).history) == 3
    assert not load_run(run).finished
    assert resume(run, dataset=features()).finished
    assert differences(left_behind(run), whole(config())) == []


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("epoch", "step"), [(0, 3), (2, STEPS - 1)])
def test_crashed_at_any_step_the_bits_are_the_same(tmp_path, whole, method, epoch, step):
    with crashed():
        train(of(method), tmp_path / "cut", dataset=features(), progress=At(epoch, step, crash))
    resume(tmp_path / "cut", dataset=features())
    assert differences(left_behind(tmp_path / "cut"), whole(of(method))) == []


def test_crashed_again_and_again_the_bits_are_the_same(tmp_path, whole):
    with crashed():
        train(config(), tmp_path / "cut", dataset=features(), progress=At(1, 2, crash))
    for step in (1, 4, 5):
        with crashed():
            resume(tmp_path / "cut", dataset=features(), progress=At(0, step, crash))
    resume(tmp_path / "cut", dataset=features())
    assert differences(left_behind(tmp_path / "cut"), whole(config())) == []


def test_history_later_than_a_sparse_checkpoint_is_dropped_and_written_again(tmp_path, whole):
    settings = config("temporal", "training.checkpoint_every=3", epochs=7)
    with crashed():
        train(settings, tmp_path / "cut", dataset=features(), progress=At(5, 2, crash))
    run = load_run(tmp_path / "cut")
    assert (run.directory.reached()[0], len(run.history)) == (3, 5)
    resume(tmp_path / "cut", dataset=features())
    assert [record["epoch"] for record in run.history] == list(range(7))
    assert differences(left_behind(tmp_path / "cut"), whole(settings)) == []


def test_how_often_a_run_is_evaluated_changes_only_which_errors_are_known(tmp_path, whole):
    settings = config("temporal", "training.evaluate_every=3", "data.validation=0.25", epochs=5)
    with crashed():
        train(settings, tmp_path / "cut", dataset=features(), progress=At(3, 2, crash))
    run = resume(tmp_path / "cut", dataset=features())
    assert differences(left_behind(tmp_path / "cut"), whole(settings)) == []
    always = train(settings.with_values("training", evaluate_every=1), tmp_path / "always", dataset=features()).history
    for record, other in zip(run.history, always, strict=True):
        is_due = record["epoch"] in (2, 4)
        for name in ("test_error", "validation_error"):
            assert record[name] == (other[name] if is_due else None)
        assert record["total"] == other["total"]
    assert run.test_error == always[-1]["test_error"]


def test_how_often_checkpoints_are_written_does_not_change_the_result(tmp_path):
    for every in (1, 2, 5):
        settings = config("temporal", f"training.checkpoint_every={every}", epochs=5)
        train(settings, tmp_path / str(every), dataset=features())
    one, two, five = (left_behind(tmp_path / name) for name in ("1", "2", "5"))
    assert differences(one, two) == differences(one, five) == []


@pytest.mark.parametrize(("seconds", "reached"), [(0.0, 2), (1e6, 0)])
def test_on_a_gpu_checkpoints_are_some_seconds_apart(tmp_path, monkeypatch, seconds, reached):
    genuine = loop._is_checkpoint_due

    def as_on_a_gpu(parts, epoch, seconds):
        parts = copy.copy(parts)
        parts.prepared = replace(parts.prepared, device=torch.device("cuda"))
        return genuine(parts, epoch, seconds)

    monkeypatch.setattr(loop, "_is_checkpoint_due", as_on_a_gpu)
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    with crashed():
        train(config(), tmp_path / "run", dataset=features(), progress=At(2, 1, crash))
    left = load_run(tmp_path / "run")
    assert left.directory.reached() == (reached, 0)
    assert left.test_error == (left.history[1]["test_error"] if reached else None)
    resumed = resume(tmp_path / "run", dataset=features())
    assert [record["epoch"] for record in resumed.history] == [0, 1, 2]


# Stopped on request


@pytest.mark.parametrize("method", METHODS)
def test_a_stop_in_mid_epoch_saves_there_and_the_bits_are_the_same(tmp_path, whole, method):
    def stop(number, epoch, step):
        return {"dataset": features(), "progress": At(epoch, step, lambda: signal.raise_signal(number))}

    run = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt, match=rf"stopped in epoch 2; {run} can be resumed\."):
        train(of(method), run, **stop(signal.SIGINT, 1, 2))
    assert load_run(run).directory.reached() == (1, 3)
    with pytest.raises(KeyboardInterrupt, match="stopped in epoch 2"):
        resume(run, **stop(signal.SIGTERM, 0, 0))
    assert load_run(run).directory.reached() == (1, 4)
    resume(run, dataset=features())
    assert differences(left_behind(run), whole(of(method))) == []


def test_stopped_at_every_step_of_an_epoch_in_turn_the_bits_are_the_same(tmp_path, whole):
    def stop():
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config(), tmp_path / "cut", dataset=features(), progress=At(1, 0, stop))
    for _ in range(STEPS - 2):
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "cut", dataset=features(), progress=At(0, 0, stop))
    resume(tmp_path / "cut", dataset=features())
    assert differences(left_behind(tmp_path / "cut"), whole(config())) == []


def test_the_seconds_of_an_epoch_count_those_before_a_stop(tmp_path):
    def stop():
        time.sleep(0.5)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config(), tmp_path / "cut", dataset=features(), progress=At(1, 2, stop))
    run = resume(tmp_path / "cut", dataset=features())
    first, stopped, last = (epoch["seconds"] for epoch in run.history)
    assert stopped > 0.5
    assert max(first, last) < stopped


def test_a_stop_in_the_very_last_step_still_finishes(tmp_path, whole):
    stop = At(2, STEPS - 1, lambda: signal.raise_signal(signal.SIGINT))
    run = train(config(), tmp_path / "cut", dataset=features(), progress=stop)
    assert run.finished
    assert differences(left_behind(run.path), whole(config())) == []


def test_the_command_stopped_by_a_signal_says_how_to_go_on(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    settings = config("temporal", "training.batch_size=2", name=str(npz), epochs=1000)
    run = tmp_path / "cut"
    process = child(tmp_path / "out", run_cli, [*train_arguments(npz, run, settings), "--quiet"])
    wait_for_epochs(run, 2, process)
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process) in (130, 143)
    said = (tmp_path / "out").read_text()
    assert f"resume {run}" in said
    assert len(said.strip().splitlines()) == 1
    assert not load_run(run).finished


def test_a_second_ctrl_c_stops_at_once_and_leaves_a_run_that_resumes(tmp_path, whole):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config(), tmp_path / "cut", dataset=features(), progress=At(1, 3, twice))
    resume(tmp_path / "cut", dataset=features())
    assert differences(left_behind(tmp_path / "cut"), whole(config())) == []


# What a resume does


def test_the_weight_is_zero_in_epoch_0_and_never_again_on_a_resume(tmp_path):
    settings = config("temporal", "schedule.rampup_epochs=2", epochs=4)
    for step in (0, 3):
        run = tmp_path / str(step)
        with pytest.raises(KeyboardInterrupt):
            train(settings, run, dataset=features(), progress=At(1, step, lambda: signal.raise_signal(signal.SIGINT)))
        assert all(record["weight"] > 0 for record in resume(run, dataset=features()).history[1:])


def test_a_resume_takes_the_recorded_thread_count(tmp_path, monkeypatch):
    run = train(config("temporal", "training.threads=none"), tmp_path / "run", dataset=features())
    rewrite_environment(run.path, threads=3)
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    with pytest.warns(UserWarning, match="threads 3 -> "):  # because the spy above keeps it from taking effect
        resume(run.path, dataset=features())
    assert set_to[0] == 3


def test_a_resume_with_another_version_warns_that_digits_may_differ(tmp_path):
    run = train(config("temporal"), tmp_path / "run", dataset=features())
    rewrite_environment(run.path, torch="2.0.0")
    with pytest.warns(UserWarning, match=r"torch 2\.0\.0 -> "):
        resume(run.path, dataset=features())


def rewrite_environment(run, **changes):
    about = json.loads((run / "run.json").read_text())
    about["environment"] |= changes
    (run / "run.json").write_text(json.dumps(about))


def test_resuming_a_finished_run_changes_nothing(finished):
    before = contents(finished)
    assert resume(finished, dataset=features()).finished
    assert contents(finished) == before


@pytest.mark.parametrize("tail", ['{"epoch": 2, "supervised": 0.1', '{"epoch": 2}', "\0\0\0", "3\n"])
def test_a_partial_last_history_line_is_dropped(half, half_whole, tail):
    with open(half / "history.jsonl", "a") as file:
        file.write(tail)
    resume(half)
    assert differences(left_behind(half), half_whole) == []


def test_a_partial_history_line_does_not_keep_a_run_from_being_read(half):
    with open(half / "history.jsonl", "a") as file:
        file.write('{"epoch": 2, "superv')
    assert len(load_run(half).history) == 2


# One process per run


def test_a_second_process_is_kept_out_and_let_in_when_the_first_is_gone(tmp_path, capsys):
    npz = write_npz(tmp_path / "data.npz")
    run = tmp_path / "run"
    process = child(tmp_path / "out", run_cli, train_arguments(npz, run, config(name=str(npz), epochs=100_000)))
    try:
        deadline = time.monotonic() + 30
        while not (run / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
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


def refused(run, sentence, **kwargs):
    """Resuming raises the sentence and leaves every file as it is."""
    before = contents(run)
    with pytest.raises(RunError, match=sentence) as raised:
        resume(run, **kwargs)
    assert "\n" not in str(raised.value)
    before.setdefault("lock", b"")
    assert contents(run) | {"lock": b""} == before


def rewrite(path, change=None, keep=lambda name: True):
    """The same tensor file with other strings, or with some of its tensors."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if keep(name)}  # noqa: SIM118
        metadata = {name: text for name, text in (file.metadata() | (change or {})).items() if text is not None}
    save_file(tensors, path, metadata)


@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
def test_a_checkpoint_cut_short(half, share):
    path = half / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    refused(half, r"checkpoint.safetensors cannot be read .*cut short")


@pytest.mark.parametrize("garbage", [b"garbage" * 1000, b"\x80\x04\x95", b"\xff" * 64])
def test_a_checkpoint_of_garbage(half, garbage):
    (half / "checkpoint.safetensors").write_bytes(garbage)
    refused(half, "checkpoint.safetensors cannot be read")


def test_a_checkpoint_that_is_some_other_tensor_file(half):
    save_file({"x": torch.zeros(2)}, half / "checkpoint.safetensors")
    refused(half, "the checkpoint of .* is of another run, version or program, or damaged")


def test_a_checkpoint_of_another_network(tmp_path, half, half_once):
    other = train(npz_config(half_once, "network.width=9", epochs=1), tmp_path / "other").path
    (half / "checkpoint.safetensors").write_bytes((other / "checkpoint.safetensors").read_bytes())
    refused(half, "does not fit the run|is of another run")


@pytest.mark.parametrize("lost", ["targets/", "targets/mean", "optimizer/", "network/", "random/", "step/"])
def test_a_checkpoint_without_a_part(half, lost):
    rewrite(half / "checkpoint.safetensors", keep=lambda name: not name.startswith(lost))
    refused(half, "does not fit the run|damaged")


@pytest.mark.parametrize("part", ["targets", "network"])
def test_a_checkpoint_without_a_part_does_not_predict(half, part):
    rewrite(
        half / "checkpoint.safetensors", keep=lambda name: not name.startswith(f"{part}/") or name == "targets/count"
    )
    with pytest.raises(RunError, match="damaged"):
        load_run(half).ensemble if part == "targets" else load_run(half).predict(features().test_inputs)


def test_a_run_of_another_format(half):
    path = half / "run.json"
    path.write_text(path.read_text().replace('"format": "2"', '"format": "3"'))
    refused(half, "was written in format 3, by another version of selfens; this one reads format 2")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "3"},
        {"epoch": "x"},
        {"epoch": None},
        {"step": "-1"},
        {"seconds": "long"},
        {"targets_file": "[1]"},
        {"targets_file": "{"},
    ],
)
def test_a_checkpoint_with_other_strings(half, change):
    rewrite(half / "checkpoint.safetensors", change)
    refused(half, "the checkpoint of .* is of another run")


LABELS = [
    "",
    "not json",
    "[]",
    '{"rows": [1]}',
    '{"rows": ["a"], "labels": [0], "corrupted": [], "validation": [], "validation_labels": []}',
    '{"rows": [1, 2], "labels": [0, 1, 2], "corrupted": [], "validation": [], "validation_labels": []}',
    '{"rows": [1, 9999], "labels": [0, 1], "corrupted": [], "validation": [], "validation_labels": []}',
    '{"rows": [1, 2], "labels": [0, 99], "corrupted": [], "validation": [], "validation_labels": []}',
]


@pytest.mark.parametrize("text", LABELS)
def test_damaged_labels(half, text):
    (half / "labels.json").write_text(text)
    refused(half, "labels.json.*damaged")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "2"}', "null", '"text"'])
def test_a_damaged_run_json(half, text):
    (half / "run.json").write_text(text)
    refused(half, "run.json|format")


@pytest.mark.parametrize("key", ["fingerprint", "rows", "classes", "environment", "own_network", "input_shape"])
def test_a_run_json_with_a_value_of_another_kind(half, key):
    about = json.loads((half / "run.json").read_text())
    (half / "run.json").write_text(json.dumps(about | {key: None}))
    refused(half, "run.json is missing fields or holds invalid values; it is damaged")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"method": 3}', '{"method": {"nme": "pi"}}', '{"data": {"labels": "x"}}']
)
def test_a_damaged_config_json(half, text):
    (half / "config.json").write_text(text)
    refused(half, "config.json")


@pytest.mark.parametrize("name", ["run.json", "labels.json", "preprocess.safetensors", "config.json"])
def test_a_missing_file_of_the_run(half, name):
    (half / name).unlink()
    refused(half, name)


def test_a_damaged_preprocessing(half):
    path = half / "preprocess.safetensors"
    path.write_bytes(path.read_bytes()[:40])
    refused(half, "preprocess.safetensors cannot be read")


def test_a_preprocessing_without_its_tensors(half):
    save_file({"x": torch.zeros(2)}, half / "preprocess.safetensors", {"kind": "channel"})
    refused(half, "preprocess.safetensors")


def test_a_checkpoint_is_never_unpickled(half, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    torch.save({"network": Evil()}, half / "checkpoint.safetensors")
    refused(half, "cannot be read")
    assert not (tmp_path / "owned").exists()


# A full disk


def test_a_full_disk_costs_only_the_present_epoch(tmp_path, half, half_whole):
    before = contents(half)
    code = finish(child(tmp_path / "out", run_cli_with_small_disk, 4096, ["resume", str(half), "--quiet"]))
    said = (tmp_path / "out").read_text()
    assert code == 1
    assert "because the disk is full" in said
    assert len(said.splitlines()) == 1
    assert (half / "checkpoint.safetensors").read_bytes() == before["checkpoint.safetensors"]
    assert list(half.rglob("*.tmp")) == []
    resume(half)
    assert differences(left_behind(half), half_whole) == []


def test_a_disk_too_full_for_a_new_run_leaves_nothing_of_it(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    arguments = train_arguments(npz, tmp_path / "here" / "run", config(name=str(npz)))
    assert finish(child(tmp_path / "out", run_cli_with_small_disk, 500, arguments)) == 1
    said = (tmp_path / "out").read_text()
    assert "because the disk is full" in said
    assert str(tmp_path / "here" / "run") in said
    assert ".tmp" not in said  # a name the user never gave
    assert len(said.splitlines()) == 1
    assert not any((tmp_path / "here").glob("**/*"))


@pytest.mark.parametrize("number", range(1, 6))
def test_a_disk_that_fills_up_at_any_write_is_one_sentence_and_the_run_goes_on_later(
    tmp_path, whole, monkeypatch, number
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
    resume(run, dataset=features())
    assert differences(left_behind(run), whole(config(epochs=4))) == []


def test_a_disk_too_full_for_the_lock_is_not_called_read_only(tmp_path, half, monkeypatch):
    (half / "lock").unlink()
    genuine = open

    def full(path, *words, **named):
        if Path(path).name == "lock":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return genuine(path, *words, **named)

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(RunError, match="lock could not be written because the disk is full; free some room"):
        resume(half)


def test_a_disk_too_full_for_a_history_line(tmp_path, whole, monkeypatch):
    def full(self, record):
        with open(self.path / "history.jsonl", "a") as file:
            file.write(json.dumps(record)[:30])
        raise RunError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "append_history", full)
        with pytest.raises(RunError):
            train(config(), tmp_path / "cut", dataset=features())
    resume(tmp_path / "cut", dataset=features())
    assert differences(left_behind(tmp_path / "cut"), whole(config())) == []


# Folders that cannot be written


def make_read_only(run):
    for path in [*run.rglob("*"), run]:
        path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.fixture
def read_only(half):
    make_read_only(half)
    yield half
    for path in [half, *half.rglob("*")]:
        path.chmod(0o755)


def test_a_read_only_run_cannot_be_resumed(tmp_path, read_only):
    before = contents(read_only)
    assert finish(child(tmp_path / "out", run_cli_without_privileges, ["resume", str(read_only)])) == 1
    said = (tmp_path / "out").read_text()
    assert (
        said
        == f"error: {read_only}/lock could not be written (Permission denied); what was saved before is untouched.\n"
    )
    assert contents(read_only) == before


def test_a_read_only_run_can_be_evaluated(tmp_path, read_only):
    assert finish(child(tmp_path / "out", run_cli_without_privileges, ["evaluate", str(read_only)])) == 0
    assert "of 30 rows" in (tmp_path / "out").read_text()


def test_a_run_in_a_read_only_folder_is_refused(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o555)
    arguments = train_arguments(npz, folder / "run", config(name=str(npz)))
    assert finish(child(tmp_path / "out", run_cli_without_privileges, arguments)) == 1
    said = (tmp_path / "out").read_text()
    assert said.startswith(f"error: {folder / 'run'} could not be written (Permission denied)")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["history.jsonl", "checkpoint.safetensors", ".."])
def test_a_part_of_a_run_that_may_not_be_read_is_named(tmp_path, half, name):
    run = tmp_path / "around" / "run"
    shutil.copytree(half, run)
    closed = (run / name).resolve()
    closed.chmod(0)
    page = ["report", str(run), "-o", str(tmp_path / "page.html")]
    arguments = ["evaluate", str(run)] if name == "checkpoint.safetensors" else page  # which can do without
    code = finish(child(tmp_path / "out", run_cli_without_privileges, arguments))
    closed.chmod(0o755)
    said = (tmp_path / "out").read_text()
    assert (code, len(said.splitlines())) == (1, 1)
    assert said.startswith(f"error: {run / 'run.json' if name == '..' else closed} cannot be read (")
    assert "Permission denied" in said


# Folders that are taken, and data that changed


def taken(run, settings, sentence):
    before = contents(run) if run.is_dir() else run.read_bytes()
    with pytest.raises(RunError, match=sentence):
        train(settings, run, dataset=features())
    assert (contents(run) if run.is_dir() else run.read_bytes()) == before


def test_a_run_that_exists_is_not_overwritten(finished):
    for settings in (config(), config("temporal", "seed.base=3")):
        taken(finished, settings, "already holds a run; resume it, or choose another directory")


def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("years of work")
    taken(tmp_path / "folder", config(), "exists and is not a run")


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    (tmp_path / "file").write_text("years of work")
    taken(tmp_path / "file", config(), "exists and is not a run")


def test_an_empty_folder_is_used(tmp_path):
    (tmp_path / "empty").mkdir()
    assert train(config(), tmp_path / "empty", dataset=features()).finished


@pytest.mark.parametrize("start", [resume, load_run])
def test_a_folder_that_is_not_a_run_cannot_be_opened(tmp_path, start):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(
        RunError, match="run.json cannot be read .it is not there.; expected a run made by selfens train"
    ):
        start(tmp_path)
    with pytest.raises(RunError, match="nothing/run.json cannot be read .*; expected a run made by selfens train"):
        start(tmp_path / "nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_data_that_changed_or_is_gone_is_refused(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    with crashed():
        train(npz_config(tmp_path), tmp_path / "run", progress=At(1, 2, crash))
    x, _ = blobs()
    x[0, 0] += 1e-3
    write_npz(npz, x_train=x)
    refused(tmp_path / "run", "is not what .* was trained on; its files or its extra rows have changed")
    with pytest.raises(RunError, match="its files or its extra rows have changed"):
        load_run(tmp_path / "run").evaluate()
    npz.unlink()
    with pytest.raises(
        RunError, match=r"cannot be loaded: there is no file .*data.npz.*; put it back, or say where it is now"
    ):
        resume(tmp_path / "run")


def test_other_arrays_than_the_run_was_trained_on_are_refused(finished):
    with pytest.raises(RunError, match="is not what"):
        resume(finished, dataset=features(rows=61))


def test_a_relative_data_path_is_found_again_from_another_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    write_npz(tmp_path / "one" / "data.npz")
    with pytest.raises(SystemExit):
        run_cli([*train_arguments("data.npz", tmp_path / "run", Config.from_json(npz_config(tmp_path).to_json()))])
    monkeypatch.chdir(tmp_path / "two")
    assert load_run(tmp_path / "run").evaluate()["rows"] == 30


def test_a_run_without_a_checkpoint_can_be_resumed_but_not_used(tmp_path, whole):
    with crashed():
        train(config(), tmp_path / "cut", dataset=features(), progress=At(0, 2, crash))
    with pytest.raises(RunError, match="has no checkpoint of a trained network; resume it"):
        load_run(tmp_path / "cut").predict(features().test_inputs)
    resume(tmp_path / "cut", dataset=features())
    assert differences(left_behind(tmp_path / "cut"), whole(config())) == []


@pytest.mark.parametrize("start", [resume, lambda run, dataset: load_run(run).predict(dataset.test_inputs)])
def test_a_history_without_its_checkpoint_is_not_begun_again(finished, start):
    (finished / "checkpoint.safetensors").unlink()
    before = contents(finished)
    with pytest.raises(
        RunError, match="3 epochs in history.jsonl and 0 in checkpoint.safetensors|put back its checkpoint"
    ):
        start(finished, dataset=features())
    assert contents(finished) == before


def test_a_run_that_lost_its_ensemble_is_still_evaluated(finished):
    rewrite(finished / "checkpoint.safetensors", keep=lambda name: not name.startswith("targets/"))
    run = load_run(finished)
    assert run.evaluate(features())["test_error"] == pytest.approx(run.test_error)
    assert run.ensemble is None


def test_a_finished_run_moved_elsewhere_still_works(tmp_path, finished):
    finished.rename(tmp_path / "moved")
    assert load_run(tmp_path / "moved").evaluate(features())["rows"] == 30


def test_the_command_line_gives_the_same_bits_as_python(tmp_path, half_once, half_whole):
    settings = npz_config(half_once)
    arguments = [*train_arguments(half_once / "data.npz", tmp_path / "run", settings), "--quiet"]
    assert finish(child(tmp_path / "out", run_cli, arguments)) == 0, (tmp_path / "out").read_text()
    assert differences(left_behind(tmp_path / "run"), half_whole) == []


def test_a_config_edited_by_hand_is_not_continued(half):
    text = (half / "config.json").read_text()
    (half / "config.json").write_text(text.replace('"decay": 0.6', '"decay": 0.7'))
    with pytest.raises(RunError, match=r"config\.json was changed after the run began"):
        resume(half)
    (half / "config.json").write_text(text)
    assert resume(half).finished


# Runs of the first edition


@pytest.mark.parametrize("start", [load_run, resume])
def test_a_run_of_the_first_edition_is_refused_in_one_sentence(tmp_path, start):
    run = shutil.copytree(FIRST_EDITION, tmp_path / "run")
    before = contents(run)
    with pytest.raises(
        RunError, match="was written in format 1, by another version of selfens; .*: use that version"
    ) as raised:
        start(run)
    assert "\n" not in str(raised.value)
    with pytest.raises(RunError, match="already holds a run"):
        train(config(), run, dataset=features())
    assert contents(run) == before
