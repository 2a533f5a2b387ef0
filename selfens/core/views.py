"""Views: named random variations of a whole batch of inputs, on its device, drawn again at every call. Compilable.

    weak    images: horizontal flip and translation, borders reflected, as in the paper; vectors: as they are
    strong  images: weak, then random operations (`OPERATIONS`) and a square cut out; vectors: noise and feature dropout
    crop    images: a part of the image at full size, its colors changed or removed, for learning without labels
    noise   Gaussian noise
    none    as they are

An image is shifted by reading it through an index, so nothing is padded or copied twice. The flip comes first and the shift
second, as in the authors' code. By default the flip is shared by all views of an input; the shift never is. Sizes are parts
of the image's side. Operations on colors need to know what black and white are, so inputs whose range is not known, such as
whitened ones, get only the geometric ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from selfens.errors import ConfigError, unknown_name

VIEWS = ("weak", "strong", "crop", "noise", "none")
MAX_ANGLE, MAX_SHEAR, MAX_SHIFT = math.pi / 6, 0.3, 0.3
MAX_CHANGE = 0.9  # of brightness, contrast, saturation and sharpness
MIN_BITS = 4  # left by posterize
SMALLEST_CROP, MAX_STRETCH, MAX_JITTER, MAX_HUE = 0.2, 4 / 3, 0.4, math.pi / 5
COLORED, GRAYED = 0.64, 0.2  # shares of the crops whose colors are changed, or removed
GRAY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Views:
    """What the views of inputs of one shape do; the fields are those of the config's section `augment`.

    pixels  inputs are from 0 (black) to 1 (white), so colors may be changed
    """

    input_shape: tuple[int, ...]
    pixels: bool = False
    flip: bool = False
    shared_flip: bool = True
    translation: int = 0
    operations: int = 2
    cutout: float = 0.5
    noise: float = 0.15
    feature_dropout: float = 0.3

    def __post_init__(self) -> None:
        if not self.is_images and (self.flip or self.translation):
            raise ConfigError(
                f"augment.flip={self.flip} and augment.translation={self.translation} need images, but the inputs "
                f"have shape {tuple(self.input_shape)}; set them to false and 0."
            )
        if self.translation and self.translation >= min(self.input_shape[1:]):
            raise ConfigError(
                f"augment.translation is {self.translation}, but the images are "
                f"{self.input_shape[1]}x{self.input_shape[2]}; a shift must be smaller than the image."
            )

    @property
    def is_images(self) -> bool:
        return len(self.input_shape) == 3

    def check(self, names: Sequence[str]) -> None:
        """Refuse views that do not exist, or that inputs of this shape do not have."""
        for name in names:
            if name not in VIEWS:
                raise ConfigError(unknown_name("view", name, VIEWS))
            if name == "strong" and not self.is_images and len(self.input_shape) != 1:
                raise ConfigError(
                    f"a strong view was asked for of inputs of shape {self.input_shape}; expected images (channels, height, "
                    "width) or vectors."
                )
            if name == "crop" and not self.is_images:
                raise ConfigError(
                    f"a crop was asked for of inputs of shape {self.input_shape}; expected images (channels, height, width)."
                )

    def of(self, inputs: Tensor, names: Sequence[str]) -> tuple[Tensor, ...]:
        """The views of these names, in their order."""
        moved = iter(self._moved(inputs, sum(name in ("weak", "strong") for name in names)))
        return tuple(self._view(name, next(moved) if name in ("weak", "strong") else inputs) for name in names)

    def _view(self, name: str, inputs: Tensor) -> Tensor:
        if name == "strong":
            return self._strong_image(inputs) if self.is_images else self._strong_vector(inputs)
        if name == "crop":
            return self._crop(inputs)
        return self._noisy(inputs) if name == "noise" else inputs

    def _moved(self, inputs: Tensor, count: int) -> tuple[Tensor, ...]:
        """`count` copies, each flipped and shifted."""
        if not self.flip and not self.translation:
            return (inputs,) * count
        draws = torch.rand(count, 3, len(inputs), device=inputs.device)
        return tuple(
            flip_and_shift(
                inputs,
                self._flips(draws[0 if self.shared_flip else view, 0]),
                self._shifts(draws[view, 1]),
                self._shifts(draws[view, 2]),
            )
            for view in range(count)
        )

    def _flips(self, uniform: Tensor) -> Tensor:
        """Whether each image is mirrored, from a number between 0 and 1 each."""
        return (uniform < 0.5) if self.flip else torch.zeros_like(uniform, dtype=torch.bool)

    def _shifts(self, uniform: Tensor) -> Tensor:
        """-k..k with equal probability, from a number between 0 and 1 each."""
        return (uniform * (2 * self.translation + 1)).long() - self.translation

    def _noisy(self, inputs: Tensor) -> Tensor:
        return inputs + self.noise * torch.randn_like(inputs)

    def _strong_vector(self, inputs: Tensor) -> Tensor:
        return functional.dropout(self._noisy(inputs), self.feature_dropout)

    def _strong_image(self, images: Tensor) -> Tensor:
        count, device = len(images), images.device
        chosen = torch.randint(len(OPERATIONS if self.pixels else GEOMETRIC), (self.operations, count), device=device)
        strengths = torch.rand(self.operations, count, device=device) * 2 - 1
        for which, strength in zip(chosen, strengths, strict=True):
            images = apply_operations(images, which, strength, self.pixels)
        if not self.cutout:
            return images
        return cut_out(images, torch.rand(2, count, device=device), self.cutout, 0.5 if self.pixels else 0.0)

    def _crop(self, images: Tensor) -> Tensor:
        uniform = torch.rand(10, len(images), device=images.device)
        cropped = crop(images, uniform[:4], self._flips(uniform[4]), 0.5 if self.pixels else 0.0)
        if not self.pixels:
            return cropped
        colored, chosen = change_colors(cropped, uniform[5:9]), uniform[9].view(-1, 1, 1, 1)
        return torch.where(chosen < GRAYED, _gray(cropped), torch.where(chosen < GRAYED + COLORED, colored, cropped))


def flip_and_shift(images: Tensor, flips: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Image i mirrored if flips[i], then read from `down[i]` rows and `right[i]` columns further on."""
    count, channels, height, width = images.shape
    rows = _reflect(torch.arange(height, device=images.device) + down[:, None], height)
    columns = torch.arange(width, device=images.device) + right[:, None]
    columns = _reflect(torch.where(flips[:, None], width - 1 - columns, columns), width)
    index = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, height * width)
    return images.flatten(2).gather(2, index.expand(-1, channels, -1)).view(images.shape)


