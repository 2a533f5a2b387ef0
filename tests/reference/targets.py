"""The ensemble of temporal ensembling: Algorithm 2 as written, and with a count for each row."""

import numpy as np


def algorithm_2(epochs_of_predictions, decay):
    """The target vectors after each epoch when every row is predicted in every epoch: Z / (1 - alpha^t)."""
    z_mean = np.zeros_like(epochs_of_predictions[0], dtype=np.float64)
    targets = []
    for t, z in enumerate(epochs_of_predictions, start=1):
        z_mean = decay * z_mean + (1 - decay) * z
        targets.append(z_mean / (1 - decay**t))
    return targets


class RowEnsemble:
    """Each row by itself: its past predictions in order, and nothing else is remembered."""

    def __init__(self, num_rows, num_classes, decay):
        self.decay, self.num_classes = decay, num_classes
        self.past = [[] for _ in range(num_rows)]
        self.present = {}

    def write(self, rows, probabilities):
        for row, z in zip(rows, probabilities, strict=True):
            self.present[row] = np.asarray(z, dtype=np.float64)

    def commit(self):
        for row, z in self.present.items():
            self.past[row].append(z)
        self.present = {}

    def mean(self, row):
        """Z: every past prediction with weight (1 - alpha) alpha^age."""
        z_mean = np.zeros(self.num_classes)
        for age, z in enumerate(reversed(self.past[row])):
            z_mean = z_mean + (1 - self.decay) * self.decay**age * z
        return z_mean

    def target(self, row):
        visits = len(self.past[row])
        return self.mean(row) / (1 - self.decay**visits) if visits else np.zeros(self.num_classes)

    def variance(self, row):
        """The weighted variance of the past predictions around the target, with the weights of the target."""
        past = np.array(self.past[row]).reshape(-1, self.num_classes)
        weights = (1 - self.decay) * float(self.decay) ** np.arange(len(past))[::-1]
        return weights @ (past - self.target(row)) ** 2 / max(weights.sum(), 1e-300)

    def known(self, row):
        return len(self.past[row]) > 0
