"""CSV, Parquet and JSON Lines files as pandas DataFrames. pandas is imported only to read one."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Any

from selfens.errors import DataError, listed, plural, require
from selfens.files import check_regular
from selfens.files.tables import NOT_UTF8, read_lines

DECIMAL_COMMA, THOUSANDS = r"^[-+]?[\d.]*,\d+(e[-+]?\d+)?$", r"^[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$"
THOUSANDS_WITH_POINTS, DECIMAL_POINT = r"^[-+]?[1-9]\d{0,2}(\.\d{3})+$", r"^[-+]?\d*\.\d+(e[-+]?\d+)?$"
JSON_LINES = (".jsonl", ".ndjson")
HEADER = 2**20  # characters in which the first line of a CSV must end

Frame = Any
"""A pandas DataFrame. Those read from a file have the attrs `COMMA` and `NOTES`."""
COMMA, NOTES, TEXT = "selfens.comma", "selfens.notes", "selfens.text"
"""Keys of attrs: how numbers are written, notes for the user on how the file was read, and the columns named as text."""


class Convention(Enum):
    """How numbers are written. A type of ours, because a user's DataFrame may have anything in its attrs."""

    DECIMAL_COMMA = auto()


class TextColumns(tuple[str, ...]):
    """The columns that the user named as text. A type of ours for the same reason."""


def has_decimal_comma(frame: Frame) -> bool:
    return frame.attrs.get(COMMA) is Convention.DECIMAL_COMMA


def named_texts(frame: Frame) -> tuple[str, ...]:
    """Return the columns that the user named as text. Other columns of text are recognized by their cells."""
    found = frame.attrs.get(TEXT)
    return found if isinstance(found, TextColumns) else ()


def text_frame(texts: Sequence[Any], column: str = "text") -> Frame:
    """Return a table with these texts as its only column. None counts as an empty text; invalid Unicode is replaced."""
    require("text", "training on texts", "pandas")
    import pandas

    valid = [text.encode("utf-8", "replace").decode() if isinstance(text, str) else text for text in texts]
    frame = pandas.DataFrame({column: pandas.Series(valid, dtype=object)})
    frame.attrs[TEXT] = TextColumns([column])
    return frame


def is_table(path: str | Path) -> bool:
    return str(path).lower().endswith((".csv", ".tsv", ".parquet", *JSON_LINES))


def column_names(path: Path) -> list[str]:
    """Return the column names of a table. Only the beginning of a CSV is read."""
    if path.suffix.lower() in JSON_LINES:
        return list(dict.fromkeys(name for record in read_records(path) for name in record))
    with _file_errors(path):
        if path.suffix.lower() == ".parquet":
            from pyarrow import parquet

            return list(parquet.read_schema(path).names)
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:  # file names may not be UTF-8
            return next(read_lines(lines.read(HEADER))[1], (0, []))[1]


def count_rows(path: Path) -> int:
    """Return the number of rows of a table, at least 1. For a CSV it is an estimate: the lines below the first."""
    with _file_errors(path):
        if path.suffix.lower() == ".parquet":
            from pyarrow import parquet

            return parquet.read_metadata(path).num_rows or 1
        with path.open("rb") as lines:
            return max(sum(not line.isspace() for line in lines) - 1, 1)


