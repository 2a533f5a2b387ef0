"""Views: random augmentations of a batch, by name, computed on its device and drawn anew in every call.

    weak    images: horizontal flip and translation, borders reflected, as in the paper; vectors: unchanged
    strong  images: weak, then random operations (`OPERATIONS`) and a square cut out; vectors: noise and feature dropout
    noise   Gaussian noise
    none    unchanged

The flip comes first and the shift second, as in the authors' code. Color operations need to know the values of black and
white, so inputs of unknown range, such as whitened ones, get only the geometric operations.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from selfens.errors import ConfigError, unknown_name
from selfens.settings import Section, setting

MAX_ANGLE, MAX_SHEAR, MAX_SHIFT = math.pi / 6, 0.3, 0.3
MAX_CHANGE = 0.9  # of brightness, contrast, saturation and sharpness
MIN_BITS = 4  # that posterize leaves
GRAY = (0.299, 0.587, 0.114)


@dataclass(frozen=True, kw_only=True)
class ViewsConfig(Section):
    """Settings of the views of a training step. Evaluation uses the inputs unchanged."""

    section: ClassVar[str] = "views"
    flip: bool = setting(False, "weak, strong: mirror horizontally with probability one half.")
    shared_flip: bool = setting(True, "One flip for all views of an input (the paper's choice), or one for each view.")
    translation: int = setting(
        0, "weak, strong: largest shift in pixels, in each direction; borders reflect.", at_least=0
    )
    operations: int = setting(2, "strong: random operations per image, such as a rotation.", at_least=0, at_most=100)
    cutout: float = setting(0.5, "strong: side of the square cut out, relative to the image's.", at_least=0, at_most=1)
    noise: float = setting(0.15, "noise, and strong for vectors: standard deviation of the noise.", at_least=0)
    feature_dropout: float = setting(0.3, "strong for vectors: probability of zeroing a feature.", at_least=0, below=1)


@dataclass(frozen=True)
class Views:
    """Makes the views of a batch of inputs.

    Parameters
    ----------
    input_shape
        Shape of one input: [channels, height, width] or [features].
    pixels
        Inputs range from 0 (black) to 1 (white), so colors may be changed.
    """

    input_shape: tuple[int, ...]
    options: ViewsConfig = ViewsConfig()
    pixels: bool = False

    def __post_init__(self) -> None:
        flip, shift = self.options.flip, self.options.translation
        if not self.is_images and (flip or shift):
            shape = tuple(self.input_shape)
            raise ConfigError(f"views.flip and views.translation need images, but the inputs have shape {shape}.")
        if shift and shift >= min(self.input_shape[1:]):
            size = "x".join(map(str, self.input_shape[1:]))
            raise ConfigError(
                f"views.translation is {shift}, but the images are {size}; expected less than the smaller side."
            )

    @property
    def is_images(self) -> bool:
        return len(self.input_shape) == 3

    def check(self, names: Sequence[str]) -> None:
        """Raise a ConfigError for unknown views, and for views that do not support the shape of the inputs."""
        for name in names:
            if name not in VIEWS:
                raise ConfigError(unknown_name("view", name, VIEWS))
            if len(self.input_shape) not in VIEWS[name].dimensions:
                needed = "images (channels, height, width)" + (" or vectors" if 1 in VIEWS[name].dimensions else "")
                raise ConfigError(f"the view '{name}' is for {needed}, but the inputs have shape {self.input_shape}.")

    def make(self, inputs: Tensor, names: Sequence[str]) -> tuple[Tensor, ...]:
        """Return one view of the inputs per name, in order."""
        moved = iter(self._moved(inputs, sum(VIEWS[name].is_moved for name in names)))
        return tuple(VIEWS[name].make(self, next(moved) if VIEWS[name].is_moved else inputs) for name in names)

    def _moved(self, inputs: Tensor, count: int) -> tuple[Tensor, ...]:
        """Return `count` copies, each flipped and shifted."""
        largest = self.options.translation
        if not self.options.flip and not largest:
            return (inputs,) * count
        draws = torch.rand(count, 3, len(inputs), device=inputs.device)
        flips = draws[:, 0] < (0.5 if self.options.flip else 0.0)
        shifts = (draws[:, 1:] * (2 * largest + 1)).long() - largest  # -k..k with equal probability
        shared = self.options.shared_flip
        return tuple(flip_and_shift(inputs, flips[0 if shared else i], *shifts[i]) for i in range(count))

    def _noisy(self, inputs: Tensor) -> Tensor:
        return inputs + self.options.noise * torch.randn_like(inputs)

    def _strong(self, images: Tensor) -> Tensor:
        if not self.is_images:
            return functional.dropout(self._noisy(images), self.options.feature_dropout)
        count, device, operations = len(images), images.device, OPERATIONS if self.pixels else GEOMETRIC
        chosen = torch.randint(len(operations), (self.options.operations, count), device=device)
        strengths = torch.rand(self.options.operations, count, device=device) * 2 - 1
        for which, strength in zip(chosen, strengths, strict=True):
            images = apply_operations(images, which, strength, self.pixels)
        if not self.options.cutout:
            return images
        return cut_out(images, torch.rand(2, count, device=device), self.options.cutout, 0.5 if self.pixels else 0.0)


def flip_and_shift(images: Tensor, flips: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Mirror image i if flips[i], then shift it by `down[i]` rows and `right[i]` columns."""
    count, channels, height, width = images.shape
    rows = _reflect(torch.arange(height, device=images.device) + down[:, None], height)
    columns = torch.arange(width, device=images.device) + right[:, None]
    columns = _reflect(torch.where(flips[:, None], width - 1 - columns, columns), width)
    index = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, height * width)
    return images.flatten(2).gather(2, index.expand(-1, channels, -1)).view(images.shape)


