"""A run whose ensemble is in a file: the same bits as in memory, after kills at any moment too, and one sentence for what
is wrong with the file."""

import errno
import gc
import json
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from support import (
    STEPS,
    At,
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
from selfens.core import targets as core_targets
from selfens.core.targets import EnsembleTargets
from selfens.errors import ConfigError, RunError
from selfens.files import targets_file
from selfens.files.targets_file import PAGE, TargetsFile
from selfens.files.tensors import write_atomically
from selfens.runs.directory import RunDirectory
from selfens.tools import audit, folds


def stop():
    signal.raise_signal(signal.SIGINT)


def in_file(folder, *overrides, epochs=3, **more):
    return config("temporal", f"method.targets={folder / 'z'}", *overrides, epochs=epochs, **more)


def all_left_behind(path):
    """Besides what any run leaves: the ensemble, from wherever it is."""
    left = {key: value for key, value in left_behind(path).items() if not key.startswith("targets/")}
    state = load_run(path).ensemble.state_dict()
    return left | {f"ensemble/{name}": tensor.numpy().tobytes() for name, tensor in state.items()}


@pytest.fixture
def whole(tmp_path):
    """What the same run never interrupted, with its ensemble in memory, leaves behind."""

    def leave(settings):
        run = train(settings.with_values("method", targets="device"), tmp_path / "whole", dataset=features())
        return all_left_behind(run.path)

    return leave


@pytest.fixture
def finished(tmp_path):
    return train(in_file(tmp_path), tmp_path / "run", dataset=features())


# The same as in memory


@pytest.mark.parametrize("override", ["method.targets_type=float16", "method.variance=false"])
@pytest.mark.parametrize("place", ["ram", "file"])
def test_a_run_is_the_same_wherever_its_ensemble_is_kept(tmp_path, whole, place, override):
    kept = str(tmp_path / "z") if place == "file" else place
    settings = config("temporal", override).with_values("method", targets=kept)
    run = train(settings, tmp_path / "run", dataset=features())
    assert differences(all_left_behind(run.path), whole(settings)) == []


def test_steps_with_prefetched_targets_are_the_same(tmp_path, whole, monkeypatch):
    """As on a GPU, here on a CPU and with staging buffers for two steps."""
    genuine = EnsembleTargets.__init__

    def init(self, *arguments, **options):
        genuine(self, *arguments, **options)
        self.prefetches = True

    settings = in_file(tmp_path)
    expected = whole(settings)
    with monkeypatch.context() as patched:
        patched.setattr(EnsembleTargets, "__init__", init)
        patched.setattr("selfens.core.targets_prefetch.BUFFER_ROWS", 20)
        with pytest.raises(KeyboardInterrupt):
            train(settings, tmp_path / "run", dataset=features(), progress=At(1, 2, stop))
        resume(tmp_path / "run", dataset=features())
    assert differences(all_left_behind(tmp_path / "run"), expected) == []


def test_what_is_made_of_the_ensemble_is_the_same(tmp_path, finished):
    other = train(config(), tmp_path / "other", dataset=features())
    ours, theirs = (audit.suggest_run(run, 20, features()) for run in (finished, other))
    assert ours.rows.tolist() == theirs.rows.tolist()
    ours, theirs = (run.predict_training_rows(features()) for run in (finished, other))
    np.testing.assert_array_equal(ours, theirs)
    every = torch.arange(60)
    np.testing.assert_array_equal(finished.ensemble.variance(every), other.ensemble.variance(every))


def test_the_folds_of_an_audit_leave_the_file_of_the_run_alone(tmp_path, finished):
    before = (tmp_path / "z").read_bytes()
    assert len(folds.audit_folds(finished.config, features(), 2).rows) == 12
    assert (tmp_path / "z").read_bytes() == before


def test_the_ensemble_of_a_run_can_be_read_and_not_written(tmp_path, finished):
    before = (tmp_path / "z").read_bytes()
    ensemble = finished.ensemble
    assert ensemble.get(torch.arange(60)).probabilities.shape == (60, 3)
    changes = [
        lambda: ensemble.write(torch.tensor([0]), torch.ones(1, 3)),
        ensemble.commit,
        lambda: next(ensemble.visit(torch.arange(60).reshape(6, 10))),
    ]
    for change in changes:
        with pytest.raises(RunError, match="z is open for reading only"):
            change()
    assert (tmp_path / "z").read_bytes() == before


def test_the_file_of_a_run_is_of_no_use_without_its_checkpoint(tmp_path, finished):
    before = (tmp_path / "z").read_bytes()
    ensemble = EnsembleTargets(60, 3, storage=tmp_path / "z")
    uses = [
        lambda: ensemble.get(torch.tensor([0])),
        lambda: ensemble.write(torch.tensor([0]), torch.ones(1, 3)),
        ensemble.commit,
        ensemble.seal,
        ensemble.state_dict,
    ]
    for use in uses:
        with pytest.raises(RunError, match="z holds targets that a checkpoint relies on"):
            use()
    ensemble.close()
    assert (tmp_path / "z").read_bytes() == before


def private_memory_of_a_large_file(folder):
    """Prints by how many MiB RssAnon grows while a file of six matrices of 32 MB is worked in."""

    def private():
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    torch.set_num_threads(1)
    order = torch.randperm(80_000).view(-1, 100)
    EnsembleTargets(100, 100).write(order[0] % 100, torch.rand(100, 100))
    before, largest = private(), 0.0
    ensemble = EnsembleTargets(80_000, 100, storage=folder / "z")
    for _ in range(2):
        for rows in ensemble.visit(order):
            ensemble.get(rows)
            ensemble.write(rows, torch.rand(100, 100))
        largest = max(largest, private())
        ensemble.commit()
        largest = max(largest, private())
        ensemble.seal()
    print(largest - before)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
def test_an_ensemble_in_a_file_takes_no_memory_of_its_own(tmp_path):
    assert finish(child(tmp_path / "out", private_memory_of_a_large_file, tmp_path)) == 0
    assert float((tmp_path / "out").read_text()) < 30


# Killed


def test_killed_at_random_moments_and_resumed_until_done_the_bits_are_the_same(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    settings = in_file(tmp_path, name=str(npz), epochs=20)
    expected = all_left_behind(train(settings.with_values("method", targets="device"), tmp_path / "whole").path)
    chance, kills, run, reached = random.Random(0), 0, tmp_path / "run", 0
    while True:
        begun = ["resume", str(run)] if run.exists() else train_arguments(npz, run, settings)
        process = child(tmp_path / "out", run_cli, [*begun, "--quiet"])
        wanted = reached + chance.randint(0, 5)
        while process.is_alive() and (not run.exists() or len(RunDirectory(run).history()) < wanted):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.02))
        process.kill()
        code = finish(process)
        if code == 0:  # it came to its end before the kill
            break
        assert code == -signal.SIGKILL, (tmp_path / "out").read_text()
        kills += 1
        reached = len(RunDirectory(run).history()) if run.exists() else 0
    assert kills >= 3
    assert differences(all_left_behind(run), expected) == []


