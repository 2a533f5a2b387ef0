"""Temporal teacher as a whole loop in float64, row by row, over a `PlainNetwork` whose teacher has no noise."""

import copy

import numpy as np

from reference.adam import AdamTwin
from reference.algorithms import probabilities
from reference.alignment import align, wanted_shares
from reference.targets import RowEnsemble
from reference.teacher import TeacherTwin


class TemporalTeacherTwin:
    """The same calls as `Trainer`; `inputs` are of all rows, as the teacher sees them."""

    def __init__(
        self, network, inputs, labels, num_classes, *, num_labeled, decay, memory, alignment, temperature, threshold
    ):
        self.network, self.inputs, self.labels, self.num_labeled = network, inputs, labels, num_labeled
        self.adam = AdamTwin(network.parameters)
        self.teacher = copy.deepcopy(network)
        self.average = TeacherTwin(enumerate(self.teacher.parameters), decay)
        self.ensemble = RowEnsemble(len(labels), num_classes, memory)
        self.wanted = self.predicted = wanted_shares(labels, num_classes, alignment)
        self.alignment, self.temperature, self.threshold = alignment, temperature, threshold
        self.history, self.present = [], []

    def target(self, row, taught):
        """The mean of the row's predictions, this one the latest, each weighted by memory^age."""
        predictions = [*self.ensemble.past[row], taught]
        weights = [self.ensemble.decay**age for age in reversed(range(len(predictions)))]
        mean = sum(w * z for w, z in zip(weights, predictions, strict=True)) / sum(weights)
        if self.alignment != "none":
            mean = align([mean], self.predicted, self.wanted)[0]
        powers = mean ** (1 / self.temperature)
        return powers / powers.sum(), mean.max() >= self.threshold

    def step(self, rows, passes, learning_rate, beta1, weight):
        """passes: what the network saw, noise included, in its only pass."""
        (seen,), count, first = passes, len(rows), self.num_labeled
        z = probabilities(self.network, seen)
        taught = probabilities(self.teacher, self.inputs[rows])
        d_logits = np.zeros_like(z)
        supervised = unsupervised = kept_rows = 0.0
        for i, row in enumerate(rows):
            label = self.labels[row] if i < first or not first else -1
            if label >= 0:
                supervised -= np.log(z[i][label]) / (first or count)
                d_logits[i] += (z[i] - np.eye(len(z[i]))[label]) / (first or count)
            if i >= first:
                target, kept = self.target(row, taught[i])
                kept_rows += kept / (count - first)
                if kept:
                    unsupervised -= (target * np.log(z[i])).sum() / (count - first)
                    d_logits[i] += weight * (z[i] - target) / (count - first)
        self.present.append((supervised, unsupervised, kept_rows))
        gradients = self.network.backward(seen, d_logits)
        self.ensemble.write(rows[first:], taught[first:])
        self.predicted = 0.99 * self.predicted + 0.01 * taught[first:].mean(axis=0)
        self.adam.step(gradients, learning_rate, beta1)
        self.average.update(dict(enumerate(self.network.parameters)), range(len(self.network.parameters)))
        self.teacher.parameters = list(self.average.values.values())

    def end_epoch(self):
        self.ensemble.commit()
        self.history.append(np.mean(self.present, axis=0))
        self.present = []
