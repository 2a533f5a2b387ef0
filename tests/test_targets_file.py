"""A run whose ensemble is in a file: the same bits as in memory, after kills at any moment too, and one sentence for what
is wrong with the file."""

import errno
import gc
import json
import os
import shutil
import signal

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
    interrupt,
    left_behind,
    run_cli_with_small_disk,
    run_cli_without_privileges,
    train_arguments,
    write_npz,
)

from selfens import load_run, resume, train
from selfens.core.targets import EnsembleTargets
from selfens.core.targets import file as targets_file
from selfens.core.targets.ensemble import CHUNK_BYTES
from selfens.core.targets.file import PAGE, TargetsFile
from selfens.errors import ConfigError, RunError
from selfens.files.tensors import write_atomically
from selfens.runs.directory import RunDirectory
from selfens.tools import audit, folds

EVERY = torch.arange(60)


def in_file(folder, *overrides, epochs=3, **more):
    """Settings of a run with its ensemble in a file, and a checkpoint after every epoch."""
    kept = (f"method.storage={folder / 'z'}", "training.checkpoint_every=1")
    return config("temporal", *kept, *overrides, epochs=epochs, **more)


def stopped(settings, path, epoch, step, how=interrupt):
    """A run that ended after a step: it was told to, or crashed."""
    with pytest.raises(KeyboardInterrupt) if how is interrupt else crashed():
        train(settings, path, dataset=features(), progress=At(epoch, step, how))
    return path


def all_left_behind(path):
    """Besides what any run leaves: the ensemble, from wherever it is."""
    left = {key: value for key, value in left_behind(path).items() if not key.startswith("targets/")}
    state = load_run(path).ensemble.state_dict()
    return left | {f"ensemble/{name}": tensor.numpy().tobytes() for name, tensor in state.items()}


@pytest.fixture
def whole(tmp_path):
    """What the same run never interrupted, with its ensemble in memory, leaves behind."""

    def leave(settings, dataset=None):
        run = train(settings.with_values("method", storage="device"), tmp_path / "whole", dataset=dataset)
        return all_left_behind(run.path)

    return leave


@pytest.fixture
def finished(tmp_path):
    return train(in_file(tmp_path), tmp_path / "run", dataset=features())


# The same as in memory


@pytest.mark.parametrize("override", ["method.storage_type=float16", "method.variance=false"])
@pytest.mark.parametrize("place", ["ram", "file"])
def test_a_run_is_the_same_wherever_its_ensemble_is_kept(tmp_path, whole, place, override):
    kept = str(tmp_path / "z") if place == "file" else place
    settings = config("temporal", override).with_values("method", storage=kept)
    run = train(settings, tmp_path / "run", dataset=features())
    assert differences(all_left_behind(run.path), whole(settings, features())) == []


def test_what_is_made_of_the_ensemble_is_the_same(tmp_path, finished):
    other = train(config(), tmp_path / "other", dataset=features())
    ours, theirs = (audit.suggest_run(run, 20, features()) for run in (finished, other))
    assert ours.rows.tolist() == theirs.rows.tolist()
    ours, theirs = (run.predict_training_rows(features()) for run in (finished, other))
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(finished.ensemble.variance(EVERY), other.ensemble.variance(EVERY))


def test_the_file_of_a_run_can_be_read_and_is_left_alone(tmp_path, finished):
    """By folds, which train, by a finished run, which only reads, and by a caller without the run's checkpoint."""
    before, rows = (tmp_path / "z").read_bytes(), torch.tensor([0])
    assert len(folds.audit_folds(finished.config, features(), 2).rows) == 12
    ensemble, locked = finished.ensemble, EnsembleTargets(60, 3, storage=tmp_path / "z")
    assert ensemble.get(EVERY).probabilities.shape == (60, 3)
    for each, sentence, uses in (
        (ensemble, "is open for reading only", ()),
        (locked, "holds targets that a checkpoint relies on", ("get", "seal", "state_dict")),
    ):
        arguments = {"write": (rows, torch.ones(1, 3)), "visit": (EVERY.view(6, 10),), "get": (rows,)}
        for use in ("write", "visit", "commit", *uses):
            with pytest.raises(RunError, match=f"z {sentence}"):
                list(getattr(each, use)(*arguments.get(use, ())))
    locked.close()
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
    monkeypatch.setitem(CHUNK_BYTES, "cpu", SMALL_CHUNK)


def dying_in(place, number, before, function, arguments):
    """Call the function in a process that is killed before or after the given call of something it needs."""
    CHUNK_BYTES["cpu"] = SMALL_CHUNK
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


