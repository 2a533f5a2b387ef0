"""The paper's neighbors: losses against twins, and how the methods are related."""

import numpy as np
import pytest
import torch
from reference import losses as twin_losses
from reference import neighbors as twin
from support import config, differences, features, images, left_behind, training_rows
from torch import nn

from selfens import train
from selfens.core.batch import Batch
from selfens.core.losses import beta_draw, mutual_exclusivity
from selfens.core.teacher import EmaTeacher
from selfens.errors import ConfigError
from selfens.methods import METHODS, Method

FEATURES, CLASSES = 4, 3
LABELS = torch.tensor([0, -1, 2, -1, -1, 1])
ROWS = torch.tensor([3, 0, 8, 5, 1, 7])
CLOSE = {"rel": 1e-5, "abs": 1e-7}


def build(name, **options):
    method = METHODS.build(METHODS.options(name, **options))
    method.setup(network(), training_rows(torch.zeros(10, FEATURES), torch.tensor([0, 1, 2] + [-1] * 7)))
    return method


def network(seed=0):
    torch.manual_seed(seed)
    made = nn.Linear(FEATURES, CLASSES)
    nn.init.normal_(made.weight)
    return made


def batch_of(method, num_labeled=0):
    """Labeled rows anywhere, or first."""
    views = torch.randn(len(method.views), 6, FEATURES, generator=torch.Generator().manual_seed(1))
    order = [0, 2, 5, 1, 3, 4] if num_labeled else [*range(6)]
    return Batch(ROWS[order], tuple(views[:, order]), LABELS[order], LABELS[order] >= 0, num_labeled)


def parts_of(method, batch, net=None):
    net = net or network()
    torch.manual_seed(5)
    return method.losses(net, batch, method.targets(batch.rows[batch.unlabeled]), torch.tensor(1.0)).parts


def loss_of(method, batch, part="unsupervised"):
    return float(parts_of(method, batch)[part].detach())


def double(tensor):
    return tensor.detach().numpy().astype(np.float64)


def linear(net):
    weight, bias = double(net.weight), double(net.bias)
    return lambda x: x @ weight.T + bias


def predicted(batch, view=0):
    return twin_losses.softmax(linear(network())(double(batch.views[view])))


# Twins


@pytest.mark.parametrize("num_labeled", [0, 3])
def test_pseudo_label_is_its_twin(num_labeled):
    method = build("pseudo-label")
    batch = batch_of(method, num_labeled)
    z, labeled = predicted(batch)[num_labeled:], batch.labeled[num_labeled:].tolist()
    assert loss_of(method, batch) == pytest.approx(twin.pseudo_label(z, labeled), **CLOSE)


@pytest.mark.parametrize("num_labeled", [0, 3])
@pytest.mark.parametrize(("target", "beta"), [("soft", 0.95), ("hard", 0.8), ("hard", 0.3)])
def test_bootstrapping_is_its_twin(target, beta, num_labeled):
    method = build("bootstrapping", target=target, beta=beta)
    batch = batch_of(method, num_labeled)
    first = slice(num_labeled or None)
    expected = twin.bootstrapping(predicted(batch)[first], batch.labels[first].tolist(), target, beta)
    assert loss_of(method, batch, "supervised") == pytest.approx(expected, **CLOSE)


def test_bootstrapping_with_nothing_of_its_own_is_supervised():
    runs = [build("bootstrapping", beta=1.0), build("supervised")]
    one, other = (parts_of(method, batch_of(method))["supervised"] for method in runs)
    assert torch.equal(one, other)


def test_soft_targets_of_bootstrapping_minimize_the_entropy():
    """The gradient is that of the cross-entropy and the entropy, through the targets too."""
    net, method = network(), build("bootstrapping", target="soft", beta=0.6)
    batch = batch_of(method)._replace(labels=torch.full((6,), 1), labeled=torch.ones(6, dtype=torch.bool))
    z = net(batch.views[0]).softmax(dim=1)
    entropy = -(z * z.log()).sum(dim=1).mean()
    expected = torch.autograd.grad(-0.6 * z[:, 1].log().mean() + 0.4 * entropy, net.weight)[0]
    ours = torch.autograd.grad(parts_of(method, batch, net)["supervised"], net.weight)[0]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("num_labeled", [0, 3])
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_elr_is_its_twin(epochs, num_labeled):
    method = build("elr", decay=0.7)
    batch, random = batch_of(method, num_labeled), np.random.default_rng(0)
    rows = batch.rows[num_labeled:]
    past = random.dirichlet(np.ones(CLASSES), (epochs, len(rows)))
    for each in past:
        method.after_step(nn.Identity(), rows, torch.from_numpy(each).float())
        method.end_epoch()
    expected = twin.elr(predicted(batch)[num_labeled:], past.transpose(1, 0, 2).tolist(), 0.7)
    assert loss_of(method, batch) == pytest.approx(expected, **CLOSE)


