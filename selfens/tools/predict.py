"""Predictions for a user's files, and for the rows a run was trained on."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data import sources
from selfens.data.rows import Array
from selfens.errors import ConfigError, DataError, RunError
from selfens.files.tables import cells, check_replaceable, write_csv
from selfens.runs.run import Run
from selfens.runs.statistics import tempered

NOT_SURE = "not sure"


def predict_file(
    run: Run,
    inputs: Path,
    output: Path,
    *,
    max_error: float | None = None,
    all_classes: bool = False,
    progress: bool = False,
) -> tuple[int, list[str]]:
    """Write a prediction for each row of a file or folder. Return the number of rows, and notes for the user.

    Any source that matches the path can read it, but the rows must be of the kind that the run was trained on.

    Parameters
    ----------
    max_error
        Percentage of the answers that may be wrong. Rows that are too uncertain for it get "not sure".
    all_classes
        Write the probability of each class.
    """
    if output.exists() and inputs.exists() and output.samefile(inputs):
        raise DataError(f"{output} is the file to predict on; choose another name for the predictions.")
    check_max_error(run, max_error)
    side = run.encoder.image_side or (run.input_shape[-1] if len(run.input_shape) == 3 else None)
    data = sources.read(inputs, run.config.source, side=side, progress=progress)
    has_files = bool(data.ids) and data.id_header == "file"
    check_replaceable(output, ["file" if has_files else "row", "class", "probability"])
    raw = run.encoder.accept(data.raw, str(run.path), f"the inputs of {inputs}")
    encoded = run.encoder.transform(raw, progress=progress)
    probabilities = run.model.predict_inputs(encoded.inputs)
    columns, answered = _columns(run, probabilities, encoded.inputs, max_error, all_classes)
    ids = {data.id_header: data.ids} if data.ids else {}
    write_csv(output, ids | columns if has_files else {"row": data.row_numbers()} | columns | ids)
    left_out = [f"left out: {failure}" for failure in data.skipped]
    return len(data.labels), [*left_out, *data.notes, *encoded.notes, *answered]


def check_max_error(run: Run, max_error: float | None) -> None:
    """Raise an error unless `max_error` is a percentage, and the errors of the run were measured."""
    if max_error is None:
        return
    if not 0 < max_error < 100:
        raise ConfigError(f"--max-error is {max_error:g}; expected percent of the answers, above 0 and below 100.")
    if run.evidence is None:
        raise RunError(f"the errors of {run.path} were not measured; run selfens evaluate {run.path} --folds 5 first.")


def _columns(
    run: Run, probabilities: NDArray[Any], inputs: Array, max_error: float | None, all_classes: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the columns to write, and a note on how many rows are answered."""
    calibrated, names, notes = (
        tempered(probabilities, run.temperature),
        np.array(run.classes, dtype=object),
        list[str](),
    )
    ranked = np.argsort(-calibrated, axis=1, kind="stable")
    predicted = names[ranked[:, 0]]
    if max_error is not None and run.evidence is not None and len(predicted):
        sure = run.evidence.is_sure(probabilities, max_error)
        predicted = np.where(sure, predicted, NOT_SURE)
        notes = [f"{100 * sure.mean():.0f} % of the rows are answered"]
        if sure.any():
            notes[0] += f", about {100 * (1 - calibrated[sure].max(axis=1).mean()):.1f} % of these wrongly"
        notes[0] += f"; --max-error allows {max_error:g} %."
    columns = {"class": predicted, "probability": cells(calibrated.max(axis=1)), "runner_up": names[ranked[:, 1]]}
    if run.novelty is not None:
        columns["novelty"] = cells(run.novelty.score(inputs))
    if all_classes:
        columns |= {f"probability of {name}": cells(calibrated[:, k]) for k, name in enumerate(run.classes)}
    return columns, notes


def predict_training_rows(run: Run, output: Path) -> int:
    """Write row, class and probability of each training row; see `Run.predict_training_rows`."""
    check_replaceable(output, ["row", "class", "probability"])
    probabilities = run.predict_training_rows()
    numbers, ids = run.data().dataset.identify(np.arange(len(probabilities)))
    predicted = [run.classes[best] for best in probabilities.argmax(axis=1)]
    write_csv(output, {"row": numbers, "class": predicted, "probability": cells(probabilities.max(axis=1)), **ids})
    return len(numbers)