SMALL_CHUNK = 15 * 4 * 3  # bytes: a commit has four parts of 15 rows
PLACES = {
    "commit": (EnsembleTargets, "_blend"),
    "copy": (torch.Tensor, "copy_"),  # into the other half, among others
    "unseal": (TargetsFile, "unseal"),
    "seal": (TargetsFile, "_write_seal"),
    "fsync": (os, "fsync"),
    "replace": (os, "replace"),
    "create": (targets_file, "_create"),
    "checkpoint": (RunDirectory, "save_checkpoint"),
}


@pytest.fixture
def small_chunks(monkeypatch):
    """Here as in the processes that are killed, because sums over other parts round differently."""
    monkeypatch.setitem(core_targets.CHUNK_BYTES, "cpu", SMALL_CHUNK)


def dying_in(place, number, before, function, arguments):
    """Call the function in a process that is killed before or after the given call of something it needs."""
    core_targets.CHUNK_BYTES["cpu"] = SMALL_CHUNK
    owner, name = PLACES[place]
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
    function(*arguments)


def own_loop(folder, storage=None):
    """A loop of one's own, with checkpoints within epochs and between some: goes on where the last one is."""
    targets = EnsembleTargets(60, 3, storage=storage or folder / "z")
    first, saved = (0, 0), folder / "checkpoint"

    def checkpoint(epoch, step):
        write_atomically(saved, json.dumps({"at": (epoch, step), "targets": targets.seal()}).encode())

    if saved.exists():
        found = json.loads(saved.read_text())
        first = found["at"]
        targets.restore(found["targets"])
    elif storage is None:
        checkpoint(0, 0)
    for epoch in range(first[0], 4):
        random = torch.Generator().manual_seed(epoch)
        order = torch.randperm(60, generator=random)[:50].view(5, 10)
        predictions = torch.rand(5, 10, 3, generator=random).softmax(dim=2)
        begun = first[1] if epoch == first[0] else 0
        for step, rows in enumerate(targets.visit(order[begun:]), start=begun):
            targets.write(rows, predictions[step])
            if storage is None and (epoch, step) in ((1, 2), (3, 1)):
                checkpoint(epoch, step + 1)
        targets.commit()
        if storage is None and epoch % 2 == 0:
            checkpoint(epoch + 1, 0)
    return targets


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("place", ["commit", "copy", "unseal", "seal", "fsync", "replace", "create"])
@pytest.mark.usefixtures("small_chunks")
def test_a_loop_killed_at_any_point_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path, place, before):
    expected, killed = own_loop(tmp_path, "ram").state_dict(), 0
    for number in (1, 2, 4, 7):
        folder = tmp_path / str(number)
        folder.mkdir()
        code = finish(child(tmp_path / "out", dying_in, place, number, before, own_loop, (folder,)))
        if code == 0:
            break  # there are no more of these calls
        assert code == -signal.SIGKILL, (tmp_path / "out").read_text()
        targets = own_loop(folder)
        found = targets.state_dict()
        assert differences_of(found, expected) == [], number
        targets.close()
        killed += 1
    assert killed >= 1


