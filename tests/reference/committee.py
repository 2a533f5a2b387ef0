"""The targets and the loss of the method `committee`, row by row in double precision."""

import math

import numpy as np


def neighbors(inputs, count):
    """Of each row the nearest others, by distance."""
    found = []
    for row, x in enumerate(inputs):
        distances = [(math.dist(x, other), number) for number, other in enumerate(inputs) if number != row]
        found.append([number for _, number in sorted(distances)[:count]])
    return found


def averages(predictions, memory):
    """Of the predictions of several epochs: the bias-corrected moving average."""
    z = np.zeros_like(predictions[0])
    for each in predictions:
        z = memory * z + (1 - memory) * each
    return z / (1 - memory ** len(predictions))


def targets(z, labels, near, prior, *, share=0.5, slack=1.5, temperature=0.5, threshold=0.8):
    """The distribution to learn of each row, or None if it is not confident; and the factors of the classes."""
    classes = len(prior)
    pinned = [np.eye(classes)[label] if label >= 0 else row for row, label in zip(z, labels, strict=True)]
    mixed = [
        (1 - share) * pinned[row] + share * sum(pinned[other] for other in near[row]) / len(near[row])
        for row in range(len(z))
    ]
    mixed = [row / row.sum() for row in mixed]
    factors = np.ones(classes)
    for _ in range(3):
        scaled = [row * factors / (row * factors).sum() for row in mixed]
        free = [row for row, label in zip(scaled, labels, strict=True) if label < 0]
        for number in range(classes):
            frequency = sum(row[number] for row in free) / len(free)
            wanted = min(max(frequency, prior[number] / slack), prior[number] * slack)
            factors[number] *= wanted / frequency
    result = []
    for row in mixed:
        sharp = (row * factors / (row * factors).sum()) ** (1 / temperature)
        sharp = sharp / sharp.sum()
        result.append(sharp if sharp.max() >= threshold else None)
    return result, factors


def losses(heads, labels, wanted):
    """Supervised and unsupervised loss of a split batch: `labels` of its first rows, `wanted` of the others."""
    supervised = unsupervised = 0.0
    for logits in heads:
        for row, label in enumerate(labels):
            supervised -= log_softmax(logits[row])[label] / len(labels) / len(heads)
        for row, target in enumerate(wanted, start=len(labels)):
            if target is not None:
                unsupervised -= (target * log_softmax(logits[row])).sum() / len(wanted) / len(heads)
    return supervised, unsupervised


def log_softmax(row):
    return row - row.max() - math.log(sum(math.exp(value - row.max()) for value in row))


def leaf(forest, tree, row):
    """The distribution of the leaf of a tree that a row falls into."""
    node = 0
    while tree.children_left[node] != -1:
        goes_left = row[tree.feature[node]] <= tree.threshold[node]
        node = tree.children_left[node] if goes_left else tree.children_right[node]
    return tree.value[node][0] / tree.value[node][0].sum()


def estimated_shares(probabilities, labels_per_class):
    """Expectation maximization, with equal shares counted as 10 / labels per class of all rows."""
    classes = probabilities.shape[1]
    shares, weight = np.full(classes, 1 / classes), 10 / labels_per_class
    for _ in range(500):
        posteriors = [row * shares / (row * shares).sum() for row in probabilities]
        shares = (np.mean(posteriors, axis=0) + weight / classes) / (1 + weight)
    return shares
