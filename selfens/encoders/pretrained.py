"""A pretrained backbone: a frozen network from images to feature vectors, of timm (`timm:NAME`) or of a user's factory.

A factory takes no arguments and returns a module from [rows, 3, size, size] to [rows, features]. Like a model of timm,
it may describe itself by an attribute `pretrained_cfg`: a dict with `input_size` (3, size, size), `mean` and `std` of
inputs scaled to 0..1, and optionally `weights` (their name), `license`, and `classifier`: the layers that were removed,
whose weights a file may still hold.
"""

import functools
import hashlib
import json
import math
import re
import reprlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from selfens.core.device import keep_random_state, prediction_settings
from selfens.data.images import SIDE
from selfens.errors import ConfigError, DataError, SelfensError, did_you_mean, import_factory, require, root_cause
from selfens.files import check_regular
from selfens.files.tensors import load_tensors

TIMM = "timm:"
ASSUMED = {"input_size": (3, 224, 224), "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""What most backbones use; assumed if a factory's module does not describe itself."""
TOLERANCE = 1e-3  # of a difference between features, relative to the largest
BATCHES = {"cpu": 4, "cuda": 128}  # larger ones do not fit into the caches of a CPU


class Backbone(nn.Module):
    """A module from bytes of images, [rows, 3, size, size], to features, [rows, features].

    `about` is what a run and an export keep: name, weights with hash and license, input size and statistics. Its `key`
    is a hash of everything that determines the features except the code.
    """

    def __init__(self, module: nn.Module, about: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.about, self.size = module.eval().requires_grad_(False), about, int(about["size"])
        self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU
        self.mean = nn.Buffer(torch.tensor(about["mean"]).view(1, 3, 1, 1), persistent=False)
        self.std = nn.Buffer(torch.tensor(about["std"]).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        weights = next((each for each in self.module.parameters() if each.is_floating_point()), self.mean)
        return self.module(((images.float() / 255 - self.mean) / self.std).to(weights.dtype))  # type: ignore[no-any-return]

    @torch.no_grad()
    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features of images. Batches are padded to one size, so no image affects another."""
        device, made = self.mean.device, []
        rows = BATCHES.get(device.type, BATCHES["cpu"])
        with prediction_settings("fp32", device):
            for start in range(0, len(images), rows):
                part = torch.from_numpy(images[start : start + rows])
                batch = torch.cat([part, part.new_zeros(rows - len(part), *part.shape[1:])])
                made.append(self.checked(batch.to(device))[: len(part)].cpu().numpy())
        return np.concatenate(made)

    def checked(self, batch: Tensor) -> Tensor:
        """Return the features of one batch, or refuse them."""
        name, width = self.about["name"], self.about.get("features")
        with _as_config_error(f"the backbone '{name}' failed on images of {self.size} x {self.size} pixels"):
            made = self(batch)
            shape = tuple(made.shape) if isinstance(made, Tensor) and not made.is_complex() else ()
            if len(shape) != 2 or shape != (len(batch), width or shape[1]) or not shape[1]:
                what = f"shape {shape}" if shape else f"type {getattr(made, 'dtype', type(made).__name__)}"
                found = f"the backbone '{name}' returns features of {what} for {len(batch)} images"
                raise ConfigError(f"{found}; expected real numbers [{len(batch)}, {width or 'features'}].")
            features: Tensor = made.float()
            if not bool(features.isfinite().all()):
                raise DataError(f"the backbone '{name}' returned NaN or infinite features; check its weights.")
        return features


@contextmanager
def _as_config_error(what: str, hint: str = "") -> Iterator[None]:
    """Turn anything that a user's module may raise into one sentence."""
    try:
        yield
    except SelfensError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} ({root_cause(error)}){hint}.") from error


def build(name: str, weights: str | None = None, size: int | None = None, *, pretrained: bool = True) -> Backbone:
    """Build a backbone in evaluation mode, with the weights of a file and another input size if they are given.

    Without `pretrained`, no weights are downloaded or read, because others will be loaded.
    """
    weights = weights if pretrained else None
    is_timm = name.startswith(TIMM)
    make = _timm(name, pretrained=pretrained and weights is None) if is_timm else import_factory(name, "backbone")
    hint = "; give a file of its weights if they cannot be downloaded" if is_timm else ""
    with _as_config_error(f"the backbone '{name}' cannot be built", hint), keep_random_state():
        module = make()  # draws weights before it loads others
    with _as_config_error(f"the backbone '{name}' cannot be used"):
        return _checked(module, name, weights, size)


def _checked(module: Any, name: str, weights: str | None, size: int | None) -> Backbone:
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{name}() returned a {type(module).__name__}; expected a torch.nn.Module.")
    config = _pretrained_config(name, module)
    if weights is not None:
        _load_weights(module, name, Path(weights), config["classifier"])
    tag = ".".join(str(config[key]) for key in ("architecture", "tag") if config.get(key))  # as timm names weights
    about = {
        "name": name,
        "weights": Path(weights).name if weights else config.get("weights") or tag or None,
        "sha256": digest_of_weights(module, name),
        "license": None if weights else config.get("license"),  # unknown for a file
        **_input(name, ASSUMED | config, size),
        "assumed": [key for key in ASSUMED if key not in config and not (key == "input_size" and size)],
    }
    decisive = json.dumps([about[key] for key in ("name", "sha256", "size", "mean", "std")])
    about["key"] = hashlib.sha256(decisive.encode()).hexdigest()[:40]
    backbone = Backbone(module, about)
    images = torch.from_numpy(noise(3, backbone.size))
    with torch.no_grad():
        expected = backbone.checked(images[:2])[0]
        about["features"] = len(expected)
        again = backbone.checked(images[[2, 0]])[1]
    if not is_close(again.numpy(), expected.numpy()):
        raise ConfigError(
            f"the backbone '{name}' returns different features for the same image, at random or depending on the rest "
            "of the batch; expected the same each time, so turn off its dropout and batch statistics."
        )
    return backbone


def noise(rows: int, size: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (rows, 3, size, size), dtype=np.uint8)


def is_close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    """Return True if features are the same up to rounding, which depends on the machine and the number of threads."""
    return bool(np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max())


def _timm(name: str, pretrained: bool) -> Any:
    require("timm", f"the backbone '{name}'", "timm")
    import timm

    short = name.removeprefix(TIMM)
    if not re.fullmatch(r"[\w.]+", short) or not timm.is_model(short):  # others name files and other people's hubs
        hint = did_you_mean(short, timm.list_models())
        raise ConfigError(f"there is no backbone '{name}'{hint} See timm.list_models().")
    return functools.partial(timm.create_model, short, pretrained=pretrained, num_classes=0)


def _pretrained_config(name: str, module: nn.Module) -> dict[str, Any]:
    """Return the pretrained_cfg of a module, with `classifier` as a tuple. Refuse names that are not text."""
    config = getattr(module, "pretrained_cfg", None)
    if not isinstance(config, Mapping | None):
        raise ConfigError(f"the pretrained_cfg of '{name}' is {reprlib.repr(config)}; expected a dict.")
    config = dict(config or {})
    layers = config.get("classifier") or ()
    config["classifier"] = tuple(layers) if isinstance(layers, list | tuple) else (layers,)
    names = {"weights": [config.get("weights")], "license": [config.get("license")], "classifier": config["classifier"]}
    for key, texts in names.items():
        if not all(isinstance(text, str | None) for text in texts):
            raise ConfigError(f"the pretrained_cfg of '{name}' says {key}={reprlib.repr(config[key])}; expected text.")
    return config


def _input(name: str, config: Mapping[str, Any], size: int | None) -> dict[str, Any]:
    """Return side, mean and standard deviation of the input images."""
    try:
        channels, height, width = (int(side) for side in config["input_size"])
        mean, std = ([float(value) for value in config[key]] for key in ("mean", "std"))
        side = size or height
        fits = (channels, height) == (3, width) and SIDE["at_least"] <= side <= SIDE["at_most"]
        if not fits or len(mean) != 3 or len(std) != 3 or min(std) <= 0 or not all(map(math.isfinite, mean + std)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        found = ", ".join(f"{key}={reprlib.repr(config[key])}" for key in ASSUMED)
        raise ConfigError(
            f"the pretrained_cfg of '{name}' says {found}; expected input_size=(3, side, side) with a side of "
            f"{SIDE['at_least']} to {SIDE['at_most']}, and three numbers each, the deviations above 0."
        ) from None
    return {"size": side, "mean": mean, "std": std}


def _load_weights(module: nn.Module, name: str, path: Path, removed: tuple[str, ...]) -> None:
    """Load weights, unpickling nothing but tensors. Tensors of the `removed` layers are ignored."""
    try:
        check_regular(path)
        is_safe = path.suffix == ".safetensors"
        with path.open("rb") as file, warnings.catch_warnings(action="ignore"):  # of kinds that are refused
            found: Any = load_tensors(path)[0] if is_safe else torch.load(file, map_location="cpu", weights_only=True)
        found = next((found[key] for key in ("state_dict", "model") if isinstance(found.get(key), dict)), found)
        if not found or not all(isinstance(key, str) and isinstance(found[key], Tensor) for key in found):
            raise ValueError
    except Exception as error:  # of torch, zipfile, pickle, the system
        reason = "it is damaged, or holds something else"
        if isinstance(error, OSError) and error.filename:  # torch fails on the end of a file in this way, too
            reason = "it is not there" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        expected = "expected a .safetensors file, or a state_dict saved by torch"
        raise ConfigError(f"the weights {path} cannot be read ({reason}); {expected}.") from None
    removed_weights = tuple(f"{layer}." for layer in removed)
    try:
        missing, unexpected = module.load_state_dict(found, strict=False)
        strange = [key for key in unexpected if not key.startswith(removed_weights)]
        if missing or strange:
            raise RuntimeError(f"{(missing or strange)[0]} {'is missing' if missing else 'belongs to no layer'}")
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip().rstrip(".")
        raise ConfigError(f"the weights {path} do not fit the backbone '{name}' ({reason}); give its own.") from None


def digest_of_weights(module: nn.Module, name: str) -> str:
    """Hash the weights."""
    digest = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, Tensor) or is_lazy(tensor) or tensor.is_meta:
            raise ConfigError(f"the backbone '{name}' has no numbers in '{key}'; expected tensors of loaded weights.")
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{key} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
