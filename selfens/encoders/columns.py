"""The columns of a table as vectors.

Missing numbers become the median, and numbers are scaled to zero mean and unit variance; so are dates, in days. A
column of strings gets an input for each frequent value, 1 for this value and 0 otherwise, so two different strings are
about as far apart as two numbers. One factor makes the vectors as long as standardized ones. The fit uses
scikit-learn's transformers, and what they learn is kept as plain data.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from selfens.data.cells import DATES, as_numbers, as_text, is_identifier, kind_of, unit_notes
from selfens.data.frames import check_frame, has_decimal_comma, is_frame
from selfens.data.rows import Rows
from selfens.encoders.base import Encoded, Encoder, EncoderOptions, Shown
from selfens.errors import ConfigError, DataError, listed, plural
from selfens.settings import Section, field_types, setting

MAX_INPUTS = 50  # of a column of strings
MAX_SHOWN = 6  # columns of a row that is shown
MAX_NAMES = 12  # columns of one kind that are listed
LARGEST, LARGE = 1e30, "infinite or too large"  # the square of a larger number overflows float32
SAME = "is the same in each row"
KINDS = {"number": "numbers", "date": "dates", "category": "categories"}


@dataclass(frozen=True, kw_only=True)
class Column(Section):
    """How the cells of one column become inputs."""

    section: ClassVar[str] = "column"
    name: str
    kind: Literal["number", "date", "category"]
    format: str = setting("", "Of dates, which become days since 1970.")
    fill: float = setting(0.0, "In place of a missing number.")
    mean: float = 0.0
    scale: float = setting(1.0, "The standard deviation.", above=0)
    values: tuple[str, ...] = setting((), "Strings with an input each; a missing one is empty.")
    rare: bool = setting(False, "All other strings share one more input; otherwise they have none.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({text for text in self.values if isinstance(text, str)}) < len(self.values):
            raise ConfigError(f"the values of column '{self.name}' are {self.values!r}; expected distinct strings.")
        if self.format not in (DATES if self.kind == "date" else [""]):
            raise ConfigError(f"column '{self.name}', a {self.kind}, cannot have the format '{self.format}'.")

    @property
    def width(self) -> int:
        return len(self.values) + self.rare if self.kind == "category" else 1

    def encode(self, cells: Any, comma: bool) -> tuple[NDArray[np.float64], int, int]:
        """Return [rows, width] inputs, and how many cells count as missing: not of this kind, or too large."""
        import pandas

        if self.kind == "category":
            positions = pandas.Index(self.values, dtype=object).get_indexer(as_text(cells))
            inputs = np.zeros((len(cells), len(self.values) + 1))
            inputs[np.arange(len(cells)), positions] = 1  # other values have position -1, the last input
            return inputs[:, : self.width], 0, 0
        numbers, known = as_numbers(cells, self.format, comma)
        filled = np.where(np.abs(numbers) <= LARGEST, numbers, self.fill)
        unreadable, large = known & np.isnan(numbers), np.abs(numbers) > LARGEST
        return ((filled - self.mean) / self.scale)[:, None], int(unreadable.sum()), int(large.sum())


@final
class ColumnsEncoder(Encoder):
    """Each column by its kind: numbers, dates and categories."""

    @dataclass(frozen=True, kw_only=True)
    class Options(EncoderOptions):
        name: ClassVar[str] = "columns"

    is_scaled = True
    columns: tuple[Column, ...] = ()
    names: tuple[str, ...] = ()
    """All columns that the table had."""
    unused: Mapping[str, str] = {}
    """Columns that are not inputs, and why."""

    def fit(self, raw: Any, rows: Rows) -> None:
        _check_table(raw)
        frame = raw.iloc[rows]
        fitted = {name: _fit_column(frame[name], has_decimal_comma(frame)) for name in frame.columns}
        self.names = tuple(frame.columns)
        self.columns = tuple(found for found in fitted.values() if isinstance(found, Column))
        self.unused = {name: found for name, found in fitted.items() if isinstance(found, str)}
        if not self.columns:
            raise DataError(f"the table has no column to learn from; {self}.")
        numeric = {column.name for column in self.columns if column.kind != "category"}
        self.notes = unit_notes(frame, [name for name in self.names if name not in numeric])

    def accept(self, given: Any, where: str, what: str = "the inputs") -> Any:
        """Take a DataFrame, or an array with the columns of the training table in the same order."""
        from pandas import DataFrame

        shape = np.shape(given)
        if shape and not shape[0]:
            raise DataError(f"{what} are empty; expected at least one row.")
        if hasattr(given, "columns"):
            return check_frame(given)
        if len(shape) != 2 or shape[1] != len(self.names):
            trained = f"{where} was trained on a table of {plural(len(self.names), 'column')} ({listed(self.names)})"
            raise DataError(f"{what} have shape {shape}; {trained}; pass a DataFrame.")
        return DataFrame(given, columns=list(self.names))

    def transform(self, raw: Any, *, progress: bool = False) -> Encoded:
        _check_table(raw)
        names = list(raw.columns)
        if missing := [name for name in self.used if name not in names]:
            others = [name for name in names if name not in self.names]
            besides = f"; its other columns are {listed(others)}" if others else ""
            lacks = f"{len(missing)} of the {len(self.used)} columns that were trained on: {listed(missing)}"
            raise DataError(f"the table lacks {lacks}{besides}.")
        inputs, start, unseen, notes = np.empty((len(raw), self.width), np.float32), 0, list[str](), list[str]()
        for column in self.columns:
            with np.errstate(over="ignore"):  # what overflows float32 becomes infinite and is refused, with its row
                made, unreadable, large = column.encode(raw[column.name], has_decimal_comma(raw))
                inputs[:, start : start + column.width] = made
            if column.kind == "category" and not made[:, : len(column.values)].any():
                unseen.append(f"'{column.name}'")
            start += column.width
            for count, what in ((unreadable, f"not a {column.kind}"), (large, LARGE)):
                if count:
                    notes.append(f"column '{column.name}': {plural(count, 'cell')} ({what}) taken as missing.")
        if unseen and len(raw):
            columns = f"column{'s' * (len(unseen) > 1)} {listed(unseen)}"
            notes.append(f"none of the values in {columns} occurred in training; are they written differently?")
        if ignored := [f"'{name}'" for name in names if name not in self.names]:
            notes.append(f"columns that were not trained on are ignored: {listed(ignored)}.")
        inputs *= math.sqrt(self.width / len(self.columns))  # then they are as long as standardized vectors
        return Encoded(inputs, tuple(notes))

    def show(self, raw: Any, rows: Rows) -> Shown:
        some = raw.iloc[rows]
        return Shown(cells={name: [*as_text(some[name], missing=())] for name in self.used[:MAX_SHOWN]})

    def to_dict(self) -> dict[str, Any]:
        columns = [asdict(column) for column in self.columns]
        return {"columns": columns, "width": self.width, "names": list(self.names), "unused": dict(self.unused)}

    def restore(self, learned: Mapping[str, Any]) -> None:
        if any(isinstance(each["values"], str) for each in learned["columns"]):
            raise TypeError("the values of a column are one string")
        if any(each.keys() != field_types(Column).keys() for each in learned["columns"]):
            raise KeyError("a field of a column is missing")
        self.columns = tuple(Column(**{**each, "values": tuple(each["values"])}) for each in learned["columns"])
        self.names = tuple(map(str, learned["names"]))
        self.unused = {str(name): str(reason) for name, reason in learned["unused"].items()}
        if len(set(self.used)) < len(self.columns) or not self.columns or self.width != learned["width"]:
            raise ValueError("columns are missing, or two have one name")

    @property
    def used(self) -> tuple[str, ...]:
        """The names of the columns that are inputs."""
        return tuple(column.name for column in self.columns)

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def __str__(self) -> str:
        used = []
        for kind, several in KINDS.items():
            if names := [column.name for column in self.columns if column.kind == kind]:
                used.append(f"{plural(len(names), kind, several)} ({listed(names, MAX_NAMES)})")
        others = [f"{repr(name) if name else 'a column without a name'} {why}" for name, why in self.unused.items()]
        return "; ".join([f"inputs: {', '.join(used) or 'none'}", *others])


def _check_table(raw: Any) -> None:
    if not is_frame(raw):
        raise DataError("the encoder 'columns' takes a table, but the rows are arrays; use the encoder 'identity'.")


def _fit_column(cells: Any, comma: bool) -> Column | str:
    """Return how a column becomes inputs, or why nothing can be learned from it."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    kind, date_format = kind_of(cells, comma)
    if is_identifier(cells, kind):
        return "differs in each row"
    if kind == "category":
        encoder = OneHotEncoder(min_frequency=2, max_categories=MAX_INPUTS, handle_unknown="infrequent_if_exist")
        rare = encoder.fit(as_text(cells).to_numpy(object)[:, None]).infrequent_categories_[0]
        values = encoder.categories_[0] if rare is None else np.setdiff1d(encoder.categories_[0], rare)
        column = Column(name=cells.name, kind=kind, values=tuple(map(str, values)), rare=rare is not None)
        if column.width > 1:
            return column
        return SAME if rare is None else "has no value twice"
    numbers, known = as_numbers(cells, date_format, comma)
    if not known.any():
        return "is empty"
    numbers = np.where(np.abs(numbers) <= LARGEST, numbers, np.nan)[:, None]
    if np.isnan(numbers).all():
        return f"is {LARGE}"
    if np.nanmin(numbers) == np.nanmax(numbers):
        return SAME
    imputer, scaler = SimpleImputer(strategy="median"), StandardScaler()
    scaler.fit(imputer.fit_transform(numbers))
    fill, mean, scale = (float(found[0]) for found in (imputer.statistics_, scaler.mean_, scaler.scale_))
    return Column(name=cells.name, kind=kind, format=date_format, fill=fill, mean=mean, scale=scale)
