"""Tables: CSV and Parquet files with a row for each example, and DataFrames. Their cells become vectors.

A missing number becomes the median, and numbers are scaled to zero mean and unit variance; so are dates, in days. A text
becomes an input for each frequent value of its column, 1 for its own value and 0 for the others: two texts that differ are
then about as far apart as two numbers. One factor makes the vectors as long as standardized ones. scikit-learn's transformers
are fitted on the training rows; what they found is kept as plain data. pandas is imported only if there is a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from selfens.config import DataConfig
from selfens.data.dataset import Dataset
from selfens.data.folder import TEST, TRAIN, VALIDATION
from selfens.data.labels import choose_labels
from selfens.data.table_files import DECIMAL_COMMA, THOUSANDS, Frame, is_table, read_frame
from selfens.errors import ConfigError, DataError, nearest
from selfens.settings import Section, setting

MISSING = frozenset(("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "NULL", "null", "None", "?"))
UNLABELED_WORDS = (MISSING - {"None"}) | {"-1", "unlabeled", "unlabelled"}  # a class may well be called None
DATES = ("ISO8601", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y")
MOSTLY = 0.9  # of the cells that are not empty must be numbers, or dates, for a column to be one of them
MAX_INPUTS = 50  # of a column of texts
MAX_SHOWN, MAX_NAMES = 6, 12  # columns of a row that is shown, of one kind that are named
MAX_FRACTIONS = 20  # more different ones are a measurement, not classes
LARGEST, LARGE = 1e30, "infinite or too large"  # the square of a larger number is too large for float32
MAX_UNITS = 3  # more are not units, but letters that tell cells apart
LABEL = "is the label"
KINDS = {"number": "numbers", "date": "dates", "category": "categories"}
IDENTIFIER = re.compile(r"(.*[\W_])?(?i:id)|.*[a-z]I[dD]|(Unnamed: 0)?")  # the last is an index that pandas wrote
WITH_UNIT = r"[-+]?([^\w\s.,+-]|[A-Z]{3}\s)\s?[-+]?\d[\d.,']*|[-+]?\d[\d.,']*\s?([^\w\s.,:;/+-]\w?|[a-zA-Zµ²³/]{1,5})"
WHOLE, FRACTION = re.compile(r"(0|[1-9]\d{0,17})(\.0+)?", re.ASCII), re.compile(r"[-+]?\d*[.,]?\d+(e[-+]?\d+)?")
OUR_HEADERS = {"row", "label", "class", "probability", "suggested", "score", "predicted", "uncertainty"}


@dataclass(frozen=True, kw_only=True)
class Column(Section):
    """How the cells of one column become inputs."""

    section: ClassVar[str] = "column"
    name: str
    kind: Literal["number", "date", "category"]
    format: str = setting("", "Of dates, which become days since 1970.")
    fill: float = setting(0.0, "In place of a missing number.")
    mean: float = 0.0
    scale: float = setting(1.0, "The deviation.", above=0)
    values: tuple[str, ...] = setting((), "Texts that have an input each; a missing one is empty.")
    rare: bool = setting(False, "All other texts share one more input; otherwise they have none.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({text for text in self.values if isinstance(text, str)}) < len(self.values):
            raise ConfigError(f"the values of column '{self.name}' are {self.values!r}; expected texts that differ.")
        if self.format not in (DATES if self.kind == "date" else [""]):
            raise ConfigError(f"column '{self.name}', a {self.kind}, cannot have the format '{self.format}'.")

    @property
    def width(self) -> int:
        return len(self.values) + self.rare if self.kind == "category" else 1

    def encode(self, cells: Any, comma: bool) -> tuple[NDArray[np.float64], int, int]:
        """[rows, width] inputs, and how many cells count as missing: those that are no numbers or dates, and too large ones."""
        import pandas

        if self.kind == "category":
            places = pandas.Index(self.values, dtype=object).get_indexer(_texts(cells))
            inputs = np.zeros((len(cells), len(self.values) + 1))
            inputs[np.arange(len(cells)), places] = 1  # what is not among the values has the place -1, the last
            return inputs[:, : self.width], 0, 0
        numbers, known = _numbers(cells, self.format, comma)
        filled = np.where(np.abs(numbers) <= LARGEST, numbers, self.fill)
        strange, large = known & np.isnan(numbers), np.abs(numbers) > LARGEST
        return ((filled - self.mean) / self.scale)[:, None], int(strange.sum()), int(large.sum())


@dataclass(frozen=True, kw_only=True)
class Columns:
    """All that is needed to make a vector of each row of a table."""

    columns: tuple[Column, ...]
    identifier: str | None  # the column that tells rows apart
    unused: Mapping[str, str]  # other columns, and why they are no inputs

    @classmethod
    def fit(cls, frame: Frame, identifier: str | None = None, unused: Mapping[str, str] | None = None) -> Columns:
        """From the training rows.

        identifier  None: the first column that differs in each row and is named like an id, or else is of texts
        unused      columns that are no inputs, and why
        """
        import pandas

        left_out, kinds, like_ids = dict(unused or {}), {}, {}
        for name in frame.columns:
            if name not in {identifier, *left_out}:
                kinds[name], has_name = _kind(frame[name], _has_comma(frame)), IDENTIFIER.fullmatch(name) is not None
                if (has_name or kinds[name][0] == "category") and _all_differ(frame[name]):
                    left_out[name] = "differs in each row"
                    if has_name or not isinstance(frame[name].dtype, pandas.IntervalDtype | pandas.PeriodDtype):
                        like_ids[name] = has_name
        if identifier is None and like_ids:
            identifier = max(like_ids, key=lambda name: like_ids[name])  # the first of those named so
            del left_out[identifier]
        used = {name: kind for name, kind in kinds.items() if name not in {identifier, *left_out}}
        columns = _fitted(frame, used, left_out)
        found = cls(columns=columns, identifier=identifier, unused=left_out)
        if not columns:
            raise DataError(f"the table has no column to learn from; {found}.")
        return found

    def encode(self, frame: Frame, where: str = "the table") -> tuple[NDArray[np.float32], list[str]]:
        """[rows, width] inputs, and what a person should know about them; a table that lacks columns is refused."""
        names, used = list(frame.columns), [column.name for column in self.columns]
        if missing := [name for name in used if name not in names]:
            others = [name for name in names if name not in {*used, *self.unused, self.identifier}]
            besides = f"; its other columns are {', '.join(others[:20])}" if others else ""
            lacks = f"{len(missing)} of the {len(used)} columns that were trained on: {', '.join(missing[:20])}"
            raise DataError(f"{where} lacks {lacks}{besides}.")
        inputs, start, unseen = np.empty((len(frame), self.width), dtype=np.float32), 0, list[str]()
        notes = [*frame.attrs.get("short lines", ())]
        for column in self.columns:
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused, with its row
                made, strange, large = column.encode(frame[column.name], _has_comma(frame))
                inputs[:, start : start + column.width] = made
            if column.kind == "category" and not inputs[:, start : start + len(column.values)].any():
                unseen.append(f"'{column.name}'")
            start += column.width
            for count, one, many in (
                (strange, f"not a {column.kind}", f"not {KINDS[column.kind]}"),
                (large, LARGE, LARGE),
            ):
                cells = f"1 cell is {one} and counts" if count == 1 else f"{count:,} cells are {many} and count"
                notes += [f"column '{column.name}': {cells} as missing."] if count else []
        if unseen and len(frame):
            columns = f"column{'s' * (len(unseen) > 1)} {', '.join(unseen[:20])} of {where}"
            notes.append(f"training has seen none of the values in {columns}; are they written differently?")
        if ignored := [f"'{name}'" for name in names if name not in {*used, *self.unused, self.identifier}]:
            notes.append(f"ignored columns of {where} that were not trained on: {', '.join(ignored[:20])}.")
        inputs *= math.sqrt(self.width / len(used))  # then they are as long as standardized vectors, as networks expect
        return inputs, notes

    def remarks(self, frame: Frame) -> list[str]:
        """What a person should know of the columns that were found."""
        used, like_numbers = {column.name for column in self.columns if column.kind != "category"}, []
        for name in frame.columns:
            if name not in used and self.unused.get(name) != LABEL:
                text = _texts(frame[name]).loc[lambda cells: cells != ""]
                units = text[text.str.fullmatch(WITH_UNIT)].str.replace(r"[\d.,'\s+-]", "", regex=True)
                if len(text) and len(units) >= MOSTLY * len(text) and units.nunique() <= MAX_UNITS:
                    like_numbers.append(f"'{name}'")
        columns = f"column{'s' * (len(like_numbers) > 1)} {', '.join(like_numbers[:20])}"
        sentence = f"{columns}: numbers with a unit are taken for texts; to use them as numbers, remove the unit."
        return [sentence] if like_numbers else []

    def identifiers(self, frame: Frame) -> list[str]:
        """The cells that tell rows apart; none if the table has no such column."""
        return [*_texts(frame[self.identifier], missing=())] if self.identifier in frame.columns else []

    def cells(self, table: Frame, numbers: NDArray[np.int64]) -> dict[str, list[str]]:
        """What stands in these rows of the table, by column, of the first columns."""
        return {name: [*_texts(table.loc[numbers, name], missing=())] for name in table.columns[:MAX_SHOWN]}

    @property
    def header(self) -> str:
        """Of the identifiers in tables of ours."""
        return "id" if not self.identifier or self.identifier.lower() in OUR_HEADERS else self.identifier

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def __str__(self) -> str:
        used = []
        for kind, several in KINDS.items():
            if names := [column.name for column in self.columns if column.kind == kind]:
                listed = ", ".join(names[:MAX_NAMES] + ["..."] * (len(names) > MAX_NAMES))
                used.append(f"{len(names)} {several if len(names) > 1 else kind} ({listed})")
        rows = {} if self.identifier is None else {self.identifier: "identifies rows"}
        reasons = (rows | dict(self.unused)).items()
        others = [f"'{name}' {reason}" if name else f"a column without a name {reason}" for name, reason in reasons]
        return "; ".join([f"inputs: {', '.join(used) or 'none'}", *others])

    @classmethod
    def from_dict(cls, raw: Any) -> Columns:
        """What `asdict` gave, after JSON; ValueError, TypeError or KeyError if it is something else."""
        columns = tuple(Column(**{**each, "values": tuple(each["values"])}) for each in raw["columns"])
        names, identifier = {column.name for column in columns}, raw["identifier"]
        if len(names) < len(columns) or identifier in names or not isinstance(identifier, str | None):
            raise ValueError("two columns have one name, or the identifier is not a name")
        if any(isinstance(each["values"], str) for each in raw["columns"]):
            raise TypeError("the values of a column are one text")
        return cls(columns=columns, identifier=identifier, unused=dict(raw["unused"]))


# Cells


def _has_comma(frame: Frame) -> bool:
    return bool(frame.attrs.get("comma"))


def _texts(cells: Any, missing: Collection[str] = MISSING) -> Any:
    """The cells of a column as texts, without spaces around them; a missing one is empty."""
    import pandas

    if cells.dtype.kind in "iuf":
        cells = cells.astype(object).map(lambda x: int(x) if x % 1 == 0 else x, na_action="ignore")  # 1.0 is "1"
    elif cells.dtype == object or cells.dtype.kind == "c":
        for cell in cells:
            if isinstance(cell, list | dict | set | bytes | complex | np.ndarray):
                raise DataError(
                    f"column '{cells.name}' holds a {type(cell).__name__}; expected numbers, texts or dates."
                )
    is_text = isinstance(cells.dtype, pandas.StringDtype)  # much quicker
    text = cells.fillna("") if is_text else cells.astype(object).where(cells.notna(), "").map(str)
    return text.str.strip().where(lambda stripped: ~stripped.isin(missing), "")


def _all_differ(cells: Any) -> bool:
    text = _texts(cells)
    return bool(text.is_unique and (text != "").all())


def _numbers(cells: Any, form: str, comma: bool) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The cells as numbers, or as days since 1970 if there is a format; NaN if they are none. And which are not empty."""
    import pandas

    if cells.dtype.kind == "O" and not form:
        quickly = pandas.to_numeric(cells, errors="coerce")
        if (
            quickly.dtype.kind in "iuf" and quickly.notna().all()
        ):  # not True and False: those are texts if a cell is empty
            cells = quickly
    known = cells.notna()
    if cells.dtype.kind == "m":
        cells = cells / pandas.Timedelta(days=1)
    if cells.dtype.kind not in ("M" if form else "biuf"):
        cells = _texts(cells)
        known = cells != ""
        if not form and cells.str.contains(",", regex=False).any():
            pattern, dropped = (DECIMAL_COMMA, ".") if comma else (THOUSANDS, ",")
            cells = cells.str.replace(
                pattern, lambda found: found[0].replace(dropped, "").replace(",", "."), regex=True
            )
        cells = cells if form else pandas.to_numeric(cells.where(known), errors="coerce")
    if form:
        dates = pandas.to_datetime(cells, format=form, errors="coerce", utc=True)
        epoch = pandas.Timestamp(0, tz="UTC").as_unit("s")  # one in nanoseconds has no difference to the year 9999
        cells = (dates - epoch) / pandas.Timedelta(days=1)
    return cells.to_numpy(dtype=np.float64, na_value=np.nan), known.to_numpy()