def _reflect(index: Tensor, size: int) -> Tensor:
    """Positions outside 0..size-1 mirrored back in, the border itself not repeated."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def cut_out(images: Tensor, uniform: Tensor, part: float, fill: float) -> Tensor:
    """A square of `part` of the side filled in, its center anywhere, from two numbers between 0 and 1 for each image."""
    height, width = images.shape[2:]
    half = part * min(height, width) / 2
    rows, columns = (torch.arange(size, device=images.device) + 0.5 for size in (height, width))
    inside_rows = (rows - uniform[0, :, None] * height).abs() <= half
    inside_columns = (columns - uniform[1, :, None] * width).abs() <= half
    return torch.where(inside_rows[:, None, :, None] & inside_columns[:, None, None, :], fill, images)


def crop(images: Tensor, uniform: Tensor, flips: Tensor, fill: float) -> Tensor:
    """Of each image a rectangle at the size of the image, mirrored if flips[i], from four numbers between 0 and 1 each: area,
    shape and place."""
    area = SMALLEST_CROP + (1 - SMALLEST_CROP) * uniform[0]
    stretch = MAX_STRETCH ** (2 * uniform[1] - 1)
    width, height = (area * stretch).sqrt().clamp(max=1), (area / stretch).sqrt().clamp(max=1)
    right, down = (2 * uniform[2] - 1) * (1 - width), (2 * uniform[3] - 1) * (1 - height)
    zero = torch.zeros_like(width)
    top = torch.stack([torch.where(flips, -width, width), zero, right], dim=1)
    return _warp(images, torch.stack([top, torch.stack([zero, height, down], dim=1)], dim=1), fill)


def change_colors(images: Tensor, uniform: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue of each image changed, from four numbers between 0 and 1 each. Images of other
    than three channels have no hue."""
    strengths = (2 * uniform - 1).view(4, -1, 1, 1, 1)
    for name, strength in zip(("brightness", "contrast", "saturation"), strengths[:3], strict=True):
        images = COLORS[name](images, strength * MAX_JITTER / MAX_CHANGE).clamp(0, 1)
    return turn_hue(images, strengths[3] * MAX_HUE).clamp(0, 1) if images.shape[1] == 3 else images


def turn_hue(images: Tensor, angle: Tensor) -> Tensor:
    """Colors turned about the axis of the grays, by an angle for each image."""
    red, green, blue = (images[:, channel : channel + 1] for channel in range(3))
    same, other = (1 + 2 * angle.cos()) / 3, (1 - angle.cos()) / 3
    less, more = other - angle.sin() / math.sqrt(3), other + angle.sin() / math.sqrt(3)
    turned = (same * red + less * green + more * blue, more * red + same * green + less * blue)
    return torch.cat([*turned, less * red + more * green + same * blue], dim=1)


# Operations of the strong view. Each takes images [rows, channels, height, width] and a strength from -1 to 1 per image.

Operation = Callable[[Tensor, Tensor], Tensor]


