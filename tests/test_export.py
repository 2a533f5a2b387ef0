"""Exported files: used without selfens, and compared with the run."""

import csv
import errno
import json
import os
import shutil
import signal
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from support import CLASSES, FEATURES, SMALL_IMAGES, config, contents, features, images, selfens, write_npz
from torch import nn

from selfens import SelfEnsemblingClassifier, __version__, export_run, load_run, train
from selfens.data.images import decode
from selfens.data.tabular import Columns
from selfens.errors import EXTRAS, RunError, SelfensError
from selfens.methods import Losses, Method
from selfens.tools import export
from selfens.tools.export import TOLERANCE, model_card
from selfens.training.progress import Silent

NAMES = ['Äpfel & "Birnen"', "梨", "broken \udcff"]


def probabilities(path, rows):
    """What the file says."""
    return onnxruntime.InferenceSession(path).run(["probabilities", "logits"], {"inputs": rows})


def stored(path):
    """The classes and the model card inside the file."""
    found = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    return json.loads(found["classes"]), json.loads(found["model_card"])


def bytes_images(rows=60, shape=(3, 8, 8), seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, size=(rows, *shape), dtype=np.uint8)


def rows_like(dataset, count, seed=5):
    random = np.random.default_rng(seed)
    if dataset.inputs.dtype == np.uint8:
        return bytes_images(count, dataset.input_shape, seed)
    return random.normal(size=(count, *dataset.input_shape)).astype(np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on an .npz file that can be loaded again."""
    folder = tmp_path_factory.mktemp("export")
    return train(config(name=str(write_npz(folder / "blobs.npz"))), folder / "run")


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """The run with class names of any kind."""
    folder = tmp_path_factory.mktemp("exported")
    shutil.copytree(trained.path, folder / "run")
    about = json.loads((folder / "run" / "run.json").read_text())
    (folder / "run" / "run.json").write_text(json.dumps(about | {"classes": NAMES}))
    return export_run(folder / "run", folder / "model.onnx").path


# The numbers


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        (features(), ("data.preprocess=channel",)),
        (images(), ("data.preprocess=zca", *SMALL_IMAGES)),
        (images(), ("data.preprocess=image", *SMALL_IMAGES)),
        (features(), ("data.preprocess=none", "method.name=pi")),
    ],
    ids=["features-channel", "images-zca", "images-image", "features-none"],
)
def test_the_file_gives_what_the_run_gives_for_any_number_of_raw_rows(dataset, settings, tmp_path):
    run = train(config("temporal", *settings, epochs=2), tmp_path / "run", dataset=dataset)
    done = export_run(run, tmp_path / "model.onnx")
    assert done.checked_on == f"{min(256, dataset.num_rows)} training rows"
    assert done.difference <= TOLERANCE
    for count in (1, 7, 1000):
        rows = rows_like(dataset, count)
        found, logits = probabilities(done.path, rows)
        np.testing.assert_allclose(found, run.predict_proba(rows), atol=1e-4)
        assert logits.shape == found.shape == (count, CLASSES)
        np.testing.assert_allclose(torch.from_numpy(logits).softmax(dim=1), found, atol=1e-6)


class Averaged(Method):
    """Trains one network and is tested by another, as methods with a teacher are."""

    parts = ("supervised",)
    uses_unlabeled = False

    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher

    def losses(self, network, batch, targets, weight):
        logits = network(batch.views[0])
        loss = nn.functional.cross_entropy(logits, batch.labels.clamp_min(0))
        return Losses(loss, {"supervised": loss.detach()}, logits.detach().softmax(dim=1))

    def evaluated(self, network):
        return self.teacher


def linear():
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def test_the_network_that_is_exported_is_the_one_that_is_tested(tmp_path):
    teacher = linear()
    with torch.no_grad():
        teacher.weight.mul_(3)
    settings = config("supervised", "data.preprocess=none")
    train(settings, tmp_path / "run", dataset=features(), network=linear(), method=Averaged(teacher))
    path = tmp_path / "model.onnx"
    export_run(load_run(tmp_path / "run", network=linear()), path)
    rows = rows_like(features(), 9)
    with torch.no_grad():
        expected = teacher(torch.from_numpy(rows)).softmax(dim=1).numpy()
    np.testing.assert_allclose(probabilities(path, rows)[0], expected, atol=1e-5)
    _, card = stored(path)
    assert (card["method"], card["network"]) == ("the user's own",) * 2


def convolutional():
    """Ordinary layers, with noise in training."""
    layers = [
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout2d(0.3),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, nn.Linear(16, CLASSES))


def test_a_network_of_ones_own_is_exported_as_it_is_in_evaluation(tmp_path):
    run = train(config("pi", epochs=1), tmp_path / "run", dataset=images(), network=convolutional())
    path = tmp_path / "model.onnx"
    export_run(run, path)
    np.testing.assert_allclose(probabilities(path, images().inputs)[0], run.predict_proba(images().inputs), atol=1e-5)


def test_what_was_asked_of_a_gpu_is_exported_in_full_precision_on_the_cpu(trained, tmp_path):
    """A run of precision tf32 cannot even predict on a CPU."""
    run = shutil.copytree(trained.path, tmp_path / "run")
    text = (run / "config.json").read_text()
    assert '"precision": "auto"' in text
    (run / "config.json").write_text(text.replace('"precision": "auto"', '"precision": "tf32"'))
    assert export_run(run, tmp_path / "model.onnx").difference < 1e-5


# What else is inside


def test_the_classes_and_the_card_are_inside(trained, exported):
    classes, card = stored(exported)
    assert classes == NAMES
    assert card == {
        "data": "blobs.npz",
        "training_rows": 60,
        "labels": 12,
        "method": "temporal",
        "network": "mlp",
        "preprocessing": "channel",
        "epochs": 3,
        "test_error_percent": trained.test_error,
        "test_rows": 30,
        "backbone": None,
        "input": {"name": "inputs", "type": "float32", "shape": ["batch", FEATURES], "range": None},
        "selfens": __version__,
    }


def test_the_card_of_an_unfinished_run_tells_of_its_checkpoint(trained, tmp_path):
    """Epochs later than the checkpoint are in the history and not in the weights."""
    settings = config("temporal", "training.checkpoint_every=2", name=trained.config.data.name, epochs=4)
    run = train(settings, tmp_path / "run")
    later = {**run.history[-1], "epoch": 4, "test_error": 99.0}
    run.directory.append_history(later)
    card = model_card(run)
    assert (card["epochs"], card["test_error_percent"]) == (4, run.history[3]["test_error"])


def test_the_card_of_a_run_stopped_within_an_epoch_names_no_error(trained, tmp_path):
    class Stopping(Silent):
        def step(self, epoch, step):
            if step == 2:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config(name=trained.config.data.name), tmp_path / "run", progress=Stopping())
    card = model_card(load_run(tmp_path / "run"))
    assert (card["epochs"], card["test_error_percent"]) == (0, None)


def test_a_folder_of_photos_gives_a_file_for_bytes_of_its_size(typed, tmp_path):
    for number in range(40):
        place = tmp_path / "photos" / ("cat", "dög 1", "unlabeled", "cat")[number % 4]
        place.mkdir(parents=True, exist_ok=True)
        pixels = bytes_images(1, (14, 10, 3), number)[0] // 2 + 120 * (number % 4 == 1)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
    small = ["--set", "network.width=4", "--set", "training.threads=1", "--epochs", "2", "--device", "cpu"]
    assert typed("train", "photos", "--size", "9", "--run", "run", "--quiet", *small)[0] == 0
    assert typed("export", "run", "-o", "model.onnx")[0] == 0
    path = tmp_path / "model.onnx"
    classes, card = stored(path)
    assert classes == ["cat", "dög 1"]
    assert card["input"] == {"name": "inputs", "type": "uint8", "shape": ["batch", 3, 9, 9], "range": [0, 255]}
    files = sorted((tmp_path / "photos" / "cat").glob("*.png"))
    assert typed("predict", "run", "photos/cat", "-o", "out.csv")[0] == 0
    with open("out.csv", newline="") as file:
        said = {Path(line["file"]).name: line for line in csv.DictReader(file)}
    found, _ = probabilities(path, np.stack([decode(file, 9) for file in files]))
    for file, row in zip(files, found, strict=True):
        assert said[file.name]["class"] == classes[row.argmax()]
        assert float(said[file.name]["probability"]) == pytest.approx(row.max(), abs=1e-4)


def test_an_estimators_run_takes_the_features_as_they_were_fitted(tmp_path):
    x, y = features().inputs * 40 + 7, np.where(np.arange(60) < 30, features().labels, -1)
    model = SelfEnsemblingClassifier(epochs=3, random_state=0, run_dir=str(tmp_path / "run")).fit(x, y)
    done = export_run(tmp_path / "run", tmp_path / "model.onnx")
    assert "blank rows only" in done.checked_on
    np.testing.assert_allclose(probabilities(done.path, x)[0], model.predict_proba(x), atol=1e-4)


# The check


def test_the_card_of_a_tables_run_says_how_its_inputs_are_made(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": range(40), "port": ["S", "C", None, "S"] * 10, "ship": ["a", "b"] * 20})
    model = SelfEnsemblingClassifier(epochs=2, device="cpu", run_dir=tmp_path / "run").fit(table, ["x", "y"] * 20)
    export_run(tmp_path / "run", tmp_path / "model.onnx")
    inputs, _ = Columns.from_dict(stored(tmp_path / "model.onnx")[1]["columns"]).encode(table)
    assert probabilities(tmp_path / "model.onnx", inputs)[0] == pytest.approx(model.predict_proba(table), abs=1e-5)


def test_the_rows_are_spread_over_the_training_data_and_number_256(trained, tmp_path, monkeypatch):
    seen = []
    real = onnxruntime.InferenceSession.run
    monkeypatch.setattr(
        onnxruntime.InferenceSession, "run", lambda self, names, feed: (seen.append(feed), real(self, names, feed))[1]
    )
    export_run(trained, tmp_path / "model.onnx")
    compared = np.concatenate([feed["inputs"] for feed in seen])
    assert [len(feed["inputs"]) for feed in seen] == [1, 63, 64, 64, 64]
    assert {row.tobytes() for row in compared} == {row.tobytes() for row in trained.dataset().inputs}


@pytest.mark.parametrize("wrong", [lambda p: p + 2e-4, lambda p: p * np.nan], ids=["apart", "not a number"])
def test_a_file_that_differs_from_the_run_is_not_put_in_place(trained, tmp_path, monkeypatch, wrong):
    path = tmp_path / "model.onnx"
    path.write_text("what was there before")
    real = export._expected
    monkeypatch.setattr(export, "_expected", lambda model, rows: wrong(real(model, rows)))
    with pytest.raises(RunError, match="was not written: its probabilities differ from the run's by up to"):
        export_run(trained, path)
    assert contents(tmp_path) == {path.name: b"what was there before"}


def test_a_run_whose_file_is_gone_is_exported_all_the_same(typed, tmp_path):
    npz = write_npz(tmp_path / "blobs.npz")
    train(config(name=str(npz), epochs=1), tmp_path / "run")
    npz.unlink()
    code, out, err = typed("export", "run", "-o", "model.onnx")
    assert (code, err) == (0, "")
    assert f"on blank rows only, since the training data, {npz}, cannot be loaded" in out


# The command


@pytest.mark.parametrize("name", ["with space ü.onnx", "MODEL.ONNX"])
def test_an_older_file_is_replaced(typed, trained, tmp_path, name):
    (tmp_path / name).write_text("an older one is replaced")
    code, out, err = typed("export", trained.path, "-o", name)
    assert (code, err) == (0, "")
    assert out.startswith(f"{name} written; its probabilities match the run's to within ")
    assert out.endswith(" training rows\n")
    assert list(contents(tmp_path)) == [name]


def test_nothing_but_the_result_is_printed(trained, tmp_path):
    """In a process of its own, where the exporter's notes have not been given yet."""
    done = selfens("export", trained.path, "-o", "model.onnx", cwd=tmp_path, PYTHONWARNINGS="error")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["-o", "model.bin"], 1, "model.bin is not the name of an ONNX file; expected one that ends in .onnx"),
        (["-o", "model"], 1, "model is not the name of an ONNX file"),
        (["-o", "missing/model.onnx"], 1, "missing/model.onnx could not be written (No such file or directory)"),
        (["-o", "folder.onnx"], 1, "folder.onnx could not be written (Is a directory)"),
        ([], 2, "Missing option '--output'"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(typed, trained, tmp_path, words, code, sentence):
    (tmp_path / "folder.onnx").mkdir()
    given, out, err = typed("export", trained.path, *words)
    assert (given, out) == (code, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert contents(tmp_path) == {}


def test_a_run_without_a_checkpoint_is_one_sentence(typed, trained, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    code, out, err = typed("export", "run", "-o", "model.onnx")
    assert (code, out) == (1, "")
    assert "has no checkpoint of a trained network; resume it, or put back" in err.splitlines()[-1]
    assert not (tmp_path / "model.onnx").exists()


def test_a_run_with_a_network_of_ones_own_says_how_to_pass_it(typed, tmp_path):
    train(config(), tmp_path / "run", dataset=features(), network=linear())
    code, _, err = typed("export", "run", "-o", "model.onnx")
    assert code == 1
    assert "was trained with a module of your own; pass it, in Python: load_run(path, network=...)" in err


class FixedBatch(nn.Module):
    """Works for the ten rows of a training batch, and for multiples of them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.layer(x.view(-1, 10, FEATURES)).view(-1, CLASSES)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


@pytest.mark.parametrize("network", [FixedBatch, Branching])
def test_a_network_that_cannot_be_exported_is_one_sentence(network, tmp_path):
    run = train(config(epochs=1), tmp_path / "run", dataset=features(), network=network())
    with pytest.raises(RunError, match="could not be exported .* must take any number of rows") as refused:
        export_run(run, tmp_path / "model.onnx")
    assert len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "model.onnx").exists()


# The extras


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_disk_too_full_for_the_exporter_is_not_the_networks_fault(trained, tmp_path, monkeypatch, wrapped):
    def full(*_):
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if not wrapped:
            raise error
        raise RuntimeError("conversion failed") from error

    monkeypatch.setattr(export, "_onnx", full)
    with pytest.raises(RunError, match=r"^\S*model.onnx could not be written because the disk is full; free some room"):
        export_run(trained, tmp_path / "model.onnx")


@pytest.mark.parametrize("package", EXTRAS["onnx"])
def test_a_missing_package_is_one_sentence(typed, trained, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    code, out, err = typed("export", trained.path, "-o", "model.onnx")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: exporting to model.onnx needs the package {package}, which cannot be imported")
    assert "pip install 'selfens[onnx]'" in err
    assert len(err.splitlines()) == 1
    assert contents(tmp_path) == {}


def test_the_extras_are_those_of_the_package():
    declared = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    listed = declared["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        assert tuple(name.split(">=")[0] for name in listed[extra]) == packages
    assert f"selfens[{','.join(extra for extra in EXTRAS if extra != 'timm')}]" in listed["dev"]


def test_a_missing_package_is_an_import_error_too(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError) as refused:
        export_run(trained, tmp_path / "model.onnx")
    assert isinstance(refused.value, SelfensError)
