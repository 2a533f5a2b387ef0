"""The label-noise figure: accuracy per epoch, supervised on the left, temporal ensembling on the right, as an SVG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfens.experiments import noise
from selfens.experiments.records import Record
from selfens.experiments.summary import Summary
from selfens.report.figures import COLORS, svg


def noise_figure(summaries: Mapping[str, Summary]) -> str | None:
    """The figure as the text of an <svg>; None where none of its cells has been run."""
    if not any(summaries[cell.key].records for cell in noise.TABLE.cells):
        return None
    return svg(lambda figure: _draw(figure, summaries), "label-noise", (9, 3.8))


def _draw(figure: Any, summaries: Mapping[str, Summary]) -> None:
    both = figure.subplots(1, 2, sharey=True)
    for axes, (method, title) in zip(both, noise.ROWS.items(), strict=True):
        _panel(axes, method, title, summaries)
    both[0].set_ylabel("correct on the test set, %")
    handles, labels = _legend(both)
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def _panel(axes: Any, method: str, title: str, summaries: Mapping[str, Summary]) -> None:
    missing = []
    for percentage, color in zip(noise.PERCENTAGES, COLORS, strict=False):
        records = summaries[f"noise/{method}-{percentage}"].records
        for record in records:
            axes.plot(*_curve(record), color=color, linewidth=1.3, label=f"{percentage} % random")
        if not records:
            missing.append(f"{percentage} %")
    remark = f" (not run: {', '.join(missing)})" if missing else ""
    axes.set(title=title + remark, xlabel="epoch", ylim=(0, 100))
    axes.title.set_fontsize(10)


def _curve(record: Record) -> tuple[range, list[float]]:
    return range(1, len(record.test_error) + 1), [100 - error for error in record.test_error]


def _legend(both: Any) -> tuple[list[Any], list[str]]:
    """One entry per percentage, however many curves it has."""
    entries: dict[str, Any] = {}
    for axes in both:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    order = sorted(entries, key=lambda label: int(label.split()[0]))
    return [entries[label] for label in order], order
