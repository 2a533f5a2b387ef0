"""A figure of test error on CIFAR-10 with 4,000 labels against training time, from the records.

    python benchmarks/error_time.py [--output docs/images/error-time.svg]

A point is a run that had its card to itself: its error after the last epoch, and the seconds from its first step to that. The
peer's is the comparison that `benchmarks/peer.py` wrote. Papers give an error and a number of trained images but no time, so
their points stand at the time that those images would take at the peer's pace on our card; without a peer they are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from selfens.errors import RunError, SelfensError
from selfens.experiments.records import Store
from selfens.experiments.tables import CIFAR10, MODERN, Cell

ROOT = Path(__file__).parents[1]
LABELS = 4000
# Error in percent, and million images that the loss was taken of: docs/modern.md names the sources.
PUBLISHED = {
    "FixMatch, WRN-28-2 (USB)": (4.29, 537),
    "LaplaceNet, 13 layers": (4.99, 225),
    "FixMatch, 13 layers (Tricks)": (6.44, 40),
    "pseudo-labels and mixup, 13 layers (Arazo)": (5.97, 22),
}
BELOW = ("FixMatch, WRN-28-2 (USB)", "pseudo-labels and mixup, 13 layers (Arazo)")  # so that names do not meet
TICKS = {
    30: "30 s",
    60: "1 min",
    240: "4 min",
    600: "10 min",
    3600: "1 h",
    21_600: "6 h",
    86_400: "1 day",
    345_600: "4 days",
}
PI, TEMPORAL, OURS = "Π-model, as in the paper", "temporal ensembling, as in the paper", "temporal teacher"
PEER = "FixMatch (USB) in our time"
COLORS = {PI: "#b8952b", TEMPORAL: "#e07b39", OURS: "#3d85c6", PEER: "#d1495b"}


class Point(NamedTuple):
    seconds: float
    error: float


def points(store: Store, cells: list[Cell]) -> list[Point]:
    """The runs of these cells that had the card to themselves."""
    records = store.read(cells)
    return [Point(r.seconds, r.final_error) for r in records if r.final_error is not None and not r.shared_device]


def measured(store: Store) -> dict[str, list[Point]]:
    paper = {cell.name: cell for cell in CIFAR10.cells}
    modern = [cell for cell in MODERN.cells if (cell.config.data.name, cell.config.data.labels) == ("cifar10", LABELS)]
    return {
        PI: points(store, [paper[f"pi-aug-{LABELS}"]]),
        TEMPORAL: points(store, [paper[f"temporal-aug-{LABELS}"]]),
        OURS: points(store, modern),
    }


def peer(path: Path) -> tuple[list[Point], float | None]:
    """The peer's runs with so many labels, and its images per second."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    found = [line["peer"] for line in lines if line["ours"]["config"]["data"]["labels"] == LABELS]
    pace = found[-1]["images_per_second"] if found else None
    return [Point(each["seconds"], each["error"]) for each in found], pace


def draw(groups: dict[str, list[Point]], published: dict[str, Point], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "error-time"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for name, each in groups.items():
        axes.scatter(*zip(*each, strict=True), color=COLORS[name], label=name, s=28, zorder=3)
    for name, point in published.items():
        axes.scatter(*point, facecolors="none", edgecolors="black", s=28, zorder=3)
        axes.annotate(name, point, xytext=(6, -11 if name in BELOW else 5), textcoords="offset points", fontsize=8)
    if published:
        axes.scatter([], [], facecolors="none", edgecolors="black", label="published; time at FixMatch's pace here")
    axes.set(xscale="log", xlabel="training time on one H200", ylabel="test error, %", ylim=(0, 14))
    every = [point.seconds for each in (*groups.values(), [*published.values()]) for point in each]
    ticks = {at: name for at, name in TICKS.items() if min(every) / 3 < at < max(every) * 3}
    axes.set_xticks([*ticks], [*ticks.values()])
    axes.minorticks_off()
    axes.set_xlim(min(every) / 1.6, max(every) * (20 if published else 1.6))  # names stand to the right
    axes.grid(alpha=0.2)
    axes.set_title(f"CIFAR-10, {LABELS:,} labels")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images/error-time.svg")
    arguments = parser.parse_args()
    if not arguments.output.parent.is_dir():
        parser.error(f"{arguments.output.parent} is no folder; make it first, or give another --output.")
    runs, pace = peer(arguments.results / "peer.jsonl")
    try:
        groups = {name: each for name, each in {**measured(Store(arguments.results)), PEER: runs}.items() if each}
        if not groups:
            raise RunError(f"{arguments.results} has no record to draw; run selfens reproduce modern first.")
    except SelfensError as error:
        sys.exit(f"error: {error}")
    published = {name: Point(images * 1e6 / pace, error) for name, (error, images) in PUBLISHED.items() if pace}
    draw(groups, published, arguments.output)
    print(f"written: {arguments.output}")


if __name__ == "__main__":
    main()
