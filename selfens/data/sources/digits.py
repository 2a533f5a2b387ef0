"""scikit-learn's digits: 1,797 real images of 8x8 pixels, with 50 test rows per class."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from selfens.data.dataset import Dataset
from selfens.data.sources.base import Peek, Source, SourceOptions

TEST_ROWS_PER_CLASS = 50


@final
class Digits(Source):
    @dataclass(frozen=True, kw_only=True)
    class Options(SourceOptions):
        name: ClassVar[str] = "digits"
        is_public: ClassVar[bool] = True

    noun = "a public data set"

    def peek(self) -> Peek:
        return Peek(rows=1297, image_side=8, why="because digits cannot be mirrored")

    def load(self, *, seed: int, side: int | None, progress: bool) -> Dataset:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        order = np.random.default_rng(seed).permutation(len(labels))
        chosen = [order[labels[order] == digit][:TEST_ROWS_PER_CLASS] for digit in range(10)]
        test = np.zeros(len(labels), dtype=bool)
        test[np.concatenate(chosen)] = True
        train = images[~test], labels[~test]
        return Dataset.from_arrays(*train, images[test], labels[test], classes=tuple("0123456789"), name="digits")
