"""A time limit: how long it may be, the epochs that fit, and that measuring leaves no trace in the run."""

import time

import numpy as np
import pytest
from support import At, blobs, config, crash, crashed, differences, features, left_behind, write_npz

from selfens import SelfEnsemblingClassifier, load_run, resume, train
from selfens.config import ScheduleConfig
from selfens.data.dataset import Dataset
from selfens.errors import ConfigError
from selfens.methods import METHODS
from selfens.settings import seconds
from selfens.tools import measure
from selfens.tools.folds import evidence_by_folds
from selfens.training import limit, loop

OPTIONS = {
    "mean-teacher": ("schedule.name=cosine", "schedule.warmup_epochs=0.5", "optimizer.name=adamw"),
    "fixmatch": ("training.labeled_per_batch=4", "training.batch_size=14", "optimizer.name=sgd"),
}


@pytest.fixture
def few_epochs(monkeypatch):
    """A limit of 100 s is enough for four epochs, whatever was measured."""
    genuine = limit.seconds_per_epoch
    monkeypatch.setattr(limit, "MEASURED", 5e-4)
    monkeypatch.setattr(limit, "seconds_per_epoch", lambda *given: genuine(*given) and 22.0)


# Lengths of time


@pytest.mark.parametrize(
    ("given", "expected"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5 h", 5400), ("2min", 120), (7, 7), (0.5, 0.5)]
)
def test_a_length_of_time_is_a_number_of_seconds_or_has_a_unit(given, expected):
    assert seconds("time_limit", given) == expected


@pytest.mark.parametrize(
    "given", ["5 parsecs", "0", "0m", "-3s", "", "m", "nan", "inf", 0, -1, float("nan"), True, None]
)
def test_another_length_of_time_is_refused(given):
    with pytest.raises(ConfigError, match=r"time_limit is .*; expected seconds above 0.*5m"):
        seconds("time_limit", given)


# The schedule


def test_ramps_keep_their_proportion():
    given = ScheduleConfig(epochs=100, rampup_epochs=20, warmup_epochs=100, weight_rampup_epochs=0)
    fitted = given.scaled(30)
    assert (fitted.epochs, fitted.rampup, fitted.warmup_epochs, fitted.weight_rampup) == (30, 6, 30, 0)
    assert fitted.rampdown_epochs is None
    assert fitted.rampdown == pytest.approx(given.rampdown * 0.3)


@pytest.mark.parametrize("method", METHODS)
def test_the_run_is_the_one_that_its_config_asks_for(tmp_path, few_epochs, method):
    asked = config(method, *OPTIONS.get(method, ()), "training.checkpoint_every=1", epochs=1000)
    run = train(asked, tmp_path / "limited", dataset=features(), time_limit=100)
    assert run.config == asked.with_epochs(4)
    assert len(run.history) == 4
    plain = train(run.config, tmp_path / "plain", dataset=features())
    assert differences(left_behind(run.path), left_behind(plain.path)) == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_resume_measures_nothing_and_is_exact(tmp_path, few_epochs, monkeypatch, is_restarted):
    settings = config("temporal", "training.checkpoint_every=1", epochs=9)
    with crashed():
        train(settings, tmp_path / "run", dataset=features(), time_limit=100, progress=At(1, 2, crash))
    chosen = load_run(tmp_path / "run").config
    assert chosen.schedule.epochs == 4
    monkeypatch.setattr(loop, "fit_schedule", crash)
    if is_restarted:  # by torchrun, with the same command as before
        monkeypatch.setattr("selfens.core.launcher.restarts", lambda: 1)
        resumed = train(settings, tmp_path / "run", dataset=features(), time_limit=100)
    else:
        resumed = resume(tmp_path / "run", dataset=features())
    assert resumed.config == chosen
    plain = train(chosen, tmp_path / "plain", dataset=features())
    assert differences(left_behind(resumed.path), left_behind(plain.path)) == []


@pytest.mark.alone
def test_training_ends_in_time(tmp_path):
    began = time.perf_counter()
    run = train(config(), tmp_path / "run", dataset=features(), time_limit="3s")
    spent = time.perf_counter() - began
    assert run.finished
    assert "time limit" in run.info.note
    assert 1.5 < spent < 6  # a busy machine may be slower than when it was measured


def test_less_than_an_epoch_takes_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"leaves \d.* s for training, and one epoch takes about .* s; allow .* more"):
        train(config(), tmp_path / "run", dataset=features(), time_limit=0.001)
    assert list(tmp_path.iterdir()) == []


