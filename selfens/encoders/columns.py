"""The columns of a table as vectors.

Missing numbers become the median, and numbers are scaled to zero mean and unit variance; so are dates, in days. A
column of strings gets an input for each frequent value, 1 for this value and 0 otherwise, so two different strings are
about as far apart as two numbers. The fit uses scikit-learn's transformers, and what they learn is kept as plain data.

Columns of text are joined into one text per row, and encoded by one or more encoders of text. Together, text counts as
much as `TEXT_COLUMNS` standardized columns of numbers, and each of its encoders has the same share of that. One factor
makes the vectors as long as standardized ones.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from selfens import encoders
from selfens.data.cells import DATES, as_numbers, as_text, is_identifier, kind_of, unit_notes, words_in
from selfens.data.frames import check_frame, has_decimal_comma, is_frame, named_texts
from selfens.data.rows import Labels, Rows
from selfens.encoders import tfidf, wordllama
from selfens.encoders.base import Encoded, Encoder, EncoderOptions, Front, Shown
from selfens.encoders.fronts import PROBES, front_of_texts
from selfens.encoders.texts import LONGEST, TextEncoder, cut, digests
from selfens.errors import ConfigError, DataError, RunError, did_you_mean, listed, plural
from selfens.settings import Section, field_types, setting

MAX_INPUTS = 50  # of a column of strings
MAX_SHOWN = 6  # columns of a row that is shown
MAX_NAMES = 12  # columns of one kind that are listed
LARGEST, LARGE = 1e30, "infinite or too large"  # the square of a larger number overflows float32
SAME = "is the same in each row"
KINDS = {"text": "texts", "number": "numbers", "date": "dates", "category": "categories"}
TEXT_COLUMNS = 10  # as many standardized columns as text counts for
FALLBACK = (
    "texts are encoded by TF-IDF alone, because wordllama is not installed; its embeddings usually make fewer errors: "
    "pip install 'selfens[text]'"
)


@dataclass(frozen=True, kw_only=True)
class Column(Section):
    """How the cells of one column become inputs."""

    section: ClassVar[str] = "column"
    name: str
    kind: Literal["number", "date", "category", "text"]
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
        """Inputs of its own; text columns share theirs."""
        return len(self.values) + self.rare if self.kind == "category" else int(self.kind != "text")

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
    """Each column by its kind: numbers, dates, categories and text."""

    @dataclass(frozen=True, kw_only=True)
    class Options(EncoderOptions):
        name: ClassVar[str] = "columns"
        texts: tuple[str, ...] = setting(
            (),
            "Encoders of text, separated by commas; empty: wordllama and tfidf, or tfidf alone without wordllama.",
        )

        def __post_init__(self) -> None:
            given: Any = self.texts
            if isinstance(given, str):
                given = [each.strip() for each in given.split(",") if each.strip()]
            if isinstance(given, list | tuple):
                if not all(isinstance(each, str) for each in given):
                    raise ConfigError(f"encoder.texts is {given!r}; expected names of encoders.")
                object.__setattr__(self, "texts", tuple(map(_full_name, given)))
            super().__post_init__()

        @property
        def summary(self) -> str:
            return f"texts by {' and '.join(self.texts)}" if self.texts else ""

    is_scaled = True
    encoders: tuple[TextEncoder, ...] = ()
    """Of the text columns, if there are any."""
    columns: tuple[Column, ...] = ()
    names: tuple[str, ...] = ()
    """All columns that the table had."""
    unused: Mapping[str, str] = {}
    """Columns that are not inputs, and why."""
    has_decimal_comma = False
    """The training table had decimal commas, so 1,100 in another file is 1.1, too."""

    def fit(self, raw: Any, rows: Rows) -> None:
        _check_table(raw)
        frame, named = raw.iloc[rows], named_texts(raw)
        if missing := [name for name in named if name not in frame.columns]:
            hint = did_you_mean(missing[0], list(frame.columns))
            raise DataError(f"the table has no column '{missing[0]}' that could be text{hint}")
        fitted = {name: _fit_column(frame[name], has_decimal_comma(frame), name in named) for name in frame.columns}
        self.names, self.has_decimal_comma = tuple(frame.columns), has_decimal_comma(frame)
        self.columns = tuple(found for found in fitted.values() if isinstance(found, Column))
        self.unused = {name: found for name, found in fitted.items() if isinstance(found, str)}
        if not self.columns:
            raise DataError(f"the table has no column to learn from; {self}.")
        if self.options.texts and not self.text_columns:
            raise DataError(_no_text(frame, self.options.texts))
        self.encoders = tuple(self._build(name) for name in self._encoder_names()) if self.text_columns else ()
        self.key = " ".join(filter(None, (encoder.key for encoder in self.encoders)))
        texts = _strings(self._joined(frame))
        for encoder in self.encoders:
            encoder.fit(texts, np.arange(len(texts)))
        numeric = {column.name for column in self.columns if column.kind != "category"}
        notes = [*unit_notes(frame, [name for name in self.names if name not in numeric])]
        if self.encoders and not self.options.texts and not wordllama.is_installed():
            notes.append(f"{FALLBACK}.")
        self.notes = (*notes, *(note for encoder in self.encoders for note in encoder.notes))

    def accept(self, given: Any, where: str, what: str = "the inputs") -> Any:
        """Take a DataFrame, an array with the columns of the training table in the same order, or a list of texts."""
        from pandas import DataFrame, Series

        shape = np.shape(given)
        if len(shape) == 1 and shape[0] and len(self.names) == 1 and self.text_columns and not is_frame(given):
            return DataFrame({self.names[0]: Series(list(given), dtype=object)})
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
        texts, work, keys = _strings(self._joined(raw)), list[str](), None
        others = [column for column in self.columns if column.kind != "text"]
        comma = self.has_decimal_comma or has_decimal_comma(raw)
        for encoder in self.encoders:
            encoded, stop = encoder.transform(texts, progress=progress), start + len(encoder.center)
            share = TEXT_COLUMNS / len(self.encoders) / len(encoder.center)
            np.multiply(encoded.inputs, np.float32(math.sqrt(share)), out=inputs[:, start:stop])
            notes += encoded.notes
            work += [encoded.work] if encoded.work else []
            start = stop
        first = start
        for column in others:
            with np.errstate(over="ignore"):  # what overflows float32 becomes infinite and is refused, with its row
                made, unreadable, large = column.encode(raw[column.name], comma)
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
        if self.encoders:  # whose last digits depend on the machine
            cells = [row.tobytes().hex() for row in inputs[:, first:]]
            keys = digests([f"{cell} {text}" for cell, text in zip(cells, cut(texts.tolist()), strict=True)])
        count = len(others) + TEXT_COLUMNS * bool(self.encoders)
        inputs *= math.sqrt(self.width / count)  # then they are as long as standardized vectors
        return Encoded(inputs, tuple(dict.fromkeys(notes)), keys, "; ".join(work))

    def show(self, raw: Any, rows: Rows) -> Shown:
        some = raw.iloc[rows]
        names = [column.name for column in self.columns if column.kind != "text"]
        cells = {name: [*as_text(some[name], missing=())] for name in names[:MAX_SHOWN]}
        return Shown(cells=cells, texts=self._joined(some) if self.text_columns else None)

    def baselines(self, raw: Any, labels: Labels, test_raw: Any) -> dict[str, Labels]:
        if not self.text_columns:
            return {}
        return tfidf.linear_predictions(cut(self._joined(raw)), labels, cut(self._joined(test_raw)))

    def _joined(self, frame: Any) -> list[str]:
        """Return one text per row: its text columns, one below the other."""
        columns = [as_text(frame[name]).tolist() for name in self.text_columns]
        return ["\n".join(filter(None, cells)) for cells in zip(*columns, strict=True)]

    def _encoder_names(self) -> tuple[str, ...]:
        if self.options.texts:
            return tuple(self.options.texts)
        return ("wordllama", "tfidf") if wordllama.is_installed() else ("tfidf",)

    def _build(self, name: str) -> TextEncoder:
        built: TextEncoder = encoders.build(options_of(name), self.device)  # type: ignore[assignment]
        return built

    def front(self, input_shape: tuple[int, ...]) -> Front:
        """Texts alone are encoded in the file, if their encoders can be; otherwise it takes what `transform` returns."""
        names = [encoder.options.name.replace("-", "_") for encoder in self.encoders]
        names = [f"{name}_{number}" if name in names[:number] else name for number, name in enumerate(names)]
        are_alone = len(self.text_columns) == len(self.columns)
        fronts = [encoder.text_front(name) for encoder, name in zip(self.encoders, names, strict=True) if are_alone]
        found = [front for front in fronts if front is not None]
        if not found or len(found) < len(self.encoders):
            code = "encoder = ColumnsEncoder(); encoder.restore(card['encoder']); encoder.transform(frame).inputs"
            first = f"make the inputs from a table by selfens.encoders.columns: {code} ({self})"
            return replace(super().front(input_shape), first=first)
        shares = [TEXT_COLUMNS / len(self.encoders) / len(encoder.center) for encoder in self.encoders]
        longer = self.width / TEXT_COLUMNS
        scales = [
            (encoder.center, math.sqrt(share * longer) / encoder.scale)
            for encoder, share in zip(self.encoders, shares, strict=True)
        ]
        probes = _frame({name: list(PROBES) for name in self.text_columns})
        return front_of_texts(
            found, scales, lambda raw: cut(self._joined(raw)), probes, _texts_first(self.text_columns)
        )

    def to_dict(self) -> dict[str, Any]:
        columns = [asdict(column) for column in self.columns]
        about = {"columns": columns, "width": self.width, "names": list(self.names), "unused": dict(self.unused)}
        if self.has_decimal_comma:
            about["decimal_comma"] = True
        if self.encoders:
            about["texts"] = [{"encoder": _name_of(encoder), **encoder.to_dict()} for encoder in self.encoders]
        return about

    def restore(self, learned: Mapping[str, Any]) -> None:
        if any(isinstance(each["values"], str) for each in learned["columns"]):
            raise TypeError("the values of a column are one string")
        if any(each.keys() != field_types(Column).keys() for each in learned["columns"]):
            raise KeyError("a field of a column is missing")
        self.columns = tuple(Column(**{**each, "values": tuple(each["values"])}) for each in learned["columns"])
        self.names = tuple(map(str, learned["names"]))
        self.unused = {str(name): str(reason) for name, reason in learned["unused"].items()}
        self.has_decimal_comma = bool(learned.get("decimal_comma"))
        try:
            self.encoders = tuple(self._build(each["encoder"]) for each in learned.get("texts", ()))
        except ConfigError as error:  # not a damaged run, but a model that is not here
            raise RunError(str(error)) from None
        self.key = " ".join(filter(None, (encoder.key for encoder in self.encoders)))
        for encoder, kept in zip(self.encoders, learned.get("texts", ()), strict=True):
            encoder.restore(kept)
        if bool(self.text_columns) != bool(self.encoders):
            raise ValueError("text columns without encoders, or encoders without columns")
        if len(set(self.used)) < len(self.columns) or not self.columns or self.width != learned["width"]:
            raise ValueError("columns are missing, or two have one name")

    @property
    def used(self) -> tuple[str, ...]:
        """The names of the columns that are inputs."""
        return tuple(column.name for column in self.columns)

    @property
    def has_features(self) -> bool:  # type: ignore[override]
        """See `Encoder.has_features`."""
        return bool(self.text_columns)

    @property
    def text_columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.kind == "text")

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns) + sum(len(encoder.center) for encoder in self.encoders)

    def __str__(self) -> str:
        used = []
        for kind, several in KINDS.items():
            if names := [column.name for column in self.columns if column.kind == kind]:
                how = f" by {' and '.join(map(str, self.encoders))}" if kind == "text" else ""
                used.append(f"{plural(len(names), kind, several)} ({listed(names, MAX_NAMES)}){how}")
        others = [f"{repr(name) if name else 'a column without a name'} {why}" for name, why in self.unused.items()]
        return "; ".join([f"inputs: {', '.join(used) or 'none'}", *others])


def _check_table(raw: Any) -> None:
    if not is_frame(raw):
        raise DataError("the encoder 'columns' takes a table, but the rows are arrays; use the encoder 'identity'.")


def _frame(columns: Mapping[str, list[str]]) -> Any:
    from pandas import DataFrame

    return DataFrame(columns, dtype=object)


def _texts_first(names: Sequence[str]) -> str:
    """Return Python that makes the texts that are encoded of those that a person has."""
    joined = f"the columns {listed(names)} of each row, joined by line breaks, without empty ones"
    what = joined if len(names) > 1 else f"the column {names[0]} of each row"
    return f"# texts: {' '.join(what.split())}\ntexts = [text[:{LONGEST}].strip() for text in texts]\n"


def _strings(texts: Sequence[str]) -> NDArray[Any]:
    """Return an array of Python strings; numpy's own would take the memory of the longest for each."""
    return np.array(texts, dtype=object)


