"""Predictions for a user's files, and for the rows a run was trained on."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data import sources
from selfens.errors import DataError
from selfens.files.tables import cells, check_replaceable, write_csv
from selfens.runs.run import Run


def predict_file(run: Run, inputs: Path, output: Path, *, progress: bool = False) -> tuple[int, list[str]]:
    """Write class and probability of each row of a file or folder; return the number of rows, and remarks.

    Any source that matches the path can read it. What it reads must be of the kind that the run was trained on.
    """
    if output.exists() and inputs.exists() and output.samefile(inputs):
        raise DataError(f"{output} is the file to predict on; choose another name for the predictions.")
    side = run.encoder.image_side or (run.input_shape[-1] if len(run.input_shape) == 3 else None)
    data = sources.read(inputs, run.config.source, side=side, progress=progress)
    has_files = bool(data.ids) and data.id_header == "file"
    check_replaceable(output, ["file" if has_files else "row", "class", "probability"])
    raw = run.encoder.accept(data.raw, str(run.path), f"the inputs of {inputs}")
    encoded = run.encoder.transform(raw, progress=progress)
    columns = _columns(run, run.model.predict_inputs(encoded.inputs))
    ids = {data.id_header: data.ids} if data.ids else {}
    write_csv(output, ids | columns if has_files else {"row": data.row_numbers()} | columns | ids)
    return len(data.labels), [*(f"left out: {failure}" for failure in data.skipped), *data.notes, *encoded.notes]


def _columns(run: Run, probabilities: NDArray[np.float32]) -> dict[str, Any]:
    predicted = [run.classes[best] for best in probabilities.argmax(axis=1)]
    return {"class": predicted, "probability": cells(probabilities.max(axis=1))}


def predict_training_rows(run: Run, output: Path) -> int:
    """Write row, class and probability of each training row; see `Run.predict_training_rows`."""
    check_replaceable(output, ["row", "class", "probability"])
    probabilities = run.predict_training_rows()
    numbers, ids = run.data().dataset.identify(np.arange(len(probabilities)))
    write_csv(output, {"row": numbers, **_columns(run, probabilities), **ids})
    return len(numbers)