def read_frame(path: Path) -> Frame:
    """Return the rows of a table, indexed by their number in the file; the cells of a CSV are strings."""
    if not is_table(path):
        raise DataError(f"{path} is not a table; expected a .csv, .tsv, .parquet or .jsonl file.")
    require("tables", f"the table {path}", "pandas")
    with _file_errors(path):
        import pandas

        if path.suffix.lower() in JSON_LINES:
            frame, attrs = pandas.DataFrame(read_records(path)), dict[str, Any]()
            nested = [name for name in frame.columns if any(isinstance(cell, list | dict) for cell in frame[name])]
            if nested:
                columns = f"column{'s' * (len(nested) > 1)} {listed([repr(name) for name in nested])}"
                attrs = {NOTES: [f"{columns}: left out, because cells are JSON lists or objects."]}
                frame = frame.drop(columns=nested)
        elif path.suffix.lower() == ".parquet":
            stored = pandas.read_parquet(path, engine="pyarrow")
            frame, attrs = stored.reset_index(drop=not any(stored.index.names)), {}
        else:
            separator, numbered = read_lines(path.read_bytes().decode("utf-8-sig"))
            header, short, rows = next(numbered, (0, []))[1], list[int](), list[list[str]]()
            for number, line in numbered:
                if len(line) > len(header):
                    raise ValueError(f"expected {len(header)} cells in line {number}, found {len(line)}")
                if len(line) < len(header):
                    short.append(number)
                rows.append(line + [""] * (len(header) - len(line)))
            frame = pandas.DataFrame(rows, columns=header, dtype=str)
            # Spreadsheets add empty columns.
            frame = frame.loc[:, (frame != "").any().to_numpy() | (frame.columns != "")]
            commas = _first(frame, DECIMAL_COMMA, THOUSANDS)
            points = _first(frame, DECIMAL_POINT, THOUSANDS_WITH_POINTS) if commas or separator == ";" else ""
            comma = bool(commas or (separator == ";" and not points))
            first = f"; the first is line {short[0]}, and missing cells count as empty." if short else ""
            attrs = {
                COMMA: Convention.DECIMAL_COMMA if comma else None,
                NOTES: [f"{plural(len(short), 'line')} with too few cells{first}"] if short else [],
            }
            if commas and points:
                attrs[NOTES].append(f"numbers with a decimal comma ({commas}) and with a decimal point ({points}).")
            elif comma and not commas and (pointed := _first(frame, THOUSANDS_WITH_POINTS)):
                cell = pointed.rpartition(": ")[2]
                attrs[NOTES].append(
                    f"{pointed} is read as {cell.replace('.', '')}, because semicolons separate the cells, which goes with "
                    f"decimal commas; if points are decimal, write one number with other than three decimals ({cell}0)."
                )
    if not len(frame):
        raise DataError(f"{path} has no rows{'' if path.suffix.lower() in JSON_LINES else ' below its header'}.")
    frame = check_frame(frame)
    frame.attrs = attrs
    return frame


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file, one per line. Empty lines are skipped."""
    with _file_errors(path):
        records = []
        for number, line in enumerate(path.read_bytes().decode("utf-8-sig").split("\n"), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                if r"\ud" in line.lower():  # half a pair of surrogates, of a text that was cut, is no valid Unicode
                    record = json.loads(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                raise ValueError(f'line {number} is not a JSON object such as {{"text": "...", "label": "..."}}')
            records.append(record)
        return records


def _first(frame: Frame, pattern: str, but_not: str = r"^$") -> str:
    """Return the column and the cell of the first column with a cell that matches only the first pattern, or ""."""
    for number, name in enumerate(frame.columns):
        cells = frame.iloc[:, number]
        found = cells[cells.str.fullmatch(pattern) & ~cells.str.fullmatch(but_not)]
        if len(found):
            return f"column '{name}': {found.iloc[0]}"
    return ""


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Turn any exception from reading a damaged table into one sentence."""
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
    """Return True for a pandas DataFrame."""
    return hasattr(given, "iloc") and hasattr(given, "columns")


def check_frame(frame: Frame) -> Frame:
    """Return a user's DataFrame with strings as column names; refuse duplicates, and tables that are not pandas'."""
    if not is_frame(frame):
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
        raise DataError(f"a {kind} was given as a table; expected a pandas DataFrame (convert it with to_pandas).")
    names = [str(name).strip() for name in frame.columns]
    if len(set(names)) < len(names):
        raise DataError(f"the table has two columns named '{max(names, key=names.count)}'; give each its own name.")
    return frame.set_axis(names, axis=1)
