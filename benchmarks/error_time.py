"""A figure of test error on CIFAR-10 with 4,000 labels against training time, both on log axes, from the records.

    python benchmarks/error_time.py [--output docs/images/error-time.svg]

A point is a run that had its card to itself: its error after the last epoch, and the seconds from its first step to that. All
runs of the Π-model shared their card: theirs is the time that the images would take at its measured pace. The peer's point is
the comparison that `benchmarks/peer.py` wrote, if there is one. Published points have the time that is given beside the code,
on cards of that day.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from selfens.errors import RunError, SelfensError
from selfens.experiments.records import DAMAGE, Store, one_line
from selfens.experiments.tables import CIFAR10, MODERN, Cell

ROOT = Path(__file__).parents[1]
LABELS, TRAINING_ROWS = 4000, 50_000
HOUR = 3600


class Point(NamedTuple):
    seconds: float
    error: float


class Published(NamedTuple):
    name: str
    hours: int
    cards: str | None
    error: float
    above: bool = False  # its name, so that names do not meet

    @property
    def time(self) -> str:
        time = f"{self.hours} h" if self.hours < 48 else f"{self.hours // 24} days"
        return time + (f" on {self.cards}" if self.cards else "")


PUBLISHED = (  # docs/modern.md names the sources
    Published("FixMatch", 6, "one A100", 4.23),
    Published("FixMatch", 16, "four V100", 4.38, above=True),
    Published("MixMatch", 20, "one V100", 6.24, above=True),
    Published("FixMatch", 96, None, 4.26),
)
PI_IMAGES_PER_SECOND = 37_256  # alone on an H200: docs/speed.md
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
ERRORS = (4, 5, 6, 8, 10, 12, 15, 20)
PI, TEMPORAL = "Π-model, as in the paper (time calculated)", "temporal ensembling, as in the paper"
OURS = "temporal teacher"
PEER = "FixMatch (USB) in our time"
COLORS = {PI: "#b8952b", TEMPORAL: "#e07b39", OURS: "#3d85c6", PEER: "#d1495b"}


def measured(store: Store) -> dict[str, list[Point]]:
    paper = {cell.name: cell for cell in CIFAR10.cells}
    modern = [
        cell for cell in MODERN.cells if (cell.config.source.title, cell.config.labels.count) == ("cifar10", LABELS)
    ]

    def alone(cells: list[Cell]) -> list[Point]:
        records = store.read(cells)
        return [Point(r.seconds, r.final_error) for r in records if r.final_error is not None and not r.shared_device]

    pi = paper[f"pi-aug-{LABELS}"]
    seconds = pi.config.schedule.epochs * TRAINING_ROWS / PI_IMAGES_PER_SECOND
    return {
        PI: [Point(seconds, r.final_error) for r in store.read([pi]) if r.final_error is not None],
        TEMPORAL: alone([paper[f"temporal-aug-{LABELS}"]]),
        OURS: alone(modern),
    }


def peer(path: Path) -> list[Point]:
    """The peer's runs with so many labels."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        found = [line["peer"] for line in lines if line["ours"]["config"]["labels"]["count"] == LABELS]
        return [Point(each["seconds"], each["error"]) for each in found]
    except DAMAGE as error:
        raise RunError(f"{path} is damaged ({one_line(error)}); make it again with benchmarks/peer.py.") from None


def draw(groups: dict[str, list[Point]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "error-time"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for name, each in groups.items():
        axes.scatter(*zip(*each, strict=True), color=COLORS[name], label=name, s=28, zorder=3)
    for each in PUBLISHED:
        point, offset = Point(each.hours * HOUR, each.error), (0, 6 if each.above else -25)
        axes.scatter(*point, facecolors="none", edgecolors="black", s=28, zorder=3)
        name = f"{each.name}\n{each.time}"
        axes.annotate(name, point, xytext=offset, textcoords="offset points", fontsize=8, ha="center")
    axes.scatter([], [], facecolors="none", edgecolors="black", label="published, on other cards")
    axes.set(xscale="log", yscale="log", xlabel="training time", ylabel="test error, %", ylim=(3.2, 24))
    axes.set_xticks([*TICKS], [*TICKS.values()])
    axes.set_yticks(ERRORS, ERRORS)
    axes.minorticks_off()
    axes.set_xlim(25, 12 * 24 * HOUR)
    axes.grid(alpha=0.2)
    axes.set_title(f"CIFAR-10, {LABELS:,} labels; colored: one H200")
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images/error-time.svg")
    arguments = parser.parse_args()
    if arguments.output.suffix != ".svg" or not arguments.output.parent.is_dir():
        parser.error(f"--output is {arguments.output}; expected an .svg file in a folder that exists.")
    try:
        found = {**measured(Store(arguments.results)), PEER: peer(arguments.results / "peer.jsonl")}
        groups = {name: each for name, each in found.items() if each}
        if not groups:
            raise RunError(f"{arguments.results} has no record to draw; run selfens reproduce modern first.")
    except SelfensError as error:
        sys.exit(f"error: {error}")
    draw(groups, arguments.output)
    print(f"written: {arguments.output}")


if __name__ == "__main__":
    main()
