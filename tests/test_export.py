"""Exported files: used without selfens, and compared with the run."""

import csv
import json
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from scipy.spatial.distance import cdist
from scipy.special import softmax
from scipy.stats import binomtest
from support import CLASSES, FEATURES, SMALL_IMAGES, config, contents, features, images, selfens, write_npz
from torch import nn

from selfens import SelfEnsemblingClassifier, __version__, encoders, export_run, load_run, train
from selfens.data.images import decode
from selfens.encoders import ENCODERS
from selfens.errors import EXTRAS, RunError, SelfensError
from selfens.methods import Losses, Method
from selfens.tools import export
from selfens.tools.export import TOLERANCE, model_card
from selfens.tools.measure import measure
from selfens.training.progress import WarningsOnly

NAMES = ['Äpfel & "Birnen"', "梨", "broken \udcff"]


def probabilities(path, rows):
    """What the file says."""
    return onnxruntime.InferenceSession(path).run(["probabilities", "logits"], {"inputs": rows})


def stored(path):
    """The classes and the model card inside the file."""
    found = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    return json.loads(found["classes"]), json.loads(found["model_card"])


CONTENT: list[bytes] = []


@pytest.fixture
def exporter_once(monkeypatch):
    """torch's exporter takes a second: its result for `trained` is used again, in tests of what comes after it."""
    exporter = export._onnx

    def once(*given):
        if not CONTENT:
            CONTENT.append(exporter(*given))
        return CONTENT[0]

    monkeypatch.setattr(export, "_onnx", once)


def rows_like(dataset, count):
    random, shape = np.random.default_rng(5), (count, *dataset.raw.shape[1:])
    if dataset.raw.dtype == np.uint8:
        return random.integers(0, 256, shape, dtype=np.uint8)
    return random.normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on an .npz file that can be loaded again."""
    folder = tmp_path_factory.mktemp("export")
    return train(config(name=str(write_npz(folder / "blobs.npz"))), folder / "run")


# The numbers


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        (features(), ("preprocess.kind=channel", "method.name=committee", "network.name=committee")),
        (images(), ("preprocess.kind=zca", *SMALL_IMAGES)),
        (images(), ("preprocess.kind=image", *SMALL_IMAGES)),
        (features(), ("preprocess.kind=none", "method.name=mean-teacher", "method.decay=0.5")),
    ],
    ids=["features-channel-committee", "images-zca", "images-image", "features-none-teacher"],
)
def test_the_file_gives_what_the_run_gives_for_any_number_of_raw_rows(dataset, settings, tmp_path):
    run = train(config("temporal", *settings, epochs=2), tmp_path / "run", dataset=dataset)
    done = export_run(run, tmp_path / "model.onnx")
    assert done.checked_on == f"{dataset.num_train} training rows"
    assert done.difference <= TOLERANCE
    for count in (1, 7, 1000):
        rows = rows_like(dataset, count)
        found, logits = probabilities(done.path, rows)
        np.testing.assert_allclose(found, run.predict_proba(rows), atol=1e-4)
        assert logits.shape == found.shape == (count, CLASSES)
        np.testing.assert_allclose(torch.from_numpy(logits).softmax(dim=1), found, atol=1e-6)


class Plain(Method):
    """A method of a user's own."""

    parts = ("supervised",)
    uses_unlabeled = False

    def losses(self, network, batch, targets, weight):
        logits = network(batch.views[0])
        loss = nn.functional.cross_entropy(logits, batch.labels.clamp_min(0))
        return Losses(loss, {"supervised": loss.detach()}, logits.detach().softmax(dim=1))


def convolutional():
    """A network of a user's own: ordinary layers, with noise in training."""
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.3), nn.AdaptiveMaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, CLASSES))


def test_a_custom_network_is_exported_as_it_is_in_evaluation(tmp_path):
    data, path = images(), tmp_path / "model.onnx"
    train(config("pi", epochs=1), tmp_path / "run", dataset=data, network=convolutional(), method=Plain())
    run = load_run(tmp_path / "run", network=convolutional())
    export_run(run, path)
    rows = rows_like(data, 9)
    np.testing.assert_allclose(probabilities(path, rows)[0], run.predict_proba(rows), atol=1e-5)
    _, card = stored(path)
    assert (card["method"], card["network"]) == ("custom", "custom")


def test_what_was_trained_on_a_gpu_is_exported_in_full_precision_on_the_cpu(trained, tmp_path):
    """A run of precision tf32 cannot even predict on a CPU."""
    run = shutil.copytree(trained.path, tmp_path / "run")
    text = (run / "config.json").read_text()
    assert '"precision": "auto"' in text
    (run / "config.json").write_text(text.replace('"precision": "auto"', '"precision": "tf32"'))
    assert export_run(run, tmp_path / "model.onnx").difference < 1e-5