def differences_of(one, other):
    return [name for name in one | other if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("place", ["copy", "create", "fsync", "checkpoint"])
@pytest.mark.usefixtures("small_chunks")
def test_a_run_killed_around_its_checkpoints_is_the_same(tmp_path, place):
    npz = write_npz(tmp_path / "data.npz")
    settings = in_file(tmp_path, "training.checkpoint_every=2", name=str(npz))
    expected = all_left_behind(train(settings.with_values("method", targets="ram"), tmp_path / "whole").path)
    for number in (1, 3):
        settings = in_file(tmp_path / str(number), "training.checkpoint_every=2", name=str(npz))
        (tmp_path / str(number)).mkdir()
        run = tmp_path / str(number) / "run"
        code = finish(child(tmp_path / "out", dying_in, place, number, number == 3, train, (settings, run)))
        assert code in (0, -signal.SIGKILL), (tmp_path / "out").read_text()
        resume(run) if run.exists() else train(settings, run)
        assert differences(all_left_behind(run), expected) == [], number


@pytest.mark.parametrize(("place", "number"), [("commit", 1), ("copy", 2), ("unseal", 1), ("checkpoint", 1)])
@pytest.mark.usefixtures("small_chunks")
def test_stopped_within_an_epoch_and_killed_after_the_resume_the_bits_are_the_same(tmp_path, place, number):
    """The checkpoint in the middle of the epoch must survive what the resumed process does to its predictions."""
    npz = write_npz(tmp_path / "data.npz")
    settings = in_file(tmp_path, name=str(npz))
    expected = all_left_behind(train(settings.with_values("method", targets="device"), tmp_path / "whole").path)
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(settings, run, progress=At(1, 2, stop))
    assert int(load_run(run).ensemble.written.sum()) == 30
    code = finish(child(tmp_path / "out", dying_in, place, number, True, resume, (run,)))
    assert code == -signal.SIGKILL, (tmp_path / "out").read_text()
    resume(run)
    assert differences(all_left_behind(run), expected) == []


@pytest.mark.parametrize(("epoch", "step"), [(0, 3), (4, 2), (5, 5)])
def test_a_checkpoint_some_epochs_old_finds_the_ensemble_as_it_was_then(tmp_path, whole, epoch, step):
    settings = in_file(tmp_path, "training.checkpoint_every=3", epochs=7)
    with crashed():
        train(settings, tmp_path / "run", dataset=features(), progress=At(epoch, step, crash))
    run = load_run(tmp_path / "run")
    saved = epoch // 3 * 3
    assert run.directory.reached()[0] == saved
    assert run.ensemble.count.tolist() == [saved] * 60
    resume(tmp_path / "run", dataset=features())
    assert differences(all_left_behind(tmp_path / "run"), whole(settings)) == []


def test_stopped_at_every_step_of_an_epoch_in_turn_the_bits_are_the_same(tmp_path, whole):
    with pytest.raises(KeyboardInterrupt):
        train(in_file(tmp_path), tmp_path / "run", dataset=features(), progress=At(1, 0, stop))
    for _ in range(STEPS):
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run", dataset=features(), progress=At(0, 0, stop))
    resume(tmp_path / "run", dataset=features())
    assert differences(all_left_behind(tmp_path / "run"), whole(in_file(tmp_path))) == []


# What can be wrong before training starts


def refused(tmp_path, settings, sentence, error=RunError):
    """One sentence, no run, and every file as before."""
    before = contents(tmp_path)
    with pytest.raises(error, match=sentence) as raised:
        train(settings, tmp_path / "new", dataset=features())
    assert "\n" not in str(raised.value)
    assert contents(tmp_path) == before


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "z").write_text("years of work")
    refused(tmp_path, in_file(tmp_path), "z is not a file of targets")