def test_elr_remembers_what_its_loss_is_computed_from():
    method, sure = build("elr"), network()
    with torch.no_grad():
        sure.weight.mul_(20)
    batch = batch_of(method)
    predictions = method.losses(sure, batch, method.targets(batch.rows), torch.tensor(1.0)).predictions
    p = sure(batch.views[0]).softmax(dim=1)
    assert (p < 1e-4).any()
    clamped = p.clamp(1e-4, 1 - 1e-4)
    torch.testing.assert_close(predictions, clamped / clamped.sum(dim=1, keepdim=True))


@pytest.mark.parametrize("num_labeled", [0, 3])
@pytest.mark.parametrize(("passes", "exclusivity"), [(2, 0.0), (2, 0.1), (4, 0.0), (5, 0.7)])
def test_stability_is_its_twin(passes, exclusivity, num_labeled):
    method = build("stability", passes=passes, exclusivity=exclusivity)
    batch = batch_of(method, num_labeled)
    z = [predicted(batch, view)[num_labeled:] for view in range(passes)]
    found = loss_of(method, batch)
    assert found == pytest.approx(twin.stability(z, exclusivity), **CLOSE)


@pytest.mark.parametrize("size", [1, 30, 1e4])
def test_mutual_exclusivity_of_certain_predictions_is_zero_with_a_finite_gradient(size):
    logits = (size * torch.eye(4)).requires_grad_()
    loss = mutual_exclusivity(logits.softmax(dim=1))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-5) or size == 1


@pytest.mark.parametrize("num_labeled", [0, 3])
@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_ict_is_its_twin(alpha, num_labeled):
    method = build("ict", alpha=alpha)
    teacher = network(seed=8)
    method.teacher.network.load_state_dict(teacher.state_dict())
    batch = batch_of(method, num_labeled)
    found = loss_of(method, batch)
    torch.manual_seed(5)
    share = float(beta_draw(alpha, torch.device("cpu")))
    expected = twin.ict(linear(network()), linear(teacher), double(batch.views[0])[num_labeled:], share)
    assert found == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 1.0, 5.0])
def test_shares_have_the_moments_of_the_beta_distribution(alpha):
    torch.manual_seed(0)
    draws = torch.stack([beta_draw(alpha, torch.device("cpu")) for _ in range(3000)])
    assert draws.isfinite().all()
    assert float(draws.mean()) == pytest.approx(0.5, abs=0.04)
    assert float(draws.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


@pytest.mark.parametrize("num_labeled", [0, 3])
@pytest.mark.parametrize("entropy", [0.0, 1.0])
def test_vat_is_its_twin(entropy, num_labeled):
    method = build("vat", radius=0.5, probe=0.1, entropy=entropy)
    batch = batch_of(method, num_labeled)
    found = loss_of(method, batch)
    torch.manual_seed(5)
    x = batch.views[0][num_labeled:]
    draw, inputs = double(torch.randn_like(x)), double(x)
    expected = twin.vat(linear(network()), inputs, draw, radius=0.5, probe=0.1, entropy=entropy)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("num_labeled", [0, 3])
def test_gamma_is_its_twin(num_labeled):
    method = build("gamma", noise=0.4)
    with torch.no_grad():
        for parameter in method.learned.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(3))
    batch = batch_of(method, num_labeled)
    found, x = loss_of(method, batch), batch.views[0]
    forward = linear(network())
    torch.manual_seed(5)
    noisy = forward(double(x + 0.4 * torch.randn_like(x)))[num_labeled:]
    top = 0.4 * double(torch.randn(6 - num_labeled, CLASSES))
    a = [double(parameter).tolist() for parameter in (method.learned.mean, method.learned.weight)]
    expected = twin.gamma(forward(double(x))[num_labeled:].tolist(), noisy.tolist(), top.tolist(), a)
    assert found == pytest.approx(expected, rel=1e-4)


