"""The GPU path of our convolutions, switched on by `fuse(network, True)`. The result is the same.

A convolution absorbs the pooling and dropout that follow it into the Triton kernels of `kernels.py`; with full batch
normalization, the pooling into those of `batch_norm_kernels.py`. cuDNN's convolutions get padded, channels-last inputs; the
first convolution, with few input channels, becomes a matrix product.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

FEW_INPUTS = 64  # input values per output value
LARGEST_TENSOR = 2**31  # our kernels use 32-bit indices
FEW_WEIGHTS = 8192  # up to this many, a compiled product is faster than cuBLAS


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Convolve in the way that is fastest on a GPU."""
    if weight[0].numel() <= FEW_INPUTS and torch.compiler.is_compiling():
        return _few_inputs_convolution(x, weight, bias, padding)
    return functional.conv2d(_for_tensor_cores(x), _for_tensor_cores(weight), bias, padding=padding)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply in float32, in the way that is fastest on a GPU.

    The compiler fuses a small product, written as a sum of products, into the kernels around it. cuBLAS's float32 kernel for
    the gradient of 10 x 128 weights takes as long as a large convolution.
    """
    if not x.is_cuda or weight.numel() > FEW_WEIGHTS or not torch.compiler.is_compiling():
        return functional.linear(x, weight, bias)
    y = (x[:, None, :] * weight).sum(dim=2)
    return y if bias is None else y + bias


def _for_tensor_cores(x: Tensor) -> Tensor:
    """Pad channels with zeros to a multiple of 8 and make them innermost; cuDNN would do so in every call."""
    missing = -x.shape[1] % 8
    x = functional.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x
    return _in_autocast_type(x).contiguous(memory_format=torch.channels_last)


def _in_autocast_type(x: Tensor) -> Tensor:
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _few_inputs_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Convolve few input channels by one matrix product over patches: 27 numbers for RGB and 3x3, padded to 32.

    Only fast if compiled: torch's own unfold launches a kernel for every image.
    """
    units, channels, size, _ = weight.shape
    height, width = x.shape[2] + 2 * padding - size + 1, x.shape[3] + 2 * padding - size + 1
    patches = functional.unfold(x, size, padding=padding).transpose(1, 2)  # [batch, pixels, channels * size * size]
    missing = -patches.shape[2] % 8
    patches = _in_autocast_type(functional.pad(patches, (0, missing)))
    matrix = _in_autocast_type(functional.pad(weight.flatten(1), (0, missing)))
    return functional.linear(patches, matrix, bias).view(len(x), height, width, units).permute(0, 3, 1, 2)


def pools_next(following: Sequence[nn.Module], images: Tensor) -> bool:
    """Return True if 2x2 pooling comes next and divides these images evenly."""
    pool = following[0] if following else None
    by_two = isinstance(pool, nn.MaxPool2d) and (pool.kernel_size, pool.stride, pool.padding) == (2, 2, 0)
    return by_two and all(side % 2 == 0 for side in images.shape[2:])


def dropout_next(following: Sequence[nn.Module]) -> float:
    """Return the probability of the dropout that comes next, or 0."""
    return following[0].p if following and isinstance(following[0], nn.Dropout) else 0.0
