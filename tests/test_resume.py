"""Interrupted, killed, damaged: a resumed run is the run that was never interrupted, to the bit, and nothing is lost."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

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
    environment,
    features,
    finish,
    left_behind,
    run_cli,
    run_cli_with_small_disk,
    run_cli_without_privileges,
    train_arguments,
    write_npz,
)

import selfens.files.tensors
import selfens.runs.directory
from selfens import load_run, resume, train
from selfens.config import Config
from selfens.errors import RunError
from selfens.methods import METHODS
from selfens.runs.directory import RunDirectory

from support import selfens as selfens_command  # isort: skip


@pytest.fixture
def whole(tmp_path):
    """What a run never interrupted leaves behind."""

    def leave(settings):
        return left_behind(train(settings, tmp_path / "whole", dataset=features()).path)

    return leave


@pytest.fixture
def finished(tmp_path):
    train(config(), tmp_path / "run", dataset=features())
    return tmp_path / "run"


@pytest.fixture
def half(tmp_path):
    """A run of an .npz file that crashed in its third epoch of four; the words to type are the same for any run."""
    write_npz(tmp_path / "data.npz")
    with crashed():
        train(npz_config(tmp_path), tmp_path / "run", progress=At(2, 2, crash))
    return tmp_path / "run"


def npz_config(tmp_path, *overrides, epochs=4):
    return config("temporal", *overrides, name=str(tmp_path / "data.npz"), epochs=epochs)


def npz_whole(tmp_path, settings):
    return left_behind(train(settings, tmp_path / "whole").path)


# Killed


def wait_for_epochs(run, epochs, process):
    """Until that many lines of history are there, or the process has ended."""
    while process.is_alive() and (not run.exists() or len(RunDirectory(run).history()) < epochs):
        time.sleep(0.001)


@pytest.mark.parametrize("method", METHODS)
def test_killed_at_random_moments_and_resumed_until_done_the_bits_are_the_same(tmp_path, method):
    npz = write_npz(tmp_path / "data.npz")
    settings = config(method, name=str(npz), epochs=40)
    expected = npz_whole(tmp_path, settings)
    chance, kills, run, reached = random.Random(method), 0, tmp_path / "run", 0
    while True:
        begun = ["resume", str(run)] if run.exists() else train_arguments(npz, run, settings)
        process = child(tmp_path / "out", run_cli, [*begun, "--quiet"])
        wait_for_epochs(run, reached + chance.randint(0, 8), process)
        time.sleep(chance.uniform(0, 0.02))
        process.kill()
        code = finish(process)
        if code == 0:  # it came to its end before the kill
            break
        assert code == -signal.SIGKILL, (tmp_path / "out").read_text()
        kills += 1
        reached = len(RunDirectory(run).history()) if run.exists() else 0
    assert kills >= 3
    assert differences(left_behind(run), expected) == []


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


@pytest.mark.parametrize("method", ["pi", "temporal"])
def test_killed_before_and_after_every_file_operation_the_bits_are_the_same(tmp_path, method):
    npz = write_npz(tmp_path / "data.npz")
    settings = config(method, name=str(npz), epochs=2)
    expected = npz_whole(tmp_path, settings)
    killed = 0
    for operation in ("fsync", "replace", "rename", "unlink", "history"):
        for before in (True, False):
            for number in range(1, 20):
                run = tmp_path / f"{operation}-{before}-{number}"
                code = finish(child(tmp_path / "out", dying_at, operation, number, before, (settings, run)))
                if code == 0:
                    break  # there are no more of these operations
                assert code == -signal.SIGKILL, (tmp_path / "out").read_text()
                resume(run) if run.exists() else train(settings, run)
                assert differences(left_behind(run), expected) == [], (operation, before, number)
                killed += 1
    assert killed >= 20


def test_killed_between_the_last_history_line_and_its_checkpoint_the_run_is_not_taken_for_finished(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    settings = config(name=str(npz), epochs=2)
    expected = npz_whole(tmp_path, settings)
    run = tmp_path / "run"
    finish(child(tmp_path / "out", dying_at, "history", 2, False, (settings, run)))
    assert not load_run(run).finished
    assert finish(child(tmp_path / "out", run_cli, ["resume", str(run), "--quiet"])) == 0
    assert differences(left_behind(run), expected) == []


@pytest.mark.parametrize("number", [8, 9])  # of the second epoch: the targets, the checkpoint
def test_temporary_files_of_a_killed_process_are_removed_by_the_next(tmp_path, number):
    npz = write_npz(tmp_path / "data.npz")
    run = tmp_path / "run"
    finish(child(tmp_path / "out", dying_at, "replace", number, True, (config(name=str(npz)), run)))
    assert list(run.rglob("*.tmp")), "the kill was to leave one"
    resume(run)
    assert list(run.rglob("*.tmp")) == []


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("epoch", "step"), [(0, 0), (0, 3), (1, 0), (2, STEPS - 1)])
def test_crashed_at_any_step_the_bits_are_the_same(tmp_path, whole, method, epoch, step):
    with crashed():
        train(config(method), tmp_path / "cut", dataset=features(), progress=At(epoch, step, crash))
    resume(tmp_path / "cut", dataset=features())
    assert differences(left_behind(tmp_path / "cut"), whole(config(method))) == []


def test_crashed_again_and_again_the_bits_are_the_same(tmp_path, whole):
    with crashed():
        train(config(), tmp_path / "cut", dataset=features(), progress=At(1, 2, crash))
    for step in (1, 4, 5):
        with crashed():
            resume(tmp_path / "cut", dataset=features(), progress=At(0, step, crash))
    resume(tmp_path / "cut", dataset=features())
    assert differences(left_behind(tmp_path / "cut"), whole(config())) == []


def test_a_crash_between_targets_and_checkpoint_leaves_a_pair_that_belongs_together(tmp_path, whole, monkeypatch):
    genuine, written = selfens.runs.directory.save_tensors, []

    def save(path, *rest):
        if path.name == "checkpoint.safetensors" and len(written) == 3:  # the state before training, and two epochs
            raise Crash
        genuine(path, *rest)
        written.append(path.name) if path.name == "checkpoint.safetensors" else None

    monkeypatch.setattr(selfens.runs.directory, "save_tensors", save)
    with crashed():
        train(config(epochs=4), tmp_path / "cut", dataset=features())
    monkeypatch.undo()
    assert len(list((tmp_path / "cut" / "targets").iterdir())) == 2
    assert load_run(tmp_path / "cut").ensemble.count.tolist() == [2] * 60
    resume(tmp_path / "cut", dataset=features())
    assert len(list((tmp_path / "cut" / "targets").iterdir())) == 1
    assert differences(left_behind(tmp_path / "cut"), whole(config(epochs=4))) == []


@pytest.mark.parametrize("method", METHODS)
def test_history_later_than_a_sparse_checkpoint_is_dropped_and_written_again(tmp_path, whole, method):
    settings = config(method, "training.checkpoint_every=3", epochs=7)
    with crashed():
        train(settings, tmp_path / "cut", dataset=features(), progress=At(5, 2, crash))
    run = load_run(tmp_path / "cut")
    assert (run.checkpoint.epoch, len(run.history)) == (3, 5)
    resume(tmp_path / "cut", dataset=features())
    assert [record["epoch"] for record in run.history] == list(range(7))
    assert differences(left_behind(tmp_path / "cut"), whole(settings)) == []


def test_how_often_checkpoints_are_written_does_not_change_the_result(tmp_path):
    for every in (1, 2, 5):
        settings = config("temporal", f"training.checkpoint_every={every}", epochs=5)
        train(settings, tmp_path / str(every), dataset=features())
    one, two, five = (left_behind(tmp_path / name) for name in ("1", "2", "5"))
    assert differences(one, two) == differences(one, five) == []


# Stopped on request


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("epoch", "step"), [(0, 1), (1, 3)])
def test_a_stop_in_mid_epoch_saves_there_and_the_bits_are_the_same(tmp_path, whole, method, epoch, step, number):
    run = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt, match=rf"stopped in epoch {epoch + 1}; go on with 'selfens resume {run}'"):
        train(config(method), run, dataset=features(), progress=At(epoch, step, lambda: signal.raise_signal(number)))
    saved = load_run(run).checkpoint
    assert (saved.epoch, saved.step) == (epoch, step + 1)
    resume(run, dataset=features())
    assert differences(left_behind(run), whole(config(method))) == []


def test_stopped_at_every_step_of_an_epoch_in_turn_the_bits_are_the_same(tmp_path, whole):
    def stop():
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config(), tmp_path / "cut", dataset=features(), progress=At(1, 0, stop))
    for _ in range(STEPS):
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


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGINT, {130}), (signal.SIGTERM, {130, 143})])
def test_the_command_stopped_by_a_signal_says_how_to_go_on(tmp_path, number, codes):
    npz = write_npz(tmp_path / "data.npz")
    settings = config("temporal", "training.batch_size=2", name=str(npz), epochs=40)
    run = tmp_path / "cut"
    process = subprocess.Popen(
        [sys.executable, "-m", "selfens", *train_arguments(npz, run, settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    for line in process.stdout:
        if line.startswith("epoch 2/"):
            process.send_signal(number)
            break
    out, err = process.communicate(timeout=60)
    assert process.returncode in codes
    assert f"selfens resume {run}" in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert not load_run(run).finished
    assert finish(child(tmp_path / "out", run_cli, ["resume", str(run), "--quiet"])) == 0
    assert differences(left_behind(run), npz_whole(tmp_path, settings)) == []


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


@pytest.mark.parametrize("tail", ['{"epoch": 2, "supervised": 0.1', "{", '{"epoch": 2}', "\0\0\0"])
def test_a_partial_last_history_line_is_dropped(tmp_path, half, tail):
    with open(half / "history.jsonl", "a") as file:
        file.write(tail)
    resume(half)
    assert differences(left_behind(half), npz_whole(tmp_path, npz_config(tmp_path))) == []


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
        with pytest.raises(RunError, match="already holds this run|another configuration"):
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


def rewrite(path, change):
    """The same tensor file with other strings."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    save_file(tensors, path, change(metadata))


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.99])
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
    refused(half, "not in format 1")


