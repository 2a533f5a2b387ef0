"""EncodedDataset: a dataset and the inputs that an encoder makes of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from selfens.data.arrays import are_pixels
from selfens.data.dataset import Dataset, hash_arrays
from selfens.data.rows import Array, Labels, LazyRows, Rows, take
from selfens.encoders.base import Encoded, Encoder
from selfens.errors import ConfigError


def check_encoded(encoded: Any, encoder: Encoder, rows: int) -> None:
    """Refuse what an encoder may not return, or what cannot be kept of it."""
    name = f"the encoder '{encoder.options.name}'"
    if not isinstance(encoded, Encoded) or not isinstance(encoded.inputs, np.ndarray | LazyRows):
        raise ConfigError(
            f"{name} returned a {type(encoded).__name__}; expected Encoded(inputs), with an array of inputs."
        )
    shape, kind = encoded.inputs.shape, encoded.inputs.dtype
    if shape[:1] != (rows,) or len(shape) not in (2, 3, 4) or kind not in (np.float32, np.uint8):
        found = f"inputs of shape {shape} and type {kind} for {rows:,} rows"
        raise ConfigError(f"{name} returned {found}; expected float32, or bytes of images, [rows, ...].")
    try:
        json.dumps(encoder.to_dict())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"what {name} has learned is not plain data ({error}); return numbers, text, lists, dicts."
        ) from None


@dataclass(frozen=True, eq=False)
class EncodedDataset:
    dataset: Dataset
    encoder: Encoder
    inputs: Array
    """Of the training rows, the extra ones last."""
    test_inputs: Array
    keys: tuple[Array, Array]
    """What identifies the training rows and the test rows: their inputs, or keys from the encoder."""
    notes: tuple[str, ...]
    work: str = ""
    """What the encoder computed."""

    @classmethod
    def make(cls, dataset: Dataset, encoder: Encoder, *, progress: bool = False) -> EncodedDataset:
        """Encode all rows of a dataset; the encoder is fitted already."""
        encoded = encoder.transform(dataset.raw, progress=progress)
        check_encoded(encoded, encoder, len(dataset.labels))
        inputs, notes, keys, work = encoded
        train, test = dataset.train_rows, dataset.test_rows
        keys = inputs if keys is None else keys
        notes = tuple(dict.fromkeys((*dataset.notes, *encoder.notes, *notes)))
        both = take(keys, train), take(keys, test)
        return cls(dataset, encoder, take(inputs, train), take(inputs, test), both, notes, work)

    @property
    def labels(self) -> Labels:
        """Labels of the training rows."""
        return self.dataset.train_labels

    @property
    def test_labels(self) -> Labels:
        return self.dataset.test_labels

    @property
    def classes(self) -> tuple[str, ...]:
        return self.dataset.classes

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def num_rows(self) -> int:
        """Training rows, extra ones included."""
        return len(self.inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[1:])

    def baselines(self, rows: Rows | None = None, labels: Labels | None = None) -> dict[str, Labels]:
        """Return what the encoder's simple methods on raw rows predict for the test rows, by name.

        They see all training rows, or only `rows`, with these labels.
        """
        dataset = self.dataset
        seen = dataset.train_rows if rows is None else dataset.train_rows[rows]
        known = self.labels if labels is None else labels
        return self.encoder.baselines(take(dataset.raw, seen), known, take(dataset.raw, dataset.test_rows))

    @property
    def is_images(self) -> bool:
        return self.inputs.ndim == 4

    @cached_property
    def are_pixels(self) -> bool:
        """The inputs are images of bytes, or of floats from 0 to 1."""
        return self.is_images and are_pixels(self.inputs)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of inputs, labels, classes and prior: runs on data with the same hash train alike."""
        more = filter(None, (self.dataset.extra_rows, self.encoder.key))
        about = (self.classes, self.inputs.shape, str(self.inputs.dtype), *more)
        (train, test), prior = self.keys, self.dataset.train_prior
        arrays = (train, self.labels, test, self.test_labels, *([] if prior is None else [prior]))
        return hash_arrays(hashlib.sha256(repr(about).encode()), *arrays)
