"""The two loss components of Algorithms 1 and 2, row by row."""

import math


def softmax(logits):
    """Rows of probabilities."""
    rows = []
    for row in logits:
        highest = max(row)
        powers = [math.exp(value - highest) for value in row]
        rows.append([power / math.fsum(powers) for power in powers])
    return rows


def cross_entropy(logits, labels, labeled):
    """-1/|B| times the sum of log z_i[y_i] over the labeled rows of the batch."""
    total = 0.0
    for row, label, known in zip(logits, labels, labeled, strict=True):
        if known:
            highest = max(row)
            log_sum = highest + math.log(math.fsum(math.exp(value - highest) for value in row))
            total += log_sum - row[label]
    return total / len(logits)


def squared_difference(first, second, counted=None):
    """1/(C|B|) times the sum of |z_i - z~_i|^2 over the rows that count, each as much as it counts."""
    total = 0.0
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        counts = 1.0 if counted is None else float(counted[i])
        total += counts * math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    return total / (len(first) * len(first[0]))


def consistency_cross_entropy(first, second, counted=None, floor=1e-8):
    """1/(C|B|) times the sum of -z~_i log z_i over the rows that count, each as much as it counts."""
    total = 0.0
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        counts = 1.0 if counted is None else float(counted[i])
        total -= counts * math.fsum(y * math.log(max(x, floor)) for x, y in zip(a, b, strict=True))
    return total / (len(first) * len(first[0]))