def test_a_checkpoint_of_another_network(tmp_path, half):
    other = train(npz_config(tmp_path, "network.width=9"), tmp_path / "other").path
    (half / "checkpoint.safetensors").write_bytes((other / "checkpoint.safetensors").read_bytes())
    for file in (other / "targets").iterdir():
        (half / "targets" / file.name).write_bytes(file.read_bytes())
    refused(half, "does not fit the run")


def test_a_missing_targets_file(half):
    for file in (half / "targets").iterdir():
        file.unlink()
    refused(half, r"targets.* cannot be read .*missing")


def test_a_targets_file_cut_short(half):
    for file in (half / "targets").iterdir():
        file.write_bytes(file.read_bytes()[:-7])
    refused(half, r"targets.* cannot be read .*cut short")


def test_a_targets_file_without_its_tensors(half):
    for file in (half / "targets").iterdir():
        save_file({"x": torch.zeros(2)}, file)
    refused(half, "does not fit the run|damaged|cannot be read")


def test_a_run_of_another_format(half):
    path = half / "run.json"
    path.write_text(path.read_text().replace('"format": "1"', '"format": "2"'))
    refused(half, "was written in format 2; this version of selfens reads format 1")


def test_a_checkpoint_of_another_format(half):
    rewrite(half / "checkpoint.safetensors", lambda metadata: metadata | {"format": "2"})
    refused(half, "not in format 1")


