"""Preprocessing: fitted on the training inputs, saved with the run, and applied to training, test and new inputs.

Each kind is a module from raw inputs (uint8, which is scaled to 0..1, or float) to float32.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from selfens.core.device import float32_mode, prediction_settings
from selfens.data.arrays import refuse_rows
from selfens.data.rows import Array, Rows, pieces
from selfens.errors import RunError
from selfens.files.tensors import load_tensors, save_tensors

ZCA_EPSILON = 1e-5
CHUNK = 5000
LARGEST = 1e15  # larger inputs may overflow float32 when squared in preprocessing or in the network
ROUNDING = 1e-5  # a standard deviation below this, relative to the values, is float32 rounding


def as_float(raw: Tensor) -> Tensor:
    """Scale bytes to 0..1; leave floats as they are."""
    return raw.float() / 255 if raw.dtype == torch.uint8 else raw.float()


class NoPreprocess(nn.Module):
    """Leave inputs unchanged, except that bytes are scaled to 0..1."""

    def forward(self, raw: Tensor) -> Tensor:
        return as_float(raw)


class PerImage(nn.Module):
    """Scale each image to zero mean and unit variance, over all channels and pixels; a blank one stays blank."""

    def forward(self, raw: Tensor) -> Tensor:
        x = as_float(raw)
        flat = x.flatten(1)
        flat = flat - flat.mean(dim=1, keepdim=True)
        deviation = flat.square().mean(dim=1, keepdim=True).sqrt()
        varies = deviation > ROUNDING * x.flatten(1).square().mean(dim=1, keepdim=True).sqrt()
        return (torch.where(varies, flat, 0.0) / torch.where(varies, deviation, 1.0)).view(x.shape)


class PerChannel(nn.Module):
    """Scale each channel (or feature) to zero mean and unit variance over the training set."""

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.mean, self.deviation = nn.Buffer(mean), nn.Buffer(deviation)

    def forward(self, raw: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (raw.ndim - 2)
        return (as_float(raw) - self.mean.view(shape)) / self.deviation.view(shape)


class Zca(nn.Module):
    """(x - mean) W with W = U diag(1/sqrt(S + 1e-5)) U', from the covariance U diag(S) U' of the flattened training images."""

    def __init__(self, mean: Tensor, matrix: Tensor) -> None:
        super().__init__()
        self.mean, self.matrix = nn.Buffer(mean), nn.Buffer(matrix)

    def forward(self, raw: Tensor) -> Tensor:
        x = as_float(raw)
        return ((x.flatten(1) - self.mean) @ self.matrix).view(x.shape)


def fit(kind: str, inputs: Array, device: torch.device | str = "cpu", rows: Rows | None = None) -> nn.Module:
    """Fit the preprocessing `kind` on all training inputs, or only on `rows`."""
    if kind == "zca":
        return _fit_zca(inputs, device, rows)
    return _fit_channels(inputs, rows).to(device) if kind == "channel" else KINDS[kind]()


def check_range(
    preprocess: nn.Module, sets: Mapping[str, Array], device: torch.device | str, limit: float = LARGEST
) -> None:
    """Refuse rows that hold NaN, or values beyond a limit once preprocessed; `sets` maps names to inputs."""
    for name, inputs in sets.items():
        if inputs.dtype != np.uint8 and len(inputs):
            made = (transform(preprocess, torch.from_numpy(piece).to(device)) for piece in pieces(inputs, CHUNK))
            bad = [~(piece.flatten(1).abs() <= limit).all(dim=1).cpu() for piece in made]
            refuse_rows(torch.cat(bad).numpy(), f"the {name} inputs hold NaN, or values too large to compute with")


def apply(preprocess: nn.Module | None, inputs: Array, device: torch.device | str) -> Tensor:
    """Return all inputs on the device, preprocessed; raw, as bytes or float32, if `preprocess` is None."""
    kind = torch.uint8 if preprocess is None and inputs.dtype == np.uint8 else torch.float32
    result = torch.empty(inputs.shape, dtype=kind, device=device)
    for start, piece in zip(range(0, len(inputs), CHUNK), pieces(inputs, CHUNK), strict=True):
        result[start : start + CHUNK] = transform(preprocess, torch.from_numpy(piece).to(device))
    return result


def transform(preprocess: nn.Module | None, raw: Tensor) -> Tensor:
    """Preprocess a batch of raw inputs on its device."""
    if preprocess is None:
        return raw
    with torch.no_grad(), prediction_settings("fp32", raw.device):
        result: Tensor = preprocess(raw)
        return result


def _fit_channels(inputs: Array, rows: Rows | None) -> PerChannel:
    axes = tuple(axis for axis in range(inputs.ndim) if axis != 1)
    scale = 255.0 if inputs.dtype == np.uint8 else 1.0
    count = (len(inputs) if rows is None else len(rows)) * int(np.prod(inputs.shape[2:]))
    sums = [piece.sum(axis=axes, dtype=np.float64, keepdims=True) for piece in pieces(inputs, CHUNK, rows)]
    mean = sum(sums) / count
    squares = sum(np.square(piece - mean).sum(axis=axes) for piece in pieces(inputs, CHUNK, rows))
    deviation = (np.sqrt(squares / count) / scale).astype(np.float32)
    deviation[deviation == 0] = 1.0  # a constant feature stays zero
    return PerChannel(torch.from_numpy(mean.ravel() / scale).float(), torch.from_numpy(deviation))


def _fit_zca(inputs: Array, device: torch.device | str, rows: Rows | None) -> Zca:
    """Fit ZCA by the eigenvectors of the covariance, accumulated in float64."""
    features, count = int(np.prod(inputs.shape[1:])), len(inputs) if rows is None else len(rows)
    total = torch.zeros(features, dtype=torch.float64, device=device)
    for piece in pieces(inputs, CHUNK, rows):
        total += as_float(torch.from_numpy(piece).to(device)).flatten(1).sum(dim=0, dtype=torch.float64)
    mean = (total / count).float()
    covariance = torch.zeros(features, features, dtype=torch.float64, device=device)
    with float32_mode("fp32"):
        for piece in pieces(inputs, CHUNK, rows):
            centered = as_float(torch.from_numpy(piece).to(device)).flatten(1) - mean
            covariance += centered.T @ centered
    values, vectors = torch.linalg.eigh(covariance / count)
    scale = (values.clamp_min(0) + ZCA_EPSILON).rsqrt()
    return Zca(mean, ((vectors * scale) @ vectors.T).float())


KINDS: dict[str, type[nn.Module]] = {"none": NoPreprocess, "image": PerImage, "channel": PerChannel, "zca": Zca}


def save_preprocess(path: Path, kind: str, preprocess: nn.Module) -> None:
    save_tensors(path, preprocess.state_dict(), {"kind": kind})


def load_preprocess(path: Path) -> nn.Module:
    tensors, metadata = load_tensors(path)
    kind = metadata.get("kind", "")
    if kind not in KINDS:
        raise RunError(f"{path} holds preprocessing of kind '{kind}'; expected one of {', '.join(KINDS)}.")
    try:
        return KINDS[kind](**tensors)
    except TypeError:
        raise RunError(f"{path} does not hold what preprocessing of kind '{kind}' needs; it is damaged.") from None
