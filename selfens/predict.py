"""Predictions for a user's files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import read_npz
from selfens.errors import DataError

INPUT_NAMES = ("x", "inputs", "x_test", "images")


def read_inputs(path: Path) -> NDArray[Any]:
    """The inputs in an .npy file, or in an .npz file under one of a few names or alone."""
    if path.suffix == ".npy":
        return _read_npy(path)
    arrays = read_npz(path)
    for name in INPUT_NAMES:
        if name in arrays:
            return arrays[name]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise DataError(f"{path} holds {', '.join(sorted(arrays)) or 'no arrays'}; name the inputs 'x'.")


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a readable .npy file ({error}).") from None
    return array


def write_predictions(path: Path, classes: tuple[str, ...], probabilities: NDArray[np.float32]) -> None:
    """A CSV of row, class, probability."""
    best = probabilities.argmax(axis=1)
    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["row", "class", "probability"])
            for row, number in enumerate(best):
                writer.writerow([row, classes[number], f"{probabilities[row, number]:.6f}"])
    except OSError as error:
        raise DataError(f"{path} could not be written ({error.strerror}).") from None
