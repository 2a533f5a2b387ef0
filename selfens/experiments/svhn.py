"""Table 2: SVHN with 500, 1,000 and all labels. Each image to zero mean and unit variance; shifts, no flips.

Temporal ensembling runs with the learning rate 0.001 here, and nowhere else. We test on all 26,032 images; the authors'
code drops the last 32, an incomplete batch.
"""

from __future__ import annotations

from selfens.experiments.cells import BASELINE_NOTE, Column, Earlier, Table, paper_cells

COLUMNS = (
    Column("500", "500", 500, runs=10),
    Column("1000", "1000", 1000, runs=10),
    Column("all", "All (73257)", None, runs=4),
)

# fmt: off
FIGURES = {
    #                      500            1000           all
    "supervised":     ((35.18, 5.61), (20.47, 2.64), (3.05, 0.07)),
    "supervised-aug": ((31.59, 3.60), (19.30, 3.89), (2.88, 0.03)),
    "pi":             (( 7.05, 0.30), ( 5.43, 0.25), (2.78, 0.03)),
    "pi-aug":         (( 6.65, 0.53), ( 4.82, 0.17), (2.54, 0.04)),
    "temporal-aug":   (( 5.12, 0.13), ( 4.42, 0.16), (2.74, 0.06)),
}
# fmt: on

SAJJADI = "fractional max pooling; quoted in the paper's text"

TABLE = Table(
    name="svhn",
    title="SVHN",
    cells=paper_cells("svhn", COLUMNS, FIGURES),
    earlier=(
        Earlier(system="DGN (Kingma et al. 2014)", column="1000", figure="36.02 ± 0.10"),
        Earlier(system="Virtual Adversarial (Miyato et al. 2016)", column="1000", figure="24.63"),
        Earlier(system="ADGM (Maaløe et al. 2016)", column="1000", figure="22.86"),
        Earlier(system="SDGM (Maaløe et al. 2016)", column="1000", figure="16.61 ± 0.24"),
        Earlier(system="GAN of Salimans et al. (2016)", column="500", figure="18.44 ± 4.8"),
        Earlier(system="GAN of Salimans et al. (2016)", column="1000", figure="8.11 ± 1.3"),
        Earlier(system="Sajjadi et al. (2016)", column="732", figure="6.03", remark=SAJJADI),
        Earlier(system="Sajjadi et al. (2016), supervised-only", column="All (73257)", figure="2.28", remark=SAJJADI),
    ),
    notes=(BASELINE_NOTE, "Errors are over all 26,032 test images; the authors' code leaves the last 32 out."),
)
