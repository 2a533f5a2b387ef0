"""CIFAR-10, CIFAR-100 and SVHN from their official files. Missing files are downloaded."""

import os
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, final

from selfens.data import official_files
from selfens.data.dataset import Dataset
from selfens.data.sources.base import Peek, Source, SourceOptions
from selfens.errors import plural
from selfens.settings import setting

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}
ROWS = {"cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "svhn": (73_257, 26_032)}
"""Training and test images of each data set."""

DOWNLOADS = ContextVar("DOWNLOADS", default=True)
"""Whether missing files may be downloaded."""


@final
class Official(Source):
    @dataclass(frozen=True, kw_only=True)
    class Options(SourceOptions):
        name: ClassVar[str] = "official"
        is_public: ClassVar[bool] = True
        dataset: Literal["cifar10", "cifar100", "svhn"] = setting("cifar10", "Which data set.")
        folder: str | None = setting(
            None, "Where the files are; none: $SELFENS_DATA, else the user's cache.", is_path=True, affects_result=False
        )

        @property
        def title(self) -> str:
            return self.dataset

    noun = "a public data set"

    def peek(self) -> Peek:
        return Peek(rows=ROWS[self.options.dataset][0], image_side=32, flips=self.options.dataset != "svhn")

    def load(self, *, seed: int, side: int | None, progress: bool) -> Dataset:
        offline = not DOWNLOADS.get() or os.environ.get("SELFENS_OFFLINE", "") not in ("", "0")
        name, folder = self.options.dataset, data_folder(self.options.folder)
        train, test, classes = official_files.load(name, folder, offline=offline, progress=progress)
        data = Dataset.from_arrays(*train, *test, classes=classes, layout="NCHW", name=name)
        return replace(data, source=self.options)

    def warning(self) -> str:
        name = self.options.dataset
        files = official_files.altered_files(name, data_folder(self.options.folder))
        if not files:
            return ""
        found = f"{plural(len(files), f'{TITLES[name]} file')} {'does' if len(files) == 1 else 'do'} not match"
        first = f"the published MD5 checksums (the first: {files[0]})"
        return f"{found} {first}; results may differ from those on the official data."


def data_folder(folder: str | Path | None = None) -> Path:
    """Return `folder` if given, else $SELFENS_DATA, else a folder in the user's cache."""
    if chosen := folder or os.environ.get("SELFENS_DATA"):
        return Path(chosen).expanduser()
    import platformdirs  # not needed, and perhaps not installed, if the folder is given

    return platformdirs.user_cache_path("selfens") / "data"
