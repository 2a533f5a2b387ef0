"""Images and vectors as they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from selfens.data.arrays import Range, as_trained, value_range
from selfens.data.frames import is_frame
from selfens.data.rows import Rows, take
from selfens.encoders.base import INPUT, Encoded, Encoder, EncoderOptions, Front, RawRow, Shown
from selfens.errors import DataError


@final
class Identity(Encoder):
    """Remembers shape, type and range of the training rows, so that rows on another scale are not predicted on."""

    @dataclass(frozen=True, kw_only=True)
    class Options(EncoderOptions):
        name: ClassVar[str] = "identity"

    learns = False
    shape: tuple[int, ...] = ()
    type: str = ""
    range: Range | None = None

    def fit(self, raw: Any, rows: Rows) -> None:
        _check_array(raw)
        self.shape, self.type = tuple(raw.shape[1:]), str(raw.dtype)
        self.range = value_range(take(raw, rows)) if len(self.shape) == 3 else None

    def accept(self, given: Any, where: str, what: str = "the inputs") -> Any:
        if is_frame(given):  # names of columns would be ignored
            raise DataError(f"{what} are a table, but {where} was trained on arrays; give an array.")
        return as_trained(given, self.shape, self.range, self.type == "uint8", where, what)

    def transform(self, raw: Any, *, progress: bool = False) -> Encoded:
        _check_array(raw)
        return Encoded(raw)

    def show(self, raw: Any, rows: Rows) -> Shown:
        return Shown(images=raw[rows] if raw.ndim == 4 else None)

    def front(self, input_shape: tuple[int, ...]) -> Front:
        limits = [0.0, 255.0] if self.type == "uint8" else self.range and list(self.range)
        return Front({INPUT: RawRow(self.shape, self.type, limits)})

    def to_dict(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "type": self.type, "range": self.range and list(self.range)}

    def restore(self, learned: Mapping[str, Any]) -> None:
        match learned:
            case {
                "shape": [*sides],
                "type": "uint8" | "float32" as kind,
                "range": None | [int() | float(), int() | float()] as limits,
            }:
                self.shape, self.type = tuple(sides), kind
                self.range = None if limits is None else (float(limits[0]), float(limits[1]))
                if len(sides) in (1, 2, 3) and all(type(side) is int and side > 0 for side in sides):
                    return
        raise ValueError("shape, type and range")


def _check_array(raw: Any) -> None:
    if not is_frame(raw) and raw.dtype.kind not in "buif":
        raise DataError(
            f"the encoder 'identity' takes numbers, but the rows are of type {raw.dtype}; use another encoder."
        )
    if is_frame(raw):
        raise DataError("the encoder 'identity' takes arrays, but the rows are of a table; use the encoder 'columns'.")
