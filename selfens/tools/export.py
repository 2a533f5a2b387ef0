"""Export: a run's network with its preprocessing and its encoder, if it is a network, in one ONNX file that needs no selfens.

The file takes any number of raw rows: bytes or floats; with a backbone, RGB bytes at its input size; of texts, token ids and
counts of words. It returns probabilities and logits. Class names and a model card are inside. It is written only if its
probabilities match those of the run.
"""

import copy
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from selfens import __version__, networks
from selfens.data import preprocess
from selfens.data.rows import Array, take
from selfens.data.sources.official import DOWNLOADS
from selfens.encoders.base import INPUT, Front
from selfens.errors import ConfigError, RunError, SelfensError, listed, require, root_cause
from selfens.files.tables import write_output
from selfens.runs.evidence import Evidence
from selfens.runs.model import network_probabilities
from selfens.runs.novelty import NEIGHBOR, Novelty
from selfens.runs.run import Run, load_run

CHECKED_ROWS = 256
SPLITS = (1, 64, 128, 192)  # into batches of 1, 63 and 64 rows
TOLERANCE = 1e-4
OUTPUTS = ("probabilities", "logits")


class Batch(NamedTuple):
    """Rows to check the file on."""

    given: Mapping[str, Array]
    """What the file takes, by name."""
    encoded: Array | None
    """What the run's encoder makes of the same rows; None: what the front of the file makes is taken for it."""


class Export(NamedTuple):
    """An exported file, and how it was checked."""

    path: Path
    difference: float  # the largest between a probability of the file and the run's own
    checked_on: str  # which rows the two were compared on, in words
    first: str = ""  # which inputs must be made before it can be used, if it does not take raw rows


class ExportedModel(nn.Module):
    """Maps what the file takes to probabilities and logits. Holds copies on the CPU of the run's modules."""

    def __init__(self, run: Run, front: Front) -> None:
        super().__init__()
        self.front = None if front.module is None else copy.deepcopy(front.module).cpu()
        self.preprocess, self.network = copy.deepcopy(run.preprocess).cpu(), copy.deepcopy(run.network).cpu()
        self.temperature = run.temperature
        networks.fuse(self.network, False)  # fused if it was trained on a GPU in this process

    def encode(self, *given: Tensor) -> Tensor:
        return given[0] if self.front is None else self.front(*given)

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.encode(*given)
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
    front = run.encoder.front(run.input_shape)
    batches, checked_on = _batches_to_check(run, front)
    entries = {"classes": _json(run.classes), "model_card": _json(model_card(run, front)), **front.files}
    model = ExportedModel(run, front)
    try:
        content = _onnx(model, front, batches[1].given, entries)
        difference = _difference(content, model, batches)
    except Exception as error:  # a user's network may make the exporter raise anything
        advice = "its network must take any number of rows and use only what torch.export supports"
        raise RunError(f"{run.path} could not be exported ({root_cause(error)}); {advice}.") from error
    if not difference <= TOLERANCE:
        by = f"{difference:.2g} on {checked_on}"
        raise RunError(f"{path} was not written: probabilities differ from the run's by {by}.")
    write_output(path, content)
    return Export(path, difference, checked_on, listed([*front.takes]) if front.first else "")


def model_card(run: Run, front: Front | None = None) -> dict[str, Any]:
    """Return what someone who has only the file wants to know."""
    front = front or run.encoder.front(run.input_shape)
    (epoch, step), info, config, evidence = run.directory.position(), run.info, run.config, run.evidence
    return {
        "data": Path(info.data).name,
        "training_rows": info.rows,
        "labels": len(run.labels.rows),
        "method": "custom" if info.custom_method else config.method.name,
        "network": "custom" if info.custom_network else config.network.name,
        "preprocessing": config.preprocess.kind,
        "encoder": {"kind": config.encoder.name, **info.encoder},
        **({"first": front.first} if front.first else {}),
        "epochs": epoch,
        "test_error_percent": None if step else run.test_error,
        "test_rows": info.test_rows,
        "error": None if evidence is None else _measured(evidence),
        "novelty": None if run.novelty is None else _novelty(run.novelty),
        "inputs": [
            {"name": name, "type": row.type, "shape": ["batch", *row.shape], "range": row.range}
            for name, row in front.takes.items()
        ],
        "selfens": __version__,
    }


