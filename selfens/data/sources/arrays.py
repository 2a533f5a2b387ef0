"""Arrays saved by numpy: an .npz file, or a folder of .npy files, with x_train, y_train and perhaps x_test, y_test."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np

from selfens.data.arrays import image_side, npz_shape, read_inputs, read_npy, read_npz
from selfens.data.dataset import UNLABELED, Dataset, missing_arrays
from selfens.data.sources.base import PathOptions, Peek, Source
from selfens.errors import DataError


@final
class Arrays(Source):
    @dataclass(frozen=True, kw_only=True)
    class Options(PathOptions):
        name: ClassVar[str] = "arrays"

    noun = "a file of arrays"

    @classmethod
    def matches(cls, path: Path) -> bool:
        return path.suffix in (".npz", ".npy") or _is_npy_folder(path)

    def peek(self) -> Peek:
        path = self._path()
        shape = read_npy(path / "x_train.npy").shape if _is_npy_folder(path) else npz_shape(path, "x_train")
        if shape is None:
            raise missing_arrays(read_npz(path), path)
        why = "because arrays do not say whether left and right matter"
        return Peek(rows=shape[0] if shape else 0, image_side=image_side(shape), why=why)

    def load(self, *, seed: int, side: int | None, progress: bool) -> Dataset:
        path = self._path()
        return Dataset.from_npy(path) if _is_npy_folder(path) else Dataset.from_npz(path)

    def read(self, *, side: int | None, progress: bool) -> Dataset:
        path = Path(str(self.options.path))
        raw = read_npy(path / "x_train.npy") if _is_npy_folder(path) else read_inputs(path)
        count = len(raw) if raw.ndim else 0
        nothing = np.full(count, UNLABELED)
        return Dataset(raw=raw, labels=nothing, is_test=np.zeros(count, bool), classes=(), name=str(path))

    def _path(self) -> Path:
        path = Path(str(self.options.path))
        if path.suffix == ".npy":
            raise DataError(f"{path} is a single array; save x_train and y_train together with numpy.savez.")
        return path


def _is_npy_folder(path: Path) -> bool:
    return os.path.isfile(path / "x_train.npy")  # also False if the folder cannot be read
