"""Source: where examples come from. One file per source; `selfens.data.sources.SOURCES` lists them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from selfens.data.dataset import Dataset
from selfens.settings import NamedOptions, absolute, setting


@dataclass(frozen=True, kw_only=True)
class SourceOptions(NamedOptions):
    """The options of a source; a subclass adds its fields. `config.source` is one of these."""

    section: ClassVar[str] = "source"
    is_public: ClassVar[bool] = False
    """A public data set with published results, rather than the user's data."""
    extra: str | None = setting(None, "More unlabeled rows: a path, or the name of a public data set.")

    def __post_init__(self) -> None:
        super().__post_init__()
        from selfens.data.sources import PUBLIC

        if self.extra is not None and self.extra not in PUBLIC:
            object.__setattr__(self, "extra", absolute("source.extra", self.extra))

    @property
    def title(self) -> str:
        """The name of the data in messages: a name or a path."""
        return self.name

    def is_completed_by(self, other: SourceOptions) -> bool:
        """Return True if `other` equals these options, except that the source has filled in values that are None."""
        found = asdict(other)
        same = all(value in (None, found.get(name)) for name, value in asdict(self).items())
        return type(self) is type(other) and same and self.extra == other.extra

    @property
    def summary(self) -> str:
        """What the source found in the data, in a few words; may be empty."""
        return ""


@dataclass(frozen=True, kw_only=True)
class PathOptions(SourceOptions):
    """The options of a source that reads a user's file or folder."""

    path: str | None = setting(None, "The file or folder.", is_path=True)
    hold_out: bool = setting(
        True,
        "Test on a fifth of the labeled rows, if that is at least 100 rows and the data have no test set.",
    )
    journal: int | None = setting(
        None,
        "How many lines of the journal beside the data, which holds the labels given on a page, count; none: all.",
        at_least=0,
    )

    @property
    def title(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Peek:
    """What is known about data before they are loaded; the automatic settings follow from it."""

    rows: int
    image_side: int | None = None
    """The smaller side of the images in pixels; None if the rows are not images."""
    flips: bool = False
    """Images may be mirrored, because left and right do not matter."""
    why: str = ""
    """The reason for `flips`."""


class Source(ABC):
    """Base class of sources; subclasses are final.

    Parameters
    ----------
    options
        An instance of the class's `Options`.
    """

    Options: ClassVar[type[SourceOptions]]
    noun: ClassVar[str]
    """What the source reads, in an error message: "a table"."""
    encoder: ClassVar[str] = "identity"
    """The default encoder of the rows."""

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Return True if this source can read a file or folder, judging by names."""
        return False

    @abstractmethod
    def peek(self) -> Peek:
        """Look at the data without loading them."""

    @abstractmethod
    def load(self, *, seed: int, side: int | None, progress: bool) -> Dataset:
        """Load the rows for training and for testing.

        Parameters
        ----------
        seed
            Decides the test rows, if the data have no test set of their own.
        side
            The side in pixels that the encoder requires of images, if it does.
        progress
            Show a progress bar.
        """

    def read(self, *, side: int | None, progress: bool) -> Dataset:
        """Load all rows to predict on. Labels are ignored."""
        data = self.load(seed=0, side=side, progress=progress)
        return replace(data, is_test=data.is_test & False)

    def browse(self, *, side: int | None) -> Dataset:
        """Load the rows to look at them; they need not have labels."""
        return self.load(seed=0, side=side, progress=False)

    def warning(self) -> str:
        """Return a sentence if the files are not as published, else ""."""
        return ""
