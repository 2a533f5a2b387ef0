"""A time limit: how long it may be, the epochs that fit, and that measuring leaves no trace in the run."""

import io
import re
import time

import numpy as np
import pytest
import torch
from rich.console import Console
from support import At, config, crash, crashed, differences, features, left_behind, write_npz

from selfens import Config, SelfEnsemblingClassifier, load_run, resume, train
from selfens.cli import main
from selfens.config import ScheduleConfig
from selfens.errors import ConfigError
from selfens.methods import METHODS
from selfens.settings import seconds
from selfens.training import limit
from selfens.training.progress import Bar, Lines

OPTIONS = {
    "temporal": (),
    "mean-teacher": ("schedule.name=cosine", "schedule.warmup_epochs=0.5", "optimizer.name=adamw"),
    "fixmatch": ("training.labeled_per_batch=4", "training.batch_size=14", "optimizer.name=sgd"),
}


@pytest.fixture
def few_epochs(monkeypatch):
    """A limit of 100 s is enough for four epochs, whatever was measured."""
    measure = limit._seconds_per_epoch
    monkeypatch.setattr(limit, "MEASURED", 5e-4)
    monkeypatch.setattr(limit, "_seconds_per_epoch", lambda *given: measure(*given) and 22.0)


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
    asked = config(method, *OPTIONS.get(method, ()), epochs=1000)
    run = train(asked, tmp_path / "limited", dataset=features(), time_limit=100)
    epochs = run.config.schedule.epochs
    assert epochs == 4
    assert run.config == Config.from_dict(asked.to_dict() | {"schedule": vars(asked.schedule.scaled(epochs))})
    assert len(run.history) == epochs
    plain = train(run.config, tmp_path / "plain", dataset=features())
    assert differences(left_behind(run.path), left_behind(plain.path)) == []


@pytest.mark.parametrize("place", ["ram", "file"])
def test_targets_elsewhere_are_as_if_nothing_was_measured(tmp_path, few_epochs, place):
    def asked(name):
        where = place if place == "ram" else tmp_path / name
        return config("temporal", f"method.targets={where}", epochs=50)

    run = train(asked("one"), tmp_path / "limited", dataset=features(), time_limit=100)
    again = asked("other").with_values("schedule", epochs=run.config.schedule.epochs)
    plain = train(again, tmp_path / "plain", dataset=features())
    assert differences(left_behind(run.path), left_behind(plain.path)) == []
    assert torch.equal(run.ensemble.mean, plain.ensemble.mean)


def test_a_resume_measures_nothing_and_is_exact(tmp_path, few_epochs, monkeypatch):
    with crashed():
        train(config(epochs=9), tmp_path / "run", dataset=features(), time_limit=100, progress=At(1, 2, crash))
    chosen = load_run(tmp_path / "run").config
    monkeypatch.setattr(limit, "fit_schedule", crash)
    resumed = resume(tmp_path / "run", dataset=features())
    assert resumed.config == chosen
    plain = train(chosen, tmp_path / "plain", dataset=features())
    assert differences(left_behind(resumed.path), left_behind(plain.path)) == []


def test_a_restarted_process_goes_on_with_the_epochs_that_were_chosen(tmp_path, few_epochs, monkeypatch):
    with crashed():
        train(config(), tmp_path / "run", dataset=features(), time_limit=100, progress=At(1, 2, crash))
    monkeypatch.setattr("selfens.core.launcher.restarts", lambda: 1)
    monkeypatch.setattr(limit, "fit_schedule", crash)
    assert train(config(), tmp_path / "run", dataset=features(), time_limit=100).finished


@pytest.mark.alone
def test_training_ends_in_time(tmp_path):
    began = time.perf_counter()
    run = train(config(), tmp_path / "run", dataset=features(), time_limit="3s")
    spent = time.perf_counter() - began
    assert run.finished
    assert "time limit" in run.about["note"]
    assert 1.5 < spent < 6  # a busy machine may be slower than when it was measured


def test_less_than_an_epoch_takes_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"leaves \d.* s for training, and one epoch takes about .* s; allow .* more"):
        train(config(), tmp_path / "run", dataset=features(), time_limit=0.001)
    assert list(tmp_path.iterdir()) == []


# The command and the estimator


def error_of(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    assert stopped.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--time-limit", "5 parsecs"], "--time-limit is '5 parsecs'; expected seconds above 0"),
        (["--time-limit", "0"], "--time-limit is '0'; expected seconds above 0"),
        (["--time-limit", "2s"], "--time-limit is 2 s, and starting, comparing and reporting take 7 s"),
        (["--time-limit", "5m", "--epochs", "3"], "a time limit and a number of epochs were both given"),
        (["--time-limit", "5m", "--set", "schedule.epochs=3"], "a time limit and a number of epochs were both given"),
    ],
)
def test_the_command_refuses_what_cannot_be_meant(tmp_path, capsys, words, sentence):
    npz = write_npz(tmp_path / "data.npz")
    assert sentence in error_of(["train", npz, "--run", tmp_path / "run", *words], capsys)
    assert not (tmp_path / "run").exists()


def test_the_command_fits_training_into_the_time(tmp_path, capsys, few_epochs):
    npz = write_npz(tmp_path / "data.npz")
    with pytest.raises(SystemExit) as done:
        main(["train", str(npz), "--run", str(tmp_path / "run"), "--time-limit", "100s", "--no-report"])
    assert not done.value.code
    epochs = load_run(tmp_path / "run").config.schedule.epochs
    assert f"after {epochs} epoch" in capsys.readouterr().out


def test_the_estimator_takes_a_time_limit(few_epochs):
    data = features()
    labels = np.where(np.arange(data.num_rows) < 20, data.labels, -1)
    model = SelfEnsemblingClassifier(time_limit=100).fit(data.inputs, labels)
    assert len(model.history_) == model.config_.schedule.epochs
    for also in ({"epochs": 3}, {"config": {"schedule.epochs": 3}}):
        with pytest.raises(
            ConfigError, match="time_limit and a number of epochs were both given; leave one of them out"
        ):
            SelfEnsemblingClassifier(time_limit=100, **also).fit(data.inputs, labels)


# What is seen


def test_the_bar_counts_down_to_the_limit():
    bar = Bar()
    bar.bar.live.console = bar.console = Console(file=io.StringIO(), width=100, force_terminal=True, no_color=True)
    bar.until(time.perf_counter() + 3725.9)
    bar.start("title", epochs=3, first_epoch=0, steps_per_epoch=10)
    bar.close()
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", bar.console.file.getvalue())
    assert "1:02:05 left" in plain


def test_lines_count_down_to_the_limit(capsys):
    lines = Lines()
    lines.until(time.perf_counter() + 61.5)
    lines.start("title", epochs=3, first_epoch=0, steps_per_epoch=10)
    lines.epoch({"epoch": 0, "total": 1.0, "images_per_second": 1.0})
    assert capsys.readouterr().out.endswith("1 min 01 s left\n")