def test_a_checkpoint_without_its_place(half):
    rewrite(half / "checkpoint.safetensors", lambda metadata: {"format": "1"})
    refused(half, "damaged|cannot be read|not in format")


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


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "1"}', "null", '"text"'])
def test_a_damaged_run_json(half, text):
    (half / "run.json").write_text(text)
    refused(half, "run.json|format")


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


def test_a_full_disk_costs_the_present_epoch_alone(tmp_path, half):
    before = contents(half)
    code = finish(child(tmp_path / "out", run_cli_with_small_disk, 4096, ["resume", str(half), "--quiet"]))
    said = (tmp_path / "out").read_text()
    assert code == 1
    assert "because the disk is full" in said
    assert len(said.splitlines()) == 1
    assert (half / "checkpoint.safetensors").read_bytes() == before["checkpoint.safetensors"]
    assert list(half.rglob("*.tmp")) == []
    resume(half)
    assert differences(left_behind(half), npz_whole(tmp_path, npz_config(tmp_path))) == []


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


@pytest.mark.parametrize("number", range(1, 9))
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
    assert said == f"error: {read_only} cannot be trained in (Permission denied); is it read-only?\n"
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
    assert said.startswith(f"error: {run if name == '..' else closed} cannot be read (")
    assert "Permission denied" in said


