"""What TensorBoard is given, read back as TensorBoard reads it."""

import errno
import sys
import warnings

import pytest
from support import STEPS, Crash, config, crashed, features, write_npz

from selfens import load_run, resume, train
from selfens.tools.tensorboard import TensorBoard
from selfens.training.progress import Silent

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


class CrashingAt(Silent):
    """Ends the process in the given step of the given epoch, as far as the files can tell."""

    def __init__(self, epoch, step):
        self.at, self.done = (epoch, step), 0

    def step(self, epoch, step):
        if (self.done, step) == self.at:
            raise Crash

    def epoch(self, record):
        self.done = record["epoch"] + 1


def test_train_logs_the_numbers_of_the_history(typed, tmp_path):
    npz = write_npz(tmp_path / "blobs.npz")
    code, out, err = typed("train", npz, "--run", "run", "--tensorboard", *SMALL)
    assert (code, err) == (0, "")
    assert out.startswith("test error ")
    assert_is_the_history(tmp_path / "run")
    assert "test_error" in logged(tmp_path / "run")


def test_without_the_option_nothing_is_written(typed, tmp_path):
    assert typed("train", write_npz(tmp_path / "blobs.npz"), "--run", "run", *SMALL)[0] == 0
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_numbers_that_are_not_there_are_left_out(tmp_path):
    train(config(), tmp_path / "run", dataset=features(test_rows=0), progress=TensorBoard(tmp_path / "run"))
    assert_is_the_history(tmp_path / "run")
    assert "test_error" not in logged(tmp_path / "run")


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("begun_with_it", [True, False])
def test_a_resume_neither_doubles_an_epoch_nor_leaves_one_out(tmp_path, every, begun_with_it):
    """Crashed in epoch 5 with the last checkpoint at 4 or at 3; what was logged after it happened in another past."""
    settings = config("temporal", f"training.checkpoint_every={every}", epochs=6)
    crashing = CrashingAt(4, STEPS // 2)
    first = TensorBoard(tmp_path / "run", crashing) if begun_with_it else crashing
    with crashed():
        train(settings, tmp_path / "run", dataset=features(), progress=first)
    resume(tmp_path / "run", dataset=features(), progress=TensorBoard(tmp_path / "run"))
    assert_is_the_history(tmp_path / "run")
    assert [step for step, _ in logged(tmp_path / "run")["total"]] == list(range(6))
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1  # for readers that know of no purging


def test_an_interrupted_run_is_resumed_from_the_command_line(typed, tmp_path):
    npz = write_npz(tmp_path / "blobs.npz")
    progress = TensorBoard(tmp_path / "run", CrashingAt(1, 2))
    with crashed():
        train(config(name=str(npz)), tmp_path / "run", progress=progress)
    assert [step for step, _ in logged(tmp_path / "run")["total"]] == [0]
    assert typed("resume", "run", "--tensorboard", "--quiet")[0] == 0
    assert_is_the_history(tmp_path / "run")


def test_an_epoch_is_there_as_soon_as_it_is_over(tmp_path):
    seen = []

    class Looking(Silent):
        def epoch(self, record):
            seen.append(len(logged(tmp_path / "run")["total"]))

    train(config(epochs=2), tmp_path / "run", dataset=features(), progress=TensorBoard(tmp_path / "run", Looking()))
    assert seen == [1, 2]


def test_what_is_shown_besides_is_shown_as_before(tmp_path):
    calls = []

    class Recording(Silent):
        talkative = True

        def start(self, title, **numbers):
            calls.append(("start", numbers["epochs"]))

        def step(self, epoch, step):
            calls.append(("step", step))

        def epoch(self, record):
            calls.append(("epoch", record["epoch"]))

        def warn(self, message):
            calls.append(("warn", message.split()[0]))

        def close(self):
            calls.append(("close", None))

    inside = TensorBoard(tmp_path / "a", Recording())
    assert inside.talkative
    data = features(test_rows=0)
    train(config(epochs=2), tmp_path / "a", dataset=data, progress=inside)
    alone, calls[:] = list(calls), []
    train(config(epochs=2), tmp_path / "b", dataset=data, progress=Recording())
    assert calls == alone
    assert calls[0] == ("start", 2)
    assert calls[-1] == ("close", None)


@pytest.mark.parametrize("command", ["train", "resume"])
def test_a_missing_package_is_one_sentence_before_training(typed, tmp_path, monkeypatch, command):
    npz = write_npz(tmp_path / "blobs.npz")
    if command == "resume":
        with crashed():
            train(config(name=str(npz)), tmp_path / "run", progress=CrashingAt(1, 2))
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    words = ["train", npz, "--run", "run", *SMALL] if command == "train" else ["resume", "run"]
    code, out, err = typed(*words, "--tensorboard")
    assert (code, out) == (1, "")
    assert err.startswith("error: writing for TensorBoard needs the package tensorboard, which cannot be imported")
    assert err.endswith("pip install 'selfens[tensorboard]'\n")
    assert len(err.splitlines()) == 1
    assert (tmp_path / "run").exists() == (command == "resume")
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_place_that_cannot_be_written_is_one_sentence(typed, tmp_path):
    npz = write_npz(tmp_path / "blobs.npz")
    with crashed():
        train(config(name=str(npz)), tmp_path / "run", progress=CrashingAt(1, 2))
    (tmp_path / "run" / "tensorboard").write_text("a file in the way")
    code, _, err = typed("resume", "run", "--tensorboard", "--quiet")
    assert code == 1
    assert err.startswith("error: run/tensorboard could not be written (")
    assert len(err.splitlines()) == 1


def test_a_disk_that_fills_up_is_one_sentence_and_the_run_goes_on_later(typed, tmp_path, monkeypatch):
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(records):
        if load_run("run").history:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(RecordWriter, "flush", full)
        code, _, err = typed("train", write_npz(tmp_path / "blobs.npz"), "--run", "run", "--tensorboard", *SMALL)
    assert code == 1
    assert err.startswith("error: run/tensorboard could not be written because the disk is full")
    assert len(err.splitlines()) == 1
    assert typed("resume", "run", "--tensorboard", "--quiet")[0] == 0
    assert_is_the_history(tmp_path / "run")
