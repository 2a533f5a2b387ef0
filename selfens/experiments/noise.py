"""Figure 2: accuracy on SVHN, all labels, when a part of the labels is random; supervised against temporal ensembling.

A corrupted label is drawn uniformly over all ten classes, so one in ten of them stays right by chance. The figure has no
numbers to compare with; the sentences under it are among the claims.
"""

from __future__ import annotations

from selfens.experiments.cells import Cell, Table, paper_config

PERCENTAGES = (0, 20, 50, 80, 90)
ROWS = {"supervised": "Supervised-only", "temporal": "Temporal ensembling"}


def _weight_max(percentage: int) -> float:
    return 300.0 if percentage < 50 else 3000.0


def _cell(method: str, percentage: int) -> Cell:
    config = paper_config("svhn", method, None).with_values("data", label_noise=float(percentage))
    if method == "temporal":
        config = config.with_values("method", weight_max=_weight_max(percentage))
    return Cell(
        table="noise",
        name=f"{method}-{percentage}",
        row=ROWS[method],
        column=f"{percentage} %",
        config=config,
    )


TABLE = Table(
    name="noise",
    title="SVHN with a part of the labels random (the paper's figure)",
    cells=tuple(_cell(method, percentage) for method in ROWS for percentage in PERCENTAGES),
    column_title="random labels",
    notes=(
        "The learning rate is 0.001 for temporal ensembling, as everywhere on SVHN. For the supervised runs it is 0.003, the "
        "paper's value for all other runs; it does not speak of these in particular, nor do the authors' settings.",
        "w_max is 300 with 0 and 20 % random labels and 3,000 from 50 %, not scaled by M/N, as every row has a label.",
        "The paper does not say how many runs the figure shows; one seed is our default.",
        "Inputs are shifted by up to 2 pixels, as in the authors' preset for this figure.",
    ),
)
