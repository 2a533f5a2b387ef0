"""Members of a committee that scikit-learn fits to the labels alone: trees and a linear model, kept as plain tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selfens.core.losses import normalize, sharpen

TREES = 100  # of each kind
KINDS: tuple[Any, ...] = ("sqrt", None)  # features that a split may choose from: a random forest, and bagged trees
PENALTY = 0.1  # scikit-learn's C of the linear model
TREES_SHARE = 2 / 3  # of the trees in the vote with the linear model
SOFTENING = 0.4  # power of the heads' probabilities in the vote: they are surer than advisors that are as often right
LEAST = 1e-4  # added to each probability, because no few labels make a class impossible


class Trees(nn.Module):
    """The mean of decision trees, whose nodes are listed one tree after the other.

    A row goes from a node to `left` if its `feature` is at most `threshold`, else to `right`; a leaf leads to itself. The
    number of nodes follows from the state that is loaded.
    """

    roots: Tensor
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    NAMES = ("roots", "feature", "threshold", "left", "right", "value")

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.depth = 0
        indices = {name: torch.empty(0, dtype=torch.int64) for name in ("roots", "feature", "left", "right")}
        self._set(indices | {"threshold": torch.empty(0), "value": torch.empty(0, num_classes)})

    def forward(self, x: Tensor) -> Tensor:
        """Return [rows, classes] the mean of the distributions of the leaves that each row falls into."""
        node = self.roots.expand(x.shape[0], -1)  # `len` would fix the number of rows of an exported file
        for _ in range(self.depth):
            goes_left = x.gather(1, self.feature[node]) <= self.threshold[node]
            node = torch.where(goes_left, self.left[node], self.right[node])
        return self.value[node].mean(dim=1)

    def load_forests(self, forests: Sequence[Any], num_classes: int) -> None:
        """Take the trees of scikit-learn's forests, fitted to class numbers; without any there is one tree that is a leaf."""
        leaf, fair = np.zeros(1, np.int64), np.full((1, num_classes), 1 / num_classes, np.float32)
        parts: dict[str, list[NDArray[Any]]] = {name: [] if forests else [leaf] for name in self.NAMES}
        if not forests:
            parts["value"] = [fair]
        start = 0
        for forest in forests:
            for each in forest.estimators_:
                tree = each.tree_
                own = np.arange(tree.node_count)
                is_leaf, value = tree.children_left < 0, np.zeros((tree.node_count, num_classes), np.float32)
                value[:, forest.classes_] = tree.value[:, 0] / tree.value[:, 0].sum(axis=1, keepdims=True)
                parts["roots"].append(np.array([start]))
                parts["feature"].append(np.where(is_leaf, 0, tree.feature))
                parts["threshold"].append(_rounded_down(np.where(is_leaf, 0, tree.threshold)))
                parts["left"].append(start + np.where(is_leaf, own, tree.children_left))
                parts["right"].append(start + np.where(is_leaf, own, tree.children_right))
                parts["value"].append(value)
                start += tree.node_count
        self._set({name: torch.from_numpy(np.concatenate(arrays)) for name, arrays in parts.items()})

    def _set(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            kind = torch.float32 if name in ("threshold", "value") else torch.int64
            setattr(self, name, nn.Parameter(tensor.to(kind), requires_grad=False))
        self.depth = self._depth()

    def _depth(self) -> int:
        """Return the number of steps from the roots to the deepest leaf; refuse what are not trees."""
        nodes, count = self.roots, len(self.feature)
        if nodes.is_meta or not len(nodes):
            return 0
        children = torch.stack([self.left, self.right], dim=1)
        own = torch.arange(count, device=nodes.device)
        is_leaf, forward = (children == own[:, None]).all(dim=1), (children > own[:, None]).all(dim=1)
        if int(nodes.min()) < 0 or int(nodes.max()) >= count or int(children.max()) >= count:
            raise RuntimeError("the trees lead to nodes that do not exist")
        if not (is_leaf | forward).all() or int(self.feature.min()) < 0:
            raise RuntimeError("the trees lead in a circle")
        steps = 0
        while len(nodes := nodes[~is_leaf[nodes]]):
            nodes, steps = children[nodes].flatten(), steps + 1
        return steps

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the sizes from the state."""
        found = {name: state[prefix + name] for name in self.NAMES if prefix + name in state}
        for name, tensor in found.items():
            current = getattr(self, name)
            if tensor.dtype == current.dtype and tensor.shape[1:] == current.shape[1:]:
                setattr(self, name, nn.Parameter(torch.empty_like(tensor, device=current.device), requires_grad=False))
        super()._load_from_state_dict(state, prefix, *rest)
        if len({len(getattr(self, name)) for name in self.NAMES[1:]}) > 1:
            raise RuntimeError("the trees are incomplete")
        self.depth = self._depth()


class Advisors(nn.Module):
    """A random forest, bagged trees and a penalized linear model, each fitted to the labels alone.

    Trees do not care about the scale of a column, and the linear model is careful where labels are few. They have a `share` in
    the vote with the heads, and `factors` rescale the classes to shares that are not those of the labels.
    """

    def __init__(self, features: int, num_classes: int) -> None:
        super().__init__()
        self.trees = Trees(num_classes)
        self.linear = nn.Linear(features, num_classes).requires_grad_(False)
        self.factors = nn.Parameter(torch.ones(num_classes), requires_grad=False)
        self.share, self.trees_share = (nn.Parameter(torch.zeros(()), requires_grad=False) for _ in range(2))

    @property
    def can_vote(self) -> bool:
        """They were fitted."""
        return len(self.trees.roots) > 0

    def fit(self, inputs: Tensor, labels: Tensor, members: str = "all") -> None:
        """Fit to [rows, features] inputs and their class numbers. The seed is fixed, so the same rows give the same members.

        `members` are all, or one alone: scikit-learn's random forest (`forest`) or its linear model (`linear`), both as they
        are by default, or the penalized linear model (`careful`).
        """
        from sklearn.ensemble import RandomForestClassifier

        x, y = inputs.cpu().numpy(), labels.cpu().numpy()
        kinds = {"all": KINDS, "forest": KINDS[:1]}.get(members, ())
        forests = [RandomForestClassifier(TREES, max_features=most, random_state=0).fit(x, y) for most in kinds]
        self.trees.load_forests(forests, len(self.factors))
        self.trees_share.fill_({"all": TREES_SHARE, "forest": 1.0}.get(members, 0.0))
        weight, bias = linear_model(x, y, len(self.factors), 1.0 if members == "linear" else PENALTY)
        self.linear.weight.copy_(weight)
        self.linear.bias.copy_(bias)
        self.to(inputs.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return [rows, classes] probabilities."""
        vote = self.trees_share * self.trees(x) + (1 - self.trees_share) * self.linear(x).softmax(dim=1)
        return normalize((vote + LEAST) * self.factors)

    def vote(self, heads: Tensor, advice: Tensor) -> Tensor:
        """Return the vote of the heads' mean probabilities and what the advisors predict."""
        return (1 - self.share) * sharpen(heads, 1 / SOFTENING) + self.share * advice


def linear_model(x: NDArray[Any], y: NDArray[Any], num_classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Return weights and bias of a penalized linear model; a class without a label is never predicted."""
    from sklearn.linear_model import LogisticRegression

    weight, bias = np.zeros((num_classes, x.shape[1])), np.full(num_classes, -1e4)
    classes = np.unique(y)
    bias[classes] = 0
    if len(classes) > 1:
        model = LogisticRegression(C=penalty, max_iter=300).fit(x, y)
        two = len(classes) == 2  # has one row of weights, which are the difference of the classes
        weight[classes] = np.concatenate([-model.coef_, model.coef_]) / 2 if two else model.coef_
        bias[classes] = np.concatenate([-model.intercept_, model.intercept_]) / 2 if two else model.intercept_
    return torch.from_numpy(weight).float(), torch.from_numpy(bias).float()


def _rounded_down(thresholds: NDArray[Any]) -> NDArray[np.float32]:
    """Return the largest float32 at most each threshold: float32 inputs compare with both alike."""
    near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)
