"""Predictions for a user's files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data.arrays import read_inputs
from selfens.data.dataset import Dataset
from selfens.data.folder import all_images, is_folder_source
from selfens.data.images import decode_all, is_image
from selfens.errors import DataError
from selfens.files.tables import cells, check_replaceable, write_csv
from selfens.runs.run import Run


def is_images(inputs: Path) -> bool:
    """Whether this is a folder or CSV of images, or an image; refused if it is not there."""
    if is_folder_source(inputs):
        return True
    if not os.path.exists(inputs):
        raise DataError(f"there is no file or folder {inputs}; check its path.")
    return is_image(inputs)


def predict_arrays(run: Run, inputs: Path, output: Path) -> int:
    """Write row, class, probability for each row of an array file; returns their number."""
    if inputs.suffix not in (".npy", ".npz"):
        raise DataError(
            f"{inputs} is not something to predict on; expected an .npz or .npy file, an image, a folder of images or a .csv."
        )
    _check_output(output, inputs, "row")
    array = read_inputs(inputs)
    return _write(run, output, "row", range(len(array)), run.predict_proba(array))


def predict_images(run: Run, inputs: Path, output: Path) -> tuple[int, list[str]]:
    """Write file, class, probability for each image; returns their number and what was left out."""
    if len(run.input_shape) != 3 or run.input_shape[0] != 3 or run.input_shape[1] != run.input_shape[2]:
        raise DataError(f"{run.path} was trained on inputs of shape {run.input_shape}, not on square colour images.")
    _check_output(output, inputs, "file")
    decoded = decode_all(all_images(inputs), run.input_shape[1], inputs)
    return _write(run, output, "file", decoded.files, run.predict_proba(decoded.images)), decoded.failures


def _check_output(output: Path, inputs: Path, first: str) -> None:
    """Refuse to overwrite the inputs, or anything but earlier predictions."""
    if output.exists() and output.samefile(inputs):
        raise DataError(f"{output} is the file to predict on; choose another name for the predictions.")
    check_replaceable(output, [first, "class", "probability"])


def _write(run: Run, output: Path, first: str, names: Sequence[Any], probabilities: NDArray[np.float32]) -> int:
    predicted = [run.classes[best] for best in probabilities.argmax(axis=1)]
    write_csv(output, {first: names, "class": predicted, "probability": cells(probabilities.max(axis=1))})
    return len(predicted)


def predict_training_rows(run: Run, dataset: Dataset, output: Path) -> int:
    """Write row, class, probability and deviation for each training row, from the run's ensemble.

    The deviation says by how much that probability has varied from epoch to epoch. It is empty for rows the ensemble has
    not seen, and for all rows if the run has no ensemble; their class and probability are the network's.
    """
    columns: dict[str, list[Any]] = {"row": [], "class": [], "probability": [], "deviation": []}
    check_replaceable(output, list(columns))
    for rows in run.training_blocks():
        made = run.predict_training_rows(dataset, rows)
        columns["row"] += rows.tolist()
        columns["class"] += [run.classes[best] for best in made.predicted]
        columns["probability"] += cells(made.probabilities.max(axis=1))
        columns["deviation"] += [""] * len(rows) if made.deviation is None else cells(made.deviation)
    write_csv(output, columns | ({"file": list(dataset.row_names)} if dataset.row_names else {}))
    return len(columns["row"])
