"""Encoder: from raw examples to the arrays that are trained on. One file per encoder; `ENCODERS` lists them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from numpy.typing import NDArray
from torch import nn

from selfens.data.rows import Array, Labels, Rows
from selfens.settings import NamedOptions

INPUT = "inputs"  # of an exported file that has only one


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(NamedOptions):
    """The options of an encoder; a subclass adds its fields. `config.encoder` is one of these."""

    section: ClassVar[str] = "encoder"

    @property
    def summary(self) -> str:
        """What the inputs are, in a few words; empty if there is nothing to say."""
        return ""

    @property
    def code(self) -> str | None:
        """The package.module:factory of the user that the encoder imports, if any."""
        return None


class Encoded(NamedTuple):
    """What `transform` returns."""

    inputs: Array
    """[rows, ...] floats, or bytes of images."""
    notes: tuple[str, ...] = ()
    """What a person should know about the rows, such as cells that could not be read."""
    keys: Array | None = None
    """[rows, ...] exact identities of the rows, if the last digits of `inputs` may differ on another machine."""
    work: str = ""
    """What was computed, if it may take long."""


class RawRow(NamedTuple):
    """A row that an exported file takes."""

    shape: tuple[int | str, ...]
    """A name stands for a side of any length."""
    type: str = "float32"
    range: list[float] | None = None
    """The smallest and the largest value in training, if they matter."""


@dataclass(frozen=True)
class Front:
    """How an exported file begins: what it takes, and how that becomes the inputs of the network."""

    takes: Mapping[str, RawRow]
    """By the names in the file, in the order in which `module` takes them."""
    module: nn.Module | None = None
    """Makes the inputs; None: the file takes them as they are."""
    feed: Callable[[Any], Mapping[str, Array]] | None = None
    """From raw rows to what the file takes; None: it takes the inputs."""
    probes: Any = None
    """Raw rows to check the file on if there are no others; None: zeros."""
    first: str = ""
    """What must be done before the file can be used, if it does not take raw rows: a sentence, or Python."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What this needs, by name: metadata of the file."""


@dataclass(frozen=True)
class Shown:
    """What a person sees of some rows."""

    images: NDArray[Any] | None = None
    """[rows, channels, height, width]"""
    cells: Mapping[str, list[str]] = field(default_factory=dict)
    """Strings by column, one for each row."""
    texts: list[str] | None = None
    """A text for each row, which may be long."""


class Encoder(ABC):
    """Subclasses are final. To add one, write a file and name it in `ENCODERS`.

    An encoder is fitted on training rows only. What it has learned is plain data (`to_dict`), which a run keeps.
    """

    Options: ClassVar[type[EncoderOptions]]
    is_scaled: ClassVar[bool] = False
    """The inputs are on one scale, so preprocessing and baselines leave them as they are."""
    has_features: bool = False
    """Some inputs are features that a model computes, such as those of texts."""
    learns: ClassVar[bool] = True
    """`fit` depends on the rows, so cross-validation repeats it in every fold."""
    needs_images: ClassVar[bool] = False
    """It takes images and returns vectors."""
    takes_texts: ClassVar[bool] = False
    """It takes texts, so the encoder `columns` can use it for the text columns of a table."""
    image_side: int | None = None
    """The side in pixels that images must have; None if images of any size are used as they are."""
    widths: tuple[int, ...] = ()
    """If the inputs are features of several models: how many are of each. A committee has heads on each model's."""
    key: str = ""
    """A hash of what determines the inputs besides the raw rows, such as weights."""
    notes: tuple[str, ...] = ()
    """What a person should know about the fit."""

    def __init__(self, options: Any = None, device: torch.device | str = "cpu") -> None:
        self.options: Any = self.Options() if options is None else options
        self.device = torch.device(device)

    @abstractmethod
    def fit(self, raw: Any, rows: Rows) -> None:
        """Learn from `rows`, the training rows, of the raw examples."""

    @abstractmethod
    def accept(self, given: Any, where: str, what: str = "the inputs") -> Any:
        """Return new examples, as a caller passes them, in the form of raw examples; refuse what does not fit.

        Parameters
        ----------
        where
            Name of the model in an error message.
        what
            Name of the inputs in an error message.
        """

    @abstractmethod
    def transform(self, raw: Any, *, progress: bool = False) -> Encoded:
        """Return the inputs of raw examples."""

    def show(self, raw: Any, rows: Rows) -> Shown:
        """Return what a person sees of these rows."""
        return Shown()

    def baselines(self, raw: Any, labels: Labels, test_raw: Any) -> dict[str, Labels]:
        """Return what simple methods on raw examples predict for `test_raw`, by name; `labels` are -1 if unknown."""
        return {}

    def front(self, input_shape: tuple[int, ...]) -> Front:
        """Return how an exported file begins; by default it takes inputs of this shape."""
        return Front({INPUT: RawRow(input_shape)})

    def to_dict(self) -> dict[str, Any]:
        """Return what was learned, as data that JSON can hold."""
        return {}

    def restore(self, learned: Mapping[str, Any]) -> None:  # noqa: B027
        """Invert `to_dict`, after JSON. Raise a ValueError, TypeError or KeyError for anything else."""

    def __str__(self) -> str:
        """Describe in one line how inputs are made; empty if there is nothing to say."""
        return ""