def test_the_denoiser_of_gamma_is_trained_and_saved_with_the_run(tmp_path):
    run = train(config("gamma", epochs=2), tmp_path / "run", dataset=features())
    tensors = run.directory.load_checkpoint().tensors
    saved = tensors["method"]
    assert {*saved} == {"learned.mean", "learned.weight"}
    assert not torch.equal(saved["learned.weight"], build("gamma").learned.weight)
    assert not any("learned" in name for name in run.network.state_dict())
    assert sum(each.numel() for each in tensors["optimizer"].values()) > 2 * 10 * CLASSES


class Both(Method):
    """A teacher, which follows the network's parameters, beside parameters that are trained with them."""

    def setup(self, network, rows):
        self.teacher, self.learned = EmaTeacher(network), nn.Linear(2, 2)

    def losses(self, network, batch, targets, weight):
        raise NotImplementedError


def test_a_method_with_a_teacher_and_parameters_of_its_own_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Both has both `teacher` and `learned`"):
        train(config(), tmp_path / "run", dataset=features(), method=Both())


def test_the_direction_of_vat_changes_predictions_more_than_others_do():
    net, method = network(), build("vat")
    torch.manual_seed(0)
    x = torch.randn(200, FEATURES)
    p = net(x).softmax(dim=1).detach()

    def change(direction):
        return float((net(x + 0.1 * direction).softmax(dim=1) - p).square().sum().detach())

    found = method.direction(net, x, p)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(200))
    others = [torch.nn.functional.normalize(torch.randn(200, FEATURES)) for _ in range(5)]
    assert change(found) > 1.5 * max(map(change, others))
    assert not found.requires_grad


# How methods are related


@pytest.mark.parametrize("labeled_per_batch", ["none", "4"])
@pytest.mark.parametrize("kind", ["images", "vectors"])
def test_the_pi_model_is_stability_with_two_passes_to_the_last_bit(tmp_path, kind, labeled_per_batch):
    common = [f"training.labeled_per_batch={labeled_per_batch}", "method.weight_max=20"]
    common += ["network.name=small", "views.translation=1", "views.flip=true"] if kind == "images" else []
    data = images() if kind == "images" else features()
    for name, more in (("pi", []), ("stability", ["method.passes=2"])):
        train(config(name, *common, *more), tmp_path / name, dataset=data)
    assert differences(left_behind(tmp_path / "pi"), left_behind(tmp_path / "stability")) == []


def test_temporal_ensembling_without_momentum_compares_with_the_last_epochs_prediction():
    method = build("temporal", decay=0.0)
    epochs = torch.randn(3, 10, CLASSES, generator=torch.Generator().manual_seed(0)).softmax(dim=2)
    for z, rows in zip(epochs, (torch.arange(10), torch.arange(10), torch.arange(4)), strict=True):
        method.after_step(nn.Identity(), rows, z[rows])
        method.end_epoch()
    target = method.targets(torch.arange(10)).probabilities
    assert torch.equal(target[:4], epochs[2, :4])
    assert torch.equal(target[4:], epochs[1, 4:])


def test_mean_teacher_without_momentum_is_the_pi_model_with_a_gradient_into_one_pass():
    """Its teacher is the network itself, so the losses are equal, and its gradients for either order add up to Π's."""
    net, pi, teacher = network(), build("pi"), build("mean-teacher", decay=0.0)
    teacher.setup(net, training_rows(torch.zeros(10, FEATURES), torch.zeros(10, dtype=torch.int64)))
    with torch.no_grad():
        net.weight.mul_(1.5)
    teacher.after_step(net, ROWS, torch.zeros(6, CLASSES))
    assert torch.equal(teacher.teacher.network.weight, net.weight)
    batch = batch_of(pi)
    swapped = batch._replace(views=batch.views[::-1])
    found = [parts_of(*each, net)["unsupervised"] for each in ((pi, batch), (teacher, batch), (teacher, swapped))]
    assert torch.equal(found[0], found[1])
    whole, one, other = (torch.autograd.grad(loss, net.weight)[0] for loss in found)
    torch.testing.assert_close(whole, one + other, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(whole, one, rtol=0.1)
