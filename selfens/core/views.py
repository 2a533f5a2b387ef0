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
    draws = torch.rand(count, 3, len(inputs), device=inputs.device)
    return tuple(
        flip_and_shift(
            inputs,
            flips(draws[0 if options.shared_flip else view, 0], options),
            shifts(draws[0 if options.shared_translation else view, 1], options),
            shifts(draws[0 if options.shared_translation else view, 2], options),
        )
        for view in range(count)
    )


def flips(uniform: Tensor, options: AugmentConfig) -> Tensor:
    """Whether each image is mirrored, from a number between 0 and 1 each."""
    return (uniform < 0.5) if options.flip else torch.zeros_like(uniform, dtype=torch.bool)


def shifts(uniform: Tensor, options: AugmentConfig) -> Tensor:
    """-k..k with equal probability, from a number between 0 and 1 each."""
    return (uniform * (2 * options.translation + 1)).long() - options.translation


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
