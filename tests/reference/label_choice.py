"""The authors' choice of labeled rows, told step by step."""

import numpy as np


def original_rows(labels, num_classes, count, seed):
    random = np.random.RandomState(seed)  # noqa: NPY002  the authors' generator
    first = np.arange(len(labels))
    random.shuffle(first)
    second = np.arange(len(labels))
    random.shuffle(second)
    shuffled_once = [int(row) for row in first]
    shuffled_twice = [shuffled_once[int(position)] for position in second]
    seen = dict.fromkeys(range(num_classes), 0)
    chosen = []
    for row in shuffled_twice:
        label = int(labels[row])
        if label in seen and seen[label] < count // num_classes:
            seen[label] += 1
            chosen.append(row)
    return sorted(chosen)