def _warp(images: Tensor, matrix: Tensor, fill: float) -> Tensor:
    """Image i read at the positions that matrix[i], [2, 3], makes of each position; what is outside is `fill`."""
    height, width = images.shape[2:]
    y, x = (((torch.arange(size, device=images.device) + 0.5) * 2 / size - 1) for size in (height, width))
    positions = torch.stack(
        [x.expand(height, width), y[:, None].expand(height, width), torch.ones_like(images[0, 0])], dim=2
    )
    grid = (positions.view(1, -1, 3) @ matrix.transpose(1, 2)).view(-1, height, width, 2)
    moved = functional.grid_sample(images - fill, grid.to(images.dtype), padding_mode="zeros", align_corners=False)
    return moved + fill


def _matrices(which: Tensor, strength: Tensor, aspect: float) -> Tensor:
    """[rows, 2, 3] the geometric operation of each image, the identity for the others; `aspect` is height over width."""

    def of(name: str, size: float) -> Tensor:
        return strength * size * (which == OPERATIONS.index(name))

    angle = of("rotate", MAX_ANGLE)
    cosine, sine = angle.cos(), angle.sin()
    across, down = of("shear_x", MAX_SHEAR), of("shear_y", MAX_SHEAR)
    right, below = of("shift_x", 2 * MAX_SHIFT), of("shift_y", 2 * MAX_SHIFT)  # a side is 2 long here
    top = torch.stack([cosine, (across - sine) * aspect, right], dim=1)
    bottom = torch.stack([(sine + down) / aspect, cosine, below], dim=1)
    return torch.stack([top, bottom], dim=1)


def _gray(images: Tensor) -> Tensor:
    """One channel; images of other than three channels by their mean."""
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    # Plain numbers: a tensor of them would be copied to a GPU at every step, which a CUDA graph does not allow.
    return sum(part * images[:, i : i + 1] for i, part in enumerate(GRAY))  # type: ignore[return-value]


def _blur(images: Tensor) -> Tensor:
    return _mean_of_three(_mean_of_three(images, dim=2), dim=3)


def _mean_of_three(images: Tensor, dim: int) -> Tensor:
    """Of each pixel and its two neighbors, borders repeated. (The compiler of torch 2.13 fails at padding them.)"""
    size = images.shape[dim]
    before = torch.cat([images.narrow(dim, 0, 1), images.narrow(dim, 0, size - 1)], dim=dim)
    after = torch.cat([images.narrow(dim, 1, size - 1), images.narrow(dim, size - 1, 1)], dim=dim)
    return (before + images + after) / 3


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Fewer levels: from 8 bits down to 4."""
    width = 2.0 ** (strength.abs() * (8 - MIN_BITS + 1)).floor().clamp(max=8 - MIN_BITS)
    return ((images * 255).round() / width).floor() * width / 255


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """What is brighter than a threshold inverted."""
    return torch.where(images > 1 - strength.abs(), 1 - images, images)


def autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    """Each channel stretched from its darkest to its brightest pixel, whatever the strength."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    flat = high - low < 1e-3
    return torch.where(flat, images, (images - low) / torch.where(flat, 1.0, high - low))


def _away_from(base: Callable[[Tensor], Tensor | float]) -> Operation:
    """Nearer to what `base` makes of an image, or further away from it."""

    def changed(images: Tensor, strength: Tensor) -> Tensor:
        start = base(images)
        return start + (images - start) * (1 + MAX_CHANGE * strength)

    return changed


GEOMETRIC = ("identity", "rotate", "shear_x", "shear_y", "shift_x", "shift_y")
COLORS: dict[str, Operation] = {
    "brightness": _away_from(lambda images: 0.0),
    "contrast": _away_from(lambda images: _gray(images).mean(dim=(2, 3), keepdim=True)),
    "saturation": _away_from(_gray),
    "sharpness": _away_from(_blur),
    "posterize": posterize,
    "solarize": solarize,
    "autocontrast": autocontrast,
}
OPERATIONS = (*GEOMETRIC, *COLORS)


def apply_operations(images: Tensor, which: Tensor, strength: Tensor, pixels: bool) -> Tensor:
    """To image i the operation number which[i] of `OPERATIONS` at strength[i], from -1 to 1; colors only of `pixels`."""
    moves = (which > 0) & (which < len(GEOMETRIC))
    aspect = images.shape[2] / images.shape[3]
    warped = _warp(images, _matrices(which, strength, aspect), 0.5 if pixels else 0.0)
    result = torch.where(moves.view(-1, 1, 1, 1), warped, images)
    if not pixels:
        return result
    for number, change in enumerate(COLORS.values(), start=len(GEOMETRIC)):
        changed = change(images, strength.view(-1, 1, 1, 1)).clamp(0, 1)
        result = torch.where((which == number).view(-1, 1, 1, 1), changed, result)
    return result