# Folders that are taken, and data that changed


def taken(run, settings, sentence):
    before = contents(run) if run.is_dir() else run.read_bytes()
    with pytest.raises(RunError, match=sentence):
        train(settings, run, dataset=features())
    assert (contents(run) if run.is_dir() else run.read_bytes()) == before


def test_a_run_that_exists_is_not_overwritten(finished):
    taken(finished, config(), "already holds this run, and it is complete; choose another directory")


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("optimizer.beta2=0.5", "optimizer.beta2 is 0.999 there and 0.5 here"),
        ("data.labels=9", "data.labels is 12 there and 9 here"),
        ("seed.base=3", "seed.base is 0 there and 3 here"),
    ],
)
def test_a_run_of_another_config_is_not_overwritten_and_the_field_is_named(finished, override, difference):
    taken(finished, config("temporal", override), difference)


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
    with pytest.raises(RunError, match="holds no config.json; expected the directory of a run"):
        start(tmp_path)
    with pytest.raises(RunError, match="does not exist; expected the directory of a run"):
        start(tmp_path / "nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_data_that_changed_is_refused(tmp_path, half):
    x, _ = blobs()
    x[0, 0] += 1e-3
    write_npz(tmp_path / "data.npz", x_train=x)
    refused(half, "is not what .* was trained on; its files have changed")
    with pytest.raises(RunError, match="its files have changed"):
        load_run(half).evaluate()


def test_data_that_is_gone_is_refused(tmp_path, half):
    (tmp_path / "data.npz").unlink()
    with pytest.raises(RunError, match="data.npz, the data of .*, is not there any more; say where it is now"):
        resume(half)


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
    with pytest.raises(RunError, match=r"no checkpoint yet; train it first \(selfens resume"):
        load_run(tmp_path / "cut").predict(features().test_inputs)
    resume(tmp_path / "cut", dataset=features())
    assert differences(left_behind(tmp_path / "cut"), whole(config())) == []


@pytest.mark.parametrize("start", [resume, lambda run, dataset: load_run(run).predict(dataset.test_inputs)])
def test_a_history_without_its_checkpoint_is_not_begun_anew(finished, start):
    (finished / "checkpoint.safetensors").unlink()
    before = contents(finished)
    with pytest.raises(
        RunError, match="a history of 3 epochs but no checkpoint.safetensors to go on from; put that back"
    ):
        start(finished, dataset=features())
    assert contents(finished) == before


def test_a_run_that_lost_its_ensemble_is_still_evaluated(finished):
    shutil.rmtree(finished / "targets")
    run = load_run(finished)
    assert run.evaluate(features())["test_error"] == pytest.approx(run.test_error)
    with pytest.raises(RunError, match="targets.* cannot be read"):
        _ = run.ensemble


def test_a_finished_run_moved_elsewhere_still_works(tmp_path, finished):
    finished.rename(tmp_path / "moved")
    assert load_run(tmp_path / "moved").evaluate(features())["rows"] == 30


def test_the_command_line_gives_the_same_bits_as_python(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    settings = npz_config(tmp_path)
    done = selfens_command(*train_arguments(npz, tmp_path / "run", settings), "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert differences(left_behind(tmp_path / "run"), npz_whole(tmp_path, settings)) == []


def test_a_config_edited_by_hand_is_not_continued(half):
    text = (half / "config.json").read_text()
    (half / "config.json").write_text(text.replace('"decay": 0.6', '"decay": 0.7'))
    with pytest.raises(RunError, match=r"config\.json was changed after the run began"):
        resume(half)
    (half / "config.json").write_text(text)
    assert resume(half).finished


def test_a_checkpoint_replaced_while_it_is_read_is_read_again(half, monkeypatch):
    directory = selfens.runs.directory.RunDirectory(half)
    genuine, calls = directory._load_pair, []

    def replaced_meanwhile(with_targets):
        calls.append(directory.reached())
        if len(calls) == 1:
            monkeypatch.setattr(directory, "reached", lambda: (99, 0))
            raise RunError("the ensemble it names is gone")
        return genuine(with_targets)

    monkeypatch.setattr(directory, "_load_pair", replaced_meanwhile)
    assert directory.load_checkpoint().tensors["network"]
    assert len(calls) == 2