def _measured(evidence: Evidence) -> dict[str, Any]:
    low, high = evidence.error_interval
    return {
        "percent": evidence.error,
        "interval_90_percent": [low, high],
        "rows": len(evidence.wrong),
        "measured_on": f"{evidence.folds} folds" if evidence.folds else "test rows",
        "temperature": evidence.model_temperature,
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


def _onnx(model: ExportedModel, front: Front, rows: Mapping[str, Array], entries: dict[str, str]) -> bytes:
    # Silences notes on packages that are not needed, and deprecations inside torch's own exporter.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    batch = Dim("batch", min=1)
    sizes = [
        {0: batch} | {place: Dim.DYNAMIC for place, side in enumerate(row.shape, 1) if isinstance(side, str)}
        for row in front.takes.values()
    ]
    rows = rows if front.feed is None or front.probes is None else front.feed(front.probes)  # none of whose sides is 1
    given, any_size = tuple(torch.from_numpy(rows[name][:2]) for name in front.takes), (tuple(sizes),)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        warnings.filterwarnings("ignore", ".*will not be used, since it shares the same shape", UserWarning)
        program = torch.export.export(model.eval(), given, dynamic_shapes=any_size)
        exported = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=list(front.takes),
            output_names=OUTPUTS,
            dynamic_shapes=any_size,
        )
    assert exported is not None
    exported.model.metadata_props.update(entries)
    return bytes(exported.model_proto.SerializeToString())


def _difference(content: bytes, model: ExportedModel, batches: Sequence[Batch]) -> float:
    """Return the largest difference of a probability between the file and the run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    differences = []
    for given, encoded in batches:
        with torch.no_grad():
            made = model.encode(*map(torch.from_numpy, given.values())) if encoded is None else encoded
        inputs = np.asarray(made, None if model.front is None else np.float32)
        expected = network_probabilities(
            model.network, preprocess.apply(model.preprocess, inputs, "cpu"), temperature=model.temperature
        )
        differences.append(np.abs(session.run(["probabilities"], given)[0] - expected).max())
    return float(np.max(differences))  # NaN if one of them is


def _batches_to_check(run: Run, front: Front) -> tuple[list[Batch], str]:
    """Return rows spread over the training data, some more than once if it is small, in batches, and a name for them."""
    token = DOWNLOADS.set(False)  # exporting must not start a download
    try:
        data = run.data()
        numbers = np.arange(CHECKED_ROWS) * data.num_rows // CHECKED_ROWS
        raw = take(data.dataset.raw, data.dataset.train_rows[numbers])
        which = f"{min(CHECKED_ROWS, data.num_rows)} training rows"
    except SelfensError:
        which = f"blank rows only, since the training data, {run.config.source.title}, cannot be loaded"
        raw = None if front.probes is None else take(front.probes, np.arange(CHECKED_ROWS) % len(front.probes))
    finally:
        DOWNLOADS.reset(token)
    parts = np.split(np.arange(CHECKED_ROWS), SPLITS)
    if raw is None:
        shapes = {name: tuple(int(side) for side in row.shape) for name, row in front.takes.items()}
        zeros = [
            {name: np.zeros((len(part), *shapes[name]), front.takes[name].type) for name in shapes} for part in parts
        ]
        return [Batch(each, None) for each in zeros], which
    encoded = run.encoder.transform(raw).inputs
    if front.feed is None:
        return [Batch({INPUT: encoded[part]}, encoded[part]) for part in parts], which
    own = not run.encoder.needs_images  # features of images may have been computed by another machine
    return [Batch(front.feed(take(raw, part)), encoded[part] if own else None) for part in parts], which
