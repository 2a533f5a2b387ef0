"""What is done to predictions before they become labels, row by row."""

import numpy as np


def align(rows, present, wanted):
    result = []
    for row in rows:
        scaled = [p * w / q for p, w, q in zip(row, wanted, present, strict=True)]
        result.append([value / sum(scaled) for value in scaled])
    return np.array(result)
