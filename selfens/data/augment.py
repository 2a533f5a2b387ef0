"""Augmentation of a whole batch at once, on whatever device it is on: horizontal flip and translation, borders reflected.

An image is shifted by reading it through an index, so nothing is padded or copied twice. The flip comes first and the
shift second, as in the authors' code. By default the flip is shared by all views of an input and the shift is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfens.config import AugmentConfig
from selfens.errors import ConfigError


def check(options: AugmentConfig, input_shape: tuple[int, ...]) -> None:
    """Refuse what cannot be done to inputs of this shape."""
    if len(input_shape) != 3 and (options.flip or options.translation):
        raise ConfigError(
            f"augment.flip={options.flip} and augment.translation={options.translation} need images, but the inputs "
            f"have shape {tuple(input_shape)}; set them to false and 0."
        )
    if options.translation and options.translation >= min(input_shape[1:]):
        raise ConfigError(
            f"augment.translation is {options.translation}, but the images are {input_shape[1]}x{input_shape[2]}; "
            "a shift must be smaller than the image."
        )


def views(inputs: Tensor, count: int, options: AugmentConfig) -> tuple[Tensor, ...]:
    """`count` augmented copies of the inputs."""
    if not options.flip and not options.translation:
        return (inputs,) * count
    shared = draw_flips(inputs, options) if options.shared_flip else None
    return tuple(
        flip_and_shift(
            inputs,
            draw_flips(inputs, options) if shared is None else shared,
            draw_shifts(inputs, options),
            draw_shifts(inputs, options),
        )
        for _ in range(count)
    )


def draw_flips(images: Tensor, options: AugmentConfig) -> Tensor:
    if not options.flip:
        return torch.zeros(len(images), dtype=torch.bool, device=images.device)
    return torch.rand(len(images), device=images.device) < 0.5


def draw_shifts(images: Tensor, options: AugmentConfig) -> Tensor:
    if not options.translation:
        return torch.zeros(len(images), dtype=torch.int64, device=images.device)
    return torch.randint(-options.translation, options.translation + 1, (len(images),), device=images.device)


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