def _reflect(index: Tensor, size: int) -> Tensor:
    """Reflect positions outside 0..size-1 back in, without repeating the border."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def cut_out(images: Tensor, uniform: Tensor, part: float, fill: float) -> Tensor:
    """Fill a square in each image. Its side is `part` of the smaller side, its center is at `uniform`, [2, rows], in 0..1."""
    height, width = images.shape[2:]
    half = part * min(height, width) / 2
    rows, columns = (torch.arange(size, device=images.device) + 0.5 for size in (height, width))
    inside_rows = (rows - uniform[0, :, None] * height).abs() <= half
    inside_columns = (columns - uniform[1, :, None] * width).abs() <= half
    return torch.where(inside_rows[:, None, :, None] & inside_columns[:, None, None, :], fill, images)


# Operations of the strong view, on images [rows, channels, height, width] with a strength from -1 to 1 each


def warp(images: Tensor, matrix: Tensor, fill: float) -> Tensor:
    """Apply the affine map matrix[i], [2, 3], to image i; pixels from outside are `fill`."""
    height, width = images.shape[2:]
    y, x = (((torch.arange(size, device=images.device) + 0.5) * 2 / size - 1) for size in (height, width))
    one = torch.ones_like(images[0, 0])
    positions = torch.stack([x * one, y[:, None] * one, one], dim=2)
    grid = (positions.view(1, -1, 3) @ matrix.transpose(1, 2)).view(-1, height, width, 2)
    moved = functional.grid_sample(images - fill, grid.to(images.dtype), padding_mode="zeros", align_corners=False)
    return moved + fill


def _matrices(which: Tensor, strength: Tensor, aspect: float) -> Tensor:
    """Return [rows, 2, 3] the affine map of each geometric operation, else the identity; `aspect` is height over width."""

    def of(name: str, size: float) -> Tensor:
        return strength * size * (which == OPERATIONS.index(name))

    angle = of("rotate", MAX_ANGLE)
    cosine, sine = angle.cos(), angle.sin()
    across, down = of("shear_x", MAX_SHEAR), of("shear_y", MAX_SHEAR)
    right, below = of("shift_x", 2 * MAX_SHIFT), of("shift_y", 2 * MAX_SHIFT)  # grid_sample's coordinates span 2
    top = torch.stack([cosine, (across - sine) * aspect, right], dim=1)
    bottom = torch.stack([(sine + down) / aspect, cosine, below], dim=1)
    return torch.stack([top, bottom], dim=1)


def gray(images: Tensor) -> Tensor:
    """Return the luminance of RGB images; the mean over channels of others."""
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    # Python numbers: a tensor would be copied to the GPU at every step, which a CUDA graph does not allow.
    return sum(part * images[:, i : i + 1] for i, part in enumerate(GRAY))  # type: ignore[return-value]


def _mean_of_three(images: Tensor, dim: int) -> Tensor:
    """Average each pixel and its two neighbors, borders repeated. (torch 2.13's compiler fails on padding.)"""
    size = images.shape[dim]
    before = torch.cat([images.narrow(dim, 0, 1), images.narrow(dim, 0, size - 1)], dim=dim)
    after = torch.cat([images.narrow(dim, 1, size - 1), images.narrow(dim, size - 1, 1)], dim=dim)
    return (before + images + after) / 3


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Reduce 8 bits per channel to as few as 4."""
    width = 2.0 ** (strength.abs() * (8 - MIN_BITS + 1)).floor().clamp(max=8 - MIN_BITS)
    return ((images * 255).round() / width).floor() * width / 255


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """Invert pixels that are brighter than a threshold."""
    return torch.where(images > 1 - strength.abs(), 1 - images, images)


def autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    """Stretch each channel to the full range. The strength has no effect."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    flat = high - low < 1e-3
    return torch.where(flat, images, (images - low) / torch.where(flat, 1.0, high - low))


def _change(base: Callable[[Tensor], Tensor | float], images: Tensor, strength: Tensor) -> Tensor:
    """Move images away from `base(images)`, or toward it if the strength is negative."""
    start = base(images)
    return start + (images - start) * (1 + MAX_CHANGE * strength)


GEOMETRIC = ("identity", "rotate", "shear_x", "shear_y", "shift_x", "shift_y")
COLORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": partial(_change, lambda images: 0.0),
    "contrast": partial(_change, lambda images: gray(images).mean(dim=(2, 3), keepdim=True)),
    "saturation": partial(_change, gray),
    "sharpness": partial(_change, lambda images: _mean_of_three(_mean_of_three(images, dim=2), dim=3)),
    "posterize": posterize,
    "solarize": solarize,
    "autocontrast": autocontrast,
}
OPERATIONS = (*GEOMETRIC, *COLORS)


