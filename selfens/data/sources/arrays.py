"""Arrays saved by numpy: an .npz file, or a folder of .npy files, with x_train, y_train and optionally x_test, y_test."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from selfens.data.arrays import image_side, npz_shape, read_npy, read_npz
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.sources.base import PathOptions, Peek, Source
from selfens.errors import DataError

NAMES = ("x_train", "y_train", "x_test", "y_test", "classes")


@final
class Arrays(Source):
    """Inputs in .npy files are memory-mapped if they are uint8 or float32, so they may be larger than memory."""

    @dataclass(frozen=True, kw_only=True)
    class Options(PathOptions):
        name: ClassVar[str] = "arrays"

    noun = "a file of arrays"

    @classmethod
    def matches(cls, path: Path) -> bool:
        return path.suffix in (".npz", ".npy") or _is_npy_folder(path)

    def peek(self) -> Peek:
        path = Path(self.options.path)
        shape = npz_shape(path, "x_train") if path.suffix == ".npz" else None
        if shape is None:
            shape = self._arrays()["x_train"].shape
        why = "because arrays do not say whether left and right matter"
        return Peek(rows=shape[0] if shape else 0, image_side=image_side(shape), why=why)

    def load(self, *, seed: int, side: int | None, progress: bool) -> Dataset:
        arrays, path = self._arrays(), self.options.path
        names = arrays.get("classes")
        if names is not None and names.ndim != 1:
            raise DataError(f"classes in {path} have shape {names.shape}; expected one name for each class.")
        classes = None if names is None else [*map(str, names)]
        train, test = (arrays["x_train"], arrays["y_train"]), (arrays.get("x_test"), arrays.get("y_test"))
        return Dataset.from_arrays(*train, *test, classes=classes, name=path)

    def read(self, *, side: int | None, progress: bool) -> Dataset:
        """Read the array `x` of a file, or its only array; of a folder, x_train."""
        path = Path(self.options.path)
        if path.suffix != ".npz":
            raw = read_npy(path if path.suffix == ".npy" else path / "x_train.npy")
        else:
            arrays = read_npz(path)
            if "x" not in arrays and len(arrays) != 1:
                raise DataError(f"{path} holds {', '.join(sorted(arrays)) or 'no arrays'}; name the inputs 'x'.")
            raw = arrays["x"] if "x" in arrays else next(iter(arrays.values()))
        return Dataset.unlabeled(raw, name=str(path))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name; those of a folder are memory-mapped."""
        path = Path(self.options.path)
        if path.suffix == ".npy":
            raise DataError(f"{path} is a single array; save x_train and y_train together with numpy.savez.")
        paths = [path / f"{name}.npy" for name in NAMES]
        is_folder = _is_npy_folder(path)
        arrays = {each.stem: read_npy(each) for each in paths if each.exists()} if is_folder else read_npz(path)
        if "x_train" not in arrays:
            found = ", ".join(sorted(arrays)) or "no arrays"
            raise DataError(f"{path} holds {found}; expected x_train and y_train (and x_test, y_test for a test set).")
        return {"y_train": np.full(len(arrays["x_train"]), UNLABELED)} | arrays


def _is_npy_folder(path: Path) -> bool:
    return os.path.isfile(path / "x_train.npy")  # also False if the folder cannot be read
