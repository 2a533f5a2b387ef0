"""What our Triton kernels share: channels-last tensors as matrices of pixels by channels, and their tiles."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

TILE_CHANNELS = 128

Launch = tuple[tuple[int, int], dict[str, int]]
"""The grid of a kernel, pixels by channels, and tile sizes and warps of its programs."""


def covering(pixels: int, channels: int, tile: int, warps: int) -> Launch:
    """Return the launch of a kernel that processes each tile once. `tile` is the number of pixels of a tile of 128 channels."""
    columns, sizes = tiles(channels, tile, warps)
    return (triton.cdiv(pixels, sizes["TILE_P"]), columns), sizes


def sweeping(pixels: int, channels: int, tile: int, warps: int, programs: int) -> Launch:
    """Return the launch of a kernel that sums: a given number of programs share all tiles, so that few sums are combined."""
    (rows, columns), sizes = covering(pixels, channels, tile, warps)
    return (min(rows, triton.cdiv(programs, columns)), columns), sizes


def tiles(channels: int, tile: int, warps: int) -> tuple[int, dict[str, int]]:
    """Return the number of tiles across the channels, and the size of one; with fewer channels it has more pixels."""
    width = min(TILE_CHANNELS, triton.next_power_of_2(channels))
    return triton.cdiv(channels, width), {"TILE_P": tile * TILE_CHANNELS // width, "TILE_C": width, "num_warps": warps}


def pixels_of(x: Tensor) -> int:
    return x.shape[0] * x.shape[2] * x.shape[3]


def empty(x: Tensor, pool: bool, kind: torch.dtype | None = None) -> Tensor:
    """Return a channels-last tensor like `x`, with half the height and width if it is for pooled values."""
    batch, channels, height, width = x.shape
    shape = (batch, channels, height // 2, width // 2) if pool else (batch, channels, height, width)
    return torch.empty(shape, dtype=kind or x.dtype, device=x.device, memory_format=torch.channels_last)