# What else is inside


def test_classes_of_any_name_and_the_card_are_inside(trained, tmp_path):
    run = shutil.copytree(trained.path, tmp_path / "run")
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"classes": NAMES}))
    classes, card = stored(export_run(run, tmp_path / "model.onnx").path)
    assert classes == NAMES
    assert card == {
        "data": "blobs.npz",
        "training_rows": 60,
        "labels": 12,
        "method": "temporal",
        "network": "mlp",
        "preprocessing": "channel",
        "encoder": {"kind": "identity", **trained.info.encoder},
        "epochs": 3,
        "test_error_percent": trained.test_error,
        "test_rows": 30,
        "error": None,
        "novelty": None,
        "inputs": [{"name": "inputs", "type": "float32", "shape": ["batch", FEATURES], "range": None}],
        "selfens": __version__,
    }


def test_the_file_of_a_measured_run_is_calibrated_and_its_card_says_how_good_it_is(trained, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run")
    run = load_run(tmp_path / "run")
    measure(run, can_train=False)
    run.keep_novelty()
    assert run.temperature != 1
    rows = np.random.default_rng(5).normal(size=(9, FEATURES)).astype(np.float32)
    path = export_run(run, tmp_path / "model.onnx").path
    logits = np.log(run.model.predict_inputs(rows).astype(float)) / run.temperature
    np.testing.assert_allclose(probabilities(path, rows)[0], softmax(logits, axis=1), atol=1e-5)
    wrong = round(30 * run.test_error / 100)
    card, interval = stored(path)[1], binomtest(wrong, 30).proportion_ci(0.9, "wilson")
    assert card["error"] == {
        "percent": pytest.approx(run.test_error),
        "interval_90_percent": pytest.approx([100 * interval.low, 100 * interval.high]),
        "rows": 30,
        "measured_on": "test rows",
        "temperature": run.temperature,
    }
    reference, center, scale = (
        getattr(run.novelty, name).double().numpy() for name in ("reference", "center", "scale")
    )
    distances = np.sort(cdist(reference, reference), axis=1)[:, 5]  # of each row from its fifth nearest other
    quantiles = {name: pytest.approx(np.quantile(distances, float(name)), rel=1e-3) for name in ("0.5", "0.9", "0.99")}
    assert card["novelty"] == {
        "neighbor": 5,
        "distance_quantiles": quantiles,
        "center": pytest.approx(center),
        "scale": pytest.approx(scale),
    }


def test_the_card_of_an_unfinished_run_describes_its_checkpoint(trained, tmp_path):
    """Epochs later than the checkpoint are in the history and not in the weights."""
    settings = config("temporal", "training.checkpoint_every=2", name=trained.config.source.path, epochs=4)
    run = train(settings, tmp_path / "run")
    run.directory.append_history({**run.history[-1], "epoch": 4, "test_error": 99.0})
    card = model_card(run)
    assert (card["epochs"], card["test_error_percent"]) == (4, run.history[3]["test_error"])


def test_the_card_of_a_run_stopped_within_an_epoch_names_no_error(trained, tmp_path):
    class Stopping(WarningsOnly):
        def step(self, epoch, step):
            if step == 2:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config(name=trained.config.source.path), tmp_path / "run", progress=Stopping())
    card = model_card(load_run(tmp_path / "run"))
    assert (card["epochs"], card["test_error_percent"]) == (0, None)


def test_a_folder_of_photos_gives_a_file_for_bytes_of_its_size(typed, tmp_path):
    random = np.random.default_rng(0)
    for number in range(40):
        place = tmp_path / "photos" / ("cat", "dög 1", "unlabeled", "cat")[number % 4]
        place.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 128, (14, 10, 3), dtype=np.uint8) + 120 * (number % 4 == 1)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
    small = ["--set", "network.width=4", "--set", "training.threads=1", "--epochs", "2", "--device", "cpu"]
    assert typed("train", "photos", "--size", "9", "--run", "run", "--quiet", *small)[0] == 0
    assert typed("export", "run", "-o", "model.onnx")[0] == 0
    path = tmp_path / "model.onnx"
    classes, card = stored(path)
    assert classes == ["cat", "dög 1"]
    assert card["inputs"] == [{"name": "inputs", "type": "uint8", "shape": ["batch", 3, 9, 9], "range": [0, 255]}]
    files = sorted((tmp_path / "photos" / "cat").glob("*.png"))
    assert typed("predict", "run", "photos/cat", "-o", "out.csv")[0] == 0
    with open("out.csv", newline="") as file:
        said = {Path(line["file"]).name: line for line in csv.DictReader(file)}
    found, _ = probabilities(path, np.stack([decode(file, 9) for file in files]))
    for file, row in zip(files, found, strict=True):
        assert said[file.name]["class"] == classes[row.argmax()]
        assert float(said[file.name]["probability"]) == pytest.approx(row.max(), abs=1e-4)


