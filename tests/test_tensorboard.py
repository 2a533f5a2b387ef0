"""What TensorBoard is given, read back as TensorBoard reads it."""

import re
import sys
import warnings

import pytest
from support import STEPS, At, config, crash, crashed, differences, features, left_behind, write_npz

from selfens import load_run, resume, train
from selfens.errors import SelfensWarning
from selfens.tools.tensorboard import TensorBoard
from selfens.training.progress import Progress, WarningsOnly

SMALL = ["--epochs", "3", "--quiet", "--device", "cpu", "--set", "network.width=4", "--set", "training.threads=1"]


def logged(run_dir):
    """By name, the steps and values of every scalar."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader's own
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
        return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def assert_is_the_history(run_dir):
    history, found = load_run(run_dir).history, logged(run_dir)
    numbers = {name for record in history for name, value in record.items() if value is not None} - {"epoch"}
    assert set(found) == numbers
    assert numbers >= {"supervised", "unsupervised", "total", "weight", "learning_rate", "beta1", "images_per_second"}
    for name, values in found.items():
        assert values == [(r["epoch"], pytest.approx(r[name], rel=1e-6)) for r in history], name


def crash_in_the_second_epoch(run, is_logged=False):
    settings, crashing = config(name=str(write_npz(run.with_suffix(".npz")))), At(1, 2, crash)
    with crashed():
        train(settings, run, progress=TensorBoard(run, crashing) if is_logged else crashing)


def test_train_logs_the_numbers_of_the_history_if_asked_to(typed, tmp_path):
    npz = write_npz(tmp_path / "blobs.npz")
    code, out, err = typed("train", npz, "--run", "run", "--tensorboard", *SMALL)
    assert (code, err) == (0, "")
    assert re.match(r"error \d+\.\d\d % \(90 % interval \S+ to \S+\), on 30 test rows; trained 3 epochs in ", out)
    assert_is_the_history(tmp_path / "run")
    assert "test_error" in logged(tmp_path / "run")
    assert typed("train", npz, "--run", "other", *SMALL)[0] == 0
    assert not (tmp_path / "other" / "tensorboard").exists()


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("begun_with_it", [True, False])
def test_a_resume_neither_doubles_an_epoch_nor_leaves_one_out(tmp_path, every, begun_with_it):
    """A crash in epoch 5, with the last checkpoint at 4 or at 3. What was logged after the checkpoint must go."""
    settings = config("temporal", f"training.checkpoint_every={every}", epochs=6)
    crashing = At(4, STEPS // 2, crash)
    first = TensorBoard(tmp_path / "run", crashing) if begun_with_it else crashing
    with crashed():
        train(settings, tmp_path / "run", dataset=features(), progress=first)
    resume(tmp_path / "run", dataset=features(), progress=TensorBoard(tmp_path / "run"))
    assert_is_the_history(tmp_path / "run")
    assert [step for step, _ in logged(tmp_path / "run")["total"]] == list(range(6))
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1  # for readers that know of no purging


def test_an_interrupted_run_is_resumed_from_the_command_line(typed, tmp_path):
    crash_in_the_second_epoch(tmp_path / "run", is_logged=True)
    assert [step for step, _ in logged(tmp_path / "run")["total"]] == [0]
    assert typed("resume", "run", "--tensorboard", "--quiet")[0] == 0
    assert_is_the_history(tmp_path / "run")


def test_an_epoch_is_there_as_soon_as_it_is_over_without_what_was_not_measured(tmp_path):
    seen = []

    class Looking(WarningsOnly):
        def epoch(self, record):
            seen.append(len(logged(tmp_path / "run")["total"]))

    shown = TensorBoard(tmp_path / "run", Looking())
    train(config(epochs=2), tmp_path / "run", dataset=features(test_rows=0), progress=shown)
    assert seen == [1, 2]
    assert_is_the_history(tmp_path / "run")
    assert "test_error" not in logged(tmp_path / "run")


def test_what_is_shown_besides_is_shown_as_before(tmp_path):
    class Recording(Progress):
        has_bars = True

    calls, data = [], features(test_rows=0)
    for name in ("start", "step", "epoch", "warn", "close"):
        setattr(Recording, name, lambda self, *given, name=name, **named: calls.append((name, len(given), [*named])))
    inside = TensorBoard(tmp_path / "a", Recording())
    assert inside.has_bars
    train(config(epochs=2), tmp_path / "a", dataset=data, progress=inside)
    alone, calls[:] = list(calls), []
    train(config(epochs=2), tmp_path / "b", dataset=data, progress=Recording())
    assert calls == alone
    assert {name for name, *_ in calls} >= {"start", "step", "epoch", "close"}


@pytest.mark.parametrize("command", ["train", "resume"])
def test_a_missing_package_is_one_sentence_before_training(typed, tmp_path, monkeypatch, command):
    words = ["resume", "run"]
    if command == "resume":
        crash_in_the_second_epoch(tmp_path / "run")
    else:
        words = ["train", write_npz(tmp_path / "blobs.npz"), "--run", "run", *SMALL]
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    code, out, err = typed(*words, "--tensorboard")
    assert (code, out) == (1, "")
    assert err.startswith("error: writing for TensorBoard needs the package tensorboard, which cannot be imported")
    assert err.endswith("pip install 'selfens[tensorboard]'\n")
    assert len(err.splitlines()) == 1
    assert (tmp_path / "run").exists() == (command == "resume")
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_place_that_cannot_be_written_is_one_sentence(typed, tmp_path):
    crash_in_the_second_epoch(tmp_path / "run")
    (tmp_path / "run" / "tensorboard").write_text("a file in the way")
    code, _, err = typed("resume", "run", "--tensorboard", "--quiet")
    assert code == 1
    assert err.startswith("error: run/tensorboard could not be written (")
    assert len(err.splitlines()) == 1


def test_a_full_disk_ends_the_logging_and_not_the_run(tmp_path):
    class Filling(WarningsOnly):
        def epoch(self, record):
            if record["epoch"] == 0:
                shown.file.unlink()
                shown.file.symlink_to("/dev/full")

    shown = TensorBoard(tmp_path / "a", Filling())
    with pytest.warns(
        SelfensWarning, match="logging for TensorBoard stopped: .*tensorboard could not be .* the disk is full"
    ) as told:
        run = train(config(epochs=4), tmp_path / "a", dataset=features(), progress=shown)
    train(config(epochs=4), tmp_path / "b", dataset=features())
    assert differences(left_behind(tmp_path / "a"), left_behind(tmp_path / "b")) == []
    assert run.finished
    assert len(told) == 1
