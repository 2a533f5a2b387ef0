"""Algorithms 1 and 2 and supervised-only training as whole loops, in float64.

The network is given as an object with `parameters` (a list of arrays), `forward(x)` and `gradients(loss)`, where loss is a
function of forward passes; inputs of each pass, noise included, are given from outside.
"""

import numpy as np

from reference import layers, losses
from reference.adam import AdamTwin
from reference.differences import numerical_gradient
from reference.targets import RowEnsemble


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


def logit_gradients(z, labels, labelled, difference, weight):
    """Of cross-entropy/|B| plus weight times sum(difference^2)/(C|B|), where d difference / d z = 1."""
    count, classes = z.shape
    result = np.zeros_like(z)
    for i in range(count):
        if labelled[i]:
            result[i] += (z[i] - np.eye(classes)[labels[i]]) / count
        by_z = 2 * weight * difference[i] / (classes * count)
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
        """g = 1/RMS of the mean-centred pre-activations, layer after layer."""
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
    """method: "pi", "temporal" or "supervised". One `step` for each minibatch, `end_epoch` after each epoch."""

    def __init__(self, method, network, labels, num_classes, decay=0.6):
        self.method, self.network, self.labels = method, network, labels
        self.adam = AdamTwin(network.parameters)
        self.ensemble = RowEnsemble(len(labels), num_classes, decay)
        self.history, self.present = [], []

    def step(self, rows, passes, learning_rate, beta1, weight):
        """passes: what the network sees, noise included; two arrays for the Π-model, one otherwise."""
        labels = [self.labels[row] for row in rows]
        labelled = [label >= 0 for label in labels]
        if isinstance(self.network, PlainNetwork):
            gradients = self._by_hand(rows, passes, labels, labelled, weight)
        else:
            total = lambda: self._total(self._losses(rows, passes, labels, labelled), weight)  # noqa: E731
            gradients = [numerical_gradient(total, p) for p in self.network.parameters]
        self.present.append(self._losses(rows, passes, labels, labelled))
        self.ensemble.write(rows, probabilities(self.network, passes[0]))
        if isinstance(self.network, NormalizedNetwork):
            self.network.move_running_means(passes[-1])
        self.adam.step(gradients, learning_rate, beta1)

    def _losses(self, rows, passes, labels, labelled):
        logits = self.network.forward(passes[0])
        supervised = losses.cross_entropy(logits, labels, labelled)
        if self.method == "supervised":
            return supervised, 0.0
        z = losses.softmax(logits)
        if self.method == "pi":
            return supervised, losses.squared_difference(z, probabilities(self.network, passes[1]))
        known = [self.ensemble.known(row) for row in rows]
        return supervised, losses.squared_difference(z, [self.ensemble.target(row) for row in rows], known)

    @staticmethod
    def _total(parts, weight):
        return parts[0] + weight * parts[1]

    def _by_hand(self, rows, passes, labels, labelled, weight):
        network, z = self.network, probabilities(self.network, passes[0])
        if self.method == "pi":
            other = probabilities(network, passes[1])
            nothing = [False] * len(rows)
            first = network.backward(passes[0], logit_gradients(z, labels, labelled, z - other, weight))
            second = network.backward(passes[1], logit_gradients(other, labels, nothing, other - z, weight))
            return [a + b for a, b in zip(first, second, strict=True)]
        difference = np.zeros_like(z)
        if self.method == "temporal":
            for i, row in enumerate(rows):
                if self.ensemble.known(row):
                    difference[i] = z[i] - self.ensemble.target(row)
        return network.backward(passes[0], logit_gradients(z, labels, labelled, difference, weight))

    def end_epoch(self):
        self.ensemble.commit()
        self.history.append(np.mean(self.present, axis=0))
        self.present = []