def test_the_card_of_an_estimators_run_on_a_table_says_how_inputs_are_made(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": range(40), "port": ["S", "C", None, "S"] * 10, "ship": ["a", "b"] * 20})
    model = SelfEnsemblingClassifier(epochs=2, device="cpu", run_dir=tmp_path / "run").fit(table, ["x", "y"] * 20)
    done = export_run(tmp_path / "run", tmp_path / "model.onnx")
    assert "blank rows only" in done.checked_on
    encoder = encoders.build(ENCODERS.options("columns"))
    encoder.restore(stored(done.path)[1]["encoder"])
    found, _ = probabilities(done.path, encoder.transform(table).inputs)
    assert found == pytest.approx(model.predict_proba(table), abs=1e-5)


# The check


def change_what_the_file_says(monkeypatch, change):
    """`change` gets the rows and the probabilities of each batch, and returns the probabilities."""
    real = onnxruntime.InferenceSession.run

    def run(session, names, feed):
        found, *others = real(session, names, feed)
        return [change(feed["inputs"], found), *others]

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", run)


def test_the_rows_are_spread_over_the_training_data_and_number_256(trained, exporter_once, tmp_path, monkeypatch):
    seen = []
    change_what_the_file_says(monkeypatch, lambda rows, found: (seen.append(rows), found)[1])
    export_run(trained, tmp_path / "model.onnx")
    assert [len(rows) for rows in seen] == [1, 63, 64, 64, 64]
    assert {row.tobytes() for row in np.concatenate(seen)} == {row.tobytes() for row in trained.data().inputs}


@pytest.mark.parametrize("wrong", [lambda p: p + 2e-4, lambda p: p * np.nan], ids=["apart", "not a number"])
def test_a_file_that_differs_from_the_run_is_not_put_in_place(trained, exporter_once, tmp_path, monkeypatch, wrong):
    path = tmp_path / "model.onnx"
    path.write_text("what was there before")
    change_what_the_file_says(monkeypatch, lambda rows, found: wrong(found))
    with pytest.raises(RunError, match="was not written: probabilities differ from the run's by"):
        export_run(trained, path)
    assert contents(tmp_path) == {path.name: b"what was there before"}


def test_a_run_whose_data_are_gone_is_exported_all_the_same(typed, tmp_path):
    npz = write_npz(tmp_path / "blobs.npz")
    train(config(name=str(npz), epochs=1), tmp_path / "run")
    npz.unlink()
    code, out, err = typed("export", "run", "-o", "model.onnx")
    assert (code, err) == (0, "")
    assert f"on blank rows only, since the training data, {npz}, cannot be loaded" in out
    info = (tmp_path / "run" / "run.json").read_text()
    (tmp_path / "run" / "run.json").write_text(info.replace('"float32"', '"object"'))
    code, _, err = typed("export", "run", "-o", "model.onnx")
    assert (code, err) == (1, "error: run/run.json holds a damaged encoder 'identity'; put back the file.\n")


# The command


@pytest.mark.parametrize("name", ["with space ü.onnx", "MODEL.ONNX"])
def test_an_older_file_is_replaced(typed, trained, exporter_once, tmp_path, name):
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
def test_what_cannot_be_written_is_one_sentence(typed, trained, exporter_once, tmp_path, words, code, sentence):
    (tmp_path / "folder.onnx").mkdir()
    given, out, err = typed("export", trained.path, *words)
    assert (given, out) == (code, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert contents(tmp_path) == {}


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


@pytest.mark.parametrize("package", EXTRAS["onnx"])
def test_a_missing_package_is_one_sentence_and_an_import_error(typed, trained, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    code, out, err = typed("export", trained.path, "-o", "model.onnx")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: exporting to model.onnx needs the package {package}, which cannot be imported")
    assert "pip install 'selfens[onnx]'" in err
    assert len(err.splitlines()) == 1
    assert contents(tmp_path) == {}
    with pytest.raises(ImportError) as refused:
        export_run(trained, tmp_path / "model.onnx")
    assert isinstance(refused.value, SelfensError)
