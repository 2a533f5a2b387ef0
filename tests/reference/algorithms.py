"""Algorithms 1 and 2, supervised-only training, mean teacher and FixMatch as whole loops, in float64.

The network is given as an object with `parameters` (a list of arrays), `forward(x)` and `gradients(loss)`, where loss is a
function of forward passes; inputs of each pass, noise included, are given from outside.
"""

import copy

import numpy as np

from reference import layers, losses
from reference.adam import AdamTwin
from reference.alignment import align, wanted_shares
from reference.differences import numerical_gradient
from reference.targets import RowEnsemble
from reference.teacher import TeacherTwin


class PlainNetwork:
    """x -> V leaky(W x + b) + c, with its gradient written by hand."""

    def __init__(self, w, b, v, c, slope=0.1):
        self.parameters = [np.array(p, dtype=np.float64) for p in (w, b, v, c)]
        self.slope = slope

    def forward(self, x):
        w, b, v, c = self.parameters
        return np.array([v @ layers.leaky(w @ row + b, self.slope) + c for row in x])

    def backward(self, x, logit_gradients):
        """Gradients of a loss whose gradients by the logits are given, summed over rows."""
        w, b, v, _ = self.parameters
        total = [np.zeros_like(p) for p in self.parameters]
        for row, d_logits in zip(x, logit_gradients, strict=True):
            before = w @ row + b
            d_before = (v.T @ d_logits) * np.where(before > 0, 1.0, self.slope)
            parts = (np.outer(d_before, row), d_before, np.outer(d_logits, layers.leaky(before, self.slope)), d_logits)
            for sum_so_far, part in zip(total, parts, strict=True):
                sum_so_far += part
        return total


def logit_gradients(z, labels, labeled, difference, weight, num_labeled=0):
    """Of the cross-entropy plus weight times sum(difference^2)/(C rows), where d difference / d z = 1.

    With `num_labeled`, the cross-entropy is the mean over the first rows and the other term over the others; else both are
    over all rows.
    """
    count, classes = z.shape
    result = np.zeros_like(z)
    for i in range(count):
        if labeled[i]:
            result[i] += (z[i] - np.eye(classes)[labels[i]]) / (num_labeled or count)
        if i >= num_labeled:
            by_z = 2 * weight * difference[i] / (classes * (count - num_labeled))
            result[i] += z[i] * (by_z - (by_z * z[i]).sum())
    return result


class NormalizedNetwork:
    """Two dense layers with weight norm and mean-only batch norm; gradients by differences."""

    def __init__(self, direction1, direction2, momentum, slope=0.1):
        ones, zeros = (lambda d: np.ones(len(d))), (lambda d: np.zeros(len(d)))
        first = [np.array(direction1, dtype=np.float64), ones(direction1), zeros(direction1)]
        second = [np.array(direction2, dtype=np.float64), ones(direction2), zeros(direction2)]
        self.parameters = first + second
        self.running_means = [zeros(direction1), zeros(direction2)]
        self.momentum, self.slopes = momentum, (slope, 1.0)

    def layers(self):
        return (self.parameters[:3], self.parameters[3:])

    def forward(self, x):
        for (direction, gain, bias), slope in zip(self.layers(), self.slopes, strict=True):
            x = layers.normalized_layer(x, direction, gain, bias, slope)
        return x

    def calibrate(self, x):
        """g = 1/RMS of the mean-centered pre-activations, layer after layer."""
        for (direction, gain, bias), slope in zip(self.layers(), self.slopes, strict=True):
            gain /= layers.unit_rms(layers.linear(x, layers.normalized_weight(direction, gain)))
            x = layers.normalized_layer(x, direction, gain, bias, slope)

    def move_running_means(self, x):
        """m <- momentum m + (1 - momentum) batch mean, with the weights as they are before the update."""
        for i, ((direction, gain, bias), slope) in enumerate(zip(self.layers(), self.slopes, strict=True)):
            mean = layers.unit_means(layers.linear(x, layers.normalized_weight(direction, gain)))
            self.running_means[i] = self.momentum * self.running_means[i] + (1 - self.momentum) * mean
            x = layers.normalized_layer(x, direction, gain, bias, slope)


def probabilities(network, x):
    return np.array(losses.softmax(network.forward(x)))