def test_the_file_of_another_run_is_refused_and_left_alone(tmp_path, finished):
    refused(tmp_path, in_file(tmp_path), "z holds targets that a checkpoint relies on; name another")


def test_the_run_itself_again_points_to_resume(tmp_path, finished):
    with pytest.raises(RunError, match="already holds a run"):
        train(in_file(tmp_path), tmp_path / "run", dataset=features())


def test_a_folder_is_refused(tmp_path):
    (tmp_path / "z").mkdir()
    refused(tmp_path, in_file(tmp_path), "z' cannot be used for the targets .*it is a folder")


def test_a_file_within_the_directory_of_the_run_is_refused(tmp_path):
    refused(tmp_path, in_file(tmp_path / "new"), "z' cannot be used for the targets .*No such file or directory")
    (tmp_path / "new").mkdir()
    refused(tmp_path, in_file(tmp_path / "new"), "new exists and is not a run; choose another directory")


def test_a_place_in_capitals_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="method.targets is 'RAM'; expected device, ram or the path of a file"):
        config("temporal", "method.targets=RAM")


def test_what_is_no_file_is_refused_and_left_alone(tmp_path):
    os.mkfifo(tmp_path / "z")
    with pytest.raises(RunError, match="z' cannot be used for the targets .*not a regular file"):
        train(in_file(tmp_path), tmp_path / "new", dataset=features())
    assert (tmp_path / "z").is_fifo()


def test_a_file_in_use_by_a_copy_of_the_run_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(in_file(tmp_path), tmp_path / "run", dataset=features(), progress=At(1, 2, stop))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    in_use = EnsembleTargets(60, 3, storage=tmp_path / "z")
    with pytest.raises(RunError, match="z is in use by another process; wait for it or stop it"):
        resume(tmp_path / "copy", dataset=features())
    in_use.close()
    assert resume(tmp_path / "run", dataset=features()).finished


@pytest.mark.parametrize("name", ["a\0b", "loop", "x" * 300])
def test_what_cannot_be_a_path_is_refused(tmp_path, name):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for use in (
        lambda path: EnsembleTargets(60, 3, storage=path),
        lambda path: EnsembleTargets.read({"targets_file": path}),
    ):
        with pytest.raises(RunError) as raised:
            use(str(tmp_path / name))
        assert "\n" not in str(raised.value)


def test_a_state_can_be_loaded_into_a_file_without_harm_to_what_a_checkpoint_relies_on(tmp_path):
    ensemble, other = EnsembleTargets(60, 3, storage=tmp_path / "z"), EnsembleTargets(60, 3)
    for each, rows in ((ensemble, [0, 1]), (other, [1, 2])):
        each.write(torch.tensor(rows), torch.full((2, 3), 1 / 3))
        each.commit()
    metadata = ensemble.seal()
    ensemble.load_state_dict(other.state_dict())
    assert ensemble.count.nonzero().flatten().tolist() == [1, 2]
    assert EnsembleTargets.read(metadata).count.nonzero().flatten().tolist() == [0, 1]
    with pytest.raises(ValueError, match="saved with decay 0.9; make the ensemble with the same"):
        ensemble.load_state_dict(EnsembleTargets(60, 3, decay=0.9).state_dict())


def test_a_file_removed_while_it_is_in_use_is_noticed_at_the_next_checkpoint(tmp_path):
    ensemble = EnsembleTargets(60, 3, storage=tmp_path / "z")
    (tmp_path / "z").unlink()
    with pytest.raises(RunError, match="z was removed or replaced while it was in use, so the targets are lost"):
        ensemble.seal()


