"""Export: a run's network, its preprocessing and its backbone, if it has one, in one ONNX file, to be used without selfens.

The file takes any number of raw rows, bytes or floats; if there is a backbone, RGB bytes at its input size. It gives
probabilities and logits. Class names and a model card are inside. It is written only if its probabilities are those of the run
itself.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim

from selfens import __version__, networks
from selfens.data import preprocess
from selfens.data.arrays import Inputs
from selfens.data.images import resized
from selfens.errors import ConfigError, RunError, SelfensError, require
from selfens.files.tables import write_output
from selfens.files.tensors import write_failure
from selfens.runs.run import Run, load_run, probabilities

CHECKED_ROWS = 256
SPLITS = (1, 64, 128, 192)  # into batches of 1, 63 and 64 rows
TOLERANCE = 1e-4
INPUT, OUTPUTS = "inputs", ("probabilities", "logits")


@dataclass(frozen=True)
class Export:
    """A file that was written, and how it was checked."""

    path: Path
    difference: float
    """The largest difference between a probability of the file and the run's own."""
    checked_on: str
    """Which rows the two were compared on, in words."""


class Model(nn.Module):
    """From raw inputs to probabilities and logits; copies on the CPU of what the run has on any device."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(run.features.backbone).cpu() if run.features else None
        self.preprocess, self.network = copy.deepcopy(run.preprocess).cpu(), copy.deepcopy(run.network).cpu()
        networks.fuse(self.network, False)  # fusing may be on if it was trained on a GPU in this process

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = inputs if self.backbone is None else self.backbone(inputs)
        logits = self.network(self.preprocess(features)).float()
        return logits.softmax(dim=1), logits


def export_run(run: Run | str | Path, path: str | Path) -> Export:
    """Write the trained network of a run, its preprocessing, class names and model card into one file.

    run   a run or its directory; load_run(path, ...) if it needs a module of your own or code that you trust
    path  of the file, ending in .onnx
    """
    path = Path(path)
    if path.suffix.lower() != ".onnx":
        raise ConfigError(f"{path} is not the name of an ONNX file; expected one that ends in .onnx.")
    require("onnx", f"exporting to {path.name}")
    run = run if isinstance(run, Run) else load_run(run, device="cpu")
    rows, checked_on = _rows_to_check(run)
    entries = {"classes": _json(run.classes), "model_card": _json(model_card(run))}
    model = Model(run)
    try:
        content = _onnx(model, rows, entries)
        difference = _difference(content, model, rows)
    except Exception as error:  # a user's network may make the exporter raise anything
        if system := _system_error(error):
            raise RunError(write_failure(path, system)) from error
        reason = next(iter(str(error.__cause__ or error).strip().splitlines()), type(error).__name__)
        raise RunError(
            f"{run.path} could not be exported ({reason}); its network must take any number of rows and use "
            "only operations that torch.export supports."
        ) from error
    if not difference <= TOLERANCE:
        raise RunError(
            f"{path} was not written: its probabilities differ from the run's by up to {difference:.2g} on {checked_on}; "
            f"at most {TOLERANCE:g} was expected."
        )
    write_output(path, content)
    return Export(path, difference, checked_on)


def _system_error(error: BaseException | None) -> OSError | None:
    """What the system refused, if that made the exporter fail, which may write files of its own."""
    while error is not None:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # not one of `inspect`, for source code it cannot find
            return error
        error = error.__cause__ or error.__context__
    return None


def model_card(run: Run) -> dict[str, Any]:
    """What someone who has only the file wants to know about it."""
    (epoch, step), (shape, kind) = run.directory.reached(), _input(run)
    limits = [0, 255] if kind == "uint8" else run.about.get("input_range")
    return {
        "data": Path(run.about.get("data", run.config.data.name)).name,
        "training_rows": run.about["rows"],
        "labels": len(run.labels.rows),
        "method": "the user's own" if run.about["own_method"] else run.config.method.name,
        "network": "the user's own" if run.about["own_network"] else run.config.network.name,
        "preprocessing": run.config.data.preprocess,
        **({} if run.columns is None else {"columns": asdict(run.columns)}),
        "epochs": epoch,
        "test_error_percent": None if step else run.test_error,
        "test_rows": run.about.get("test_rows"),
        "backbone": run.about.get("backbone"),
        "input": {"name": INPUT, "type": kind, "shape": ["batch", *shape], "range": limits},
        "selfens": __version__,
    }


def _json(value: Any) -> str:
    """Text of any language stays readable; lone surrogates, from file names that are not UTF-8, stay escaped."""
    return json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace").decode()


def _onnx(model: Model, rows: Inputs, entries: dict[str, str]) -> bytes:
    # Neither notes on packages that are not needed nor deprecations inside torch's own exporter.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    any_batch = ({0: Dim("batch", min=1)},)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        program = torch.export.export(model.eval(), (torch.from_numpy(rows[:2]),), dynamic_shapes=any_batch)
        exported = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=[INPUT], output_names=OUTPUTS, dynamic_shapes=any_batch
        )
    assert exported is not None
    exported.model.metadata_props.update(entries)
    return bytes(exported.model_proto.SerializeToString())


# The check


def _difference(content: bytes, model: Model, rows: Inputs) -> float:
    """The largest difference of a probability between the file and the model, over batches of several sizes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    found = [
        np.abs(session.run(["probabilities"], {INPUT: batch})[0] - _expected(model, batch)).max()
        for batch in np.split(rows, SPLITS)
    ]
    return float(np.max(found))  # NaN if one of them is


def _expected(model: Model, rows: Inputs) -> NDArray[np.float32]:
    inputs = rows if model.backbone is None else model.backbone.features(rows)
    return probabilities(model.network, preprocess.apply(model.preprocess, inputs, "cpu"))


def _rows_to_check(run: Run) -> tuple[Inputs, str]:
    """Rows spread over the training data, some more than once if it is small; and a name for them."""
    shape, kind = _input(run)
    try:
        inputs = run.dataset(offline=True).shown()
    except SelfensError:
        why = f"since the training data, {run.config.data.name}, cannot be loaded"
        return np.zeros((CHECKED_ROWS, *shape), dtype=kind), f"blank rows only, {why}"
    rows = inputs[np.arange(CHECKED_ROWS) * len(inputs) // CHECKED_ROWS]
    if run.features is not None:
        rows = np.stack([resized(row, run.features.size) for row in rows])
    return rows, f"{min(CHECKED_ROWS, len(inputs))} training rows"


def _input(run: Run) -> tuple[tuple[int, ...], str]:
    """Shape and type of a row that the file takes: an image, if there is a backbone."""
    if run.features is None:
        return run.input_shape, run.about["input_type"]
    return (3, run.features.size, run.features.size), "uint8"
