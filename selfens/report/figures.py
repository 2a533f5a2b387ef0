"""The charts of a report, by matplotlib as SVG to be put into a page.

Lines and text take the page's own colour (`currentColor`), the background is left out, and the few colours of the data are
legible on white and on near-black: one picture serves the light and the dark page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from selfens.report.measures import Calibration
from selfens.report.render import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"  # stands for the page's colour until the SVG is written
COLORS = ("#3d85c6", "#e07b39", "#3a9d6e", "#b5679f", "#b8952b", "#d1495b", "#4aa3a3", "#8574c9")
BLUE, RED = COLORS[0], COLORS[5]
SIZE = (4.3, 2.9)
NUMBERED_CLASSES = 20
WORST_CLASSES = 20
NAME_LIMIT = 16

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Chart:
    title: str
    svg: str
    note: str = ""
    large: bool = False
    """Too much detail to be shrunk to a narrow screen; it is scrolled there."""


def svg(draw: Callable[[Figure], None], name: str, size: tuple[float, float] = SIZE) -> str:
    """What `draw` puts onto a figure, as the text of an <svg>; `name` keeps ids apart where several are on a page."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # whatever a user's own settings are
        matplotlib.rcParams.update(_style(name))
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # only measured here, drawn by the browser
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        output = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(output, format="svg", transparent=True, metadata=nothing)
    return _embedded(output.getvalue())


def _style(name: str) -> Any:  # matplotlib counts its keys up in a type
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    return dict.fromkeys(inked, INK) | {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9,
        "text.parse_math": False,  # a class may be called $x$
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "axes.grid": True,
        "grid.alpha": 0.13,
        "grid.linewidth": 0.6,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "lines.linewidth": 1.6,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
    }


def _embedded(text: str) -> str:
    """The <svg> alone: no prologue, no style that would reach the whole page, no id but those it refers to itself."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = text.replace(INK, "currentColor")
    return "\n".join(line.strip() for line in text.splitlines()) + "\n"


# Over the epochs


def error_chart(history: Sequence[Record], name: str) -> Chart | None:
    """Test and validation error; None where neither was measured."""
    kinds = {"test_error": "test", "validation_error": "validation"}
    measured = {key: word for key, word in kinds.items() if any(record.get(key) is not None for record in history)}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for (key, word), color in zip(measured.items(), COLORS, strict=False):
            _line(axes, history, [record.get(key) for record in history], color=color, label=word)
        _over_epochs(axes, "rows in the wrong class, %", legend=True)

    return Chart("Error per epoch", svg(draw, f"{name}-error")) if measured else None


def loss_chart(history: Sequence[Record], name: str) -> Chart:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        weighted = [record["weight"] * record["unsupervised"] for record in history]
        _line(axes, history, [record["supervised"] for record in history], color=COLORS[0], label="supervised")
        if any(weighted):
            _line(axes, history, weighted, color=COLORS[1], label="w(t) × unsupervised")
            total = [record["total"] for record in history]
            _line(axes, history, total, color=INK, label="total", linewidth=0.9, linestyle="--")
        _over_epochs(axes, "mean over the epoch", legend=True)

    return Chart("Losses per epoch", svg(draw, f"{name}-loss"))


def variance_chart(history: Sequence[Record], name: str) -> Chart | None:
    """How much the ensemble's predictions vary; None where that is not kept."""
    variance = [record.get("ensemble_variance") for record in history]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _line(axes, history, variance, color=COLORS[3])
        _over_epochs(axes, "variance of a row, summed over classes")

    kept = any(value is not None for value in variance)
    return Chart("Variance of the ensemble", svg(draw, f"{name}-variance")) if kept else None


def rates_chart(history: Sequence[Record], name: str) -> Chart:
    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, sharex=True)
        _line(upper, history, [record["weight"] for record in history], color=COLORS[1])
        _line(lower, history, [record["learning_rate"] for record in history], color=COLORS[2])
        _over_epochs(upper, "w(t)")
        _over_epochs(lower, "learning rate")
        upper.set_xlabel("")
        figure.align_ylabels()

    return Chart("w(t) and learning rate", svg(draw, f"{name}-rates"))


