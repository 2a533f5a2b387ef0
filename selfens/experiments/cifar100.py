"""Table 3: CIFAR-100 with 10,000 and with all labels. As CIFAR-10, but w_max is 100 for temporal ensembling too."""

from __future__ import annotations

from selfens.experiments.cells import BASELINE_NOTE, Column, Table, paper_cells

COLUMNS = (Column("10000", "10000", 10_000, runs=10), Column("all", "All (50000)", None, runs=4))

# fmt: off
FIGURES = {
    #                    10000           all
    "supervised":     ((51.21, 0.33), (29.14, 0.25)),
    "supervised-aug": ((44.56, 0.30), (26.42, 0.17)),
    "pi":             ((43.43, 0.54), (29.06, 0.21)),
    "pi-aug":         ((39.19, 0.36), (26.32, 0.04)),
    "temporal-aug":   ((38.65, 0.51), (26.30, 0.15)),
}
# fmt: on

TABLE = Table(
    name="cifar100",
    title="CIFAR-100",
    cells=paper_cells("cifar100", COLUMNS, FIGURES),
    notes=(BASELINE_NOTE, "The paper knows of no earlier semi-supervised results on this data set."),
)
