"""Triton kernels for full batch normalization, leaky ReLU and 2x2 max pooling between two convolutions.

On a GPU, `BatchNormConv2d` calls `normalize` in training and `evaluate` in evaluation; otherwise it uses plain operations,
and tests compare the two. Tensors are channels-last, as in `kernels.py`.

Most of the time is spent reading and writing the convolution's output. Normalization and leaky ReLU are monotonic in each
channel, so pooling can come first, of the largest values, or of the smallest where the gain is negative. Training reads the
output once for mean, variance and pooling, and normalizes only the pooled values. The backward pass recomputes the sign before
the leaky ReLU, and which pixel was pooled. Kernels that sum go through the tensor backward and those that write go through it
forward, so each begins with what the previous one left in the GPU's cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from selfens.networks.kernels import covering, empty, load_2x2, locate, pixels_of, sweeping

EPSILON = 1e-5  # added to the variance, as in torch
# The best of 13 settings for the kernels that sum, and of 5 for the others, on an H200. With more programs, the atomic
# additions wait for each other.
SUM_PIXELS, SUM_WARPS, SUM_PROGRAMS = 32, 4, 264
COVER_PIXELS, COVER_WARPS = 32, 4


@triton.jit
def _of_channels(values, column, channels):
    """Return one value per channel, as a row."""
    return tl.load(values + column, mask=column < channels, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _choose(a, b, c, d, gain):
    """Return which of the four is the largest after scaling by `gain` (the first of equals, as in torch), and its value."""
    sign = tl.where(gain > 0, 1.0, tl.where(gain < 0, -1.0, 0.0))
    largest = tl.maximum(tl.maximum(a * sign, b * sign), tl.maximum(c * sign, d * sign))
    which = tl.where(a * sign == largest, 0, tl.where(b * sign == largest, 1, tl.where(c * sign == largest, 2, 3)))
    return which, tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))


@triton.jit
def _add_up_moments(
    x, gain, pooled, sums, middle, pixels, channels, width,
    POOL: tl.constexpr, TILE_P: tl.constexpr, TILE_C: tl.constexpr,
):  # fmt: skip
    """sums[0, c] += x - pivot and sums[1, c] += (x - pivot)^2 over this program's pixels; pool x.

    A sum of plain squares would lose the variance of a channel whose mean is large. The pivot is a pixel from the `middle` of
    the first image, at most a few deviations from the mean. `pixels` and `width` are those of the output.
    """
    column = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    pivot = _of_channels(x + middle * channels, column, channels)
    sign = _of_channels(gain, column, channels)
    total = tl.zeros((TILE_P, TILE_C), tl.float32)
    squares = tl.zeros((TILE_P, TILE_C), tl.float32)
    tiles = tl.cdiv(pixels, TILE_P)
    for turn in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, inside, positions = locate(tiles - 1 - turn, column, pixels, channels, TILE_P)
        if POOL:
            a, b, c, d = load_2x2(x, row, column, inside, channels, width)
            _which, chosen = _choose(a, b, c, d, sign)
            tl.store(pooled + positions, chosen.to(pooled.dtype.element_ty), mask=inside)
            a, b, c, d = a - pivot, b - pivot, c - pivot, d - pivot
            total += tl.where(inside, (a + b) + (c + d), 0.0)
            squares += tl.where(inside, (a * a + b * b) + (c * c + d * d), 0.0)
        else:
            value = tl.where(inside, tl.load(x + positions, mask=inside, other=0.0).to(tl.float32) - pivot, 0.0)
            total += value
            squares += value * value
    tl.atomic_add(sums + column, tl.sum(total, axis=0), mask=column < channels)
    tl.atomic_add(sums + channels + column, tl.sum(squares, axis=0), mask=column < channels)


@triton.jit
def _scale_and_activate(
    x, raw, sums, gain, shift, out, mean, variance, middle, count, pixels, channels, slope, epsilon,
    TILE_P: tl.constexpr, TILE_C: tl.constexpr,
):  # fmt: skip
    """out = leaky_relu(gain * (raw - mean) / deviation + shift), where `raw` is x, pooled or not; write mean and variance."""
    column = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    _row, inside, positions = locate(tl.program_id(0), column, pixels, channels, TILE_P)
    value = tl.load(raw + positions, mask=inside, other=0.0).to(tl.float32)
    off = _of_channels(sums, column, channels) / count
    batch_mean = _of_channels(x + middle * channels, column, channels) + off
    batch_variance = tl.maximum(_of_channels(sums + channels, column, channels) / count - off * off, 0.0)
    if tl.program_id(0) == 0:
        tl.store(mean + column[None, :], batch_mean, mask=column[None, :] < channels)
        tl.store(variance + column[None, :], batch_variance, mask=column[None, :] < channels)
    scale = _of_channels(gain, column, channels) * tl.rsqrt(batch_variance + epsilon)
    value = (value - batch_mean) * scale + _of_channels(shift, column, channels)
    tl.store(out + positions, tl.where(value > 0, value, value * slope).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _scale_activate_and_pool(
    x, gain, shift, mean, variance, out, pixels, channels, width, slope, epsilon,
    TILE_P: tl.constexpr, TILE_C: tl.constexpr,
):  # fmt: skip
    """The same with known mean and variance, then pooled: the four pixels are scaled first, so the gain may be negative."""
    column = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    row, inside, positions = locate(tl.program_id(0), column, pixels, channels, TILE_P)
    a, b, c, d = load_2x2(x, row, column, inside, channels, width)
    center = _of_channels(mean, column, channels)
    scale = _of_channels(gain, column, channels) * tl.rsqrt(_of_channels(variance, column, channels) + epsilon)
    a, b, c, d = (a - center) * scale, (b - center) * scale, (c - center) * scale, (d - center) * scale
    propagate_nan: tl.constexpr = tl.PropagateNan.ALL  # like torch: pooling must not hide a NaN
    largest = tl.maximum(tl.maximum(a, b, propagate_nan), tl.maximum(c, d, propagate_nan), propagate_nan)
    value = largest + _of_channels(shift, column, channels)
    value = tl.where(value > 0, value, value * slope).to(out.dtype.element_ty)
    tl.store(out + positions, value, mask=inside)


@triton.jit
def _add_up_gradient_moments(
    gradient, raw, mean, variance, gain, shift, sums, pixels, channels, slope, epsilon,
    TILE_P: tl.constexpr, TILE_C: tl.constexpr,
):  # fmt: skip
    """sums[0, c] += the gradient before the activation; sums[1, c] += the same times the normalized value."""
    column = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    center = _of_channels(mean, column, channels)
    inverse = tl.rsqrt(_of_channels(variance, column, channels) + epsilon)
    channel_gain, offset = _of_channels(gain, column, channels), _of_channels(shift, column, channels)
    total = tl.zeros((TILE_P, TILE_C), tl.float32)
    products = tl.zeros((TILE_P, TILE_C), tl.float32)
    tiles = tl.cdiv(pixels, TILE_P)
    for turn in range(tl.program_id(0), tiles, tl.num_programs(0)):
        _row, inside, positions = locate(tiles - 1 - turn, column, pixels, channels, TILE_P)
        before = tl.load(gradient + positions, mask=inside, other=0.0).to(tl.float32)
        normal = (tl.load(raw + positions, mask=inside, other=0.0).to(tl.float32) - center) * inverse
        before = tl.where(normal * channel_gain + offset > 0, before, before * slope)
        total += before
        products += before * normal
    tl.atomic_add(sums + column, tl.sum(total, axis=0), mask=column < channels)
    tl.atomic_add(sums + channels + column, tl.sum(products, axis=0), mask=column < channels)


@triton.jit
def _write_input_gradient(
    gradient, x, mean, variance, gain, shift, sums, result, count, pixels, channels, width, slope, epsilon,
    POOL: tl.constexpr, TILE_P: tl.constexpr, TILE_C: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x: undo activation and pooling, subtract the mean and the projection onto x, and scale."""
    column = tl.program_id(1) * TILE_C + tl.arange(0, TILE_C)
    row, inside, positions = locate(tl.program_id(0), column, pixels, channels, TILE_P)
    after = tl.load(gradient + positions, mask=inside, other=0.0).to(tl.float32)
    center = _of_channels(mean, column, channels)
    inverse = tl.rsqrt(_of_channels(variance, column, channels) + epsilon)
    channel_gain, offset = _of_channels(gain, column, channels), _of_channels(shift, column, channels)
    mean_gradient = _of_channels(sums, column, channels) / count
    projection = _of_channels(sums + channels, column, channels) / count
    scale = channel_gain * inverse
    kind = result.dtype.element_ty
    if POOL:
        a, b, c, d = load_2x2(x, row, column, inside, channels, width)
        which, chosen = _choose(a, b, c, d, channel_gain)
        before = tl.where((chosen - center) * inverse * channel_gain + offset > 0, after, after * slope)
        a = (tl.where(which == 0, before, 0.0) - mean_gradient - (a - center) * inverse * projection) * scale
        b = (tl.where(which == 1, before, 0.0) - mean_gradient - (b - center) * inverse * projection) * scale
        c = (tl.where(which == 2, before, 0.0) - mean_gradient - (c - center) * inverse * projection) * scale
        d = (tl.where(which == 3, before, 0.0) - mean_gradient - (d - center) * inverse * projection) * scale
        corner = (row // width) * 4 * width + (row % width) * 2
        target = result + corner[:, None] * channels + column[None, :]
        tl.store(target, a.to(kind), mask=inside)
        tl.store(target + channels, b.to(kind), mask=inside)
        tl.store(target + 2 * width * channels, c.to(kind), mask=inside)
        tl.store(target + (2 * width + 1) * channels, d.to(kind), mask=inside)
    else:
        normal = (tl.load(x + positions, mask=inside, other=0.0).to(tl.float32) - center) * inverse
        before = tl.where(normal * channel_gain + offset > 0, after, after * slope)
        tl.store(result + positions, ((before - mean_gradient - normal * projection) * scale).to(kind), mask=inside)


@torch.library.custom_op("selfens::batch_norm_forward", mutates_args=())
def _forward(x: Tensor, gain: Tensor, shift: Tensor, slope: float, pool: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output, mean and variance of the channels, and, with pooling, the pooled values of x."""
    x = x.contiguous(memory_format=torch.channels_last)
    channels, height, width = x.shape[1:]
    out, pooled = empty(x, pool), empty(x, pool) if pool else x.new_empty(0)
    sums, mean, variance = torch.zeros((2, channels), device=x.device), torch.empty_like(gain), torch.empty_like(gain)
    pixels, middle = pixels_of(out), height // 2 * width + width // 2
    tile = SUM_PIXELS // 2 if pool else SUM_PIXELS  # pooling holds four tiles
    grid, sizes = sweeping(pixels, channels, tile, SUM_WARPS, SUM_PROGRAMS)
    _add_up_moments[grid](x, gain, pooled, sums, middle, pixels, channels, out.shape[3], POOL=pool, **sizes)
    grid, sizes = covering(pixels, channels, COVER_PIXELS, COVER_WARPS)
    _scale_and_activate[grid](
        x, pooled if pool else x, sums, gain, shift, out, mean, variance, middle, pixels_of(x), pixels, channels,
        slope, EPSILON, **sizes,
    )  # fmt: skip
    return out, mean, variance, pooled


@_forward.register_fake
def _(x, gain, shift, slope, pool):
    pooled = empty(x, pool) if pool else x.new_empty(0)
    return empty(x, pool), torch.empty_like(gain), torch.empty_like(gain), pooled


@torch.library.custom_op("selfens::batch_norm_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    x: Tensor,
    pooled: Tensor,
    mean: Tensor,
    variance: Tensor,
    gain: Tensor,
    shift: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and those of shift and gain, stacked."""
    gradient, x = (each.contiguous(memory_format=torch.channels_last) for each in (gradient, x))
    pool, channels, pixels = pooled.numel() > 0, x.shape[1], pixels_of(gradient)
    result, sums = empty(x, pool=False), torch.zeros((2, channels), device=x.device)
    known, constants = (mean, variance, gain, shift, sums), (slope, EPSILON)
    grid, sizes = sweeping(pixels, channels, SUM_PIXELS, SUM_WARPS, SUM_PROGRAMS)
    _add_up_gradient_moments[grid](gradient, pooled if pool else x, *known, pixels, channels, *constants, **sizes)
    grid, sizes = covering(pixels, channels, COVER_PIXELS // 2 if pool else COVER_PIXELS, COVER_WARPS)
    _write_input_gradient[grid](
        gradient, x, *known, result, pixels_of(x), pixels, channels, gradient.shape[3], *constants, POOL=pool, **sizes
    )
    return result, sums


@_backward.register_fake
def _(gradient, x, pooled, mean, variance, gain, shift, slope):
    return empty(x, pool=False), gain.new_empty((2, x.shape[1]))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x, gain, shift, ctx.slope, _pool = inputs
    _out, mean, variance, pooled = output
    ctx.save_for_backward(x, pooled, mean, variance, gain, shift)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, gradient: Tensor, *_ignored: Any) -> tuple[Tensor | None, ...]:
    result, sums = _backward(gradient, *ctx.saved_tensors, ctx.slope)
    return result, sums[1], sums[0], None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def normalize(
    x: Tensor, gain: Tensor, shift: Tensor, slope: float, pool: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return leaky_relu(gain * (x - mean) / deviation + shift), pooled, and the mean and variance of each channel of x.

    `gain` and `shift` are float32. To be pooled 2x2, images need even sides and the leaky ReLU a slope above 0.
    """
    out, mean, variance, _pooled = _forward(x, gain, shift, slope, pool)
    return out, mean.detach(), variance.detach()


@torch.library.custom_op("selfens::batch_norm_evaluate", mutates_args=())
def evaluate(x: Tensor, gain: Tensor, shift: Tensor, mean: Tensor, variance: Tensor, slope: float) -> Tensor:
    """Return `normalize` for known mean and variance, pooled 2x2, without gradients, in one pass; the compiler needs two."""
    x = x.contiguous(memory_format=torch.channels_last)
    out, channels = empty(x, pool=True), x.shape[1]
    grid, sizes = covering(pixels_of(out), channels, COVER_PIXELS // 2, COVER_WARPS)
    _scale_activate_and_pool[grid](
        x, gain, shift, mean, variance, out, pixels_of(out), channels, out.shape[3], slope, EPSILON, **sizes
    )
    return out


@evaluate.register_fake
def _(x, gain, shift, mean, variance, slope):
    return empty(x, pool=True)
