"""The losses of the paper's neighbors, row by row, from probabilities or from a network that is a function of its inputs."""

import math

import numpy as np

from reference.differences import numerical_gradient
from reference.losses import softmax


def pseudo_label(z, labeled):
    """-1/|B| times the sum of log of the largest probability over the rows without a label."""
    return -math.fsum(math.log(max(row)) for row, known in zip(z, labeled, strict=True) if not known) / len(z)


def bootstrapping(z, labels, target, beta):
    """-1/|B| times the sum over labeled rows and classes of (beta [k = y] + (1 - beta) own_k) log z_k."""
    total = 0.0
    for row, label in zip(z, labels, strict=True):
        if label < 0:
            continue
        largest = max(range(len(row)), key=row.__getitem__)
        for k, value in enumerate(row):
            own = float(k == largest) if target == "hard" else value
            total -= (beta * (k == label) + (1 - beta) * own) * math.log(value)
    return total / len(z)


def elr(z, past, decay):
    """The mean of log(1 - <q, p>); `past` has the predictions of a row in earlier epochs, oldest first."""
    total = 0.0
    for row, earlier in zip(z, past, strict=True):
        p = [min(max(value, 1e-4), 1 - 1e-4) for value in row]
        q = [0.0] * len(p)
        for each in [*earlier, p]:
            q = [decay * a + (1 - decay) * b / math.fsum(each) for a, b in zip(q, each, strict=True)]
        total += math.log(1 - math.fsum(a * b for a, b in zip(q, p, strict=True)))
    return total / len(z)


def stability(passes, exclusivity):
    """1/(C|B|) times the sum of |z^j - z^k|^2 over pairs, and of 1 - sum_k z_k prod_(l != k) (1 - z_l) over passes."""
    total = 0.0
    for j, one in enumerate(passes):
        for other in passes[:j]:
            total += math.fsum((a - b) ** 2 for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))
        for row in one:
            alone = [v * math.prod(1 - w for m, w in enumerate(row) if m != k) for k, v in enumerate(row)]
            total += exclusivity * (1 - math.fsum(alone))
    return total / (len(passes[0]) * len(passes[0][0]))


def ict(network, teacher, x, share):
    """1/(C|B|) times the sum of the squares of f(mixed x) - mixed f'(x), each row mixed with the one before it."""
    taught, total = softmax(teacher(x)), 0.0
    for i in range(len(x)):
        between = share * x[i] + (1 - share) * x[i - 1]
        (learned,) = softmax(network(between[None]))
        target = [share * a + (1 - share) * b for a, b in zip(taught[i], taught[i - 1], strict=True)]
        total += math.fsum((a - b) ** 2 for a, b in zip(learned, target, strict=True))
    return total / (len(x) * len(taught[0]))


def gamma(clean, noisy, noise, a):
    """1/(C|B|) times the sum of squares of normalized clean logits minus denoised ones; a[0] for m, a[1] for v, [5][unit]."""
    rows, units = len(clean), len(clean[0])

    def moments(values, k):
        column = [row[k] for row in values]
        mean = math.fsum(column) / rows
        return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in column) / rows + 1e-6)

    def curve(a, k, u):
        return a[0][k] / (1 + math.exp(-(a[1][k] * u + a[2][k]))) + a[3][k] * u + a[4][k]

    total, p = 0.0, softmax(noisy)
    for k in range(units):
        (center, deviation), (n_center, n_deviation), (p_center, p_deviation) = (
            moments(values, k) for values in (clean, noisy, p)
        )
        for i in range(rows):
            z = (noisy[i][k] - n_center) / n_deviation + noise[i][k]
            u = (p[i][k] - p_center) / p_deviation
            m, v = curve(a[0], k, u), curve(a[1], k, u)
            total += (((z - m) * v + m - center) / deviation - (clean[i][k] - center) / deviation) ** 2
    return total / (rows * units)


def vat(network, x, draw, radius, probe, entropy):
    """KL of f(x) and f(x + r), averaged, r in the direction of the gradient of the KL at x + probe * draw; and the entropy."""
    total = 0.0
    for row, d in zip(x, draw, strict=True):
        (p,) = softmax(network(row[None]))

        def divergence(r, row=row, p=p):
            (q,) = softmax(network((row + r)[None]))
            return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

        step = probe * d / np.linalg.norm(d)
        gradient = numerical_gradient(lambda step=step, divergence=divergence: divergence(step), step)
        total += divergence(radius * gradient / np.linalg.norm(gradient))
        total -= entropy * math.fsum(a * math.log(a) for a in p)
    return total / len(x)
