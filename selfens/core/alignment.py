"""Class alignment: rescale predictions so that each class is predicted as often as it should be."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selfens.core.losses import normalize
from selfens.errors import ConfigError

MOMENTUM = 0.99  # of the running mean of predictions
LEAST_SHARE = 1e-6  # a class predicted less often is not divided by its share
EQUAL = 0.1  # labels of one class more than of another that are still equally many
CAUTION = 10.0  # labels of each class with which estimated shares count as much as equal ones
MAX_NAMED = 6  # classes in a remark
LABELS, GIVEN = "of the labels", "as given"
ESTIMATED = "estimated from the unlabeled rows, because there are equally many labels of each class"
CLASS_SHARES = (
    "Shares of the classes among all rows: labels, equal, or a share for each, such as no=0.9,yes=0.1; auto: those of the "
    "labels, or estimated if there are equally many labels of each class."
)
ALIGNMENT = "Rescale predictions to the class shares of the labels (with one more of each), to equal shares, or not."


def smoothed_shares(class_counts: Tensor) -> Tensor:
    """Return the share of each class, each counted once more, so that none is zero."""
    return (class_counts + 1) / (class_counts + 1).sum()


def look_chosen(class_counts: Tensor) -> bool:
    """Return True if there are so equally many labels of each class that somebody labeled by class.

    >>> look_chosen(torch.tensor([10.0, 11.0])), look_chosen(torch.tensor([14.0, 6.0]))
    (True, False)
    """
    return bool(class_counts.max() <= (1 + EQUAL) * class_counts.min() + 1)


def estimated_shares(probabilities: Tensor, class_counts: Tensor, rounds: int = 200) -> Tensor:
    """Estimate the shares of the classes among unlabeled rows by expectation maximization (Saerens et al., 2002).

    `probabilities`, [unlabeled rows, classes], are of models that learned from equally many labels of each class. Fitted to few
    labels they are biased toward some class, so equal shares have a weight of `CAUTION` over the labels per class, in relation
    to all unlabeled rows.
    """
    equal = torch.full_like(class_counts, 1 / len(class_counts))
    weight = CAUTION / class_counts.mean()
    shares = equal
    for _ in range(rounds):
        shares = (normalize(probabilities * shares).mean(dim=0) + weight * equal) / (1 + weight)
    return shares


class Shares(NamedTuple):
    """The shares of the classes among all rows, and how they are known."""

    wanted: Tensor
    labeled: Tensor
    """Those of the labels, with one more of each class."""
    source: str

    @property
    def are_given(self) -> bool:
        return self.source == GIVEN

    @property
    def ratio(self) -> Tensor:
        """[classes] what to multiply probabilities by that follow the shares of the labels."""
        return self.wanted / self.labeled

    def remark(self, classes: Sequence[str]) -> str:
        """Say in a line what the shares are; empty if they are those of the labels, as usual."""
        if self.source == LABELS:
            return ""
        largest = self.wanted.argsort(descending=True, stable=True)[:MAX_NAMED].tolist()
        named = ", ".join(f"{classes[number]} {100 * float(self.wanted[number]):.0f} %" for number in largest)
        return f"class shares {self.source}: {named}{', ...' * (len(classes) > MAX_NAMED)}"


def wanted_shares(
    kind: str, classes: Sequence[str], class_counts: Tensor, probabilities: Tensor | None = None
) -> Shares:
    """Return the shares that predictions should have.

    Parameters
    ----------
    kind
        `auto`, `labels`, `equal`, or the shares themselves: "no=0.9,yes=0.1". With `auto` they are those of the labels, unless
        labels look chosen by class: then they are estimated.
    class_counts
        The labels of each class.
    probabilities
        [unlabeled rows, classes] of models that were fitted to the labels; without these nothing is estimated.
    """
    labeled = smoothed_shares(class_counts)
    if kind == "equal":
        return Shares(torch.full_like(labeled, 1 / len(labeled)), labeled, "taken to be equal")
    if kind not in ("auto", "labels"):
        given = given_shares(kind)
        if unknown := sorted({*given} ^ {*classes}):
            wrong = "has no share" if unknown[0] in classes else "is not one of the classes"
            raise ConfigError(f"method.class_shares is '{kind}', but '{unknown[0]}' {wrong}; give each class a share.")
        return Shares(labeled.new_tensor([given[name] for name in classes]), labeled, GIVEN)
    if kind == "labels" or probabilities is None or not len(probabilities) or not look_chosen(class_counts):
        return Shares(labeled, labeled, LABELS)
    return Shares(estimated_shares(probabilities, class_counts), labeled, ESTIMATED)


def check_class_shares(kind: str) -> None:
    """Refuse what says nothing about shares; whether the classes are right is known once there are data."""
    if kind not in ("auto", "labels", "equal"):
        given_shares(kind)


def given_shares(text: str) -> dict[str, float]:
    """Read shares such as "no=0.9,yes=0.1"; parts of a whole, such as "no=9,yes=1", will do.

    >>> given_shares("no=9,yes=1")
    {'no': 0.9, 'yes': 0.1}
    """
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        found = {name.strip(): float(number.strip().rstrip("%")) for name, _, number in parts}
        if len(found) == len(parts) and all(0 < share < math.inf for share in found.values()):
            return {name: share / sum(found.values()) for name, share in found.items()}
    except ValueError:
        pass
    expected = "auto, labels, equal, or a share for each class, such as no=0.9,yes=0.1"
    raise ConfigError(f"method.class_shares is '{text}'; expected {expected}.")


class Alignment:
    """Distribution alignment (ReMixMatch) to the running mean of predictions.

    >>> alignment = Alignment("uniform", torch.tensor([3.0, 1.0]))
    >>> alignment.follow(torch.tensor([[0.9, 0.1]]))
    >>> alignment.align(torch.tensor([[0.5, 0.5]]))
    tensor([[0.4960, 0.5040]])
    """

    def __init__(
        self, kind: str, class_counts: Tensor, class_without_label: str | None = None, slack: float = 1.0
    ) -> None:
        if kind == "labels" and class_without_label is not None:
            missing = f"the class '{class_without_label}' has no label; label a row of each class"
            raise ConfigError(f"method.alignment is labels, but {missing}, or set it to uniform or none.")
        self.kind, self.slack = kind, slack
        self.wanted = smoothed_shares(class_counts if kind == "labels" else torch.zeros_like(class_counts))
        self.predicted = self.wanted.clone()

    def align(self, probabilities: Tensor) -> Tensor:
        """Rescale probabilities by how often each class should be predicted over how often it is.

        A class that is up to `slack` times as frequent, or as rare, as it should be is left as it is.
        """
        if self.kind == "none":
            return probabilities
        limited = torch.minimum(torch.maximum(self.predicted, self.wanted / self.slack), self.wanted * self.slack)
        return normalize(probabilities * (limited / self.predicted.clamp_min(LEAST_SHARE)))

    def follow(self, predictions: Tensor) -> None:
        """Move the running mean toward a batch of predictions."""
        self.predicted.lerp_(predictions.mean(dim=0), 1 - MOMENTUM)

    def state_dict(self) -> dict[str, Tensor]:
        return {"predicted": self.predicted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.predicted.copy_(state["predicted"])


def class_factors(probabilities: Tensor, counted: Tensor, wanted: Tensor, slack: float, rounds: int = 3) -> Tensor:
    """Return [classes] factors that bring each mean share over the `counted` rows between wanted/slack and wanted*slack.

    Each round gets closer. Shares within the range do not change.
    """
    factors = torch.ones_like(wanted)
    for _ in range(rounds):
        # Masked, not selected: the host would have to wait for the number of counted rows.
        share = (normalize(probabilities * factors) * counted[:, None]).sum(dim=0) / counted.sum().clamp_min(1)
        limited = torch.minimum(torch.maximum(share, wanted / slack), wanted * slack)
        factors = torch.where(counted.any(), factors * limited / share.clamp_min(LEAST_SHARE), factors)
    return factors