# The command and the estimator


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--time-limit", "5 parsecs"], "--time-limit is '5 parsecs'; expected seconds above 0"),
        (["--time-limit", "0"], "--time-limit is '0'; expected seconds above 0"),
        (["--time-limit", "2s"], "--time-limit is 2 s, but starting, comparing and reporting take 7 s"),
        (["--time-limit", "5m", "--epochs", "3"], "a time limit and a number of epochs were both given"),
        (["--time-limit", "5m", "--set", "schedule.epochs=3"], "a time limit and a number of epochs were both given"),
    ],
)
def test_the_command_refuses_what_cannot_be_meant(tmp_path, typed, words, sentence):
    npz = write_npz(tmp_path / "data.npz")
    code, _, err = typed("train", npz, "--run", tmp_path / "run", *words)
    assert code == 1
    assert sentence in err
    assert not (tmp_path / "run").exists()


def test_the_command_fits_training_into_the_time(tmp_path, typed, few_epochs):
    npz = write_npz(tmp_path / "data.npz")
    code, out, _ = typed("train", npz, "--run", tmp_path / "run", "--time-limit", "100s", "--no-report")
    assert code == 0
    assert load_run(tmp_path / "run").config.schedule.epochs == 3  # some of the time is kept for comparing
    assert "on 30 test rows; trained 3 epochs in" in out


@pytest.mark.parametrize(("seconds_trained", "by_folds"), [(1.9, 5), (2.1, 0)])
def test_folds_that_would_take_longer_than_the_limit_are_suggested_instead(
    tmp_path, typed, few_epochs, monkeypatch, seconds_trained, by_folds
):
    """Of 100 s, a tenth is kept for measuring: 10 s for five folds."""
    monkeypatch.setattr(measure, "total_seconds", lambda history: seconds_trained)
    write_npz(tmp_path / "data.npz", x_test=None, y_test=None)
    code, out, _ = typed("train", "data.npz", "--run", "run", "--time-limit", "100s", "--no-report")
    evidence = load_run(tmp_path / "run").evidence
    assert (code, evidence.folds if evidence else 0) == (0, by_folds)
    advice = "to measure its error by cross-validation: selfens evaluate run --folds 5"
    assert ("its error was not measured" in out, advice in out) == (not by_folds, not by_folds)


def test_the_folds_of_the_estimator_have_the_epochs_that_fit(few_epochs):
    x, y = blobs()
    labels = np.where(np.arange(len(y)) < 20, y, -1)
    small = {"network.width": 8, "training.threads": 1}
    model = SelfEnsemblingClassifier("temporal", time_limit=100, measure=True, config=small).fit(x, labels)
    assert model.config_.schedule.epochs == len(model.history_)
    expected = evidence_by_folds(model.config_, Dataset.from_arrays(x, labels), 5)
    assert (model.comparison_.evidence.probabilities == expected.probabilities).all()


def test_the_estimator_takes_a_time_limit(few_epochs):
    x, y = blobs()
    labels = np.where(np.arange(len(y)) < 20, y, -1)
    model = SelfEnsemblingClassifier(time_limit=100).fit(x, labels)
    assert len(model.history_) == model.config_.schedule.epochs
    for also in ({"epochs": 3}, {"config": {"schedule.epochs": 3}}):
        with pytest.raises(
            ConfigError, match="time_limit and a number of epochs were both given; leave one of them out"
        ):
            SelfEnsemblingClassifier(time_limit=100, **also).fit(x, labels)
