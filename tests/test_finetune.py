"""Fine-tuning a backbone: both stages, what a run of it can do, and what it is compared with."""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from support import At, crash, crashed, differences, left_behind
from test_backbone import SIZE, TINY, assert_one_sentence, crops, lite0, photos, pixels  # noqa: F401

from selfens import Dataset, auto, load_run, networks, resume, train
from selfens.config import NetworkConfig
from selfens.core.alignment import Alignment
from selfens.data.images import decode
from selfens.encoders import ENCODERS
from selfens.errors import ConfigError
from selfens.runs.directory import RunDirectory
from selfens.runs.evidence import Evidence
from selfens.tools.comparison import Comparison, config_of_best
from selfens.tools.export import TOLERANCE
from selfens.tools.folds import evidence_by_folds
from selfens.tools.frozen import COMMITTEE
from selfens.training import finetune

NORMALIZED = TINY.replace("nn.ReLU()", "nn.BatchNorm2d(6), nn.ReLU()")
TUNE = ("--backbone", "tiny:Tiny", "--finetune", "--device", "cpu")
FEW = ["schedule.epochs=2", "training.batch_size=10", "training.min_steps_per_epoch=4", "training.checkpoint_every=1"]
FEW += ["method.threshold=0.1"]  # so that it learns from unlabeled rows so early


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder with the module `tiny` in it, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "tiny.py").write_text(NORMALIZED)
    sys.modules.pop("tiny", None)
    yield tmp_path
    sys.modules.pop("tiny", None)


def images(rows=24, test_rows=9, side=12):
    """Colors that differ by class."""
    every = np.arange(rows + test_rows) % 3
    x = np.random.default_rng(0).integers(0, 60, size=(len(every), 3, side, side), dtype=np.uint8)
    x[np.arange(len(every)), every] += 150
    labels = np.where(np.arange(rows) < 9, every[:rows], -1)
    return Dataset.from_arrays(x[:rows], labels, x[rows:], every[rows:])


def settings(*more, data=None, **options):
    tiny = ENCODERS.options("backbone", model="tiny:Tiny")
    config = auto.config_for_dataset(data or images(), device="cpu", encoder=tiny, finetune=True)
    return config.with_overrides([*FEW, *more])


def network_of(**options):
    return networks.build(
        NetworkConfig(name="backbone", backbone="tiny:Tiny", dropout=0.2, **options), (3, SIZE, SIZE), 3
    )


# The network


def test_all_weights_are_trained_but_the_statistics_stay():
    network = network_of().train()
    norm = next(module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d))
    before = norm.running_mean.clone()
    network(torch.rand(4, 3, SIZE, SIZE)).square().sum().backward()
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert (norm.running_mean == before).all()
    assert network.training
    assert not norm.training


def test_it_starts_as_a_linear_classifier_of_the_frozen_features():
    network, weight, bias = network_of().eval(), torch.randn(3, 6), torch.randn(3)
    network.start_head(weight, bias)
    given = pixels(5)
    features = ENCODERS.build(ENCODERS.options("backbone", model="tiny:Tiny", cache=False), device="cpu").transform(
        given
    )
    with torch.no_grad():
        found = network(torch.from_numpy(given).float() / 255)
    torch.testing.assert_close(found, torch.from_numpy(features.inputs) @ weight.T + bias, rtol=1e-4, atol=1e-4)


def test_smaller_and_gray_images_are_taken():
    network = networks.build(NetworkConfig(name="backbone", backbone="tiny:Tiny"), (1, 5, 5), 3)
    assert network(torch.rand(2, 1, 5, 5)).shape == (2, 3)
    with pytest.raises(ConfigError, match=r"on images of 1 or 3 channels, but a row has shape \(7,\)"):
        networks.build(NetworkConfig(name="backbone", backbone="tiny:Tiny"), (7,), 3)


def test_alignment_leaves_classes_within_its_slack():
    counts = torch.tensor([1.0, 1.0])
    for share, slack, factor in ((0.6, 1.5, 1.0), (0.9, 1.5, 0.75 / 0.9), (0.6, 1.0, 0.5 / 0.6)):
        alignment = Alignment("labels", counts, slack=slack)
        alignment.predicted.copy_(torch.tensor([share, 1 - share]))
        both = alignment.align(torch.tensor([[0.5, 0.5]]))[0]
        wanted = min(max(1 - share, 0.5 / slack), 0.5 * slack) / (1 - share)
        assert float(both[0] / both[1]) == pytest.approx(factor / wanted, rel=1e-5)


# A run


def test_the_first_stage_is_a_run_and_the_prior_of_the_second(tmp_path):
    run = train(settings("schedule.prior=1"), "run", dataset=images())
    assert [record["prior"] for record in run.history] == [1.0, 0.5]
    assert run.frozen.finished
    assert (run.frozen.config.method.name, run.frozen.config.encoder.model) == ("committee", "tiny:Tiny")
    error, frozen = (each.evaluate(images())["test_error"] for each in (load_run("run", trust_code=True), run.frozen))
    assert max(error, frozen) < 40


def test_before_the_first_step_the_head_is_that_of_logistic_regression():
    run = train(settings("optimizer.learning_rate=1e-12"), "run", dataset=images())
    labeled = run.labels.rows
    predicted = run.model.predict_inputs(run.data().inputs, labeled).argmax(axis=1)
    assert (predicted == run.labels.labels).all()


