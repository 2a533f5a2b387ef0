"""backbone: a pretrained network with a linear head, all of it trained. The features are those of the encoder `backbone`."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from selfens.config import NetworkConfig
from selfens.encoders.pretrained import build
from selfens.errors import ConfigError
from selfens.networks.committee import zero


class FineTuned(nn.Module):
    """From images of 0 to 1 to logits. Small images are enlarged to the backbone's input size, after the views.

    Batch normalization keeps its pretrained statistics, because a batch of few labels has poor ones.

    Parameters
    ----------
    pretrained
        Start from the backbone's weights; if not, others are loaded.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig, *, pretrained: bool = True
    ) -> None:
        super().__init__()
        if len(input_shape) != 3 or input_shape[0] not in (1, 3):
            raise ConfigError(
                f"a backbone is fine-tuned on images of 1 or 3 channels, but a row has shape {input_shape}."
            )
        frozen = build(options.backbone, options.weights, options.size, pretrained=pretrained)
        self.size, self.channels = frozen.size, input_shape[0]
        self.backbone = frozen.module.float().requires_grad_(True)
        self.mean = nn.Buffer(frozen.mean.clone(), persistent=False)
        self.std = nn.Buffer(frozen.std.clone(), persistent=False)
        self.dropout = nn.Dropout(options.dropout)
        self.head = zero(int(frozen.about["features"]), num_classes)

    def train(self, mode: bool = True) -> "FineTuned":
        super().train(mode)
        for module in self.backbone.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self.channels == 1:
            x = x.expand(-1, 3, -1, -1)
        if x.shape[2:] != (self.size, self.size):
            x = functional.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False)
        return self.head(self.dropout(self.backbone((x - self.mean) / self.std)))  # type: ignore[no-any-return]

    @torch.no_grad()
    def start_head(self, weight: Tensor, bias: Tensor) -> None:
        """Set the head to a linear classifier of the features."""
        self.head.weight.copy_(weight)
        self.head.bias.copy_(bias)