def test_the_path_of_a_run_may_be_long(tmp_path):
    deep = tmp_path.joinpath(*["🙂" * 60] * 8)
    deep.mkdir(parents=True)
    run = train(in_file(tmp_path), deep / "run", dataset=features())
    assert load_run(run.path).ensemble.mean.shape == (60, 3)


def test_a_disk_without_room_is_refused_before_training(tmp_path, monkeypatch):
    def full(descriptor, start, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    refused(
        tmp_path,
        in_file(tmp_path),
        "z could not be written because the disk is full; free some room",
    )


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
@pytest.mark.parametrize("failing", ["posix_fallocate", "mmap"])
def test_what_could_not_be_made_or_opened_is_closed(tmp_path, monkeypatch, failing):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(targets_file.os if failing == "posix_fallocate" else targets_file.mmap, failing, full)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(RunError):
            EnsembleTargets(60, 3, storage=tmp_path / "z")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not (tmp_path / "z").exists()


def test_a_small_disk_is_refused_before_training_by_the_command(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    arguments = train_arguments(npz, tmp_path / "run", in_file(tmp_path, name=str(npz)))
    before = contents(tmp_path)
    assert finish(child(tmp_path.parent / "out", run_cli_with_small_disk, 15_000, arguments)) == 1
    said = (tmp_path.parent / "out").read_text()
    assert "z could not be written because the disk is full; free some room" in said
    assert len(said.splitlines()) == 1
    assert contents(tmp_path) == before


def test_a_read_only_folder_is_refused_before_training(tmp_path):
    npz = write_npz(tmp_path / "data.npz")
    (tmp_path / "closed").mkdir(mode=0o555)
    arguments = train_arguments(npz, tmp_path / "run", in_file(tmp_path / "closed", name=str(npz)))
    assert finish(child(tmp_path / "out", run_cli_without_privileges, arguments)) == 1
    said = (tmp_path / "out").read_text()
    assert said.startswith(
        f"error: '{tmp_path / 'closed' / 'z'}' cannot be used for the targets ([Errno 13] Permission denied"
    )
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["nothing", "empty", "abandoned"])
def test_what_may_be_there_or_not(tmp_path, what):
    if what == "empty":
        (tmp_path / "z").touch()
    elif what == "abandoned":  # by a process that was killed before its first checkpoint
        EnsembleTargets(5, 2, storage=tmp_path / "z").write(torch.tensor([0]), torch.ones(1, 2))
    assert train(in_file(tmp_path), tmp_path / "run", dataset=features()).finished


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    refused(tmp_path, in_file(tmp_path / "a" / "b"), "z' cannot be used for the targets .*No such file or directory")
    assert not (tmp_path / "a").exists()


def test_a_run_that_cannot_be_made_leaves_no_file(tmp_path, monkeypatch):
    def fails(*arguments):
        raise RunError("no.")

    monkeypatch.setattr(RunDirectory, "create", fails)
    refused(tmp_path, in_file(tmp_path), "no.")


def test_a_relative_path_is_found_again_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with crashed():
        settings = config().with_values("method", targets="z")
        train(settings, tmp_path / "run", dataset=features(), progress=At(1, 1, crash))
    monkeypatch.chdir(tmp_path.parent)
    assert resume(tmp_path / "run", dataset=features()).finished


# What can be wrong when a run goes on


@pytest.fixture
def half(tmp_path):
    with crashed():
        train(in_file(tmp_path), tmp_path / "run", dataset=features(), progress=At(2, 2, crash))
    return tmp_path / "run"


def not_resumed(run, sentence, when_read=None):
    before = contents(run)
    with pytest.raises(RunError, match=sentence) as raised:
        resume(run, dataset=features())
    assert "\n" not in str(raised.value)
    assert {k: v for k, v in contents(run).items() if k != "history.jsonl"} == {
        k: v for k, v in before.items() if k != "history.jsonl"
    }
    with pytest.raises(RunError, match=when_read or sentence):
        _ = load_run(run).ensemble


def test_a_missing_file_is_named_and_not_made_anew(tmp_path, half):
    (tmp_path / "z").rename(tmp_path / "elsewhere")
    gone = "z' cannot be used for the targets .*No such file or directory"
    not_resumed(half, "z is not as this checkpoint left it; put back the file", gone)
    assert not (tmp_path / "z").exists()
    assert load_run(half).predict(features().test_inputs).shape == (30,)  # the network is there all the same
    (tmp_path / "z").symlink_to(tmp_path / "elsewhere")
    assert resume(half, dataset=features()).finished


def test_a_file_cut_short_is_refused(tmp_path, half):
    os.truncate(tmp_path / "z", 20_000)
    not_resumed(half, r"z is cut short or damaged \(20,000 bytes long\)")


def change_header(path, **changes):
    with open(path, "r+b") as file:
        header = json.loads(file.read(PAGE)) | changes
        file.seek(0)
        file.write(json.dumps(header).encode().ljust(PAGE))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"format": "selfens targets 1"}, "is not a file of targets in the format 'selfens targets 2'"),
        ({"format": ["?"]}, "is not a file of targets"),
        ({"num_rows": 6000}, "cut short or damaged"),
        ({"num_rows": -60, "num_classes": -3}, "cut short or damaged"),
        ({"num_rows": 10**300}, "cut short or damaged"),
        ({"num_rows": 60.0}, "cut short or damaged"),
        ({"num_classes": "3"}, "cut short or damaged"),
        ({"dtype": ["float32"]}, "cut short or damaged"),
        ({"decay": None}, "cut short or damaged"),
        ({"decay": 2}, "cut short or damaged"),
    ],
)
def test_a_header_that_is_not_ours_is_refused(tmp_path, half, changes, sentence):
    change_header(tmp_path / "z", **changes)
    not_resumed(half, f"z .*{sentence}")


