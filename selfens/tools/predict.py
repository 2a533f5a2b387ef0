"""Predictions for a user's files, and for the rows a run was trained on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data.arrays import read_inputs
from selfens.data.dataset import Dataset
from selfens.data.folder import all_images, decode_alike, is_folder_source
from selfens.data.images import Decoded, decode_all, is_image
from selfens.data.table_files import is_table, read_frame
from selfens.errors import DataError
from selfens.files.tables import cells, check_replaceable, write_csv
from selfens.runs.run import Run


def predict_file(run: Run, inputs: Path, output: Path, *, progress: bool = False) -> tuple[int, list[str]]:
    """Write class and probability of each row of a table or array, or of each image; returns their number and remarks.

    inputs  a table, if the run was trained on one; an .npz or .npy file, an image, a folder of images, or a CSV that lists them
    """
    if not os.path.exists(inputs):
        raise DataError(f"there is no file or folder {inputs}; check its path.")
    columns = run.columns if is_table(inputs) else None
    is_images = columns is None and (is_folder_source(inputs) or is_image(inputs))
    if columns is None and not is_images and inputs.suffix not in (".npy", ".npz"):
        raise DataError(
            f"{inputs} is not something to predict on; expected an .npz or .npy file, an image, a folder of images, a .csv, or "
            "a .tsv or .parquet file if the run was trained on a table."
        )
    if output.exists() and output.samefile(inputs):
        raise DataError(f"{output} is the file to predict on; choose another name for the predictions.")
    check_replaceable(output, ["file" if is_images else "row", "class", "probability"])
    if columns is not None:
        frame = read_frame(inputs)
        vectors, notes = columns.encode(frame, str(inputs))
        identifiers = columns.identifiers(frame)
        if columns.identifier is not None and not identifiers:
            notes.append(f"{inputs} has no column '{columns.identifier}', so only row numbers tell its rows apart.")
        table = {"row": frame.index, **_columns(run, run.predict_proba(vectors))}
        write_csv(output, table | ({columns.header: identifiers} if identifiers else {}))
        return len(frame), notes
    if is_images:
        decoded, probabilities = _predicted(run, inputs, progress)
        write_csv(output, {"file": decoded.files, **_columns(run, probabilities)})
        return len(decoded.files), [f"left out: {failure}" for failure in decoded.failures]
    array = read_inputs(inputs)
    write_csv(output, {"row": range(len(array)), **_columns(run, run.predict_proba(array))})
    return len(array), []


def _predicted(run: Run, inputs: Path, progress: bool) -> tuple[Decoded, NDArray[np.float32]]:
    """The images, or the hashes of those that went through a backbone, and their probabilities."""
    if (store := run.features) is not None:
        decoded = decode_all(all_images(inputs), store.size, inputs, progress, store.digests)
        return decoded, run.predict_rows(store.features(decoded.images))
    decoded = decode_alike(inputs, run.input_shape, progress)
    return decoded, run.predict_proba(decoded.images)


def _columns(run: Run, probabilities: NDArray[np.float32]) -> dict[str, list[str]]:
    predicted = [run.classes[best] for best in probabilities.argmax(axis=1)]
    return {"class": predicted, "probability": cells(probabilities.max(axis=1))}


def predict_training_rows(run: Run, dataset: Dataset, output: Path) -> int:
    """Write row, class and probability of each training row, by the run's ensemble if it has one and has seen the row."""
    columns: dict[str, Any] = {"row": [], "class": [], "probability": []}
    check_replaceable(output, list(columns))
    for rows in run.training_blocks():
        columns["row"] += rows.tolist()
        for name, texts in _columns(run, run.predict_training_rows(dataset, rows)).items():
            columns[name] += texts
    numbers, names = dataset.identify(np.array(columns["row"]))
    write_csv(output, columns | {"row": numbers} | names)
    return len(numbers)