def comparison_chart(groups: Mapping[str, Sequence[Sequence[Record]]], quantity: str, words: str) -> Chart:
    """One line per run over its epochs, one colour per group of runs that differ in nothing but the seed."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, (label, histories) in enumerate(groups.items()):
            look = {"color": COLORS[number % len(COLORS)], "linestyle": ("-", "--", ":")[number // len(COLORS) % 3]}
            for position, history in enumerate(histories):
                values = [record.get(quantity) for record in history]
                width = 1.6 if len(histories) == 1 else 1.0
                _line(axes, history, values, label=label if position == 0 else None, linewidth=width, **look)
        _over_epochs(axes, words)
        if len(groups) <= 3 * len(COLORS):
            columns = 1 if max(map(len, groups)) > 24 else 2
            figure.legend(loc="outside lower center", ncols=min(columns, len(groups)))

    extra = 0.2 * min(len(groups), 24)
    return Chart("Error per epoch", svg(draw, "comparison", (5.2, 3.2 + extra)))


def _line(axes: Axes, history: Sequence[Record], values: Sequence[float | None], **look: Any) -> None:
    """Values over epochs counted from one; a dot each where there are too few for a line to show them."""
    numbers = [float("nan") if value is None else value for value in values]
    marker = "o" if len(history) < 8 else None
    axes.plot([record["epoch"] + 1 for record in history], numbers, marker=marker, markersize=3, **look)


def _over_epochs(axes: Axes, words: str, *, legend: bool = False) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel="epoch", ylabel=words)
    axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if legend:
        axes.legend()


# Of the test rows


def confusion_chart(matrix: NDArray[np.int64], classes: Sequence[str], name: str) -> Chart:
    """Right answers in blue on the diagonal, mistakes in red, each as a share of its true class; numbers if there is room."""
    count = len(classes)
    numbered = count <= NUMBERED_CLASSES
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    crowded = numbered and count > 10
    side = 5.2 if crowded else SIZE[1]

    def draw(figure: Figure) -> None:
        from matplotlib.colors import to_rgb

        axes = figure.subplots()
        cells = np.empty((count, count, 4))
        cells[..., :3] = np.where(np.eye(count, dtype=bool)[..., None], to_rgb(BLUE), to_rgb(RED))
        cells[..., 3] = 0.9 * shares ** (1.0 if numbered else 0.5)  # without numbers, single mistakes must still show
        axes.imshow(cells, interpolation="none", aspect="equal")
        axes.grid(visible=False)
        axes.set(xlabel="predicted", ylabel="true")
        if numbered:
            names = [shown(each, NAME_LIMIT) for each in classes]
            upright = max(map(len, names)) > 3
            axes.set_xticks(range(count), names, rotation=90 if upright else 0)
            axes.set_yticks(range(count), names)
            _numbers(axes, matrix, shares)

    note = (
        ""
        if numbered
        else f"{count} classes, by number, in the order of the class names; stronger red is a commoner mistake."
    )
    return Chart("Confusion matrix", svg(draw, f"{name}-confusion", (side * 1.3, side * 1.1)), note, large=crowded)


def _numbers(axes: Axes, matrix: NDArray[np.int64], shares: NDArray[np.float64]) -> None:
    size = 8 if len(matrix) <= 10 and matrix.max() < 1000 else 6.5
    for (row, column), value in np.ndenumerate(matrix):
        if value:
            color = "white" if shares[row, column] > 0.55 else INK
            axes.text(column, row, f"{value}", ha="center", va="center", fontsize=size, color=color)


def class_error_chart(matrix: NDArray[np.int64], classes: Sequence[str], name: str) -> Chart:
    """The error of each class that has test rows, the worst at the top."""
    totals = matrix.sum(axis=1)
    tested = np.flatnonzero(totals)
    errors = 100.0 * (1 - np.diag(matrix)[tested] / totals[tested])
    worst = np.argsort(-errors, kind="stable")[:WORST_CLASSES]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        values, names = errors[worst], [shown(classes[each], NAME_LIMIT) for each in tested[worst]]
        axes.barh(range(len(values)), values, color=BLUE, height=0.7)
        for position, (value, row) in enumerate(zip(values, tested[worst], strict=True)):
            axes.annotate(
                f"{value:.1f} % of {totals[row]}",
                (value, position),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axes.set_yticks(range(len(values)), names)
        axes.set(xlabel="rows in the wrong class, %", xlim=(0, max(values.max(initial=0) * 1.45, 1)))
        axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 100])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")

    height = max(SIZE[1] * 1.1, 0.8 + 0.2 * len(worst))
    note = f"The {WORST_CLASSES} worst of {len(tested)} classes." if len(tested) > WORST_CLASSES else ""
    return Chart("Error per class", svg(draw, f"{name}-classes", (SIZE[0], height)), note)


def reliability_chart(measured: Calibration, name: str) -> Chart:
    """Accuracy over confidence, with the share of the rows in each bin below."""

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, sharex=True, gridspec_kw={"height_ratios": (3, 1)})
        filled = measured.counts > 0
        upper.plot((0, 100), (0, 100), color=INK, linewidth=0.9, linestyle="--", alpha=0.5, label="perfect")
        x, y = 100 * measured.confidence[filled], 100 * measured.accuracy[filled]
        upper.plot(x, y, color=BLUE, marker="o", markersize=4, label="this run")
        upper.set(ylabel="right, %", xlim=(0, 100), ylim=(0, 103))
        upper.legend()
        bins = len(measured.counts)
        middles = (np.arange(bins) + 0.5) * 100 / bins
        lower.bar(middles, 100 * measured.counts / measured.counts.sum(), width=90 / bins, color=BLUE, alpha=0.6)
        lower.set(xlabel="probability of the predicted class, %", ylabel="rows, %")
        figure.align_ylabels()

    note = f"Expected calibration error {100 * measured.error:.1f} %, over {len(measured.counts)} bins."
    return Chart("Calibration", svg(draw, f"{name}-calibration", (SIZE[0], SIZE[1] * 1.1)), note)
