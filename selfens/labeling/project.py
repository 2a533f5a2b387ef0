"""A project: data to label, the journal beside them, and how they are encoded. Data need not have a label yet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens import auto, encoders
from selfens.core.device import resolve_device
from selfens.data import journal, sources
from selfens.data.dataset import Dataset
from selfens.data.frames import is_frame
from selfens.data.images import ImageFiles
from selfens.data.inspection import blank_rows
from selfens.data.journal import Noted
from selfens.data.rows import Rows, take
from selfens.data.sources import Peek
from selfens.data.sources.base import PathOptions
from selfens.encoders import EncoderOptions
from selfens.encoders.base import Encoded
from selfens.encoders.dataset import EncodedDataset, check_encoded
from selfens.errors import ConfigError, DataError
from selfens.runs.novelty import vectors
from selfens.runs.run import load_run
from selfens.tools import selection
from selfens.tools.selection import Suggestions

AT_ONCE = 128  # rows encoded between two reports of progress


@dataclass(frozen=True, eq=False)
class Project:
    source: PathOptions
    encoder: EncoderOptions
    data: Dataset
    """With its own labels; images are decoded when they are asked for."""

    @property
    def journal(self) -> Path:
        return journal.path_for(Path(str(self.source.path)))

    @property
    def rows(self) -> Rows:
        """The rows to label: those for training."""
        return self.data.train_rows

    def labeled(self, noted: Noted | None = None) -> Dataset:
        """Return the data with the labels of the journal as it is now; rows marked as junk stay."""
        noted = journal.read(self.journal) if noted is None else noted
        return journal.apply(self.data, replace(noted, marks={}))


def is_run(path: str | Path) -> bool:
    return os.path.isfile(Path(path) / "run.json")


def open_project(
    path: str | Path,
    *,
    encoder: EncoderOptions | None = None,
    columns: Mapping[str, Any] | None = None,
    trust_code: bool = False,
) -> Project:
    """Open data, or the data of a run.

    Parameters
    ----------
    encoder
        Used instead of the one that suits the data.
    columns
        The columns of a table: `label`, `id` and `text`.
    """
    if is_run(path):
        run = load_run(path, trust_code=trust_code, device="cpu")
        run.check_code()
        options, encoder = run.config.source, encoder or run.config.encoder
    else:
        options = sources.options_for(path, **(columns or {}))
    if not isinstance(options, PathOptions):
        raise ConfigError(f"{path} holds no data of your own; expected a folder, a table, a text file or an .npz file.")
    options = options.changed({"journal": None})
    dataset = sources.browse(options)
    if not dataset.num_train:
        raise DataError(f"{options.path} holds no examples; expected some to label.")
    shape = dataset.raw.shape[1:]
    peek = Peek(dataset.num_train, image_side=min(shape[1:]) if len(shape) == 3 else None)
    if encoder is not None and (encoder.name == "columns") != is_frame(dataset.raw):
        kind = "a table or texts" if is_frame(dataset.raw) else "images or arrays"
        raise ConfigError(
            f"the encoder '{encoder.name}' does not suit {options.path}, which holds {kind}; leave it out."
        )
    config = auto.settings_for(options, peek, encoder=encoder)  # refuses an encoder that does not suit the data
    return Project(dataset.source.changed({"journal": None}), config.encoder, dataset)


def encode(
    project: Project, tell: Callable[[int], None] = lambda done: None, device: str = "auto"
) -> tuple[EncodedDataset, NDArray[np.bool_]]:
    """Return the rows to label as vectors, and which of them are worth a label: not blank, and readable.

    `tell` is called now and then with the number of rows that are encoded.
    """
    dataset, rows = project.labeled(), project.rows
    encoder = encoders.build(project.encoder, resolve_device(device))
    raw = dataset.raw
    if isinstance(raw, ImageFiles) and encoder.image_side not in (None, raw.shape[2]):
        raw = ImageFiles(raw.paths, encoder.image_side)
        dataset = replace(dataset, raw=raw)
    encoder.fit(raw, rows)
    steps = [rows] if encoder.learns else np.array_split(rows, -(-len(rows) // AT_ONCE))
    made, usable, notes, done = [], [], [*dataset.notes, *encoder.notes], 0
    for some in steps:
        piece = replace(dataset, raw=take(raw, some)[:] if isinstance(raw, ImageFiles) else take(raw, some))
        encoded: Encoded = encoder.transform(piece.raw)
        check_encoded(encoded, encoder, len(some))
        flat = encoded.inputs if encoded.inputs.ndim == 2 else vectors(np.asarray(encoded.inputs[:])).numpy()
        made.append(np.asarray(flat, dtype=np.float32))
        usable.append(~blank_rows(piece, np.arange(len(some))))
        notes += encoded.notes
        done += len(some)
        tell(done)
    if isinstance(raw, ImageFiles) and len(raw.failures) == len(raw):
        first = next(iter(raw.failures.items()))
        raise DataError(
            f"none of the images in {dataset.name} can be read (the first: {raw.paths[first[0]]}: {first[1]})."
        )
    inputs = np.concatenate(made)
    if not np.isfinite(inputs).all():
        raise DataError(f"{dataset.name} holds NaN or infinite numbers; replace them first.")
    data = EncodedDataset(dataset, encoder, inputs, inputs[:0], (inputs, inputs[:0]), tuple(dict.fromkeys(notes)))
    return data, np.concatenate(usable)


def suggest(
    data: EncodedDataset, usable: NDArray[np.bool_], count: int, *, way: str = "cover", seed: int = 0
) -> Suggestions:
    """Suggest rows without a model, from the labels that there are."""
    scaled = data.encoder.is_scaled
    return selection.suggest(data.inputs, count, data.labels, usable=usable, standardize=not scaled, way=way, seed=seed)