@pytest.mark.parametrize("page", [b"[" * PAGE, b"\xff" * PAGE, b"null".ljust(PAGE), b"{}".ljust(PAGE)])
def test_a_header_that_is_no_header_is_refused(tmp_path, half, page):
    with open(tmp_path / "z", "r+b") as file:
        file.write(page)
    not_resumed(half, "z is not a file of targets")


def test_a_file_of_another_shape_is_refused(tmp_path, half):
    (tmp_path / "z").unlink()
    other = EnsembleTargets(61, 3, storage=tmp_path / "z")
    other.seal()
    other.close()
    with pytest.raises(RunError, match="z holds targets of 61 rows of 3 classes .*; expected 60 rows of 3 classes"):
        resume(half, dataset=features())


def test_a_file_whose_header_tells_of_fewer_rows_is_refused_when_it_is_read(tmp_path, finished):
    with open(tmp_path / "z", "r+b") as file:
        header = json.loads(file.read(PAGE)) | {"num_rows": 59}
        file.seek(0)
        file.write(json.dumps(header).encode().ljust(PAGE - 1) + b"\n")
    with pytest.raises(RunError, match="are damaged .they are of 59 rows of 3 classes"):
        load_run(finished.path).predict_training_rows(features())


def test_a_file_of_another_run_is_refused_on_a_resume(tmp_path, half):
    (tmp_path / "other").mkdir()
    train(in_file(tmp_path / "other"), tmp_path / "other" / "run", dataset=features())
    shutil.copy(tmp_path / "other" / "z", tmp_path / "z")
    not_resumed(half, "z is not as this checkpoint left it")


@pytest.mark.parametrize("change", [{"targets_half": "2"}, {"targets_token": ""}, {"targets_token": "other"}])
def test_a_checkpoint_that_names_no_seal_of_the_file_is_refused(tmp_path, change):
    ensemble = EnsembleTargets(60, 3, storage=tmp_path / "z")
    metadata = ensemble.seal() | change
    for use in (ensemble.restore, EnsembleTargets.read):
        with pytest.raises(RunError, match="is not as this checkpoint left it"):
            use(metadata)


def test_a_checkpoint_put_back_from_an_older_copy_is_refused(tmp_path):
    run = tmp_path / "run"
    with crashed():
        train(in_file(tmp_path), run, dataset=features(), progress=At(1, 2, crash))
    old = (run / "checkpoint.safetensors").read_bytes()
    resume(run, dataset=features())
    (run / "checkpoint.safetensors").write_bytes(old)
    not_resumed(run, "z is not as this checkpoint left it")


def test_a_run_moved_elsewhere_still_finds_its_file(tmp_path, half):
    half.rename(tmp_path / "moved")
    assert resume(tmp_path / "moved", dataset=features()).finished
    assert load_run(tmp_path / "moved").ensemble.count.tolist() == [3] * 60
