"""Triton kernels for the operations between two convolutions: mean subtraction, bias, max pooling, leaky ReLU, dropout.

On a GPU, `NormalizedConv2d` calls `normalize`; otherwise it uses plain operations, and tests compare the two. Tensors are
channels-last, treated here as matrices of pixels by channels.

`normalize` is faster than the compiled operations because it makes few passes over a tensor: two forward (channel sums and
pooling; shift and activation) and two backward (sums of the gradient; the gradient). Pooling comes first, because shift and
leaky ReLU are increasing. The sign of the output tells which slope applied, and a zero what was dropped, so neither the
convolution's output nor a mask is kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# The best of 48 settings, measured on an H200 for the two largest shapes of conv13.
SUM_PIXELS, SUM_WARPS, SUM_PROGRAMS = 64, 8, 264
COVER_PIXELS, COVER_WARPS = 16, 4
TILE_CHANNELS = 128

Launch = tuple[tuple[int, int], dict[str, int]]  # grid (pixels by channels); tile sizes and warps


def covering(pixels: int, channels: int, tile: int, warps: int) -> Launch:
    """Return the launch of a kernel that processes each tile once. A tile of 128 channels has `tile` pixels."""
    columns, sizes = tiles(channels, tile, warps)
    return (triton.cdiv(pixels, sizes["TILE_P"]), columns), sizes


def sweeping(pixels: int, channels: int, tile: int, warps: int, programs: int) -> Launch:
    """Return the launch of a kernel that sums: a given number of programs share all tiles, so that few sums are combined."""
    (rows, columns), sizes = covering(pixels, channels, tile, warps)
    return (min(rows, triton.cdiv(programs, columns)), columns), sizes


def tiles(channels: int, tile: int, warps: int) -> tuple[int, dict[str, int]]:
    """Return the number of tiles across the channels, and the size of one. With fewer channels, a tile has more pixels."""
    width = min(TILE_CHANNELS, triton.next_power_of_2(channels))
    return triton.cdiv(channels, width), {"TILE_P": tile * TILE_CHANNELS // width, "TILE_C": width, "num_warps": warps}


def pixels_of(x: Tensor) -> int:
    return x.shape[0] * x.shape[2] * x.shape[3]


def empty(x: Tensor, pool: bool, kind: torch.dtype | None = None) -> Tensor:
    """Return a channels-last tensor like `x`, with half the height and width if it is for pooled values."""
    batch, channels, height, width = x.shape
    shape = (batch, channels, height // 2, width // 2) if pool else (batch, channels, height, width)
    return torch.empty(shape, dtype=kind or x.dtype, device=x.device, memory_format=torch.channels_last)


@triton.jit
def locate(number, column, pixels, channels, TILE_P: tl.constexpr):
    """Return the pixels of a tile, which of its values exist, and their positions in a tensor."""
    row = number * TILE_P + tl.arange(0, TILE_P)
    return row, (row[:, None] < pixels) & (column[None, :] < channels), row[:, None] * channels + column[None, :]


@triton.jit
def load_2x2(x, row, column, inside, channels, width):
    """Return the 2x2 pixels that are pooled into pixel `row`; `width` is the width of the pooled image."""
    corner = (row // width) * 4 * width + (row % width) * 2  # the upper left one, in the unpooled image
    source = x + corner[:, None] * channels + column[None, :]
    a = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + channels, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(source + 2 * width * channels, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(source + (2 * width + 1) * channels, mask=inside, other=0.0).to(tl.float32)
    return a, b, c, d


@triton.jit
def _add_up(
    x, pooled, chosen, sums, pixels, channels, width,
    POOL: tl.constexpr, EACH: tl.constexpr, TILE_P: tl.constexpr, TILE_C: tl.constexpr,
):  # fmt: skip
    """sums[c] += the values of channel c in this program's pixels.

    With pooling, write the largest of each 2x2 pixels, and which of the four it was: of equal values the first, as in torch.
    `pixels` and `width` are those of the output.
    """
    column = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    total = tl.zeros((TILE_P, TILE_C), tl.float32)
    for turn in range(EACH // TILE_P):
        row, inside, positions = locate(tl.program_id(0) * (EACH // TILE_P) + turn, column, pixels, channels, TILE_P)
        if POOL:
            a, b, c, d = load_2x2(x, row, column, inside, channels, width)
            total += (a + b) + (c + d)
            largest = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
            which = tl.where(a == largest, 0, tl.where(b == largest, 1, tl.where(c == largest, 2, 3)))
            tl.store(pooled + positions, largest.to(pooled.dtype.element_ty), mask=inside)
            tl.store(chosen + positions, which.to(tl.uint8), mask=inside)
        else:
            total += tl.load(x + positions, mask=inside, other=0.0).to(tl.float32)
    tl.atomic_add(sums + column, tl.sum(total, axis=0), mask=column < channels)


@triton.jit
def _shift_and_activate(
    x, sums, bias, out, mean, seed, count, pixels, channels, slope, dropout,
    DROP: tl.constexpr, TILE_P: tl.constexpr, TILE_C: tl.constexpr,
):  # fmt: skip
    """out = dropout(leaky_relu(x - sums/count + bias)); the first programs also write the mean."""
    column = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    _row, inside, positions = locate(tl.program_id(0), column, pixels, channels, TILE_P)
    known = column < channels
    batch_mean = tl.load(sums + column, mask=known, other=0.0) / count
    if tl.program_id(0) == 0:
        tl.store(mean + column, batch_mean, mask=known)
    shift = tl.load(bias + column, mask=known, other=0.0) - batch_mean
    value = tl.load(x + positions, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
    value = tl.where(value > 0, value, value * slope)
    if DROP:
        kept = tl.rand(tl.load(seed), positions) >= dropout
        value = tl.where(kept, value / (1 - dropout), 0.0)
    tl.store(out + positions, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _through_activation(gradient, out, positions, inside, slope, dropout, DROP: tl.constexpr):
    """Return the gradient before leaky ReLU and dropout, from the gradient after them and the output."""
    after = tl.load(gradient + positions, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(out + positions, mask=inside, other=0.0).to(tl.float32)
    before = tl.where(value > 0, after, after * slope)
    if DROP:
        before = tl.where(value == 0, 0.0, before / (1 - dropout))
    return before


@triton.jit
def _add_up_gradient(
    gradient, out, sums, pixels, channels, slope, dropout,
    DROP: tl.constexpr, EACH: tl.constexpr, TILE_P: tl.constexpr, TILE_C: tl.constexpr,
):  # fmt: skip
    """sums[c] += the gradient of channel c before the activation, over this program's pixels."""
    column = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    total = tl.zeros((TILE_P, TILE_C), tl.float32)
    for turn in range(EACH // TILE_P):
        _row, inside, positions = locate(tl.program_id(0) * (EACH // TILE_P) + turn, column, pixels, channels, TILE_P)
        total += _through_activation(gradient, out, positions, inside, slope, dropout, DROP)
    tl.atomic_add(sums + column, tl.sum(total, axis=0), mask=column < channels)


@triton.jit
def _write_gradient(
    gradient, out, chosen, sums, result, count, pixels, channels, width, slope, dropout,
    POOL: tl.constexpr, DROP: tl.constexpr, TILE_P: tl.constexpr, TILE_C: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the convolution's output: undo activation and pooling, and subtract the mean of the channel."""
    column = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    row, inside, positions = locate(tl.program_id(0), column, pixels, channels, TILE_P)
    mean = (tl.load(sums + column, mask=column < channels, other=0.0) / count)[None, :]
    before = _through_activation(gradient, out, positions, inside, slope, dropout, DROP)
    kind = result.dtype.element_ty
    if POOL:
        which = tl.load(chosen + positions, mask=inside, other=0)
        corner = (row // width) * 4 * width + (row % width) * 2
        target = result + corner[:, None] * channels + column[None, :]
        tl.store(target, (tl.where(which == 0, before, 0.0) - mean).to(kind), mask=inside)
        tl.store(target + channels, (tl.where(which == 1, before, 0.0) - mean).to(kind), mask=inside)
        tl.store(target + 2 * width * channels, (tl.where(which == 2, before, 0.0) - mean).to(kind), mask=inside)
        tl.store(target + (2 * width + 1) * channels, (tl.where(which == 3, before, 0.0) - mean).to(kind), mask=inside)
    else:
        tl.store(result + positions, (before - mean).to(kind), mask=inside)


def _summing(pixels: int, channels: int, tile: int = SUM_PIXELS) -> Launch:
    """Return the launch of kernels that sum: each program takes many pixels, so that few sums are combined."""
    columns, sizes = tiles(channels, tile, SUM_WARPS)
    # A power of 2, so that few kernels are compiled.
    each = triton.next_power_of_2(triton.cdiv(pixels * columns, SUM_PROGRAMS))
    each = max(each, sizes["TILE_P"])
    return (triton.cdiv(pixels, each), columns), {"EACH": each, **sizes}


@torch.library.custom_op("selfens::normalize_forward", mutates_args=())
def _forward(
    x: Tensor, bias: Tensor, seed: Tensor, slope: float, dropout: float, pool: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the channel means, and, with pooling, which pixels were chosen."""
    x = x.contiguous(memory_format=torch.channels_last)
    channels, count = x.shape[1], pixels_of(x)
    out = empty(x, pool)
    chosen = empty(x, pool, torch.uint8) if pool else torch.empty(0, dtype=torch.uint8, device=x.device)
    sums, mean = torch.zeros(channels, device=x.device), torch.empty(channels, device=x.device)
    tile = SUM_PIXELS // 2 if pool else SUM_PIXELS  # pooling holds four tiles
    grid, sizes = _summing(pixels_of(out), channels, tile)
    _add_up[grid](x, out, chosen, sums, pixels_of(out), channels, out.shape[3], POOL=pool, **sizes)
    grid, sizes = covering(pixels_of(out), channels, COVER_PIXELS, COVER_WARPS)
    raw = out if pool else x
    _shift_and_activate[grid](
        raw, sums, bias, out, mean, seed, count, pixels_of(out), channels, slope, dropout, DROP=dropout > 0, **sizes
    )
    return out, mean, chosen


@_forward.register_fake
def _(x, bias, seed, slope, dropout, pool):
    chosen = empty(x, pool, torch.uint8) if pool else torch.empty(0, dtype=torch.uint8, device=x.device)
    return empty(x, pool), torch.empty_like(bias), chosen


def _unpooled(out: Tensor, pool: bool) -> Tensor:
    shape = (*out.shape[:2], *(2 * side if pool else side for side in out.shape[2:]))
    return torch.empty(shape, dtype=out.dtype, device=out.device, memory_format=torch.channels_last)


@torch.library.custom_op("selfens::normalize_backward", mutates_args=())
def _backward(gradient: Tensor, out: Tensor, chosen: Tensor, slope: float, dropout: float) -> tuple[Tensor, Tensor]:
    """Return the gradients of the convolution's output and of the bias."""
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    pool, channels = chosen.numel() > 0, out.shape[1]
    result, sums = _unpooled(out, pool), torch.zeros(channels, device=out.device)
    grid, sizes = _summing(pixels_of(out), channels)
    _add_up_gradient[grid](gradient, out, sums, pixels_of(out), channels, slope, dropout, DROP=dropout > 0, **sizes)
    grid, sizes = covering(pixels_of(out), channels, COVER_PIXELS, COVER_WARPS)
    _write_gradient[grid](
        gradient, out, chosen, sums, result, pixels_of(result), pixels_of(out), channels, out.shape[3], slope, dropout,
        POOL=pool, DROP=dropout > 0, **sizes,
    )  # fmt: skip
    return result, sums


@_backward.register_fake
def _(gradient, out, chosen, slope, dropout):
    return _unpooled(out, chosen.numel() > 0), torch.empty(out.shape[1], device=out.device)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _x, _bias, _seed, ctx.slope, ctx.dropout, _pool = inputs
    out, _mean, chosen = output
    ctx.save_for_backward(out, chosen)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, gradient: Tensor, *_ignored: Any) -> tuple[Tensor | None, ...]:
    out, chosen = ctx.saved_tensors
    result, bias = _backward(gradient, out, chosen, ctx.slope, ctx.dropout)
    return result, bias, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def normalize(x: Tensor, bias: Tensor, slope: float, dropout: float = 0.0, pool: bool = False) -> tuple[Tensor, Tensor]:
    """Return dropout(leaky_relu(pool(x) - mean + bias)), and the mean of each channel of x.

    `bias` is float32. To be pooled 2x2, images need even sides.
    """
    seed = torch.randint(2**31 - 1, (1,), device=x.device) if dropout else torch.empty(0, device=x.device)
    out, mean, _chosen = _forward(x, bias, seed, slope, dropout, pool)
    return out, mean
