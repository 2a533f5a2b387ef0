"""Inputs that are prefetched: the batches are those of inputs on the device, from RAM, .npy files and folders of images."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import (
    BATCH,
    SMALL_IMAGES,
    At,
    config,
    differences,
    encoded,
    environment,
    images,
    interrupt,
    left_behind,
    sets,
)

from selfens import Dataset, load_run, resume, train
from selfens.core.views import Views, ViewsConfig
from selfens.data import prefetch, preprocess
from selfens.data.loader import Loader
from selfens.data.prefetch import Prefetch
from selfens.data.rows import LazyRows, is_mapped, pieces, take
from selfens.data.sampler import Sampler
from selfens.data.sources import load, options_for
from selfens.errors import ConfigError, DataError

CPU = torch.device("cpu")
CYCLES = 5_000_000  # of a GPU's clock, some milliseconds
ROWS = 330  # more than two windows of steps, and no multiple of one


def raw_images(rows=ROWS, kind=np.uint8):
    values = np.random.default_rng(0).integers(0, 256, (rows, 3, 8, 8), dtype=np.uint8)
    return values if kind == np.uint8 else (values / 255).astype(np.float32)


def write_npy(folder, dataset, layout="NCHW"):
    """A data set as a folder of .npy files."""
    folder.mkdir()
    for split, rows in (("train", dataset.train_rows), ("test", dataset.test_rows)):
        x = dataset.raw[rows]
        np.save(folder / f"x_{split}.npy", x if layout == "NCHW" else x.transpose(0, 2, 3, 1))
        np.save(folder / f"y_{split}.npy", dataset.labels[rows])
    np.save(folder / "classes.npy", np.array(dataset.classes))
    return folder


def load_npy(folder):
    return load(options_for(folder))


def batches(loader, epoch=0, first=0, views=("weak", "weak")):
    """All that the steps of an epoch see; the random draws begin the same each time."""
    torch.manual_seed(5)
    seen = []
    for rows in loader.visit(loader.order(epoch)[first:]):
        batch = loader.batch(rows, views)
        seen.append([rows.clone(), batch.labels.clone(), *(view.clone() for view in batch.views)])
    return seen


def loaders(source, kind, size=BATCH, device=CPU, later=False):
    """The same rows on the device and prefetched; `later`: preprocessed after the views."""
    labels = torch.arange(len(source), device=device) % 3 - 1
    sampler = Sampler(np.arange(len(source)), (labels != -1).cpu().numpy(), size, seed=2)
    fitted = preprocess.fit(kind, source, device)
    views = Views(source.shape[1:], ViewsConfig(flip=True, translation=1), pixels=later)
    before, after = (None, fitted) if later else (fitted, None)
    resident = preprocess.apply(None if later else fitted, source, device)
    prefetched = Prefetch(source, before, sampler.batch_size, device)
    return [Loader(inputs, labels, sampler, views, after) for inputs in (resident, prefetched)]


def sources(tmp_path):
    """Each way in which inputs can lie somewhere else."""
    raw = raw_images()
    np.save(tmp_path / "first.npy", raw)
    np.save(tmp_path / "last.npy", np.ascontiguousarray(raw.transpose(0, 2, 3, 1)))
    mapped, last = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("first", "last"))
    return {
        "ram": raw,
        "floats": raw_images(kind=np.float32),
        "mapped": mapped,
        "channels last": last.transpose(0, 3, 1, 2),
        "some rows": LazyRows([mapped], np.arange(0, ROWS, 2)),
        "stacked": LazyRows([raw[:100], LazyRows([mapped], np.arange(100, ROWS))]),
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ram", "none"), ("floats", "channel"), ("mapped", "zca"), ("channels last", "image"), ("some rows", "channel")]
    + [("stacked", "none"), ("ram", "zca"), ("mapped", "channel")],
)
def test_prefetched_batches_are_those_of_resident_inputs(tmp_path, name, kind):
    resident, prefetched = loaders(sources(tmp_path)[name], kind)
    for epoch, first in ((0, 0), (1, 0), (1, 7)):
        assert_same_batches(resident, prefetched, exact=kind != "zca", epoch=epoch, first=first)


def assert_same_batches(one, other, exact=True, **which):
    """A matrix product of more rows rounds otherwise."""
    expected, found = batches(one, **which), batches(other, **which)
    assert len(expected) == len(found) == one.steps_per_epoch - which.get("first", 0) > 0
    for ours, theirs in zip(expected, found, strict=True):
        for mine, other_ in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other_, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-4)


def make_late(monkeypatch, prefetched, late):
    """Let copies to a GPU, or the steps there, take so long that a wait that is missing is noticed."""
    send, batch = prefetched.prefetch._send, prefetched.batch

    def late_send(raw, slot):
        with torch.cuda.stream(prefetched.prefetch.side):
            torch.cuda._sleep(CYCLES)
        send(raw, slot)

    def late_batch(rows, views):
        torch.cuda._sleep(CYCLES)
        return batch(rows, views)

    if late == "copies":
        monkeypatch.setattr(prefetched.prefetch, "_send", late_send)
    elif late == "steps":
        monkeypatch.setattr(prefetched, "batch", late_batch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("late", ["nothing", "copies", "steps"])
@pytest.mark.parametrize(("kind", "later"), [("none", False), ("zca", False), ("channel", True)])
def test_prefetched_batches_are_those_of_resident_inputs_on_a_gpu(tmp_path, monkeypatch, kind, later, late):
    resident, prefetched = loaders(sources(tmp_path)["mapped"], kind, device=torch.device("cuda"), later=later)
    make_late(monkeypatch, prefetched, late)
    for epoch in range(3):
        assert_same_batches(resident, prefetched, exact=False, epoch=epoch)


@pytest.mark.parametrize("views", [("none",), ("weak", "strong"), ("noise", "none")])
@pytest.mark.parametrize("name", ["ram", "mapped", "floats"])
def test_raw_inputs_are_prefetched_as_they_are_and_preprocessed_after_the_views(tmp_path, name, views):
    resident, prefetched = loaders(sources(tmp_path)[name], "channel", later=True)
    kind = torch.float32 if name == "floats" else torch.uint8
    assert resident.inputs.dtype == prefetched.inputs.dtype == kind
    assert_same_batches(resident, prefetched, views=views)


def test_preprocessing_after_the_views_is_preprocessing_before_if_views_do_nothing():
    assert_same_batches(*(loaders(raw_images(), "channel", later=later)[0] for later in (False, True)), views=("none",))


@pytest.mark.parametrize("steps", [1, 16, 17, 32, 33, 49])
def test_any_number_of_steps_comes_through(steps):
    resident, prefetched = loaders(raw_images(2 * steps), "none", size=2)
    assert resident.steps_per_epoch == steps
    assert_same_batches(resident, prefetched)
    assert list(prefetched.visit(prefetched.order(0)[:0])) == []


def test_a_visit_broken_off_leaves_nothing_behind():
    _, prefetched = loaders(raw_images(), "none")
    before, expected = threading.active_count(), batches(prefetched)
    visit = iter(prefetched.visit(prefetched.order(3)))
    next(visit)
    visit.close()
    assert threading.active_count() == before
    assert all(torch.equal(a, b) for a, b in zip(expected[0], batches(prefetched)[0], strict=True))


def test_reading_happens_ahead_and_in_another_thread(monkeypatch):
    read_by = []
    original = prefetch.read_into
    monkeypatch.setattr(
        prefetch, "read_into", lambda *words: read_by.append(threading.current_thread().name) or original(*words)
    )
    _, prefetched = loaders(raw_images(), "none")
    visit = iter(prefetched.visit(prefetched.order(0)))
    next(visit)
    visit.close()
    assert len(read_by) >= 2  # the window of this step and the next one
    assert threading.main_thread().name not in read_by


def test_what_cannot_be_read_is_raised_in_the_step_that_needs_it():
    class Torn(LazyRows):
        def _read(self, rows):
            raise OSError("the disk is gone")

    torn = Prefetch(Torn([np.zeros((40, 3), np.float32)]), preprocess.NoPreprocess(), 4, CPU)
    with pytest.raises(OSError, match="the disk is gone"):
        next(torn.visit(torch.arange(40).view(10, 4)))


# Rows that are read when they are asked for


def test_lazy_rows_answer_like_arrays(tmp_path):
    lazy, plain = sources(tmp_path)["stacked"], raw_images()
    rows = np.array([5, 99, 100, 329, 0, 5])
    for key in (rows, -rows - 1, slice(90, 110), slice(None, None, 7), np.arange(ROWS) % 3 == 0, 7, -1, []):
        np.testing.assert_array_equal(lazy[key], plain[key if len(np.shape(key)) == 0 or len(key) else slice(0)])
    np.testing.assert_array_equal(np.asarray(lazy), plain)
    for name in ("shape", "dtype", "ndim", "nbytes"):
        assert getattr(lazy, name) == getattr(plain, name)
    for beyond in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError):
            lazy[beyond]


@pytest.mark.parametrize("rows", [np.arange(90, 110), np.array([5, 0, 120, 3]), np.arange(0)])
def test_rows_taken_stay_where_they_are(tmp_path, rows):
    """Of what lies in a file nothing is read."""
    for name, source in sources(tmp_path).items():
        taken = take(source, rows)
        np.testing.assert_array_equal(taken, np.asarray(source)[rows])
        assert is_mapped(source) == (name not in ("ram", "floats"))
        assert is_mapped(taken) == is_mapped(source)


@pytest.mark.parametrize("kind", ["channel", "zca"])
def test_fitting_piece_by_piece_is_fitting_at_once(monkeypatch, kind):
    raw, rows = raw_images(), np.setdiff1d(np.arange(ROWS), [3, 200])
    at_once = preprocess.fit(kind, raw[rows])
    monkeypatch.setattr(preprocess, "CHUNK", 50)
    fitted = preprocess.fit(kind, LazyRows([raw], np.arange(ROWS)), rows=rows)
    torch.testing.assert_close(fitted.state_dict(), at_once.state_dict(), rtol=1e-4, atol=1e-4)


def test_pieces_may_be_written_to_and_cover_every_row(tmp_path):
    for source in sources(tmp_path).values():
        parts = list(pieces(source, 100))
        assert [len(part) for part in parts][:-1] == [100] * (len(parts) - 1)
        assert all(part.flags.writeable and part.flags.c_contiguous for part in parts)
        np.testing.assert_array_equal(np.concatenate(parts), np.asarray(source))


# Data sets in files


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_folder_of_npy_files_is_a_data_set_that_stays_there(tmp_path, layout):
    plain = Dataset.from_arrays(raw_images(), np.arange(ROWS) % 3, raw_images(30), np.arange(30) % 3)
    data = load_npy(write_npy(tmp_path / "big", plain, layout))
    assert is_mapped(encoded(data).inputs)
    assert encoded(data).fingerprint == encoded(plain).fingerprint
    assert data.test_fingerprint() == plain.test_fingerprint()


def test_floats_stay_in_their_file_and_are_checked_there(tmp_path):
    x = raw_images(kind=np.float32)
    folder = tmp_path / "f"
    folder.mkdir()
    np.save(folder / "y_train.npy", np.arange(ROWS) % 3)
    np.save(folder / "x_train.npy", x)
    assert is_mapped(load_npy(folder).raw)
    np.save(folder / "x_train.npy", x.astype(np.float64))
    assert not is_mapped(load_npy(folder).raw)
    x[7, 0, 0, 0] = np.nan
    np.save(folder / "x_train.npy", x)
    with pytest.raises(DataError, match=r"NaN.* in 1 row \(the first is row 7\)"):
        load_npy(folder)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x_train.npy", None, "holds no images to train on; expected a folder of images"),
        ("x_train.npy", b"no", "x_train.npy is not a readable .npy file"),
        ("x_train.npy", b"", "x_train.npy is not a readable .npy file"),
        ("y_test.npy", None, "a test set needs both inputs and labels"),
    ],
)
def test_a_damaged_folder_is_one_sentence(tmp_path, name, content, sentence):
    folder = write_npy(tmp_path / "big", images())
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        load_npy(folder)


def test_the_fingerprint_of_large_inputs_takes_some_of_their_rows(monkeypatch):
    one, other = images(), images()
    one.raw.parts[0][1] ^= 1
    other.raw.parts[0][0] ^= 1
    found = []
    for limit in (1 << 33, images().raw.parts[0].nbytes // 4):
        monkeypatch.setattr("selfens.data.dataset.MAX_HASHED", limit)
        found.append([encoded(data).fingerprint for data in (images(), images(), one, other)])
    (whole, again, *changed), (some, same, unseen, seen) = found
    assert whole == again not in changed
    assert some == same == unseen != seen
    assert some != whole


# Whole runs


def image_config(*overrides, **more):
    return config("temporal", *SMALL_IMAGES, *overrides, **more)


@pytest.mark.parametrize("residence", ["ram", "file"])
def test_a_prefetched_run_is_the_resident_one_to_the_bit(tmp_path, residence):
    folder = str(write_npy(tmp_path / "big", images()))
    train(image_config("training.residence=device", name=folder), tmp_path / "resident")
    run = train(image_config(f"training.residence={residence}", name=folder), tmp_path / "prefetched")
    assert run.info.residence == residence
    assert differences(left_behind(tmp_path / "resident"), left_behind(tmp_path / "prefetched")) == []


@pytest.mark.parametrize(("stop", "kind"), [(1, "zca"), (8, "channel")])
def test_a_prefetched_run_resumed_in_mid_epoch_is_exact(tmp_path, stop, kind):
    folder = str(write_npy(tmp_path / "big", images()))
    settings = image_config("training.residence=file", f"preprocess.kind={kind}", name=folder)
    train(settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", progress=At(0, stop - 1, interrupt))
    assert load_run(tmp_path / "stopped").directory.position() == divmod(stop, 6)
    resume(tmp_path / "stopped")
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "stopped")) == []


def test_what_does_not_fit_is_prefetched_and_a_resume_does_as_the_run_did(tmp_path, monkeypatch):
    folder = str(write_npy(tmp_path / "big", images()))
    monkeypatch.setattr("selfens.data.prefetch.memory", SimpleNamespace(available=lambda device: 10))
    with pytest.raises(KeyboardInterrupt):
        train(image_config(name=folder), tmp_path / "run", progress=At(0, 1, interrupt))
    assert load_run(tmp_path / "run").info.residence == "file"
    monkeypatch.undo()
    made = []
    original = Prefetch.__init__
    monkeypatch.setattr(Prefetch, "__init__", lambda self, *words: made.append(self) or original(self, *words))
    resume(tmp_path / "run")
    assert len(made) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("switch", ["off", "on"])
def test_a_prefetched_run_is_the_resident_one_on_a_gpu(tmp_path, switch):
    """Compiled and captured too; sums on a GPU change their order, so the last digits differ."""
    folder, histories = str(write_npy(tmp_path / "big", images())), []
    switches = [f"training.{name}={switch}" for name in ("compile", "capture")]
    for residence in ("device", "ram", "file"):
        wanted = image_config(
            f"training.residence={residence}",
            "training.device=cuda",
            "training.precision=fp32",
            *switches,
            name=folder,
            epochs=5,
        )
        run = train(wanted, tmp_path / residence)
        histories.append([record["total"] for record in run.history])
    np.testing.assert_allclose(histories[1], histories[0], rtol=1e-2)
    np.testing.assert_allclose(histories[2], histories[0], rtol=1e-2)


def test_inputs_in_memory_cannot_be_prefetched_from_a_file(tmp_path):
    with pytest.raises(ConfigError, match="are not in a file that can be read in part; give a folder with x_train.npy"):
        train(image_config("training.residence=file"), tmp_path / "run", dataset=images())
    assert not (tmp_path / "run").exists()


def test_the_command_trains_on_a_folder_of_npy_files_and_uses_the_run(tmp_path, typed):
    folder = write_npy(tmp_path / "big", images())
    words = sets([*SMALL_IMAGES, "training.residence=file", "training.device=cpu"])
    code, _, error = typed("train", folder, "--labels", "12", "--epochs", "2", "--run", "run", *words)
    assert code == 0, error
    assert typed("evaluate", "run")[1].startswith("test error ")
    assert typed("suggest", "run", "-n", "3")[0] == 0
    assert len((tmp_path / "suggestions.csv").read_text().splitlines()) == 4


MEMORY_SCRIPT = """
import sys
from selfens import Dataset, train
from selfens.config import Config
from selfens.data.sources import load, options_for
from selfens.training.progress import WarningsOnly

def private():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

class Watch(WarningsOnly):
    def step(self, epoch, number):
        seen.append(private())

seen = []
data = load(options_for(sys.argv[1]))
config = Config().with_overrides(sys.argv[3:])
before = private()
train(config, sys.argv[2], dataset=data, progress=Watch())
print(max(seen) - before)
"""


def test_a_file_larger_than_what_may_be_kept_is_not_kept(tmp_path):
    """200 MB of bytes, 800 MB as floats, of which training holds a few windows of steps.

    On a CPU: what a GPU's driver takes for itself is larger.
    """
    (tmp_path / "big").mkdir()
    rows = 65_000
    np.lib.format.open_memmap(tmp_path / "big" / "x_train.npy", mode="w+", dtype=np.uint8, shape=(rows, 3, 32, 32))
    np.save(tmp_path / "big" / "y_train.npy", np.where(np.arange(rows) < 20, np.arange(rows) % 2, -1))
    overrides = ["network.name=small", "network.width=4", "schedule.epochs=1", "training.unlabeled_per_epoch=2000"]
    overrides += ["training.residence=file", "training.device=cpu"]
    words = [sys.executable, "-c", MEMORY_SCRIPT, "big", "run", *overrides]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 190
