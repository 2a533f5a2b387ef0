"""Encoder: from raw examples to the arrays that are trained on. One file per encoder; `ENCODERS` lists them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from numpy.typing import NDArray
from torch import nn

from selfens.data.rows import Array, Rows
from selfens.settings import NamedOptions


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(NamedOptions):
    """The options of an encoder; a subclass adds its fields. `config.encoder` is one of these."""

    section: ClassVar[str] = "encoder"

    @property
    def summary(self) -> str:
        """What inputs are, in a few words; empty if there is nothing to say."""
        return ""

    @property
    def code(self) -> str | None:
        """The package.module:factory of a user's own that is imported, if there is one."""
        return None


class Encoded(NamedTuple):
    """What `transform` returns."""

    inputs: Array
    """[rows, ...] floats, or bytes of images."""
    notes: tuple[str, ...] = ()
    """What a person should know about the rows, such as cells that could not be read."""
    keys: Array | None = None
    """[rows, ...] what identifies the rows exactly, if `inputs` may differ in the last digits on another machine."""
    work: str = ""
    """What was computed, if it may take long."""


class RawRow(NamedTuple):
    """A row that an exported file takes."""

    shape: tuple[int, ...]
    type: str = "float32"
    range: list[float] | None = None
    """The smallest and the largest value in training, if they matter."""


@dataclass(frozen=True)
class Shown:
    """What a person sees of some rows."""

    images: NDArray[Any] | None = None
    """[rows, channels, height, width]"""
    cells: Mapping[str, list[str]] = field(default_factory=dict)
    """Strings by column, one for each row."""


class Encoder(ABC):
    """Subclasses are final. To add one, write a file and name it in `ENCODERS`.

    An encoder is fitted on training rows only. What it has learned is plain data (`to_dict`), which a run keeps.
    """

    Options: ClassVar[type[EncoderOptions]]
    is_scaled: ClassVar[bool] = False
    """Its inputs are on one scale already, so preprocessing and baselines leave them as they are."""
    learns: ClassVar[bool] = False
    """What `fit` learns depends on the rows, so cross-validation fits it again in every fold."""
    needs_images: ClassVar[bool] = False
    """It takes images and returns vectors."""
    image_side: int | None = None
    """The side in pixels that images must have; None if it takes them as they are."""
    module: nn.Module | None = None
    """The network from images to inputs, if it is one: exported in one file with the rest."""
    key: str = ""
    """A hash of what decides the inputs besides the raw rows, such as weights."""
    notes: tuple[str, ...] = ()
    """What a person should know about the fit."""

    options: Any
    """An instance of `Options`."""

    def __init__(self, options: Any = None, device: torch.device | str = "cpu") -> None:
        self.options, self.device = self.Options() if options is None else options, torch.device(device)

    @abstractmethod
    def fit(self, raw: Any, rows: Rows) -> None:
        """Learn from these rows of the raw examples, which are the training rows."""

    @abstractmethod
    def accept(self, given: Any, where: str, what: str = "the inputs") -> Any:
        """Return what a caller passes to predict on in the form of raw examples, or refuse it.

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

    def exported_input(self, input_shape: tuple[int, ...]) -> RawRow:
        """Return what an exported file takes: inputs of this shape, or a raw row if the encoder is in the file."""
        return RawRow(input_shape)

    def to_dict(self) -> dict[str, Any]:
        """Return what was learned, as data that JSON can hold."""
        return {}

    def restore(self, learned: Mapping[str, Any]) -> None:  # noqa: B027
        """Take over what `to_dict` returned, after JSON; ValueError, TypeError or KeyError if it is something else."""

    def __str__(self) -> str:
        """Say in one line how inputs are made; empty if there is nothing to say."""
        return ""
