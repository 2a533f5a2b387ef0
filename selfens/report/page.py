"""Write pages: the report on runs, and the galleries next to the CSVs of an audit and of suggestions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from selfens.data.dataset import Dataset
from selfens.encoders.dataset import EncodedDataset
from selfens.errors import RunError
from selfens.files import check_regular
from selfens.files.tables import write_output
from selfens.report.comparison import compare
from selfens.report.details import details
from selfens.report.gallery import audit_gallery, suggestions_gallery
from selfens.report.render import render, shown
from selfens.runs.directory import REPORT
from selfens.runs.run import Run
from selfens.tools.audit import Audit
from selfens.tools.selection import Suggestions

MARK = b"<!doctype html><!-- selfens -->"  # only our pages begin like this
RunOrPath = Run | str | Path


def write_report(
    runs: RunOrPath | Sequence[RunOrPath],
    path: str | Path,
    *,
    dataset: Dataset | None = None,
    baselines: bool | None = None,
) -> Path:
    """Write a page about a run, or one that compares several, and return its path.

    Parameters
    ----------
    runs
        Runs or their directories. Pass load_run(path, ...) if one needs a module of your own or code that you trust.
    path
        The HTML file to write.
    dataset
        What a run was trained on, if it is in memory or was passed to `train`; otherwise it is loaded.
    baselines
        Compare a run with simple methods on the same labels: always, never, or (None) on your own data.
    """
    loaded = [run if isinstance(run, Run) else Run(run) for run in ([runs] if isinstance(runs, RunOrPath) else runs)]
    if not loaded:
        raise RunError("no run was given; a report needs at least one.")
    if len(loaded) > 1:
        return _write(path, "comparison.html", **compare(loaded))
    return _write(path, "run.html", **details(loaded[0], dataset, baselines))


def write_report_or_warn(
    run: Run, dataset: Dataset | None, warn: Callable[[str], None], baselines: bool | None = None
) -> None:
    """Write the page of a finished run into its directory. If that fails, call `warn`; the run is unaffected."""
    try:
        if (run.path / REPORT).is_symlink():  # which may lead anywhere
            (run.path / REPORT).unlink()
        check_regular(run.path / REPORT)
        write_report(run, run.path / REPORT, dataset=dataset, baselines=baselines)
    except Exception as error:  # a page must not fail the run
        reason = " ".join(str(error).split()) or type(error).__name__
        warn(f"the run is complete, but its report could not be written ({reason.rstrip('.')}).")


def write_audit_page(
    path: str | Path,
    audit: Audit,
    data: EncodedDataset,
    how: str = "",
    warning: str = "",
    *,
    is_in_sample: bool = False,
) -> Path:
    """Write a gallery of the most suspicious labels. `how` says where the probabilities came from."""
    sentence = f"{len(audit.disputed):,} of {len(audit.rows):,} labels of {shown(data.dataset.name)} are disputed."
    gallery = audit_gallery(audit, data, how, is_in_sample=is_in_sample)
    return _write(path, "gallery_page.html", sentence=sentence, warning=warning, gallery=gallery)


def write_suggestions_page(path: str | Path, suggestions: Suggestions, data: EncodedDataset) -> Path:
    """Write a gallery of the rows to label next, in the order in which to label them."""
    sentence = f"{len(suggestions.rows):,} rows of {shown(data.dataset.name)} to label next."
    gallery = suggestions_gallery(suggestions, data)
    return _write(path, "gallery_page.html", sentence=sentence, warning="", gallery=gallery)


def _write(path: str | Path, template: str, **values: Any) -> Path:
    write_output(Path(path), render(template, **values).encode("utf-8", "replace"), beginning=MARK)
    return Path(path)