@pytest.mark.parametrize("stage", ["first", "second"])
def test_stopped_in_either_stage_and_resumed_the_bits_are_the_same(stage):
    given = settings()
    train(given, "whole", dataset=images())
    first_steps = RunDirectory("whole/frozen").config().schedule.epochs * 20

    class Later(At):
        def step(self, epoch, step):
            if self.countdown == 0:
                self.countdown = -1
                self.what()
            self.countdown -= 1

    stop = Later(0, 0, crash)
    stop.countdown = first_steps // 2 if stage == "first" else first_steps + 6
    with crashed():
        train(given, "stopped", dataset=images(), progress=stop)
    assert RunDirectory("stopped").has_checkpoint() == (stage == "second")
    resume("stopped", dataset=images(), trust_code=True)
    for folder in ("", "frozen"):
        assert differences(left_behind(Path("whole", folder)), left_behind(Path("stopped", folder))) == []


def test_a_folder_is_fine_tuned_and_all_that_can_be_done_with_a_run_works(typed):
    code, out, err = typed("train", photos(), *TUNE, "--run", "run", "--epochs", "2", "--no-baselines")
    assert code == 0, err
    assert re.search(r"fine-tuning \d+ steps of \d+ images on a CPU takes about", out)
    assert out.index("takes about") < out.index("epoch 1/")
    run = load_run("run", trust_code=True)
    assert run.input_shape == (3, SIZE, SIZE)
    for words in (("predict", "run", "photos", "-o", "out.csv"), ("audit", "run"), ("suggest", "run", "-n", "2")):
        code, _, err = typed(*words, "--trust-code")
        assert code == 0, err
    with open("out.csv", newline="") as file:
        right = [row["class"] == re.sub(r"\d+\.png", "", Path(row["file"]).name) for row in csv.DictReader(file)]
    assert np.mean(right) > 0.8
    assert typed("export", "run", "-o", "model.onnx", "--trust-code")[0] == 0
    session = onnxruntime.InferenceSession("model.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["model_card"])["network"] == "backbone"
    (found,) = session.run(["probabilities"], {"inputs": pixels(50)})
    np.testing.assert_allclose(found, run.predict_proba(pixels(50)), atol=TOLERANCE)
    sys.modules.pop("tiny")
    code, _, err = typed("predict", "run", "photos", "-o", "again.csv")
    assert (code, "names code for its backbone, 'tiny:Tiny'" in err) == (1, True)


def test_folds_judge_both_stages_on_the_same_rows():
    evidence = evidence_by_folds(settings("schedule.epochs=1"), untested(), 2)
    assert {COMMITTEE, "logistic regression"} <= {*evidence.others}
    assert len(evidence.others[COMMITTEE]) == len(evidence.rows)


def untested():
    whole = images()
    return whole.with_split(np.arange(whole.num_train), np.arange(0), whole.train_labels)


def evidence(ours, frozen, rows=200):
    truth = np.arange(rows) % 2
    wrong = lambda count: np.where(np.arange(rows) < count, 1 - truth, truth)  # noqa: E731
    return Evidence.of(
        rows=np.arange(rows),
        labels=truth,
        probabilities=np.eye(2, dtype=np.float32)[wrong(ours)] * 0.8 + 0.1,
        others={COMMITTEE: wrong(frozen)},
        suggested=np.zeros(rows, bool),
    )


@pytest.mark.parametrize(
    ("ours", "frozen", "words"),
    [
        (80, 20, "fine-tuning did not help, so use the committee, which is the run in the folder frozen"),
        (21, 20, "Fine-tuning is not better than committee on frozen features, as far as can be seen"),
        (20, 80, "It is better than committee on frozen features by 30.00 points"),
    ],
)
def test_the_sentence_says_whether_it_was_worth_it(ours, frozen, words):
    assert words in Comparison(evidence(ours, frozen), 10, is_images=True).judgment


def test_the_committee_can_be_kept_if_it_is_clearly_better():
    run = train(settings("schedule.epochs=1"), "run", dataset=images())
    assert config_of_best(run, Comparison(evidence(20, 80), 10, is_images=True)) is None
    name, chosen = config_of_best(run, Comparison(evidence(80, 20), 10, is_images=True))
    assert (name, chosen.network.name, chosen.encoder.model) == (COMMITTEE, "committee", "tiny:Tiny")
    best = train(chosen, "best", dataset=images())
    assert best.finished
    np.testing.assert_array_equal(best.labels.rows, run.labels.rows)


def test_a_time_limit_covers_both_stages():
    run = train(settings(), "run", dataset=images(), time_limit=20)
    assert run.finished
    assert run.config.schedule.epochs >= 1


def test_one_backbone_must_be_named(typed):
    assert_one_sentence(
        typed("train", photos(), "--finetune"), "--finetune is for one backbone; name it with --backbone"
    )
    with pytest.raises(ConfigError, match="fine-tuning needs a backbone, and one only"):
        auto.config_for_dataset(images(), device="cpu", finetune=True)


def test_real_pretrained_weights_are_fine_tuned(typed, lite0):  # noqa: F811
    words = ("train", crops(each=6), "--backbone", lite0, "--finetune", "--size", "32", "--run", "run", "--epochs", "2")
    small = ("--set", "training.batch_size=8", "--set", "training.min_steps_per_epoch=2", "--quiet", "--no-report")
    code, _, err = typed(*words, *small, "--no-baselines", "--device", "cpu")
    assert code == 0, err
    run = load_run("run", trust_code=True)
    assert (run.input_shape, run.info.parameters > 3_000_000, run.frozen.finished) == ((3, 32, 32), True, True)
    found = run.predict_proba(np.stack([decode(path, 32) for path in sorted(Path("crops").rglob("*.jpg"))]))
    assert np.isfinite(found).all()
    assert finetune.is_finetuned(run.config)
