"""Model: encoder, preprocessing and trained network, from raw examples to probabilities."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selfens.core import evaluate
from selfens.core.device import prediction_settings, resolve_precision
from selfens.data import preprocess
from selfens.data.arrays import PIECE, refuse_rows
from selfens.data.rows import Array, Rows, pieces
from selfens.encoders import Encoder
from selfens.errors import RunError


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model; see `Run.model`."""

    encoder: Encoder
    preprocess: nn.Module
    network: nn.Module  # in evaluation mode: preprocessed inputs to logits
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]  # of an encoded row
    precision: str = "fp32"
    temperature: float = 1.0  # of calibrated probabilities

    @property
    def device(self) -> torch.device:
        return next((weight.device for weight in self.network.parameters()), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Model:
        """Return a copy on another device, or this model if it is there already."""
        if self.device == torch.device(device):
            return self
        network, fitted = (copy.deepcopy(module).to(device) for module in (self.network, self.preprocess))
        return replace(self, preprocess=fitted, network=network)

    def predict_proba(
        self, given: Any, where: str, what: str = "the inputs", dtype: torch.dtype = torch.float32
    ) -> NDArray[Any]:
        """Return [rows, classes] calibrated probabilities for new examples.

        `where` and `what` name the model and the inputs in error messages.
        """
        raw = self.encoder.accept(given, where, what)
        return self.predict_inputs(self.encoder.transform(raw).inputs, dtype=dtype, temperature=self.temperature)

    def predict_inputs(
        self, inputs: Array, rows: Rows | None = None, dtype: torch.dtype = torch.float32, temperature: float = 1.0
    ) -> NDArray[Any]:
        """Return [rows, classes] probabilities for encoded inputs, all or only `rows`, computed in pieces."""
        if (shape := tuple(inputs.shape[1:])) != self.input_shape:
            raise RunError(f"the encoder makes inputs of shape {shape}, but the network takes {self.input_shape}.")
        parts: list[NDArray[Any]] = [torch.empty((0, len(self.classes)), dtype=dtype).numpy()]
        for piece in pieces(inputs, PIECE, rows):
            prepared = preprocess.apply(self.preprocess, piece, self.device)
            parts.append(network_probabilities(self.network, prepared, self.precision, dtype, temperature))
        probabilities = np.concatenate(parts)
        refuse_rows(~np.isfinite(probabilities).all(axis=1), "the inputs hold values too large for the network", rows)
        return probabilities


def network_probabilities(
    network: nn.Module,
    inputs: Tensor,
    precision: str = "fp32",
    dtype: torch.dtype = torch.float32,
    temperature: float = 1.0,
) -> NDArray[Any]:
    """Return [rows, classes] for preprocessed inputs on the network's device; the softmax is computed in `dtype`."""
    precision = resolve_precision(precision, inputs.device)
    with prediction_settings(precision, inputs.device):
        logits = evaluate.logits(network, inputs, precision)
    return np.asarray((logits / temperature).softmax(dim=1, dtype=dtype).cpu().numpy())
