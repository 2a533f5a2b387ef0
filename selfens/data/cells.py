"""Read the cells of a column as strings, numbers or dates, and decide which of these they are."""

import re
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from selfens.data.frames import DECIMAL_COMMA, THOUSANDS, THOUSANDS_WITH_POINTS, Frame, has_decimal_comma
from selfens.errors import DataError, listed

MISSING = frozenset(("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "NULL", "null", "None", "?"))
DATES = ("ISO8601", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y")
MOSTLY = 0.9  # a column holds numbers, or dates, if at least this share of its nonempty cells does
IDENTIFIER = re.compile(r"(.*[\W_])?(?i:id)|.*[a-z]I[dD]|(Unnamed: 0)?")  # the last is an index written by pandas
WITH_UNIT = r"[-+]?([^\w\s.,+-]|[A-Z]{3}\s)\s?[-+]?\d[\d.,']*|[-+]?\d[\d.,']*\s?([^\w\s.,:;/+-]\w?|[a-zA-Zµ²³/]{1,5})"
FEWEST_COUNTED, MAX_GAPS = 30, 3  # a column numbers only so many rows; and how many times as far its numbers may reach
MAX_UNITS = 3  # if there are more, they are not units but codes

WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff]{2}|[^\s\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff]+")
"""A word between spaces, or two letters of a script without spaces."""
TEXT_WORDS = 5  # a column is text if its median cell has at least this many words,
TEXT_DISTINCT = 0.2  # and at least this share of its cells are distinct
TEXT_SAMPLE = 2000  # number of cells examined

Kind = Literal["number", "date", "category", "text"]


def as_text(cells: Any, missing: Collection[str] = MISSING) -> Any:
    """Return a column as stripped strings. Missing cells become empty."""
    import pandas

    if cells.dtype.kind in "iuf":
        known = zip(cells, cells.notna(), strict=True)
        plain = [int(cell) if is_known and cell % 1 == 0 else cell for cell, is_known in known]  # 1.0 is "1"
        # Not `map`, which would turn them back into floats.
        cells = pandas.Series(plain, cells.index, dtype=object, name=cells.name)
    elif cells.dtype == object or cells.dtype.kind == "c":
        for cell in cells:
            if isinstance(cell, list | dict | set | bytes | complex | np.ndarray):
                found = type(cell).__name__
                raise DataError(
                    f"column '{cells.name}' holds values of type {found}; expected numbers, strings or dates."
                )
    is_text = isinstance(cells.dtype, pandas.StringDtype)  # much faster
    text = cells.fillna("") if is_text else cells.astype(object).where(cells.notna(), "").map(str)
    return text.str.strip().where(lambda stripped: ~stripped.isin(missing), "")


def as_numbers(cells: Any, date_format: str, comma: bool) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return a column as numbers, or dates as days since 1970, with NaN for other cells; and which cells are not empty."""
    import pandas

    if comma and cells.dtype.kind == "O" and not date_format:
        text = as_text(cells)
        pointed = text.str.contains(".", regex=False) & ~text.str.contains(",", regex=False)
        if pointed.any() and text[pointed].str.fullmatch(THOUSANDS_WITH_POINTS).all():
            cells = text.str.replace(".", "", regex=False).where(~text.str.contains(",", regex=False), text)
    if cells.dtype.kind == "O" and not date_format:
        quick = pandas.to_numeric(cells, errors="coerce")
        if quick.dtype.kind in "iuf" and quick.notna().all():  # booleans stay strings, as in a column with empty cells
            cells = quick
    known = cells.notna()
    if cells.dtype.kind == "m":
        cells = cells / pandas.Timedelta(days=1)
    if cells.dtype.kind not in ("M" if date_format else "biuf"):
        cells = as_text(cells)
        known = cells != ""
        if not date_format and cells.str.contains(",", regex=False).any():
            pattern, dropped = (DECIMAL_COMMA, ".") if comma else (THOUSANDS, ",")
            marked = cells.str.fullmatch(pattern)
            plain = cells.str.replace(dropped, "", regex=False).str.replace(",", ".", regex=False)
            cells = cells.mask(marked, plain)
        cells = cells if date_format else pandas.to_numeric(cells.where(known), errors="coerce")
    if date_format:
        dates = pandas.to_datetime(cells, format=date_format, errors="coerce", utc=True)
        epoch = pandas.Timestamp(0, tz="UTC").as_unit("s")  # nanoseconds overflow before the year 9999
        cells = (dates - epoch) / pandas.Timedelta(days=1)
    return cells.to_numpy(dtype=np.float64, na_value=np.nan), known.to_numpy()


def kind_of(cells: Any, comma: bool) -> tuple[Kind, str]:
    """Return the kind of a column, and for dates the format that reads most cells."""
    import pandas

    def share(date_format: str) -> float:
        numbers, known = as_numbers(cells, date_format, comma)
        return float((~np.isnan(numbers)).sum() / known.sum()) if known.any() else 1.0

    if cells.dtype.kind in "OiufMm" and not isinstance(cells.dtype, pandas.CategoricalDtype):
        if cells.dtype.kind in "iuf" or (cells.dtype.kind != "M" and share("") >= MOSTLY):
            return "number", ""
        shares = {date_format: share(date_format) for date_format in DATES}
        if max(shares.values()) >= MOSTLY:
            return "date", max(shares, key=lambda date_format: shares[date_format])
        if cells.dtype.kind == "O" and words_in(cells) >= TEXT_WORDS:
            return "text", ""
    return "category", ""


def words_in(cells: Any) -> float:
    """Return the number of words in the median cell of a column of strings, or 0 if too few cells are distinct."""
    if not all(isinstance(cell, str) for cell in cells[cells.notna()].iloc[:TEXT_SAMPLE]):
        return 0.0
    some = as_text(cells.iloc[:: 1 + len(cells) // TEXT_SAMPLE]).loc[lambda found: found != ""]
    if not len(some) or some.nunique() < max(TEXT_DISTINCT * len(some), 2):
        return 0.0
    return float(np.median([len(WORD.findall(text[:1000])) for text in some]))


def numbers_rows(cells: Any) -> bool:
    """Return True for different whole numbers in the order of the rows, or without large gaps: row names, counters, ids.

    Measurements are seldom so; if a file is sorted, such a column tells the order, and so the class.
    """
    numbers, known = as_numbers(cells, "", False)
    if len(numbers) < FEWEST_COUNTED or not known.all() or not np.isfinite(numbers).all() or (numbers % 1 != 0).any():
        return False
    steps = np.diff(numbers)
    in_order = (steps > 0).all() or (steps < 0).all()
    is_dense = len(np.unique(numbers)) == len(numbers) and np.ptp(numbers) < MAX_GAPS * len(numbers)
    return bool(in_order or is_dense)


def is_identifier(cells: Any, kind: Kind) -> bool:
    """Return True if the cells all differ, and the column is named like an id, numbers the rows, or holds strings."""
    if kind == "number" and numbers_rows(cells):
        return True
    if not IDENTIFIER.fullmatch(cells.name) and kind != "category":
        return False
    text = as_text(cells)
    return bool(text.is_unique and (text != "").all())


def find_identifier(frame: Frame) -> str | None:
    """Return the column that identifies rows: of those whose cells all differ, the first named like an id, else the first."""
    import pandas

    comma = has_decimal_comma(frame)
    differ = [name for name in frame.columns if is_identifier(frame[name], kind_of(frame[name], comma)[0])]
    like_ids = [name for name in differ if IDENTIFIER.fullmatch(name)]
    spans = (pandas.IntervalDtype, pandas.PeriodDtype)
    return next(iter(like_ids or [name for name in differ if not isinstance(frame[name].dtype, spans)]), None)


def unit_notes(frame: Frame, names: Sequence[str]) -> tuple[str, ...]:
    """Return a note if some of these columns, which are used as strings, hold numbers with a unit."""
    found = []
    for name in names:
        text = as_text(frame[name]).loc[lambda cells: cells != ""]
        units = text[text.str.fullmatch(WITH_UNIT)].str.replace(r"[\d.,'\s+-]", "", regex=True)
        if len(text) and len(units) >= MOSTLY * len(text) and units.nunique() <= MAX_UNITS:
            found.append(f"'{name}'")
    columns = f"column{'s' * (len(found) > 1)} {listed(found)}"
    note = f"{columns}: numbers with a unit are used as strings; remove the unit to use them as numbers."
    return (note,) if found else ()