class Trainer:
    """One `step` for each minibatch, `end_epoch` after each epoch.

    method       "supervised", "pi", "temporal", "mean-teacher" or "fixmatch"
    decay        of the ensemble, the teacher or the averaged weights
    num_labeled  labeled rows at the beginning of each batch, the only ones whose labels are used; 0: labels are anywhere
    threshold, alignment  of fixmatch
    """

    def __init__(
        self, method, network, labels, num_classes, *, decay=0.6, num_labeled=0, threshold=0.95, alignment="none"
    ):
        self.method, self.network, self.labels, self.num_labeled = method, network, labels, num_labeled
        self.adam = AdamTwin(network.parameters)
        self.ensemble = RowEnsemble(len(labels), num_classes, decay)
        self.teacher = copy.deepcopy(network)
        self.average = TeacherTwin(enumerate(self.teacher.parameters), decay)
        self.wanted = self.predicted = wanted_shares(labels, num_classes, alignment)
        self.threshold, self.alignment = threshold, alignment
        self.history, self.present = [], []

    def step(self, rows, passes, learning_rate, beta1, weight):
        """passes: what the network sees, noise included: an array for each pass."""
        first = self.num_labeled
        hidden = [first > 0 and i >= first for i in range(len(rows))]
        labels = [-1 if hide else self.labels[row] for row, hide in zip(rows, hidden, strict=True)]
        labeled = [label >= 0 for label in labels]

        def total():
            supervised, unsupervised, *_ = self._losses(rows, passes, labels, labeled)
            return supervised + weight * unsupervised

        if isinstance(self.network, PlainNetwork):
            gradients = self._by_hand(rows, passes, labels, labeled, weight)
        else:
            gradients = [numerical_gradient(total, p) for p in self.network.parameters]
        self.present.append(self._losses(rows, passes, labels, labeled))
        z = probabilities(self.network, passes[0])[: len(rows)]
        self.ensemble.write(rows[first:], z[first:])
        self.predicted = 0.99 * self.predicted + 0.01 * z[first:].mean(axis=0)
        if isinstance(self.network, NormalizedNetwork):
            self.network.move_running_means(passes[-1])
        self.adam.step(gradients, learning_rate, beta1)
        self.average.update(dict(enumerate(self.network.parameters)), range(len(self.network.parameters)))
        self.teacher.parameters = list(self.average.values.values())

    def _losses(self, rows, passes, labels, labeled):
        """What the history shows: the supervised loss, the unsupervised one, and of fixmatch the share that is kept."""
        logits, counted = self.network.forward(passes[0])[: len(rows)], self.num_labeled or len(rows)
        supervised = losses.cross_entropy(logits[:counted], labels[:counted], labeled[:counted])
        if self.method == "supervised":
            return supervised, 0.0
        if self.method == "fixmatch":
            pseudo, kept = self._pseudo_labels(passes[0], len(rows))
            strong = self.network.forward(passes[0])[len(rows) :]
            return supervised, losses.cross_entropy(strong, pseudo, kept), np.mean(kept)
        z, rows = losses.softmax(logits)[self.num_labeled :], rows[self.num_labeled :]
        if self.method in ("pi", "mean-teacher"):
            other = self.network if self.method == "pi" else self.teacher
            return supervised, losses.squared_difference(z, probabilities(other, passes[1])[self.num_labeled :])
        known = [self.ensemble.known(row) for row in rows]
        return supervised, losses.squared_difference(z, [self.ensemble.target(row) for row in rows], known)

    def _pseudo_labels(self, joint, batch):
        """The class of each weak view of the unlabeled rows, and whether it is certain enough to be a label."""
        z = probabilities(self.network, joint)[self.num_labeled : batch]
        if self.alignment != "none":
            z = align(z, self.predicted, self.wanted)
        return z.argmax(axis=1), z.max(axis=1) >= self.threshold

    def _by_hand(self, rows, passes, labels, labeled, weight):
        network, first = self.network, self.num_labeled
        z = probabilities(network, passes[0])
        if self.method == "fixmatch":
            pseudo, kept = self._pseudo_labels(passes[0], len(rows))
            nothing = np.zeros((len(rows), z.shape[1]))
            weak = logit_gradients(z[: len(rows)], labels, labeled, nothing, 0.0, first)
            strong = logit_gradients(z[len(rows) :], pseudo, kept, np.zeros_like(z[len(rows) :]), 0.0)
            return network.backward(passes[0], np.concatenate([weak, weight * strong]))
        difference = np.zeros_like(z)
        if self.method in ("pi", "mean-teacher"):
            other = probabilities(network if self.method == "pi" else self.teacher, passes[1])
            difference = z - other
        elif self.method == "temporal":
            for i, row in enumerate(rows):
                if self.ensemble.known(row):
                    difference[i] = z[i] - self.ensemble.target(row)
        gradients = network.backward(passes[0], logit_gradients(z, labels, labeled, difference, weight, first))
        if self.method == "pi":
            nothing = [False] * len(rows)
            by_other = logit_gradients(other, labels, nothing, other - z, weight, first)
            gradients = [a + b for a, b in zip(gradients, network.backward(passes[1], by_other), strict=True)]
        return gradients

    def end_epoch(self):
        self.ensemble.commit()
        self.history.append(np.mean(self.present, axis=0))
        self.present = []
