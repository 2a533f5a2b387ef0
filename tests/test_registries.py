"""The source and the encoder of docs/extending.md, registered and used by command for the whole life of a run."""

import csv
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from support import At, crash, crashed, left_behind

from selfens import auto, resume, train
from selfens.data.sources import SOURCES
from selfens.encoders import ENCODERS

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    """Put the page's modules into a folder on sys.path, register both classes, and make data."""
    modules = tmp_path / "modules"
    modules.mkdir()
    for name in ("recordings", "spectrum"):
        (code,) = re.findall(rf"^```python\n(# {name}\.py\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        (modules / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(modules)
    monkeypatch.setitem(ENCODERS, "spectrum", "spectrum:Spectrum")
    others = dict(SOURCES)
    SOURCES.clear()
    SOURCES.update({"recordings": "recordings:Recordings", **others})  # before folders of images, so that it wins
    random, folder = np.random.default_rng(0), tmp_path / "tones"
    folder.mkdir()
    for number in range(60):
        kind = ("low", "high")[number % 2]
        time = np.arange(80)
        tone = np.sin(time * (0.3 if kind == "low" else 1.1) + random.uniform(0, 6)) + random.normal(0, 0.3, 80)
        label = kind if number < 20 or number >= 50 else "unknown"
        part = "test" if number >= 50 else "train"
        np.savetxt(folder / f"{label}-{part}-{number:02}.rec", tone)
    yield folder
    SOURCES.clear()
    SOURCES.update(others)  # in the order they had


@pytest.mark.parametrize("encoder", ["identity", "spectrum"])
def test_a_source_and_an_encoder_of_thirty_lines_live_through_every_command(recordings, encoder, typed, tmp_path):
    run = tmp_path / "run"
    words = ("--encoder", encoder, "--set", "source.length=64", "--set", "training.threads=1")
    code, out, err = typed("train", recordings, "--run", run, "--epochs", "6", "--device", "cpu", *words)
    assert (code, err) == (0, "")
    assert "50 rows, 20 labeled, 10 to test on" in out
    error = float(
        re.search(r"^error ([\d.]+) % .* by 5-fold cross-validation on 20 labeled rows", out, re.MULTILINE)[1]
    )
    assert error <= 20 or encoder == "identity"  # phases are random: only the spectrum tells the tones apart
    assert typed("resume", run)[0] == 0

    assert typed("predict", run, recordings, "-o", "out.csv")[0] == 0
    lines = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert len(lines) == 60
    assert {"file", "class", "probability", "runner_up", "novelty"} == set(lines[0])
    assert {line["class"] for line in lines} <= {"low", "high"}

    assert typed("audit", run, "-o", "issues.csv")[0] == 0
    assert typed("suggest", run, "-n", "5", "-o", "next.csv")[0] == 0
    assert typed("report", run, "-o", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert re.search(r"(low|high)-train-\d\d\.rec", page)
    assert ("loudest" in page) == (encoder == "spectrum")
    assert typed("evaluate", run, "--folds", "2")[0] == 0
    assert typed("export", run, "-o", "model.onnx")[0] == 0
    assert (tmp_path / "model.onnx").stat().st_size > 0
    assert typed("train", recordings, "--set", "source.length=1")[0] == 1


def test_a_killed_run_of_a_new_source_is_resumed_to_the_same_bits(recordings, typed, tmp_path):
    config, _ = auto.config_for(str(recordings), device="cpu", length=64)
    config = config.with_overrides(
        ["encoder.name=spectrum", "schedule.epochs=4", "training.threads=1", "training.checkpoint_every=1"]
    )
    train(config, tmp_path / "whole")
    with crashed():
        train(config, tmp_path / "killed", progress=At(0, 25, crash))
    resume(tmp_path / "killed")
    assert left_behind(tmp_path / "killed") == left_behind(tmp_path / "whole")