def apply_operations(images: Tensor, which: Tensor, strength: Tensor, pixels: bool) -> Tensor:
    """Apply operation which[i] of `OPERATIONS` to image i at strength[i], from -1 to 1; color operations only to `pixels`."""
    moves = (which > 0) & (which < len(GEOMETRIC))
    aspect = images.shape[2] / images.shape[3]
    warped = warp(images, _matrices(which, strength, aspect), 0.5 if pixels else 0.0)
    result = torch.where(moves.view(-1, 1, 1, 1), warped, images)
    if not pixels:
        return result
    for number, change in enumerate(COLORS.values(), start=len(GEOMETRIC)):
        changed = change(images, strength.view(-1, 1, 1, 1)).clamp(0, 1)
        result = torch.where((which == number).view(-1, 1, 1, 1), changed, result)
    return result


class View(NamedTuple):
    make: Callable[[Views, Tensor], Tensor]
    is_moved: bool = False
    """Inputs are flipped and shifted first."""
    has_colors: bool = False
    """Changes the colors of pixels."""
    dimensions: tuple[int, ...] = (1, 2, 3)
    """The numbers of dimensions an input may have: 1 for vectors, 3 for images."""


VIEWS = {
    "weak": View(lambda views, inputs: inputs, is_moved=True),
    "strong": View(Views._strong, is_moved=True, has_colors=True, dimensions=(1, 3)),
    "noise": View(Views._noisy),
    "none": View(lambda views, inputs: inputs),
}