def killed_in(tmp_path, *where):
    """Whether it came to that, in a process that runs `dying_in`."""
    code = finish(child(tmp_path / "out", dying_in, *where))
    assert code in (0, -signal.SIGKILL), (tmp_path / "out").read_text()
    return code != 0


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
    expected, kills = own_loop(tmp_path, "ram").state_dict(), 0
    for number in (1, 2, 4, 7):
        folder = tmp_path / str(number)
        folder.mkdir()
        if not killed_in(tmp_path, place, number, before, own_loop, (folder,)):
            break  # there are no more of these calls
        targets = own_loop(folder)
        found = targets.state_dict()
        assert [name for name in found | expected if not torch.equal(found[name], expected[name])] == [], number
        targets.close()
        kills += 1
    assert kills >= 1


@pytest.mark.parametrize("place", ["copy", "create", "fsync", "checkpoint"])
@pytest.mark.usefixtures("small_chunks")
def test_a_run_killed_around_its_checkpoints_is_the_same(tmp_path, whole, place):
    npz = str(write_npz(tmp_path / "data.npz"))
    expected = whole(in_file(tmp_path, "training.checkpoint_every=2", name=npz))
    for number in (1, 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        settings, run = in_file(folder, "training.checkpoint_every=2", name=npz), folder / "run"
        killed_in(tmp_path, place, number, number == 3, train, (settings, run))
        resume(run) if run.exists() else train(settings, run)
        assert differences(all_left_behind(run), expected) == [], number


@pytest.mark.parametrize(("place", "number"), [("commit", 1), ("copy", 2), ("unseal", 1), ("checkpoint", 1)])
@pytest.mark.usefixtures("small_chunks")
def test_stopped_within_an_epoch_and_killed_after_the_resume_the_bits_are_the_same(tmp_path, whole, place, number):
    """The checkpoint in the middle of the epoch must survive what the resumed process does to its predictions."""
    settings, run = in_file(tmp_path, name=str(write_npz(tmp_path / "data.npz"))), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(settings, run, progress=At(1, 2, interrupt))
    assert int(load_run(run).ensemble.written.sum()) == 30
    assert killed_in(tmp_path, place, number, True, resume, (run,))
    resume(run)
    assert differences(all_left_behind(run), whole(settings)) == []


@pytest.mark.parametrize(("epoch", "step"), [(0, 3), (4, 2), (5, 5)])
def test_a_checkpoint_some_epochs_old_finds_the_ensemble_as_it_was_then(tmp_path, whole, epoch, step):
    settings = in_file(tmp_path, "training.checkpoint_every=3", epochs=7)
    run = load_run(stopped(settings, tmp_path / "run", epoch, step, crash))
    saved = epoch // 3 * 3
    assert run.directory.position()[0] == saved
    assert run.ensemble.count.tolist() == [saved] * 60
    resume(tmp_path / "run", dataset=features())
    assert differences(all_left_behind(tmp_path / "run"), whole(settings, features())) == []


def test_stopped_at_every_step_of_an_epoch_in_turn_the_bits_are_the_same(tmp_path, whole):
    run = stopped(in_file(tmp_path), tmp_path / "run", 1, 0)
    for _ in range(STEPS):
        with pytest.raises(KeyboardInterrupt):
            resume(run, dataset=features(), progress=At(0, 0, interrupt))
    resume(run, dataset=features())
    assert differences(all_left_behind(run), whole(in_file(tmp_path), features())) == []


# What can be wrong before training starts


def refused(tmp_path, settings, sentence, error=RunError):
    """One sentence, no run, and every file as before."""
    before = contents(tmp_path)
    with pytest.raises(error, match=sentence) as raised:
        train(settings, tmp_path / "new", dataset=features())
    assert "\n" not in str(raised.value)
    assert contents(tmp_path) == before
    assert not (tmp_path / "new" / "config.json").exists()


@pytest.mark.parametrize(
    ("make", "place", "sentence"),
    [
        (lambda z: z.write_text("years of work"), "", "z is not a file of targets"),
        (lambda z: z.mkdir(), "", "z' cannot be used for the targets .*it is a folder"),
        (os.mkfifo, "", "z' cannot be used for the targets .*not a regular file"),
        (lambda z: None, "a/b", "z' cannot be used for the targets .*No such file or directory"),
        (lambda z: None, "new", "z' cannot be used for the targets .*No such file or directory"),
        (lambda z: (z.parent / "new").mkdir(), "new", "new exists and is not a run; choose another directory"),
        (
            lambda z: train(in_file(z.parent), z.parent / "run", dataset=features()),
            "",
            "z holds targets that a checkpoint relies on; name another file, or delete this one",
        ),
    ],
    ids=["a text", "a folder", "a pipe", "nowhere", "in the run", "in the folder of the run", "of another run"],
)
def test_a_place_that_cannot_be_used_is_refused_and_left_alone(tmp_path, make, place, sentence):
    make(tmp_path / "z")
    refused(tmp_path, in_file(tmp_path / place), sentence)
    assert not (tmp_path / "a").exists()


def test_the_run_itself_again_points_to_resume(tmp_path, finished):
    with pytest.raises(RunError, match="already holds a run; resume it"):
        train(in_file(tmp_path), tmp_path / "run", dataset=features())


def test_a_place_in_capitals_is_no_file():
    with pytest.raises(ConfigError, match="method.storage is 'RAM'; expected device, ram or the path of a file"):
        config("temporal", "method.storage=RAM")


def test_a_file_in_use_by_a_copy_of_the_run_is_refused(tmp_path):
    shutil.copytree(stopped(in_file(tmp_path), tmp_path / "run", 1, 2), tmp_path / "copy")
    in_use = EnsembleTargets(60, 3, storage=tmp_path / "z")
    with pytest.raises(RunError, match="z is in use by another process; wait for it or stop it"):
        resume(tmp_path / "copy", dataset=features())
    in_use.close()
    assert resume(tmp_path / "run", dataset=features()).finished


@pytest.mark.parametrize("name", ["a\0b", "loop", "x" * 300])
def test_what_cannot_be_a_path_is_refused(tmp_path, name):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = str(tmp_path / name)
    for use in (lambda: EnsembleTargets(60, 3, storage=path), lambda: EnsembleTargets.read({"targets_file": path})):
        with pytest.raises(RunError) as raised:
            use()
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


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
@pytest.mark.parametrize("failing", ["posix_fallocate", "mmap"])
def test_a_disk_without_room_is_refused_before_training_and_nothing_stays_open(tmp_path, monkeypatch, failing):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(targets_file.os if failing == "posix_fallocate" else targets_file.mmap, failing, full)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        refused(tmp_path, in_file(tmp_path), "z could not be written because the disk is full; free some room")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_small_disk_and_a_closed_folder_are_one_sentence_of_the_command(tmp_path):
    npz, out = write_npz(tmp_path / "data.npz"), tmp_path.parent / "out"
    (tmp_path / "closed").mkdir(mode=0o555)
    before = contents(tmp_path)
    full, closed = (
        "z could not be written because the disk is full",
        "z' cannot be used for the targets ([Errno 13] Perm",
    )
    for folder, run_limited, sentence in (
        (tmp_path, (run_cli_with_small_disk, 15_000), full),
        (tmp_path / "closed", (run_cli_without_privileges,), closed),
    ):
        arguments = train_arguments(npz, tmp_path / "run", in_file(folder, name=str(npz)))
        assert finish(child(out, *run_limited, arguments)) == 1
        said = out.read_text()
        assert sentence in said
        assert len(said.splitlines()) == 1
        assert contents(tmp_path) == before


@pytest.mark.parametrize("what", ["nothing", "empty", "abandoned"])
def test_what_may_be_there_or_not(tmp_path, what):
    if what == "empty":
        (tmp_path / "z").touch()
    elif what == "abandoned":  # by a process that was killed before its first checkpoint
        EnsembleTargets(5, 2, storage=tmp_path / "z").write(torch.tensor([0]), torch.ones(1, 2))
    assert train(in_file(tmp_path), tmp_path / "run", dataset=features()).finished


def test_a_run_that_cannot_be_made_leaves_no_file(tmp_path, monkeypatch):
    def fails(*arguments):
        raise RunError("no.")

    monkeypatch.setattr(RunDirectory, "create", fails)
    refused(tmp_path, in_file(tmp_path), "no.")


def test_a_relative_path_is_found_again_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = stopped(config().with_values("method", storage="z"), tmp_path / "run", 1, 1, crash)
    monkeypatch.chdir(tmp_path.parent)
    assert resume(run, dataset=features()).finished


# What can be wrong when a run goes on


@pytest.fixture
def half(tmp_path):
    return stopped(in_file(tmp_path), tmp_path / "run", 2, 2, crash)


def not_resumed(run, sentence, when_read=None):
    """One sentence, whether it is trained on or read, and every file but the history as before."""

    def kept():
        return {name: content for name, content in contents(run).items() if name != "history.jsonl"}

    before = kept()
    with pytest.raises(RunError, match=sentence) as raised:
        resume(run, dataset=features())
    assert "\n" not in str(raised.value)
    assert kept() == before
    with pytest.raises(RunError, match=when_read or sentence):
        _ = load_run(run).ensemble


def test_a_missing_file_is_named_and_not_made_anew(tmp_path, half):
    (tmp_path / "z").rename(tmp_path / "elsewhere")
    gone = "z' cannot be used for the targets .*No such file or directory"
    not_resumed(half, "z is not as this checkpoint left it; put back the file", gone)
    assert not (tmp_path / "z").exists()
    assert load_run(half).predict(features().raw[:30]).shape == (30,)  # the network is there all the same
    (tmp_path / "z").symlink_to(tmp_path / "elsewhere")
    assert resume(half, dataset=features()).finished


def test_a_file_cut_short_is_refused(tmp_path, half):
    os.truncate(tmp_path / "z", 20_000)
    not_resumed(half, r"z is cut short or damaged \(20,000 bytes long\)")


def change_header(path, content):
    """Overwrite the first page, or some fields of the JSON on it."""
    with open(path, "r+b") as file:
        if isinstance(content, dict):
            content = json.dumps(json.loads(file.read(PAGE)) | content).encode().ljust(PAGE)
        file.seek(0)
        file.write(content)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"format": "selfens targets 1"}, "is not a file of targets in the format 'selfens targets 2'"),
        ({"format": ["?"]}, "is not a file of targets"),
        *((page, "is not a file of targets") for page in (b"[" * PAGE, b"\xff" * PAGE, b"null".ljust(PAGE))),
        (b"{}".ljust(PAGE), "is not a file of targets"),
        ({"num_rows": 6000}, "cut short or damaged"),
        ({"num_rows": -60, "num_classes": -3}, "cut short or damaged"),
        ({"num_rows": 10**300}, "cut short or damaged"),
        ({"num_rows": 60.0}, "cut short or damaged"),
        ({"num_classes": "3"}, "cut short or damaged"),
        ({"dtype": ["float32"]}, "cut short or damaged"),
        ({"decay": None}, "cut short or damaged"),
        ({"decay": 2}, "cut short or damaged"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_a_header_that_is_not_ours_is_refused(tmp_path, half, content, sentence):
    change_header(tmp_path / "z", content)
    not_resumed(half, f"z .*{sentence}")


def test_a_file_whose_header_tells_of_fewer_rows_is_refused_when_it_is_read(tmp_path, finished):
    change_header(tmp_path / "z", {"num_rows": 59})
    with pytest.raises(RunError, match="are damaged .they are of 59 rows of 3 classes"):
        load_run(finished.path).predict_training_rows(features())


def test_a_file_of_another_shape_is_refused(tmp_path, half):
    (tmp_path / "z").unlink()
    other = EnsembleTargets(61, 3, storage=tmp_path / "z")
    other.seal()
    other.close()
    with pytest.raises(RunError, match="z holds targets of 61 rows of 3 classes .*; expected 60 rows of 3 classes"):
        resume(half, dataset=features())


def test_the_file_of_another_run_is_refused_on_a_resume(tmp_path, half):
    (tmp_path / "other").mkdir()
    train(in_file(tmp_path / "other"), tmp_path / "other" / "run", dataset=features())
    shutil.copy(tmp_path / "other" / "z", tmp_path / "z")
    not_resumed(half, "z is not as this checkpoint left it")


def test_a_checkpoint_put_back_from_an_older_copy_is_refused(tmp_path):
    run = stopped(in_file(tmp_path), tmp_path / "run", 1, 2, crash)
    old = (run / "checkpoint.safetensors").read_bytes()
    resume(run, dataset=features())
    (run / "checkpoint.safetensors").write_bytes(old)
    not_resumed(run, "z is not as this checkpoint left it")


@pytest.mark.parametrize("change", [{"targets_half": "2"}, {"targets_token": ""}, {"targets_token": "other"}])
def test_a_checkpoint_that_names_no_seal_of_the_file_is_refused(tmp_path, change):
    ensemble = EnsembleTargets(60, 3, storage=tmp_path / "z")
    metadata = ensemble.seal() | change
    for use in (ensemble.restore, EnsembleTargets.read):
        with pytest.raises(RunError, match="is not as this checkpoint left it"):
            use(metadata)


def test_a_run_moved_elsewhere_still_finds_its_file(tmp_path, half):
    half.rename(tmp_path / "moved")
    assert resume(tmp_path / "moved", dataset=features()).finished
    assert load_run(tmp_path / "moved").ensemble.count.tolist() == [3] * 60
