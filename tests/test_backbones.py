"""Several backbones: their features beside each other, and a committee with heads on those of each."""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from support import At, config, crash, crashed, differences, left_behind
from test_backbone import TINY, assert_one_sentence, photos, pixels

from selfens import encoders, load_run, networks, resume, train
from selfens.config import NetworkConfig
from selfens.encoders import ENCODERS
from selfens.errors import ConfigError
from selfens.tools.export import TOLERANCE

MORE = '''

class Other(Tiny):
    """Half of the features, of another kind."""

    def forward(self, x):
        return self.layers(x)[:, ::2].square()


def large():
    return changed(pretrained_cfg={"input_size": (3, 16, 16)})
'''
BOTH = ("--backbone", "tiny:Tiny", "--backbone", "tiny:Other")
QUICKLY = ("--epochs", "3", "--quiet", "--no-report")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder with the module `tiny` in it, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "tiny.py").write_text(TINY + MORE)
    sys.modules.pop("tiny", None)
    yield tmp_path
    sys.modules.pop("tiny", None)


def both(*models, **options):
    return encoders.build(ENCODERS.options("backbones", models=models or ("tiny:Tiny", "tiny:Other"), **options))


def test_features_of_each_stand_beside_each_other():
    images, encoder = pixels(5, side=12), both()
    each = [
        encoders.build(ENCODERS.options("backbone", model=model)).transform(images) for model in encoder.options.models
    ]
    found = encoder.transform(images)
    np.testing.assert_array_equal(found.inputs, np.concatenate([one.inputs for one in each], axis=1))
    assert encoder.widths == (6, 3)
    assert found.inputs.shape == (5, 9)


def test_each_head_sees_the_features_of_one():
    torch.manual_seed(0)
    network = networks.build(NetworkConfig(name="committee", groups="6,3"), (9,), 4).eval()
    for weight in network.members.parameters():
        weight.data.normal_()
    x, changed = torch.randn(5, 9), torch.zeros(9)
    changed[6:] = 1
    before, after = network.heads(x), network.heads(x + changed)
    assert [bool((one != other).any()) for one, other in zip(before, after, strict=True)] == [False] * 3 + [True] * 3
    alone = networks.build(NetworkConfig(name="committee"), (6,), 4).eval()
    alone.members.load_state_dict(network.members[:3].state_dict())
    for one, other in zip(before, alone.heads(x[:, :6]), strict=False):
        torch.testing.assert_close(one, other)


def test_groups_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"network.groups is '6,2', but a row has 9 features"):
        networks.build(NetworkConfig(name="committee", groups="6,2"), (9,), 4)
    for given in ("six", "0,9", "6,"):
        with pytest.raises(ConfigError, match=r"network.groups is .*; expected"):
            NetworkConfig(groups=given)


def test_a_folder_is_trained_on_and_all_that_can_be_done_with_a_run_works(typed):
    code, out, err = typed("train", photos(), *BOTH, "--run", "run", "--epochs", "30")
    assert code == 0, err
    assert "tiny:Tiny at 8 px and tiny:Other at 8 px; features of 36 images computed" in out
    run = load_run("run", trust_code=True)
    assert (run.config.network.groups, run.input_shape, len(run.network.members)) == ("6,3", (9,), 6)
    assert typed("predict", "run", "photos", "-o", "out.csv", "--trust-code")[0] == 0
    with open("out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert np.mean([row["class"] == re.sub(r"\d+\.png", "", Path(row["file"]).name) for row in rows]) > 0.9
    for words in (("audit", "run"), ("suggest", "run", "-n", "2"), ("evaluate", "run", "--folds", "2", "--quiet")):
        assert typed(*words, "--trust-code")[0] == 0
    assert typed("export", "run", "-o", "model.onnx", "--trust-code")[0] == 0
    session = onnxruntime.InferenceSession("model.onnx")
    card = json.loads(session.get_modelmeta().custom_metadata_map["model_card"])
    assert [each["name"] for each in card["encoder"]["backbones"]] == ["tiny:Tiny", "tiny:Other"]
    (found,) = session.run(["probabilities"], {"inputs": pixels(50)})
    np.testing.assert_allclose(found, run.predict_proba(pixels(50)), atol=TOLERANCE)
    sys.modules.pop("tiny")
    assert_one_sentence_of_run(typed("predict", "run", "photos", "-o", "again.csv"))


def assert_one_sentence_of_run(result):
    code, _, err = result
    assert (code, len(err.splitlines())) == (1, 1)
    assert "names code for its backbone, 'tiny:Tiny, tiny:Other', which is imported only if you trust it" in err


def test_stopped_and_resumed_the_bits_are_the_same():
    words = ("encoder.name=backbones", "encoder.models=tiny:Tiny,tiny:Other", "network.name=committee")
    more = ("labels.count=all", "training.batch_size=6", "training.checkpoint_every=1")
    settings = config("committee", *words, *more, name=str(photos()), epochs=3)
    train(settings, "whole")
    with crashed():
        train(settings, "stopped", progress=At(1, 1, crash))
    resume("stopped", trust_code=True)
    assert differences(left_behind(Path("whole")), left_behind(Path("stopped"))) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--backbone", "tiny:Tiny"), "encoder.models is tiny:Tiny, tiny:Other, tiny:Tiny; name each backbone once"),
        (
            ("--backbone", "tiny:large"),
            "images of several sizes (tiny:Tiny at 8 px, tiny:Other at 8 px, tiny:large at 16 px)",
        ),
        (("--backbone", "tiny"), "encoder.model is 'tiny'; expected timm:NAME or package.module:factory"),
        (("--weights", "w.pt"), "--weights is for one backbone, but several were named"),
    ],
)
def test_backbones_that_do_not_go_together_are_one_sentence(typed, more, words):
    assert_one_sentence(typed("train", photos(), *BOTH, *more, *QUICKLY), words)


def test_one_size_for_all_makes_them_go_together():
    assert both("tiny:Tiny", "tiny:large", size=12).image_side == 12


def test_one_backbone_is_not_several():
    with pytest.raises(ConfigError, match="names fewer than two backbones"):
        both("tiny:Tiny")
