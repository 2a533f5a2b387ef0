"""A pretrained backbone: a frozen network from images to feature vectors, of timm (`timm:NAME`) or a user's `module:factory`.

A factory takes no arguments and returns a module from [rows, 3, size, size] to [rows, features]. What timm says of its models,
a factory says in the same way, by an attribute of the module: `pretrained_cfg`, a dict with `input_size` (3, size, size),
`mean` and `std` of the inputs scaled to 0..1, and if it likes `weights` (their name), `license`, and `classifier`: the layers
that were removed, whose weights a file may hold all the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selfens.core.device import prediction_settings, random_state_kept
from selfens.errors import ConfigError, DataError, MissingPackageError, nearest, root_cause
from selfens.files import check_regular
from selfens.files.tensors import load_tensors
from selfens.networks import import_factory

TIMM = "timm:"
ASSUMED = {"input_size": (3, 224, 224), "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""What most backbones have; taken for those of a factory that does not say."""
BATCHES = {"cpu": 16, "cuda": 256}


class Backbone(nn.Module):
    """Bytes of images, [rows, 3, size, size], to features, [rows, features].

    about  what a run and an export keep: name, weights with hash and licence, input size and statistics
    """

    def __init__(self, module: nn.Module, about: dict[str, Any]) -> None:
        super().__init__()
        fast: Any = torch.channels_last  # half as fast again on a CPU
        self.module, self.about = module.eval().requires_grad_(False).to(memory_format=fast), about
        self.size: int = about["size"]
        self.mean: Tensor
        self.deviation: Tensor
        for name, key in (("mean", "mean"), ("deviation", "std")):
            self.register_buffer(name, torch.tensor(about[key]).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.module((images.float() / 255 - self.mean) / self.deviation)
        return features

    @torch.no_grad()
    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of any number of images, always in batches of one size: so an image's features do not depend on its company."""
        device, made = self.mean.device, []
        rows = BATCHES.get(device.type, BATCHES["cpu"])
        with prediction_settings("fp32", device):
            for start in range(0, len(images), rows):
                part = torch.from_numpy(images[start : start + rows])
                batch = torch.zeros(rows, *part.shape[1:], dtype=torch.uint8)
                batch[: len(part)] = part
                made.append(self._checked(batch.to(device))[: len(part)].float().cpu().numpy())
        return np.concatenate([np.empty((0, self.about["features"]), np.float32), *made])

    def _checked(self, batch: Tensor) -> Tensor:
        name = self.about["name"]
        try:
            made = self(batch)
        except Exception as error:  # a user's module may raise anything
            raise ConfigError(
                f"the backbone '{name}' failed on images of {self.size} x {self.size} pixels ({root_cause(error)})."
            ) from error
        if not isinstance(made, Tensor) or made.ndim != 2 or len(made) != len(batch) or not made.shape[1]:
            what = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"type {type(made).__name__}"
            raise ConfigError(
                f"the backbone '{name}' makes features of {what} for {len(batch)} images; expected [rows, features], so pool "
                "over height and width, or choose one of several outputs."
            )
        if not bool(made.isfinite().all()):
            raise DataError(f"the backbone '{name}' makes features that are NaN or infinite; are its weights whole?")
        return made


def is_code(name: str | None) -> bool:
    """Whether building the backbone of this name imports a user's code; timm is a library like others."""
    return name is not None and not name.startswith(TIMM)


def build(name: str, weights: str | None = None, size: int | None = None) -> Backbone:
    """The backbone of this name, in evaluation mode.

    weights  a file to load its weights from: .safetensors, or a state_dict saved by torch
    size     side of its input images, if not its own
    """
    with random_state_kept():  # weights are drawn before they are overwritten
        module = _from_timm(name, pretrained=weights is None) if name.startswith(TIMM) else _from_factory(name)
    given = getattr(module, "pretrained_cfg", None) or {}
    config = ASSUMED | (dict(given) if isinstance(given, Mapping) else {})
    if weights is not None:
        _load_weights(module, name, Path(weights), config.get("classifier") or ())
    about = {
        "name": name,
        "weights": _weights_name(config) if weights is None else Path(weights).name,
        "sha256": _digest(module),
        "licence": config.get("license") if weights is None else None,  # that of the file is not known
        **_input(name, config, size),
        "assumed": [key for key in ASSUMED if key not in given and not (key == "input_size" and size)],
        "features": 0,
    }
    backbone = Backbone(module, about)
    about["features"] = backbone._checked(torch.zeros(2, 3, backbone.size, backbone.size, dtype=torch.uint8)).shape[1]
    return backbone


def _from_timm(name: str, pretrained: bool) -> nn.Module:
    try:
        import timm
    except Exception as error:  # an ImportError, or anything that a torchvision of another torch raises
        raise MissingPackageError(
            f"the backbone '{name}' needs the package timm, which cannot be imported ({root_cause(error)}); install it, with "
            "a torchvision that fits torch, by: pip install 'selfens[timm]'"
        ) from None
    short = name.removeprefix(TIMM)
    if not re.fullmatch(r"[\w.]+", short) or not timm.is_model(
        short
    ):  # other spellings name files and other people's hubs
        raise ConfigError(f"there is no backbone '{name}'{nearest(short, timm.list_models())} See timm.list_models().")
    try:
        module: nn.Module = timm.create_model(short, pretrained=pretrained, num_classes=0)
    except Exception as error:  # of timm, of its hub, of the network
        advice = "give a file of them if this machine has no network" if pretrained else "is it one of timm's?"
        raise ConfigError(f"the weights of '{name}' cannot be loaded ({root_cause(error)}); {advice}.") from None
    return module


def _from_factory(name: str) -> nn.Module:
    factory = import_factory(name, "backbone")
    try:
        module = factory()
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(
            f"{name}() failed ({root_cause(error)}); expected a module from images to features."
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{name}() returned a {type(module).__name__}; expected a torch.nn.Module.")
    return module


def _input(name: str, config: Mapping[str, Any], size: int | None) -> dict[str, Any]:
    """Side, mean and deviation of the input images."""
    try:
        channels, height, width = (int(side) for side in config["input_size"])
        mean, std = ([float(value) for value in config[key]] for key in ("mean", "std"))
        if (channels, height) != (3, width) or height < 1 or len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError
    except (TypeError, ValueError):
        found = ", ".join(f"{key}={config[key]!r}" for key in ASSUMED)
        raise ConfigError(
            f"the pretrained_cfg of '{name}' says {found}; expected input_size=(3, side, side), and three numbers each, the "
            "deviations above 0."
        ) from None
    return {"size": size or height, "mean": mean, "std": std}


def _weights_name(config: Mapping[str, Any]) -> str | None:
    """As timm writes it, `architecture.tag`, or the name that a factory gives its weights."""
    return (
        config.get("weights")
        or ".".join(str(config[key]) for key in ("architecture", "tag") if config.get(key))
        or None
    )


def _load_weights(module: nn.Module, name: str, path: Path, removed: str | tuple[str, ...]) -> None:
    """Nothing is unpickled but tensors. Weights of the layers that were removed are left out."""
    try:
        check_regular(path)
        if path.suffix == ".safetensors":
            found: Any = load_tensors(path)[0]
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
        found = next((found[key] for key in ("state_dict", "model") if isinstance(found.get(key), dict)), found)
        if not found or not all(isinstance(tensor, Tensor) for tensor in found.values()):
            raise ValueError("it holds something else")
    except Exception as error:  # of torch, zipfile, pickle, the system
        reason = "it is not there" if isinstance(error, FileNotFoundError) else root_cause(error)
        raise ConfigError(
            f"the weights {path} cannot be read ({reason}); expected a .safetensors file, or a state_dict saved by torch."
        ) from None
    classifier = tuple(f"{layer}." for layer in ((removed,) if isinstance(removed, str) else removed))
    try:
        missing, unexpected = module.load_state_dict(found, strict=False)
        strange = [key for key in unexpected if not key.startswith(classifier)]
        if missing or strange:
            what = f"{len(missing)} tensors are missing" if missing else f"{len(strange)} are of no layer"
            raise RuntimeError(f"{what}, the first {(missing or strange)[0]}")
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip().rstrip(".")
        raise ConfigError(
            f"the weights {path} do not fit the backbone '{name}' ({reason}); give those of this network."
        ) from None


def _digest(module: nn.Module) -> str:
    """A hash of the weights that are computed with, wherever they come from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(
        (name, tensor) for name, tensor in module.state_dict().items() if isinstance(tensor, Tensor)
    ):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
