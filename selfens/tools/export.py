"""Export: a run's network with its preprocessing and its backbone, if it has one, in one ONNX file that needs no selfens.

The file takes any number of raw rows, bytes or floats; with a backbone, RGB bytes at its input size. It returns probabilities
and logits. Class names and a model card are inside. It is written only if its probabilities match those of the run.
"""

import copy
import json
import logging
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim

from selfens import __version__, networks
from selfens.data import preprocess
from selfens.data.images import resize
from selfens.data.rows import take
from selfens.data.sources.official import DOWNLOADS
from selfens.errors import ConfigError, RunError, SelfensError, require, root_cause
from selfens.files.tables import write_output
from selfens.runs.evidence import Evidence
from selfens.runs.model import network_probabilities
from selfens.runs.novelty import NEIGHBOR, Novelty
from selfens.runs.run import Run, load_run

CHECKED_ROWS = 256
SPLITS = (1, 64, 128, 192)  # into batches of 1, 63 and 64 rows
TOLERANCE = 1e-4
INPUT, OUTPUTS = "inputs", ("probabilities", "logits")


class Export(NamedTuple):
    """An exported file, and how it was checked."""

    path: Path
    difference: float  # the largest between a probability of the file and the run's own
    checked_on: str  # which rows the two were compared on, in words


class ExportedModel(nn.Module):
    """Maps raw inputs to probabilities and logits. Holds copies on the CPU of the run's modules."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.encoder = None if run.encoder.module is None else copy.deepcopy(run.encoder.module).cpu()
        self.preprocess, self.network = copy.deepcopy(run.preprocess).cpu(), copy.deepcopy(run.network).cpu()
        self.temperature = run.temperature
        networks.fuse(self.network, False)  # fused if it was trained on a GPU in this process

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        encoded = inputs if self.encoder is None else self.encoder(inputs)
        logits = self.network(self.preprocess(encoded)).float() / self.temperature
        return logits.softmax(dim=1), logits


def export_run(run: Run | str | Path, path: str | Path) -> Export:
    """Write a run's trained network with its preprocessing and encoder into one ONNX file.

    Parameters
    ----------
    run
        A run or its directory; load_run(path, ...) if it needs a module of your own or code that you trust.
    path
        The file to write, ending in .onnx.
    """
    path = Path(path)
    if path.suffix.lower() != ".onnx":
        raise ConfigError(f"{path} is not the name of an ONNX file; expected one that ends in .onnx.")
    require("onnx", f"exporting to {path.name}")
    run = run if isinstance(run, Run) else load_run(run, device="cpu")
    rows, checked_on = _rows_to_check(run)
    entries = {"classes": _json(run.classes), "model_card": _json(model_card(run))}
    model = ExportedModel(run)
    try:
        content = _onnx(model, rows, entries)
        difference = _difference(content, model, rows)
    except Exception as error:  # a user's network may make the exporter raise anything
        advice = "its network must take any number of rows and use only what torch.export supports"
        raise RunError(f"{run.path} could not be exported ({root_cause(error)}); {advice}.") from error
    if not difference <= TOLERANCE:
        by = f"{difference:.2g} on {checked_on}"
        raise RunError(f"{path} was not written: probabilities differ from the run's by {by}.")
    write_output(path, content)
    return Export(path, difference, checked_on)


def model_card(run: Run) -> dict[str, Any]:
    """Return what someone who has only the file wants to know."""
    (epoch, step), info, config, evidence = run.directory.position(), run.info, run.config, run.evidence
    shape, kind, limits = run.encoder.exported_input(run.input_shape)
    return {
        "data": Path(info.data).name,
        "training_rows": info.rows,
        "labels": len(run.labels.rows),
        "method": "custom" if info.custom_method else config.method.name,
        "network": "custom" if info.custom_network else config.network.name,
        "preprocessing": config.preprocess.kind,
        "encoder": {"kind": config.encoder.name, **info.encoder},
        **({"first": run.encoder.first} if run.encoder.first else {}),
        "epochs": epoch,
        "test_error_percent": None if step else run.test_error,
        "test_rows": info.test_rows,
        "error": None if evidence is None else _measured(evidence),
        "novelty": None if run.novelty is None else _novelty(run.novelty),
        "input": {"name": INPUT, "type": kind, "shape": ["batch", *shape], "range": limits},
        "selfens": __version__,
    }


def _measured(evidence: Evidence) -> dict[str, Any]:
    low, high = evidence.error_interval
    return {
        "percent": evidence.error,
        "interval_90_percent": [low, high],
        "rows": len(evidence.wrong),
        "measured_on": f"{evidence.folds} folds" if evidence.folds else "test rows",
        "temperature": evidence.temperature,
    }


def _novelty(novelty: Novelty) -> dict[str, Any]:
    """Describe the distances of training rows from each other, with which a row's distance can be compared."""
    quantiles = torch.quantile(novelty.distances.float(), torch.tensor([0.5, 0.9, 0.99]))
    described: dict[str, Any] = {
        "neighbor": NEIGHBOR,
        "distance_quantiles": dict(zip(("0.5", "0.9", "0.99"), quantiles.tolist(), strict=True)),
    }
    if (novelty.scale != 1).any():  # what features are standardized by before they are compared
        described |= {"center": novelty.center.tolist(), "scale": novelty.scale.tolist()}
    return described


def _json(value: Any) -> str:
    """Keep text of any language readable; lone surrogates, from file names that are not UTF-8, stay escaped."""
    return json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace").decode()


def _onnx(model: ExportedModel, rows: NDArray[Any], entries: dict[str, str]) -> bytes:
    # Silences notes on packages that are not needed, and deprecations inside torch's own exporter.
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


def _difference(content: bytes, model: ExportedModel, rows: NDArray[Any]) -> float:
    """Return the largest difference of a probability between the file and the model, over batches of several sizes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    differences = []
    for batch in np.split(rows, SPLITS):
        with torch.no_grad():
            inputs = batch if model.encoder is None else model.encoder(torch.from_numpy(batch)).float().numpy()
        expected = network_probabilities(
            model.network, preprocess.apply(model.preprocess, inputs, "cpu"), temperature=model.temperature
        )
        differences.append(np.abs(session.run(["probabilities"], {INPUT: batch})[0] - expected).max())
    return float(np.max(differences))  # NaN if one of them is


def _rows_to_check(run: Run) -> tuple[NDArray[Any], str]:
    """Return rows spread over the training data, some more than once if it is small, and a name for them."""
    shape, kind, _ = run.encoder.exported_input(run.input_shape)
    token = DOWNLOADS.set(False)  # exporting must not start a download
    try:
        data = run.data()
    except SelfensError:
        why = f"since the training data, {run.config.source.title}, cannot be loaded"
        return np.zeros((CHECKED_ROWS, *shape), dtype=kind), f"blank rows only, {why}"
    finally:
        DOWNLOADS.reset(token)
    raw = data.inputs if run.encoder.module is None else take(data.dataset.raw, data.dataset.train_rows)
    rows = raw[np.arange(CHECKED_ROWS) * len(raw) // CHECKED_ROWS]
    if run.encoder.needs_images:
        rows = resize(rows, shape[-1])
    return rows, f"{min(CHECKED_ROWS, len(raw))} training rows"
