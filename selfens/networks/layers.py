"""Layers of the paper's network: weight normalization with mean-only batch normalization, and input noise.

Running means are updated once per training step (`update_running_means`), not once per forward pass, from the last pass: in the
Π-model, the second of two. They start at zero without bias correction, so with the paper's momentum of 0.999 the test errors of
the first few epochs mean little. The gains g are set from one batch before training (`calibrate`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfens.networks import fused

LEAKY_SLOPE = 0.1
INITIAL_DEVIATION = 0.05
ROUNDING = 1e-5  # a standard deviation below this, relative to the values, is float32 rounding


class GaussianNoise(nn.Module):
    """Return x + deviation * noise in training, x in evaluation."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def forward(self, x: Tensor) -> Tensor:
        return x + self.deviation * torch.randn_like(x) if self.training and self.deviation else x


class NormalizedLayer(nn.Module, ABC):
    """activation(W x - mean + b) with W = g V / |V|: weight normalization and mean-only batch normalization.

    |V| is per output unit. In training, the mean of W x is over everything but the channel, and gradients flow through it; in
    evaluation it is the running mean. g and b are trainable (Salimans & Kingma, 2016). V ~ N(0, 0.05^2) initially, as in the
    authors' code. The activation is a leaky ReLU; with `slope` 1 there is none.
    """

    def __init__(self, weight_shape: tuple[int, ...], momentum: float, slope: float) -> None:
        super().__init__()
        units = weight_shape[0]
        self.momentum, self.slope = momentum, slope
        self.direction = nn.Parameter(torch.empty(weight_shape))  # V
        self.gain = nn.Parameter(torch.ones(units))  # g
        self.bias = nn.Parameter(torch.zeros(units))  # b
        self.running_mean = nn.Buffer(torch.zeros(units))
        self.batch_mean = nn.Buffer(torch.zeros(units), persistent=False)
        self.calibrating = False
        if not self.direction.is_meta:  # torch takes seconds to initialize a meta tensor
            nn.init.normal_(self.direction, std=INITIAL_DEVIATION)

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return W x + bias, channels in dimension 1."""

    def weight(self) -> Tensor:
        norm = self.direction.flatten(1).norm(dim=1)
        return self.direction * self._per_unit(self.gain / norm, self.direction.ndim, dim=0)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            y = self.normalize(self.linear(x, self.weight()))
        else:
            y = self.linear(x, self.weight(), self.bias - self.running_mean)
        return functional.leaky_relu(y, self.slope) if self.slope != 1 else y

    def normalize(self, y: Tensor) -> Tensor:
        """Subtract the batch mean and add the bias; while calibrating, set the gain first."""
        if self.calibrating:
            y = y / self._per_unit(self._calibrate(y), y.ndim)
        mean = self._batch_mean(y)
        self.batch_mean.copy_(mean.detach())
        return (y + self._per_unit(self.bias - mean, y.ndim)).to(y.dtype)

    @staticmethod
    def _batch_mean(y: Tensor) -> Tensor:
        return y.mean(dim=[d for d in range(y.ndim) if d != 1], dtype=torch.float32)

    @torch.no_grad()
    def _calibrate(self, y: Tensor) -> Tensor:
        """Set g so that W x has unit variance on this batch; return the standard deviations it had."""
        deviation = self._batch_mean((y - self._per_unit(self._batch_mean(y), y.ndim)).square()).sqrt()
        varies = deviation > ROUNDING * self._batch_mean(y.square()).sqrt()
        deviation = torch.where(varies, deviation, 1.0)  # a constant unit keeps its gain
        self.gain.div_(deviation)
        return deviation

    @staticmethod
    def _per_unit(values: Tensor, ndim: int, dim: int = 1) -> Tensor:
        """Reshape one value per unit to broadcast over a tensor with units in dimension `dim`."""
        return values.view(-1, *[1] * (ndim - 1 - dim))


class NormalizedConv2d(NormalizedLayer):
    """A convolution as a `NormalizedLayer`, stride 1, padding "same" or "valid"."""

    def __init__(
        self, in_channels: int, out_channels: int, size: int, *, padding: str = "same", momentum: float = 0.999
    ) -> None:
        super().__init__((out_channels, in_channels, size, size), momentum, LEAKY_SLOPE)
        self.padding, self.fused = size // 2 if padding == "same" else 0, False

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return _convolve(x, weight, bias, self.padding, self.fused)

    def forward_fused(self, x: Tensor, following: Sequence[nn.Module]) -> tuple[Tensor, int]:
        """Compute the layer, and the 2x2 pooling and dropout that follow it if our kernels support them.

        Returns the output and how many of the `following` modules it includes.
        """
        if not self.training or self.calibrating:
            return self(x), 0
        y = self.linear(x, self.weight())
        if y.numel() >= fused.LARGEST_TENSOR:
            return functional.leaky_relu(self.normalize(y), self.slope), 0
        from selfens.networks.kernels import normalize

        pool = fused.pools_next(following, y)
        dropout = fused.dropout_next(following[pool:])
        out, mean = normalize(y, self.bias, self.slope, dropout, pool)
        self.batch_mean.copy_(mean.detach())
        return out, pool + (dropout > 0)


class BatchNormConv2d(nn.Module):
    """A convolution with full batch normalization and leaky ReLU. Every training pass updates the running statistics."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int,
        *,
        padding: str = "same",
        stride: int = 1,
        momentum: float = 0.99,
    ) -> None:
        super().__init__()
        self.padding, self.stride = size // 2 if padding == "same" else 0, stride
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, size, size))
        self.norm = BatchNorm(out_channels, momentum)
        self.fused = False
        if not self.weight.is_meta:
            nn.init.kaiming_normal_(self.weight, a=LEAKY_SLOPE)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_fused(x, [])[0]

    def forward_fused(self, x: Tensor, following: Sequence[nn.Module]) -> tuple[Tensor, int]:
        """Compute the layer, and the 2x2 pooling that follows it if our kernels support it.

        Returns the output and how many of the `following` modules it includes.
        """
        y, norm = _convolve(x, self.weight, None, self.padding, self.fused, self.stride), self.norm
        if self._uses_kernels(y):
            from selfens.networks.batch_norm_kernels import evaluate, normalize

            pool = fused.pools_next(following, y)
            if self.training:
                out, mean, variance = normalize(y, norm.gain, norm.shift, LEAKY_SLOPE, pool)
                norm.follow(mean, variance, pixels=y.numel() // len(self.weight))
                return out, int(pool)
            if pool:
                return evaluate(y, norm.gain, norm.shift, norm.running_mean, norm.running_variance, LEAKY_SLOPE), 1
        return functional.leaky_relu(norm(y), LEAKY_SLOPE), 0

    def _uses_kernels(self, y: Tensor) -> bool:
        if not self.fused or not y.is_cuda or (torch.is_grad_enabled() and not self.training):
            return False  # the kernel for evaluation has no gradient
        # After the test above, because the sizes of an exported network are symbolic.
        one_pixel = y.numel() == len(self.weight)  # one pixel has no variance; torch raises the error
        return y.numel() < fused.LARGEST_TENSOR and not one_pixel


class BatchNorm(nn.Module):
    """Batch normalization over everything but the channel, with trainable gain and shift."""

    def __init__(self, channels: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.gain, self.shift = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.running_mean = nn.Buffer(torch.zeros(channels))
        self.running_variance = nn.Buffer(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        running = (self.running_mean, self.running_variance)
        return functional.batch_norm(x, *running, self.gain, self.shift, self.training, 1 - self.momentum)

    @torch.no_grad()
    def follow(self, mean: Tensor, variance: Tensor, pixels: int) -> None:
        """Update the running statistics as torch does in a training pass, with the unbiased variance."""
        running = (self.running_mean, self.running_variance)
        torch._foreach_lerp_(running, [mean, variance * (pixels / (pixels - 1))], 1 - self.momentum)


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, with_kernels: bool, stride: int = 1
) -> Tensor:
    if with_kernels and stride == 1:
        return fused.convolve(x, weight, bias, padding)
    if x.is_cuda:
        x = x.contiguous(memory_format=torch.channels_last)  # fastest for cuDNN
    return functional.conv2d(x, weight, bias, stride=stride, padding=padding)


class Linear(nn.Linear):
    """A fully connected layer in float32, because its outputs go into the softmax."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return fused.multiply(x.float(), self.weight, self.bias)


class NormalizedLinear(NormalizedLayer):
    """A fully connected layer as a `NormalizedLayer`."""

    def __init__(self, in_features: int, out_features: int, *, momentum: float = 0.999, slope: float = 1.0) -> None:
        super().__init__((out_features, in_features), momentum, slope)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # small, and its outputs may go into the softmax
            return fused.multiply(x.float(), weight, bias)


class FusedSequential(nn.Sequential):
    """A sequence of layers. On a GPU, a convolution absorbs the pooling and the dropout that follow it (see `fused`)."""

    def forward(self, x: Tensor) -> Tensor:
        following = list(self)
        while following:
            layer = following.pop(0)
            if isinstance(layer, NormalizedConv2d | BatchNormConv2d) and layer.fused:
                x, absorbed = layer.forward_fused(x, following)
                following = following[absorbed:]
            else:
                x = layer(x)
        return x


def fuse(network: nn.Module, enabled: bool) -> None:
    """Switch our GPU kernels on or off in the convolutions of `network`."""
    for module in network.modules():
        if isinstance(module, NormalizedConv2d | BatchNormConv2d):
            module.fused = enabled


def normalized_layers(network: nn.Module) -> Iterator[NormalizedLayer]:
    return (module for module in network.modules() if isinstance(module, NormalizedLayer))


@torch.no_grad()
def update_running_means(network: nn.Module) -> None:
    """Update every running mean from the last training pass. Call it once per step."""
    by_momentum: dict[float, list[NormalizedLayer]] = {}
    for layer in normalized_layers(network):
        by_momentum.setdefault(layer.momentum, []).append(layer)
    for momentum, layers in by_momentum.items():  # one kernel on a GPU, not one for each layer
        means: list[Tensor] = [each.running_mean for each in layers]
        batch_means: list[Tensor] = [each.batch_mean for each in layers]
        torch._foreach_lerp_(means, batch_means, 1 - momentum)


@torch.no_grad()
def calibrate(network: nn.Module, inputs: Tensor) -> None:
    """Set every gain, layer by layer, in one training pass over `inputs`. A network without gains is not run."""
    layers = list(normalized_layers(network))
    if not layers:
        return
    was_training, was_searching = network.training, torch.backends.cudnn.benchmark
    network.train()
    torch.backends.cudnn.benchmark = False  # not worth it for one pass
    for layer in layers:
        layer.calibrating = True
    try:
        network(inputs)
    finally:
        torch.backends.cudnn.benchmark = was_searching
        for layer in layers:
            layer.calibrating = False
        network.train(was_training)
