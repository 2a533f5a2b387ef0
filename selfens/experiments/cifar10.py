"""Table 1: CIFAR-10 with 4,000 and with all labels. ZCA whitening, flips and shifts of up to 2 pixels; w_max 100 and 30."""

from __future__ import annotations

from selfens.experiments.cells import BASELINE_NOTE, Column, Earlier, Table, paper_cells

COLUMNS = (Column("4000", "4000", 4000, runs=10), Column("all", "All (50000)", None, runs=4))

# fmt: off
FIGURES = {
    #                     4000           all
    "supervised":     ((35.56, 1.59), (7.33, 0.04)),
    "supervised-aug": ((34.85, 1.65), (6.05, 0.15)),
    "pi":             ((16.55, 0.29), (6.90, 0.07)),
    "pi-aug":         ((12.36, 0.31), (5.56, 0.10)),
    "temporal-aug":   ((12.16, 0.24), (5.60, 0.10)),
}
# fmt: on

SAJJADI = "stronger augmentation and fractional max pooling; quoted in the paper's text"

TABLE = Table(
    name="cifar10",
    title="CIFAR-10",
    cells=paper_cells("cifar10", COLUMNS, FIGURES),
    earlier=(
        Earlier(system="Conv-Large, Γ-model (Rasmus et al. 2015)", column="4000", figure="20.40 ± 0.47"),
        Earlier(system="CatGAN (Springenberg 2016)", column="4000", figure="19.58 ± 0.58"),
        Earlier(system="GAN of Salimans et al. (2016)", column="4000", figure="18.63 ± 2.32"),
        Earlier(system="Sajjadi et al. (2016), supervised-only", column="4000", figure="13.60", remark=SAJJADI),
        Earlier(system="Sajjadi et al. (2016)", column="4000", figure="11.29", remark=SAJJADI),
    ),
    notes=(BASELINE_NOTE,),
)