def options_of(name: str) -> EncoderOptions:
    """Return the options of an encoder of text, written NAME or NAME:MODEL."""
    short, colon, model = name.partition(":")
    if not encoders.ENCODERS.find(short).takes_texts:
        others = [each for each in encoders.ENCODERS if encoders.ENCODERS.find(each).takes_texts]
        raise ConfigError(f"the encoder '{short}' takes no texts; expected {listed(others)}.")
    options: EncoderOptions = encoders.ENCODERS.options(short, **({"model": model} if colon else {}))
    return options


def _full_name(name: str) -> str:
    """Return the name of an encoder of text, with the full path of a folder."""
    name = f"sentence-transformers:{name}" if os.path.isdir(name) and name not in encoders.ENCODERS else name
    short, colon, model = name.partition(":")
    is_folder = os.path.isdir(model) or model.startswith(("./", "../", "~"))
    return f"{short}:{os.path.abspath(os.path.expanduser(model))}" if is_folder else name


def _name_of(encoder: TextEncoder) -> str:
    model = getattr(encoder.options, "model", "")
    return f"{encoder.options.name}:{model}" if model else encoder.options.name


def _no_text(frame: Any, names: Sequence[str]) -> str:
    """Return the message for a table without text, with the column that is nearest to it."""
    by = f"{' and '.join(names)} {'encodes' if len(names) == 1 else 'encode'} text"
    words = {name: words_in(frame[name]) for name in frame.columns if kind_of(frame[name], False)[0] == "category"}
    advice = "name a column of text (--text COLUMN), or leave the encoder out"
    if words and max(words.values()) > 0:
        nearest = max(words, key=lambda name: words[name])
        advice = f"the nearest is '{nearest}'; to use it, name it (--text {nearest}), or leave the encoder out"
    what = "no column of the table looks like text (mostly distinct, several words)"
    return f"{by}, but {what}; {advice}."


def _fit_column(cells: Any, comma: bool, is_text: bool = False) -> Column | str:
    """Return how a column becomes inputs, or why nothing can be learned from it. `is_text`: a person says so."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    kind, date_format = kind_of(cells, comma)
    if is_text and kind in ("number", "date") and as_text(cells).ne("").any():
        raise DataError(f"column '{cells.name}' was named as text, but holds {KINDS[kind]}; leave --text out for it.")
    if not is_text and is_identifier(cells, kind):
        return "differs in each row"
    if is_text or kind == "text":
        different = as_text(cells).nunique()
        return SAME if different < 2 else Column(name=cells.name, kind="text")
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
