"""The pages as files: a report on runs, and the galleries beside the CSVs of an audit and of suggestions."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
from torch import nn

from selfens.data.dataset import Dataset
from selfens.errors import RunError
from selfens.files.tensors import write_atomically
from selfens.report.comparison import compare
from selfens.report.details import details
from selfens.report.gallery import SHOWN_FIRST, gallery
from selfens.report.render import render, shown
from selfens.runs.directory import REPORT
from selfens.runs.run import Run
from selfens.tools.audit import Audit, Suggestions

PICTURE_BYTES = 2_000_000
MAX_DETAILED = 4

Source = Run | str | Path


def write_report(
    runs: Source | Sequence[Source],
    path: str | Path,
    *,
    dataset: Dataset | None = None,
    source: str | Path | None = None,
) -> Path:
    """Write one page about a run, or about several compared, and return its path.

    runs     runs or their directories; `load_run(path, network=...)` if a run was given a module of your own
    dataset  what they were trained on, if it is in memory or was passed to `train`; otherwise it is loaded
    source   where the data is now, if it was moved
    """
    given = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    if not given:
        raise RunError("no run was given; a report needs at least one.")
    named = _named([run if isinstance(run, Run) else Run(run) for run in given])
    detailed = named if len(named) <= MAX_DETAILED else {}
    text = render(
        "run.html",
        comparison=compare(named) if len(named) > 1 else None,
        details=[details(run, dataset, source, name, PICTURE_BYTES // len(detailed)) for name, run in detailed.items()],
        links=[] if detailed else _links(named, Path(path)),
    )
    return _write(path, text)


def write_report_or_warn(
    run: Run, dataset: Dataset | None, network: nn.Module | None, warn: Callable[[str], None]
) -> Path | None:
    """Write the page of a finished run into its directory. If that fails, `warn` is called; the run is unaffected.

    dataset  what the run was trained on, if it is in memory; otherwise it is loaded
    network  the module of your own that was trained, if any; it is not touched
    """
    try:
        own = Run(run.path, network=copy.deepcopy(network), device=run.device.type)
        return write_report(own, run.path / REPORT, dataset=dataset)
    except Exception as error:  # a page is never worth a run
        reason = " ".join(str(error).split()) or type(error).__name__
        warn(f"the run is complete, but its report could not be written ({reason.rstrip('.')}).")
        return None


def write_audit_page(path: str | Path, audit: Audit, dataset: Dataset, how: str = "") -> Path:
    """Write a gallery of the disputed labels, most suspicious first. `how` says where the probabilities came from.

    If none is disputed, as is common after training on these very labels, it shows the least certain ones.
    """
    disputed = audit.suggested != audit.labels
    places = disputed.nonzero()[0] if disputed.any() else np.arange(min(SHOWN_FIRST, len(audit.rows)))
    found = gallery(
        dataset,
        audit.rows[places],
        audit.suggested[places],
        audit.labels[places],
        lambda place: f"{audit.scores[places[place]]:.2f}",
        budget=PICTURE_BYTES,
        title="Labels that look wrong" if disputed.any() else "Labels that are least certain",
        note=f"The score runs from −1 (certainly wrong) to 1 (certainly right). {how}".strip(),
        given_word="given",
        predicted_word="suggested",
        measure_word="score",
    )
    sentence = f"{disputed.sum():,} of {len(audit.rows):,} labels of {shown(dataset.name)} are disputed."
    return _write(path, render("gallery_page.html", sentence=sentence, gallery=found))


def write_suggestions_page(path: str | Path, suggestions: Suggestions, dataset: Dataset) -> Path:
    """Write a gallery of the rows to label next, in the order in which to label them."""
    found = gallery(
        dataset,
        suggestions.rows,
        suggestions.predicted,
        None,
        lambda place: f"{suggestions.uncertainty[place]:.2f}",
        budget=PICTURE_BYTES,
        shown_first=len(suggestions.rows),
        title="Rows to label next",
        note="Uncertainty runs from 0 (certain) to 1 (all classes equally probable). The predicted classes take turns.",
        given_word="",
        measure_word="uncertainty",
    )
    sentence = f"{len(suggestions.rows):,} rows of {shown(dataset.name)} to label next."
    return _write(path, render("gallery_page.html", sentence=sentence, gallery=found))


def _named(runs: list[Run]) -> dict[str, Run]:
    """By the last part of the path, or by the whole path if that is ambiguous."""
    last = [run.path.absolute().name for run in runs]
    if len(set(last)) == len(runs):
        return dict(zip(last, runs, strict=True))
    return {str(run.path): run for run in runs}


def _links(named: dict[str, Run], page: Path) -> list[tuple[str, str]]:
    """The runs' own pages, relative to the folder of this one."""
    folder = page.absolute().parent
    pages = {name: run.path.absolute() / REPORT for name, run in named.items()}
    return [
        (shown(name), quote(os.fsencode(os.path.relpath(own, folder)))) for name, own in pages.items() if own.is_file()
    ]


def _write(path: str | Path, text: str) -> Path:
    write_atomically(Path(path), text.encode("utf-8", "replace"))
    return Path(path)
