"""The history of a run: one record per epoch, numbers by name. The names are declared here.

A record also holds the parts of the loss, under the names that the method gives them.
"""

from collections.abc import Sequence
from typing import Any

LARGEST = 1e300  # a larger number means that a record is damaged

Record = dict[str, Any]
History = Sequence[Record]

TOTAL = "total"
ERRORS = {"test_error": "test", "validation_error": "validation"}  # in percent, and the rows they are measured on

FIELDS = {
    "epoch": "",
    TOTAL: "Loss",
    **dict.fromkeys(ERRORS, "Error, %"),
    "learning_rate": "Learning rate",
    "beta1": "Adam's β1",
    "weight": "Weight of the unsupervised loss",
    "prior": "Share of the prior in the targets",
    "ensemble_variance": "Ensemble variance",
    "images_per_second": "",
    "seconds": "",
}
"""What a record may hold besides the parts of the loss, with the title of its chart; empty if it has no chart."""


def is_record(found: Any) -> bool:
    """Return True for a dict of numbers. None stands for a number that was not measured in an epoch."""
    if not isinstance(found, dict) or found.get("epoch") is None or found.get(TOTAL) is None:
        return False
    return all(value is None or (type(value) in (int, float) and not abs(value) > LARGEST) for value in found.values())


def total_seconds(history: History) -> float:
    return float(sum(record.get("seconds") or 0.0 for record in history))
