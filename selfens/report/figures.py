"""The charts of a report, drawn by matplotlib as SVG and embedded in the page.

Lines and text use the page's own color (`currentColor`), the background is transparent, and the few data colors are
legible on white and on near-black, so one picture serves the light and the dark page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from selfens.data.rows import Labels
from selfens.report.render import shown
from selfens.runs.evidence import Evidence
from selfens.runs.statistics import answered, calibration, tempered

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#010203"  # stands for the page's color until the SVG is written
COLORS = ("#3d85c6", "#e07b39", "#3a9d6e", "#b5679f", "#b8952b", "#d1495b", "#4aa3a3", "#8574c9")
BLUE, RED = COLORS[0], COLORS[5]
SIZE = (4.3, 2.9)
NUMBERED_CLASSES = 12
NAME_LIMIT = 16
FEW_EPOCHS = 8  # a line through fewer has dots

STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.parse_math": False,  # a class may be called $x$
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.13,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
}

Values = Sequence[float | None]
"""One value per epoch; at a None, the line continues to the next value."""


@dataclass(frozen=True)
class Chart:
    title: str
    svg: str
    note: str = ""


def svg(draw: Callable[[Axes], None], title: str, size: tuple[float, float] = SIZE) -> str:
    """Return what `draw` draws on axes, as an <svg>. The title makes its ids unique on a page."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    style: Any = STYLE | dict.fromkeys(inked, INK) | {"svg.hashsalt": title}  # matplotlib enumerates its keys in a type
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # so that a user's settings have no effect
        matplotlib.rcParams.update(style)
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # only measured here, drawn by the browser
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        output = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(output, format="svg", transparent=True, metadata=nothing)
    text = output.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)  # would affect the whole page
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    return "\n".join(map(str.strip, text.replace(INK, "currentColor").splitlines())) + "\n"


def epochs_chart(title: str, groups: Mapping[str, Sequence[Values]], words: str = "") -> Chart:
    """Draw lines over the epochs, counted from one; those of a group share a color and a label.

    With `words`, which say what the lines show, the chart compares groups: it is larger and has its labels below.
    """

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for number, (label, lines) in enumerate(groups.items()):
            color, style = COLORS[number % len(COLORS)], ("-", "--", ":")[number // len(COLORS) % 3]
            for values in lines:
                points = {epoch: value for epoch, value in enumerate(values, start=1) if value is not None}
                drawn = axes.plot([*points], [*points.values()], color=color, linestyle=style, markersize=3)[0]
                drawn.set(label=label if values is lines[0] else None, marker="o" if len(points) < FEW_EPOCHS else "")
        axes.set(xlabel="epoch", ylabel=words)
        low, high = axes.get_ylim()
        axes.set_ylim(0 if axes.dataLim.y0 >= 0 else low, 1.04 * high)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        if high >= 1000:
            axes.yaxis.set_major_formatter("{x:,.0f}")
        if any(groups):
            axes.figure.legend(loc="outside lower center") if words else axes.legend()

    return Chart(title, svg(draw, title, (5.2, 3.2 + 0.2 * len(groups)) if words else SIZE))


def results_chart(title: str, groups: Mapping[str, Sequence[float]], words: str) -> Chart:
    """Draw a dot for each result, in the color of its group, and a line through the mean of the group."""

    def draw(axes: Axes) -> None:
        for number, values in enumerate(groups.values()):
            color, height = COLORS[number % len(COLORS)], len(groups) - number
            axes.plot(values, [height] * len(values), "o", color=color, alpha=0.8)
            axes.plot([np.mean(values)] * 2, [height - 0.3, height + 0.3], color=color)
        names = [shown(label, NAME_LIMIT) for label in groups]
        axes.set_yticks(range(len(groups), 0, -1), names)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.set(xlabel=words, xlim=(0, 1.08 * axes.dataLim.x1 or 1), ylim=(0.4, len(groups) + 0.6))

    return Chart(title, svg(draw, title, (5.2, 3.2 + 0.2 * len(groups))))


def confusion_chart(labels: Labels, predicted: Labels, classes: Sequence[str]) -> Chart:
    """Draw correct predictions in blue, mistakes in red, as shares of the true class; with counts if they fit."""
    count = len(classes)
    numbered = count <= NUMBERED_CLASSES
    matrix = np.zeros((count, count), dtype=np.int64)
    np.add.at(matrix, (labels, predicted), 1)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)

    def draw(axes: Axes) -> None:
        from matplotlib.colors import to_rgb

        cells = np.empty((count, count, 4))
        cells[..., :3] = np.where(np.eye(count, dtype=bool)[..., None], to_rgb(BLUE), to_rgb(RED))
        cells[..., 3] = 0.9 * shares ** (1.0 if numbered else 0.5)  # without numbers, single mistakes must still show
        axes.imshow(cells, interpolation="none", aspect="equal")
        axes.grid(visible=False)
        axes.set(xlabel="predicted", ylabel="true")
        if numbered:
            names = [shown(each, NAME_LIMIT) for each in classes]
            axes.set_xticks(range(count), names, rotation=90 if max(map(len, names)) > 3 else 0)
            axes.set_yticks(range(count), names)
        for (row, column), value in np.ndenumerate(matrix if numbered else matrix[:0]):
            if value:
                color = "white" if shares[row, column] > 0.55 else INK
                axes.text(column, row, f"{value:,}", ha="center", va="center", fontsize=6.5, color=color)

    note = "" if numbered else f"{count:,} classes, numbered in the order of their names."
    return Chart("Confusion matrix", svg(draw, "Confusion matrix", (SIZE[1] * 1.3, SIZE[1] * 1.1)), note)


def reliability_chart(evidence: Evidence) -> Chart:
    """Draw accuracy against confidence, before and after calibration."""
    labels, given = evidence.labels[evidence.counted], evidence.probabilities[evidence.counted]
    before, after = calibration(labels, given), calibration(labels, tempered(given, evidence.temperature))

    def draw(axes: Axes) -> None:
        axes.plot((0, 100), (0, 100), color=INK, linewidth=0.9, linestyle="--", alpha=0.5, label="perfect")
        for (confidence, accuracy, _), color, label in ((before, RED, "network"), (after, BLUE, "calibrated")):
            axes.plot(100 * confidence, 100 * accuracy, color=color, marker="o", markersize=4, label=label)
        axes.set(xlabel="probability of the predicted class, %", ylabel="accuracy, %", xlim=(0, 100), ylim=(0, 103))
        axes.legend()

    errors = f"{100 * before[2]:.1f} % before and {100 * after[2]:.1f} % after calibration"
    same = f"on the {len(labels):,} rows that the temperature, {evidence.temperature:.2f}, was fitted to"
    note = f"Expected calibration error {errors}, {same}; on other rows it is a little larger."
    return Chart("Calibration", svg(draw, "Calibration"), note)


def answered_chart(evidence: Evidence) -> Chart:
    """Draw the error of the most confident rows against their share of all rows."""
    found = answered(evidence.confidence, evidence.wrong)

    def draw(axes: Axes) -> None:
        axes.plot(100 * found.share, found.error, color=BLUE)
        axes.set(xlabel="rows answered, %", ylabel="error among them, %", xlim=(0, 103), ylim=(0, None))

    note = "The model is least sure of the rows that are left out; see selfens predict --max-error."
    return Chart("Answering only what is certain", svg(draw, "Answering only what is certain"), note)
