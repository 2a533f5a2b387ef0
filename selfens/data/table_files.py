"""Files of tables, CSV and Parquet, and the frames that they are read into. pandas is imported only to read one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from selfens.errors import DataError, require
from selfens.files import check_regular
from selfens.files.tables import from_cell

DECIMAL_COMMA, THOUSANDS = r"^[-+]?[\d.]*,\d+(e[-+]?\d+)?$", r"^[-+]?\d{1,3}(,\d{3})+(\.\d*)?$"
HEADER = 2**20  # characters, in which the first line of a CSV is found
NOT_UTF8 = "it is not UTF-8 text; save it as UTF-8"

Frame = Any  # a pandas DataFrame; its attribute "comma" says that numbers are written with a decimal comma


def is_table(source: str | Path) -> bool:
    return str(source).lower().endswith((".csv", ".tsv", ".parquet"))


def column_names(path: Path) -> list[str]:
    """The names of a table's columns; of a CSV, only the beginning is read."""
    with _file_errors(path):
        if path.suffix.lower() == ".parquet":
            from pyarrow import parquet

            return list(parquet.read_schema(path).names)
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:  # names of images may not be UTF-8
            text = lines.read(HEADER)
        return _first_line(text, _separator(text))


def count_rows(path: Path) -> int:
    """About how many rows a table has, at least 1; of a CSV, how many lines."""
    with _file_errors(path):
        if path.suffix.lower() == ".parquet":
            from pyarrow import parquet

            return parquet.read_metadata(path).num_rows or 1
        with path.open("rb") as lines:
            return sum(line.endswith(b"\n") for line in lines) or 1


def read_frame(path: Path) -> Frame:
    """The rows of a table, by their numbers in it; the cells of a CSV are texts."""
    require("tables", f"the table {path}", "pandas")
    with _file_errors(path):
        import pandas

        if path.suffix.lower() != ".parquet":
            text = path.read_bytes().decode("utf-8-sig")
            separator = _separator(text)
            lines = pandas.read_csv(
                io.StringIO(text), sep=separator, header=None, dtype=str, na_filter=False, skipinitialspace=True
            ).apply(lambda cells: cells.map(from_cell) if cells.str.startswith('"').any() else cells)
            frame = lines[1:].set_axis(lines.iloc[0].tolist(), axis=1).reset_index(drop=True)
            filled = frame != ""  # spreadsheets add empty lines and columns
            frame = frame.loc[filled.any(axis=1).to_numpy(), filled.any(axis=0).to_numpy() | (frame.columns != "")]
            comma = separator == ";" or (separator != "," and _decimal_commas(frame))
            frame.attrs |= {"comma": comma, "short lines": _short_lines(text, lines, separator)}
        else:
            stored = pandas.read_parquet(path, engine="pyarrow")
            frame = stored.reset_index(drop=not any(stored.index.names))
    if not len(frame):
        raise DataError(f"{path} has no rows below its header.")
    return named(frame)


def _separator(text: str) -> str:
    """What separates the cells of a CSV: whatever gives the first line the most of them."""
    if "\0" in text:
        raise ValueError(NOT_UTF8)
    return max(",;\t|", key=lambda mark: len(_first_line(text, mark)))


def _decimal_commas(frame: Frame) -> bool:
    """Whether some number is written with a decimal comma, and not with commas between thousands."""
    return any(
        (cells.str.fullmatch(DECIMAL_COMMA) & ~cells.str.fullmatch(THOUSANDS)).any()
        for cells in (frame.iloc[:, number].astype(str).str.strip() for number in range(frame.shape[1]))
    )


def _short_lines(text: str, lines: Frame, separator: str) -> list[str]:
    """A remark if lines have fewer cells than the first one has, which pandas fills up; they are then empty at the end."""
    if not (lines.iloc[:, -1] == "").any():
        return []
    reader, short = csv.reader(io.StringIO(text, newline=""), delimiter=separator), list[int]()
    with suppress(csv.Error):  # a cell of 100 kB, which pandas has read
        short += (reader.line_num for line in reader if any(map(str.strip, line)) and len(line) < lines.shape[1])
    many = f"{len(short):,} lines have" if len(short) > 1 else "1 line has"
    return [f"{many} too few cells, the first is line {short[0]}; missing ones count as empty."] if short else []


def _first_line(text: str, separator: str) -> list[str]:
    """The cells of the first line that is not empty."""
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    return next(([cell.strip() for cell in line] for line in lines if any(map(str.strip, line))), [])


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Whatever a file that is no table raises, as one sentence."""
    if path.suffix.lower() == ".parquet":
        require("tables", f"the table {path}")
    try:
        check_regular(path)
        yield
    except Exception as error:  # pandas and pyarrow raise a dozen kinds for damaged files
        reason = NOT_UTF8 if isinstance(error, UnicodeDecodeError) else str(error)
        reason = " ".join((getattr(error, "strerror", None) or reason).split()).rstrip(".")
        raise DataError(f"{path} cannot be read as a table ({reason}).") from None


def is_frame(given: Any) -> bool:
    """Whether it is a table of pandas."""
    return hasattr(given, "iloc") and hasattr(given, "columns")


def named(frame: Frame) -> Frame:
    """The table with texts as the names of its columns; one that has a name twice, or is not of pandas, is refused."""
    if not is_frame(frame):
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
        raise DataError(f"a {kind} was given as a table; expected a pandas DataFrame, so convert it (to_pandas).")
    names = [str(name).strip() for name in frame.columns]
    if len(set(names)) < len(names):
        raise DataError(
            f"the table has two columns named '{max(names, key=names.count)}'; give each a name of its own."
        )
    return frame.set_axis(names, axis=1)