def _kind(cells: Any, comma: bool) -> tuple[Literal["number", "date", "category"], str]:
    """And the format of dates: the one that reads the most cells."""
    import pandas

    def share(form: str) -> float:
        numbers, known = _numbers(cells, form, comma)
        return float((~np.isnan(numbers)).sum() / known.sum()) if known.any() else 1.0

    if cells.dtype.kind in "OiufMm" and not isinstance(cells.dtype, pandas.CategoricalDtype):
        if cells.dtype.kind in "iuf" or (cells.dtype.kind != "M" and share("") >= MOSTLY):
            return "number", ""
        shares = {form: share(form) for form in DATES}
        if max(shares.values()) >= MOSTLY:
            return "date", max(shares, key=lambda form: shares[form])
    return "category", ""


def _fitted(frame: Frame, kinds: Mapping[str, Any], unused: dict[str, str]) -> tuple[Column, ...]:
    """The columns from which something can be learned; the others are added to `unused`."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    columns, same = [], "is the same in each row"
    for name, (kind, form) in kinds.items():
        if kind == "category":
            encoder = OneHotEncoder(min_frequency=2, max_categories=MAX_INPUTS, handle_unknown="infrequent_if_exist")
            rare = encoder.fit(_texts(frame[name]).to_numpy(object)[:, None]).infrequent_categories_[0]
            values = encoder.categories_[0] if rare is None else np.setdiff1d(encoder.categories_[0], rare)
            column = Column(name=name, kind=kind, values=tuple(map(str, values)), rare=rare is not None)
            reason = "" if column.width > 1 else same if rare is None else "has no value twice"
        else:
            numbers, cells = _numbers(frame[name], form, _has_comma(frame))
            numbers = np.where(np.abs(numbers) <= LARGEST, numbers, np.nan)[:, None]
            known = numbers[~np.isnan(numbers)]
            reason = same if len(known) else f"is {LARGE}" if cells.any() else "is empty"
            if len(known) and known.min() < known.max():
                reason = ""
                imputer, scaler = SimpleImputer(strategy="median"), StandardScaler()
                scaler.fit(imputer.fit_transform(numbers))
                fill, mean, scale = (float(found[0]) for found in (imputer.statistics_, scaler.mean_, scaler.scale_))
                column = Column(name=name, kind=kind, format=form, fill=fill, mean=mean, scale=scale)
        if reason:
            unused[name] = reason
        else:
            columns.append(column)
    return tuple(columns)


# A table as a dataset


def load_table(
    options: DataConfig, *, label_seed: int = 0, split_seed: int = 0, columns: Columns | None = None
) -> Dataset:
    """The dataset of a table. A row whose label is empty is unlabeled; a column `split` says which rows are for testing.

    columns  of a run that is read again; None: fitted on the rows that are trained on
    """
    path, label, identifier = Path(options.name), str(options.label_column), options.id_column
    if not is_table(path):
        raise DataError(
            f"data.label_column is '{label}', but {path} is not a table (.csv, .tsv or .parquet); leave it out."
        )
    frame = read_frame(path)
    for name in [label] if identifier is None else [label, identifier]:
        if name not in frame.columns:
            hint, known = nearest(name, [*frame.columns]), ", ".join(frame.columns[:20])
            raise DataError(f"{path} has no column '{name}'{hint} Its first line names {known}.")
    labels = _labels(_texts(frame[label], missing=UNLABELED_WORDS), f"column '{label}' of {path}")
    train, test, unused, notes = _split(frame, label, path)
    blank, numbers = np.zeros((len(frame), 1)), frame.index.to_numpy()
    tests = (blank[test], labels[test]) if len(test) else (None, None)
    dataset = Dataset.from_arrays(blank[train], labels[train], *tests, name=str(path))
    dataset = replace(dataset, row_numbers=numbers[train], test_row_numbers=numbers[test])
    if columns is None:
        choice = choose_labels(dataset, options, label_seed=label_seed, split_seed=split_seed)
        columns = Columns.fit(frame.iloc[np.delete(train, choice.validation)], identifier, {label: LABEL} | unused)
        notes += columns.remarks(frame)
    (inputs, strange), names = columns.encode(frame, str(path)), np.array(columns.identifiers(frame), dtype=object)
    return replace(
        dataset,
        inputs=inputs[train],
        test_inputs=inputs[test],
        row_names=tuple(names[train]) if len(names) else (),
        test_row_names=tuple(names[test]) if len(names) else (),
        columns=columns,
        table=frame[[column.name for column in columns.columns]],
        notes=(*notes, *strange),
    )


def _split(
    frame: Frame, label: str, path: Path
) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[str, str], list[str]]:
    """The rows to train and to test on by the column `split`, why that is no input, and what a person should know of it."""
    words = _texts(frame["split"]).str.lower() if "split" in frame.columns and label != "split" else None
    meant = {*TRAIN, *TEST, *VALIDATION}
    if words is None or not words.isin(meant).any():  # then it is a column like any other
        return np.arange(len(frame)), np.arange(0), {}, []
    if other := sorted({*words} - meant - {""}):
        raise DataError(
            f"column 'split' of {path} says '{other[0]}'; expected train, test, val or an empty cell; if it "
            "means something else, rename it."
        )
    tested = TEST if words.isin(TEST).any() else VALIDATION
    train, test = np.flatnonzero(words.isin({*TRAIN, ""})), np.flatnonzero(words.isin(tested))
    if not len(train):
        raise DataError(f"column 'split' of {path} leaves no row to train on; expected train or an empty cell in some.")
    rest = len(frame) - len(train) - len(test)
    note = f"column 'split': rows marked val ({rest:,}) are not used, because others are marked test."
    return train, test, {"split": "says which rows are for testing"}, [note] if rest else []


def _labels(words: Any, where: str) -> NDArray[Any]:
    """The labels of a column, empty if they are unknown; whole numbers count as such, so that 10 comes after 9."""
    known = set(words) - {""}
    if known and all(map(WHOLE.fullmatch, known)):
        return np.array([int(word.partition(".")[0]) if word else "" for word in words], dtype=object)
    if len(known) > MAX_FRACTIONS and all(map(FRACTION.fullmatch, known)):
        raise DataError(
            f"{where} holds {len(known):,} different numbers, such as {min(known)}; expected a few classes."
        )
    return np.array(words, dtype=object)
