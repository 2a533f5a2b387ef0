"""The pages as files: a report of runs, and the galleries beside the CSVs of an audit and of suggestions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from selfens.data.dataset import Dataset
from selfens.errors import RunError
from selfens.files.tensors import write_atomically
from selfens.report.comparison import compare
from selfens.report.details import details
from selfens.report.gallery import Entry, Gallery, gallery
from selfens.report.render import render, shown
from selfens.runs.directory import REPORT
from selfens.runs.run import Run
from selfens.tools.audit import Audit, Suggestions

LEAST_CERTAIN = 24  # labels shown where none is disputed
PICTURE_BYTES = 2_000_000
MOST_DETAILED = 4

Source = Run | str | Path


def write_report(
    runs: Source | Sequence[Source],
    path: str | Path,
    *,
    dataset: Dataset | None = None,
    source: str | Path | None = None,
) -> Path:
    """Write one page about a run, or about several compared, and return where it is.

    runs     runs or their directories; `load_run(path, network=...)` where a run was given a module of your own
    dataset  what they were trained on, where it is at hand or was passed to `train`; otherwise it is loaded
    source   where the data is now, if it was moved
    """
    given = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    if not given:
        raise RunError("no run was given; a report needs at least one.")
    named = _named([run if isinstance(run, Run) else Run(run) for run in given])
    detailed = named if len(named) <= MOST_DETAILED else {}
    text = render(
        "run.html",
        comparison=compare(named) if len(named) > 1 else None,
        details=[details(run, dataset, source, name, PICTURE_BYTES // len(detailed)) for name, run in detailed.items()],
        links=[] if detailed else _links(named, Path(path)),
    )
    return _write(Path(path), text)


def write_audit_page(path: str | Path, audit: Audit, dataset: Dataset, how: str = "") -> Path:
    """Write a gallery of the disputed labels, most suspicious first. `how` says where the probabilities came from.

    Where none is disputed, as is common after training on these very labels, it shows the least certain ones.
    """
    disputed = audit.suggested != audit.labels
    places = disputed.nonzero()[0] if disputed.any() else np.arange(min(LEAST_CERTAIN, len(audit.rows)))
    rows, labels = audit.rows[places], audit.labels[places]
    suggested, scores = audit.suggested[places], audit.scores[places]
    found = gallery(
        labels,
        lambda place: Entry(
            row=int(rows[place]),
            given=shown(dataset.classes[labels[place]]),
            predicted=shown(dataset.classes[suggested[place]]),
            measure=f"{scores[place]:.2f}",
            wrong=bool(suggested[place] != labels[place]),
            file=_file(dataset, int(rows[place])),
        ),
        dataset.inputs,
        PICTURE_BYTES,
        title="Labels that look wrong" if disputed.any() else "Labels that are least certain",
        note=f"The score runs from −1, sure that the label is wrong, to 1, sure that it is right. {how}".strip(),
        given_word="given",
        predicted_word="suggested",
        measure_word="score",
        classes=dataset.classes,
    )
    sentence = f"{disputed.sum():,} of {len(audit.rows):,} labels of {shown(dataset.name)} are disputed."
    return _write_gallery(path, sentence, found)


def write_suggestions_page(path: str | Path, suggestions: Suggestions, dataset: Dataset) -> Path:
    """Write a gallery of the rows to label next, in the order in which to label them."""
    rows, predicted, uncertainty = suggestions.rows, suggestions.predicted, suggestions.uncertainty
    found = gallery(
        predicted,
        lambda place: Entry(
            row=int(rows[place]),
            predicted=shown(dataset.classes[predicted[place]]),
            measure=f"{uncertainty[place]:.2f}",
            file=_file(dataset, int(rows[place])),
        ),
        dataset.inputs,
        PICTURE_BYTES,
        shown_first=len(rows),
        title="Rows to label next",
        note="Uncertainty runs from 0, certain, to 1, knows nothing; the predicted classes take turns.",
        given_word="",
        measure_word="uncertainty",
        classes=dataset.classes,
    )
    sentence = f"{len(rows):,} rows of {shown(dataset.name)} to label next."
    return _write_gallery(path, sentence, found)


def _write_gallery(path: str | Path, sentence: str, found: Gallery) -> Path:
    return _write(Path(path), render("gallery_page.html", sentence=sentence, gallery=found))


def _named(runs: list[Run]) -> dict[str, Run]:
    """By the last part of the path, or by as much of it as tells them apart."""
    last = [run.path.absolute().name for run in runs]
    if len(set(last)) == len(runs):
        return dict(zip(last, runs, strict=True))
    return {str(run.path): run for run in runs}


def _links(named: dict[str, Run], page: Path) -> list[tuple[str, str]]:
    """The runs' own pages, seen from the folder of this one."""
    folder = page.absolute().parent
    pages = {name: run.path.absolute() / REPORT for name, run in named.items()}
    return [
        (shown(name), quote(os.fsencode(os.path.relpath(own, folder)))) for name, own in pages.items() if own.is_file()
    ]


def _file(dataset: Dataset, row: int) -> str:
    return shown(dataset.row_names[row]) if dataset.row_names else ""


def _write(path: Path, text: str) -> Path:
    write_atomically(path, text.encode("utf-8", "replace"))
    return path
